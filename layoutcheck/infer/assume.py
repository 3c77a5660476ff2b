"""A graph under assumptions on its sizes: symbols replaced in recorded shapes and in literal arguments."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from layoutcheck.errors import InputError
from layoutcheck.graph import Graph, SymMeta, TensorMeta
from layoutcheck.symbols import Assumptions, Expr, free_symbols

_WORD = re.compile(r"[A-Za-z_]\w*\b(?!\s*\()")
_TOKENS = "T"


def with_known_symbols(texts: Sequence[str], graph: Graph, groups: Mapping[str, Any]) -> list[str]:
    """The assumptions in the graph's own symbols.

    A graph with one symbolic size may be spoken of as T, whatever its export calls that size.

    Raises:
        InputError: an assumption is about a size that the graph does not have.
    """
    if not texts:
        return []
    symbols = _symbols(graph)
    if not symbols:
        return list(texts)
    ways = {word for size in groups.values() if isinstance(size, str) for word in _WORD.findall(size)}
    out = []
    for text in texts:
        for word in dict.fromkeys(_WORD.findall(text)):
            if word in symbols or word in ways:
                continue
            if word == _TOKENS and len(symbols) == 1:
                text = re.sub(rf"\b{word}\b", next(iter(symbols)), text)
                continue
            raise InputError(
                f"the assumption {text!r} is about {word}; the sizes of this graph are {', '.join(sorted(symbols))}",
                "--assume",
            )
        out.append(text)
    return out


def _symbols(graph: Graph) -> set[str]:
    """Names of the sizes in the recorded shapes."""
    found = set(graph.ranges)

    def walk(value: Any) -> None:
        if isinstance(value, Expr):
            found.update(free_symbols(value))
        elif isinstance(value, TensorMeta):
            walk(value.shape)
        elif isinstance(value, SymMeta):
            walk(value.value)
        elif isinstance(value, tuple):
            for item in value:
                walk(item)

    for node in graph.nodes:
        walk(node.meta)
        walk(node.args)
    return found


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
