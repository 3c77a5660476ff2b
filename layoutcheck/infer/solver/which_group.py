"""Slices that are a rank's share over several groups of one size: which one, as far as what is behind them says.

On rank 0, `[0 : T/4]` is the first share over every group of four. The group is that of the gathers behind the slice, or of the share
that another rank's export takes there; else the first that fits is tried, and `readings.py` tries the others where it is at odds with
what the slice meets.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from layoutcheck.infer.calls.call import PREFERRED, Context
from layoutcheck.infer.solver.one_call import make_call, transform_of
from layoutcheck.layouts import Layout
from layoutcheck.mesh import Mesh
from layoutcheck.program import CALL, OUTPUT, Program
from layoutcheck.transforms.exchanges import group_of

Axes = tuple[int, ...]
SLICING = frozenset(("slice", "narrow", "select", "split", "chunk", "tensor_split"))
_SETTLING = frozenset(("all_gather", "all_to_all"))


def rivals(ctx: Context) -> set[Axes]:
    """Groups of which another one has the same size."""
    mesh = ctx.mesh
    by_size: dict[Any, set[Axes]] = {}
    single = [((axis.index,), axis.size) for axis in mesh.axes]
    named = [(g.axes, g.size) for g in (*mesh.groups.values(), *mesh.by_ranks.values())]
    for axes, size in (*single, *named):
        if axes and not set(axes) & mesh.quotient:
            by_size.setdefault(size, set()).add(axes)
    return {axes for same in by_size.values() if len(same) > 1 for axes in same}


def is_slicing(p: Program, k: int) -> bool:
    """Whether a call may take a rank's share of an axis."""
    transform = transform_of(p.instances[p.op[k]]) if p.kind[k] == CALL else None
    return transform is not None and transform.name in SLICING


def prefer(p: Program, groups: dict[int, Axes]) -> bool:
    """Give these calls op instances of their own that name the group to try first; whether anything changed."""
    made: dict[tuple[int, Axes], int] = {}
    for k, axes in groups.items():
        index = p.op[k]
        if p.instances[index].params.get(PREFERRED) == axes:
            continue
        if (index, axes) not in made:
            made[index, axes] = len(p.instances)
            params = {**p.instances[index].params, PREFERRED: axes}
            p.instances.append(attrs.evolve(p.instances[index], params=params))
        p.op[k] = made[index, axes]
    return bool(made)


def prefer_gathered(p: Program, uses: dict[int, list[tuple[int, int]]], ctx: Context) -> None:
    """Slices behind which one group's gathers come first are read as shares over that group."""
    possible = rivals(ctx)
    if not possible:
        return
    behind: dict[int, frozenset[Axes]] = {}
    found: dict[int, Axes] = {}
    for k in reversed(range(len(p.kind))):
        outs = range(p.first[k], p.first[k] + p.outs[k])
        for value in outs:
            met: set[Axes] = set()
            for reader, _ in uses.get(value, ()):
                met |= _met(p, ctx, reader, behind)
            behind[value] = frozenset(met)
        if is_slicing(p, k):
            groups = frozenset().union(*[behind[v] for v in outs]) & possible
            if len(groups) == 1:
                found[k] = next(iter(groups))
    prefer(p, found)


def _met(p: Program, ctx: Context, reader: int, behind: dict[int, frozenset[Axes]]) -> frozenset[Axes]:
    """The groups over which what a call reads is gathered first: its own, or those behind its results."""
    if p.kind[reader] == OUTPUT:
        return frozenset()
    rule = p.instances[p.op[reader]].rule if p.kind[reader] == CALL else None
    if rule is not None and rule.code in _SETTLING:
        call = make_call(ctx, p.instances[p.op[reader]], (None,) * len(p.inputs[reader]))
        group = group_of(call)
        if group is not None and group.axes:
            return frozenset((group.axes,))
    first = p.first[reader]
    return frozenset().union(*[behind.get(v, frozenset()) for v in range(first, first + p.outs[reader])])


def fresh(types: list[Any], p: Program, k: int) -> Axes:
    """Mesh axes over which a slice gives a share that its operand is not, major first."""
    of = types[p.first[k]]
    given = types[p.inputs[k][0]] if p.inputs[k] else None
    if not isinstance(of, Layout) or not isinstance(given, Layout):
        return ()
    return tuple(sorted((m for m in of.bound_map if m not in given.bound_map), reverse=True))


def prefer_seen(
    p: Program, types: list[Any], ctx: Context, others: Iterable[tuple[Program, list[Any], Context]]
) -> bool:
    """Slices that another rank's export takes over another group, where on that rank no two groups look alike."""
    possible = rivals(ctx)
    found: dict[int, Axes] = {}
    if not possible:
        return False
    for other, other_types, there in others:
        for k in range(len(p.kind)):
            mine = fresh(types, p, k) if is_slicing(p, k) else ()
            at = other.node_call.get(p.nodes[k].name)
            if not mine or at is None or not is_slicing(other, at):
                continue
            theirs = fresh(other_types, other, at)
            if (
                theirs in possible
                and theirs != mine
                and not same_number(there.mesh, there.mesh, mine, theirs)
            ):
                found.setdefault(k, theirs)
    return prefer(p, found)


def same_number(mesh: Mesh, other: Mesh, axes: Axes, others: Axes) -> bool:
    """Whether a rank's number in one group is another rank's number in another group (of the same shape)."""
    if max((*axes, -1)) >= len(mesh.axes) or max((*others, -1)) >= len(other.axes):
        return False
    return [mesh.coordinate(m) for m in axes] == [other.coordinate(m) for m in others]
