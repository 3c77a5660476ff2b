"""Faults of tokens: Full beside Local, gathers of what is whole, padding that is not cut back."""

from __future__ import annotations

from ..builder import GraphBuilder, Val
from .base import Size, attention_layer, cut, enter, enter_full, fault, finish, scatter

ONE_TO_THREE = (Size("T1", T=1, p=4), Size("T3", T=3, p=4), Size("T1-rank1", T=1, p=4, rank=1))
UNEVEN = (Size("uneven", T=13, p=4), Size("T97", T=97, p=8), Size("T65-rank1", T=65, p=8, rank=1))


@fault("17", "LC101")
def full_embeddings_as_residual(b: GraphBuilder, s: Size, broken: bool) -> Val:
    """Layer 0's residual is the Full embedding, its hidden states are Local."""
    emb = enter_full(b, s)
    mixed = b.attention(b.norm(emb), s.heads, s.head_dim)
    y = b.add(scatter(b, s, mixed), emb if broken else cut(b, s, emb))
    finish(b, s, y, local=True)
    return y


@fault(
    "19",
    "LC101",
    "LC102",
    note="the row names no code: Full meets Local, with equal extents at T = 1 (LC102) or not (LC101)",
    sizes=ONE_TO_THREE,
)
def residual_left_full(b: GraphBuilder, s: Size, broken: bool) -> Val:
    """Sequence parallelism was told from a shape; below p tokens the share is as long as the whole."""
    emb = enter_full(b, s)
    mixed = b.attention(b.norm(emb), s.heads, s.head_dim)
    y = b.add(scatter(b, s, mixed), emb if broken else cut(b, s, emb))
    out = b.reduce_scatter(b.mlp(b.all_gather(b.norm(y)), s.inner))
    finish(b, s, b.add(y, out), local=True)
    return y


@fault("27", "LC101", "LC107", note="the all_reduce records the residual's shape, as the fake op did")
def reduce_keeps_global_tokens(b: GraphBuilder, s: Size, broken: bool) -> Val:
    """A draft model's MoE gathers all tokens and keeps them all (all_reduce), beside a Local residual."""
    x = enter(b, s)
    part = b.mlp(b.all_gather(b.norm(x)), s.inner)
    if broken:
        y = b.all_reduce(part)
        for node in b.nodes:
            if node["name"] in (y.name, y.made_by):
                node["meta"]["shape"] = list(x.shape)
    else:
        y = b.reduce_scatter(part)
    z = b.add(y, x)
    finish(b, s, z, local=True)
    return z


@fault("29", "LC101", "LC102", note="the top-k buffer is the Full top-k, cut at the global count of tokens")
def topk_buffer_of_all_tokens(b: GraphBuilder, s: Size, broken: bool) -> Val:
    """Local queries pick their keys with the rows of all queries."""
    x = enter_full(b, s)
    h = b.norm(x)
    keys = b.linear(h, b.weight((s.H, s.H)))
    keys_t = b.call("aten.permute.default", keys, [1, 0], shape=(s.H, s.T))
    index_q = b.linear(h, b.weight((s.H, s.H)))
    index_scores = b.call("aten.mm.default", index_q, keys_t, shape=(s.T, s.T))
    k = 2
    _, topk = b.call_many(
        "aten.topk.default", index_scores, k, -1, metas=[((s.T, k), b.dtype), ((s.T, k), "int64")]
    )
    local = cut(b, s, b.linear(h, b.weight((s.H, s.H))))
    scores = b.call("aten.mm.default", local, keys_t, shape=(s.share, s.T))
    rows = b.slice(topk, 0, s.T) if broken else cut(b, s, topk)
    picked = b.call("aten.gather.default", scores, 1, rows, shape=rows.shape)
    weights = b.call("aten._softmax.default", picked, -1, False, shape=rows.shape)
    b.output([b.all_gather(weights)])
    return picked


@fault(
    "31",
    "LC401",
    "LC402",
    note="the padded tokens meet per-token data that was made for the request's own tokens",
    sizes=UNEVEN,
)
def padded_tokens_meet_request_data(b: GraphBuilder, s: Size, broken: bool) -> Val:
    """The gathered, padded tokens are not cut back and meet the rotary table of the T positions."""
    x = enter(b, s)
    rows = b.all_gather(b.norm(x))
    h = rows if broken else b.slice(rows, 0, s.T)
    positions = b.input("positions", (s.T,), "int64")
    table = b.weight((4096, s.H))
    cos = b.call("aten.index.Tensor", table, [positions], shape=(s.T, s.H))
    turned = b.multiply(h, cos)
    b.output([turned])
    return turned


@fault("31-keys", "LC402", note="no shape tells: T queries attend to the padded keys", sizes=UNEVEN)
def padded_keys_attended(b: GraphBuilder, s: Size, broken: bool) -> Val:
    """Queries of the T tokens attend to keys of the padded tokens without a mask."""
    x = enter(b, s)
    rows = b.all_gather(b.norm(x))
    own = b.slice(rows, 0, s.T)

    def heads(v: Val) -> Val:
        wide = b.linear(v, b.weight((2 * s.head_dim, s.H)))
        four = b.view(wide, (1, wide.shape[0], 2, s.head_dim))
        shape = (1, 2, wide.shape[0], s.head_dim)
        return b.call("aten.permute.default", four, [0, 2, 1, 3], shape=shape)

    source = rows if broken else own
    q, k, v = heads(own), heads(source), heads(source)
    mixed = b.call("aten.scaled_dot_product_attention.default", q, k, v, shape=q.shape)
    b.output([mixed])
    return mixed


@fault("33", "LC401", "LC402", note="a reduce_scatter of 97 tokens over 8 ranks, with no pad", sizes=UNEVEN)
def scatter_of_uneven_tokens(b: GraphBuilder, s: Size, broken: bool) -> Val:
    """The number of tokens is not a multiple of the ranks, and nothing pads it."""
    part = b.vocab_embedding(b.tokens(), s.vocab, s.H)
    y = b.reduce_scatter(part if broken else b.pad_rows(part, s.pad))
    gathered = b.all_gather(b.norm(y))
    b.output([gathered if broken else b.slice(gathered, 0, s.T)])
    return y


@fault("35", "LC101")
def full_mask_on_local_map(b: GraphBuilder, s: Size, broken: bool) -> Val:
    """The routing map is Local, the padding mask is that of all tokens."""
    x = enter_full(b, s)
    local = cut(b, s, b.norm(x))
    chances = b.call(
        "aten._softmax.default", b.linear(local, b.weight((8, s.H))), -1, False, shape=(s.share, 8)
    )
    ids = b.tokens("mask_ids")
    mask = b.call("aten.ne.Scalar", ids, 0, shape=(s.T,), dtype="bool")
    column = b.call("aten.unsqueeze.default", mask, 1, shape=(s.T, 1), dtype="bool")
    kept = b.multiply(chances, column if broken else cut_mask(b, s, column))
    b.output([b.all_gather(kept)])
    return kept


def cut_mask(b: GraphBuilder, s: Size, mask: Val) -> Val:
    """This rank's rows of the mask; padded rows are masked out."""
    return b.rank_slice(b.pad_rows(mask, s.pad))


@fault("45", "LC101")
def shared_expert_on_dispatched(b: GraphBuilder, s: Size, broken: bool) -> Val:
    """The shared expert is given the gathered tokens, its result joins the rank's own."""
    x = attention_layer(b, s, enter(b, s))
    h = b.norm(x)
    gathered = b.all_gather(h)
    routed = b.reduce_scatter(b.mlp(gathered, s.inner))
    shared = b.mlp(gathered if broken else h, s.F)
    y = b.add(shared, routed)
    finish(b, s, b.add(x, y), local=True)
    return y


@fault("47", "LC103", note="the predicate that added a second gather: both stand in the graph")
def gathered_twice(b: GraphBuilder, s: Size, broken: bool) -> Val:
    """The pattern missed an alias, so the MoE's own gather comes after the attention's."""
    x = attention_layer(b, s, enter(b, s))
    rows = b.all_gather(b.norm(x))
    again = b.all_gather(b.call("aten.alias.default", rows, shape=rows.shape)) if broken else rows
    y = b.reduce_scatter(b.mlp(again, s.inner))
    finish(b, s, y if broken else b.add(x, y), local=True)
    return again


# ---- a group short of a group

HASH = Size("dp2-cp2", T=16, H=64, p=4)
HASH_RANK1 = Size("dp2-cp2-rank1", T=16, H=64, p=4, rank=1)


def _hash_groups(rank: int) -> dict[str, list[int]]:
    """Tokens are cut over cp first, then over dp: rank = 2 * cp + dp."""
    cp, dp = divmod(rank, 2)
    return {"dp": [2 * cp, 2 * cp + 1], "cp": [dp, 2 + dp], "world": [0, 1, 2, 3]}


def _hash_routing(b: GraphBuilder, s: Size, broken: bool) -> Val:
    """Hash routing looks a token's experts up by its id: ids and logits must be of the same tokens."""
    rows, experts = s.T // 4, 8
    ids = b.input("input_ids", (rows,), "int64", layout="[T/4@world]")
    x = b.norm(b.embedding(ids, s.vocab, s.H))
    logits = b.linear(x, b.weight((experts, s.H)))
    all_logits = b.all_gather(b.all_gather(logits, group="dp"), group="cp")
    all_ids = b.all_gather(ids, group="dp")
    if not broken:
        all_ids = b.all_gather(all_ids, group="cp")
    bias = b.embedding(all_ids, s.vocab, experts)
    y = b.add(all_logits, bias)
    b.output([y])
    return y


for _size in (HASH, HASH_RANK1):
    fault(
        "43" if _size.rank == 0 else "43-rank1",
        "LC301",
        "LC101",
        note="the hash table is a per-id bias on the router's logits",
        sizes=(_size,),
        groups=_hash_groups(_size.rank),
    )(_hash_routing)
