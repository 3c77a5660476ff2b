"""Repeated bodies in a placement problem: which repeats at the ends of a stack are placed otherwise than those between.

In a problem a body stands once, its prices multiplied by its repeats, and one *tie* per carried value hands the value on in the state
in which the body takes it. The cheapest placement of all repeats has one placement in all of them but some at the ends. For where modes
and prices lie on the chain the price is submodular: of a sequence of placements and the same one shifted by a repeat, meet and join are
no dearer together, so that far from the ends all repeats can be alike. `unrolled` writes repeats at the ends out, and `ends_apart`
finds how many of them it takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from layoutcheck.placement.problem import Infeasible, Mode, Op, Problem, Value
from layoutcheck.placement.solve import solve

Ends = Mapping[Any, tuple[int, int]]
MAX_DEPTH = 8


@attrs.frozen
class Region:
    """A repeated body.

    Attributes:
        id: its number in the graph.
        ties: per carried value the op that hands it on. It reads the value at the entry and at the body's end, and writes it at the
            body's begin and last behind the region.
        body: the ops inside, those of inner regions and their ties too.
        times: how often it runs; all prices in the body are multiples of it.
        open: whether nothing outside reads what a repeat before the last one hands on, so that repeats can be written out.
    """

    id: Any
    ties: tuple[int, ...]
    body: frozenset[int]
    times: int
    open: bool = True


@attrs.define
class _Env:
    """What values are called in one repeat; what it does not define it has from around it.

    `inner`: values of the bodies inside of it, once a written repeat: what stands outside reads them of every repeat (a cache).
    """

    names: dict[int, int] = attrs.field(factory=dict)
    parent: _Env | None = None
    inner: dict[int, list[int]] = attrs.field(factory=dict)

    def __call__(self, value: int) -> int:
        env: _Env | None = self
        while env is not None:
            if value in env.names:
                return env.names[value]
            env = env.parent
        raise KeyError(value)

    def all(self, value: int) -> list[int]:
        """What a read of a value reads."""
        return self.inner[value] if value in self.inner else [self(value)]

    def leave(self) -> None:
        """Make what this repeat defines known around it."""
        assert self.parent is not None
        for v, name in self.names.items():
            self.parent.inner.setdefault(v, []).append(name)
        for v, names in self.inner.items():
            self.parent.inner.setdefault(v, []).extend(names)


def unrolled(problem: Problem, regions: Sequence[Region], ends: Ends) -> Problem:
    """The problem with the first and the last repeats of regions written out.

    Args:
        problem: the problem with every body once.
        regions: its regions.
        ends: per region how many repeats are written out in front and behind; the other regions stay as they are. A region with no
            more repeats than that is written out as a whole.
    """
    return _Unrolling(problem, regions, ends).run()


class _Unrolling:
    def __init__(self, problem: Problem, regions: Sequence[Region], ends: Ends) -> None:
        self.problem, self.ends = problem, ends
        self.regions = sorted(regions, key=lambda r: min(r.ties))
        self.ops: list[Op] = []
        self.values: list[Value] = []
        self.scaled: dict[tuple[tuple[Mode, ...], int, int], tuple[Mode, ...]] = {}

    def run(self) -> Problem:
        every = frozenset(range(len(self.problem.ops)))
        env = _Env()
        written = {v for op in self.problem.ops for v in op.writes}
        for v in range(len(self.problem.values)):
            if v not in written:
                env.names[v] = self._value(v, 1, 1)
        self._level(every, self.regions, env, 1, 1)
        return Problem(tuple(self.ops), tuple(self.values))

    def _value(self, v: int, by: int, of: int) -> int:
        price = self.problem.values[v]
        if by != of:
            sums = (price.scatter, price.gather, price.reduce, price.slice)
            price = Value(*(None if x is None else x * by // of for x in sums))
        self.values.append(price)
        return len(self.values) - 1

    def _modes(self, op: Op, by: int, of: int) -> tuple[Mode, ...]:
        if by == of:
            return op.modes
        key = (op.modes, by, of)
        if key not in self.scaled:
            self.scaled[key] = tuple(attrs.evolve(m, price=m.price * by // of) for m in op.modes)
        return self.scaled[key]

    def _level(self, ops: frozenset[int], regions: Sequence[Region], env: _Env, by: int, of: int) -> None:
        """The ops of one repeat (or of the whole), whose prices are multiplied by `by / of`."""
        outer = [
            r
            for r in regions
            if not any(r is not other and other.body.issuperset(r.ties) for other in regions)
        ]
        inside = frozenset().union(*(r.body for r in outer), *(r.ties for r in outer))
        mine = sorted(ops - inside)
        for o in mine:
            for v in self.problem.ops[o].writes:
                env.names[v] = self._value(v, by, of)
        for region in outer:
            inner = [r for r in regions if region.body.issuperset(r.ties)]
            self._region(region, inner, env, by, of)
        for o in mine:
            self.ops.append(self._read(self.problem.ops[o], env, by, of))

    def _read(self, op: Op, env: _Env, by: int, of: int) -> Op:
        """An op of this level, with an operand for each value that an operand of it stands for."""
        reads = [env.all(v) for v in op.reads]
        writes, modes = tuple(map(env, op.writes)), self._modes(op, by, of)
        if all(len(names) == 1 for names in reads):
            return Op(tuple(names[0] for names in reads), writes, modes, op.barred)
        slots = [slot for slot, names in enumerate(reads) for _ in names]
        modes = tuple(attrs.evolve(m, needs=tuple(m.needs[slot] for slot in slots)) for m in modes)
        barred = frozenset((i, a, b) for i, slot in enumerate(slots) for at, a, b in op.barred if at == slot)
        return Op(tuple(n for names in reads for n in names), writes, modes, barred)

    def _region(self, region: Region, inner: Sequence[Region], env: _Env, by: int, of: int) -> None:
        ties = [self.problem.ops[o] for o in region.ties]
        carried = [env(tie.reads[0]) for tie in ties]
        for count, is_tied in self._rounds(region):
            body = _Env(parent=env)
            mine, all_ = by * count, of * region.times
            for tie, value in zip(ties, carried):
                body.names[tie.writes[0]] = self._value(tie.writes[0], mine, all_) if is_tied else value
            self._level(region.body, inner, body, mine, all_)
            back = [body(tie.reads[1]) for tie in ties]
            body.leave()
            if is_tied:
                for i, (tie, value) in enumerate(zip(ties, carried)):
                    carried[i] = self._value(tie.writes[-1], by, of)
                    rest = tuple(self._value(v, by, of) for v in tie.writes[1:-1])
                    writes = (body(tie.writes[0]), *rest, carried[i])
                    self.ops.append(Op((value, back[i]), writes, self._modes(tie, mine, all_), tie.barred))
            else:
                carried = back
        for tie, value in zip(ties, carried):
            env.names[tie.writes[-1]] = value
            for v in tie.writes[1:-1]:
                env.names.setdefault(v, value)

    def _rounds(self, region: Region) -> list[tuple[int, bool]]:
        """How many repeats each written body stands for, and whether it hands its values on to itself."""
        if region.id not in self.ends or not region.open:
            return [(region.times, True)]
        first, last = self.ends[region.id]
        between = region.times - first - last
        if between < 2:
            return [(1, False)] * region.times
        return [*[(1, False)] * first, (between, True), *[(1, False)] * last]


def ends_apart(problem: Problem, regions: Sequence[Region], price: int | None) -> dict[Any, tuple[int, int]]:
    """How many repeats at the ends of each region have to be written out for the cheapest placement; empty where none have.

    Args:
        problem: the problem with every body once.
        regions: its regions.
        price: what the cheapest placement of it costs; None where there is none.

    Raises:
        Infeasible: there is no placement with repeats written out either.
    """
    several = [r for r in regions if r.open and r.times > 1]
    if not several:
        return {}
    # A state on the chain may be reached in two steps, and each carried value may wait for another one.
    depth = 1 + max(len(r.ties) for r in several)
    best = _price(problem, regions, {r.id: (depth, depth) for r in several})
    if best is None:
        raise Infeasible
    if best == price:
        return {}
    gain = None
    while depth < MAX_DEPTH and any(2 * depth < r.times for r in several):
        deeper = _price(problem, regions, {r.id: (depth + 1, depth + 1) for r in several})
        assert deeper is not None
        if deeper == best or best - deeper == gain:
            break  # what every further repeat saves is no matter of the ends
        gain, best, depth = best - deeper, deeper, depth + 1
    ends: dict[Any, tuple[int, int]] = {r.id: (depth, depth) for r in several}
    for region in several:
        alike = _saved(problem, regions, region, ends, best) if gain else 0
        for side in (0, 1):
            for fewer in range(ends[region.id][side]):
                first, last = ends[region.id]
                tried = (fewer, last) if side == 0 else (first, fewer)
                paid = _price(problem, regions, {**ends, region.id: tried})
                if paid is not None and paid - best <= alike * (ends[region.id][side] - fewer):
                    ends[region.id], best = tried, paid
                    break
    return {key: value for key, value in ends.items() if value != (0, 0)}


def _saved(problem: Problem, regions: Sequence[Region], region: Region, ends: Ends, price: int) -> int:
    """What one more repeat of a region written out saves, however many are.

    A value that its own repeat and the next one read, the next in two states, is converted in each of them, and once for both where
    repeats are written out. That is worth no repeat.
    """
    first, last = ends[region.id]
    if first + last + 2 > region.times:
        return 0
    more = _price(problem, regions, {**ends, region.id: (first + 1, last)})
    return price - more if more is not None else 0


def _price(problem: Problem, regions: Sequence[Region], ends: Ends) -> int | None:
    try:
        return solve(unrolled(problem, regions, ends)).price
    except Infeasible:
        return None
