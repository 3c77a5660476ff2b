"""Slices that can be read in two ways, which only what they meet settles.

On rank 0 of two, the first half of a rotary embedding looks like that rank's half of the features, and the first quarter of the tokens
like the share over any group of four. A slice is first read as a share, over the first group that fits; where that is at odds with what
meets it, and another reading is not, that one holds: the same piece on every rank (of features), the share over another group.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from layoutcheck.infer.calls.call import PIECE
from layoutcheck.infer.solver.one_call import transform_of
from layoutcheck.infer.solver.solve import Solution, Solver
from layoutcheck.infer.solver.which_group import fresh, is_slicing, prefer, rivals
from layoutcheck.layouts import Layout
from layoutcheck.program import CALL, Program

_SLICING = frozenset(("slice", "narrow", "split", "chunk", "tensor_split"))
MAX_STEPS = 4000
MAX_READINGS = 12


def settled(solver: Solver) -> Solution:
    """The solution of a program, with slices at the root of an issue read in the way that leaves fewer of them."""
    start = _evidence(solver)
    solution = solver.solve()
    for reading in (_as_pieces, _over_other_groups):
        if not solution.issues and not solution.repeated:
            break
        for k_ops in reading(solver, solution):
            better = _tried(solver, start, k_ops, solution)
            if better is not None:
                solution = better
                break
    return solution


def _evidence(solver: Solver) -> tuple[Any, ...]:
    return dict(solver.cuts), dict(solver.same), set(solver.alike), solver.ctx.mesh.rank


def _tried(
    solver: Solver, start: tuple[Any, ...], ops: dict[int, int], solution: Solution
) -> Solution | None:
    """The solution with other op instances at some calls, from the start, if it is better; else all is as it was."""
    p = solver.program
    before, mine = {k: p.op[k] for k in ops}, (solver.cuts, solver.same, solver.alike, solver.ctx.mesh.rank)
    # what roots and repairs look answers up in
    memo = solver.memo
    for k, op in ops.items():
        p.op[k] = op
    solver.cuts, solver.same, solver.alike = dict(start[0]), dict(start[1]), set(start[2])
    solver.ctx.mesh.rank, solver.memo = start[3], {}
    other = solver.solve()
    if _places(other) < _places(solution):
        return other
    for k, op in before.items():
        p.op[k] = op
    solver.cuts, solver.same, solver.alike, solver.ctx.mesh.rank = mine
    solver.memo = memo
    return None


def _places(solution: Solution) -> set[tuple[int, str]]:
    return {(k, issue.code) for k, _, issue in (*solution.issues, *solution.repeated)}


def _as_pieces(solver: Solver, solution: Solution) -> Iterator[dict[int, int]]:
    """Shares of features behind an issue as the same piece on every rank: all of them, or those that are cut in one way."""
    p = solver.program
    made: dict[int, int] = {}
    ops: dict[int, int] = {}
    alike: dict[int, list[int]] = {}
    for k in sorted(_shares_behind(p, solution, features=True)):
        index = p.op[k]
        if index not in made:
            made[index] = len(p.instances)
            params = {**p.instances[index].params, PIECE: True}
            p.instances.append(attrs.evolve(p.instances[index], params=params))
        ops[k] = made[index]
        alike.setdefault(index, []).append(k)
    if ops:
        yield ops
    if len(alike) > 1:
        for calls in list(alike.values())[:MAX_READINGS]:
            yield {k: ops[k] for k in calls}


def _over_other_groups(solver: Solver, solution: Solution) -> Iterator[dict[int, int]]:
    """Shares of tokens behind an issue as shares over another group of the same size: all of them at once, or one."""
    p, possible = solver.program, rivals(solver.ctx)
    if not possible:
        return
    slices = sorted(_shares_behind(p, solution, features=False))
    types = solution.typing.types
    mine = {k: fresh(types, p, k) for k in slices if is_slicing(p, k)}
    tries = 0
    for axes in sorted(possible):
        changing = [k for k, own in mine.items() if own in possible and own != axes]
        for chosen in (changing, *([k] for k in changing if len(changing) > 1)):
            if not chosen or tries >= MAX_READINGS:
                continue
            tries += 1
            before = {k: p.op[k] for k in chosen}
            prefer(p, dict.fromkeys(chosen, axes))
            ops = {k: p.op[k] for k in chosen}
            for k, op in before.items():
                p.op[k] = op
            yield ops


def _shares_behind(p: Program, solution: Solution, features: bool) -> set[int]:
    """Slices that give a share (of features, or of tokens), from which the operands of an issue come."""
    types = solution.typing.types
    todo = [
        p.inputs[k][slot]
        for k, _, issue in (*solution.issues, *solution.repeated)
        for slot in issue.operands
        if slot < len(p.inputs[k])
    ]
    seen = set(todo)
    found: set[int] = set()
    while todo and len(seen) < MAX_STEPS:
        value = todo.pop()
        k = p.value_call[value]
        mine = _sharded(types[value], features)
        if not mine or p.kind[k] != CALL:
            continue
        transform = transform_of(p.instances[p.op[k]])
        inherited = set().union(*[_sharded(types[v], features) for v in p.inputs[k]])
        if transform is not None and transform.name in _SLICING and not mine <= inherited:
            found.add(k)
            continue
        for v in p.inputs[k]:
            if v not in seen:
                seen.add(v)
                todo.append(v)
    return found


def _sharded(of: object, features: bool) -> set[int]:
    """Mesh axes over which a value is a share of features, or of tokens, or a sum over such shares."""
    if not isinstance(of, Layout):
        return set()
    return {m for m, fs in of.bound if any(b.domain.is_feature is features for b in fs)} | set(of.partial)
