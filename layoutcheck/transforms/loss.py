"""Losses over classes: the classes of a row are read together, and the rows are added up."""

from __future__ import annotations

from layoutcheck.infer.calls.call import Call, Result
from layoutcheck.infer.calls.compare import compare_axes, strength
from layoutcheck.infer.calls.states import join_bound
from layoutcheck.layouts import Axis, Layout, bound_on_axis, layout, replace
from layoutcheck.transforms.reduce import check_padding, check_pending, need_whole
from layoutcheck.transforms.registry import register

# torch's numbers for what becomes of the rows' losses
_NONE, _SUM = 0, 2


@register("loss")
def loss(call: Call) -> Result:
    """`self [n, c, d..]` (or `[c]`) against `target [n, d..]`: one loss a row, their mean, or their sum.

    A sum over a share of the rows is a pending sum; a mean needs all rows.
    """
    of, target = call.tensor("self"), call.tensor("target")
    if of is None or target is None or of.rank == 0:
        return call.result(layout("float32", ()))
    slot, target_slot = call.slot("self"), call.slot("target")
    check_pending(call, slot, of, call.name("self"))
    classes = 0 if of.rank == 1 else 1
    need_whole(call, slot, of, classes, "compares")
    rows = [i for i in range(of.rank) if i != classes]
    axes: list[Axis] = []
    for k, i in enumerate(rows):
        own = of.axes[i]
        other = target.axes[k] if target.rank == len(rows) else own
        if own and other and target.rank == len(rows):
            pair = (slot, of, i), (target_slot, target, k)
            first, second = pair if strength(own) >= strength(other) else pair[::-1]
            compare_axes(call, first, second)
        axes.append(own or other)
    bare = replace(of, axes=tuple(axes))
    bound = join_bound(call, [("self", slot, bare), ("target", target_slot, target)])
    reduction = call.get("reduction", 1)
    # a look-up of log-probabilities is linear in them
    partial = of.partial if call.name("self") in call.rule.linear else ()
    out = layout(call.dtype(of.dtype), tuple(axes), bound, partial)
    if reduction != _NONE:
        out = _added(call, slot, out, mean=reduction != _SUM)
    return call.result(out)


def _added(call: Call, slot: int, rows: Layout, mean: bool) -> Layout:
    """The rows' losses as one number."""
    bound = dict(rows.bound_map)
    partial = set(rows.partial)
    for i in range(rows.rank):
        check_padding(call, slot, rows, i)
        if mean:
            need_whole(call, slot, rows, i, "takes the mean over")
        for m, b in bound_on_axis(rows, i):
            bound[m] = tuple(x for x in bound[m] if x is not b)
            if not mean:
                partial.add(m)
    return layout(rows.dtype, (), {m: fs for m, fs in bound.items() if fs}, tuple(sorted(partial)))
