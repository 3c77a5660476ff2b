"""Checking that a placement is the cheapest one, from its certificate alone.

The check shares no code with the search. It holds every edge of a part's network against the part's problem: a capacity may not be
more than the price that it stands for, and an edge without one has to follow from the modes. Every placement is then a cut of the
network that costs no more than the placement does, so that a flow through it bounds all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from layoutcheck.placement.certificate_network import NetworkCheck
from layoutcheck.placement.mincut import SINK, SOURCE, Edge
from layoutcheck.placement.problem import FULL, LOCAL, PARTIAL, Part, Placement, Problem, Solved, Value


def verify(problem: Problem, placement: Placement) -> str | None:
    """What is wrong with a placement's certificate, None where it proves the price.

    The bound of an integer program is taken from the solver; all else is proven.
    """
    whole = _paid(problem, placement.modes)
    if whole != placement.price:
        return f"the modes cost {whole}, not {placement.price}"
    certificate = placement.certificate
    free: list[int] = [o for part in certificate.parts for o in part.ops]
    if len(set(free)) != len(free):
        return "two parts share an op"
    touched = {v for o in free for v in (*problem.ops[o].reads, *problem.ops[o].writes)}
    if len(touched) != sum(len(p.solved.problem.values) for p in certificate.parts):
        return "two parts share a value"
    forced = _paid(problem, placement.modes, set(free), touched)
    if forced != certificate.forced:
        return f"what has no choice costs {forced}, not {certificate.forced}"
    checked: set[int] = set()
    possible, touched_ops = _possible(problem), set(free)
    if any(len(js) > 1 and o not in touched_ops for o, js in enumerate(possible)):
        return "an op with a choice is in no part"
    for part in certificate.parts:
        wrong = _misplaced(problem, placement, part, possible)
        if wrong is None and id(part.solved) not in checked:
            checked.add(id(part.solved))
            wrong = _unproven(part.solved)
        if wrong is not None:
            return wrong
    bound = certificate.forced + sum(p.scale * p.solved.bound for p in certificate.parts)
    if bound != certificate.bound:
        return f"the parts' bounds and what is forced make {bound}, not {certificate.bound}"
    if bound != placement.price and all(p.solved.method == "min-cut" for p in certificate.parts):
        return f"the bound is {bound}, the price {placement.price}"
    return None


# ---- prices, counted without the package's own


def _paid(
    problem: Problem, modes: Sequence[int], without: set[int] | None = None, values: set[int] | None = None
) -> int | None:
    """What a choice of modes costs; ops and values that are left out cost nothing. None where it does not fit."""
    total = 0
    born: dict[int, int | None] = {}
    for o, op in enumerate(problem.ops):
        total += 0 if without is not None and o in without else op.modes[modes[o]].price
        born.update(zip(op.writes, op.modes[modes[o]].gives))
    wanted: dict[int, set[int]] = {}
    for o, op in enumerate(problem.ops):
        for slot, (v, need) in enumerate(zip(op.reads, op.modes[modes[o]].needs)):
            if need is None:
                continue
            at = born.get(v)
            if at is None or (slot, at, need) in op.barred:
                return None
            wanted.setdefault(v, set()).add(need)
    for v, needs in wanted.items():
        paid = converted(problem.values[v], born[v], frozenset(needs))
        if paid is None:
            return None
        total += 0 if values is not None and v in values else paid
    return total


@lru_cache(maxsize=1 << 14)
def converted(value: Value, born: int | None, needs: frozenset[int]) -> int | None:
    """The least price of a set of conversions that makes all these states of the one that a value is born in."""
    moves = [
        (PARTIAL, LOCAL, value.scatter),
        (LOCAL, FULL, value.gather),
        (PARTIAL, FULL, value.reduce),
        (FULL, LOCAL, value.slice),
    ]
    best: int | None = None
    for picked in range(1 << len(moves)):
        have = {born}
        mine = [moves[i] for i in range(len(moves)) if picked >> i & 1]
        if any(price is None for _, _, price in mine):
            continue
        for _ in moves:
            have |= {to for start, to, _ in mine if start in have}
        paid = sum(price or 0 for _, _, price in mine)
        if needs <= have and (best is None or paid < best):
            best = paid
    return best


# ---- a part in its place


def _possible(problem: Problem) -> list[list[int]]:
    """Per op the modes that some mode of every neighbour goes with; what is taken out here is in no placement."""
    left = [list(range(len(op.modes))) for op in problem.ops]
    made = {v: (o, j) for o, op in enumerate(problem.ops) for j, v in enumerate(op.writes)}
    uses = [
        (o, slot, *made[v])
        for o, op in enumerate(problem.ops)
        for slot, v in enumerate(op.reads)
        if v in made
    ]
    while True:
        before = sum(map(len, left))
        for o, slot, maker, place in uses:
            if len(left[o]) == 1 and len(left[maker]) == 1:
                continue
            pairs = [
                (i, j)
                for i in left[maker]
                for j in left[o]
                if _goes(problem, o, slot, problem.ops[maker].modes[i].gives[place], j)
                and (maker != o or i == j)
            ]
            for at, side in ((maker, 0), (o, 1)):
                left[at] = sorted({pair[side] for pair in pairs} & set(left[at]))
        if sum(map(len, left)) == before:
            return left


def _goes(problem: Problem, o: int, slot: int, born: int | None, j: int) -> bool:
    op = problem.ops[o]
    need = op.modes[j].needs[slot]
    if need is None:
        return True
    if born is None or (slot, born, need) in op.barred:
        return False
    return born == need or converted(problem.values[op.reads[slot]], born, frozenset((need,))) is not None


def _misplaced(problem: Problem, placement: Placement, part: Part, possible: list[list[int]]) -> str | None:
    """Whether a part's problem is not the one of these ops among the fixed ones around them."""
    small, number = part.solved.problem, dict[int, int]()
    for i, o in enumerate(part.ops):
        op, copy = problem.ops[o], small.ops[i]
        modes = [(m.needs, m.gives, m.price) for m in (op.modes[j] for j in possible[o])]
        copied = [(m.needs, m.gives, m.price * part.scale) for m in copy.modes]
        if sorted(map(repr, modes)) != sorted(map(repr, copied)) or op.barred != copy.barred:
            return f"op {o} has other modes in its part"
        mine = op.modes[placement.modes[o]]
        picked = copy.modes[part.solved.modes[i]]
        if (mine.needs, mine.gives) != (picked.needs, picked.gives):
            return f"op {o} is placed in another mode than in its part"
        for v, n in zip((*op.reads, *op.writes), (*copy.reads, *copy.writes)):
            if number.setdefault(v, n) != n:
                return f"value {v} is two values in its part"
    if len(set(number.values())) != len(number):
        return "two values are one in their part"
    inside = set(part.ops)
    there: set[object] = set()
    for o, op in enumerate(problem.ops):
        if o in inside:
            continue
        mode = op.modes[placement.modes[o]]
        for v, state in zip(op.writes, mode.gives):
            if v in number:
                there.add((number[v], "born", state))
        for slot, (v, need) in enumerate(zip(op.reads, mode.needs)):
            if v in number and need is not None:
                there.add((number[v], need, frozenset(b[1:] for b in op.barred if b[0] == slot)))
    for op in small.ops[len(part.ops) :]:
        mode = op.modes[0]
        entry: object = (
            (op.writes[0], "born", mode.gives[0])
            if op.writes
            else (op.reads[0], mode.needs[0], frozenset(b[1:] for b in op.barred))
        )
        if len(op.modes) > 1 or mode.price or entry not in there:
            return "a fixed op of a part is not there"
    for v, n in number.items():
        a, b = problem.values[v], small.values[n]
        for paid, less in zip(
            (a.scatter, a.gather, a.reduce, a.slice), (b.scatter, b.gather, b.reduce, b.slice)
        ):
            if paid != (None if less is None else less * part.scale):
                return f"value {v} has other prices in its part"
    return None


# ---- a network that is a part's


def _unproven(solved: Solved) -> str | None:
    """What a part's network does not prove."""
    if _paid(solved.problem, solved.modes, set(_fixed(solved.problem))) != solved.price:
        return f"the modes of a part do not cost {solved.price}"
    if solved.method != "min-cut":
        return None if solved.bound <= solved.price else "a bound is above the price"
    wrong = NetworkCheck(solved, converted).wrong()
    if wrong is not None:
        return wrong
    total, wrong = _full_cut(solved.network, solved.flow, solved.source_side)
    if wrong is not None:
        return wrong
    if total + solved.constant != solved.bound:
        return f"flow and constant are {total + solved.constant}, not {solved.bound}"
    return None


def _fixed(problem: Problem) -> list[int]:
    return [o for o, op in enumerate(problem.ops) if len(op.modes) == 1]


def _full_cut(
    edges: Sequence[Edge], flow: Mapping[tuple[Any, Any], int], side: frozenset[Any]
) -> tuple[int, str | None]:
    """The capacity of the cut, where the flow keeps to the edges and fills it."""
    capacity = {(x, y): c for x, y, c in edges}
    balance: dict[Any, int] = {}
    for (x, y), f in flow.items():
        if (x, y) not in capacity:
            return 0, f"there is flow from {x} to {y}, and no edge"
        limit = capacity[(x, y)]
        if f < 0 or (limit is not None and f > limit):
            return 0, f"the flow from {x} to {y} is {f}, the capacity {limit}"
        balance[x] = balance.get(x, 0) - f
        balance[y] = balance.get(y, 0) + f
    if any(b for node, b in balance.items() if node not in (SOURCE, SINK)):
        return 0, "flow is not conserved"
    if SOURCE not in side or SINK in side:
        return 0, "the cut does not separate source and sink"
    total = 0
    for (x, y), c in capacity.items():
        if x in side and y not in side:
            if c is None:
                return 0, f"the cut goes through the implication from {x} to {y}"
            total += c
    if total != balance.get(SINK, 0):
        return 0, f"the cut's capacity is {total}, the flow {balance.get(SINK, 0)}"
    return total, None
