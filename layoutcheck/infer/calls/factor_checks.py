"""What a factor rule asks of its operands beside their patterns: whole labels, causal masks, padding, scales."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from layoutcheck.domains import Factor, base_of, holds_padding, is_token_like
from layoutcheck.infer.calls.call import Call
from layoutcheck.infer.calls.matching import Matching, Occurrence, aligned, fit_rank, is_any
from layoutcheck.layouts import Layout, bound_on_axis, layout, whole_extent
from layoutcheck.rules.types import Pattern
from layoutcheck.symbols import Size


def spread_beside(scale: Layout, data: Layout | None) -> Layout:
    """A scale's layout with its shard named as its codes' shard is now (views rename digits of features)."""
    if data is None or not scale.bound:
        return scale
    return layout(
        scale.dtype, scale.axes, {m: data.bound_map.get(m, fs) for m, fs in scale.bound}, scale.partial
    )


def check_whole(call: Call, occurrences: list[Occurrence]) -> None:
    for o in occurrences:
        cuts = bound_on_axis(o.of, o.axis)
        if cuts:
            group = call.ctx.group(tuple(m for m, _ in cuts))
            what = "tokens" if is_token_like(cuts[0][1].domain) else "features"
            call.issue("LC106", f"needs all {what} of this axis, {{0}} is sharded over {group} there", o.slot)


def check_free(call: Call, cache: Occurrence, operands: Sequence[tuple[str, int, Layout]]) -> None:
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


def check_causal(call: Call, flag: str, occurrences: Sequence[Occurrence]) -> None:
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


def check_padding(
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


def check_unmatched(call: Call, matched: Collection[int]) -> None:
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
    fitted = fit_rank(of, pattern) if pattern is not None else None
    if fitted is None or pattern is None:
        return False
    anywhere = {axis for axis, item in aligned(fitted, pattern) if is_any(item)}
    return not any(b == other for axis in anywhere for _, other in bound_on_axis(fitted, axis))


def check_whole_operands(call: Call) -> None:
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
        whole = whole_extent(s, axis)
        for other in range(d.rank):
            if _counts_another(s, axis, d, other):
                continue
            cut = bound_on_axis(d, other) or bound_on_axis(s, axis)
            if cut and (whole_extent(d, other) == whole or _tokens_of(d, other) == size):
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


def check_scales(call: Call) -> None:
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
