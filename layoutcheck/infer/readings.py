"""Slices of features that may be a rank's share or the same piece on every rank.

On rank 0 of two, the first half of a rotary embedding looks like that rank's half of the features. A slice is first read as a share;
where that is at odds with what meets it, and the other reading is not, it is the same piece everywhere.
"""

from __future__ import annotations

import attrs

from layoutcheck.infer.call import PIECE
from layoutcheck.infer.run import transform_of
from layoutcheck.infer.solve import Solution, Solver
from layoutcheck.layouts import Layout
from layoutcheck.program import CALL, Program

_SLICING = frozenset(("slice", "narrow", "split", "chunk", "tensor_split"))
MAX_STEPS = 4000


def settled(solver: Solver) -> Solution:
    """The solution of a program, with shares of features at the root of an issue read as constant pieces where that is right."""
    rank = solver.ctx.mesh.rank
    before = (dict(solver.cuts), dict(solver.same), set(solver.alike))
    solution = solver.solve()
    slices = _shares_behind(solver.program, solution)
    if not slices:
        return solution
    evidence = (solver.cuts, solver.same, solver.alike, solver.ctx.mesh.rank)
    # what roots and repairs look answers up in
    memo = solver.memo
    p = solver.program
    ops = {k: p.op[k] for k in slices}
    _mark(p, slices)
    solver.cuts, solver.same, solver.alike = before
    solver.ctx.mesh.rank = rank
    solver.memo = {}
    other = solver.solve()
    if _places(other) < _places(solution):
        return other
    for k, op in ops.items():
        p.op[k] = op
    solver.cuts, solver.same, solver.alike, solver.ctx.mesh.rank = evidence
    solver.memo = memo
    return solution


def _places(solution: Solution) -> set[tuple[int, str]]:
    return {(k, issue.code) for k, _, issue in (*solution.issues, *solution.repeated)}


def _mark(p: Program, calls: set[int]) -> None:
    made: dict[int, int] = {}
    for k in sorted(calls):
        index = p.op[k]
        if index not in made:
            made[index] = len(p.instances)
            p.instances.append(
                attrs.evolve(p.instances[index], params={**p.instances[index].params, PIECE: True})
            )
        p.op[k] = made[index]


def _shares_behind(p: Program, solution: Solution) -> set[int]:
    """Slices that give a share of features, from which the operands of an issue come."""
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
        mine = _sharded(types[value])
        if not mine or p.kind[k] != CALL:
            continue
        transform = transform_of(p.instances[p.op[k]])
        inherited = set().union(*[_sharded(types[v]) for v in p.inputs[k]])
        if transform is not None and transform.name in _SLICING and not mine <= inherited:
            found.add(k)
            continue
        for v in p.inputs[k]:
            if v not in seen:
                seen.add(v)
                todo.append(v)
    return found


def _sharded(of: object) -> set[int]:
    """Mesh axes over which a value is a share of features."""
    return (
        {m for m, fs in of.bound if any(b.domain.is_feature for b in fs)} if isinstance(of, Layout) else set()
    )
