"""One head that several ranks hold, beside the query heads of which each of them has its own.

With fewer key heads than ranks a key head is cut over a part of a group only, and each rank of the rest reads the same one: spread
over the query heads, it is a share over the whole group.
"""

from __future__ import annotations

from layoutcheck.domains import factor, feature
from layoutcheck.layouts import Layout, bound_on_axis, extent_of, layout
from layoutcheck.symbols import Size, divide_exact


def spread_like(of: Layout, axis: int, like: Layout, there: int) -> Layout | None:
    """The layout with its one piece on `axis` read as repeated for each rank of the group that cuts `like` on the axis `there`.

    None where it is not cut over the first mesh axes of those that cut `like` and no other, or where a rank has several pieces:
    then those of its ranks would be others than those of theirs. Nor where both are cut alike and nothing is repeated.
    """
    mine, theirs = bound_on_axis(of, axis), bound_on_axis(like, there)
    if not mine or len(mine) > len(theirs) or [m for m, _ in mine] != [m for m, _ in theirs[: len(mine)]]:
        return None
    if len(mine) == len(theirs) and not any(f.domain.kind == "any" for f in of.axes[axis]):
        return None
    if any(m in of.bound_map for m, _ in theirs[len(mine) :]) or len(like.axes[there]) != 1:
        return None
    if any(f.extent != 1 for f in of.axes[axis] if f.domain.kind != "any"):
        return None
    digit = like.axes[there][0]
    if not all(b.domain is digit.domain and b.domain.is_feature for _, b in theirs):
        return None
    n, each = extent_of(of.axes[axis]), digit.extent
    if not all(b.domain.is_feature for _, b in mine):
        return None
    total: Size = n
    strides: dict[int, Size] = {}
    for m, b in reversed(theirs):
        less = divide_exact(b.stride, each)
        if less is None:
            return None
        strides[m] = less * n
        total = total * b.extent
    wide = feature(total)
    gone = {b for _, b in mine}
    bound = {m: tuple(b for b in fs if b not in gone) for m, fs in of.bound}
    for m, b in theirs:
        bound[m] = (*bound.get(m, ()), factor(wide, strides[m], b.extent))
    axes = (*of.axes[:axis], (factor(wide, 1, n),), *of.axes[axis + 1 :])
    return layout(of.dtype, axes, {m: fs for m, fs in bound.items() if fs}, of.partial, of.value)
