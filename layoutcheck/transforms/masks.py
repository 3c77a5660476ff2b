"""Elements of one tensor or another: masked_fill, where."""

from __future__ import annotations

from typing import Any

from layoutcheck.infer.calls.call import Call, Result
from layoutcheck.infer.calls.elementwise import broadcast_axes, promote
from layoutcheck.infer.calls.states import is_zero, join_bound, join_partial
from layoutcheck.layouts import Layout, layout, partner_axis
from layoutcheck.symbols import Size
from layoutcheck.transforms.reduce import check_pending
from layoutcheck.transforms.registry import register
from layoutcheck.transforms.views import Sources, back_same, self_of

Operand = tuple[str, int, Layout]


def masked(call: Call, slot: int, of: Layout, to_zero: bool) -> Layout:
    """A tensor with some elements replaced. Zeros in the place of rows that another rank holds make a pending sum."""
    bound = dict(of.bound_map)
    partial = list(of.partial)
    if to_zero:
        for m, fs in of.bound:
            off = tuple(b for b in fs if b.domain.is_feature and partner_axis(of, b) is None)
            if off:
                left = tuple(b for b in fs if b not in off)
                if left:
                    bound[m] = left
                else:
                    bound.pop(m)
                partial.append(m)
    elif of.partial:
        call.issue(
            "LC201",
            f"{{0}} is a pending sum over {call.ctx.group(of.partial)}; elements are replaced on every rank",
            slot,
        )
    return layout(of.dtype, of.axes, bound, tuple(sorted(set(partial))))


@register("masked_fill", back=back_same)
def masked_fill(call: Call) -> Result:
    """Elements replaced by a number where a mask holds."""
    slot, of = self_of(call)
    mask = call.tensor("mask")
    value = call.get("value")
    zero = value == 0 or (isinstance(value, Layout) and is_zero(value))
    operands: list[Operand] = [("self", slot, of)]
    if mask is not None:
        operands.append(("mask", call.slot("mask"), mask))
    axes = broadcast_axes(call, operands)
    bound = join_bound(call, operands)
    if mask is not None and mask.partial:
        check_pending(call, call.slot("mask"), mask, "mask")
    out = masked(call, slot, layout(of.dtype, axes, bound, of.partial), zero)
    if call.rule.mutates:
        return call.result(out, mutated={slot: out})
    return call.result(out)


def _back_where(call: Call, outs: Any, output: int, axis: int, inner: Size) -> Sources | None:
    out: Layout = outs[output]
    sources: Sources = []
    for param, slot, of in call.tensors():
        at = axis - (out.rank - of.rank)
        if (
            at >= 0
            and of.axes[at]
            and param != call.name("condition")
            and not all(f.domain.kind == "any" for f in of.axes[at])
        ):
            sources.append((slot, at, inner))
    return sources or None


@register("where", back=_back_where)
def where(call: Call) -> Result:
    """Elements of one tensor or another. With zeros on one side it is linear in the other."""
    operands = list(call.tensors())
    axes = broadcast_axes(call, operands)
    names = {call.name("self"), call.name("other")}
    branches = [(p, s, of) for p, s, of in operands if p in names]
    numbers = [call.get(n) for n in ("self", "other") if not isinstance(call.get(n), Layout)]
    bound = join_bound(call, operands)
    zero = any(is_zero(of) for _, _, of in branches) or any(
        n == 0 for n in numbers if isinstance(n, (int, float))
    )
    condition = [(p, s, of) for p, s, of in operands if p not in names]
    for p, s, of in condition:
        check_pending(call, s, of, p)
    data = [b for b in branches if not is_zero(b[2])]
    dtype = promote([of for _, _, of in branches]) if branches else "float32"
    if data and len(data) == 1:
        _, slot, of = data[0]
        off_axis = any(b.domain.is_feature and partner_axis(of, b) is None for _, fs in of.bound for b in fs)
        merged = layout(dtype, axes, bound, of.partial)
        if zero and (of.partial or off_axis):
            return call.result(masked(call, slot, merged, True))
        if of.partial:
            call.issue(
                "LC201",
                f"{{0}} is a pending sum over {call.ctx.group(of.partial)}; where is linear in it only against 0",
                slot,
            )
        return call.result(merged)
    partial = join_partial(call, branches, (), names, bound) if branches else ()
    return call.result(layout(dtype, axes, bound, partial))
