"""Indexing by tensors, masks and scatters.

The values of an index point into a domain. Where the indexed axis is whole, any global position will do; where it is a rank's own
share, the positions must be the share's own.
"""

from __future__ import annotations

from typing import Any

from layoutcheck.domains import Factor, is_token_like
from layoutcheck.infer.call import Call, Result, dim_of
from layoutcheck.infer.compare import compare_axes, strength
from layoutcheck.infer.elementwise import broadcast_axes, elementwise, promote
from layoutcheck.infer.regroup import regroup
from layoutcheck.infer.states import check_diagonal, is_zero, join_bound, join_partial
from layoutcheck.layouts import Axis, Layout, bound_on_axis, extent_of, layout, partner_axis, replace
from layoutcheck.symbols import Expr, Size, divide_exact
from layoutcheck.transforms.reduce import check_pending
from layoutcheck.transforms.registry import register
from layoutcheck.transforms.views import Sources, _back_same, _self

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
    tokens = [(m, b) for m, b in cuts if is_token_like(b.domain)]
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


def check_written(call: Call, slot: int, of: Layout, dim: int, index_slot: int, index: Layout | None) -> None:
    """Issue LC108 where rows are written at positions of the whole axis, and a rank holds only its share of it."""
    cuts = bound_on_axis(of, dim)
    if not cuts or (index is not None and (index.dtype == "bool" or points_into(index, of.axes[dim]))):
        return
    group = call.ctx.group(tuple(m for m, _ in cuts))
    what = "tokens" if is_token_like(cuts[0][1].domain) else "features"
    call.issue(
        "LC108",
        f"positions among all {what} are written in {{0}}, which holds one rank's share over {group}",
        slot,
        index_slot,
        hints=("gather",),
    )


def is_blank(of: Layout) -> bool:
    """Whether a tensor adds nothing to a pending sum: zeros, or a buffer that nothing was written to yet."""
    return is_zero(of) or of.value == ("fill", None)


def _listed(call: Call, meaning: str) -> list[tuple[int, Layout | None]]:
    raw = call.raw(meaning)
    out: list[tuple[int, Layout | None]] = []
    for item in raw if isinstance(raw, (list, tuple)) else [raw]:
        slot = getattr(item, "slot", -1)
        of = call.slots[slot] if slot >= 0 else None
        out.append((slot, of if isinstance(of, Layout) else None))
    return out


@register("index")
def index(call: Call) -> Result:
    """self[i0, i1, ...]: None keeps an axis; index tensors broadcast against each other."""
    slot, of = _self(call)
    indices = _listed(call, "indices")
    tensors: list[Operand] = [("indices", s, t) for s, t in indices if t is not None]
    check_pending(call, slot, of, call.name("self"))
    if not tensors:
        return call.result(of)
    if any(t.dtype == "bool" for _, _, t in tensors):
        return _boolean(call, slot, of, indices)
    positions = [k for k, (_, t) in enumerate(indices) if t is not None]
    for k in positions:
        if k < of.rank:
            check_positions(call, slot, of, k, *indices[k])
    shape = broadcast_axes(call, tensors)
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


@register("index_select")
def index_select(call: Call) -> Result:
    """Rows of one axis by a vector of positions."""
    slot, of = _self(call)
    dim = dim_of(call, "dim", of.rank, 0)
    idx = call.tensor("index")
    if dim < 0 or idx is None:
        return call.result(of)
    check_pending(call, slot, of, call.name("self"))
    check_positions(call, slot, of, dim, call.slot("index"), idx)
    axis = tuple(f for a in idx.axes for f in a)
    _crossed(call, slot, _feature_shard(of, dim), call.slot("index"), idx)
    bare = replace(of, axes=(*of.axes[:dim], (), *of.axes[dim + 1 :]))
    bound = join_bound(call, [("self", slot, bare), ("index", call.slot("index"), idx)])
    return call.result(layout(of.dtype, (*of.axes[:dim], axis, *of.axes[dim + 1 :]), bound, of.partial))


def _rows_agree(call: Call, a: Operand, b: Operand, skip: int) -> tuple[Axis, ...]:
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


@register("gather")
def gather(call: Call) -> Result:
    """One element per position of the index, along an axis."""
    slot, of = _self(call)
    idx = call.tensor("index")
    dim = dim_of(call, "dim", of.rank, -1)
    if idx is None or dim < 0:
        return call.result(of)
    check_pending(call, slot, of, call.name("self"))
    check_positions(call, slot, of, dim, call.slot("index"), idx)
    mine, other = ("self", slot, of), ("index", call.slot("index"), idx)
    axes = _rows_agree(call, mine, other, dim)
    _crossed(call, slot, _feature_shard(of, dim), call.slot("index"), idx)
    # A shard of features that is looked up leaves a factor on no axis: what this rank has at these positions.
    gone = {b for _, b in bound_on_axis(of, dim) if not b.domain.is_feature}
    bare = replace(of, bound={m: tuple(b for b in fs if b not in gone) for m, fs in of.bound})
    bound = join_bound(call, [("self", slot, bare), other])
    return call.result(layout(of.dtype, axes, bound, of.partial))


@register("scatter", back=_back_same)
def scatter(call: Call) -> Result:
    """Values written at positions along an axis; the result has self's axes, rows must agree."""
    slot, of = _self(call)
    idx = call.tensor("index")
    dim = dim_of(call, "dim", of.rank, -1)
    if idx is None or dim < 0:
        return call.result(of)
    check_written(call, slot, of, dim, call.slot("index"), idx)
    operands: list[Operand] = [("self", slot, of), ("index", call.slot("index"), idx)]
    axes = list(_rows_agree(call, operands[0], operands[1], dim))
    axes[dim] = of.axes[dim]
    src = call.tensor("src")
    if src is not None and src.rank == of.rank:
        _rows_agree(call, ("src", call.slot("src"), src), operands[1], dim)
        operands.append(("src", call.slot("src"), src))
    bound = join_bound(call, operands)
    partial = _written_pending(call, operands[0], operands[2] if len(operands) > 2 else None, bound)
    out = layout(of.dtype, tuple(axes), bound, partial)
    if call.rule.mutates:
        return call.result(out, mutated={slot: out})
    return call.result(out)


def _written_pending(
    call: Call, into: Operand, source: Operand | None, bound: dict[int, tuple[Factor, ...]]
) -> tuple[int, ...]:
    """Pending sums where part of a tensor is written: of both, or of one against nothing (zeros, a blank buffer)."""
    names = call.rule.additive
    _, slot, of = into
    operands = [("self", slot, of)]
    if source is not None:
        operands.append(("src", *source[1:]))
    if len(operands) == 1 or not names:
        pending = next(((s, o) for _, s, o in operands if o.partial), None)
        number = call.get("src")
        if pending is not None and (names or number != 0 or source is not None):
            call.issue(
                "LC204",
                f"{{0}} is a pending sum over {call.ctx.group(pending[1].partial)}; what is written counts once a rank",
                pending[0],
            )
        return of.partial
    wholes = {p for p, _, o in operands if o.partial}
    if wholes and all(p in wholes or is_blank(o) for p, _, o in operands):
        return tuple(sorted({m for _, _, o in operands for m in o.partial}))
    return join_partial(call, operands, (), {"self", "src"}, bound)


@register("index_put")
def index_put(call: Call) -> Result:
    """Values written at indices or where a mask holds."""
    slot, of = _self(call)
    indices = _listed(call, "indices")
    values = call.tensor("values")
    mask = next((t for _, t in indices if t is not None and t.dtype == "bool"), None)
    out = of
    if mask is not None:
        mask_slot = next(s for s, t in indices if t is mask)
        for k in range(min(mask.rank, of.rank)):
            if mask.axes[k] and of.axes[k]:
                compare_axes(call, (slot, of, k), (mask_slot, mask, k))
        out = masked(call, slot, of, values is None or is_zero(values) or not values.axes)
        if values is not None and values.partial and values.partial != of.partial:
            call.issue(
                "LC201",
                f"{{1}} is a pending sum over {call.ctx.group(values.partial)} and is put among complete values of {{0}}",
                slot,
                call.slot("values"),
            )
    else:
        for k, (s, t) in enumerate(indices):
            if t is not None and k < of.rank and not _inverts(t, of.axes[k]):
                check_written(call, slot, of, k, s, t)
        _check_rows(call, of, indices, values)
        out = _written(call, slot, of, indices, values)
    if call.rule.mutates and slot >= 0:
        return call.result(out, mutated={slot: out})
    return call.result(out)


def _check_rows(
    call: Call, of: Layout, indices: list[tuple[int, Layout | None]], values: Layout | None
) -> None:
    """What is written has a row for every position."""
    given = [(k, s, t) for k, (s, t) in enumerate(indices) if t is not None]
    if values is None or len(given) != 1:
        return
    k, s, idx = given[0]
    if values.rank != of.rank - 1 + idx.rank:
        return
    mine = call.slot("values")
    for j in range(idx.rank):
        _agree(call, (mine, values, k + j), (s, idx, j))
    slot = call.slot("self")
    for j in range(of.rank):
        if j != k:
            _agree(call, (mine, values, j if j < k else j - 1 + idx.rank), (slot, of, j))


def _agree(call: Call, left: tuple[int, Layout, int], right: tuple[int, Layout, int]) -> None:
    a, b = left[1].axes[left[2]], right[1].axes[right[2]]
    if a and b:
        compare_axes(call, *((left, right) if strength(a) >= strength(b) else (right, left)))


def _inverts(idx: Layout, axis: Axis) -> bool:
    """Whether a permutation is written over its own domain (an inverse permutation, or rows put back in order)."""
    return idx.value is not None and idx.value[0] == "into" and idx.value[1] == axis


def _written(
    call: Call, slot: int, of: Layout, indices: list[tuple[int, Layout | None]], values: Layout | None
) -> Layout:
    """Where whole rows are written by an index that points into a domain, the result has that domain and the values' order."""
    first = next(((k, s, t) for k, (s, t) in enumerate(indices) if t is not None), None)
    if first is None:
        return of
    k, s, idx = first
    axes = list(of.axes)
    value = of.value
    bound = dict(of.bound_map)
    if idx.value is not None and idx.value[0] == "into" and k < of.rank and len(idx.axes) == 1:
        target: Axis = idx.value[1]
        if extent_of(target) == extent_of(of.axes[k]):
            axes[k] = target
            if values is not None and values.dtype.startswith("int"):
                # arange written through a permutation: position of each element in the permuted order
                value = ("into", idx.axes[0])
    elif idx.axes and all(f.domain.kind == "any" for f in of.axes[k]) and len(idx.axes) == 1:
        pass
    if values is not None:
        for m, fs in values.bound:
            bound[m] = tuple(dict.fromkeys(bound.get(m, ()) + fs))
    for m, fs in idx.bound:
        if values is not None and values.axes and values.bound_map.get(m) not in (None, fs):
            call.issue(
                "LC101",
                f"{{0}} holds positions of one rank's share over {call.ctx.group((m,))}, {{1}} is cut in another way",
                s,
                call.slot("values"),
            )
        if m not in bound:
            bound[m] = fs
    source = ("values", call.slot("values"), values) if values is not None else None
    partial = (
        _written_pending(call, ("self", slot, of), source, bound) if of.partial or values else of.partial
    )
    return layout(of.dtype, tuple(axes), bound, partial, value)


@register("index_add", back=_back_same)
def index_add(call: Call) -> Result:
    """Rows added to (copied into) self at positions along an axis."""
    slot, of = _self(call)
    idx, src = call.tensor("index"), call.tensor("source")
    dim = dim_of(call, "dim", of.rank, 0)
    operands: list[Operand] = [("self", slot, of)]
    if src is not None:
        operands.append((call.name("source"), call.slot("source"), src))
    if idx is not None and dim >= 0:
        check_written(call, slot, of, dim, call.slot("index"), idx)
    if src is None and idx is not None and idx.bound and dim >= 0 and not points_into(idx, of.axes[dim]):
        call.issue(
            "LC108",
            f"each rank of {call.ctx.group((idx.bound[0][0],))} writes at positions of its own ({{1}}) into {{0}}",
            slot,
            call.slot("index"),
        )
    if src is not None and src.rank == of.rank and dim >= 0:
        _rows_agree(call, operands[0], operands[1], dim)
        if idx is not None and idx.rank == 1 and idx.axes[0] and src.axes[dim]:
            compare_axes(call, (call.slot("source"), src, dim), (call.slot("index"), idx, 0))
    bound = join_bound(call, operands)
    partial = _written_pending(call, operands[0], operands[1] if len(operands) > 1 else None, bound)
    out = layout(of.dtype, of.axes, bound, partial)
    if call.rule.mutates:
        return call.result(out, mutated={slot: out})
    return call.result(out)


def masked(call: Call, slot: int, of: Layout, to_zero: bool) -> Layout:
    """A tensor with some elements replaced. Zeros in the place of rows that another rank holds make a pending sum."""
    bound = dict(of.bound_map)
    partial = list(of.partial)
    if to_zero:
        for m, fs in of.bound:
            off = tuple(b for b in fs if b.domain.is_feature and partner_axis(of, b) is None)
            if off:
                left = tuple(b for b in fs if b not in off)
                if left:
                    bound[m] = left
                else:
                    bound.pop(m)
                partial.append(m)
    elif of.partial:
        call.issue(
            "LC201",
            f"{{0}} is a pending sum over {call.ctx.group(of.partial)}; elements are replaced on every rank",
            slot,
        )
    return layout(of.dtype, of.axes, bound, tuple(sorted(set(partial))))


@register("masked_fill", back=_back_same)
def masked_fill(call: Call) -> Result:
    """Elements replaced by a number where a mask holds."""
    slot, of = _self(call)
    mask = call.tensor("mask")
    value = call.get("value")
    zero = value == 0 or (isinstance(value, Layout) and is_zero(value))
    operands: list[Operand] = [("self", slot, of)]
    if mask is not None:
        operands.append(("mask", call.slot("mask"), mask))
    axes = broadcast_axes(call, operands)
    bound = join_bound(call, operands)
    if mask is not None and mask.partial:
        check_pending(call, call.slot("mask"), mask, "mask")
    out = masked(call, slot, layout(of.dtype, axes, bound, of.partial), zero)
    if call.rule.mutates:
        return call.result(out, mutated={slot: out})
    return call.result(out)


def _back_where(call: Call, outs: Any, output: int, axis: int, inner: Size) -> Sources | None:
    out: Layout = outs[output]
    sources: Sources = []
    for param, slot, of in call.tensors():
        at = axis - (out.rank - of.rank)
        if (
            at >= 0
            and of.axes[at]
            and param != call.name("condition")
            and not all(f.domain.kind == "any" for f in of.axes[at])
        ):
            sources.append((slot, at, inner))
    return sources or None


@register("where", back=_back_where)
def where(call: Call) -> Result:
    """Elements of one tensor or another. With zeros on one side it is linear in the other."""
    operands = list(call.tensors())
    axes = broadcast_axes(call, operands)
    names = {call.name("self"), call.name("other")}
    branches = [(p, s, of) for p, s, of in operands if p in names]
    numbers = [call.get(n) for n in ("self", "other") if not isinstance(call.get(n), Layout)]
    bound = join_bound(call, operands)
    zero = any(is_zero(of) for _, _, of in branches) or any(
        n == 0 for n in numbers if isinstance(n, (int, float))
    )
    condition = [(p, s, of) for p, s, of in operands if p not in names]
    for p, s, of in condition:
        check_pending(call, s, of, p)
    data = [b for b in branches if not is_zero(b[2])]
    dtype = promote([of for _, _, of in branches]) if branches else "float32"
    if data and len(data) == 1:
        _, slot, of = data[0]
        off_axis = any(b.domain.is_feature and partner_axis(of, b) is None for _, fs in of.bound for b in fs)
        merged = layout(dtype, axes, bound, of.partial)
        if zero and (of.partial or off_axis):
            return call.result(masked(call, slot, merged, True))
        if of.partial:
            call.issue(
                "LC201",
                f"{{0}} is a pending sum over {call.ctx.group(of.partial)}; where is linear in it only against 0",
                slot,
            )
        return call.result(merged)
    partial = join_partial(call, branches, (), names, bound) if branches else ()
    return call.result(layout(dtype, axes, bound, partial))


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
    out = layout(table.dtype, (*idx.axes, table.axes[1]), bound, table.partial)
    check_diagonal(call, out, range(out.rank), [slot, call.slot("indices")])
    return call.result(out)


def _back_written(call: Call, outs: Any, output: int, axis: int, inner: Size) -> Sources | None:
    """What is written decides where self is a fresh buffer; else both do."""
    slot, of = _self(call)
    src = call.tensor("src")
    sources: Sources = []
    if axis < of.rank and not (of.axes[axis] and all(f.domain.kind == "any" for f in of.axes[axis])):
        sources.append((slot, axis, inner))
    if src is not None:
        at = axis - (of.rank - src.rank)
        if at >= 0 and src.shape[at] == outs[output].shape[axis]:
            sources.append((call.slot("src"), at, inner))
    return sources or None


@register("copy", back=_back_written)
def copy(call: Call) -> Result:
    """src written over self: src's layout, broadcast to self's shape."""
    slot, of = _self(call)
    src = call.tensor("src")
    if src is None:
        return call.result(of)
    src_slot = call.slot("src")
    wild = all(f.domain.kind == "any" for axis in of.axes for f in axis)
    axes = list(
        broadcast_axes(
            call,
            [("src", src_slot, src)]
            if of.rank <= src.rank and wild and _same_shape(of, src)
            else [
                ("self", slot, of),
                ("src", src_slot, src),
            ],
        )
    )
    if call.rule.mutates and not wild:
        _check_store(call, slot, of, src_slot, src)
    bound = (
        dict(src.bound_map)
        if wild or not of.bound
        else join_bound(call, [("self", slot, of), ("src", src_slot, src)])
    )
    out = layout(call.dtype(of.dtype) if of.dtype else src.dtype, tuple(axes), bound, src.partial, src.value)
    if call.rule.mutates:
        return call.result(out, mutated={slot: out})
    return call.result(out)


def _check_store(call: Call, slot: int, of: Layout, src_slot: int, src: Layout) -> None:
    """A share stored into a buffer of all tokens fills it in part: the boundary says Full."""
    for m, fs in src.bound:
        tokens = [b for b in fs if is_token_like(b.domain)]
        if tokens and m not in of.bound_map and m not in call.ctx.mesh.quotient:
            call.issues[:] = [i for i in call.issues if i.code not in ("LC101", "LC102")]
            call.issue(
                "LC107",
                f"{{1}} is this rank's share over {call.ctx.group((m,))}, and is stored to a buffer that holds all tokens ({{0}})",
                slot,
                src_slot,
            )
            return


def _same_shape(a: Layout, b: Layout) -> bool:
    return a.shape == b.shape


def _placed(call: Call, of: Layout, slot: int, src: Layout, src_slot: int, dim: int) -> Layout:
    """self with part of an axis overwritten by src: other axes must agree."""
    mine, other = ("self", slot, of), ("src", src_slot, src)
    axes = list(_rows_agree(call, mine, other, dim))
    axes[dim] = of.axes[dim]
    own = {m for m, _ in bound_on_axis(of, dim)}
    if own and own != {m for m, _ in bound_on_axis(src, dim)}:
        check_written(call, slot, of, dim, src_slot, None)
    if (
        all(f.domain.kind == "any" for f in of.axes[dim])
        and src.rank == of.rank
        and src.shape[dim] == of.shape[dim]
    ) or (bound_on_axis(src, dim) and extent_of(of.axes[dim]) == src.shape[dim]):
        axes[dim] = src.axes[dim]
    bound = join_bound(call, [("self", slot, of), ("src", src_slot, src)])
    partial = _written_pending(call, mine, other, bound)
    return layout(of.dtype, tuple(axes), bound, partial)


@register("slice_scatter", back=_back_written)
def slice_scatter(call: Call) -> Result:
    """src written over a slice of self."""
    slot, of = _self(call)
    src = call.tensor("src")
    dim = dim_of(call, "dim", of.rank, 0)
    if src is None or dim < 0 or src.rank != of.rank:
        return call.result(of)
    out = _placed(call, of, slot, src, call.slot("src"), dim)
    if call.rule.mutates:
        return call.result(out, mutated={slot: out})
    return call.result(out)


@register("select_scatter", back=_back_same)
def select_scatter(call: Call) -> Result:
    """src written over one element of an axis of self."""
    slot, of = _self(call)
    src = call.tensor("src")
    dim = dim_of(call, "dim", of.rank, 0)
    if src is None or dim < 0:
        return call.result(of)
    wide = replace(src, axes=(*src.axes[:dim], (), *src.axes[dim:]))
    cuts: list[tuple[int, Factor]] = bound_on_axis(of, dim)
    if cuts:
        call.issue(
            "LC108",
            f"an element is written at a position among all tokens; {{0}} holds a share over {call.ctx.group((cuts[0][0],))}",
            slot,
        )
    out = _placed(call, of, slot, wide, call.slot("src"), dim)
    if call.rule.mutates:
        return call.result(out, mutated={slot: out})
    return call.result(out)


def _back_pointwise(call: Call, outs: Any, output: int, axis: int, inner: Size) -> Sources | None:
    out: Layout = outs[output]
    sources: Sources = []
    for _, slot, of in call.tensors():
        at = axis - (out.rank - of.rank)
        if at >= 0 and of.axes[at]:
            sources.append((slot, at, inner))
    return sources or None


@register("floor_divide", back=_back_pointwise)
def floor_divide(call: Call) -> Result:
    """Whole quotients. Positions in `tokens * k` divided by k are positions in the tokens."""
    result = elementwise(call)
    of, n = call.tensor("self"), call.get("other")
    value = of.value if of is not None else None
    if value is None or value[0] != "into" or not isinstance(n, (int, Expr)) or isinstance(n, bool):
        return result
    pieces = _leading(value[1], n)
    if pieces is None or not isinstance(result.outs[0], Layout):
        return result
    return call.result(replace(result.outs[0], value=("into", pieces)))


def _leading(axis: Axis, n: Size) -> Axis | None:
    """The factors of an axis without its last n elements' digits."""
    rest = divide_exact(extent_of(axis), n)
    if rest is None:
        return None
    pieces = regroup(axis, [rest, n], {})
    return pieces[0] if pieces is not None else None


@register("movedim", is_view=True)
def movedim(call: Call) -> Result:
    """Axes moved to other places."""
    _slot, of = _self(call)
    source, target = call.get("source"), call.get("destination")
    froms = source if isinstance(source, list) else [source]
    tos = target if isinstance(target, list) else [target]
    froms = [d % of.rank for d in froms if isinstance(d, int)]
    tos = [d % of.rank for d in tos if isinstance(d, int)]
    order: list[int | None] = [None] * of.rank
    for a, b in zip(froms, tos, strict=False):
        order[b] = a
    rest = iter(i for i in range(of.rank) if i not in froms)
    full = [a if a is not None else next(rest) for a in order]
    return call.result(replace(of, axes=tuple(of.axes[i] for i in full)))
