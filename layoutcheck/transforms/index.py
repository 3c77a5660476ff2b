"""Looking up by tensors: index, gather, embeddings.

The values of an index point into a domain. Where the indexed axis is whole, any global position will do; where it is a rank's own
share, the positions must be the share's own.
"""

from __future__ import annotations

from typing import Any

from layoutcheck.domains import Factor, anything, is_token_like
from layoutcheck.infer.calls.call import UNMASKED, Call, Result, dim_of
from layoutcheck.infer.calls.compare import compare_axes, counts_any, strength
from layoutcheck.infer.calls.elementwise import broadcast_axes
from layoutcheck.infer.calls.positions import counts_rows
from layoutcheck.infer.calls.states import check_diagonal, join_bound
from layoutcheck.layouts import Axis, Layout, bound_on_axis, extent_of, layout, replace
from layoutcheck.symbols import Size
from layoutcheck.transforms.pieces import cut
from layoutcheck.transforms.reduce import check_pending
from layoutcheck.transforms.registry import register
from layoutcheck.transforms.views import Sources, self_of

Operand = tuple[str, int, Layout]


def points_into(index: Layout, axis: Axis) -> bool:
    """Whether an index's values are positions in this very axis (a share's own positions in that share)."""
    value = index.value
    return value is not None and value[0] == "into" and value[1] == axis


def check_positions(
    call: Call, slot: int, of: Layout, dim: int, index_slot: int, index: Layout | None
) -> None:
    """Issue LC108 where global positions are looked up in a rank's own share."""
    cuts = bound_on_axis(of, dim)
    tokens = [(m, b) for m, b in cuts if is_token_like(b.domain) or counts_rows(b.domain)]
    if not tokens:
        return
    if index is not None and points_into(index, of.axes[dim]):
        return
    if index is not None and index.dtype == "bool":
        return
    group = call.ctx.group(tuple(m for m, _ in tokens))
    call.issue(
        "LC108",
        f"positions among all tokens are looked up in {{0}}, which holds one rank's share over {group}",
        slot,
        index_slot,
        hints=("gather",),
    )


def listed(call: Call, meaning: str) -> list[tuple[int, Layout | None]]:
    raw = call.raw(meaning)
    out: list[tuple[int, Layout | None]] = []
    for item in raw if isinstance(raw, (list, tuple)) else [raw]:
        slot = getattr(item, "slot", -1)
        of = call.slots[slot] if slot >= 0 else None
        out.append((slot, of if isinstance(of, Layout) else None))
    return out


def _places(of: Layout, indices: list[tuple[int, Layout | None]]) -> list[tuple[bool, int]]:
    """For each axis of `self[i0, i1, ...]` whether it is self's, and which axis of self or of the index tensors together."""
    positions = [k for k, (_, t) in enumerate(indices) if t is not None]
    depth = max((t.rank for _, t in indices if t is not None), default=0)
    shape = [(False, i) for i in range(depth)]
    kept = [(True, k) for k in range(of.rank) if k not in positions]
    adjacent = bool(positions) and positions == list(range(positions[0], positions[-1] + 1))
    at = positions[0] if adjacent else 0
    return [*kept[:at], *shape, *kept[at:]]


def _back_index(call: Call, outs: Any, output: int, axis: int, inner: Size) -> Sources | None:
    slot, of = self_of(call)
    indices = listed(call, "indices")
    places = _places(of, indices)
    if axis >= len(places) or any(t is not None and t.dtype == "bool" for _, t in indices):
        return None
    own, at = places[axis]
    if own:
        return [(slot, at, inner)]
    depth = max(t.rank for _, t in indices if t is not None)
    return [
        (s, at - (depth - t.rank), inner)
        for s, t in indices
        if t is not None and at >= depth - t.rank and t.axes[at - (depth - t.rank)]
    ] or None


def _summed_index(call: Call) -> list[list[tuple[int, int, Size]]]:
    """A lookup is a sum of one-hot rows along the axis that is looked up in."""
    slot, of = self_of(call)
    places = [k for k, (_, t) in enumerate(listed(call, "indices")) if t is not None and t.dtype != "bool"]
    return [[(slot, k, of.shape[k])] for k in places if k < of.rank and of.axes[k]]


@register("index", back=_back_index, summed=_summed_index)
def index(call: Call) -> Result:
    """self[i0, i1, ...]: None keeps an axis; index tensors broadcast against each other."""
    slot, of = self_of(call)
    indices = listed(call, "indices")
    tensors: list[Operand] = [("indices", s, t) for s, t in indices if t is not None]
    check_pending(call, slot, of, call.name("self"))
    if not tensors:
        return call.result(of)
    if any(t.dtype == "bool" for _, _, t in tensors):
        return _boolean(call, slot, of, indices)
    positions = [k for k, (_, t) in enumerate(indices) if t is not None]
    rows = _range_of(call, slot, of, positions[0], tensors[0][2]) if len(positions) == 1 else None
    if rows is not None:
        return call.result(rows)
    for k in positions:
        if k < of.rank:
            check_positions(call, slot, of, k, *indices[k])
    shape = broadcast_axes(call, tensors)
    if len(positions) == 1:
        shape = tuple(_picked(of, positions[0], axis) for axis in shape)
    axes: list[Axis] = []
    adjacent = positions == list(range(positions[0], positions[-1] + 1))
    at = positions[0] if adjacent else 0
    for k in range(of.rank):
        if k == at:
            axes.extend(shape)
        if k not in positions:
            axes.append(of.axes[k])
    if at >= of.rank:
        axes.extend(shape)
    gone = {b for k in positions if k < of.rank for _, b in bound_on_axis(of, k)}
    kept = {m: tuple(b for b in fs if b not in gone) for m, fs in of.bound}
    # A shard of features that is indexed leaves a factor on no axis: a rank's own rows.
    off_axis = {m: tuple(b for b in fs if b in gone and b.domain.is_feature) for m, fs in of.bound}
    bare = replace(of, axes=(), bound={m: kept[m] + off_axis[m] for m in kept}, value=None)
    for _, s, t in tensors:
        if _crossed(call, slot, {b for fs in off_axis.values() for b in fs}, s, t):
            break
    bound = join_bound(call, [("self", slot, bare), *tensors])
    return call.result(layout(of.dtype, tuple(axes), bound, of.partial, _looked_up(of, indices)))


def _picked(of: Layout, dim: int, index: Axis) -> Axis:
    """The axis that picking features of an activation by numbers made on the spot gives: any share of them, as heads are picked.

    Rows of a table are picked by positions, which stay what they are.
    """
    others = [axis for k, axis in enumerate(of.axes) if k != dim]
    if not counts_any(index) or not all(f.domain.is_feature for f in of.axes[dim]) or bound_on_axis(of, dim):
        return index
    if all(f.domain.is_feature for axis in others for f in axis):
        return index
    return (anything(extent_of(index)).whole,)


def _feature_shard(of: Layout, dim: int) -> set[Factor]:
    return {b for _, b in bound_on_axis(of, dim) if b.domain.is_feature}


def _crossed(call: Call, slot: int, shard: set[Factor], index_slot: int, index: Layout) -> bool:
    """Issue where positions that differ by rank are looked up in a shard over the same group."""
    met = [m for m, fs in index.bound if any(b in shard for b in fs)]
    if met:
        group = call.ctx.group((met[0],))
        call.issue(
            "LC108",
            f"each rank of {group} looks up its own positions ({{1}}) in its own shard {{0}}: gather one of them",
            slot,
            index_slot,
        )
    return bool(met)


def _looked_up(of: Layout, indices: list[tuple[int, Layout | None]]) -> tuple[Any, ...] | None:
    """Positions looked up by an index still point into what they pointed into."""
    del indices
    return of.value if of.value is not None and of.value[0] in ("into", "iota") else None


def _boolean(call: Call, slot: int, of: Layout, indices: list[tuple[int, Layout | None]]) -> Result:
    """A mask chooses rows: how many is data, so the rows are a domain of their own, on each rank its own."""
    from layoutcheck.domains import opaque

    mask = next(t for _, t in indices if t is not None)
    for k in range(min(mask.rank, of.rank)):
        if mask.axes[k] and of.axes[k]:
            compare_axes(call, (slot, of, k), (indices[0][0], mask, k))
    rows = opaque("chosen", 1, (tuple(f for a in mask.axes for f in a),))
    return call.result(replace(of, axes=((rows.whole,), *of.axes[mask.rank :]), value=None))


def _range_of(call: Call, slot: int, of: Layout, dim: int, index: Layout) -> Layout | None:
    """Rows at `arange(a, b)` are the slice `a:b`."""
    value = index.value
    if value is None or value[0] != "range" or index.rank != 1 or dim >= of.rank or bound_on_axis(of, dim):
        return None
    if all(f.domain.is_feature for f in of.axes[dim]):
        return None
    return cut(call, slot, of, dim, value[1], value[1] + value[2])


def _back_select(call: Call, outs: Any, output: int, axis: int, inner: Size) -> Sources | None:
    slot, of = self_of(call)
    if axis == dim_of(call, "dim", of.rank, 0):
        return [(call.slot("index"), 0, inner)]
    return [(slot, axis, inner)]


def _summed_select(call: Call) -> list[list[tuple[int, int, Size]]]:
    slot, of = self_of(call)
    dim = dim_of(call, "dim", of.rank, 0)
    return [[(slot, dim, of.shape[dim])]] if dim >= 0 and of.axes[dim] else []


@register("index_select", back=_back_select, summed=_summed_select)
def index_select(call: Call) -> Result:
    """Rows of one axis by a vector of positions."""
    slot, of = self_of(call)
    dim = dim_of(call, "dim", of.rank, 0)
    idx = call.tensor("index")
    if dim < 0 or idx is None:
        return call.result(of)
    check_pending(call, slot, of, call.name("self"))
    rows = _range_of(call, slot, of, dim, idx)
    if rows is not None:
        return call.result(rows)
    check_positions(call, slot, of, dim, call.slot("index"), idx)
    axis = _picked(of, dim, tuple(f for a in idx.axes for f in a))
    _crossed(call, slot, _feature_shard(of, dim), call.slot("index"), idx)
    bare = replace(of, axes=(*of.axes[:dim], (), *of.axes[dim + 1 :]))
    bound = join_bound(call, [("self", slot, bare), ("index", call.slot("index"), idx)])
    return call.result(layout(of.dtype, (*of.axes[:dim], axis, *of.axes[dim + 1 :]), bound, of.partial))


def rows_agree(call: Call, a: Operand, b: Operand, skip: int) -> tuple[Axis, ...]:
    """Axis by axis the stronger of two tensors of one rank, compared except along `skip`."""
    axes: list[Axis] = []
    for k in range(max(a[2].rank, b[2].rank)):
        left = a[2].axes[k] if k < a[2].rank else ()
        right = b[2].axes[k] if k < b[2].rank else ()
        if k == skip:
            axes.append(right)
            continue
        if left and right:
            first, second = (a, b) if strength(left) >= strength(right) else (b, a)
            cut = bound_on_axis(a[2], k) or bound_on_axis(b[2], k)
            # an index, or what is written, may have fewer rows than a whole axis
            if (
                cut
                or extent_of(left) == extent_of(right)
                or not all(f.domain.is_feature for f in left + right)
            ):
                compare_axes(call, (first[1], first[2], k), (second[1], second[2], k))
        axes.append(left if strength(left) >= strength(right) else right)
    return tuple(axes)


def _back_gather(call: Call, outs: Any, output: int, axis: int, inner: Size) -> Sources | None:
    slot, of = self_of(call)
    if axis == dim_of(call, "dim", of.rank, -1):
        return [(call.slot("index"), axis, inner)]
    return [(slot, axis, inner)]


def _summed_gather(call: Call) -> list[list[tuple[int, int, Size]]]:
    slot, of = self_of(call)
    dim = dim_of(call, "dim", of.rank, -1)
    return [[(slot, dim, of.shape[dim])]] if dim >= 0 and of.axes[dim] else []


@register("gather", back=_back_gather, summed=_summed_gather)
def gather(call: Call) -> Result:
    """One element per position of the index, along an axis."""
    slot, of = self_of(call)
    idx = call.tensor("index")
    dim = dim_of(call, "dim", of.rank, -1)
    if idx is None or dim < 0:
        return call.result(of)
    check_pending(call, slot, of, call.name("self"))
    check_positions(call, slot, of, dim, call.slot("index"), idx)
    mine, other = ("self", slot, of), ("index", call.slot("index"), idx)
    axes = rows_agree(call, mine, other, dim)
    _crossed(call, slot, _feature_shard(of, dim), call.slot("index"), idx)
    # A shard of features that is looked up leaves a factor on no axis: what this rank has at these positions.
    gone = {b for _, b in bound_on_axis(of, dim) if not b.domain.is_feature}
    bare = replace(of, bound={m: tuple(b for b in fs if b not in gone) for m, fs in of.bound})
    bound = join_bound(call, [("self", slot, bare), other])
    return call.result(layout(of.dtype, axes, bound, of.partial))


def _back_embedding(call: Call, outs: Any, output: int, axis: int, inner: Size) -> Sources | None:
    out: Layout = outs[output]
    return [(call.slot("weight"), 1, inner)] if axis == out.rank - 1 else None


def _summed_embedding(call: Call) -> list[list[tuple[int, int, Size]]]:
    table = call.tensor("weight")
    return [[(call.slot("weight"), 0, table.shape[0])]] if table is not None and table.rank == 2 else []


@register("embedding", back=_back_embedding, summed=_summed_embedding)
def embedding(call: Call) -> Result:
    """Rows of a table by ids: a sum over the vocabulary of one-hot rows, so a shard of the table gives one rank's part."""
    table, idx = call.tensor("weight"), call.tensor("indices")
    if table is None or idx is None or table.rank != 2:
        return call.result(layout("float32", ()))
    slot = call.slot("weight")
    check_pending(call, call.slot("indices"), idx, "indices")
    if idx.value is not None and idx.value[0] == "masked":
        _, low, high = idx.value
        if not bound_on_axis(table, 0) and table.shape[0] == high - low and call.ctx.group_of is not None:
            group = call.ctx.group_of(low, high - low)
            if group is not None:
                call.want("cut", slot, None, axis=0, inner=table.shape[0], mesh_axes=group.axes)
    tokens = [b for _, b in bound_on_axis(table, 0) if is_token_like(b.domain)]
    if tokens:
        check_positions(call, slot, table, 0, call.slot("indices"), idx)
    rest = replace(table, axes=((), table.axes[1]))
    bound = join_bound(call, [("weight", slot, rest), ("indices", call.slot("indices"), idx)])
    # of ids that are another rank's a shard of the table gives some row or other, until it is masked
    shard = any(b.domain.is_feature for _, b in bound_on_axis(table, 0))
    out = layout(table.dtype, (*idx.axes, table.axes[1]), bound, table.partial, UNMASKED if shard else None)
    check_diagonal(call, out, range(out.rank), [slot, call.slot("indices")])
    return call.result(out)
