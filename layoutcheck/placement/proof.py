"""A placement's certificate as plain data: per part the cut that was taken and the flow that fills it."""

from __future__ import annotations

from typing import Any

from layoutcheck.placement.mincut import SINK, SOURCE
from layoutcheck.placement.place import Placed
from layoutcheck.placement.problem import NAMES, Part


def proof(placed: Placed) -> dict[str, Any]:
    """The certificate with names: capacities in femtoseconds, each edge of a cut with what it stands for."""
    certificate = placed.placement.certificate
    parts = []
    for part in certificate.parts:
        solved = part.solved
        if solved.method != "min-cut":
            continue
        flow, side, name = solved.flow, solved.source_side, _Names(placed, part)
        cut = [(x, y, c) for x, y, c in solved.network if x in side and y not in side]
        parts.append(
            {
                "constant": solved.constant * part.scale,
                "flow": sum(f for (_, y), f in flow.items() if y == SINK) * part.scale,
                "cut": [
                    {
                        "from": name(x),
                        "to": name(y),
                        "capacity": None if c is None else c * part.scale,
                        "flow": flow.get((x, y), 0) * part.scale,
                    }
                    for x, y, c in cut
                ],
            }
        )
    return {
        "method": certificate.method,
        "bound": certificate.bound,
        "forced": certificate.forced,
        "unit": "femtoseconds",
        "parts": parts,
    }


class _Names:
    """What nodes of a part's network stand for: a threshold of a call, or a value being needed so full."""

    def __init__(self, placed: Placed, part: Part) -> None:
        self.placed, self.part = placed, part
        self.values: dict[int, int] = {}
        for o, op in zip(part.ops, part.solved.problem.ops):
            whole = placed.problem.problem.ops[o]
            self.values.update(zip((*op.reads, *op.writes), (*whole.reads, *whole.writes)))

    def __call__(self, node: Any) -> str:
        if node in (SOURCE, SINK):
            return str(node)
        p = self.placed.base.analysis.program
        if node[0] == "v":
            return f"{p.name_of(self.values[node[1]])} needed {NAMES[node[2]]}"
        if node[0] == "w":
            return f"{p.name_of(self.values[node[1]])} needed Full only"
        call = self.placed.problem.calls[self.part.ops[node[0]]][0]
        return f"{p.nodes[call].name} in its mode {node[1]}"
