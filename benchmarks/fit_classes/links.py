"""Collectives: NCCL inside a node, HCCL inside and between nodes of a supernode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fit_classes.base import HARDWARE, Class, Rows, column, group, share, times
from layoutcheck.cost.collectives import time_us, wire_bytes
from layoutcheck.cost.fit import Parameter
from layoutcheck.cost.hardware import Fit, load_hardware

_NAMES = {"alltoall": "all_to_all"}
# part of a rank's own share that counts as moved, and the exponent of the pipelining term
_PIPELINED: dict[str, dict[str, Any]] = {
    "all_gather": {"own": 0.5, "exponent": 0.5},
    "reduce_scatter": {"own": 0.5, "exponent": 0.5},
    "all_reduce": {"own": 1.0, "exponent": 0.5},
    "all_to_all": {"own": 0.0, "exponent": 0.3},
}
# what HCCL's operations share: where few ranks end and a node does, the start of the second protocol in us
# a round, the share of a link that its rings reach, and that of the link between two dies of a card
_NODE: dict[str, Any] = {"near": 8, "node": 16}
_PROTOCOLS = {"form": "protocols", **_NODE, "jump": 80.0, "links": 0.95, "pair": 0.6}
_DIRECT = {"form": "direct", **_NODE, "knee": 2}
_NEAR, _FULL = Parameter("near", 4.0, 0.5, 20.0), Parameter("node", 18.0, 5.0, 60.0)
# shares of a rank, the largest first: of switches that fit the same rows the largest is taken
_SWITCHES = tuple(float(x) for k in range(21, 15, -1) for x in (3 * 2 ** (k - 1), 2**k))
_HCCL = {
    "protocols": [
        _NEAR,
        _FULL,
        Parameter("beyond", 20.0, 5.0, 60.0),
        Parameter("switch", 0, 0, 0, choices=_SWITCHES),
    ],
    "direct": [_NEAR, _FULL, share("bandwidth", 0.6, 1.5), Parameter("pair", 0.6, 0.1, 2.0)],
}


def collectives(rows: Rows) -> Iterator[Class]:
    """Yield each operation; the custom all_reduce kernels of serving engines are left out."""
    kept = [r for r in rows if not r["lib"].startswith("custom")]
    for (machine, name), part in group(kept, "hardware", "op").items():
        hardware = load_hardware(HARDWARE[machine])
        op = _NAMES.get(name, name)
        ranks = column(part, "num_ranks").astype(int)
        size = column(part, "message_bytes")
        hccl = hardware.vendor == "Huawei"
        if hccl and op in ("all_gather", "reduce_scatter"):
            # HCCL's rows name a rank's share: so they reach the links' 196 to 224 GB/s and do not exceed them
            size = size * ranks
        if hccl:
            structure = {**(_DIRECT if op == "all_to_all" else _PROTOCOLS), "ranks": int(ranks.max())}
            parameters = _HCCL[structure["form"]]
        else:
            structure = {"form": "pipelined", **_PIPELINED[op]}
            parameters = [
                Parameter("start", 5.0, 0.2, 50.0),
                Parameter("step", 1.0, 0.01, 10.0),
                share("bandwidth", 0.8, 1.5),
                Parameter("pipe", 1.0, 0.01, 50.0),
            ]

        def predict(
            constants: Mapping[str, float], s: Any, *, a: Any = (hardware, op, size, ranks, structure)
        ) -> Any:
            machine, op, size, ranks, structure = a
            fit = Fit(constants, structure, measured=True)
            out = np.empty(len(size))
            for p in np.unique(ranks):
                mask = ranks == p
                out[mask] = time_us(machine, op, size[mask], int(p), fit=fit)
            return out[s]

        moved = np.array([wire_bytes(op, s, int(p)) for s, p in zip(size, ranks)])
        yield Class(
            hardware=hardware.name,
            key=op,
            measured=times(part),
            sites=list(size),
            site_name="message size",
            predict=predict,
            parameters=parameters,
            structure=structure,
            flops=0 * moved,
            bytes=moved,
            peak=1.0,
            rate=hardware.node.bandwidth,
            source="fitted to HCCL" if hccl else f"fitted to {', '.join(sorted({r['lib'] for r in part}))}",
            parts={"": np.ones(len(part), bool)},
            goals={"": "collectives, HCCL" if hccl else "collectives, NVLink"},
            collective=True,
        )
