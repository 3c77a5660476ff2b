"""A graph under assumptions on its sizes: symbols replaced in recorded shapes and in literal arguments."""

from __future__ import annotations

from typing import Any

import attrs

from layoutcheck.graph import Graph, SymMeta, TensorMeta
from layoutcheck.symbols import Assumptions, Expr


def assume(graph: Graph, assumed: Assumptions) -> Graph:
    """A copy of the graph with every symbolic size rewritten."""

    def size(value: Any) -> Any:
        if isinstance(value, Expr):
            return assumed.apply(value)
        if isinstance(value, tuple):
            return tuple(size(v) for v in value)
        return value

    def meta(value: Any) -> Any:
        if isinstance(value, TensorMeta):
            return attrs.evolve(value, shape=tuple(size(n) for n in value.shape))
        if isinstance(value, SymMeta):
            return SymMeta(size(value.value))
        if isinstance(value, tuple):
            return tuple(meta(v) for v in value)
        return value

    nodes = [
        attrs.evolve(
            node,
            args=size(node.args),
            kwargs={k: size(v) for k, v in node.kwargs.items()},
            meta=meta(node.meta),
        )
        for node in graph.nodes
    ]
    return attrs.evolve(graph, nodes=nodes)
