"""A placement's certificate as plain data: per part the cut that was taken and the flow that fills it."""

from __future__ import annotations

from typing import Any

from layoutcheck.placement.mincut import SINK, SOURCE
from layoutcheck.placement.place import Placed
from layoutcheck.placement.problem import NAMES


def proof(placed: Placed) -> dict[str, Any]:
    """The certificate with names: capacities in femtoseconds, each edge of a cut with what it stands for."""
    certificate = placed.placement.certificate
    parts = []
    for edges, flow, side in zip(certificate.networks, certificate.flows, certificate.source_sides):
        cut = [(x, y, c) for x, y, c in edges if x in side and y not in side]
        parts.append(
            {
                "flow": sum(f for (_, y), f in flow.items() if y == SINK),
                "cut": [
                    {
                        "from": _name(placed, x),
                        "to": _name(placed, y),
                        "capacity": c,
                        "flow": flow.get((x, y), 0),
                    }
                    for x, y, c in cut
                ],
            }
        )
    return {
        "method": certificate.method,
        "bound": certificate.bound,
        "constant": certificate.constant,
        "unit": "femtoseconds",
        "parts": parts,
    }


def _name(placed: Placed, node: Any) -> str:
    """What a node of a network stands for: a threshold of a call, or a value being needed so full."""
    if node in (SOURCE, SINK):
        return str(node)
    p = placed.base.analysis.program
    if node[0] == "v":
        return f"{p.name_of(node[1])} needed {NAMES[node[2]]}"
    if node[0] == "w":
        return f"{p.name_of(node[1])} needed Full only"
    call = placed.problem.calls[node[0]][0]
    return f"{p.nodes[call].name} in its mode {node[1]}"
