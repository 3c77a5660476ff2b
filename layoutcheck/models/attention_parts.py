"""Attention of a decoder layer as graph nodes: grouped queries, latent, and latent with an indexer.

A part takes the normalised hidden states as layers hand them on and gives the branch that is added to the residual, in the
same form.
"""

from __future__ import annotations

from attrs import define

from layoutcheck.models.builder import Value
from layoutcheck.models.config import Indexer, LatentAttention
from layoutcheck.models.writer import Writer


@define
class Inputs:
    """What all layers read: rotary tables by position, and where tokens are in the caches."""

    cos: Value
    sin: Value
    slots: Value
    blocks: Value
    starts: Value
    lengths: Value

    @classmethod
    def of(cls, b: Writer) -> Inputs:
        """New inputs."""
        width = b.config.rotary_dim or b.config.head_dim
        if b.config.latent is not None:
            width = b.config.latent.qk_rope_head_dim
        positions = b.input("positions", (b.tokens,), "int64")
        tables = [
            b.input(name, (max(b.config.max_positions, 1), width)) for name in ("cos_table", "sin_table")
        ]
        cos, sin = (b.call("aten.index.Tensor", t, (positions,), shape=(b.tokens, width)) for t in tables)
        turned = [b.view(v, 1, b.tokens, width) for v in (cos, sin)]
        sequences = b.tokens if b.step.decode else b.step.sequences
        return cls(
            turned[0],
            turned[1],
            b.input("slots", (b.tokens,), "int64"),
            b.input("blocks", (sequences, 8), "int64"),
            b.input("starts", (sequences + 1,), "int64"),
            b.input("lengths", (sequences,), "int64"),
        )

    def tail(self) -> tuple[Value, Value, Value, Value]:
        """Block table, starts and lengths, as fused attention takes them."""
        return self.blocks, self.starts, self.lengths, self.lengths


def attention(
    b: Writer, x: Value, inputs: Inputs, topk: Value | None, owns: bool
) -> tuple[Value, Value | None]:
    """The attention branch of a layer.

    Args:
        b: the graph.
        x: normalised hidden states, a rank's own or all, as the contract's residual.
        inputs: what all layers read.
        topk: positions that an earlier layer's indexer chose.
        owns: whether this layer has an indexer.

    Returns:
        The branch and the positions that were chosen last.
    """
    style = b.step.style
    local = style.residual == "local"
    if style.queries == "local":
        return _queries_local(b, x, inputs, topk, owns, local)
    rows = b.whole(x) if local else x
    if b.config.latent is None:
        return _output(b, _grouped_queries(b, rows, inputs), local), topk
    mixed, topk = _latent(b, rows, inputs, topk, owns)
    return _output(b, mixed, local), topk


def _output(b: Writer, mixed: Value, local: bool) -> Value:
    """o_proj of all rows: its input is a rank's heads, or all heads, of which a rank's own rows are
    taken where layers hand those on."""
    width = b.config.hidden_size
    if b.step.heads == "cut":
        flat = b.view(mixed, b.tokens, _flat(mixed))
        return b.spread(b.project(b.codes(flat), width, cut="rows"), local)
    own = b.own(mixed) if local else mixed
    return b.project(b.codes(b.view(own, own.shape[0], _flat(own))), width, module="o_proj")


def _flat(x: Value) -> int:
    total = 1
    for n in x.shape[1:]:
        total *= n
    return total


def _heads(b: Writer) -> int:
    heads = b.config.num_attention_heads
    return heads // b.ranks if b.step.heads == "cut" else heads


# ---- grouped queries


def _grouped_queries(b: Writer, rows: Value, inputs: Inputs) -> Value:
    c = b.config
    heads, dim = _heads(b), c.head_dim
    keys = max(c.num_key_value_heads // b.ranks, 1)
    shared = "columns" if c.num_key_value_heads >= b.ranks else ""
    codes = b.codes(rows)
    q = b.project(codes, heads * dim, cut="columns")
    k, v = (b.project(codes, keys * dim, cut=shared) for _ in range(2))
    turned = [_by_head(b, q, heads, c.qk_norm), _by_head(b, k, keys, c.qk_norm)]
    metas = [((1, b.tokens, n, dim), b.dtype) for n in (heads, keys)]
    q, k = b.call_many("tensor_cast.apply_rope.default", *turned, inputs.cos, inputs.sin, metas=metas)
    both = [b.view(k, b.tokens, keys * dim), b.view(v, b.tokens, keys * dim)]
    cache = b.cache(keys, dim, halves=True)
    written = b.cached(
        "tensor_cast.reshape_and_cache",
        cache,
        "kv_cache",
        key=both[0],
        value=both[1],
        slot_mapping=inputs.slots,
    )
    halves = [b.call("aten.select.int", written, 0, i, shape=cache.shape[1:]) for i in range(2)]
    return b.call(
        "tensor_cast.attention.default",
        b.view(q, b.tokens, heads * dim),
        *halves,
        None,
        *inputs.tail(),
        shape=(b.tokens, heads * dim),
    )


def _by_head(b: Writer, x: Value, heads: int, norm: str | None) -> Value:
    dim = b.config.head_dim
    if norm == "full":
        x = b.norm(x)
    four = b.view(x, 1, b.tokens, heads, dim)
    if norm == "head":
        four = b.norm(four)
    return b.call("aten.permute.default", four, (0, 2, 1, 3), shape=(1, heads, b.tokens, dim))


# ---- latent


def _latent(
    b: Writer, rows: Value, inputs: Inputs, topk: Value | None, owns: bool
) -> tuple[Value, Value | None]:
    """Latent attention of all rows; sparse where there is an indexer."""
    latent = b.config.latent
    assert latent is not None
    heads = _heads(b)
    q, compressed, rotated, q_latent = _projections(b, rows, inputs, latent, heads)
    indexer = b.config.indexer
    if indexer is not None and owns:
        topk = _fused_indexer(b, rows, q_latent, inputs, indexer)
    return _attend(b, q, compressed, rotated, inputs, latent, topk if indexer is not None else None), topk


def _projections(
    b: Writer,
    rows: Value,
    inputs: Inputs,
    latent: LatentAttention,
    heads: int,
    own: bool = False,
    keys: bool = True,
) -> list[Value]:
    """Query by head, latent, rotated key and normalised query latent; without ``keys`` the two in the middle are nothing."""
    t, width = rows.shape
    quant = b.step.quant
    rank = latent.q_lora_rank
    dim = latent.qk_nope_head_dim + latent.qk_rope_head_dim
    kv, rope = latent.kv_lora_rank, latent.qk_rope_head_dim
    cut = 0 if b.step.heads == "cut" else None
    cos, sin = inputs.cos, inputs.sin
    if own:
        cos, sin = (b.view(b.own(b.view(v, b.tokens, rope)), 1, t, rope) for v in (cos, sin))
    args = (
        rows,
        cos,
        sin,
        b.cut(rank, width, dtype=quant) if rank else None,
        b.weight(rank) if rank else None,
        b.cut(heads * dim, rank or width, axis=cut, dtype=quant)
        if cut is not None
        else b.moved("q_b_proj", heads * dim, rank or width, quant),
        b.cut(kv + rope, width, dtype=quant) if keys else None,
        b.weight(kv),
        *(heads, dim, latent.qk_nope_head_dim, rope, kv, rank or width),
    )
    scales = (b.scalar(), None) * 3 if quant else ()
    metas = [
        ((t, heads, dim), b.dtype),
        ((t, kv), b.dtype),
        ((t, rope), b.dtype),
        ((t, rank or width), b.dtype),
    ]
    op = "tensor_cast.mlapo_quant.default" if quant else "tensor_cast.mlapo.default"
    return b.call_many(op, *args, *scales, metas=metas)


def _attend(
    b: Writer,
    q: Value,
    compressed: Value,
    rotated: Value,
    inputs: Inputs,
    latent: LatentAttention,
    topk: Value | None,
    written: Value | None = None,
) -> Value:
    """Attention of the queries to a cache that these keys are put into, or that is ``written``."""
    t, heads = q.shape[:2]
    kv, nope, value = latent.kv_lora_rank, latent.qk_nope_head_dim, latent.v_head_dim
    cut = b.step.heads == "cut"
    if written is None:
        written = b.cached(
            "tensor_cast.concat_and_cache_mla",
            b.cache(kv + latent.qk_rope_head_dim),
            "kv_cache",
            kv_c_normed=compressed,
            k_rot=rotated,
            slot_mapping=inputs.slots,
        )
    weights = (
        b.cut(heads, nope, kv, axis=0 if cut else None),
        b.cut(heads, kv, value, axis=0 if cut else None),
        b.cut(kv, heads * (nope + value), axis=1 if cut else None),
    )
    shape = (t, heads, value)
    if topk is None:
        return b.call(
            "tensor_cast.multihead_latent_attention.default",
            *(q, written, *inputs.tail(), *weights, value),
            shape=shape,
        )
    indexer = b.config.indexer
    assert indexer is not None
    return b.call(
        "tensor_cast.mla_sparse_attention.default",
        *(q, written, *inputs.tail(), *weights, value, indexer.topk, topk),
        shape=shape,
        is_decode_values=(b.step.decode,),
    )


def _fused_indexer(b: Writer, rows: Value, q_latent: Value, inputs: Inputs, indexer: Indexer) -> Value:
    t, width = rows.shape
    heads, dim = indexer.heads, indexer.head_dim
    topk, written = b.wrapped(
        "tensor_cast.dsa_indexer",
        b.cache(dim),
        "indexer_cache",
        [((1, t, indexer.topk), "int64")],
        hidden_states=b.view(rows, 1, t, width),
        qa_normed=b.view(q_latent, 1, t, q_latent.shape[-1]),
        cos=inputs.cos,
        sin=inputs.sin,
        slot_mapping=inputs.slots,
        block_tables=inputs.blocks,
        seq_lens=inputs.lengths,
        wq_b_weight=b.cut(heads * dim, q_latent.shape[-1], dtype=b.step.quant),
        wk_weight=b.weight(dim, width),
        weights_proj_weight=b.weight(heads, width),
        k_norm_weight=b.weight(dim),
        num_heads=heads,
        head_dim=dim,
        qk_rope_head_dim=inputs.cos.shape[-1],
        topk_limit=indexer.topk,
        query_lens=inputs.lengths,
        is_decode_values=(b.step.decode,),
    )
    b.show(written)
    return topk


def _queries_local(
    b: Writer, x: Value, inputs: Inputs, topk: Value | None, owns: bool, local: bool
) -> tuple[Value, Value | None]:
    """Queries of a rank's own rows with all heads. Where it has no other rows, latent, rotated key and indexer key are gathered;
    where it has all, they are made of all."""
    c = b.config
    assert c.latent is not None and c.indexer is not None
    own = x if local else b.own(x)
    heads = c.num_attention_heads
    q, compressed, rotated, q_latent = _projections(b, own, inputs, c.latent, heads, own=True, keys=local)
    written = None
    if local:
        compressed, rotated = b.whole(compressed), b.whole(rotated)
    else:
        written = _keys(b, x, inputs, c.latent)
    if owns:
        topk = _split_indexer(b, own, None if local else x, q_latent, inputs, c.indexer)
    mixed = _attend(b, q, compressed, rotated, inputs, c.latent, topk, written)
    flat = b.codes(b.view(mixed, mixed.shape[0], _flat(mixed)))
    branch = b.project(flat, c.hidden_size, module="o_proj")
    return (branch if local else b.whole(branch)), topk


def _keys(b: Writer, rows: Value, inputs: Inputs, latent: LatentAttention) -> Value:
    """The cache with latent and rotated key of all rows, apart from the queries."""
    kv, rope = latent.kv_lora_rank, latent.qk_rope_head_dim
    cos, sin = (b.view(v, b.tokens, rope) for v in (inputs.cos, inputs.sin))
    *_, written = b.wrapped(
        "tensor_cast.kv_rmsnorm_rope_cache",
        b.cache(kv + rope),
        "kv_cache",
        [((b.tokens, rope), b.dtype), ((b.tokens, kv), b.dtype)],
        kv=b.project(b.codes(rows), kv + rope),
        gamma=b.weight(kv),
        cos=cos,
        sin=sin,
        slot_mapping=inputs.slots,
        kv_lora_rank=kv,
        qk_rope_head_dim=rope,
    )
    b.show(written)
    return written


def _split_indexer(
    b: Writer, own: Value, rows: Value | None, q_latent: Value, inputs: Inputs, indexer: Indexer
) -> Value:
    """The indexer on a rank's own queries; keys of all ``rows``, or gathered from every rank's own."""
    t, heads, dim = own.shape[0], indexer.heads, indexer.head_dim
    queries = b.view(b.project(b.codes(q_latent), heads * dim), 1, t, heads, dim)
    weights = b.view(b.project((own, None), heads), 1, t, heads)
    if rows is None:
        key = b.whole(b.norm(b.project((own, None), dim)))
    else:
        key = b.norm(b.project((rows, None), dim))
    written = b.cached(
        "tensor_cast.siso_reshape_and_cache", b.cache(dim), "kv_cache", key=key, slot_mapping=inputs.slots
    )
    return b.call(
        "tensor_cast.quant_lightning_indexer.default",
        *(queries, weights, written, indexer.topk, 1, inputs.lengths, inputs.lengths),
        shape=(1, t, indexer.topk),
        dtype="int64",
    )
