"""A rank's share of an axis: which group it is of, what is left of the layout, the last and shorter ones, other ranks'."""

from __future__ import annotations

from typing import Any

from layoutcheck.domains import (
    Factor,
    anything,
    factor,
    feature,
    flat,
    opaque,
    padded,
    split,
)
from layoutcheck.infer.calls.call import CONSTANT, PIECE, PREFERRED, Call
from layoutcheck.layouts import Axis, Layout, bound_on_axis, extent_of, replace
from layoutcheck.mesh import Group
from layoutcheck.symbols import Size, cdiv, divide_exact, lower_bound, smax

END = 1 << 62


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


def interleaved_share(call: Call, of: Layout, dim: int, start: Size, step: int, count: Size) -> Layout | None:
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


def short_share(call: Call, of: Layout, dim: int, start: Size, asked: Size, actual: Size) -> Layout | None:
    """A share of the last ranks that lacks rows, to be padded: the domain remembers what it is short of."""
    axis = of.axes[dim]
    digit = axis_digit(axis)
    if digit is None or not digit.is_whole or bound_on_axis(of, dim) or CONSTANT in call.params:
        return None
    total = digit.extent
    if asked == 0:
        return nothing_left(call, of, dim, digit, start)
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


def nothing_left(call: Call, of: Layout, dim: int, digit: Factor, start: Size) -> Layout | None:
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


def bound_of_slice(value: Any, total: Size, default: Size, bounds: Any) -> Size:
    if value is None or isinstance(value, (bool, float, str, Layout, list)):
        return default
    if isinstance(value, int):
        if value >= END:
            return total
        if value < 0:
            at = total + value
            return at if not isinstance(at, int) else max(at, 0)
        return value
    found: Size = value
    return found


def is_another_ranks(call: Call, of: Layout, dim: int, length: Size) -> bool:
    """Whether the one slice that is taken of an axis of features is exactly another rank's share: no piece of a fused axis."""
    if PIECE in call.params or call.has("chunks") or call.has("split_size") or bound_on_axis(of, dim):
        return False
    start = bound_of_slice(call.get("start"), of.shape[dim], 0, call.ctx.bounds)
    return start != 0 and other_ranks_share(call, of, dim, start, length) is not None
