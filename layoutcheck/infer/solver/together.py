"""Exports of one program from several ranks, checked together.

A slice whose bounds differ as the ranks' shares do is rank-indexed; one whose bounds are the same on every rank is a constant slice,
even where on one rank it looks like that rank's share. Ranks' graphs need not be alike: calls are matched by name, and only those that
both have are settled.
"""

from __future__ import annotations

from typing import Any

import attrs

from layoutcheck.arguments import Hole
from layoutcheck.infer.calls.call import CONSTANT
from layoutcheck.infer.solver.one_call import transform_of
from layoutcheck.infer.solver.which_group import fresh, same_number
from layoutcheck.mesh import Mesh
from layoutcheck.program import CALL, OpInstance, Program

_SLICES = frozenset(("slice", "narrow"))


def slice_calls(p: Program, types: list[Any]) -> dict[str, tuple[int, tuple[Any, ...]]]:
    """Slice calls by node name, with their bounds."""
    found: dict[str, tuple[int, tuple[Any, ...]]] = {}
    for k, kind in enumerate(p.kind):
        if kind != CALL:
            continue
        instance = p.instances[p.op[k]]
        transform = transform_of(instance)
        if transform is None or transform.name not in _SLICES:
            continue
        bounds = []
        for name, value in instance.params.items():
            if name in ("self", "input", "x"):
                continue
            bounds.append(types[p.inputs[k][value.slot]] if isinstance(value, Hole) else value)
        found[p.nodes[k].name] = (k, tuple(bounds))
    return found


Typed = tuple[Program, list[Any], Mesh]


def constant_slices(mine: Typed, others: list[Typed]) -> set[int]:
    """Calls of my program that slice the same bounds on another rank, so that they are no rank's share.

    Each program comes with its types and its mesh. Ranks of the same number in the group of a share have the same bounds.
    """
    p, types, mesh = mine
    out: set[int] = set()
    own = slice_calls(p, types)
    for other, other_types, there in others:
        if there.rank == mesh.rank:
            continue
        theirs = slice_calls(other, other_types)
        for name, (k, bounds) in own.items():
            match = theirs.get(name)
            if match is None or match[1] != bounds:
                continue
            over = {fresh(types, p, k), fresh(other_types, other, match[0])} - {()}
            if not any(same_number(mesh, there, axes, axes) for axes in over):
                out.add(k)
    return out


def mark_constant(p: Program, calls: set[int]) -> bool:
    """Give these calls op instances of their own that say so; whether anything changed."""
    made: dict[int, int] = {}
    for k in sorted(calls):
        index = p.op[k]
        instance: OpInstance = p.instances[index]
        if CONSTANT in instance.params:
            continue
        if index not in made:
            made[index] = len(p.instances)
            p.instances.append(attrs.evolve(instance, params={**instance.params, CONSTANT: True}))
        p.op[k] = made[index]
    return bool(made)
