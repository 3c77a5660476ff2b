"""Operands of a factor rule matched with its patterns: which axis, and which factors of it, a label stands for."""

from __future__ import annotations

from typing import Any

import attrs

from layoutcheck.infer.calls.call import Call
from layoutcheck.infer.calls.regroup import Cuts, regroup, split_digit
from layoutcheck.infer.calls.repeated import spread_like
from layoutcheck.layouts import Axis, Layout, bound_on_axis, extent_of, layout
from layoutcheck.rules.types import Any as AnyAxis
from layoutcheck.rules.types import Axis as LabelAxis
from layoutcheck.rules.types import Label, OperandPattern, Pattern, Unit, Variadic
from layoutcheck.symbols import Size, divide_exact


@attrs.define
class Occurrence:
    """A label met on an operand: which slot, its (possibly refined) layout and the axis there.

    `inner` is the number of elements to the right of it in the operand's own axis `source`, which is negative where the
    operand lacks the axis (a bias has no rows); `part` says that it is one of several labels of an axis that has more than
    one element.
    """

    slot: int
    of: Layout
    axis: int
    source: int
    inner: Size
    whole: bool
    part: bool = False


@attrs.define
class Matching:
    """All labels of a call with their occurrences; the variadic label holds one list per axis, from the right.

    `held` are labels on the axes of `ignored` operands: caches, of which only the shards of features have to fit.
    """

    labels: dict[str, list[Occurrence]] = attrs.field(factory=dict)
    variadic: dict[str, list[list[Occurrence]]] = attrs.field(factory=dict)
    matched: list[tuple[str, int, Layout]] = attrs.field(factory=list)
    misfit: list[tuple[int, str]] = attrs.field(factory=list)
    ignored: set[int] = attrs.field(factory=set)
    held: dict[str, list[Occurrence]] = attrs.field(factory=dict)


def match(call: Call) -> Matching:
    """Bind the labels of a factor rule to the axes of the call's operands."""
    found = Matching()
    sizes: dict[str, Size] = {}
    todo: list[tuple[int, Layout, Pattern]] = []
    shifts: dict[int, int] = {}
    for operand in call.rule.operands:
        for label_name, param in operand.sizes.items():
            given = call.fill(call.params.get(param))
            if given is not None and not isinstance(given, (bool, float, str, Layout, list)):
                sizes.setdefault(label_name, given)
        for slot, of in _operands_of(call, operand):
            found.matched.append((operand.param, slot, of))
            pattern = operand.pattern
            loose = any(is_any(x) for x in pattern.axes)
            if loose and (operand.param in call.rule.whole or all(is_any(x) for x in pattern.axes)):
                found.ignored.add(slot)
            fitted = fit_rank(of, pattern)
            if fitted is None:
                found.misfit.append((slot, _pattern_text(pattern)))
                continue
            shifts[slot] = of.rank - fitted.rank
            todo.append((slot, _without_any(fitted, pattern) if loose else fitted, pattern))
    if any(of.bound for _, of, _ in todo):
        todo = _with_shared_heads(call, _with_head_axes(todo))
    for _, of, pattern in todo:
        for axis, item in aligned(of, pattern):
            if isinstance(item, LabelAxis) and len(item.labels) == 1:
                sizes.setdefault(item.labels[0].name, extent_of(of.axes[axis]))
    for slot, of, pattern in todo:
        # A cache is looked at for its sizes and its shards; what rows it holds is checked as a whole.
        if slot not in found.ignored:
            _bind(found, slot, of, pattern, sizes, shifts[slot])
        elif of.bound or any(other.bound for _, other, _ in todo):
            cache = Matching(labels=found.held)
            _bind(cache, slot, of, pattern, sizes, shifts[slot])
    return found


def is_any(item: object) -> bool:
    """Whether a pattern's item stands for axes whose contents do not matter."""
    return isinstance(item, AnyAxis) or (isinstance(item, Variadic) and item.label.name == "*")


def _without_any(of: Layout, pattern: Pattern) -> Layout:
    """The layout with nothing on the axes that do not matter, so that a shard of them is none of the result's."""
    gone = {axis for axis, item in aligned(of, pattern) if is_any(item)}
    cuts = {(m, b) for axis in gone for m, b in bound_on_axis(of, axis)}
    if not cuts:
        return of
    axes = tuple(() if i in gone else axis for i, axis in enumerate(of.axes))
    left = {m: tuple(b for b in fs if (m, b) not in cuts) for m, fs in of.bound}
    return layout(of.dtype, axes, {m: fs for m, fs in left.items() if fs}, of.partial, of.value)


def _with_head_axes(todo: list[tuple[int, Layout, Pattern]]) -> list[tuple[int, Layout, Pattern]]:
    """Where one operand's axis is one head of a shard, another's shard that begins right behind that axis counts heads, too.

    `[1, d/p]` and `[h/p, d]`, of one head a rank, are the same elements under two views of the whole.
    """
    heads: dict[str, set[int]] = {}
    for _, of, pattern in todo:
        for axis, item in aligned(of, pattern):
            if isinstance(item, LabelAxis) and len(item.labels) == 1 and of.shape[axis] == 1:
                cuts = {m for m, b in bound_on_axis(of, axis) if b.domain.is_feature}
                heads.setdefault(item.labels[0].name, set()).update(cuts)
    out = []
    for slot, of, pattern in todo:
        for axis, item in aligned(of, pattern):
            if isinstance(item, LabelAxis) and len(item.labels) == 1 and not of.axes[axis]:
                of = _head_in_front(of, axis, heads.get(item.labels[0].name, set()))
        out.append((slot, of, pattern))
    return out


def _with_shared_heads(
    call: Call, todo: list[tuple[int, Layout, Pattern]]
) -> list[tuple[int, Layout, Pattern]]:
    """Where a group cuts one operand's heads, and a part of it another's, of which a rank has one, that one is each rank's own."""
    kept = {
        label.name for out in call.rule.outputs if out.pattern is not None for label in out.pattern.labels()
    }
    places: dict[str, list[tuple[int, int, bool]]] = {}
    for number, (_, of, pattern) in enumerate(todo):
        for axis, item in aligned(of, pattern):
            if isinstance(item, LabelAxis) and item.labels and item.labels[0].name in kept:
                places.setdefault(item.labels[0].name, []).append((number, axis, len(item.labels) == 1))
    out = list(todo)
    for found in places.values():
        for number, axis, alone in found:
            slot, of, pattern = out[number]
            others = [(out[n][1], at) for n, at, _ in found if n != number]
            spread = (spread_like(of, axis, like, at) for like, at in others) if alone else iter(())
            moved = next((x for x in spread if x is not None), None)
            if moved is not None:
                out[number] = (slot, moved, pattern)
    return out


def _head_in_front(of: Layout, axis: int, over: set[int]) -> Layout:
    """The layout with a shard over these mesh axes moved from the front of the next axis to this one, which is of extent one."""
    behind = next((i for i in range(axis + 1, of.rank) if of.axes[i]), None)
    if behind is None or not over:
        return of
    lead = of.axes[behind][0]
    if not lead.domain.is_feature or not over & {
        m for m, b in bound_on_axis(of, behind) if b.domain is lead.domain
    }:
        return of
    cuts: Cuts = {m: list(fs) for m, fs in of.bound}
    parts = split_digit(lead, lead.extent, cuts)
    if parts is None:
        return of
    axes = list(of.axes)
    axes[axis], axes[behind] = (parts[0],), (parts[1], *axes[behind][1:])
    return layout(of.dtype, tuple(axes), {m: tuple(fs) for m, fs in cuts.items()}, of.partial, of.value)


def _operands_of(call: Call, operand: OperandPattern) -> list[tuple[int, Layout]]:
    raw = call.params.get(operand.param)
    if raw is None:
        return []
    values = raw if isinstance(raw, (list, tuple)) else [raw]
    out = []
    for value in values:
        slot = getattr(value, "slot", -1)
        of = call.slots[slot] if slot >= 0 else None
        if isinstance(of, Layout):
            out.append((slot, of))
    return out


def _has_variadic(pattern: Pattern) -> bool:
    return bool(pattern.axes) and isinstance(pattern.axes[0], Variadic)


def fit_rank(of: Layout, pattern: Pattern) -> Layout | None:
    """The layout with leading unit axes dropped or added so that it has the pattern's rank (batches of one are elided)."""
    wanted = len(pattern.axes)
    if _has_variadic(pattern):
        if of.rank >= wanted - 1:
            return of
        lead: tuple[Axis, ...] = ((),) * (wanted - 1 - of.rank)
        return layout(of.dtype, lead + of.axes, of.bound_map, of.partial, of.value)
    if of.rank == wanted:
        return of
    axes = list(of.axes)
    while len(axes) > wanted and axes and not axes[0]:
        axes.pop(0)
    while len(axes) < wanted:
        axes.insert(0, ())
    if len(axes) != wanted:
        return None
    return layout(of.dtype, tuple(axes), of.bound_map, of.partial, of.value)


def aligned(of: Layout, pattern: Pattern) -> list[tuple[int, Any]]:
    items = pattern.axes
    if _has_variadic(pattern):
        lead = of.rank - (len(items) - 1)
        return [(i, items[0]) for i in range(lead)] + [(lead + i, item) for i, item in enumerate(items[1:])]
    return list(enumerate(items))


def _bind(
    found: Matching, slot: int, of: Layout, pattern: Pattern, sizes: dict[str, Size], shift: int
) -> None:
    """Enter an operand's labels; `shift` is the number of leading axes of extent one that were dropped from it."""
    variadic: list[Occurrence] = []
    lead_label: Label | None = None
    offset = 0
    for axis, item in aligned(of, pattern):
        source = axis + shift
        axis += offset
        if isinstance(item, Variadic):
            if item.label.name == "*":
                continue
            lead_label = item.label
            variadic.append(Occurrence(slot, of, axis, source, 1, item.label.whole))
        elif isinstance(item, LabelAxis):
            if len(item.labels) == 1:
                label = item.labels[0]
                found.labels.setdefault(label.name, []).append(
                    Occurrence(slot, of, axis, source, 1, label.whole)
                )
            elif not of.axes[axis]:
                for label in item.labels:
                    found.labels.setdefault(label.name, []).append(
                        Occurrence(slot, of, axis, source, 1, label.whole)
                    )
            else:
                refined = _refine(of, axis, item.labels, sizes)
                if refined is None:
                    found.misfit.append((slot, " ".join(x.name for x in item.labels)))
                    continue
                of, parts = refined
                inner: Size = 1
                for k in reversed(range(len(parts))):
                    label = item.labels[k]
                    found.labels.setdefault(label.name, []).append(
                        Occurrence(slot, of, axis + k, source, inner, label.whole, True)
                    )
                    sizes.setdefault(label.name, parts[k])
                    inner = inner * parts[k]
                offset += len(parts) - 1
        elif isinstance(item, (Unit, AnyAxis)):
            continue
    if lead_label is not None:
        rows = found.variadic.setdefault(lead_label.name, [])
        for depth, occurrence in enumerate(reversed(variadic)):
            occurrence.of = of
            while len(rows) <= depth:
                rows.append([])
            rows[depth].append(occurrence)


def _refine(
    of: Layout, axis: int, labels: tuple[Label, ...], sizes: dict[str, Size]
) -> tuple[Layout, list[Size]] | None:
    """Split one axis into the digits that `(h d)` names, sizes taken from where the labels stand alone."""
    total = extent_of(of.axes[axis])
    parts: list[Size | None] = [sizes.get(label.name) for label in labels]
    unknown = [i for i, p in enumerate(parts) if p is None]
    known: Size = 1
    for p in parts:
        if p is not None:
            known = known * p
    if len(unknown) > 1:
        return None
    if unknown:
        rest = divide_exact(total, known)
        if rest is None:
            return None
        parts[unknown[0]] = rest
    elif known != total:
        return None
    exact = [p for p in parts if p is not None]
    cuts = {m: list(fs) for m, fs in of.bound}
    pieces = _shard_first(of.axes[axis], exact, cuts) or regroup(of.axes[axis], exact, cuts)
    if pieces is None:
        return None
    axes = of.axes[:axis] + tuple(pieces) + of.axes[axis + 1 :]
    return layout(of.dtype, axes, {m: tuple(fs) for m, fs in cuts.items()}, of.partial, of.value), exact


def _shard_first(axis: Axis, sizes: list[Size], cuts: Cuts) -> list[Axis] | None:
    """One head a rank: the shard counts heads, so it goes with the label that is of extent one here."""
    if sizes[0] != 1 or not axis or not axis[0].domain.is_feature or axis[0].is_whole:
        return None
    if not any(b.domain is axis[0].domain for fs in cuts.values() for b in fs):
        return None
    parts = split_digit(axis[0], axis[0].extent, cuts)
    if parts is None:
        return None
    rest = regroup((parts[1], *axis[1:]), sizes[1:], cuts)
    return None if rest is None else [(parts[0],), *rest]


def _pattern_text(pattern: Pattern) -> str:
    parts = []
    for item in pattern.axes:
        if isinstance(item, Variadic):
            parts.append(item.label.name + "..")
        elif isinstance(item, LabelAxis):
            names = " ".join(x.name for x in item.labels)
            parts.append(names if len(item.labels) == 1 else f"({names})")
        else:
            parts.append("1" if isinstance(item, Unit) else "*")
    return " ".join(parts)
