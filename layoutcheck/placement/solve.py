"""Solving a placement problem: what is forced first, then each part that is left by a cut or by an integer program."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import reduce
from math import gcd
from typing import Any

import attrs

from layoutcheck.placement import milp
from layoutcheck.placement.mincut import allowed_pairs, build, cut, fits, is_lattice, ordered
from layoutcheck.placement.problem import (
    Certificate,
    Infeasible,
    Mode,
    Op,
    Part,
    Placement,
    Problem,
    Solved,
    Value,
    price_of,
)


def solve(problem: Problem) -> Placement:
    """The cheapest placement, with its certificate.

    Raises:
        Infeasible: no choice of modes fits.
        InputError: a part needs an integer program and scipy is not installed.
    """
    index = _Index(problem)
    ops = [ordered(op) or op for op in problem.ops]
    for o, js in _filtered(index, ops).items():
        left = Op(ops[o].reads, ops[o].writes, tuple(ops[o].modes[j] for j in js), ops[o].barred)
        ops[o] = ordered(left) or left
    chosen: list[Mode] = [op.modes[0] for op in ops]
    parts: list[Part] = []
    known: dict[Problem, Solved] = {}
    for free in _free_parts(ops):
        small, scale = _extracted(index, ops, free)
        solved = known.get(small)
        if solved is None:
            try:
                solved = known[small] = _solved(small)
            except Infeasible as error:
                at = error.op
                raise Infeasible(free[at] if at is not None and at < len(free) else free[0]) from None
        for o, mode in zip(free, solved.modes):
            chosen[o] = ops[o].modes[mode]
        parts.append(Part(tuple(free), scale, solved))
    modes = tuple(0 if len(op.modes) == 1 else op.modes.index(mode) for op, mode in zip(problem.ops, chosen))
    price = price_of(problem, modes)
    if price is None:
        raise Infeasible
    forced = price - sum(part.scale * part.solved.price for part in parts)
    bound = forced + sum(part.scale * part.solved.bound for part in parts)
    methods = {part.solved.method for part in parts}
    method = "milp" if "milp" in methods else "min-cut" if methods else "forced"
    return Placement(modes, price, Certificate(method, bound, forced, tuple(parts)))


class _Index:
    """A problem with who writes and who reads each value."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.writer = problem.writer()
        self.readers = problem.readers()


def _filtered(index: _Index, ops: Sequence[Op]) -> dict[int, list[int]]:
    """The modes that fit some mode of every neighbour, of the ops that lose some, to a fixpoint (arc consistency).

    Raises:
        Infeasible: an op is left without modes.
    """
    problem, writer = index.problem, index.writer
    kept: dict[int, list[int]] = {
        o: list(range(len(op.modes))) for o, op in enumerate(ops) if len(op.modes) > 1
    }
    links: dict[int, list[tuple[int, int, set[tuple[int, int]], bool]]] = {}
    known: dict[Any, set[tuple[int, int]]] = {}
    sides: dict[int, Any] = {}

    def states(o: int, place: int, gives: bool) -> Any:
        """States over the modes; ops of one kind share the tuple of their modes."""
        key = (id(ops[o].modes), place, gives)
        found = sides.get(key)  # type: ignore[call-overload]
        if found is None:
            found = tuple((m.gives if gives else m.needs)[place] for m in ops[o].modes)
            sides[key] = found  # type: ignore[index]
        return found

    for reader, op in enumerate(ops):
        single = len(op.modes) == 1
        for slot, v in enumerate(op.reads):
            made = writer.get(v)
            if made is None:
                continue
            maker, place = made
            if single and len(ops[maker].modes) == 1:
                born, need = ops[maker].modes[0].gives[place], op.modes[0].needs[slot]
                if born != need and not fits(problem.values[v], born, need, op.barred, slot):
                    raise Infeasible(reader)
                continue
            bars = frozenset(b[1:] for b in op.barred if b[0] == slot) if op.barred else None
            key = (states(maker, place, True), states(reader, slot, False), bars, problem.values[v])
            allowed = known.get(key)
            if allowed is None:
                allowed = known[key] = allowed_pairs_of(problem, ops, maker, place, reader, slot)
            links.setdefault(maker, []).append((maker, reader, allowed, True))
            links.setdefault(reader, []).append((maker, reader, allowed, False))
    for o in links:
        kept.setdefault(o, [0])
    todo = deque(links)
    waiting = set(todo)
    while todo:
        o = todo.popleft()
        waiting.discard(o)
        for maker, reader, allowed, is_maker in links[o]:
            other = reader if is_maker else maker
            if other == o:
                now = [j for j in kept[o] if (j, j) in allowed]
            elif is_maker:
                now = [j for j in kept[reader] if any((i, j) in allowed for i in kept[maker])]
            else:
                now = [i for i in kept[maker] if any((i, j) in allowed for j in kept[reader])]
            if len(now) < len(kept[other]):
                if not now:
                    raise Infeasible(other)
                kept[other] = now
                if other not in waiting:
                    waiting.add(other)
                    todo.append(other)
    return {o: js for o, js in kept.items() if len(js) < len(ops[o].modes)}


def allowed_pairs_of(
    problem: Problem, ops: Sequence[Op], maker: int, place: int, reader: int, slot: int
) -> set[tuple[int, int]]:
    """`allowed_pairs` with ops in place of a problem's own."""
    v = ops[reader].reads[slot]
    small = Problem(
        (
            Op((), (0,), tuple(Mode((), (m.gives[place],)) for m in ops[maker].modes)),
            _reading(ops[reader], slot),
        ),
        (problem.values[v],),
    )
    return allowed_pairs(small, 0, 0, 1, 0)


def _reading(op: Op, slot: int) -> Op:
    """An op with one operand left, which reads value 0."""
    barred = frozenset((0, a, b) for at, a, b in op.barred if at == slot)
    return Op((0,), (), tuple(Mode((m.needs[slot],), ()) for m in op.modes), barred)


def _free_parts(ops: Sequence[Op]) -> list[list[int]]:
    """Ops with a choice, in groups that share a value."""
    free = [o for o, op in enumerate(ops) if len(op.modes) > 1]
    by_value: dict[int, list[int]] = {}
    for o in free:
        for v in (*ops[o].reads, *ops[o].writes):
            by_value.setdefault(v, []).append(o)
    seen: set[int] = set()
    parts = []
    for o in free:
        if o in seen:
            continue
        seen.add(o)
        part = [o]
        for at in part:
            for v in (*ops[at].reads, *ops[at].writes):
                for other in by_value[v]:
                    if other not in seen:
                        seen.add(other)
                        part.append(other)
        parts.append(sorted(part))
    return parts


def _extracted(index: _Index, ops: Sequence[Op], part: Sequence[int]) -> tuple[Problem, int]:
    """The part as a problem of its own, its prices divided by what they have in common, and that number.

    Values are numbered as they occur. A fixed op that shares a value becomes one that reads or writes that value only, without a price.
    """
    problem, inside = index.problem, set(part)
    number: dict[int, int] = {}
    for o in part:
        for v in (*ops[o].reads, *ops[o].writes):
            number.setdefault(v, len(number))
    small = [
        Op(
            tuple(number[v] for v in ops[o].reads),
            tuple(number[v] for v in ops[o].writes),
            ops[o].modes,
            ops[o].barred,
        )
        for o in part
    ]
    fixed: dict[Op, None] = {}
    for v, n in number.items():
        if v in index.writer:
            maker, place = index.writer[v]
            if maker not in inside:
                fixed[Op((), (n,), (Mode((), (ops[maker].modes[0].gives[place],)),))] = None
        for reader, slot in index.readers.get(v, ()):
            if reader not in inside and ops[reader].modes[0].needs[slot] is not None:
                one = _reading(ops[reader], slot)
                fixed[attrs.evolve(one, reads=(n,))] = None
    values = [problem.values[v] for v in number]
    prices = [m.price for op in small for m in op.modes]
    prices += [x for v in values for x in (v.scatter, v.gather, v.reduce, v.slice) if x is not None]
    scale = reduce(gcd, prices, 0) or 1
    if scale > 1:
        values = [_divided(v, scale) for v in values]
        small = [
            attrs.evolve(op, modes=tuple(attrs.evolve(m, price=m.price // scale) for m in op.modes))
            for op in small
        ]
    return Problem((*small, *fixed), tuple(values)), scale


def _divided(v: Value, by: int) -> Value:
    return Value(*(None if x is None else x // by for x in (v.scatter, v.gather, v.reduce, v.slice)))


def _solved(problem: Problem) -> Solved:
    """A part solved: a cut where modes and prices lie on the chain, else an integer program. Raises Infeasible."""
    if not _on_a_chain(problem):
        modes, least = milp.solve(problem)
        price = _price(problem, modes)
        bound = min(price, -int(-least // 1)) if price - least < 0.5 else int(least)
        return Solved(problem, "milp", modes, price, bound)
    net = build(problem)
    edges = net.listed()
    value, flow, side = cut(edges)
    modes = tuple(sum((o, j) in side for j in range(1, len(op.modes))) for o, op in enumerate(problem.ops))
    return Solved(
        problem,
        "min-cut",
        modes,
        _price(problem, modes),
        value + net.constant,
        net.constant,
        edges,
        flow,
        side,
    )


def _price(problem: Problem, modes: Sequence[int]) -> int:
    price = price_of(problem, modes)
    if price is None:
        raise Infeasible
    return price


def _on_a_chain(problem: Problem) -> bool:
    """Whether a part is a minimum cut: modes in order, prices that add up along the chain, pairs that implications express."""
    if any(ordered(op) is None for op in problem.ops):
        return False
    readers = problem.readers()
    for v, (maker, place) in problem.writer().items():
        born = {m.gives[place] for m in problem.ops[maker].modes}
        states = {b for b in born if b is not None}
        if states and problem.values[v].steps(states) is None:
            return False
        for reader, slot in readers.get(v, ()):
            free = len(problem.ops[maker].modes) > 1 or len(problem.ops[reader].modes) > 1
            if free and not is_lattice(allowed_pairs(problem, maker, place, reader, slot)):
                return False
    return True
