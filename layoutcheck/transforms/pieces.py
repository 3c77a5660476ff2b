"""Cutting axes: slice, narrow, select; what one piece of an axis is."""

from __future__ import annotations

from typing import Any

from layoutcheck.domains import (
    Digit,
    Domain,
    Factor,
    anything,
    factor,
    opaque,
    pick,
    ranged,
)
from layoutcheck.infer.calls.call import CONSTANT, PIECE, UNMASKED, Call, Result, dim_of
from layoutcheck.infer.calls.regroup import Cuts, regroup
from layoutcheck.layouts import Axis, Layout, bound_on_axis, extent_of, replace
from layoutcheck.symbols import Size, cdiv, divide_exact, smin
from layoutcheck.transforms.rank_shares import (
    axis_digit,
    bound_of_slice,
    interleaved_share,
    is_another_ranks,
    known_le,
    rank_share,
    resized,
    share_groups,
    short_share,
    take_share,
    with_axis,
)
from layoutcheck.transforms.registry import register
from layoutcheck.transforms.views import Sources, self_of


def cut(call: Call, slot: int, of: Layout, dim: int, start: Size, stop: Size, step: int = 1) -> Layout:
    """The layout of `of[start:stop:step]` along `dim`, sizes already counted from the front."""
    axis = of.axes[dim]
    total = extent_of(axis)
    bounds = call.ctx.bounds
    if step != 1:
        if start == 0 and known_le(total, stop, bounds):
            count = cdiv(total, step)
        else:
            count = cdiv(stop - start if known_le(stop, total, bounds) else total - start, step)
        return _strided(call, of, dim, start, step, count)
    if start == 0 and known_le(total, stop, bounds):
        return of
    if known_le(stop, start, bounds):
        return _empty(call, slot, of, dim, start, stop, 0)
    asked = stop - start
    if known_le(total, start, bounds):
        return _empty(call, slot, of, dim, start, stop, asked)
    # rows behind the end are not there: what is left of a share is short, until it is padded
    lacking = all(isinstance(n, int) for n in (start, asked, total)) and not known_le(
        start + asked, total, bounds
    )
    stacked = _stacked_piece(call, slot, of, dim, start, asked)
    if stacked is not None:
        return stacked
    share = None
    if not lacking and not _cuts_padding_off(of, dim, start, asked):
        share = rank_share(call, of, dim, start, asked)
    if share is not None:
        return share
    if not known_le(stop, total, bounds):
        stop = smin(stop, total) if known_le(start, total, bounds) else total
    length = stop - start
    if isinstance(length, int) and length <= 0:
        return _empty(call, slot, of, dim, start, stop, asked)
    if length == total:
        return of
    if isinstance(length, int) and (length != asked or start + length == total):
        short = short_share(call, of, dim, start, asked, length)
        if short is not None:
            return short
    if all(f.domain.is_feature for f in axis):
        new_axis, bound = resized(of, dim, length)
        if new_axis[0].domain.kind == "any" and PIECE not in call.params:
            new_axis = (anything(length, (start, total)).whole,)
        return replace(of, axes=(*of.axes[:dim], new_axis, *of.axes[dim + 1 :]), bound=bound)
    digit = axis_digit(axis)
    assert digit is not None
    if digit.is_whole and digit.domain.kind == "pad" and start == 0 and length == digit.domain.args[0].extent:
        return replace(of, axes=(*of.axes[:dim], (digit.domain.args[0].whole,), *of.axes[dim + 1 :]))
    if digit.domain.kind == "iota" and digit.is_whole and start == 0:
        from layoutcheck.domains import iota

        return replace(of, axes=(*of.axes[:dim], (iota(length).whole,), *of.axes[dim + 1 :]))
    piece = concat_piece(digit, start, length)
    if piece is not None:
        return replace(of, axes=(*of.axes[:dim], piece, *of.axes[dim + 1 :]))
    return with_axis(of, dim, (ranged(digit, start, length).whole,))


def _stacked_piece(call: Call, slot: int, of: Layout, dim: int, start: Size, length: Size) -> Layout | None:
    """One of several pieces that stand one after another, as a gather leaves them where it is another axis that is sharded."""
    axis = of.axes[dim]
    if not axis or all(f.domain.is_feature for f in axis):
        return None
    lead = axis[0]
    digit = not lead.is_whole and any(
        f.domain is lead.domain for i, a in enumerate(of.axes) if i != dim for f in a
    )
    if not digit and (len(axis) < 2 or not lead.domain.is_feature or bound_on_axis(of, dim)):
        return None
    count, at = divide_exact(extent_of(axis), length), divide_exact(start, length)
    if not isinstance(count, int) or not isinstance(at, int) or at >= count:
        return None
    parts = regroup(axis, [count, length], {})
    if parts is None or not parts[0]:
        return None
    if any(
        f.domain is not lead.domain if digit else not (f.domain.is_feature and f.is_whole) for f in parts[0]
    ):
        return None
    return split_equal(call, slot, of, dim, count, length)[at]


def _cuts_padding_off(of: Layout, dim: int, start: Size, length: Size) -> bool:
    """Whether a slice takes the tokens off their padding, where it could as well be a rank's share (one token, T == share).

    What was padded just now is padded in order to be shared; what was gathered is cut back.
    """
    axis = of.axes[dim]
    if len(axis) != 1 or not axis[0].is_whole or axis[0].domain.kind != "pad" or start != 0:
        return False
    return axis[0].domain.args[0].extent == length and of.value != ("padded",)


def concat_piece(digit: Factor, start: Size, length: Size) -> Axis | None:
    """One of the parts of a concatenation, where a slice takes exactly that."""
    if digit.domain.kind != "concat" or not digit.is_whole:
        return None
    at: Size = 0
    for part in digit.domain.args:
        size = extent_of(part)
        if at == start and size == length:
            return part  # type: ignore[no-any-return]
        at = at + size
    return None


def _strided(call: Call, of: Layout, dim: int, start: Size, step: int, count: Size) -> Layout:
    axis = of.axes[dim]
    if all(f.domain.is_feature for f in axis):
        new_axis, bound = resized(of, dim, count)
        return replace(of, axes=(*of.axes[:dim], new_axis, *of.axes[dim + 1 :]), bound=bound)
    share = interleaved_share(call, of, dim, start, step, count)
    return share or with_axis(of, dim, (opaque("every", count, (axis, start, step)).whole,))


def _empty(call: Call, slot: int, of: Layout, dim: int, start: Size, stop: Size, asked: Size) -> Layout:
    """A slice that holds nothing: right where it is the last ranks' share of a ceil split, else a loss of tokens."""
    axis = of.axes[dim]
    if not all(f.domain.is_feature for f in axis):
        short = short_share(call, of, dim, start, asked, 0)
        if short is not None:
            return short
        total = extent_of(axis)
        cuts = bound_on_axis(of, dim)
        hint = (
            f"; {{0}} is this rank's share over {call.ctx.group(tuple(m for m, _ in cuts))} already: do not slice it again"
            if cuts
            else ""
        )
        call.issue("LC403", f"rows {start}:{stop} of {total} are empty, every token is lost{hint}", slot)
        return of
    new_axis, bound = resized(of, dim, 0)
    return replace(of, axes=(*of.axes[:dim], new_axis, *of.axes[dim + 1 :]), bound=bound)


def back_cut(call: Call, outs: Any, output: int, axis: int, inner: Size) -> Sources | None:
    slot, of = self_of(call)
    dim = dim_of(call, "dim", of.rank, 0)
    if axis == dim and outs[output].shape[axis] != of.shape[axis]:
        if is_another_ranks(call, of, dim, outs[output].shape[axis]):
            return None
        # A piece of a fused axis: every piece is sharded by itself.
        return [(slot, axis, of.shape[axis] if inner == outs[output].shape[axis] else inner)]
    return [(slot, axis, inner)]


@register("slice", back=back_cut, is_view=True)
def slice_(call: Call) -> Result:
    """self[start:end:step] along dim."""
    slot, of = self_of(call)
    dim = dim_of(call, "dim", of.rank, 0)
    if dim < 0:
        return call.result(of)
    total = of.shape[dim]
    start = bound_of_slice(call.get("start"), total, 0, call.ctx.bounds)
    stop = bound_of_slice(call.get("end"), total, total, call.ctx.bounds)
    step = call.get("step", 1)
    return call.result(
        cut(call, slot, of, dim, start, stop, step if isinstance(step, int) and step > 0 else 1)
    )


@register("narrow", back=back_cut, is_view=True)
def narrow(call: Call) -> Result:
    """`length` elements from `start` along dim."""
    slot, of = self_of(call)
    dim = dim_of(call, "dim", of.rank, 0)
    if dim < 0:
        return call.result(of)
    start = bound_of_slice(call.get("start"), of.shape[dim], 0, call.ctx.bounds)
    length = call.get("length")
    if length is None or isinstance(length, Layout):
        return call.result(of)
    return call.result(cut(call, slot, of, dim, start, start + length))


def back_select(call: Call, outs: Any, output: int, axis: int, inner: Size) -> Sources | None:
    slot, of = self_of(call)
    dim = dim_of(call, "dim", of.rank, 0)
    return [(slot, axis + (axis >= dim), inner)]


def element(call: Call, slot: int, of: Layout, dim: int, index: Any) -> Layout:
    """One element of an axis; the axis goes. A piece of a token axis is remembered only where the axis stays."""
    axis = of.axes[dim]
    cuts = bound_on_axis(of, dim)
    axes = of.axes[:dim] + of.axes[dim + 1 :]
    bound = dict(of.bound_map)
    share = None if cuts else _row_of_ranks(call, of, dim, index)
    if share is not None:
        return share
    if cuts and extent_of(axis) != 1:
        # Each rank picks an element of its own share.
        group = call.ctx.group(tuple(m for m, _ in cuts))
        if any(not f.domain.is_feature for f in axis):
            call.issue(
                "LC108",
                f"element {index} is a position among all tokens, {{0}} holds one rank's share over {group}",
                slot,
            )
            for m, b in cuts:
                bound[m] = tuple(x for x in bound[m] if x is not b)
    elif axis and dim < len(axes) and extent_of(axis) == 1:
        axes = (*axes[:dim], axis + axes[dim], *axes[dim + 1 :])
    elif axis and axes and extent_of(axis) == 1:
        axes = (*axes[:-1], axes[-1] + axis)
    return replace(of, axes=axes, bound=bound)


def _row_of_ranks(call: Call, of: Layout, dim: int, index: Any) -> Layout | None:
    """`x.view(p, n, ..)[rank]`: the major digit of the tokens, at this rank's place, is this rank's share."""
    axis = of.axes[dim]
    if len(axis) != 1 or not isinstance(index, int) or isinstance(index, bool) or CONSTANT in call.params:
        return None
    lead = axis[0]
    if lead.domain.is_feature or lead.stride == 1 or lead.domain.kind in ("pick", "iota", "any"):
        return None
    for group, number in share_groups(call, of):
        if lead.extent != group.size:
            continue
        at = index + lead.extent if index < 0 and isinstance(lead.extent, int) else index
        if number is None:
            call.want("rank", -1, None, data=(group.axes, at))
            number = at
        if at != number:
            continue
        taken = take_share(lead, group, 1, [call.ctx.mesh.size(m) for m in group.axes])
        if taken is None:
            continue
        bound = dict(of.bound_map)
        for m, b in taken[1].items():
            bound[m] = (*bound.get(m, ()), b)
        return replace(of, axes=of.axes[:dim] + of.axes[dim + 1 :], bound=bound, value=None)
    return None


@register("select", back=back_select, is_view=True)
def select(call: Call) -> Result:
    """Element `index` along dim."""
    slot, of = self_of(call)
    dim = dim_of(call, "dim", of.rank, 0)
    if dim < 0:
        return call.result(of)
    return call.result(element(call, slot, of, dim, call.get("index")))


def split_equal(call: Call, slot: int, of: Layout, dim: int, count: int, each: Size) -> list[Layout]:
    """`count` equal pieces of an axis, remembered as pieces so that joining them again gives the axis."""
    axis = of.axes[dim]
    if all(f.domain.is_feature for f in axis):
        new_axis, bound = resized(of, dim, each)
        one = replace(of, axes=(*of.axes[:dim], new_axis, *of.axes[dim + 1 :]), bound=bound)
        return [one] * count
    parts = regroup(axis, [count, each], {})
    if parts is not None and parts[0] and all(f.domain.is_feature for f in parts[0]):
        # what stands in front of the tokens is a feature (pieces that were stacked): each piece has all of these tokens
        return [replace(of, axes=(*of.axes[:dim], parts[1], *of.axes[dim + 1 :]), value=None)] * count
    found = equal_pieces(axis, count, each)
    if found is None:
        digit = axis_digit(axis)
        assert digit is not None
        return [with_axis(of, dim, (ranged(digit, each * i, each).whole,)) for i in range(count)]
    outs = []
    for piece, fixed in found:
        # Other axes may hold digits of the same domain; they belong to this piece as well.
        others = [_picked(a, fixed) for a in of.axes]
        elsewhere = {f.domain for i, a in enumerate(others) if i != dim for f in a}
        # a piece of one element, with the tokens on another axis, is a batch of one
        others[dim] = () if extent_of(piece) == 1 and all(f.domain in elsewhere for f in piece) else piece
        outs.append(replace(of, axes=tuple(others), value=UNMASKED if of.value == UNMASKED else None))
    return outs


Fixed = dict[Domain, tuple[Digit, ...]]


def _picked(axis: Axis, fixed: Fixed) -> Axis:
    return tuple(
        factor(pick(f.domain, fixed[f.domain]), f.stride, f.extent) if f.domain in fixed else f for f in axis
    )


def equal_pieces(axis: Axis, count: int, each: Size) -> list[tuple[Axis, Fixed]] | None:
    """`count` equal pieces of an axis, and which digits of which domain each fixes; None where digits do not divide so."""
    cuts: Cuts = {}
    parts = regroup(axis, [count, each], cuts)
    if parts is None:
        return None
    front, rest = parts
    if not rest:
        last = axis[-1]
        rest = (factor(last.domain, last.stride, 1),)
    if any(f.domain.is_feature and f.is_whole for f in front) or any(
        not isinstance(f.extent, int) for f in front
    ):
        return None
    out = []
    for i in range(count):
        fixed: Fixed = {}
        left = i
        for f in reversed(front):
            n = f.extent
            assert isinstance(n, int)
            fixed[f.domain] = (*fixed.get(f.domain, ()), (f.stride, n, left % n))
            left //= n
        out.append((_picked(rest, fixed), fixed))
    return out
