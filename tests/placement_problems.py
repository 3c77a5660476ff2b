"""Random placement problems with repeated bodies."""

from __future__ import annotations

from typing import Any

import attrs
from hypothesis import strategies as st

from layoutcheck.placement.problem import FULL, LOCAL, PARTIAL, Mode, Op, Problem, Value
from layoutcheck.placement.repeats import Region

prices = st.integers(0, 6)


@attrs.frozen
class Repeated:
    """A problem with regions, and how to make it with other numbers of repeats."""

    units: tuple[Op, ...]
    values: tuple[Value, ...]
    levels: tuple[tuple[int, ...], ...]
    inside: tuple[tuple[int, ...], ...]
    ties: tuple[tuple[int, ...], ...]
    bodies: tuple[frozenset[int], ...]

    def build(self, times: tuple[int, ...]) -> tuple[Problem, tuple[Region, ...]]:
        """The problem with these numbers of repeats by region: prices in a body counted as often as it runs."""

        def runs(regions: tuple[int, ...]) -> int:
            n = 1
            for r in regions:
                n *= times[r]
            return n

        ops = tuple(
            attrs.evolve(op, modes=tuple(attrs.evolve(m, price=m.price * runs(at)) for m in op.modes))
            for op, at in zip(self.units, self.levels)
        )
        values = tuple(
            Value(*(None if x is None else x * runs(at) for x in (v.scatter, v.gather, v.reduce, v.slice)))
            for v, at in zip(self.values, self.inside)
        )
        regions = tuple(
            Region(r, ties, body, times[r]) for r, (ties, body) in enumerate(zip(self.ties, self.bodies))
        )
        return Problem(ops, values), regions


class _Making:
    def __init__(self, draw: Any, partial: bool) -> None:
        self.draw, self.partial = draw, partial
        self.ops: list[Op] = []
        self.levels: list[tuple[int, ...]] = []
        self.inside: list[tuple[int, ...]] = []
        self.ties: list[tuple[int, ...]] = []
        self.bodies: list[frozenset[int]] = []

    def value(self, at: tuple[int, ...]) -> int:
        self.inside.append(at)
        return len(self.inside) - 1

    def add(self, op: Op, at: tuple[int, ...]) -> int:
        self.ops.append(op)
        self.levels.append(at)
        return len(self.ops) - 1

    def reads(self, value: int) -> int:
        """How many operands of the ops so far are a value."""
        return sum(op.reads.count(value) for op in self.ops)

    def op(self, known: list[int], at: tuple[int, ...]) -> int:
        """An op that reads known values: pointwise, a product with a cut weight, or one with queries and keys."""
        draw = self.draw
        n = draw(st.integers(0 if not known else 1, min(2, len(known))))
        reads = tuple(draw(st.sampled_from(known)) for _ in range(n))
        kind = draw(st.sampled_from(["same", "same", "query", "full", *(["row"] if self.partial else [])]))
        if kind == "row":
            modes = [Mode((FULL,) * n, (PARTIAL,), draw(prices))]
        elif kind == "full":
            modes = [Mode((FULL,) * n, (FULL,), draw(prices))]
        elif kind == "query":
            modes = [
                Mode((FULL,) * n, (FULL,), draw(prices)),
                Mode((LOCAL, FULL)[:n], (LOCAL,), draw(prices)),
            ]
        else:
            modes = [Mode((s,) * n, (s,), draw(prices)) for s in (FULL, LOCAL)]
        out = self.value(at)
        self.add(Op(reads, (out,), tuple(modes)), at)
        return out

    def region(self, known: list[int], at: tuple[int, ...], depth: int) -> list[int]:
        """A repeated body; the values that it hands on behind it.

        What it hands on it has computed, each value another one: a value that goes through unchanged, or out under two names,
        is one value in the graph written out, whose conversions all repeats share. So is one that is read in its own repeat and by
        several in the next, which may have it in two states: what is handed on is then a result that its own repeat does not read.
        """
        draw = self.draw
        number = len(self.ties)
        self.ties.append(())
        self.bodies.append(frozenset())
        here = (*at, number)
        entries = [draw(st.sampled_from(known)) for _ in range(draw(st.integers(1, 2)))]
        begins = [self.value(here) for _ in entries]
        low = len(self.ops)
        now = [*known, *begins]
        for _ in range(draw(st.integers(len(entries), 3))):
            now.append(self.op([*now[-3:], *begins], here))
        if depth and draw(st.booleans()):
            now.extend(self.region([*begins, *now[-2:]], here, depth - 1))
            now.append(self.op(now[-2:], here))
        body = frozenset(range(low, len(self.ops)))
        lasts, ties = [], []
        states = (FULL, LOCAL, PARTIAL) if self.partial else (FULL, LOCAL)
        mine = [v for v in now if v not in known and v not in begins]
        backs = list(draw(st.permutations(mine)))[: len(begins)]
        for i, (begin, back) in enumerate(zip(begins, backs)):
            if self.reads(begin) > 1 and self.reads(back):
                body |= {len(self.ops)}
                backs[i] = self.op([back], here)
        for entry, begin, back in zip(entries, begins, backs):
            end, last = self.value(at), self.value(at)
            modes = tuple(Mode((s, s), (s, s, s)) for s in states)
            ties.append(self.add(Op((entry, back), (begin, end, last), modes), at))
            lasts.append(last)
        self.ties[number], self.bodies[number] = tuple(ties), body
        return lasts


@st.composite
def repeated(draw: Any, partial: bool = True, nested: bool = True) -> Repeated:
    """Problems with one or two repeated bodies, which may hold another one, between ops outside of them."""
    made = _Making(draw, partial)
    known = [made.op([], ())]
    known.append(made.op(known, ()))
    for _ in range(draw(st.integers(1, 2))):
        known.extend(made.region(known, (), 1 if nested else 0))
        known.append(made.op(known[-2:], ()))
    made.op(known, ())
    # What is carried is one kind of value from the entry to behind the region.
    kind = list(range(len(made.inside)))
    for tie in (made.ops[o] for ties in made.ties for o in ties):
        same = {kind[v] for v in (*tie.reads, *tie.writes)}
        kind = [min(same) if k in same else k for k in kind]
    values: list[Value] = []
    for v in range(len(made.inside)):
        a, b = draw(prices), draw(prices)
        values.append(values[kind[v]] if kind[v] < v else Value(a, b, a + b, draw(st.integers(0, 2))))
    return Repeated(
        tuple(made.ops),
        tuple(values),
        tuple(made.levels),
        tuple(made.inside),
        tuple(made.ties),
        tuple(made.bodies),
    )
