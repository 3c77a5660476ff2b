"""Factor rules: how factors run through matmuls, norms, attention (`self: t k, mat2: k n -> t n`).

Labels are bound to operand axes, compared across operands, and laid out on the outputs. A label that no output has is summed over:
where a group cuts it, the output is a pending sum over that group.
"""

from __future__ import annotations

from typing import Any

import attrs

from layoutcheck.domains import Factor, feature
from layoutcheck.infer.calls.call import Call, Issue, Result
from layoutcheck.infer.calls.compare import compare_axes, is_misplaced, strength
from layoutcheck.infer.calls.elementwise import promote
from layoutcheck.infer.calls.factor_checks import (
    check_causal,
    check_free,
    check_padding,
    check_scales,
    check_unmatched,
    check_whole,
    check_whole_operands,
    spread_beside,
)
from layoutcheck.infer.calls.matching import Matching, Occurrence, match
from layoutcheck.infer.calls.states import check_diagonal, join_bound, join_partial
from layoutcheck.layouts import Axis, Layout, bound_on_axis, extent_of, layout
from layoutcheck.rules.types import Axis as LabelAxis
from layoutcheck.rules.types import Pattern, Unit, Variadic


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
            check_whole(call, occurrences)
            if contraction:
                check_padding(call, found, name, occurrences)
        elif contraction:
            check_padding(call, found, name, occurrences, summed=True)
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
                check_whole(call, occurrences)
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
    check_scales(call)
    check_whole_operands(call)
    if complete and rule.operands:
        check_unmatched(call, {slot for _, slot, _ in found.matched})
    for name, caches in found.held.items():
        if name in must_be_whole:
            check_whole(call, caches)
        for cache in caches:
            check_free(call, cache, joined)
            for query in found.labels.get(name, ()):
                if extent_of(cache.of.axes[cache.axis]) != 1:
                    # one head goes with any share of the queries' heads
                    _cut_like(call, query, cache)
                _cut_like(call, cache, query)
    for flag, name in rule.causal.items():
        if call.fill(call.params.get(flag)) is True:
            check_causal(call, flag, found.labels.get(name, ()))
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
            out.append((p, s, spread_beside(of, latest.get(data) or call.tensor(call.rule.scales[p]))))
    return out
