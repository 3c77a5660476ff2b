"""A typed graph for tests."""

from __future__ import annotations

from typing import Any

from layoutcheck.graph import Graph
from layoutcheck.infer.solver.analysis import Analysis, analyse

NOTHING: dict[str, Any] = dict(
    groups={}, rank=None, world=None, tokens=[], layouts={}, assumptions=[], rules=[], plan=None, trust={}, others=[]
)  # fmt: skip


def analysis_of(graph: Graph, **options: Any) -> Analysis:
    """The analysis of a graph with nothing declared but what is given."""
    return analyse(graph, **{**NOTHING, **options})
