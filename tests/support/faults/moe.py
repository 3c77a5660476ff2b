"""Faults of expert parallelism: what is dispatched, and what combine has summed already."""

from __future__ import annotations

from ..builder import GraphBuilder, Val
from .base import Size, attention_layer, cut, enter, enter_full, fault, finish, whole

TOP_K = 2


def _topk(b: GraphBuilder, x: Val, experts: int) -> tuple[Val, Val]:
    """The router: weights and ids of each row's experts."""
    rows, shape = x.shape[0], (x.shape[0], TOP_K)
    logits = b.linear(x, b.weight((experts, x.shape[1])))
    metas = [(shape, b.dtype), (shape, "int64")]
    if b.dialect == "c10d":
        chances = b.call("aten._softmax.default", logits, -1, False, shape=(rows, experts))
        weights, ids = b.call_many("aten.topk.default", chances, TOP_K, metas=metas)
    else:
        weights, ids = b.call_many("tensor_cast.moe_gating_top_k_softmax.default", logits, TOP_K, metas=metas)
    return weights, ids


def _expert(b: GraphBuilder, x: Val, inner: int) -> Val:
    """The one expert that lives on this rank."""
    return b.mlp(x, inner)


def dispatch_combine(b: GraphBuilder, s: Size, x: Val) -> tuple[Val, Val]:
    """Route the rows of x to one expert a rank and back. Returns (combined rows, what dispatch sent)."""
    weights, ids = _topk(b, x, experts=s.p)
    rows, width = x.shape
    assert isinstance(rows, int)
    flat = rows * TOP_K
    # equal splits are one rank's assumption; a row count that p does not divide is rounded up by the caller
    if b.dialect != "c10d":
        sent = b.call("tensor_cast.init_routing_v2.default", x, ids, shape=(flat, width))
        got = b.all_to_all(sent)
        back = b.all_to_all(_expert(b, got, s.F))
        each = b.call("tensor_cast.unpermute_tokens.default", back, ids, shape=(rows, TOP_K, width))
    else:
        flat_ids = b.call("aten.view.default", ids, [-1], shape=(flat,), dtype="int64")
        _, order = b.call_many("aten.sort.default", flat_ids, metas=[((flat,), "int64"), ((flat,), "int64")])
        source = b.call("aten.floor_divide.default", order, TOP_K, shape=(flat,), dtype="int64")
        sent = b.call("aten.index.Tensor", x, [source], shape=(flat, width))
        got = b.all_to_all(sent)
        back = b.all_to_all(_expert(b, got, s.F))
        empty = b.call("aten.empty_like.default", back, shape=(flat, width))
        placed = b.call("aten.index_put.default", empty, [order], back, shape=(flat, width))
        each = b.view(placed, (rows, TOP_K, width))
    column = b.call("aten.unsqueeze.default", weights, -1, shape=(rows, TOP_K, 1))
    weighted = b.call("aten.mul.Tensor", each, column, shape=(rows, TOP_K, width))
    return b.call("aten.sum.dim_IntList", weighted, [1], shape=(rows, width)), got


# rows * TOP_K must be a multiple of p for equal splits
MOE_SIZES = (
    Size("base", T=16, p=4),
    Size("square", T=64, p=4),
    Size("uneven", T=15, p=4),
    Size("pair", T=8, H=32, p=2, rank=1),
)


@fault(
    "9",
    "LC202",
    note="combine's sums are complete on each token's rank; gathered, they are Full",
    sizes=MOE_SIZES,
)
def reduce_after_combine(b: GraphBuilder, s: Size, broken: bool) -> Val:
    """Combine has summed the experts' parts, and the layer reduces once more."""
    x = attention_layer(b, s, enter(b, s))
    y, _ = dispatch_combine(b, s, b.norm(x))
    full = whole(b, s, y)
    z = b.all_reduce(full) if broken else full
    finish(b, s, b.add(whole(b, s, x), z), local=False)
    return z


@fault("41", "LC602", severity="warning", sizes=MOE_SIZES)
def replicated_dispatch(b: GraphBuilder, s: Size, broken: bool) -> Val:
    """Every tensor-parallel rank dispatches all tokens, so each token is computed p times."""
    x = enter_full(b, s)
    h = b.norm(x)
    if broken:
        y, sent = dispatch_combine(b, s, b.pad_rows(h, s.pad))
        z = b.slice(y, 0, s.T) if s.pad else y
    else:
        y, sent = dispatch_combine(b, s, cut(b, s, h))
        z = whole(b, s, y)
    finish(b, s, b.add(x, z), local=False)
    return sent
