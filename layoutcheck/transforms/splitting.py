"""Several pieces of one axis: split, chunk, tensor_split, unbind."""

from __future__ import annotations

from layoutcheck.domains import (
    opaque,
    padded,
    ranged,
)
from layoutcheck.infer.calls.call import ONLY, Call, Result, dim_of
from layoutcheck.layouts import Axis, Layout, extent_of, layout, replace
from layoutcheck.symbols import Size, cdiv, divide_exact, floordiv
from layoutcheck.transforms.pieces import (
    back_cut,
    back_select,
    concat_piece,
    cut,
    element,
    equal_pieces,
    split_equal,
)
from layoutcheck.transforms.rank_shares import axis_digit, rank_share, resized, with_axis
from layoutcheck.transforms.registry import register
from layoutcheck.transforms.views import self_of


def _split_sizes(call: Call, slot: int, of: Layout, dim: int, sizes: list[Size]) -> list[Layout]:
    axis = of.axes[dim]
    total = extent_of(axis)
    said: Size = 0
    for s in sizes:
        said = said + s
    if said != total:
        return _misfit(call, slot, of, dim, sizes, total)
    if all(s == sizes[0] for s in sizes):
        return split_equal(call, slot, of, dim, len(sizes), sizes[0])
    out = []
    at: Size = 0
    digit = axis_digit(axis)
    for s in sizes:
        if all(f.domain.is_feature for f in axis):
            new_axis, bound = resized(of, dim, s)
            out.append(replace(of, axes=(*of.axes[:dim], new_axis, *of.axes[dim + 1 :]), bound=bound))
        else:
            assert digit is not None
            out.append(with_axis(of, dim, concat_piece(digit, at, s) or (ranged(digit, at, s).whole,)))
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


@register("split", back=back_cut, is_view=True, in_pieces=True)
def split_(call: Call) -> Result:
    """Pieces of `split_size` (the last may be shorter), or of the given sizes."""
    slot, of = self_of(call)
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
        return _pieces_of(call, slot, of, dim, split_equal(call, slot, of, dim, exact, size))
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


@register("chunk", back=back_cut, is_view=True, in_pieces=True)
def chunk_(call: Call) -> Result:
    """`chunks` pieces of equal size, the last may be shorter."""
    slot, of = self_of(call)
    dim = dim_of(call, "dim", of.rank, 0)
    n = call.get("chunks")
    if dim < 0 or not isinstance(n, int):
        return call.result(of)
    total = of.shape[dim]
    each = divide_exact(total, n)
    if each is not None:
        return _pieces_of(call, slot, of, dim, split_equal(call, slot, of, dim, n, each))
    return _pieces_of(call, slot, of, dim, _split_uneven(call, slot, of, dim, cdiv(total, n)))


@register("tensor_split", back=back_cut, is_view=True, in_pieces=True)
def tensor_split(call: Call) -> Result:
    """`sections` pieces; where they do not divide, the first ones are longer by one (torch.tensor_split)."""
    slot, of = self_of(call)
    dim = dim_of(call, "dim", of.rank, 0)
    n = call.get("sections")
    if dim < 0 or not isinstance(n, int) or n < 1:
        return call.result(of)
    total = of.shape[dim]
    each = divide_exact(total, n)
    if each is not None:
        return _pieces_of(call, slot, of, dim, split_equal(call, slot, of, dim, n, each))
    if isinstance(total, int):
        longer = total % n
        return call.result(*_split_sizes(call, slot, of, dim, [total // n + (i < longer) for i in range(n)]))
    whole = of.axes[dim]
    sizes = [floordiv(total + (n - 1 - i), n) for i in range(n)]
    outs = [with_axis(of, dim, (opaque(f"section {i} of {n}", s, whole).whole,)) for i, s in enumerate(sizes)]
    return call.result(*outs)


@register("unbind", back=back_select, is_view=True, in_pieces=True)
def unbind(call: Call) -> Result:
    """One output per element of an axis, without the axis."""
    slot, of = self_of(call)
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
