"""Axes in another order, of extent one, or repeated: permute, transpose, squeeze, expand, repeat."""

from __future__ import annotations

from typing import Any

from layoutcheck.domains import anything, feature, repeated
from layoutcheck.infer.calls.call import Call, Result, dim_of
from layoutcheck.infer.calls.compare import is_wild
from layoutcheck.layouts import Axis, Layout, bound_on_axis, extent_of, replace
from layoutcheck.symbols import Size, divide_exact
from layoutcheck.transforms.registry import register
from layoutcheck.transforms.views import Sources, numel, self_of, sizes_of


def _permutation(call: Call, of: Layout) -> list[int]:
    dims = call.get("dims")
    if not isinstance(dims, list):
        return list(range(of.rank))
    out = [d + of.rank if isinstance(d, int) and d < 0 else d for d in dims]
    if all(isinstance(d, int) for d in out) and sorted(out) == list(range(of.rank)):
        return out
    call.issue("LC903", f"{dims} is no order of the axes of {{0}}", self_of(call)[0])
    return list(range(of.rank))


def _in_order(of: Layout, order: list[int]) -> Layout:
    """The layout with its axes in another order."""
    return replace(of, axes=tuple(of.axes[d] for d in order))


def _back_permute(call: Call, outs: Any, output: int, axis: int, inner: Size) -> Sources | None:
    slot, of = self_of(call)
    return [(slot, _permutation(call, of)[axis], inner)]


@register("permute", back=_back_permute, is_view=True)
def permute(call: Call) -> Result:
    """Axes in another order."""
    _slot, of = self_of(call)
    return call.result(_in_order(of, _permutation(call, of)))


def _swapped(call: Call, of: Layout) -> tuple[int, int]:
    if not call.has("dim0"):
        return (0, 1) if of.rank == 2 else (0, 0)
    return dim_of(call, "dim0", of.rank, 0), dim_of(call, "dim1", of.rank, 0)


def _back_transpose(call: Call, outs: Any, output: int, axis: int, inner: Size) -> Sources | None:
    slot, of = self_of(call)
    a, b = _swapped(call, of)
    return [(slot, {a: b, b: a}.get(axis, axis), inner)]


@register("t", back=_back_transpose, is_view=True)
@register("transpose", back=_back_transpose, is_view=True)
def transpose(call: Call) -> Result:
    """Two axes swapped; without arguments, a matrix transposed."""
    _slot, of = self_of(call)
    a, b = _swapped(call, of)
    if min(a, b) < 0 or of.rank < 2:
        return call.result(of)
    axes = list(of.axes)
    axes[a], axes[b] = axes[b], axes[a]
    return call.result(replace(of, axes=tuple(axes)))


def _back_unsqueeze(call: Call, outs: Any, output: int, axis: int, inner: Size) -> Sources | None:
    slot, of = self_of(call)
    dim = dim_of(call, "dim", of.rank + 1)
    return None if axis == dim else [(slot, axis - (axis > dim), inner)]


@register("unsqueeze", back=_back_unsqueeze, is_view=True)
def unsqueeze(call: Call) -> Result:
    """A new axis of extent one."""
    _slot, of = self_of(call)
    dim = max(dim_of(call, "dim", of.rank + 1), 0)
    return call.result(replace(of, axes=(*of.axes[:dim], (), *of.axes[dim:])))


def _squeezed(call: Call, of: Layout) -> list[int]:
    dim = call.get("dim")
    dims = dim if isinstance(dim, list) else [dim] if dim is not None else list(range(of.rank))
    wanted = {d + of.rank if isinstance(d, int) and d < 0 else d for d in dims}
    return [i for i in range(of.rank) if i in wanted and of.shape[i] == 1]


def _back_squeeze(call: Call, outs: Any, output: int, axis: int, inner: Size) -> Sources | None:
    slot, of = self_of(call)
    kept = [i for i in range(of.rank) if i not in set(_squeezed(call, of))]
    return [(slot, kept[axis], inner)]


@register("squeeze", back=_back_squeeze, is_view=True)
def squeeze(call: Call) -> Result:
    """Axes of extent one dropped. A unit token or head axis hands its digit on to the next axis."""
    _slot, of = self_of(call)
    dropped = set(_squeezed(call, of))
    axes: list[Axis] = []
    carried: Axis = ()
    for i, axis in enumerate(of.axes):
        if i in dropped:
            carried = carried + axis
            continue
        axes.append(carried + axis)
        carried = ()
    if carried and axes:
        axes[-1] = axes[-1] + carried
    return call.result(replace(of, axes=tuple(axes)))


def _back_expand(call: Call, outs: Any, output: int, axis: int, inner: Size) -> Sources | None:
    slot, of = self_of(call)
    at = axis - (outs[output].rank - of.rank)
    if at < 0 or of.shape[at] != outs[output].shape[axis]:
        return None
    return [(slot, at, inner)]


@register("expand", back=_back_expand, is_view=True)
def expand(call: Call) -> Result:
    """Axes of extent one repeated to a size; the size may be a token count, so such an axis fits any domain."""
    slot, of = self_of(call)
    sizes = sizes_of(call.get("size"))
    if sizes is None:
        return call.result(of)
    lead = len(sizes) - of.rank
    axes: list[Axis] = []
    for i, size in enumerate(sizes):
        own = of.axes[i - lead] if i >= lead else ()
        if size == -1 or extent_of(own) == size or (not isinstance(size, int) and own):
            if size != -1 and own and extent_of(own) != size:
                call.issue("LC101", f"{{0}} does not expand to {size}", slot)
            axes.append(own)
        elif not own or extent_of(own) == 1:
            axes.append((anything(size).whole,))
        else:
            stale = bound_on_axis(of, i - lead) or any(not f.domain.is_feature for f in own)
            call.issue(
                "LC101",
                f"the size {size} was written for another layout: {{0}} has {extent_of(own)} here"
                if stale
                else f"{{0}} does not expand to {size}",
                slot,
                hints=("literal",),
            )
            axes.append(own)
    return call.result(replace(of, axes=tuple(axes)))


def _back_repeat(call: Call, outs: Any, output: int, axis: int, inner: Size) -> Sources | None:
    slot, of = self_of(call)
    out: Layout = outs[output]
    at = axis - (out.rank - of.rank)
    return [(slot, at, inner)] if at >= 0 and of.shape[at] == out.shape[axis] else None


@register("repeat", back=_back_repeat)
def repeat(call: Call) -> Result:
    """The whole tensor over again, `repeats` times per axis."""
    _slot, of = self_of(call)
    times = sizes_of(call.get("repeats"))
    if times is None:
        return call.result(of)
    lead = len(times) - of.rank
    axes: list[Axis] = []
    for i, n in enumerate(times):
        own = of.axes[i - lead] if i >= lead else ()
        axes.append(own if n == 1 else _repeated(own, n, False))
    return call.result(replace(of, axes=tuple(axes)))


def _repeated(own: Axis, times: Size, interleaved: bool) -> Axis:
    if not own or extent_of(own) == 1:
        return (anything(times).whole,)
    if is_wild(own):
        return (anything(extent_of(own) * times).whole,)
    if interleaved:
        return (*own, feature(times).whole)
    return (feature(times).whole, *own)


def _back_repeated(call: Call, outs: Any, output: int, axis: int, inner: Size) -> Sources | None:
    slot, of = self_of(call)
    dim, n = dim_of(call, "dim", of.rank), call.get("repeats")
    if axis != dim or isinstance(n, Layout) or n is None:
        return [(slot, axis, inner)] if axis < of.rank and axis != dim else None
    left = divide_exact(inner, n)
    return [(slot, axis, left)] if left is not None else None


@register("repeat_interleave", back=_back_repeated)
def repeat_interleave(call: Call) -> Result:
    """Each element `repeats` times beside itself."""
    _slot, of = self_of(call)
    n = call.get("repeats")
    dim = dim_of(call, "dim", of.rank)
    if dim < 0 or n is None or isinstance(n, Layout):
        return call.result(replace(of, axes=((anything(numel(of)).whole,),)) if of.rank > 1 else of)
    axes = list(of.axes)
    own = axes[dim]
    if own and any(f.domain.is_feature for f in own) and bound_on_axis(of, dim):
        # heads repeated for grouped queries stay in their shard
        axes[dim] = (*own, feature(n).whole)
    elif len(own) == 1 and not own[0].domain.is_feature and own[0].extent != 1:
        axes[dim] = (repeated(own[0], n, True).whole,)
    else:
        axes[dim] = _repeated(own, n, True)
    return call.result(replace(of, axes=tuple(axes)))


def _order(call: Call, of: Layout) -> list[int]:
    """For each axis of the result the operand's axis that it is."""
    source, target = call.get("source"), call.get("destination")
    froms = source if isinstance(source, list) else [source]
    tos = target if isinstance(target, list) else [target]
    froms = [d % of.rank for d in froms if isinstance(d, int)]
    tos = [d % of.rank for d in tos if isinstance(d, int)]
    order: list[int | None] = [None] * of.rank
    for a, b in zip(froms, tos, strict=False):
        order[b] = a
    rest = iter(i for i in range(of.rank) if i not in froms)
    return [a if a is not None else next(rest) for a in order]


def _back_movedim(call: Call, outs: Any, output: int, axis: int, inner: Size) -> Sources | None:
    slot, of = self_of(call)
    return [(slot, _order(call, of)[axis], inner)]


@register("movedim", back=_back_movedim, is_view=True)
def movedim(call: Call) -> Result:
    """Axes moved to other places."""
    _slot, of = self_of(call)
    return call.result(_in_order(of, _order(call, of)))
