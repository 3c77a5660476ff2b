"""The parts of decoder layers, on rows `[t, width]`. Each takes and gives what the style of parallelism carries.

In style `tp` rows are Full between the parts, and row-parallel linears end in an all_reduce; in style `sp` rows are Local, gathered in
front of a part and reduce-scattered behind it. Style `cp` is `sp` but for sparse attention, whose output is cut by rows in front of
o_proj instead of behind it.
"""

from __future__ import annotations

import attrs

from layoutcheck.models.builder import Builder, Value

LOCAL_ROWS = ("sp", "cp")
"""Styles in which rows are Local between the parts."""
TOP_K = 2
LATENT, ROPE, NOPE = 16, 8, 8
BLOCKS, BLOCK = 3, 8


@attrs.frozen
class Shared:
    """Inputs that all layers read: rotary tables by position, and what says where tokens are in the caches."""

    cos: Value
    sin: Value
    slots: Value
    blocks: Value
    starts: Value
    lengths: Value

    @classmethod
    def of(cls, b: Builder) -> Shared:
        """New inputs."""
        positions = b.input("positions", (b.tokens,), "int64")
        tables = [b.input(name, (4096, ROPE)) for name in ("cos_table", "sin_table")]
        cos, sin = (b.call("aten.index.Tensor", t, (positions,), shape=(b.tokens, ROPE)) for t in tables)
        turned = [b.view(v, 1, b.tokens, ROPE) for v in (cos, sin)]
        return cls(
            turned[0],
            turned[1],
            b.input("slots", (b.tokens,), "int64"),
            b.input("blocks", (1, BLOCKS), "int64"),
            b.input("starts", (2,), "int64"),
            b.input("lengths", (1,), "int64"),
        )


def gathered(b: Builder, style: str, x: Value) -> Value:
    """All rows, in front of a part that is sharded by features."""
    return b.all_gather(x) if style in LOCAL_ROWS else x


def reduced(b: Builder, style: str, x: Value) -> Value:
    """What the next part carries, of a sum over ranks."""
    return b.reduce_scatter(x) if style in LOCAL_ROWS else b.all_reduce(x)


def kept(b: Builder, style: str, x: Value) -> Value:
    """What the next part carries, of complete rows."""
    return b.share(x) if style in LOCAL_ROWS else x


def attention(b: Builder, style: str, x: Value, heads: int, head_dim: int) -> Value:
    """Causal attention over `heads` local heads."""
    rows = gathered(b, style, x)
    inside = (1, heads, b.tokens, head_dim)

    def split() -> Value:
        four = b.view(b.linear(rows, heads * head_dim), 1, b.tokens, heads, head_dim)
        return b.call("aten.permute.default", four, (0, 2, 1, 3), shape=inside)

    mixed = b.call(
        "aten.scaled_dot_product_attention.default", split(), split(), split(), None, 0.0, True, shape=inside
    )
    back = b.call("aten.permute.default", mixed, (0, 2, 1, 3), shape=(1, b.tokens, heads, head_dim))
    joined = b.call(
        "aten.reshape.default", back, (b.tokens, heads * head_dim), shape=(b.tokens, heads * head_dim)
    )
    return reduced(b, style, b.linear(joined, x.shape[1]))


def mlp(b: Builder, style: str, x: Value, inner: int) -> Value:
    """A gated MLP of `inner` local features."""
    return reduced(b, style, _gated(b, gathered(b, style, x), inner))


def _gated(b: Builder, x: Value, inner: int) -> Value:
    gate, up = b.linear(x, inner), b.linear(x, inner)
    return b.linear(b.multiply(b.silu(gate), up), x.shape[1])


def experts(b: Builder, style: str, x: Value, inner: int) -> Value:
    """Top-k routing of a rank's own rows to one expert a rank and back."""
    rows = x if style in LOCAL_ROWS else b.share(x)
    n, width = rows.shape
    logits = b.linear(rows, b.ranks)
    weights, ids = b.call_many(
        "tensor_cast.moe_gating_top_k_softmax.default",
        logits,
        TOP_K,
        metas=[((n, TOP_K), b.dtype), ((n, TOP_K), "int64")],
    )
    sent = b.call("tensor_cast.init_routing_v2.default", rows, ids, shape=(n * TOP_K, width))
    back = b.all_to_all(_gated(b, b.all_to_all(sent), inner))
    each = b.call("tensor_cast.unpermute_tokens.default", back, ids, shape=(n, TOP_K, width))
    column = b.call("aten.unsqueeze.default", weights, -1, shape=(n, TOP_K, 1))
    weighted = b.call("aten.mul.Tensor", each, column, shape=(n, TOP_K, width))
    summed = b.call("aten.sum.dim_IntList", weighted, (1,), shape=(n, width))
    return summed if style in LOCAL_ROWS else b.all_gather(summed)


def latent(
    b: Builder, style: str, x: Value, heads: int, shared: Shared, topk: Value | None
) -> tuple[Value, Value]:
    """Sparse latent attention of all heads on every rank, with its caches; the indexer runs where no `topk` is given.

    Returns:
        The attention's output and the indexer's top-k positions.
    """
    rows = gathered(b, style, x)
    t, width = rows.shape
    q, compressed, rotated, q_latent = b.call_many(
        "tensor_cast.mlapo.default",
        rows,
        shared.cos,
        shared.sin,
        b.weight(LATENT, width),
        b.weight(LATENT),
        b.weight(heads * (NOPE + ROPE), LATENT),
        b.weight(LATENT + ROPE, width),
        b.weight(LATENT),
        heads,
        NOPE + ROPE,
        NOPE,
        ROPE,
        LATENT,
        LATENT,
        metas=[
            ((t, heads, NOPE + ROPE), b.dtype),
            ((t, LATENT), b.dtype),
            ((t, ROPE), b.dtype),
            ((t, LATENT), b.dtype),
        ],
    )
    if topk is None:
        topk = _indexer(b, rows, q_latent, shared)
    cache = b.input("kv_cache", (BLOCKS, BLOCK, LATENT + ROPE))
    (written,) = b.wrapped(
        "tensor_cast.concat_and_cache_mla",
        cache,
        "kv_cache",
        [None],
        kv_c_normed=compressed,
        k_rot=rotated,
        slot_mapping=shared.slots,
    )
    b.show(written)
    mixed = b.call(
        "tensor_cast.mla_sparse_attention.default",
        q,
        written,
        shared.blocks,
        shared.starts,
        shared.lengths,
        shared.lengths,
        b.weight(heads, NOPE, LATENT),
        b.weight(heads, LATENT, NOPE),
        b.weight(LATENT, heads * 2 * NOPE),
        NOPE,
        TOP_K,
        topk,
        shape=(t, heads, NOPE),
        is_decode_values=(False,),
    )
    joined = b.view(mixed, t, heads * NOPE)
    if style == "cp":
        return b.linear(b.share(joined), width), topk
    return kept(b, style, b.linear(joined, width)), topk


def _indexer(b: Builder, rows: Value, q_latent: Value, shared: Shared) -> Value:
    t, width = rows.shape
    cache = b.input("indexer_cache", (BLOCKS, BLOCK, NOPE))
    topk, written = b.wrapped(
        "tensor_cast.dsa_indexer",
        cache,
        "indexer_cache",
        [((1, t, TOP_K), "int64")],
        hidden_states=b.view(rows, 1, t, width),
        qa_normed=b.view(q_latent, 1, t, LATENT),
        cos=shared.cos,
        sin=shared.sin,
        slot_mapping=shared.slots,
        block_tables=shared.blocks,
        seq_lens=shared.lengths,
        wq_b_weight=b.weight(2 * NOPE, LATENT),
        wk_weight=b.weight(NOPE, width),
        weights_proj_weight=b.weight(2, width),
        k_norm_weight=b.weight(NOPE),
        num_heads=2,
        head_dim=NOPE,
        qk_rope_head_dim=ROPE,
        topk_limit=TOP_K,
        query_lens=shared.lengths,
        is_decode_values=(False,),
    )
    b.show(written)
    return topk
