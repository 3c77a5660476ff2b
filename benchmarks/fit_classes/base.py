"""What a kernel class is to the fitting script.

The structures (tile sizes, knees, which term overlaps which) were chosen by hand, once for a family of
parts, while looking at whole collections; the constants are fitted on half of the sites.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import Factory, define

from layoutcheck.cost.fit import Parameter

Rows = list[dict[str, str]]

HARDWARE = {
    "h100_sxm": "h100",
    "h200_sxm": "h200",
    "b200_sxm": "b200",
    "ascend_910b(A3 die)": "ascend-a3",
    "ascend_910b_label(A3 host)": "ascend-a3",
}

GOALS = {
    "gemm bf16, m >= 256": 0.08,
    "gemm quantised": 0.12,
    "sparse attention": 0.12,
    "indexer scores": 0.20,
    "grouped gemm, balanced": 0.13,
    "grouped gemm, skewed": 0.20,
    "collectives, NVLink": 0.10,
    "collectives, HCCL": 0.14,
}


@define
class Class:
    """One kernel class on one hardware: its measured rows and how to predict them."""

    hardware: str
    key: str
    measured: Any
    sites: Sequence[Hashable]
    site_name: str
    predict: Callable[[Mapping[str, float], Any], Any]
    parameters: Sequence[Parameter]
    structure: dict[str, Any]
    flops: Any
    bytes: Any
    peak: float
    rate: float
    source: str
    parts: dict[str, Any]
    goals: dict[str, str]
    prior: float = 0.02
    weights: Any = None
    collective: bool = False
    train: Any = Factory(lambda: np.zeros(0, bool))


def column(rows: Rows, name: str) -> Any:
    """Return a column as numbers, 0 where it is empty."""
    return np.array([float(r[name] or 0) for r in rows])


def times(rows: Rows) -> Any:
    """Return the measured microseconds."""
    return column(rows, "measured_us")


def group(rows: Rows, *names: str) -> dict[tuple[str, ...], Rows]:
    """Return the rows by the values of some columns, in sorted order."""
    found: dict[tuple[str, ...], Rows] = defaultdict(list)
    for r in rows:
        found[tuple(r[n] for n in names)].append(r)
    return dict(sorted(found.items()))


def share(name: str, start: float, high: float = 1.2) -> Parameter:
    return Parameter(name, start, 0.1, high)


def tools(rows: Rows) -> str:
    return ", ".join(sorted({" ".join(x for x in (r["framework"], r["version"]) if x) for r in rows}))


LAUNCH = Parameter("launch", 3.0, 0.3, 150.0)
