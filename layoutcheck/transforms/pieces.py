"""Cutting axes: slice, narrow, select, split, chunk, unbind."""

from __future__ import annotations

from typing import Any

from layoutcheck.domains import (
    Digit,
    Domain,
    Factor,
    anything,
    factor,
    feature,
    flat,
    opaque,
    padded,
    pick,
    ranged,
    split,
)
from layoutcheck.infer.calls.call import CONSTANT, ONLY, PIECE, PREFERRED, UNMASKED, Call, Result, dim_of
from layoutcheck.infer.calls.regroup import Cuts, regroup
from layoutcheck.layouts import Axis, Layout, bound_on_axis, extent_of, layout, replace
from layoutcheck.mesh import Group
from layoutcheck.symbols import Size, cdiv, divide_exact, floordiv, lower_bound, smax, smin
from layoutcheck.transforms.registry import register
from layoutcheck.transforms.views import Sources, _self

_END = 1 << 62


def known_le(a: Size, b: Size, bounds: Any) -> bool:
    """Whether a <= b for all values of the symbols."""
    if isinstance(a, int) and isinstance(b, int):
        return a <= b
    low = lower_bound(b - a, bounds)
    return low is not None and low >= 0


def with_axis(of: Layout, dim: int, axis: Axis, bound: dict[int, tuple[Factor, ...]] | None = None) -> Layout:
    """`of` with one axis replaced."""
    return replace(
        of,
        axes=(*of.axes[:dim], axis, *of.axes[dim + 1 :]),
        bound=bound,
        value=None if of.value else of.value,
    )


def axis_digit(axis: Axis) -> Factor | None:
    """An axis as one factor: itself, or the flat product of several."""
    if not axis:
        return None
    if len(axis) == 1:
        return axis[0]
    if all(f.domain.is_feature for f in axis):
        return None
    return flat(axis).whole


def resized(of: Layout, dim: int, extent: Size) -> tuple[Axis, dict[int, tuple[Factor, ...]]]:
    """A feature axis with another local extent; a shard stays a shard of what is then cut."""
    cuts = bound_on_axis(of, dim)
    bound = dict(of.bound_map)
    if not cuts:
        wild = bool(of.axes[dim]) and all(f.domain.kind == "any" for f in of.axes[dim])
        return ((anything(extent) if wild else feature(extent)).whole,), bound
    total: Size = extent
    for _, b in cuts:
        total = total * b.extent
    domain = feature(total)
    stride: Size = extent
    old = {b for _, b in cuts}
    for m, b in reversed(cuts):
        bound[m] = tuple(factor(domain, stride, b.extent) if x in old else x for x in bound[m])
        stride = stride * b.extent
    return (factor(domain, 1, extent),), bound


def share_groups(call: Call, of: Layout) -> list[tuple[Group, int | None]]:
    """Groups whose ranks could each hold a share of the value: not yet used by it, the one that is known first, then the smallest."""
    mesh = call.ctx.mesh
    out: list[tuple[Group, int | None]] = []
    seen = set()
    for group in [*mesh.groups.values(), *mesh.by_ranks.values()]:
        if not group.axes or group.axes in seen:
            continue
        seen.add(group.axes)
        if any(m in of.bound_map or m in mesh.quotient for m in group.axes):
            continue
        out.append((group, mesh.rank_in(group)))
    for axis in mesh.axes:
        if (axis.index,) not in seen and axis.index not in of.bound_map and axis.index not in mesh.quotient:
            out.append((Group(axis.name, (axis.index,), axis.size), mesh.coordinate(axis.index)))
    known = call.params.get(PREFERRED)
    out.sort(key=lambda entry: (entry[0].axes != known, len(entry[0].axes)))
    return out


def take_share(
    digit: Factor, group: Group, share: Size, sizes: list[Size]
) -> tuple[Factor, dict[int, Factor]] | None:
    """Cut a factor into equal shares over a group: the minor digit, and per mesh axis the digit that its rank selects."""
    total: Size = share
    for s in sizes:
        total = total * s
    if total != digit.extent:
        if not digit.is_whole:
            return None
        digit = padded(digit.domain, total).whole
    parts: dict[int, Factor] = {}
    minor = digit
    rest = digit.extent
    for m, s in zip(group.axes, sizes, strict=True):
        left = divide_exact(rest, s)
        if left is None:
            return None
        found = split(minor, left)
        if found is None:
            return None
        parts[m], minor = found
        rest = left
    return minor, parts


def rank_share(call: Call, of: Layout, dim: int, start: Size, length: Size) -> Layout | None:
    """The layout of a slice that is this rank's share over some group; None if it is no such slice."""
    if CONSTANT in call.params:
        return None
    axis = of.axes[dim]
    digit = axis_digit(axis)
    total = extent_of(axis)
    if all(f.domain.is_feature for f in axis):
        if PIECE in call.params:
            return None
        digit = (
            feature(total).whole
            if axis and not bound_on_axis(of, dim) and axis[0].domain.kind != "any"
            else None
        )
    if digit is None or length == total or length == 0:
        return None
    if digit.domain.kind in ("variable", "iota") and not digit.is_whole:
        return None
    for group, number in share_groups(call, of):
        if cdiv(total, group.size) != length and not (
            isinstance(group.size, int) and length == smax(1, cdiv(total, group.size))
        ):
            continue
        at: int | None
        if start == 0:
            at = 0
        else:
            found = divide_exact(start, length)
            at = found if isinstance(found, int) else None
        if at is None or (isinstance(group.size, int) and at >= group.size):
            continue
        if number is None:
            call.want("rank", -1, None, data=(group.axes, at))
            number = at
        if at != number:
            continue
        sizes = [call.ctx.mesh.size(m) for m in group.axes]
        cut = take_share(digit, group, length, sizes)
        if cut is None:
            continue
        minor, parts = cut
        bound = dict(of.bound_map)
        for m, b in parts.items():
            bound[m] = (*bound.get(m, ()), b)
        value = ("share", of.value) if of.value and of.value[0] == "iota" else None
        return replace(of, axes=(*of.axes[:dim], (minor,), *of.axes[dim + 1 :]), bound=bound, value=value)
    return None


def other_ranks_share(
    call: Call, of: Layout, dim: int, start: Size, length: Size
) -> tuple[Group, int] | None:
    """Whether a constant slice is exactly another rank's share: the group and that rank's number."""
    total = extent_of(of.axes[dim])
    for group, number in share_groups(call, of):
        if number is None or cdiv(total, group.size) != length:
            continue
        at = divide_exact(start, length)
        if isinstance(at, int) and at != number and (not isinstance(group.size, int) or at < group.size):
            return group, at
    return None


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
        short = _short_share(call, of, dim, start, asked, length)
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
    piece = _concat_piece(digit, start, length)
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
    return _split_equal(call, slot, of, dim, count, length)[at]


def _cuts_padding_off(of: Layout, dim: int, start: Size, length: Size) -> bool:
    """Whether a slice takes the tokens off their padding, where it could as well be a rank's share (one token, T == share).

    What was padded just now is padded in order to be shared; what was gathered is cut back.
    """
    axis = of.axes[dim]
    if len(axis) != 1 or not axis[0].is_whole or axis[0].domain.kind != "pad" or start != 0:
        return False
    return axis[0].domain.args[0].extent == length and of.value != ("padded",)


def _concat_piece(digit: Factor, start: Size, length: Size) -> Axis | None:
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
    share = _interleaved_share(call, of, dim, start, step, count)
    return share or with_axis(of, dim, (opaque("every", count, (axis, start, step)).whole,))


def _interleaved_share(
    call: Call, of: Layout, dim: int, start: Size, step: int, count: Size
) -> Layout | None:
    """Every p-th token from the rank's number on: the rank selects the minor digit of the tokens."""
    axis = of.axes[dim]
    if CONSTANT in call.params or len(axis) != 1 or not axis[0].is_whole or bound_on_axis(of, dim):
        return None
    domain = axis[0].domain
    for group, number in share_groups(call, of):
        if group.size != step or count * step != domain.extent or not isinstance(start, int) or start >= step:
            continue
        if number is None:
            call.want("rank", -1, None, data=(group.axes, start))
            number = start
        parts = split(axis[0], step)
        if number != start or parts is None:
            continue
        sizes = [call.ctx.mesh.size(m) for m in group.axes]
        bound, minor = dict(of.bound_map), parts[1]
        for m, n in zip(group.axes, sizes, strict=True):
            left = divide_exact(minor.extent, n)
            found = split(minor, left) if left is not None else None
            if found is None:
                return None
            bound[m], minor = (*bound.get(m, ()), found[0]), found[1]
        return replace(of, axes=(*of.axes[:dim], (parts[0],), *of.axes[dim + 1 :]), bound=bound, value=None)
    return None


def _empty(call: Call, slot: int, of: Layout, dim: int, start: Size, stop: Size, asked: Size) -> Layout:
    """A slice that holds nothing: right where it is the last ranks' share of a ceil split, else a loss of tokens."""
    axis = of.axes[dim]
    if not all(f.domain.is_feature for f in axis):
        short = _short_share(call, of, dim, start, asked, 0)
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


def _short_share(call: Call, of: Layout, dim: int, start: Size, asked: Size, actual: Size) -> Layout | None:
    """A share of the last ranks that lacks rows, to be padded: the domain remembers what it is short of."""
    axis = of.axes[dim]
    digit = axis_digit(axis)
    if digit is None or not digit.is_whole or bound_on_axis(of, dim) or CONSTANT in call.params:
        return None
    total = digit.extent
    if asked == 0:
        return _nothing_left(call, of, dim, digit, start)
    for group, number in share_groups(call, of):
        share = cdiv(total, group.size)
        # asked for a whole share, or for what is left of one up to the end
        left = isinstance(share, int) and isinstance(actual, int) and 0 < actual < share
        if share == actual or (share != asked and not (left and asked == actual)):
            continue
        asked = share
        at = divide_exact(start, asked)
        if not isinstance(at, int):
            continue
        if number is None:
            call.want("rank", -1, None, data=(group.axes, at))
            number = at
        if at != number:
            continue
        whole = padded(digit.domain, asked * group.size)
        domain = opaque("short", actual, (whole, asked, group.axes))
        return with_axis(of, dim, (domain.whole,))
    return None


def _nothing_left(call: Call, of: Layout, dim: int, digit: Factor, start: Size) -> Layout | None:
    """`x[T:T]`, from `x[min(r * n, T) : min(r * n + n, T)]`: the share of a rank for which no row is left."""
    total = digit.extent
    if not isinstance(total, int) or start != total:
        return None
    for group, number in share_groups(call, of):
        if number is None or not isinstance(group.size, int):
            continue
        share = -(-total // group.size)
        if number * share >= total:
            domain = opaque("short", 0, (padded(digit.domain, share * group.size), share, group.axes))
            return with_axis(of, dim, (domain.whole,))
    return None


def complete_share(call: Call, of: Layout, dim: int, extent: Size) -> Layout | None:
    """A short share padded to its full size is the rank's share of the padded domain."""
    axis = of.axes[dim]
    if len(axis) != 1 or axis[0].domain.kind != "opaque" or axis[0].domain.name != "short":
        return None
    whole, asked, group_axes = axis[0].domain.args
    if asked != extent:
        return None
    mesh = call.ctx.mesh
    sizes = [mesh.size(m) for m in group_axes]
    group = Group("", group_axes, 1)
    cut_parts = take_share(whole.whole, group, asked, sizes)
    if cut_parts is None:
        return None
    minor, parts = cut_parts
    bound = dict(of.bound_map)
    for m, b in parts.items():
        bound[m] = (*bound.get(m, ()), b)
    return replace(of, axes=(*of.axes[:dim], (minor,), *of.axes[dim + 1 :]), bound=bound)


def _index(value: Any, total: Size, default: Size, bounds: Any) -> Size:
    if value is None or isinstance(value, (bool, float, str, Layout, list)):
        return default
    if isinstance(value, int):
        if value >= _END:
            return total
        if value < 0:
            at = total + value
            return at if not isinstance(at, int) else max(at, 0)
        return value
    found: Size = value
    return found


def _back_cut(call: Call, outs: Any, output: int, axis: int, inner: Size) -> Sources | None:
    slot, of = _self(call)
    dim = dim_of(call, "dim", of.rank, 0)
    if axis == dim and outs[output].shape[axis] != of.shape[axis]:
        if _is_another_ranks(call, of, dim, outs[output].shape[axis]):
            return None
        # A piece of a fused axis: every piece is sharded by itself.
        return [(slot, axis, of.shape[axis] if inner == outs[output].shape[axis] else inner)]
    return [(slot, axis, inner)]


def _is_another_ranks(call: Call, of: Layout, dim: int, length: Size) -> bool:
    """Whether the one slice that is taken of an axis of features is exactly another rank's share: no piece of a fused axis."""
    if PIECE in call.params or call.has("chunks") or call.has("split_size") or bound_on_axis(of, dim):
        return False
    start = _index(call.get("start"), of.shape[dim], 0, call.ctx.bounds)
    return start != 0 and other_ranks_share(call, of, dim, start, length) is not None


@register("slice", back=_back_cut, is_view=True)
def slice_(call: Call) -> Result:
    """self[start:end:step] along dim."""
    slot, of = _self(call)
    dim = dim_of(call, "dim", of.rank, 0)
    if dim < 0:
        return call.result(of)
    total = of.shape[dim]
    start = _index(call.get("start"), total, 0, call.ctx.bounds)
    stop = _index(call.get("end"), total, total, call.ctx.bounds)
    step = call.get("step", 1)
    return call.result(
        cut(call, slot, of, dim, start, stop, step if isinstance(step, int) and step > 0 else 1)
    )


@register("narrow", back=_back_cut, is_view=True)
def narrow(call: Call) -> Result:
    """`length` elements from `start` along dim."""
    slot, of = _self(call)
    dim = dim_of(call, "dim", of.rank, 0)
    if dim < 0:
        return call.result(of)
    start = _index(call.get("start"), of.shape[dim], 0, call.ctx.bounds)
    length = call.get("length")
    if length is None or isinstance(length, Layout):
        return call.result(of)
    return call.result(cut(call, slot, of, dim, start, start + length))


def _back_select(call: Call, outs: Any, output: int, axis: int, inner: Size) -> Sources | None:
    slot, of = _self(call)
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


@register("select", back=_back_select, is_view=True)
def select(call: Call) -> Result:
    """Element `index` along dim."""
    slot, of = _self(call)
    dim = dim_of(call, "dim", of.rank, 0)
    if dim < 0:
        return call.result(of)
    return call.result(element(call, slot, of, dim, call.get("index")))


def _split_equal(call: Call, slot: int, of: Layout, dim: int, count: int, each: Size) -> list[Layout]:
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


def _split_sizes(call: Call, slot: int, of: Layout, dim: int, sizes: list[Size]) -> list[Layout]:
    axis = of.axes[dim]
    total = extent_of(axis)
    said: Size = 0
    for s in sizes:
        said = said + s
    if said != total:
        return _misfit(call, slot, of, dim, sizes, total)
    if all(s == sizes[0] for s in sizes):
        return _split_equal(call, slot, of, dim, len(sizes), sizes[0])
    out = []
    at: Size = 0
    digit = axis_digit(axis)
    for s in sizes:
        if all(f.domain.is_feature for f in axis):
            new_axis, bound = resized(of, dim, s)
            out.append(replace(of, axes=(*of.axes[:dim], new_axis, *of.axes[dim + 1 :]), bound=bound))
        else:
            assert digit is not None
            out.append(with_axis(of, dim, _concat_piece(digit, at, s) or (ranged(digit, at, s).whole,)))
        at = at + s
    return out


def _misfit(call: Call, slot: int, of: Layout, dim: int, sizes: list[Size], total: Size) -> list[Layout]:
    """Split sizes written for another layout: keep their proportions where they divide."""
    if all(f.domain.is_feature for f in of.axes[dim]):
        call.issue(
            "LC101", f"split sizes add up to {_sum(sizes)}, {{0}} has {total} there", slot, hints=("literal",)
        )
    else:
        call.issue(
            "LC101",
            f"split sizes were written for {_sum(sizes)} tokens, {{0}} has {total}",
            slot,
            hints=("literal",),
        )
    out = []
    for s in sizes:
        new_axis, bound = resized(of, dim, s)
        out.append(replace(of, axes=(*of.axes[:dim], new_axis, *of.axes[dim + 1 :]), bound=bound))
    return out


def _sum(sizes: list[Size]) -> Size:
    total: Size = 0
    for s in sizes:
        total = total + s
    return total


@register("split", back=_back_cut, is_view=True, in_pieces=True)
def split_(call: Call) -> Result:
    """Pieces of `split_size` (the last may be shorter), or of the given sizes."""
    slot, of = _self(call)
    dim = dim_of(call, "dim", of.rank, 0)
    if dim < 0:
        return call.result(of)
    size = call.get("split_size")
    if isinstance(size, list):
        return _pieces_of(call, slot, of, dim, _split_sizes(call, slot, of, dim, size))
    if size is None or isinstance(size, Layout):
        return call.result(of)
    total = of.shape[dim]
    exact = divide_exact(total, size)
    if isinstance(exact, int):
        return _pieces_of(call, slot, of, dim, _split_equal(call, slot, of, dim, exact, size))
    return _pieces_of(call, slot, of, dim, _split_uneven(call, slot, of, dim, size))


def _pieces_of(call: Call, slot: int, of: Layout, dim: int, outs: list[Layout]) -> Result:
    """The pieces of a split; where one alone is read, it is what a slice at its place gives."""
    only = call.params.get(ONLY)
    if not isinstance(only, int) or only >= len(outs) or call.issues:
        return call.result(*outs)
    start: Size = 0
    for out in outs[:only]:
        start = start + out.shape[dim]
    size = outs[only].shape[dim]
    # of a last piece that lacks rows, as many are asked for as of the others
    asked = outs[0].shape[dim] if only == len(outs) - 1 else size
    axis = of.axes[dim]
    if all(f.domain.is_feature for f in axis):
        share = rank_share(call, of, dim, start, size)
        piece = outs[only] if share is None else share
    else:
        piece = cut(call, slot, of, dim, start, start + asked)
    return call.result(*outs[:only], piece, *outs[only + 1 :])


def _split_uneven(call: Call, slot: int, of: Layout, dim: int, size: Size) -> list[Layout]:
    """Pieces of a size that does not divide: whole pieces of the padded axis, and a last one that lacks rows."""
    total = of.shape[dim]
    count = _pieces(call, of, total, size)
    if count is None:
        return [of]
    axis = of.axes[dim]
    last = total - size * (count - 1)
    if all(f.domain.is_feature for f in axis):
        return _split_sizes(call, slot, of, dim, [*[size] * (count - 1), last])
    digit = axis_digit(axis)
    assert digit is not None
    if not digit.is_whole:
        return _split_sizes(call, slot, of, dim, [*[size] * (count - 1), last])
    whole = padded(digit.domain, size * count).whole
    pieces = equal_pieces((whole,), count, size)
    if pieces is None:
        return _split_sizes(call, slot, of, dim, [*[size] * (count - 1), last])
    out = [with_axis(of, dim, piece) for piece, _ in pieces[:-1]]
    short = opaque("short piece", last, (whole, count, count - 1, size))
    out.append(with_axis(of, dim, (short.whole,)))
    return out


def _pieces(call: Call, of: Layout, total: Size, size: Size) -> int | None:
    """How many pieces of a size there are: from numbers, or from the group whose share it is."""
    if isinstance(total, int) and isinstance(size, int):
        return -(-total // size)
    for axis in call.ctx.mesh.axes:
        if isinstance(axis.size, int) and cdiv(total, axis.size) == size:
            return axis.size
    for n in range(2, 257):
        if cdiv(total, n) == size:
            return n
    return None


@register("chunk", back=_back_cut, is_view=True, in_pieces=True)
def chunk_(call: Call) -> Result:
    """`chunks` pieces of equal size, the last may be shorter."""
    slot, of = _self(call)
    dim = dim_of(call, "dim", of.rank, 0)
    n = call.get("chunks")
    if dim < 0 or not isinstance(n, int):
        return call.result(of)
    total = of.shape[dim]
    each = divide_exact(total, n)
    if each is not None:
        return _pieces_of(call, slot, of, dim, _split_equal(call, slot, of, dim, n, each))
    return _pieces_of(call, slot, of, dim, _split_uneven(call, slot, of, dim, cdiv(total, n)))


@register("tensor_split", back=_back_cut, is_view=True, in_pieces=True)
def tensor_split(call: Call) -> Result:
    """`sections` pieces; where they do not divide, the first ones are longer by one (torch.tensor_split)."""
    slot, of = _self(call)
    dim = dim_of(call, "dim", of.rank, 0)
    n = call.get("sections")
    if dim < 0 or not isinstance(n, int) or n < 1:
        return call.result(of)
    total = of.shape[dim]
    each = divide_exact(total, n)
    if each is not None:
        return _pieces_of(call, slot, of, dim, _split_equal(call, slot, of, dim, n, each))
    if isinstance(total, int):
        longer = total % n
        return call.result(*_split_sizes(call, slot, of, dim, [total // n + (i < longer) for i in range(n)]))
    whole = of.axes[dim]
    sizes = [floordiv(total + (n - 1 - i), n) for i in range(n)]
    outs = [with_axis(of, dim, (opaque(f"section {i} of {n}", s, whole).whole,)) for i, s in enumerate(sizes)]
    return call.result(*outs)


@register("unbind", back=_back_select, is_view=True, in_pieces=True)
def unbind(call: Call) -> Result:
    """One output per element of an axis, without the axis."""
    slot, of = _self(call)
    dim = dim_of(call, "dim", of.rank, 0)
    count = of.shape[dim] if dim >= 0 else 0
    if not isinstance(count, int):
        return call.result(of)
    axis = of.axes[dim]
    if all(f.domain.is_feature for f in axis) or count == 1:
        return call.result(*[element(call, slot, of, dim, i) for i in range(count)])
    pieces = equal_pieces(axis, count, 1)
    outs = []
    for i in range(count):
        kept: Axis = pieces[i][0] if pieces is not None else ()
        rest = of.axes[:dim] + of.axes[dim + 1 :]
        if rest:
            at = min(dim, len(rest) - 1)
            rest = (*rest[:at], (*kept, *rest[at]), *rest[at + 1 :])
        outs.append(layout(of.dtype, rest, of.bound_map, of.partial))
    return call.result(*outs)
