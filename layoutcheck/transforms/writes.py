"""Writing part of a tensor: at positions, where a mask holds, over a slice."""

from __future__ import annotations

from typing import Any

from layoutcheck.domains import Factor, is_token_like
from layoutcheck.infer.calls.call import Call, Result, dim_of
from layoutcheck.infer.calls.compare import compare_axes, is_wild, strength
from layoutcheck.infer.calls.elementwise import broadcast_axes
from layoutcheck.infer.calls.states import is_zero, join_bound, join_partial
from layoutcheck.layouts import Axis, Layout, bound_on_axis, extent_of, layout, replace
from layoutcheck.symbols import Expr, Size
from layoutcheck.transforms.index import listed, points_into, rows_agree
from layoutcheck.transforms.masks import masked
from layoutcheck.transforms.rank_shares import rank_share
from layoutcheck.transforms.registry import register
from layoutcheck.transforms.views import Sources, back_same, self_of

Operand = tuple[str, int, Layout]


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


def _back_into(source: str) -> Any:
    """Where an axis comes from that is not the one written along: what is written, and self unless it is a blank buffer."""

    def back(call: Call, outs: Any, output: int, axis: int, inner: Size) -> Sources | None:
        slot, of = self_of(call)
        given = call.tensor(source)
        dim = dim_of(call, "dim", of.rank, 0)
        sources: Sources = [] if is_blank(of) else [(slot, axis, inner)]
        if given is not None and given.rank == of.rank and axis != dim and not is_wild(given.axes[axis]):
            sources.append((call.slot(source), axis, inner))
        return sources or None

    return back


@register("scatter", back=_back_into("src"))
def scatter(call: Call) -> Result:
    """Values written at positions along an axis; the result has self's axes, rows must agree."""
    slot, of = self_of(call)
    idx = call.tensor("index")
    dim = dim_of(call, "dim", of.rank, -1)
    if idx is None or dim < 0:
        return call.result(of)
    check_written(call, slot, of, dim, call.slot("index"), idx)
    operands: list[Operand] = [("self", slot, of), ("index", call.slot("index"), idx)]
    axes = list(rows_agree(call, operands[0], operands[1], dim))
    axes[dim] = of.axes[dim]
    src = call.tensor("src")
    if src is not None and src.rank == of.rank:
        rows_agree(call, ("src", call.slot("src"), src), operands[1], dim)
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


def _back_put(call: Call, outs: Any, output: int, axis: int, inner: Size) -> Sources | None:
    """What is written decides where self is a fresh buffer; else both do."""
    slot, of = self_of(call)
    values = call.tensor("values")
    indices = listed(call, "indices")
    given = [k for k, (_, t) in enumerate(indices) if t is not None]
    sources: Sources = [] if is_wild(of.axes[axis]) or is_blank(of) else [(slot, axis, inner)]
    if values is not None and axis not in given:
        # what is written has the axes of the positions in their place, and may lack leading ones
        depth = max((t.rank for _, t in indices if t is not None), default=0)
        place = axis if not given or axis < given[0] else axis - len(given) + depth
        at = place - (of.rank - len(given) + depth - values.rank)
        if 0 <= at < values.rank and values.axes[at]:
            sources.append((call.slot("values"), at, inner))
    return sources or None


@register("index_put", back=_back_put)
def index_put(call: Call) -> Result:
    """Values written at indices or where a mask holds."""
    slot, of = self_of(call)
    indices = listed(call, "indices")
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


@register("index_add", back=_back_into("source"))
def index_add(call: Call) -> Result:
    """Rows added to (copied into) self at positions along an axis."""
    slot, of = self_of(call)
    idx, src = call.tensor("index"), call.tensor("source")
    dim = dim_of(call, "dim", of.rank, 0)
    operands: list[Operand] = [("self", slot, of)]
    if src is not None:
        operands.append((call.name("source"), call.slot("source"), src))
    if idx is not None and dim >= 0:
        check_written(call, slot, of, dim, call.slot("index"), idx)
    if (
        (src is None or not src.rank)
        and idx is not None
        and idx.bound
        and dim >= 0
        and not points_into(idx, of.axes[dim])
    ):
        call.issue(
            "LC108",
            f"each rank of {call.ctx.group((idx.bound[0][0],))} writes at positions of its own ({{1}}) into {{0}}",
            slot,
            call.slot("index"),
        )
    if src is not None and src.rank == of.rank and dim >= 0:
        rows_agree(call, operands[0], operands[1], dim)
        if idx is not None and idx.rank == 1 and idx.axes[0] and src.axes[dim]:
            compare_axes(call, (call.slot("source"), src, dim), (call.slot("index"), idx, 0))
    bound = join_bound(call, operands)
    partial = _written_pending(call, operands[0], operands[1] if len(operands) > 1 else None, bound)
    axes = of.axes
    if src is not None and src.rank == of.rank:
        # one head a rank: what is written says that the axis is the heads'
        axes = tuple(
            src.axes[i] if not axis and i != dim and src.shape[i] == 1 else axis
            for i, axis in enumerate(axes)
        )
    out = layout(of.dtype, axes, bound, partial)
    if call.rule.mutates:
        return call.result(out, mutated={slot: out})
    return call.result(out)


def _back_written(call: Call, outs: Any, output: int, axis: int, inner: Size) -> Sources | None:
    """What is written decides where self is a fresh buffer; else both do."""
    slot, of = self_of(call)
    src = call.tensor("src")
    sources: Sources = []
    if axis < of.rank and not (of.axes[axis] and all(f.domain.kind == "any" for f in of.axes[axis])):
        sources.append((slot, axis, inner))
    if src is not None:
        at = axis - (of.rank - src.rank)
        if at >= 0 and src.shape[at] == outs[output].shape[axis] and not (sources and is_wild(src.axes[at])):
            sources.append((call.slot("src"), at, inner))
    return sources or None


@register("copy", back=_back_written)
def copy(call: Call) -> Result:
    """src written over self: src's layout, broadcast to self's shape."""
    slot, of = self_of(call)
    src = call.tensor("src")
    if src is None:
        return call.result(of)
    src_slot = call.slot("src")
    # an empty buffer has what is written to it, whatever it was made like
    wild = all(f.domain.kind == "any" for axis in of.axes for f in axis) or (
        of.value == ("fill", None) and _same_shape(of, src)
    )
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
    own_rows = _own_rows(call, of, src, dim)
    if own_rows is not None:
        return own_rows
    axes = list(rows_agree(call, mine, other, dim))
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


def _own_rows(call: Call, of: Layout, src: Layout, dim: int) -> Layout | None:
    """A rank's share written over its own place among zeros is that rank's part of a sum that gives all shares."""
    start = call.get("start") or 0
    if not is_zero(of) or src.rank != of.rank or not isinstance(start, (int, Expr)) or src.partial:
        return None
    share = rank_share(call, of, dim, start, src.shape[dim])
    if share is None or share.axes[dim] != src.axes[dim] or share.bound_map != src.bound_map:
        return None
    over = tuple(m for m in share.bound_map if m not in of.bound_map)
    axes = tuple(of.axes[i] if i == dim else a for i, a in enumerate(src.axes))
    return layout(src.dtype, axes, of.bound_map, over)


@register("slice_scatter", back=_back_written)
def slice_scatter(call: Call) -> Result:
    """src written over a slice of self."""
    slot, of = self_of(call)
    src = call.tensor("src")
    dim = dim_of(call, "dim", of.rank, 0)
    if src is None or dim < 0 or src.rank != of.rank:
        return call.result(of)
    out = _placed(call, of, slot, src, call.slot("src"), dim)
    if call.rule.mutates:
        return call.result(out, mutated={slot: out})
    return call.result(out)


@register("select_scatter", back=back_same)
def select_scatter(call: Call) -> Result:
    """src written over one element of an axis of self."""
    slot, of = self_of(call)
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
