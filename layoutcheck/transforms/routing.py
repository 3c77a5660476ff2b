"""Experts, caches, quantisation, regions and assertions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from layoutcheck.domains import Factor, feature, is_token_like, opaque, routed
from layoutcheck.infer.calls.call import Call, Issue, Result
from layoutcheck.infer.calls.compare import compare_axes, strength
from layoutcheck.infer.calls.states import join_bound
from layoutcheck.layouts import Axis, Layout, bound_on_axis, extent_of, layout, replace, whole_extent
from layoutcheck.symbols import Size
from layoutcheck.transforms.caches import check_rows
from layoutcheck.transforms.exchanges import data_of
from layoutcheck.transforms.rank_shares import resized
from layoutcheck.transforms.reduce import check_pending, need_whole
from layoutcheck.transforms.registry import register
from layoutcheck.transforms.views import Sources, back_same, self_of


def _rows(of: Layout) -> Axis:
    """All axes but the last, as one: the tokens of an id tensor [.., k]."""
    return tuple(f for axis in of.axes[:-1] for f in axis)


def _back_dispatch(call: Call, outs: Any, output: int, axis: int, inner: Size) -> Sources | None:
    slot, of = data_of(call)
    return [(slot, of.rank - 1, inner)] if of is not None and axis == 1 else None


@register("dispatch", back=_back_dispatch)
def dispatch(call: Call) -> Result:
    """Rows of tokens copied once per chosen expert and grouped by expert: a routed domain, named by whose tokens they are."""
    slot, of = data_of(call)
    ids = call.tensor("ids")
    if of is None or ids is None or of.rank < 2 or ids.rank < 1:
        return call.result(of)
    ids_slot = call.slot("ids")
    check_pending(call, slot, of, call.name("x"))
    x_rows, id_rows = of, ids
    if of.rank == 2 and ids.rank == 2 and of.axes[0] and ids.axes[0]:
        first, second = ((slot, x_rows, 0), (ids_slot, id_rows, 0))
        if strength(ids.axes[0]) > strength(of.axes[0]):
            first, second = second, first
        compare_axes(call, first, second)
    rows = _rows(of) or _rows(ids)
    choices = ids.axes[-1]
    bound = join_bound(call, [("x", slot, of), ("ids", ids_slot, replace(ids, value=None))])
    digits = {f.domain for f in rows}
    source = tuple((m, fs) for m, fs in sorted(bound.items()) if any(b.domain in digits for b in fs))
    extent = extent_of(rows) * extent_of(choices)
    domain = routed((*rows, *choices), source, extent, "")
    return call.result(layout(of.dtype, ((domain.whole,), of.axes[-1]), bound, of.partial))


def _back_combine(call: Call, outs: Any, output: int, axis: int, inner: Size) -> Sources | None:
    slot, _of = data_of(call)
    return [(slot, 1, inner)] if axis == outs[output].rank - 1 else None


@register("combine", back=_back_combine)
def combine(call: Call) -> Result:
    """Rows back in token order, [tokens, k, hidden]: exactly the tokens that were dispatched, never more."""
    slot, of = data_of(call)
    ids = call.tensor("ids")
    if of is None or ids is None:
        return call.result(of)
    ids_slot = call.slot("ids")
    axis = of.axes[0] if of.axes else ()
    tail = of.axes[1:]
    bound = dict(of.bound_map)
    first = axis[0] if len(axis) == 1 else None
    if first is None or first.domain.kind != "routed" or not first.is_whole:
        received_rows = any(f.domain.kind in ("received", "routed", "pick", "concat") for f in axis)
        if axis and not all(f.domain.is_feature for f in axis):
            text = (
                "rows are put back in token order before all of them have returned from the experts: {0}"
                if received_rows
                else "{0} was not dispatched; only dispatched rows can be put back in token order"
            )
            call.issue("LC101", text, slot, ids_slot)
        for m, fs in ids.bound:
            bound[m] = fs
        return call.result(layout(of.dtype, (*ids.axes, *tail), {**bound}, of.partial))
    rows, source = first.domain.args
    wanted = tuple(f for a in ids.axes for f in a)
    if rows != wanted or {m: fs for m, fs in source} != _tokens_only(ids):
        have, want_size = extent_of(rows), extent_of(wanted)
        code = "LC102" if have == want_size else "LC101"
        call.issue(code, "{0} was dispatched with other top-k ids than {1}", slot, ids_slot)
    return call.result(layout(of.dtype, (*ids.axes, *tail), bound, of.partial))


def _tokens_only(ids: Layout) -> dict[int, tuple[Factor, ...]]:
    digits = {f.domain for a in ids.axes for f in a}
    return {m: fs for m, fs in ids.bound if any(b.domain in digits for b in fs)}


@register("moe", back=back_same)
def moe(call: Call) -> Result:
    """Dispatch, experts and combine in one op: the output has x's rows; a sum over the ranks that cut the experts' inner features."""
    slot, of = data_of(call)
    ids = call.tensor("ids")
    if of is None:
        return call.result(None)
    for param, each, held in call.tensors():
        check_pending(call, each, held, param)
    if of.rank:
        need_whole(call, slot, of, of.rank - 1, "an expert runs over")
    if ids is not None and ids.rank:
        need_whole(call, call.slot("ids"), ids, ids.rank - 1, "rows are dispatched by")
    _check_experts(call)
    if ids is not None and ids.axes and of.axes and ids.axes[0] and of.axes[0] and of.rank == ids.rank:
        first, second = (slot, of, 0), (call.slot("ids"), ids, 0)
        if strength(ids.axes[0]) > strength(of.axes[0]):
            first, second = second, first
        compare_axes(call, first, second)
    # Beside a rank's own tokens such a sum adds up different ones: Mixed, reported where it is reduced.
    pending = tuple(m for m in _experts_cut(call) if m not in of.partial)
    partial = tuple(sorted({*of.partial, *pending}))
    return call.result(replace(of, dtype=call.dtype(of.dtype), partial=partial))


def _experts_cut(call: Call) -> list[int]:
    """Mesh axes over which the experts' inner features are cut: columns of the first product, rows of the second."""
    weights = [of for p, _, of in call.tensors() if p in call.rule.weights and of.rank == 3]
    if len(weights) < 2:
        return []
    columns, rows = (
        {m for m, f in bound_on_axis(of, axis) if f.domain.is_feature}
        for of, axis in ((weights[0], 2), (weights[-1], 1))
    )
    return sorted(columns & rows)


def _check_experts(call: Call) -> None:
    """Experts are whole, or their inner features are cut alike on both sides (the result is a sum then); stacked along dimension 0
    they may be shared out, the same ones on both sides.
    """
    inner = set(_experts_cut(call))
    seen: tuple[int, dict[int, tuple[Factor, ...]]] | None = None
    names = (call.name("up"), call.name("down"))
    for param, slot, of in call.tensors():
        if param not in names:
            continue
        stacked = 1 if of.rank > 2 else 0
        for dim in range(stacked, of.rank):
            summed = (
                dim == (2 if param == names[0] else 1) and {m for m, _ in bound_on_axis(of, dim)} <= inner
            )
            if not summed and not need_whole(call, slot, of, dim, "an expert runs over"):
                return
        mine: dict[int, tuple[Factor, ...]] = {m: (b,) for m, b in bound_on_axis(of, 0)} if stacked else {}
        if seen is not None and seen[1] != mine:
            call.issue("LC101", "{0} and {1} are not of the same experts", seen[0], slot)
            return
        seen = (slot, mine)


@register("cache_write")
def cache_write(call: Call) -> Result:
    """Rows written into a cache at slots. Written by each rank with its own share, a cache is filled in part."""
    cache, cache_slot = call.tensor("cache"), call.slot("cache")
    slots = call.tensor("slots")
    named = call.rule.options.get("values", "").split(",")
    values = [
        (p, s, of)
        for p, s, of in call.tensors()
        if p in named or (named == [""] and s not in (cache_slot, call.slot("slots")))
    ]
    for p, s, of in values:
        check_pending(call, s, of, p)
    if cache is not None:
        check_pending(call, cache_slot, cache, call.name("cache"))
        check_rows(call, (cache_slot, cache), [(s, of) for _, s, of in values], slots)
    lead = [(p, s, of) for p, s, of in values if of.rank and of.axes[0]]
    if slots is not None and slots.rank == 1 and slots.axes[0]:
        for _, s, of in lead:
            at = next((i for i, a in enumerate(of.axes) if any(not f.domain.is_feature for f in a)), None)
            if at is None or not any(is_token_like(f.domain) for f in of.axes[at]):
                continue
            first, second = (s, of, at), (call.slot("slots"), slots, 0)
            if strength(slots.axes[0]) > strength(of.axes[at]):
                first, second = second, first
            compare_axes(call, first, second)
    if cache is None:
        return call.result(*[of for _, _, of in values[:1]])
    for _, s, of in values:
        _heads_fit(call, s, of, cache_slot, cache)
    bound = dict(cache.bound_map)
    for _, _, of in [*values, *([("slots", 0, slots)] if slots is not None else [])]:
        for m, fs in of.bound:
            tokens = tuple(b for b in fs if is_token_like(b.domain))
            if tokens and m not in call.ctx.mesh.quotient:
                bound[m] = tuple(dict.fromkeys(bound.get(m, ()) + tokens))
    out = replace(cache, bound=bound)
    if call.rule.options.get("returns") == "cache":
        return call.result(out, mutated={cache_slot: out})
    return call.result(None, mutated={cache_slot: out})


def _heads_fit(call: Call, slot: int, of: Layout, cache_slot: int, cache: Layout) -> None:
    """What is written is a shard of features (heads) where the cache is one, and nowhere else."""
    for axis, held in _same_features(of, cache):
        mine = {m for m, b in bound_on_axis(of, axis) if b.domain.is_feature}
        its = {m for m, b in bound_on_axis(cache, held) if b.domain.is_feature}
        sides = ((slot, of, axis), (cache_slot, cache, held))
        for cut, (s, other, at), first in ((mine - its, sides[1], slot), (its - mine, sides[0], cache_slot)):
            if not cut:
                continue
            issue = Issue(
                "LC101",
                f"{{0}} has one shard of the heads over {call.ctx.group(tuple(cut))}, {{1}} has all of them",
                (first, s),
            )
            for m in sorted(cut):
                call.want("cut", s, issue, axis=at, inner=other.shape[at], mesh_axes=(m,))


def _same_features(of: Layout, cache: Layout) -> Iterator[tuple[int, int]]:
    """Pairs of axes of a value and its cache that hold the same features, from the right; `(h d)` begins at the cache's `h`."""
    axis, held = of.rank - 1, cache.rank - 1
    while axis > 0 and held > 0:
        mine, its = _sizes(of, axis), _sizes(cache, held)
        if _is_one_head(of, axis, cache, held) and mine[1] != its[1]:
            yield axis, held - 1
            return
        if not any(a == b for a, b in zip(mine, its, strict=True)):
            both = [a * b for a, b in zip(its, _sizes(cache, held - 1), strict=True)] if held > 1 else []
            if any(a == b for a, b in zip(mine, both, strict=False)):
                yield axis, held - 1
            return
        yield axis, held
        axis, held = axis - 1, held - 1


def _is_one_head(of: Layout, axis: int, cache: Layout, held: int) -> bool:
    """Whether a row of a value is a rank's one head, without an axis of heads, which the cache has behind its blocks of rows."""
    begins = axis == 1 or any(not f.domain.is_feature for f in of.axes[axis - 1])
    return begins and held > 2 and cache.shape[held - 1] == 1 and of.shape[axis] == cache.shape[held]


def _sizes(of: Layout, axis: int) -> tuple[Size, Size]:
    """Elements of an axis on this rank, and over all ranks."""
    return of.shape[axis], whole_extent(of, axis)


def _back_quantize(call: Call, outs: Any, output: int, axis: int, inner: Size) -> Sources | None:
    slot, of = data_of(call)
    return [(slot, axis, inner)] if of is not None and output == 0 else None


@register("quantize", back=_back_quantize)
def quantize(call: Call) -> Result:
    """Codes, and a scale taken over some axes (all of them where none are named). The scale of a share is the share's own."""
    slot, of = data_of(call)
    if of is None:
        return call.result(None)
    check_pending(call, slot, of, call.name("x"))
    codes, scale = quantized(call, of)
    if call.get("offset"):
        return call.result(codes, scale, replace(scale, dtype=call.dtype("int32", 2)))
    return call.result(codes, scale)


def quantized(call: Call, of: Layout) -> list[Layout]:
    """Layouts of codes, scale and (asymmetric) offset of a quantised tensor."""
    codes = replace(of, dtype=call.dtype("int8"), partial=(), value=None)
    dims = call.get("dims")
    group = call.get("group_size")
    dims = [dims] if isinstance(dims, int) else dims
    wanted = (
        [d + of.rank if isinstance(d, int) and d < 0 else d for d in dims] if isinstance(dims, list) else []
    )
    axes: tuple[Axis, ...]
    if isinstance(group, int) and group > 0 and of.rank:
        last = of.shape[-1]
        count = last // group if isinstance(last, int) else 1
        if bound_on_axis(of, of.rank - 1):
            # a shard of codes has the scales of its own blocks
            axis, bound = resized(of, of.rank - 1, count)
            return [codes, layout(call.dtype("float32", 1), (*of.axes[:-1], axis), bound)]
        axes = (*of.axes[:-1], (feature(count).whole,))
    elif wanted:
        axes = tuple(() if i in wanted else a for i, a in enumerate(of.axes))
    else:
        axes = ()
    return [codes, layout(call.dtype("float32", 1), axes, of.bound_map)]


@register("assert_")
def nothing(call: Call) -> Result:
    """An assertion: no output."""
    return call.result(None)


@register("opaque")
def opaque_(call: Call) -> Result:
    """An op of which only the number of results is known: it needs all of every operand, and its rows are its own."""
    first: Layout | None = None
    for param, slot, of in call.tensors():
        check_pending(call, slot, of, param)
        first = first or of
        for m, fs in of.bound:
            if m not in call.ctx.mesh.quotient and fs:
                call.issue(
                    "LC106", f"needs all of its operands; {{0}} is a share over {call.ctx.group((m,))}", slot
                )
                break
    count = call.get("outputs", 1)
    out = (
        layout(call.dtype("float32"), ())
        if first is None
        else replace(
            first,
            dtype=call.dtype(first.dtype),
            axes=_opaque_axes(call, first),
            bound={},
            partial=(),
            value=None,
        )
    )
    return call.result(*[out] * (count if isinstance(count, int) else 1))


def _opaque_axes(call: Call, first: Layout) -> tuple[Axis, ...]:
    """The axes of a result of which only the kind is known; `as` says which kind, where it is not the first operand's."""
    kind = call.get("as")
    if kind not in ("positions", "flat"):
        return _own_rows(call, first)
    total: Size = 1
    for n in first.shape:
        total = total * n
    rows = opaque(call.rule.target, total, (tuple(f for axis in first.axes for f in axis),)).whole
    return ((rows,), (feature(first.rank).whole,)) if kind == "positions" else ((rows,),)


def _own_rows(call: Call, of: Layout) -> tuple[Axis, ...]:
    """The axes with rows that nothing else has in the place of tokens."""
    rows = opaque(call.rule.target, extent_of(of.axes[0]) if of.rank else 1, of.axes[:1])
    axes = list(of.axes)
    for i, axis in enumerate(axes):
        if any(not f.domain.is_feature for f in axis):
            axes[i] = (rows.whole,) if i == 0 else (opaque(call.rule.target, extent_of(axis), (axis,)).whole,)
    return tuple(axes)


def _region(call: Call) -> Result:
    _slot, of = self_of(call)
    return call.result(of)


for _name in ("region_begin", "region_end", "region_copy"):
    register(_name, back=back_same)(_region)
