"""Reductions, scans, sorting and top-k along axes."""

from __future__ import annotations

from typing import Any

from layoutcheck.domains import Factor, feature, holds_padding, is_token_like, permuted
from layoutcheck.infer.calls.call import MERGED, Call, Result, dim_of
from layoutcheck.layouts import Axis, Layout, bound_on_axis, extent_of, layout, replace
from layoutcheck.symbols import Size, smin
from layoutcheck.transforms.registry import register
from layoutcheck.transforms.views import Sources, back_same, self_of


def _dims(call: Call, of: Layout) -> list[int]:
    value = call.get("dim") if call.has("dim") else None
    if value is None or value == []:
        return list(range(of.rank))
    dims = value if isinstance(value, list) else [value]
    out = []
    for d in dims:
        if isinstance(d, int):
            i = d + of.rank if d < 0 else d
            if 0 <= i < of.rank:
                out.append(i)
            elif of.rank and not any(x.code == "LC903" for x in call.issues):
                call.issue("LC903", f"there is no axis {d} of {{0}}: dim is out of range", self_of(call)[0])
    return sorted(set(out))


def need_whole(call: Call, slot: int, of: Layout, dim: int, what: str) -> bool:
    """Issue LC106 where an axis that an op runs along is sharded."""
    cuts = bound_on_axis(of, dim)
    if not cuts:
        return True
    group = call.ctx.group(tuple(m for m, _ in cuts))
    kind = "tokens" if is_token_like(cuts[0][1].domain) else "features"
    call.issue("LC106", f"{what} all {kind} of an axis on which {{0}} is sharded over {group}", slot)
    return False


def check_pending(call: Call, slot: int, of: Layout, param: str) -> None:
    """Issue where a pending sum goes into an op that is not linear in it."""
    if of.partial and param not in call.rule.linear and param not in call.rule.additive:
        m = of.partial[0]
        group = call.ctx.group((m,))
        if of.is_mixed(m):
            call.issue("LC203", f"over {group} {{0}} adds up different tokens", slot)
        else:
            call.issue(
                "LC201",
                f"{{0}} is a pending sum over {group} and goes into an op that is not linear in it",
                slot,
            )


def check_padding(call: Call, slot: int, of: Layout, dim: int) -> None:
    """Padding rows take part in a reduction over tokens unless a mask holds them off."""
    for f in of.axes[dim]:
        if holds_padding(f.domain):
            call.issue(
                "LC402",
                "{0} has padding rows on this axis, reduced with the tokens: mask them, or cut them off",
                slot,
            )
            return


def _back_reduce(call: Call, outs: Any, output: int, axis: int, inner: Size) -> Sources | None:
    slot, of = self_of(call)
    dims = _dims(call, of)
    if call.get("keepdim", False):
        return None if axis in dims else [(slot, axis, inner)]
    kept = [i for i in range(of.rank) if i not in dims]
    return [(slot, kept[axis], inner)] if axis < len(kept) else None


def _summed_reduce(call: Call) -> list[list[tuple[int, int, Size]]]:
    slot, of = self_of(call)
    if call.get("kind") != "sum":
        return []
    return [[(slot, d, of.shape[d])] for d in _dims(call, of) if of.axes[d]]


@register("reduce", back=_back_reduce, summed=_summed_reduce)
def reduce(call: Call) -> Result:
    """Sum, mean, max, ... over axes. A sum over a shard is a pending sum; everything else needs the axis whole."""
    slot, of = self_of(call)
    dims = _dims(call, of)
    kind = call.get("kind", "whole")
    check_pending(call, slot, of, call.name("self"))
    bound = dict(of.bound_map)
    partial = list(of.partial)
    summed = [m for d in dims for m, _ in bound_on_axis(of, d)] if kind == "sum" else []
    for m in sorted({m for m in summed if summed.count(m) > 1}):
        text = (
            f"over {call.ctx.group((m,))} {{0}} is sharded along two axes at once, and both are summed over"
        )
        call.issue("LC203", text, slot, hints=("mixed",))
    for d in dims:
        check_padding(call, slot, of, d)
        cuts = bound_on_axis(of, d)
        if not cuts:
            continue
        if kind == "sum":
            for m, b in cuts:
                if m in of.partial:
                    call.issue(
                        "LC201",
                        f"a pending sum over {call.ctx.group((m,))} is summed over a shard of the same group",
                        slot,
                    )
                left = tuple(x for x in bound[m] if x is not b)
                if left:
                    bound[m] = left
                else:
                    bound.pop(m)
                partial.append(m)
        elif MERGED in call.params:
            # the shard's own extreme stays that rank's: a factor on no axis
            continue
        else:
            need_whole(call, slot, of, d, "reduces over")
    keep = call.get("keepdim", False)
    axes = tuple(() if i in dims else axis for i, axis in enumerate(of.axes) if keep or i not in dims)
    # torch's truth values were of uint8 once, and still come out as such
    dtype = "uint8" if kind == "truth" and of.dtype == "uint8" else call.dtype(of.dtype)
    out = layout(dtype, axes, bound, tuple(sorted(set(partial))))
    if call.get("outputs") == 2:
        return call.result(out, out)
    if call.get("indices"):
        index = layout("int64", axes, bound, (), _points(of, dims))
        return call.result(out, index)
    return call.result(out)


def _points(of: Layout, dims: list[int]) -> tuple[Any, ...] | None:
    """What positions along an axis point into."""
    if len(dims) != 1 or not of.axes[dims[0]]:
        return None
    return ("into", of.axes[dims[0]])


@register("argmax", back=_back_reduce)
def argmax(call: Call) -> Result:
    """Positions of the greatest (least) element."""
    slot, of = self_of(call)
    dims = _dims(call, of)
    check_pending(call, slot, of, call.name("self"))
    for d in dims:
        need_whole(call, slot, of, d, "compares")
    keep = call.get("keepdim", False)
    axes = tuple(() if i in dims else axis for i, axis in enumerate(of.axes) if keep or i not in dims)
    return call.result(layout("int64", axes, of.bound_map, (), _points(of, dims)))


@register("scan", back=back_same)
def scan(call: Call) -> Result:
    """cumsum, softmax, ...: the shape is kept, each element depends on the others of the axis."""
    slot, of = self_of(call)
    dim = dim_of(call, "dim", of.rank, -1)
    check_pending(call, slot, of, call.name("self"))
    if dim >= 0 and of.axes[dim]:
        need_whole(call, slot, of, dim, "runs over")
    out = replace(of, dtype=call.dtype(of.dtype), value=None)
    if call.get("indices"):
        return call.result(out, replace(out, dtype="int64", value=_points(of, [dim]) if dim >= 0 else None))
    return call.result(out)


def _order_domain(of: Layout, dim: int, label: str) -> Axis:
    axis = of.axes[dim]
    if not axis or all(f.domain.is_feature for f in axis):
        return axis
    return (permuted(axis, extent_of(axis), label).whole,)


def _inverse(of: Layout, dim: int) -> Layout | None:
    """The inverse of a permutation, which sorting it gives: for each row the place that it went to."""
    axis = of.axes[dim]
    if len(axis) != 1 or axis[0].domain.kind != "permuted" or of.value != ("into", axis[0].domain.args):
        return None
    return replace(of, axes=(*of.axes[:dim], axis[0].domain.args, *of.axes[dim + 1 :]), value=("into", axis))


def _back_sort(call: Call, outs: Any, output: int, axis: int, inner: Size) -> Sources | None:
    slot, of = self_of(call)
    return None if axis == dim_of(call, "dim", of.rank, -1) else [(slot, axis, inner)]


@register("sort", back=_back_sort)
def sort(call: Call) -> Result:
    """Sorted values and their positions. Rows of a rank's own may be sorted among themselves (a routed round trip)."""
    slot, of = self_of(call)
    dim = dim_of(call, "dim", of.rank, -1)
    check_pending(call, slot, of, call.name("self"))
    if dim < 0:
        return call.result(of, replace(of, dtype="int64"))
    if any(b.domain.is_feature for _, b in bound_on_axis(of, dim)):
        need_whole(call, slot, of, dim, "sorts")
    inverse = _inverse(of, dim)
    if inverse is not None:
        index = replace(inverse, dtype="int64")
        return (
            call.result(index)
            if call.get("only") == "indices"
            else call.result(replace(index, value=None), index)
        )
    # A share of rows sorted by what they hold is a permutation of that share: the domain says so.
    axis = _order_domain(of, dim, "sorted")
    axes = (*of.axes[:dim], axis, *of.axes[dim + 1 :])
    values = replace(of, axes=axes, value=of.value)
    index = layout("int64", axes, of.bound_map, (), ("into", of.axes[dim]))
    if call.get("only") == "indices":
        return call.result(index)
    return call.result(values, index)


def _back_topk(call: Call, outs: Any, output: int, axis: int, inner: Size) -> Sources | None:
    slot, of = self_of(call)
    dim = dim_of(call, "dim", of.rank, -1)
    return None if axis == dim else [(slot, axis, inner)]


@register("topk", back=_back_topk)
def topk(call: Call) -> Result:
    """The k greatest along an axis and their positions; the axis must be whole."""
    slot, of = self_of(call)
    dim = dim_of(call, "dim", of.rank, -1)
    k = call.get("k")
    check_pending(call, slot, of, call.name("self"))
    if dim < 0 or k is None or isinstance(k, Layout):
        return call.result(of, replace(of, dtype="int64"))
    check_padding(call, slot, of, dim)
    merged = MERGED in call.params and all(b.domain.is_feature for _, b in bound_on_axis(of, dim))
    if not merged:
        need_whole(call, slot, of, dim, "compares")
    total = of.shape[dim]
    size = (
        k
        if isinstance(k, int) and not isinstance(total, int)
        else smin(k, total)
        if not isinstance(k, int)
        else k
    )
    axes = (*of.axes[:dim], (feature(size).whole,), *of.axes[dim + 1 :])
    bound = dict(of.bound_map) if merged else _without_axis(of, dim)
    values = layout(of.dtype, axes, bound, of.partial)
    index = layout("int64", axes, bound, (), ("into", of.axes[dim]) if of.axes[dim] else None)
    return call.result(values, index)


def _without_axis(of: Layout, dim: int) -> dict[int, tuple[Factor, ...]]:
    gone = {b for _, b in bound_on_axis(of, dim)}
    return {m: tuple(b for b in fs if b not in gone) for m, fs in of.bound}


@register("histogram")
def histogram(call: Call) -> Result:
    """Counts per bin over a rank's own rows; rows of several ranks make a pending sum of counts, used by each for itself."""
    slot, of = self_of(call)
    bins = call.get("bins", 0)
    size = bins if isinstance(bins, int) and bins else 1
    check_pending(call, slot, of, call.name("self"))
    del slot
    return call.result(layout(call.dtype(of.dtype), ((feature(size).whole,),), of.bound_map))


@register("diff")
def diff(call: Call) -> Result:
    """Differences of neighbours along an axis: one element fewer, unless something is put in front."""
    slot, of = self_of(call)
    dim = dim_of(call, "dim", of.rank, -1)
    if dim < 0 or not of.axes[dim]:
        return call.result(of)
    need_whole(call, slot, of, dim, "compares neighbours of")
    extra = 0
    for side in ("prepend", "append"):
        more = call.tensor(side)
        if more is not None and more.rank == of.rank:
            extra = extra + more.shape[dim]  # type: ignore[assignment]
    if extra == 1:
        return call.result(replace(of, value=None))
    size = of.shape[dim] + extra - 1
    axes = (*of.axes[:dim], (feature(size).whole,), *of.axes[dim + 1 :])
    return call.result(replace(of, axes=axes, value=None))
