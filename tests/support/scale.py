"""Another number of tokens in a static graph: every literal that counts tokens is recomputed.

Which literals those are is traced, not guessed: each extent is followed from the integer inputs (ids,
positions, slots) through every op as a pair (old, new), so `4096` on a feature axis stays and `4096` on a
token axis does not. What can't be told raises `Ambiguous`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Any

from .builder import Json


class Ambiguous(Exception):
    """It can't be told which literals count tokens."""


@dataclass
class Extent:
    """An extent before and after. `new` is None where a literal made it and no reader told yet."""

    old: int
    new: int | None

    @property
    def ratio(self) -> Fraction:
        if self.new is None:
            raise Ambiguous(f"nothing tells whether the literal {self.old} counts tokens")
        return Fraction(self.new, self.old) if self.old else Fraction(1)


Shape = list[Extent]
Value = Any  # a Shape, or a list of them for several outputs


def fixed(*extents: int) -> Shape:
    return [Extent(n, n) for n in extents]


def times(literal: int, ratio: Fraction) -> int:
    """A literal in the new units."""
    scaled = literal * ratio
    if scaled.denominator != 1:
        raise Ambiguous(f"{literal} times {ratio} is no integer")
    return int(scaled)


def join(a: Extent, b: Extent) -> Extent:
    """The extent of two axes that meet."""
    if a.old == 1 and b.old != 1:
        return b
    if b.old == 1 or a is b:
        return a
    if a.old != b.old:
        raise Ambiguous(f"axes of {a.old} and {b.old} meet")
    if a.new is None:
        a.new = b.new
    elif b.new is None:
        b.new = a.new
    elif a.new != b.new:
        raise Ambiguous(f"equal axes of {a.old} become {a.new} and {b.new}")
    return a


def broadcast(*shapes: Shape) -> Shape:
    rank = max(len(s) for s in shapes)
    padded = [fixed(*[1] * (rank - len(s))) + s for s in shapes]
    result = padded[0]
    for other in padded[1:]:
        result = [join(a, b) for a, b in zip(result, other)]
    return result


def regroup(source: Shape, sizes: list[int]) -> tuple[list[int], Shape]:
    """A view's new sizes and shape. Within a group of axes the tokens are the major factor."""
    total = prod(e.old for e in source)
    known = prod(n for n in sizes if n != -1)
    if not known or total % known:
        raise Ambiguous(f"a view of {[e.old for e in source]} as {sizes} does not fit")
    olds = [total // known if n == -1 else n for n in sizes]
    result: Shape = []
    i = j = 0
    while i < len(source) or j < len(olds):
        have, want = (source[i].old if i < len(source) else 1), (olds[j] if j < len(olds) else 1)
        left, right = source[i : i + 1], olds[j : j + 1]
        i, j = i + 1, j + 1
        while have != want:
            if have < want:
                if i >= len(source):
                    raise Ambiguous(f"a view of {[e.old for e in source]} as {sizes} does not fit")
                have, left, i = have * source[i].old, left + [source[i]], i + 1
            else:
                if j >= len(olds):
                    raise Ambiguous(f"a view of {[e.old for e in source]} as {sizes} does not fit")
                want, right, j = want * olds[j], right + [olds[j]], j + 1
        result += _group(left, right)
    news = [-1 if n == -1 else e.new if e.new is not None else n for n, e in zip(sizes, result)]
    return news, result


def _group(left: Shape, right: list[int]) -> Shape:
    wide = [e for e in left if e.old != 1]
    ratio = Fraction(1)
    for e in wide:
        ratio *= e.ratio
    if ratio == 1 or not wide:
        return fixed(*right)
    if wide[0].ratio == 1:
        raise Ambiguous("tokens are not the major factor of an axis that is split or joined")
    out, left_to_scale = [], True
    for n in right:
        if n != 1 and left_to_scale:
            out.append(Extent(n, times(n, ratio)))
            left_to_scale = False
        else:
            out.append(Extent(n, n))
    return out


class Scaler:
    """One pass over a graph: computes shapes as pairs and rewrites literals on the way."""

    def __init__(self, graph: Json, tokens: int, ratio: Fraction) -> None:
        self.graph = graph
        self.tokens, self.ratio = tokens, ratio
        self.values: dict[str, Value] = {}
        self.counted: set[int] = set()
        self.created: list[tuple[list[int], int, Extent]] = []

    def run(self) -> None:
        from .scale_rules import RULES

        for node in self.graph["nodes"]:
            if node["op"] == "placeholder":
                self.values[node["name"]] = self.placeholder(node)
            elif node["op"] == "call_function":
                rule: Callable[..., Value] | None = RULES.get(node["target"])
                if rule is None:
                    raise Ambiguous(f"no shape rule for {node['target']}")
                try:
                    self.values[node["name"]] = rule(self, node, *node["args"])
                except Ambiguous as error:
                    raise Ambiguous(f"{node['name']}: {error}") from None
                node["meta"] = None
            self.note(self.values.get(node["name"], []))
        for literals, at, extent in self.created:
            if extent.new is None and extent.old == self.tokens:
                raise Ambiguous(f"nothing tells whether a created extent {extent.old} counts tokens")
            literals[at] = extent.old if extent.new is None else extent.new

    def note(self, value: Value) -> None:
        """Remember the old extents of token axes."""
        for item in value:
            if isinstance(item, list):
                self.note(item)
            elif item.new is not None and item.new != item.old:
                self.counted.add(item.old)

    def placeholder(self, node: Json) -> Value:
        meta = node["meta"]
        if not isinstance(meta, dict) or "shape" not in meta:
            return []
        shape: Shape = []
        for n in meta["shape"]:
            if not isinstance(n, int):
                raise Ambiguous("the graph has symbolic sizes already")
            counts = meta["dtype"] == "int64" and n == self.tokens
            shape.append(Extent(n, times(n, self.ratio) if counts else n))
        meta["shape"] = [e.new for e in shape]
        return shape

    def shape(self, arg: Any) -> Shape:
        """The shape of an argument; a scalar's where it is a literal."""
        if isinstance(arg, dict) and set(arg) == {"node"}:
            value: Shape = self.values[arg["node"]]
            return value
        return []

    def create(self, literals: list[int]) -> Shape:
        """A shape that literals make: extents that may be tokens wait for a reader to tell."""
        shape = [Extent(n, None if n in self.counted else n) for n in literals]
        self.created += [(literals, i, e) for i, e in enumerate(shape)]
        return shape


def scale_tokens(graph: Json, ratio: Fraction) -> Json:
    """The graph with `ratio` times as many tokens and no recorded shapes of computed values.

    Raises `Ambiguous` with the node and the reason where that can't be done.
    """
    graph = copy.deepcopy(graph)
    config = graph["config"]
    if "query_len" not in config:
        raise Ambiguous("the graph does not say how many tokens it was made for, its sizes are symbols")
    if config["query_len"] == 1:
        raise Ambiguous("as many sequences as tokens: their extents can't be told apart")
    tokens = config["num_queries"] * config["query_len"]
    Scaler(graph, tokens, ratio).run()
    config["query_len"] = times(config["query_len"], ratio)
    return graph
