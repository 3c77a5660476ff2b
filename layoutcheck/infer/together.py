"""Exports of one program from several ranks, checked together.

A slice whose bounds differ as the ranks' shares do is rank-indexed; one whose bounds are the same on every rank is a constant slice,
even where on one rank it looks like that rank's share. Ranks' graphs need not be alike: calls are matched by name, and only those that
both have are settled.
"""

from __future__ import annotations

from typing import Any

import attrs

from layoutcheck.infer.call import CONSTANT, Hole
from layoutcheck.infer.run import transform_of
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


def constant_slices(
    mine: tuple[Program, list[Any], int | None], others: list[tuple[Program, list[Any], int | None]]
) -> set[int]:
    """Calls of my program that slice the same bounds on another rank, so that they are no rank's share.

    Each program comes with its types and its rank.
    """
    p, types, rank = mine
    out: set[int] = set()
    own = slice_calls(p, types)
    for other, other_types, other_rank in others:
        if other_rank == rank:
            continue
        theirs = slice_calls(other, other_types)
        for name, (k, bounds) in own.items():
            match = theirs.get(name)
            if match is not None and match[1] == bounds:
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
