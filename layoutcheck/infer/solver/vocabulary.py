"""Weights that hold one rank's part of the vocabulary: tables whose lookup is masked to their rows, heads with a part of the rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from layoutcheck.infer.calls.call import Context
from layoutcheck.infer.solver.one_call import transform_of
from layoutcheck.infer.solver.run import Typing
from layoutcheck.infer.solver.trace import Cut, Tracer
from layoutcheck.layouts import Layout, bound_on_axis, whole_extent
from layoutcheck.mesh import Group
from layoutcheck.program import CALL, OUTPUT, Program
from layoutcheck.symbols import Size

_MASKING = frozenset(("where", "masked_fill", "index_put", "same", "copy"))


def _tables(p: Program, typing: Typing) -> Iterator[tuple[int, int, Layout]]:
    """Lookups, with the table that each reads and its layout."""
    lookups = {
        i for i, one in enumerate(p.instances) if one.rule is not None and one.rule.code == "embedding"
    }
    if not lookups:
        return
    for k, op in enumerate(p.op):
        if op not in lookups or p.kind[k] != CALL or len(p.inputs[k]) < 2:
            continue
        table = p.inputs[k][0]
        of = typing.types[table]
        if isinstance(of, Layout) and of.rank == 2:
            yield k, table, of


def masked_tables(p: Program, ctx: Context, typing: Typing) -> list[Cut]:
    """A lookup that is masked to exactly the rows of its table is one rank's part of a vocabulary-parallel one."""
    found = []
    for k, table, of in _tables(p, typing):
        rows = of.shape[0]
        limits = _limits(p, p.inputs[k][1])
        for low in limits:
            whole = isinstance(rows, int) and low + rows in limits
            group = ctx.group_of(low, rows) if whole and ctx.group_of is not None else None
            if group is not None:
                found.append(Cut(table, 0, rows, group.axes))
                break
    return found


def _limits(p: Program, value: int) -> set[int]:
    """Numbers that ids are compared with on their way to a lookup."""
    limits: set[int] = set()
    todo, seen = [value], {value}
    while todo and len(seen) < 40:
        k = p.value_call[todo.pop()]
        if p.kind[k] != CALL:
            continue
        instance = p.instances[p.op[k]]
        rule = instance.rule
        if rule is None or not (rule.kind == "elementwise" or rule.code in _MASKING or _is_view(instance)):
            continue
        if rule.kind == "elementwise" and rule.outdtypes[:1] == ("bool",):
            limits |= {v for v in instance.params.values() if isinstance(v, int) and not isinstance(v, bool)}
        for v in p.inputs[k]:
            if v not in seen:
                seen.add(v)
                todo.append(v)
    return limits


def vocabularies(p: Program, typing: Typing) -> set[tuple[Size, Size]]:
    """Entries over all ranks of each table that ids are looked up in, and the features of an entry."""
    found: set[tuple[Size, Size]] = set()
    for _, _, of in _tables(p, typing):
        found.add((whole_extent(of, 0), whole_extent(of, 1)))
    return found


def heads(tracer: Tracer, ctx: Context) -> list[Cut]:
    """A head whose scores leave, with one rank's part of the rows of the table in the same program, is a part of the vocabulary.

    Where an entry has as many features as the head has rows, nothing tells the head from another square weight.
    """
    p, typing = tracer.runner.program, tracer.typing
    known = vocabularies(p, typing)
    if not known:
        return []
    groups = [g for g in {*ctx.mesh.groups.values(), *ctx.mesh.by_ranks.values()} if _shares(g, ctx)]
    found: list[Cut] = []
    for k, kind in enumerate(p.kind):
        if kind != OUTPUT:
            continue
        for value in p.inputs[k]:
            of = typing.types[value]
            if not isinstance(of, Layout) or not of.rank or bound_on_axis(of, of.rank - 1):
                continue
            rows = of.shape[-1]
            for group in groups:
                entries = {n: width for n, width in known if rows * group.size == n and rows != width}
                # As many rows as some table has entries are that table's whole vocabulary; another one counts positions, say.
                entries = {n: width for n, width in entries.items() if (rows, width) not in known}
                if not entries or any(m in of.bound_map or m in of.partial for m in group.axes):
                    continue
                cuts = tracer.cut(value, of.rank - 1, rows, group.axes) or []
                weights = [c for c in cuts if _width(typing, c) in entries.values()]
                if len(weights) == 1:
                    found.extend(cuts)
                    break
    return found


def _shares(group: Group, ctx: Context) -> bool:
    return bool(group.axes) and isinstance(group.size, int) and not set(group.axes) & ctx.mesh.quotient


def _width(typing: Typing, cut: Cut) -> Size | None:
    """The other axis of a weight that is cut along one of its two."""
    of = typing.types[cut.value]
    return of.shape[1 - cut.axis] if isinstance(of, Layout) and of.rank == 2 else None


def _is_view(instance: Any) -> bool:
    transform = transform_of(instance)
    return transform is not None and bool(transform.is_view)
