"""Solving a placement problem: what is forced first, then each part that is left by a cut or by an integer program."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from layoutcheck.placement import milp
from layoutcheck.placement.mincut import SINK, SOURCE, Edge, allowed_pairs, build, cut, is_lattice, ordered
from layoutcheck.placement.problem import Certificate, Infeasible, Mode, Op, Placement, Problem, price_of


def solve(problem: Problem) -> Placement:
    """The cheapest placement, with its certificate.

    Raises:
        Infeasible: no choice of modes fits.
        InputError: a part needs an integer program and scipy is not installed.
    """
    ops = [_sorted(op) for op in problem.ops]
    kept = _filtered(problem, ops)
    ops = [Op(op.reads, op.writes, tuple(op.modes[j] for j in js), op.barred) for op, js in zip(ops, kept)]
    ops = [ordered(op) or op for op in ops]
    chosen: dict[int, Mode] = {o: op.modes[0] for o, op in enumerate(ops) if len(op.modes) == 1}
    networks: list[tuple[Edge, ...]] = []
    flows: list[dict[tuple[Any, Any], int]] = []
    sides: list[frozenset[Any]] = []
    constant, method, slack = 0, "forced", 0
    for part in _parts(problem, ops):
        if _on_a_chain(problem, part, ops):
            net = build(problem, part, ops)
            edges = net.listed()
            _, flow, side = cut(edges)
            networks.append(edges)
            flows.append(flow)
            sides.append(side)
            constant += net.constant
            method = "min-cut" if method == "forced" else method
            for o in part:
                chosen[o] = ops[o].modes[sum((o, j) in side for j in range(1, len(ops[o].modes)))]
        else:
            method = "milp"
            picked, paid, bound = milp.solve(problem, part, ops)
            slack += max(0, round(paid - bound))
            for o in part:
                chosen[o] = ops[o].modes[picked[o]]
    modes = tuple(op.modes.index(chosen[o]) for o, op in enumerate(problem.ops))
    price = price_of(problem, modes)
    if price is None:
        raise Infeasible
    return Placement(
        modes,
        price,
        Certificate(method, price - slack, constant, tuple(networks), tuple(flows), tuple(sides)),
    )


def _sorted(op: Op) -> Op:
    return ordered(op) or op


def _filtered(problem: Problem, ops: Sequence[Op]) -> list[list[int]]:
    """Per op the modes that fit some mode of every neighbour, to a fixpoint (arc consistency). Raises Infeasible."""
    writer = problem.writer()
    kept = [list(range(len(op.modes))) for op in ops]
    links: dict[int, list[tuple[int, int, set[tuple[int, int]], bool]]] = {o: [] for o in range(len(ops))}
    known: dict[Any, set[tuple[int, int]]] = {}
    for reader, op in enumerate(ops):
        for slot, v in enumerate(op.reads):
            if v not in writer:
                continue
            maker, place = writer[v]
            if len(ops[maker].modes) == 1 and len(op.modes) == 1:
                if not allowed_pairs(problem, ops, maker, place, reader, slot):
                    raise Infeasible(reader)
                continue
            key = (
                tuple(m.gives[place] for m in ops[maker].modes),
                tuple(m.needs[slot] for m in op.modes),
                frozenset(b for b in op.barred if b[0] == slot),
                problem.values[v],
                slot,
            )
            allowed = known.get(key)
            if allowed is None:
                allowed = known[key] = allowed_pairs(problem, ops, maker, place, reader, slot)
            links[maker].append((maker, reader, allowed, True))
            links[reader].append((maker, reader, allowed, False))
    todo = deque(range(len(ops)))
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
    return kept


def _parts(problem: Problem, ops: Sequence[Op]) -> list[list[int]]:
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


def _on_a_chain(problem: Problem, part: Sequence[int], ops: Sequence[Op]) -> bool:
    """Whether a part is a minimum cut: modes in order, prices that add up along the chain, pairs that implications express."""
    writer = problem.writer()
    inside = set(part)
    if any(ordered(ops[o]) is None for o in part):
        return False
    values = {v for o in part for v in (*ops[o].reads, *ops[o].writes)}
    for v in values:
        if v not in writer:
            continue
        maker, place = writer[v]
        born = {m.gives[place] for m in ops[maker].modes}
        states = {b for b in born if b is not None}
        if states and problem.values[v].steps(states) is None:
            return False
    for reader, op in enumerate(ops):
        for slot, v in enumerate(op.reads):
            if v in values and v in writer and (reader in inside or writer[v][0] in inside):
                maker, place = writer[v]
                if not is_lattice(allowed_pairs(problem, ops, maker, place, reader, slot)):
                    return False
    return True


def verify(problem: Problem, placement: Placement) -> str | None:
    """What is wrong with a placement's certificate, None where it proves the price.

    The check reads only the networks: capacities, conservation at every node, and that flow and cut are equal. The price of what was
    forced is counted from the problem itself.
    """
    if price_of(problem, placement.modes) != placement.price:
        return "the price is not that of the modes"
    for edges, flow, side in zip(
        placement.certificate.networks, placement.certificate.flows, placement.certificate.source_sides
    ):
        problem_ = _broken(edges, flow, side)
        if problem_ is not None:
            return problem_
    return None


def _broken(edges: Sequence[Edge], flow: dict[tuple[Any, Any], int], side: frozenset[Any]) -> str | None:
    capacity = {(x, y): c for x, y, c in edges}
    balance: dict[Any, int] = {}
    for (x, y), f in flow.items():
        if (x, y) not in capacity:
            return f"there is flow from {x} to {y}, and no edge"
        limit = capacity[(x, y)]
        if f < 0 or (limit is not None and f > limit):
            return f"the flow from {x} to {y} is {f}, the capacity {limit}"
        balance[x] = balance.get(x, 0) - f
        balance[y] = balance.get(y, 0) + f
    if any(b for node, b in balance.items() if node not in (SOURCE, SINK)):
        return "flow is not conserved"
    if SOURCE not in side or SINK in side:
        return "the cut does not separate source and sink"
    total = 0
    for (x, y), c in capacity.items():
        if x in side and y not in side:
            if c is None:
                return f"the cut goes through the implication from {x} to {y}"
            total += c
    if total != balance.get(SINK, 0):
        return f"the cut's capacity is {total}, the flow {balance.get(SINK, 0)}"
    return None
