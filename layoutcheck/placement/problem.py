"""The placement problem: ops that can run on other states, values that are converted between them, at a price.

States are numbered along the chain: Partial 0, Local 1, Full 2. An op has modes; a mode says which state each operand must be in, which
state each result is born in, and what it costs to run so. A value that is born in one state and read in others is converted
once for all readers of a state, at the price that the value says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

PARTIAL, LOCAL, FULL = 0, 1, 2
NAMES = ("Partial", "Local", "Full")

Label = int | None


@attrs.frozen
class Mode:
    """One way to run an op: states of operands and results (None: the state plays no part), and a price.

    Prices are integers, so that two placements of equal price compare equal; the unit is the caller's.
    """

    needs: tuple[Label, ...]
    gives: tuple[Label, ...]
    price: int = 0
    tag: Any = None


@attrs.frozen
class Op:
    """An op: the values that it reads and writes, its modes, and conversions that may not stand in front of an operand.

    `barred` holds `(slot, from, to)`.
    """

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    modes: tuple[Mode, ...]
    barred: frozenset[tuple[int, int, int]] = frozenset()


@attrs.frozen
class Value:
    """Prices of a value's conversions: `scatter` Partial to Local, `gather` Local to Full, `reduce` Partial to Full, `slice` Full
    to Local. None: there is no such conversion.
    """

    scatter: int | None
    gather: int | None
    reduce: int | None
    slice: int | None = 0

    def up(self, born: int, needs: Iterable[int]) -> int | None:
        """The price of having a value in all these states, from the state that it is born in; None where it cannot be."""
        wanted = set(needs) - {born}
        if not wanted:
            return 0
        if PARTIAL in wanted:
            return None
        if born == FULL:
            return self.slice
        if born == LOCAL:
            return self.gather
        # From Partial: step by step, or an all_reduce of which the rank's share is cut.
        stepwise = self.scatter
        if FULL in wanted:
            stepwise = _sum(stepwise, self.gather)
        at_once = self.reduce if wanted == {FULL} else _sum(self.reduce, self.slice)
        apart = _sum(self.scatter, self.reduce)
        known = [x for x in (stepwise, at_once, apart) if x is not None]
        return min(known) if known else None

    def steps(self, born: Iterable[int]) -> tuple[int, int] | None:
        """Prices `(a, b)` of the two steps of the chain such that `up` from these states is their sum over the steps that are
        crossed; None where there are no such prices.
        """
        states = set(born)
        if states <= {FULL}:
            return 0, 0
        for first, second in ((self.scatter, self.gather), (0, self.reduce), (self.reduce, 0)):
            a, b = (first or 0), (second or 0)
            if all(
                self._fits(q, n, a, b) for q in states - {FULL} for n in ((LOCAL,), (FULL,), (LOCAL, FULL))
            ):
                return a, b
        return None

    def _fits(self, born: int, needs: tuple[int, ...], a: int, b: int) -> bool:
        paid = self.up(born, needs)
        top = max(needs)
        chain = (a if born < LOCAL <= top else 0) + (b if born < FULL <= top else 0)
        return paid is None or paid == chain

    def can(self, born: int, need: int) -> bool:
        """Whether one reader can have the value in this state."""
        return self.up(born, (need,)) is not None


def _sum(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


@attrs.frozen
class Problem:
    """Ops over values, which are numbers into `values`. Each value is written by one op at most."""

    ops: tuple[Op, ...]
    values: tuple[Value, ...]

    def writer(self) -> dict[int, tuple[int, int]]:
        """Per value the op that writes it and at which place."""
        return {v: (o, j) for o, op in enumerate(self.ops) for j, v in enumerate(op.writes)}

    def readers(self) -> dict[int, list[tuple[int, int]]]:
        """Per value the ops that read it, and at which operand."""
        found: dict[int, list[tuple[int, int]]] = {}
        for o, op in enumerate(self.ops):
            for slot, v in enumerate(op.reads):
                found.setdefault(v, []).append((o, slot))
        return found


@attrs.frozen
class Solved:
    """One part of a problem, solved: a problem of its own with the free ops first, then the fixed ones that share a value with them.

    modes: per op of it the chosen mode. price: what it costs; bound: nothing costs less. For a cut (`method` is `min-cut`),
    `network` has the edges `(from, to, capacity or None)`, `flow` the flow on each edge, `source_side` the nodes on the source's
    side, and `constant` is what no choice changes. An integer program has none of them.
    """

    problem: Problem
    method: str
    modes: tuple[int, ...]
    price: int
    bound: int
    constant: int = 0
    network: tuple[tuple[Any, Any, int | None], ...] = ()
    flow: Mapping[tuple[Any, Any], int] = attrs.field(factory=dict)
    source_side: frozenset[Any] = frozenset()


@attrs.frozen
class Part:
    """Where a solved part stands: the numbers of its free ops in order, and what its prices are multiplied by.

    Parts that are alike up to numbers and a common factor of all prices share one solution.
    """

    ops: tuple[int, ...]
    scale: int
    solved: Solved


@attrs.frozen
class Certificate:
    """Why a placement is the cheapest one.

    method: `forced` (nothing was free), `min-cut` or `milp`. `forced`: the price of what had no choice. `bound`: no placement is
    cheaper; it is `forced` and the parts' bounds taken together.
    """

    method: str
    bound: int
    forced: int = 0
    parts: tuple[Part, ...] = ()


@attrs.frozen
class Placement:
    """The chosen mode of each op, the price of all of them with their conversions, and why nothing is cheaper."""

    modes: tuple[int, ...]
    price: int
    certificate: Certificate


class Infeasible(Exception):
    """No choice of modes fits; `op` is one that was left without a mode, where that is known."""

    def __init__(self, op: int | None = None) -> None:
        super().__init__("no placement fits")
        self.op = op


def price_of(problem: Problem, modes: Sequence[int]) -> int | None:
    """What a choice of modes costs, conversions included; None where it does not fit."""
    total = 0
    needs: dict[int, set[int]] = {}
    born: dict[int, int] = {}
    for op, m in zip(problem.ops, modes):
        mode = op.modes[m]
        total += mode.price
        for v, state in zip(op.writes, mode.gives):
            if state is not None:
                born[v] = state
    for op, m in zip(problem.ops, modes):
        for slot, (v, state) in enumerate(zip(op.reads, op.modes[m].needs)):
            if state is None:
                continue
            start = born.get(v)
            if start is None or (slot, start, state) in op.barred:
                return None
            needs.setdefault(v, set()).add(state)
    for v, states in needs.items():
        paid = problem.values[v].up(born[v], states)
        if paid is None:
            return None
        total += paid
    return total
