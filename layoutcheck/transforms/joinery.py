"""Joining axes: cat, stack, pad. Pieces of one axis, put together in order, are that axis again."""

from __future__ import annotations

from typing import Any

from layoutcheck.domains import (
    Domain,
    Factor,
    concatenated,
    factor,
    feature,
    padded,
    permuted,
    pick,
    unpicked,
)
from layoutcheck.infer.calls.call import UNMASKED, Call, Result, dim_of
from layoutcheck.infer.calls.compare import compare_axes, is_misplaced, is_wild, strength
from layoutcheck.infer.calls.elementwise import promote
from layoutcheck.infer.calls.states import join_bound, join_partial
from layoutcheck.layouts import Axis, Layout, bound_on_axis, extent_of, layout, replace
from layoutcheck.symbols import Size
from layoutcheck.transforms.pieces import equal_pieces
from layoutcheck.transforms.rank_shares import axis_digit, complete_share, resized, share_groups, take_share
from layoutcheck.transforms.registry import register
from layoutcheck.transforms.views import Sources, self_of


def _listed(call: Call) -> list[tuple[str, int, Layout]]:
    name = call.name("tensors")
    raw = call.params.get(name)
    out = []
    for item in raw if isinstance(raw, (list, tuple)) else [raw]:
        slot = getattr(item, "slot", -1)
        of = call.slots[slot] if slot >= 0 else None
        if isinstance(of, Layout):
            out.append((name, slot, of))
    return out


def assemble(pieces: list[Axis]) -> tuple[Axis, Axis] | None:
    """Pieces of one axis in some order: the digits that enumerate them, and what each piece holds; None if they are no full grid."""
    first = pieces[0]
    if not first or any(len(piece) != len(first) for piece in pieces):
        return None
    at = next((i for i, f in enumerate(first) if f.domain.kind == "pick"), None)
    if at is None:
        return None
    base, fixed = unpicked(first[at].domain)
    places = [(stride, count) for stride, count, _ in fixed]
    table: list[list[int]] = []
    for piece in pieces:
        mine, digits = unpicked(piece[at].domain)
        if mine is not base or [(s, c) for s, c, _ in digits] != places:
            return None
        for f, g in zip(piece, first, strict=True):
            same = (
                unpicked(f.domain)[0] is unpicked(g.domain)[0]
                and f.stride == g.stride
                and f.extent == g.extent
            )
            if not same:
                return None
        table.append([index for _, _, index in digits])
    varying = [k for k in range(len(places)) if any(row[k] != table[0][k] for row in table)]
    total = 1
    for k in varying:
        total *= places[k][1]
    if not varying or total != len(pieces):
        return None
    order = _order(table, varying, [c for _, c in places])
    if order is None:
        return None
    left = pick(base, tuple(d for k, d in enumerate(fixed) if k not in varying))
    front = tuple(factor(left, places[k][0], places[k][1]) for k in order)
    rest = tuple(factor(left, f.stride, f.extent) if unpicked(f.domain)[0] is base else f for f in first)
    return front, rest


def _order(digits: list[list[int]], varying: list[int], counts: list[int]) -> list[int] | None:
    """The nesting (outermost first) in which the digits are enumerated, or None."""
    periods: list[tuple[int, int]] = []
    for k in varying:
        run = 1
        while run < len(digits) and digits[run][k] == digits[0][k]:
            run += 1
        periods.append((run, k))
    periods.sort(reverse=True)
    step = 1
    for run, k in reversed(periods):
        if run != step:
            return None
        step *= counts[k]
    for i, d in enumerate(digits):
        for run, k in periods:
            if d[k] != (i // run) % counts[k]:
                return None
    return [k for _, k in periods]


def _full_pieces(dim_axes: list[Axis]) -> list[Axis] | None:
    """Pieces of which the last lacks rows, as the full pieces that they would be; None where none lacks any."""
    out: list[Axis] = []
    short = False
    for axis in dim_axes:
        if len(axis) == 1 and axis[0].domain.kind == "opaque" and axis[0].domain.name == "short piece":
            whole, count, index, size = axis[0].domain.args
            pieces = equal_pieces((whole,), count, size)
            if pieces is None:
                return None
            axis = pieces[index][0]
            short = True
        out.append(axis)
    return out if short else None


def join(call: Call, parts: list[tuple[str, int, Layout]], dim: int) -> Layout:
    """cat along an axis of tensors of the same rank."""
    rank = parts[0][2].rank
    before = len(call.issues)
    bound = join_bound(call, parts)
    partial = join_partial(call, parts, (), {parts[0][0]}, bound)
    dtype = promote([of for _, _, of in parts])
    axes: list[Axis] = []
    along = [of.axes[dim] for _, _, of in parts]
    alike = all(a == along[0] for a in along) and all(f.domain.kind != "pick" for f in along[0])
    front: Axis | None = None
    for i in range(rank):
        if i == dim:
            axes.append(())
            continue
        column = [of.axes[i] for _, _, of in parts]
        if alike and len(parts) > 1 and front is None:
            shorts = _full_pieces(column)
            if shorts is not None:
                call.issue(
                    "LC401",
                    f"pieces of {extent_of(shorts[0])} and {extent_of(column[-1])} tokens are joined as if they were equal: "
                    "pad the tokens to a multiple of the group first",
                    parts[0][1],
                    parts[-1][1],
                )
            found = assemble(shorts or column)
            if found is not None:
                front, rest = found
                axes.append(rest)
                continue
        best = max(range(len(parts)), key=lambda k: strength(column[k]))
        for k in range(len(parts)):
            if k != best and column[k] != column[best] and not _one_head(column[k], column[best]):
                compare_axes(call, (parts[best][1], parts[best][2], i), (parts[k][1], parts[k][2], i))
        if len(call.issues) > before:
            best, bound = 0, dict(parts[0][2].bound_map)
        if any(is_misplaced(parts[best][2], i, of, i) for _, _, of in parts):
            axes.append(())
            continue
        axes.append(column[best])
    value = UNMASKED if all(of.value == UNMASKED for _, _, of in parts) else None
    if front is not None:
        axes[dim] = front + along[0]
        return layout(dtype, tuple(axes), bound, partial, value)
    axes[dim], bound = _along(call, parts, dim, bound)
    return layout(dtype, tuple(axes), bound, partial, value)


def _one_head(axis: Axis, beside: Axis) -> bool:
    """Whether an axis of one goes with a rank's own head: it is the one head that all share, as good as expanded."""
    return not axis and extent_of(beside) == 1 and all(f.domain.is_feature for f in beside)


def _along(
    call: Call, parts: list[tuple[str, int, Layout]], dim: int, bound: dict[int, tuple[Factor, ...]]
) -> tuple[Axis, dict[int, tuple[Factor, ...]]]:
    along = [of.axes[dim] for _, _, of in parts]
    if len(parts) == 1:
        return along[0], bound
    total: Size = 0
    for a in along:
        total = total + extent_of(a)
    if all(all(f.domain.is_feature for f in a) for a in along):
        cut = [bound_on_axis(of, dim) for _, _, of in parts]
        if any(cut):
            if not all(cut):
                k = next(k for k, c in enumerate(cut) if not c)
                j = next(k for k, c in enumerate(cut) if c)
                call.issue(
                    "LC101",
                    "a sharded and a whole feature are joined along the sharded axis: {0} and {1}",
                    parts[j][1],
                    parts[k][1],
                )
                return (feature(total).whole,), bound
            axis, more = resized(parts[0][2], dim, total)
            for m, fs in more.items():
                bound[m] = fs
            return axis, bound
        return (feature(total).whole,), bound
    found = assemble(along)
    if found is not None:
        return found[0] + found[1], bound
    if all(len(a) == 1 for a in along):
        tail = _after_padding([a[0] for a in along])
        if tail is not None:
            return tail, bound
        ranges = _adjacent([a[0] for a in along])
        if ranges is not None:
            return ranges, bound
        zigzag = _zigzag(call, parts[0][2], [a[0] for a in along])
        if zigzag is not None:
            minor, digits = zigzag
            return (minor,), {**bound, **{m: (*bound.get(m, ()), b) for m, b in digits.items()}}
    ways = {b.extent for _, b in bound_on_axis(parts[0][2], dim)}
    if along[0] and all(a == along[0] for a in along) and len(parts) in ways:
        # the same tokens once a rank of the group that shards them: pieces put in front, to be exchanged
        return (feature(len(parts)).whole, *along[0]), bound
    return (concatenated(tuple(along), total).whole,), bound


def _after_padding(pieces: list[Factor]) -> Axis | None:
    """Tokens followed by rows of a constant fill are padded tokens."""
    if (
        len(pieces) == 2
        and pieces[1].domain.kind == "any"
        and pieces[0].is_whole
        and not pieces[0].domain.is_feature
    ):
        return (padded(pieces[0].domain, pieces[0].extent + pieces[1].extent).whole,)
    return None


def _adjacent(pieces: list[Factor]) -> Axis | None:
    """Consecutive ranges of one factor, from its beginning to its end."""
    at: Size = 0
    root: Factor | None = None
    for piece in pieces:
        if piece.domain.kind != "range" or not piece.is_whole:
            return None
        of, start = piece.domain.args
        if (root is not None and of is not root) or start != at:
            return None
        root = of
        at = at + piece.extent
    return (root,) if root is not None and at == root.extent else None


def _zigzag(call: Call, of: Layout, pieces: list[Factor]) -> tuple[Factor, dict[int, Factor]] | None:
    """Pieces r and 2p - 1 - r of 2p: rank r's share of tokens that causal attention loads evenly, in an order of their own."""
    if len(pieces) != 2:
        return None
    one, two = _stretch(pieces[0]), _stretch(pieces[1])
    if one is None or two is None:
        return None
    (base, first), (other, second) = one, two
    length = pieces[0].extent
    if base is not other or pieces[1].extent != length:
        return None
    for group, number in share_groups(call, of):
        if number is None or not isinstance(group.size, int) or length * 2 * group.size != base.extent:
            continue
        if first == length * number and second == length * (2 * group.size - 1 - number):
            order = permuted((base.whole,), base.extent, "zigzag")
            return take_share(order.whole, group, length * 2, [call.ctx.mesh.size(m) for m in group.axes])
    return None


def _stretch(piece: Factor) -> tuple[Domain, Size] | None:
    """The domain of which a piece is a stretch, and where it begins."""
    domain = piece.domain
    if domain.kind == "range" and piece.is_whole and domain.args[0].is_whole:
        return domain.args[0].domain, domain.args[1]
    if domain.kind == "pick" and piece.stride == 1 and len(domain.args[1]) == 1:
        ((stride, _, index),) = domain.args[1]
        return (domain.args[0], stride * index) if stride == piece.extent else None
    return None


def _back_join(call: Call, outs: Any, output: int, axis: int, inner: Size) -> Sources | None:
    out: list[tuple[int, int, Size]] = []
    parts = _listed(call)
    rank = outs[output].rank
    dim = dim_of(call, "dim", rank, 0)
    # what is filled like another tensor follows it
    said = [part for part in parts if part[2].value is None or part[2].value[0] != "fill"] or parts
    for _, slot, of in said:
        if of.rank != rank:
            continue
        if axis == dim:
            out.append((slot, axis, of.shape[axis]))
        elif not outs[output].axes[axis] or (of.axes[axis] and not is_wild(of.axes[axis])):
            # what was expanded to this extent has all of whatever share the others have
            out.append((slot, axis, inner))
    return out or None


@register("cat", back=_back_join)
def cat(call: Call) -> Result:
    """Tensors one after another along dim; legacy empty tensors are left out."""
    parts = [p for p in _listed(call) if not (p[2].rank == 1 and p[2].shape[0] == 0)]
    if not parts:
        return call.result(layout("float32", ((),)))
    rank = max(of.rank for _, _, of in parts)
    dim = dim_of(call, "dim", rank, 0)
    fitted = []
    for name, slot, of in parts:
        axes = list(of.axes)
        while len(axes) < rank:
            axes.insert(0, ())
        fitted.append((name, slot, of if len(axes) == of.rank else replace(of, axes=tuple(axes))))
    if dim < 0:
        return call.result(fitted[0][2])
    return call.result(join(call, fitted, dim))


def _back_stack(call: Call, outs: Any, output: int, axis: int, inner: Size) -> Sources | None:
    parts = _listed(call)
    dim = max(dim_of(call, "dim", outs[output].rank, 0), 0)
    if axis == dim:
        return None
    at = axis - (axis > dim)
    return [(slot, at, inner) for _, slot, of in parts if not is_wild(of.axes[at])] or None


@register("stack", back=_back_stack)
def stack(call: Call) -> Result:
    """Tensors side by side along a new axis."""
    parts = _listed(call)
    if not parts:
        return call.result(layout("float32", ((),)))
    dim = max(dim_of(call, "dim", parts[0][2].rank + 1, 0), 0)
    widened = [(n, s, replace(of, axes=(*of.axes[:dim], (), *of.axes[dim:]))) for n, s, of in parts]
    out = join(call, widened, dim)
    if (not out.axes[dim] and len(parts) > 1) or (
        all(not of.axes[dim] for _, _, of in widened) and out.axes[dim][0].domain.kind == "concat"
    ):
        out = replace(out, axes=(*out.axes[:dim], (feature(len(parts)).whole,), *out.axes[dim + 1 :]))
    return call.result(out)


def _back_pad(call: Call, outs: Any, output: int, axis: int, inner: Size) -> Sources | None:
    slot, of = self_of(call)
    return [(slot, axis, inner)] if outs[output].shape[axis] == of.shape[axis] else None


@register("pad", back=_back_pad)
def pad(call: Call) -> Result:
    """Elements before and after, pairs from the last axis on."""
    slot, of = self_of(call)
    amounts = call.get("pad")
    if not isinstance(amounts, list):
        return call.result(of)
    value = call.get("value")
    if of.partial and value not in (None, 0, 0.0):
        call.issue(
            "LC204",
            f"{{0}} is a pending sum; padding with {value} on every rank counts once a rank: pad after the reduction",
            slot,
        )
    out = of
    for k in range(0, len(amounts) - 1, 2):
        dim = of.rank - 1 - k // 2
        before, after = amounts[k], amounts[k + 1]
        if dim < 0 or isinstance(before, Layout) or isinstance(after, Layout) or (before == 0 and after == 0):
            continue
        out = _pad_axis(call, slot, out, dim, before, after)
        if out.value is None:
            out = replace(out, value=("padded",))
    return call.result(out)


def _pad_axis(call: Call, slot: int, of: Layout, dim: int, before: Size, after: Size) -> Layout:
    axis = of.axes[dim]
    total = extent_of(axis)
    extent = total + before + after
    done = complete_share(call, of, dim, extent) if before == 0 else None
    if done is not None:
        return done
    if all(f.domain.is_feature for f in axis):
        new_axis, bound = resized(of, dim, extent)
        return replace(of, axes=(*of.axes[:dim], new_axis, *of.axes[dim + 1 :]), bound=bound)
    digit = axis_digit(axis)
    assert digit is not None
    if before == 0 and isinstance(after, int) and after < 0:
        from layoutcheck.transforms.pieces import cut

        return cut(call, slot, of, dim, 0, extent)
    if before != 0 or not digit.is_whole:
        from layoutcheck.domains import opaque

        return replace(
            of, axes=(*of.axes[:dim], (opaque("padded", extent, (digit, before)).whole,), *of.axes[dim + 1 :])
        )
    return replace(of, axes=(*of.axes[:dim], (padded(digit.domain, extent).whole,), *of.axes[dim + 1 :]))
