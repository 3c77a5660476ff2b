"""Attention over paged caches: dense, latent (absorbed, DeepSeek-V2 section 2.1) and latent with chosen keys.

A cache is [blocks, rows, ..]; slot s is row s % rows of block s // rows. Sequence i has the query rows
query_start_loc[i] .. query_start_loc[i + 1] and seq_lens[i] keys, the last of which are those of its own
queries; a query sees the keys up to its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from layoutcheck.ranks.reference.linears import real
from layoutcheck.ranks.reference.norms import rms_norm
from layoutcheck.ranks.reference.registry import reference
from layoutcheck.ranks.reference.rotary import rotate


def slots_of(cache: Tensor) -> Tensor:
    """A cache with its two leading axes as one."""
    return cache.view(cache.shape[0] * cache.shape[1], *cache.shape[2:])


def write(cache: Tensor, slots: Tensor, rows: Tensor) -> None:
    """Rows into slots; a negative slot is dropped."""
    kept = slots.reshape(-1) >= 0
    slots_of(cache)[slots.reshape(-1)[kept]] = rows.reshape(-1, *cache.shape[2:])[kept].to(cache.dtype)


def sequences(
    query_start_loc: Tensor, seq_lens: Tensor, block_table: Tensor, cache: Tensor
) -> Iterator[tuple[int, int, int, Tensor]]:
    """Per sequence: first and last query row, the position of the first query, and the slots of its keys."""
    rows = cache.shape[1]
    for i, keys in enumerate(seq_lens.tolist()):
        low, high = int(query_start_loc[i]), int(query_start_loc[i + 1])
        at = torch.arange(keys)
        yield low, high, keys - (high - low), block_table[i][at // rows] * rows + at % rows


def attend(q: Tensor, k: Tensor, v: Tensor, first: int, scale: float, chosen: Tensor | None = None) -> Tensor:
    """Softmax attention of q [n, h, d] on k [m, h, d], v [m, h, e]; query i stands at position first + i and
    sees the keys up to there, and of those only chosen[i] where given (positions; negative ones are none).
    """
    scores = torch.einsum("nhd,mhd->hnm", q, k) * scale
    position = torch.arange(q.shape[0]) + first
    mask = torch.arange(k.shape[0])[None] <= position[:, None]
    if chosen is not None:
        allowed = torch.zeros(q.shape[0], k.shape[0] + 1, dtype=torch.bool)
        inside = (chosen >= 0) & (chosen < k.shape[0])
        allowed.scatter_(1, torch.where(inside, chosen, k.shape[0]), True)
        mask = mask & allowed[:, :-1]
    weights = torch.softmax(scores.masked_fill(~mask, float("-inf")), -1).nan_to_num(0.0)
    return torch.einsum("hnm,mhe->nhe", weights, v)


@reference("tensor_cast.reshape_and_cache")
def reshape_and_cache(key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor) -> None:
    """Keys and values into the two halves of a cache [2, blocks, rows, heads, d]."""
    write(kv_cache[0], slot_mapping, key)
    write(kv_cache[1], slot_mapping, value)


@reference("tensor_cast.siso_reshape_and_cache")
def siso_reshape_and_cache(key: Tensor, kv_cache: Tensor, slot_mapping: Tensor) -> None:
    """Rows into a cache."""
    write(kv_cache, slot_mapping, key)


@reference("tensor_cast.concat_and_cache_mla")
def concat_and_cache_mla(kv_c_normed: Tensor, k_rot: Tensor, kv_cache: Tensor, slot_mapping: Tensor) -> None:
    """Latent and rotary key side by side into a cache."""
    rows = torch.cat([kv_c_normed.reshape(-1, kv_c_normed.shape[-1]), k_rot.reshape(-1, k_rot.shape[-1])], -1)
    write(kv_cache, slot_mapping, rows)


@reference("tensor_cast.kv_rmsnorm_rope_cache")
def kv_rmsnorm_rope_cache(
    kv: Tensor,
    gamma: Tensor,
    cos: Tensor,
    sin: Tensor,
    kv_cache: Tensor,
    slot_mapping: Tensor,
    kv_lora_rank: int,
    qk_rope_head_dim: int,
    epsilon: float = 1e-6,
) -> tuple[Tensor, Tensor]:
    """Norm of the latent, turn of the rotary key, both into the cache; gives rotary key and latent."""
    latent = rms_norm(kv[..., :kv_lora_rank], gamma, epsilon)
    key = rotate(kv[..., kv_lora_rank:], cos, sin)
    concat_and_cache_mla(latent, key, kv_cache, slot_mapping)
    return key, latent


@reference("tensor_cast.attention")
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    block_table: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    query_lens: Any,
) -> Tensor:
    """Grouped-query attention of query [t, h d] on paged keys and values [blocks, rows, g, d]."""
    heads, width = key.shape[-2], key.shape[-1]
    q = query.unflatten(-1, (-1, width))
    out = torch.zeros_like(q)
    repeat = q.shape[1] // heads
    for low, high, first, slots in sequences(query_start_loc, seq_lens, block_table, key):
        k, v = (slots_of(x)[slots].repeat_interleave(repeat, 1) for x in (key, value))
        out[low:high] = attend(q[low:high], k, v, first, width**-0.5)
    return out.flatten(-2)


@reference("tensor_cast.multihead_latent_attention", "tensor_cast.mla_sparse_attention")
def latent_attention(
    q: Tensor,
    kv_cache: Tensor,
    block_table: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    query_lens: Any,
    W_UK_T: Tensor,
    W_UV: Tensor,
    kv_b_proj: Any,
    v_head_dim: int,
    topk_limit: int | None = None,
    topk_indices: Tensor | None = None,
    *,
    is_decode_values: Any = None,
) -> Tensor:
    """Absorbed latent attention: q [t, h, u + r], latent keys [.., l + r], W_UK_T [h, u, l], W_UV [h, l, v];
    keys by position in the sequence where top-k indices are given.
    """
    u, rank = W_UK_T.shape[1], W_UK_T.shape[2]
    absorbed = torch.cat([torch.einsum("thu,hul->thl", q[..., :u], W_UK_T), q[..., u:]], -1)
    out = q.new_zeros(*q.shape[:2], rank)
    chosen = None if topk_indices is None else topk_indices.reshape(-1, topk_indices.shape[-1])
    for low, high, first, slots in sequences(query_start_loc, seq_lens, block_table, kv_cache):
        k = slots_of(kv_cache)[slots].unsqueeze(1).expand(-1, q.shape[1], -1)
        picked = None if chosen is None else chosen[low:high]
        out[low:high] = attend(absorbed[low:high], k, k[..., :rank], first, q.shape[-1] ** -0.5, picked)
    return torch.einsum("thl,hlv->thv", out, W_UV)


@reference("tensor_cast.sparse_attn_sharedkv")
def sparse_attn_sharedkv(
    q: Tensor,
    kv: Tensor,
    attn_sink: Tensor,
    topk_indices: Tensor,
    softmax_scale: float,
    head_dim: int,
    kv_dependency: Any = None,
) -> Tensor:
    """Multi-query attention q [b, t, h, d] on chosen rows of kv [b, n, d], with a sink in the softmax's
    denominator.
    """
    rows = torch.arange(q.shape[0])[:, None, None]
    k = kv[rows, topk_indices.clamp(min=0)]
    scores = torch.einsum("bthd,btkd->bthk", q, k) * softmax_scale
    scores = scores.masked_fill((topk_indices < 0).unsqueeze(2), float("-inf"))
    sink = attn_sink.view(1, 1, -1, 1).expand(*scores.shape[:3], 1)
    weights = torch.softmax(torch.cat([scores, sink], -1), -1)[..., :-1]
    return torch.einsum("bthk,btkd->bthd", weights, k)


@reference("tensor_cast.scatter_nd_update_mla")
def scatter_nd_update_mla(
    kv: Tensor, kv_cache: Tensor, slot_mapping: Tensor, window_size: Any = None, seq_lens: Any = None
) -> Tensor:
    """Rows into a cache, which it gives back."""
    write(kv_cache, slot_mapping, kv)
    return kv_cache


@reference("tensor_cast.attention_quant")
def attention_quant(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    block_table: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    query_lens: Any,
    query_scale: Any,
    query_offset: Any,
    kv_scale: Any,
    kv_offset: Any,
    attention_prob_scale: Any,
    attention_prob_offset: Any,
    out_dtype: Any,
) -> Tensor:
    """As `attention`, on codes; the weights of the softmax are not coded."""
    return attention(
        real(query, query_scale, query_offset),
        real(key, kv_scale, kv_offset),
        real(value, kv_scale, kv_offset),
        attention_mask,
        block_table,
        query_start_loc,
        seq_lens,
        query_lens,
    )


@reference("tensor_cast.multihead_latent_attention_quant", "tensor_cast.mla_sparse_attention_quant")
def latent_attention_quant(
    q: Tensor,
    kv_cache: Tensor,
    block_table: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    query_lens: Any,
    W_UK_T: Tensor,
    W_UV: Tensor,
    kv_b_proj: Any,
    v_head_dim: int,
    topk_limit: int | None,
    topk_indices: Tensor | None,
    query_scale: Any,
    query_offset: Any,
    kv_scale: Any,
    kv_offset: Any,
    *steps: Any,
    is_decode_values: Any = None,
    **more: Any,
) -> Tensor:
    """As `latent_attention`, on codes of queries and cache; what is coded in between is not coded here."""
    return latent_attention(
        real(q, query_scale, query_offset),
        real(kv_cache, kv_scale, kv_offset),
        block_table,
        query_start_loc,
        seq_lens,
        query_lens,
        W_UK_T,
        W_UV,
        kv_b_proj,
        v_head_dim,
        topk_limit,
        topk_indices,
    )
