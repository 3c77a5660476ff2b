"""A graph's sizes: what its token count is called, and sizes under assumptions, in recorded shapes and in literal arguments."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs

from layoutcheck.domains import TOKEN
from layoutcheck.errors import InputError
from layoutcheck.graph import DictArg, Graph, SymMeta, TensorMeta
from layoutcheck.layouts import Layout
from layoutcheck.mesh import Mesh
from layoutcheck.symbols import (
    Assumptions,
    Expr,
    Size,
    free_symbols,
    parse_assumption,
    substitute,
    sym,
)

_WORD = re.compile(r"[A-Za-z_]\w*\b(?!\s*\()")
TOKENS = "T"


def with_tokens_named(graph: Graph, groups: Mapping[str, Any]) -> tuple[Graph, str | None]:
    """The graph with its only symbolic size called T, and what the export calls that size.

    Exporters number their symbols, and another export of the same model numbers them otherwise. A graph with several symbols, or
    with T as the size of a group, keeps its names; the second result is None then.
    """
    symbols = symbols_in(graph)
    if len(symbols) != 1 or TOKENS in _words(groups.values()):
        return graph, None
    (name,) = symbols
    if name == TOKENS or name in _words(groups.values()):
        return graph, None
    now = {name: sym(TOKENS)}
    ranges = {TOKENS if old == name else old: interval for old, interval in graph.ranges.items()}
    return attrs.evolve(_rewritten(graph, lambda e: substitute(e, now)), ranges=ranges), name


def _words(texts: Iterable[Any]) -> set[str]:
    return {word for text in texts if isinstance(text, str) for word in _WORD.findall(text)}


def with_known_symbols(
    texts: Sequence[str], graph: Graph, groups: Mapping[str, Any], export_name: str | None = None
) -> list[str]:
    """The assumptions in the graph's own symbols, groups of known size as numbers.

    Args:
        export_name: what the export calls the size that is T here.

    Raises:
        InputError: an assumption is about a size that the graph does not have. Of a graph without symbols this is not known
            before it is typed: `check_static` says it then.
    """
    if not texts:
        return []
    symbols = symbols_in(graph)
    if not symbols:
        return list(texts)
    ways = _words(groups.values())
    out = []
    for text in texts:
        for word in dict.fromkeys(_WORD.findall(text)):
            if word in symbols or word in ways:
                continue
            if word == export_name or isinstance(groups.get(word), int):
                now = TOKENS if word == export_name else groups[word]
                text = re.sub(rf"\b{word}\b", str(now), text)
                continue
            raise InputError(
                f"the assumption {text!r} is about {word}; the sizes of this graph are {', '.join(sorted(symbols))}",
                "--assume",
            )
        out.append(text)
    return out


def check_static(texts: Sequence[str], types: Iterable[Any], mesh: Mesh) -> None:
    """Hold assumptions against the numbers of a graph without symbols: its token domains' extents and its groups' sizes.

    Raises:
        InputError: an assumption is wrong of them, or about a size that there is not.
    """
    if not texts:
        return
    numbers: dict[str, set[int]] = {}
    for domain in {f.domain for of in types if isinstance(of, Layout) for axis in of.axes for f in axis}:
        if domain.kind == TOKEN and isinstance(domain.extent, int):
            numbers.setdefault(domain.name, set()).add(domain.extent)
    open_: set[str] = set()
    for name, group in mesh.groups.items():
        if isinstance(group.size, int):
            numbers.setdefault(name, set()).add(group.size)
        else:
            open_ |= free_symbols(group.size)
    for text in texts:
        one = parse_assumption(text)
        names = sorted(free_symbols(one.left) | free_symbols(one.right))
        if open_.intersection(names):
            continue  # the size of a group that is a symbol
        for name in names:
            if name not in numbers:
                known = ", ".join(sorted(numbers)) or "numbers alone"
                raise InputError(
                    f"the assumption {text!r} is about {name}; the sizes of this graph are {known}",
                    "--assume",
                )
        if any(len(numbers[name]) > 1 for name in names):
            continue  # two domains of one name: which one is meant is not said
        values = {name: min(numbers[name]) for name in names}
        if not one.holds(values):
            said = ", ".join(f"{name} is {value}" for name, value in values.items())
            raise InputError(f"the assumption {text!r} contradicts the graph, where {said}", "--assume")


def symbols_in(graph: Graph) -> set[str]:
    """Names of the sizes in recorded shapes and literal arguments, those of subgraphs included."""
    found: set[Expr] = set()

    def walk(value: Any) -> None:
        kind = type(value)
        if kind is Expr:
            found.add(value)
        elif kind is TensorMeta:
            for n in value.shape:
                if type(n) is Expr:
                    found.add(n)
        elif kind is SymMeta:
            walk(value.value)
        elif kind is tuple:
            for item in value:
                walk(item)
        elif kind is DictArg:
            for _, item in value.items:
                walk(item)

    for node in graph.nodes:
        walk(node.meta)
        walk(node.args)
        for item in node.kwargs.values():
            walk(item)
    names = {name for size in found for name in free_symbols(size)}
    return names.union(*map(symbols_in, graph.subgraphs.values()))


def assume(graph: Graph, assumed: Assumptions) -> Graph:
    """A copy of the graph with every symbolic size rewritten."""
    return _rewritten(graph, assumed.apply)


def _rewritten(graph: Graph, apply: Callable[[Expr], Size]) -> Graph:
    """A copy of the graph, its subgraphs included, with a function applied to every symbolic size."""

    def size(value: Any) -> Any:
        if isinstance(value, Expr):
            return apply(value)
        if isinstance(value, tuple):
            return tuple([size(v) for v in value])
        if isinstance(value, DictArg):
            return DictArg(tuple([(key, size(v)) for key, v in value.items]))
        return value

    def meta(value: Any) -> Any:
        if isinstance(value, TensorMeta):
            return attrs.evolve(value, shape=tuple([size(n) for n in value.shape]))
        if isinstance(value, SymMeta):
            return SymMeta(size(value.value))
        if isinstance(value, tuple):
            return tuple([meta(v) for v in value])
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
    subgraphs = {name: _rewritten(body, apply) for name, body in graph.subgraphs.items()}
    return attrs.evolve(graph, nodes=nodes, subgraphs=subgraphs)
