"""Shape rules for `scale`: what each op does to pairs of extents, and which of its literals count tokens."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from .builder import Json
from .scale import Ambiguous, Extent, Scaler, Shape, Value, broadcast, fixed, join, regroup, times

RULES: dict[str, Callable[..., Value]] = {}


def rule(*targets: str) -> Callable[[Callable[..., Value]], Callable[..., Value]]:
    def register(function: Callable[..., Value]) -> Callable[..., Value]:
        RULES.update(dict.fromkeys(targets, function))
        return function

    return register


def scaled(extent: Extent, p: Fraction) -> Extent:
    """An extent times a number of ranks, or by one."""
    if extent.new is None:
        raise Ambiguous("a collective on a created axis")
    return Extent(times(extent.old, p), times(extent.new, p))


def replaced(shape: Shape, dim: int, extent: Extent) -> Shape:
    dim %= len(shape)
    return shape[:dim] + [extent] + shape[dim + 1 :]


@rule(
    *(f"aten.{op}.Tensor" for op in ("add", "mul", "sub", "div", "bitwise_and")),
    *(f"aten.{op}.default" for op in ("alias", "clone", "cos", "sin", "sigmoid", "bitwise_not", "copy")),
    *(
        "aten.ge.Scalar",
        "aten.lt.Scalar",
        "aten.where.self",
    ),
    *("prims.convert_element_type.default", "tensor_cast.silu.default", "tensor_cast.all_reduce.default"),
)
def elementwise(s: Scaler, node: Json, *args: Any) -> Value:
    return broadcast(*(s.shape(a) for a in args if isinstance(a, dict) and "node" in a))


@rule(
    *(
        f"tensor_cast._internal_{op}.default"
        for op in ("copy_region", "mark_region_begin", "mark_region_end")
    ),
    *("tensor_cast.rms_norm.default", "tensor_cast.shift_and_update_input_ids.default"),
    "tensor_cast.attention.default",
)
def first(s: Scaler, node: Json, x: Any, *rest: Any) -> Value:
    return s.shape(x)


@rule("tensor_cast.add_rms_norm.default")
def add_norm(s: Scaler, node: Json, x: Any, residual: Any, *rest: Any) -> Value:
    return broadcast(s.shape(x), s.shape(residual))


@rule("tensor_cast.add_rms_norm2.default")
def add_norm2(s: Scaler, node: Json, x: Any, residual: Any, *rest: Any) -> Value:
    return [broadcast(s.shape(x), s.shape(residual))] * 2


@rule("tensor_cast.add_rms_norm_dynamic_quant2_symmetric.default")
def add_norm_quant2(s: Scaler, node: Json, x: Any, residual: Any, *rest: Any) -> Value:
    both = broadcast(s.shape(x), s.shape(residual))
    return [both, [], both]


@rule(
    "tensor_cast.rms_norm_dynamic_quant_symmetric.default", "tensor_cast.dynamic_quantize_symmetric.default"
)
def quantize(s: Scaler, node: Json, x: Any, *rest: Any) -> Value:
    return [s.shape(x), []]


@rule("aten.mm.default")
def mm(s: Scaler, node: Json, x: Any, w: Any) -> Value:
    join(s.shape(x)[1], s.shape(w)[0])
    return [s.shape(x)[0], s.shape(w)[1]]


@rule("tensor_cast.static_quant_linear.default")
def linear(s: Scaler, node: Json, x: Any, w: Any, *rest: Any) -> Value:
    join(s.shape(x)[-1], s.shape(w)[0])
    return [*s.shape(x)[:-1], s.shape(w)[1]]


@rule("aten.view.default")
def view(s: Scaler, node: Json, x: Any, sizes: list[int]) -> Value:
    sizes[:], shape = regroup(s.shape(x), list(sizes))
    return shape


@rule("aten.permute.default")
def permute(s: Scaler, node: Json, x: Any, dims: list[int]) -> Value:
    return [s.shape(x)[d] for d in dims]


@rule("aten.unsqueeze.default")
def unsqueeze(s: Scaler, node: Json, x: Any, dim: int) -> Value:
    shape = s.shape(x)
    at = dim % (len(shape) + 1)
    return shape[:at] + fixed(1) + shape[at:]


@rule("aten.select.int")
def select(s: Scaler, node: Json, x: Any, dim: int, index: int) -> Value:
    shape = s.shape(x)
    return shape[: dim % len(shape)] + shape[dim % len(shape) + 1 :]


@rule("aten.expand.default")
def expand(s: Scaler, node: Json, x: Any, sizes: list[int]) -> Value:
    shape = fixed(*[1] * (len(sizes) - len(s.shape(x)))) + s.shape(x)
    for i, (n, e) in enumerate(zip(sizes, shape)):
        if n == e.old:
            assert e.new is not None
            sizes[i] = e.new
        elif n != -1:
            if n in s.counted:
                raise Ambiguous(f"nothing tells whether the expanded {n} counts tokens")
            shape[i] = Extent(n, n)
    return shape


@rule("aten.slice.Tensor")
def slice_(s: Scaler, node: Json, x: Any, dim: int = 0, start: int = 0, stop: int = 2**63 - 1) -> Value:
    shape = s.shape(x)
    extent = shape[dim % len(shape)]
    ratio = extent.ratio
    start_new = times(start, ratio)
    stop_new = stop if stop >= 2**62 else times(stop, ratio)
    node["args"] = [x, dim, start_new, stop_new]
    old = min(stop, extent.old) - min(start, extent.old)
    assert extent.new is not None
    return replaced(shape, dim, Extent(old, min(stop_new, extent.new) - min(start_new, extent.new)))


@rule("aten.constant_pad_nd.default")
def pad(s: Scaler, node: Json, x: Any, amounts: list[int], *value: Any) -> Value:
    shape = s.shape(x)
    for i in range(0, len(amounts), 2):
        dim = len(shape) - 1 - i // 2
        e = shape[dim]
        before, after = times(amounts[i], e.ratio), times(amounts[i + 1], e.ratio)
        assert e.new is not None
        shape = replaced(shape, dim, Extent(e.old + amounts[i] + amounts[i + 1], e.new + before + after))
        amounts[i], amounts[i + 1] = before, after
    return shape


@rule("aten.split_with_sizes.default")
def split(s: Scaler, node: Json, x: Any, sizes: list[int], dim: int = 0) -> Value:
    shape = s.shape(x)
    ratio = shape[dim].ratio
    olds = list(sizes)
    sizes[:] = [times(n, ratio) for n in olds]
    return [replaced(shape, dim, Extent(o, n)) for o, n in zip(olds, sizes)]


@rule("aten.cat.default")
def cat(s: Scaler, node: Json, tensors: list[Any], dim: int = 0) -> Value:
    shapes = [s.shape(t) for t in tensors]
    dim %= len(shapes[0])
    for other in shapes[1:]:
        for i, (a, b) in enumerate(zip(shapes[0], other)):
            if i != dim:
                join(a, b)
    parts = [shape[dim] for shape in shapes]
    if any(part.new is None for part in parts):
        raise Ambiguous("a cat of created axes")
    return replaced(shapes[0], dim, Extent(sum(e.old for e in parts), sum(e.new or 0 for e in parts)))


@rule("aten.sum.dim_IntList")
def sum_(s: Scaler, node: Json, x: Any, dims: list[int], keep: bool = False) -> Value:
    shape = s.shape(x)
    gone = {d % len(shape) for d in dims}
    return [fixed(1)[0] if i in gone else e for i, e in enumerate(shape) if keep or i not in gone]


@rule("aten.argmax.default")
def argmax(s: Scaler, node: Json, x: Any, dim: int | None = None, keep: bool = False) -> Value:
    return [] if dim is None else sum_(s, node, x, [dim], keep)


@rule("aten.topk.default")
def topk(s: Scaler, node: Json, x: Any, k: int, dim: int = -1, *rest: Any) -> Value:
    return [replaced(s.shape(x), dim, Extent(k, k))] * 2


@rule("aten.scatter.value")
def scatter(s: Scaler, node: Json, x: Any, dim: int, index: Any, value: Any) -> Value:
    shape = s.shape(x)
    for i, (a, b) in enumerate(zip(shape, s.shape(index))):
        if i != dim % len(shape) and a.old == b.old:
            join(a, b)
    return shape


@rule("aten.select_scatter.default")
def select_scatter(s: Scaler, node: Json, x: Any, *rest: Any) -> Value:
    return s.shape(x)


@rule("aten.gather.default")
def gather(s: Scaler, node: Json, x: Any, dim: int, index: Any) -> Value:
    return s.shape(index)


@rule("aten.embedding.default")
def embedding(s: Scaler, node: Json, table: Any, index: Any, *rest: Any) -> Value:
    return s.shape(index) + s.shape(table)[1:]


@rule("aten.index.Tensor")
def index(s: Scaler, node: Json, x: Any, indices: list[Any]) -> Value:
    shape = s.shape(x)
    lead = [e for e, i in zip(shape, indices) if i is None]
    if any(i is not None for i in indices[:-1]):
        raise Ambiguous("indices on several axes")
    return lead + s.shape(indices[-1]) + shape[len(indices) :]


@rule("aten.full.default")
def full(s: Scaler, node: Json, sizes: list[int], *value: Any) -> Value:
    return s.create(sizes)


@rule("aten.empty.memory_format")
def empty(s: Scaler, node: Json, sizes: list[int], *rest: Any) -> Value:
    return s.create(sizes)


@rule("aten.scalar_tensor.default")
def scalar(s: Scaler, node: Json, value: Any) -> Value:
    return []


@rule("operator.getitem")
def getitem(s: Scaler, node: Json, x: Any, i: int) -> Value:
    return s.values[x["node"]][i]


@rule("tensor_cast.all_gather.default")
def all_gather(s: Scaler, node: Json, x: Any, dim: int, rank: int, ranks: list[int]) -> Value:
    shape = s.shape(x)
    return replaced(shape, dim, scaled(shape[dim], Fraction(len(ranks))))


@rule("tensor_cast.reduce_scatter.default")
def reduce_scatter(s: Scaler, node: Json, x: Any, dim: int, rank: int, ranks: list[int]) -> Value:
    shape = s.shape(x)
    return replaced(shape, dim, scaled(shape[dim], Fraction(1, len(ranks))))


@rule("tensor_cast.all_to_all.default")
def all_to_all(s: Scaler, node: Json, x: Any, outs: list[int], ins: list[int], *rest: Any) -> Value:
    shape = s.shape(x)
    ratio = shape[0].ratio
    old = sum(outs)
    outs[:], ins[:] = [times(n, ratio) for n in outs], [times(n, ratio) for n in ins]
    return replaced(shape, 0, Extent(old, sum(outs)))


@rule("tensor_cast.apply_rope.default")
def rope(s: Scaler, node: Json, a: Any, b: Any, *rest: Any) -> Value:
    return [[s.shape(v)[d] for d in (0, 2, 1, 3)] for v in (a, b)]


@rule("tensor_cast.mlapo.default", "tensor_cast.mlapo_quant.default")
def mlapo(s: Scaler, node: Json, x: Any, *rest: Any) -> Value:
    return [[s.shape(x)[0], *fixed(*meta["shape"][1:])] for meta in node["meta"]]


@rule("tensor_cast.multihead_latent_attention.default", "tensor_cast.mla_sparse_attention.default")
def latent(s: Scaler, node: Json, q: Any, *rest: Any) -> Value:
    return [s.shape(q)[0], *fixed(*node["meta"]["shape"][1:])]


@rule("tensor_cast.init_routing_v2.default")
def routing(s: Scaler, node: Json, x: Any, ids: Any) -> Value:
    rows, k = s.shape(ids)
    assert rows.new is not None
    return [Extent(rows.old * k.old, rows.new * k.old), *s.shape(x)[1:]]


@rule("tensor_cast.unpermute_tokens.default")
def unpermute(s: Scaler, node: Json, x: Any, ids: Any) -> Value:
    return s.shape(ids) + s.shape(x)[1:]


@rule("tensor_cast.moe_gating_top_k_softmax.default")
def gating(s: Scaler, node: Json, x: Any, k: int) -> Value:
    return [[*s.shape(x)[:-1], *fixed(k)]] * 2


@rule("auto_functionalized_v2")
def functionalized(s: Scaler, node: Json, op: Any) -> Value:
    """Cache writes return their bases; the indexer returns top-k positions for each query before them."""
    bases = [s.shape(base) for base in node["kwargs"]["_all_bases"]]
    if "dsa_indexer" in op["repr"]:
        recorded = node["meta"][0]["shape"]
        return [[*s.shape(node["kwargs"]["hidden_states"])[:-1], *fixed(recorded[-1])], *bases]
    return [[], *bases]
