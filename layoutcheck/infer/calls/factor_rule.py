"""Factor rules: how factors run through matmuls, norms, attention (`self: t k, mat2: k n -> t n`).

Labels are bound to operand axes, compared across operands, and laid out on the outputs. A label that no output has is summed over:
where a group cuts it, the output is a pending sum over that group.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import attrs

from layoutcheck.domains import Factor, base_of, feature, holds_padding, is_token_like
from layoutcheck.infer.calls.call import Call, Issue, Result
from layoutcheck.infer.calls.compare import compare_axes, is_misplaced, strength
from layoutcheck.infer.calls.elementwise import promote
from layoutcheck.infer.calls.regroup import Cuts, regroup, split_digit
from layoutcheck.infer.calls.repeated import spread_like
from layoutcheck.infer.calls.states import check_diagonal, join_bound, join_partial
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
            loose = any(_is_any(x) for x in pattern.axes)
            if loose and (operand.param in call.rule.whole or all(_is_any(x) for x in pattern.axes)):
                found.ignored.add(slot)
            fitted = _fit_rank(of, pattern)
            if fitted is None:
                found.misfit.append((slot, _pattern_text(pattern)))
                continue
            shifts[slot] = of.rank - fitted.rank
            todo.append((slot, _without_any(fitted, pattern) if loose else fitted, pattern))
    if any(of.bound for _, of, _ in todo):
        todo = _with_shared_heads(call, _with_head_axes(todo))
    for _, of, pattern in todo:
        for axis, item in _aligned(of, pattern):
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


def _is_any(item: object) -> bool:
    """Whether a pattern's item stands for axes whose contents do not matter."""
    return isinstance(item, AnyAxis) or (isinstance(item, Variadic) and item.label.name == "*")


def _without_any(of: Layout, pattern: Pattern) -> Layout:
    """The layout with nothing on the axes that do not matter, so that a shard of them is none of the result's."""
    gone = {axis for axis, item in _aligned(of, pattern) if _is_any(item)}
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
        for axis, item in _aligned(of, pattern):
            if isinstance(item, LabelAxis) and len(item.labels) == 1 and of.shape[axis] == 1:
                cuts = {m for m, b in bound_on_axis(of, axis) if b.domain.is_feature}
                heads.setdefault(item.labels[0].name, set()).update(cuts)
    out = []
    for slot, of, pattern in todo:
        for axis, item in _aligned(of, pattern):
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
        for axis, item in _aligned(of, pattern):
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


def _fit_rank(of: Layout, pattern: Pattern) -> Layout | None:
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


def _aligned(of: Layout, pattern: Pattern) -> list[tuple[int, Any]]:
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
    for axis, item in _aligned(of, pattern):
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


@attrs.define
class Chosen:
    """A label's axis, and where operands disagree the occurrences that have it, in operand order."""

    axis: Axis
    rivals: list[Occurrence] = attrs.field(factory=list)


def _choose(call: Call, occurrences: list[Occurrence], contraction: bool) -> Chosen:
    """Compare all occurrences of a label; the axis that says most of its domain."""
    present = [
        o
        for o in occurrences
        if o.of.axes[o.axis] and not any(is_misplaced(o.of, o.axis, x.of, x.axis) for x in occurrences)
    ]
    if not present:
        return Chosen(())
    best = max(present, key=lambda o: strength(o.of.axes[o.axis]))
    for other in occurrences:
        if other.part and not other.of.axes[other.axis]:
            _cut_like(call, best, other)
    before = len(call.issues)
    for other in present:
        if other is not best:
            _compare(call, best, other, contraction)
    if len(call.issues) > before:
        return Chosen(best.of.axes[best.axis], present)
    return Chosen(best.of.axes[best.axis])


def _cut_like(call: Call, best: Occurrence, other: Occurrence) -> None:
    """One head is left of one operand's heads and all heads of the other's: it has to be cut as well."""
    cuts = bound_on_axis(best.of, best.axis)
    if not cuts or any(m in other.of.bound_map for m, _ in cuts):
        return
    group = call.ctx.group(tuple(m for m, _ in cuts))
    issue = Issue(
        "LC101",
        f"{{0}} has one shard of the heads over {group}, {{1}} has all of them",
        tuple(s for s in (best.slot, other.slot) if s >= 0),
    )
    source = call.slots[other.slot]
    inner = extent_of(source.axes[other.source]) if isinstance(source, Layout) else 1
    for m, _ in cuts:
        call.want("cut", other.slot, issue, axis=other.source, inner=inner, mesh_axes=(m,))


def _compare(call: Call, best: Occurrence, other: Occurrence, contraction: bool) -> None:
    before = len(call.wants)
    compare_axes(call, (best.slot, best.of, best.axis), (other.slot, other.of, other.axis), contraction)
    for k in range(before, len(call.wants)):
        want = call.wants[k]
        if want.kind == "cut":
            o = best if want.slot == best.slot and want.axis == best.axis else other
            call.wants[k] = attrs.evolve(want, axis=o.source, inner=want.inner * o.inner)


def apply_factors(call: Call, complete: bool = False) -> Result:
    """Apply the call's factor rule; a `complete` one names every operand that may be cut or a pending sum."""
    rule = call.rule
    found = match(call)
    for slot, pattern in found.misfit:
        call.issue("LC101", f"{{0}} does not have the axes `{pattern}`", slot)
    on_output = {
        label.name for out in rule.outputs if out.pattern is not None for label in out.pattern.labels()
    }
    must_be_whole = {
        label.name for operand in rule.operands for label in operand.pattern.labels() if label.whole
    }
    axes: dict[str, Chosen] = {}
    gone: dict[int, list[Factor]] = {}
    for name, occurrences in found.labels.items():
        contraction = name not in on_output
        axes[name] = _choose(call, occurrences, contraction)
        if name in must_be_whole:
            _check_whole(call, occurrences)
            if contraction:
                _check_padding(call, found, name, occurrences)
        elif contraction:
            _check_padding(call, found, name, occurrences, summed=True)
            for o in occurrences:
                for m, b in bound_on_axis(o.of, o.axis):
                    mine = gone.setdefault(m, [])
                    if b not in mine:
                        mine.append(b)
    rows: dict[str, list[Chosen]] = {}
    for name, depths in found.variadic.items():
        rows[name] = []
        for occurrences in depths:
            rows[name].append(_choose(call, occurrences, name not in on_output))
            if name in must_be_whole:
                _check_whole(call, occurrences)
    operands = _refined_operands(call, found)
    rivals = {
        o.slot for chosen in [*axes.values(), *[c for r in rows.values() for c in r]] for o in chosen.rivals
    }
    joined = [o for o in operands if o[1] not in found.ignored]
    settled = [o for o in joined if o[1] not in rivals]
    bound = join_bound(call, joined if not rivals else settled)
    summed: list[int] = []
    for m, fs in gone.items():
        kept = tuple(b for b in bound.get(m, ()) if b not in fs)
        if kept != bound.get(m, ()):
            summed.append(m)
            if kept:
                bound[m] = kept
            else:
                bound.pop(m, None)
    linear, additive = rule.linear, rule.additive
    partial = join_partial(
        call,
        [o for o in operands if o[0] not in rule.scales],
        linear,
        additive,
        bound,
        rule.addends,
        tuple(summed),
    )
    for m, fs in gone.items():
        owners = {
            o.slot
            for name, os in found.labels.items()
            if name not in on_output
            for o in os
            for x, _ in bound_on_axis(o.of, o.axis)
            if x == m
        }
        if len(fs) > 1 and len(owners) > 1:
            call.issue(
                "LC201",
                f"two sums over {call.ctx.group((m,))} are multiplied, each of one rank's part: that is no part of their product",
                *sorted(owners)[:2],
            )
    for m in summed:
        if m in partial:
            call.issue(
                "LC201",
                f"a pending sum over {call.ctx.group((m,))} is summed over a shard of the same group",
                operands[0][1],
            )
    partial = tuple(sorted({*partial, *summed}))
    _check_scales(call)
    _check_whole_operands(call)
    if complete and rule.operands:
        _check_unmatched(call, {slot for _, slot, _ in found.matched})
    for name, caches in found.held.items():
        if name in must_be_whole:
            _check_whole(call, caches)
        for cache in caches:
            _check_free(call, cache, joined)
            for query in found.labels.get(name, ()):
                if extent_of(cache.of.axes[cache.axis]) != 1:
                    # one head goes with any share of the queries' heads
                    _cut_like(call, query, cache)
                _cut_like(call, cache, query)
    for flag, name in rule.causal.items():
        if call.fill(call.params.get(flag)) is True:
            _check_causal(call, flag, found.labels.get(name, ()))
    outs: list[Layout | None] = []
    first_tensor = next((of for _, _, of in operands), None)
    for k, pattern_out in enumerate(rule.outputs):
        if pattern_out.kind == "none":
            outs.append(None)
            continue
        if pattern_out.kind == "same":
            outs.append(call.tensor(pattern_out.same_as or ""))
            continue
        assert pattern_out.pattern is not None
        built: list[Axis] = []
        for item in pattern_out.pattern.axes:
            if isinstance(item, Variadic):
                built.extend(_pick(c, k) for c in reversed(rows.get(item.label.name, [])))
            elif isinstance(item, LabelAxis):
                axis: Axis = ()
                for label in item.labels:
                    axis = axis + _label_axis(call, label.name, axes, pattern_out.new, k)
                built.append(axis)
            elif isinstance(item, Unit):
                built.append(())
            else:
                built.append(())
        word = k + _inserted(rule) if k else 0
        dtype = call.dtype(
            promote([of for _, _, of in operands]) if first_tensor is not None else "float32", word
        )
        own = _own_bound(bound, pattern_out.pattern, found, on_output) if len(rule.outputs) > 1 else bound
        # truth values, such as a mask beside the result, are no summands
        sums = partial if dtype != "bool" else ()
        out = layout(dtype, tuple(built), _rival_bound(own, joined, rivals, k), sums)
        if bound and not rivals:
            check_diagonal(call, out, range(out.rank), [s for _, s, of in operands if of.bound])
        outs.append(out)
    return call.result(*outs)


def _own_bound(
    bound: dict[int, tuple[Factor, ...]], pattern: Pattern, found: Matching, on_output: set[str]
) -> dict[int, tuple[Factor, ...]]:
    """The shards that one of several outputs has: those of labels that only other outputs have are not its own."""
    mine = {label.name for label in pattern.labels()}
    kept: set[Factor] = set()
    foreign: set[Factor] = set()
    for name, occurrences in found.labels.items():
        into = foreign if name in on_output and name not in mine else kept
        into.update(b for o in occurrences for _, b in bound_on_axis(o.of, o.axis))
    foreign -= kept
    if not foreign:
        return bound
    left = {m: tuple(b for b in fs if b not in foreign) for m, fs in bound.items()}
    return {m: fs for m, fs in left.items() if fs}


def _inserted(rule: Any) -> int:
    """Outputs that a quantisation puts behind output 0: the scale, and an offset."""
    return sum(1 + ("offset" in options) for name, options in rule.then if name == "quantize")


def _pick(chosen: Chosen, output: int) -> Axis:
    """Where operands disagree, output i goes on with the i-th operand."""
    if not chosen.rivals:
        return chosen.axis
    o = chosen.rivals[min(output, len(chosen.rivals) - 1)]
    return o.of.axes[o.axis]


def _rival_bound(
    bound: dict[int, tuple[Factor, ...]],
    operands: list[tuple[str, int, Layout]],
    rivals: set[int],
    output: int,
) -> dict[int, tuple[Factor, ...]]:
    if not rivals:
        return bound
    mine = [of for _, slot, of in operands if slot in rivals]
    chosen = mine[min(output, len(mine) - 1)]
    return {**bound, **chosen.bound_map}


def _label_axis(call: Call, name: str, axes: dict[str, Chosen], new: Any, output: int) -> Axis:
    if name in axes:
        return _pick(axes[name], output)
    if name in new:
        size = call.fill(call.params.get(new[name]))
        if size is None or isinstance(size, (bool, float, str)):
            return ()
        return (feature(size).whole,)
    return ()


def _refined_operands(call: Call, found: Matching) -> list[tuple[str, int, Layout]]:
    """Operands with the layouts that refining composite axes gave them, so that bound factors agree with the labels'."""
    latest: dict[int, Layout] = {}
    for occurrences in found.labels.values():
        for o in occurrences:
            latest[o.slot] = o.of
    named = {p for p, _, _ in found.matched}
    out = [(p, s, latest.get(s, of)) for p, s, of in found.matched]
    for p, s, of in call.tensors():
        if p not in named and p in call.rule.scales:
            data = call.slot(call.rule.scales[p])
            out.append((p, s, _beside(of, latest.get(data) or call.tensor(call.rule.scales[p]))))
    return out


def _beside(scale: Layout, data: Layout | None) -> Layout:
    """A scale's layout with its shard named as its codes' shard is now (views rename digits of features)."""
    if data is None or not scale.bound:
        return scale
    return layout(
        scale.dtype, scale.axes, {m: data.bound_map.get(m, fs) for m, fs in scale.bound}, scale.partial
    )


def _check_whole(call: Call, occurrences: list[Occurrence]) -> None:
    for o in occurrences:
        cuts = bound_on_axis(o.of, o.axis)
        if cuts:
            group = call.ctx.group(tuple(m for m, _ in cuts))
            what = "tokens" if is_token_like(cuts[0][1].domain) else "features"
            call.issue("LC106", f"needs all {what} of this axis, {{0}} is sharded over {group} there", o.slot)


def _check_free(call: Call, cache: Occurrence, operands: Sequence[tuple[str, int, Layout]]) -> None:
    """A group that cuts the queries by something else leaves each rank with other queries and another part of the cache."""
    for m, b in bound_on_axis(cache.of, cache.axis):
        others = [o for _, _, o in operands if any(is_token_like(f.domain) for f in o.bound_map.get(m, ()))]
        if others and not is_token_like(b.domain):
            call.issue(
                "LC106",
                f"needs all features of this axis, {{0}} is sharded over {call.ctx.group((m,))} there, which shards the tokens",
                cache.slot,
            )
            return


def _check_causal(call: Call, flag: str, occurrences: Sequence[Occurrence]) -> None:
    """A mask that the op builds itself begins at the rank's own first row."""
    for o in occurrences:
        cuts = bound_on_axis(o.of, o.axis)
        if cuts:
            group = call.ctx.group(tuple(m for m, _ in cuts))
            call.issue(
                "LC106",
                f"{flag} counts rows from the first one of each rank, {{0}} is sharded over {group} there: "
                "give the mask of the rank's own rows instead",
                o.slot,
            )
            return


def _check_padding(
    call: Call, found: Matching, name: str, occurrences: list[Occurrence], summed: bool = False
) -> None:
    """Padding rows that are read with the tokens: right only behind a mask over the same axis, or a causal one.

    Rows that are only summed may have been set to zero before, by a mask that is not followed here: a warning.
    """
    optional = {operand.param for operand in call.rule.operands if operand.optional}
    masks = {slot for param, slot, _ in found.matched if param in optional}
    if any(o.slot in masks for o in occurrences) or any(
        call.params.get(flag) is True for flag in call.params if flag.endswith("causal")
    ):
        return
    for o in occurrences:
        if any(holds_padding(f.domain) for f in o.of.axes[o.axis]):
            call.issue(
                "LC402",
                "{0} has padding rows, which are read like tokens: mask them, or cut them off",
                o.slot,
                hints=("warning",) if summed else (),
            )
            return


def _check_unmatched(call: Call, matched: Collection[int]) -> None:
    """Operands that no pattern names: whatever is read of them, it is neither a part of features nor of a sum.

    Metadata may be of the rank's own tokens.
    """
    rule = call.rule
    known = rule.whole | set(rule.scales) | set(rule.into)
    for param, slot, of in call.tensors():
        if slot in matched or param.split("[")[0] in known:
            continue
        group = next(
            (
                call.ctx.group((m,))
                for m, fs in of.bound
                if m not in call.ctx.mesh.quotient and any(not is_token_like(b.domain) for b in fs)
            ),
            None,
        )
        if of.partial:
            call.issue(
                "LC201",
                f"{{0}} is a pending sum over {call.ctx.group(of.partial)}, and is read as it is",
                slot,
            )
        elif group is not None:
            call.issue("LC106", f"reads all of it, but {{0}} holds one rank's part over {group}", slot)


def _labelled(of: Layout, b: Factor, pattern: Pattern | None) -> bool:
    """Whether the axis that a share is of has a label."""
    fitted = _fit_rank(of, pattern) if pattern is not None else None
    if fitted is None or pattern is None:
        return False
    anywhere = {axis for axis, item in _aligned(fitted, pattern) if _is_any(item)}
    return not any(b == other for axis in anywhere for _, other in bound_on_axis(fitted, axis))


def _check_whole_operands(call: Call) -> None:
    matched = {operand.param: operand.pattern for operand in call.rule.operands}
    for param in sorted(call.rule.whole):
        slot, of = call.slot(param), call.tensor(param)
        if of is None:
            continue
        if of.partial and param not in matched:  # those of a pattern are looked at where the pattern is
            call.issue(
                "LC201",
                f"{{0}} is a pending sum over {call.ctx.group(of.partial)}, and is read as it is",
                slot,
            )
        for m, fs in of.bound:
            # of an axis that no label names all is read, whatever it counts
            kept = [b for b in fs if is_token_like(b.domain) or not _labelled(of, b, matched.get(param))]
            if kept and m not in call.ctx.mesh.quotient:
                call.issue(
                    "LC106",
                    f"reads all of it, but {{0}} holds one rank's part over {call.ctx.group((m,))}",
                    slot,
                )
                break


def _scale_of_another_extent(call: Call, slot: int, s: Layout, data: int, d: Layout) -> bool:
    """Issue where a scale has all of an axis of which the codes are a share, or the other way round."""
    for axis in range(s.rank):
        size = s.shape[axis]
        if size == 1 or any(size == n for n in d.shape):
            continue
        whole = _global_extent(s, axis)
        for other in range(d.rank):
            if _counts_another(s, axis, d, other):
                continue
            cut = bound_on_axis(d, other) or bound_on_axis(s, axis)
            if cut and (_global_extent(d, other) == whole or _tokens_of(d, other) == size):
                group = call.ctx.group(tuple(m for m, _ in cut))
                call.issue(
                    "LC101",
                    f"the scale {{0}} and its codes {{1}} do not have the same share over {group} of {whole} elements",
                    slot,
                    data,
                )
                return True
    return False


def _counts_another(a: Layout, i: int, b: Layout, j: int) -> bool:
    """Whether one axis counts tokens and the other one features: as long as each other only by chance."""
    tokens, features = (
        [bool(of.axes[at]) and all(holds(f.domain) for f in of.axes[at]) for of, at in ((a, i), (b, j))]
        for holds in (is_token_like, lambda domain: domain.is_feature)
    )
    return (tokens[0] and features[1]) or (features[0] and tokens[1])


def _tokens_of(of: Layout, axis: int) -> Size | None:
    """The tokens that an axis has without its padding."""
    factors = of.axes[axis]
    return (
        base_of(factors[0].domain).extent if len(factors) == 1 and is_token_like(factors[0].domain) else None
    )


def _global_extent(of: Layout, axis: int) -> Size:
    total = extent_of(of.axes[axis])
    for _, b in bound_on_axis(of, axis):
        total = total * b.extent
    return total


def _check_scales(call: Call) -> None:
    """A quantised value's scale has its codes' layout: a scale of a shard fits only the shard's own codes."""
    for scale, data in call.rule.scales.items():
        s, d = call.tensor(scale), call.tensor(data)
        if s is None or d is None:
            continue
        if _scale_of_another_extent(call, call.slot(scale), s, call.slot(data), d):
            continue
        for m, fs in s.bound:
            for b in fs:
                if b not in d.bound_map.get(m, ()) and is_token_like(b.domain):
                    call.issue(
                        "LC101",
                        f"the scale {{0}} was taken on one rank's share over {call.ctx.group((m,))}, its codes {{1}} were not",
                        call.slot(scale),
                        call.slot(data),
                    )
                    break
