"""Kernels without a public definition: the plainest function that has their signature and reads what they have to read.

What is judged with them is which axes and operands a rule lets through, not what the kernel computes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from layoutcheck.ranks.reference.registry import reference


@reference("tensor_cast.linear_attention")
def linear_attention(
    hidden_states: Tensor,
    attention_mask: Any,
    cache_position: Any,
    num_k_heads: int,
    num_v_heads: int,
    head_k_dim: int,
    head_v_dim: int,
    conv_kernel_size: int,
) -> Tensor:
    """A running state over the tokens that all features feed and read."""
    x = torch.tanh(hidden_states)
    state = (x.unsqueeze(-1) * x.roll(1, -1).unsqueeze(-2)).cumsum(-3)
    return torch.einsum("...td,...tde->...te", x, state)


@reference("tensor_cast.linear_attn_causal_conv", "tensor_cast.linear_attn_causal_conv_update")
def causal_conv(mixed_qkv: Tensor, conv_kernel_size: int) -> Tensor:
    """Each channel [b, c, t] mixed with the tokens before, by falling weights."""
    n = mixed_qkv.shape[-1]
    padded = torch.nn.functional.pad(mixed_qkv, (conv_kernel_size - 1, 0))
    shifted = [padded[..., j : j + n] / (conv_kernel_size - j) for j in range(conv_kernel_size)]
    return torch.stack(shifted).sum(0)


@reference("tensor_cast.attention_route_generate")
def route(query: Tensor, key: Tensor, block_size: int, sparsity: float) -> Tensor:
    """Of every block of queries [b, t, h, d], the blocks of keys in order of how well their means agree."""

    def means(x: Tensor) -> Tensor:
        rows = torch.nn.functional.pad(x, (0, 0, 0, 0, 0, -x.shape[1] % block_size))
        return rows.unflatten(1, (-1, block_size)).mean(2)

    return torch.einsum("bqhd,bkhd->bhqk", means(query), means(key)).argsort(-1).to(torch.int32)


@reference("tensor_cast.block_sparse_attention")
def block_sparse_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    route_metadata: Tensor,
    block_size: int,
    sparsity: float,
) -> Tensor:
    """Attention to the blocks of keys that the route names; the first one is always among them."""
    blocks = torch.arange(key.shape[1]) // block_size
    seen = torch.isin(blocks, route_metadata) | (blocks == 0)
    repeats = query.shape[2] // key.shape[2]
    k, v = key.repeat_interleave(repeats, 2), value.repeat_interleave(repeats, 2)
    scores = torch.einsum("bqhd,bkhd->bhqk", query, k).masked_fill(~seen, float("-inf"))
    return torch.einsum("bhqk,bkhe->bqhe", scores.softmax(-1), v)


@reference("tensor_cast.compressor")
def compressor(
    hidden_states: Tensor,
    kv_cache: Tensor,
    compress_ratio: int,
    head_dim: int,
    rope_head_dim: int,
    rotate: bool,
    seq_lens: Any = None,
    query_lens: Any = None,
) -> tuple[Tensor, Tensor]:
    """A row for every `compress_ratio` tokens [t, m], written into the cache [n, m] from its first row on."""
    rows = hidden_states[: hidden_states.shape[0] // compress_ratio * compress_ratio]
    pooled = rows.unflatten(0, (-1, compress_ratio)).mean(1)
    kv_cache[: pooled.shape[0]] = pooled
    return pooled, kv_cache


@reference("tensor_cast.minimax_indexer")
def block_indexer(
    idx_q: Tensor,
    idx_k_cache: Tensor,
    seq_lens: Any,
    query_lens: Any,
    block_table: Any,
    *,
    topk_blocks: int,
    block_size: int,
    seq_lens_values: Any = None,
    query_lens_values: Any = None,
    is_decode_values: Any = None,
) -> Tensor:
    """Of every query and head [t, h, d] the blocks of the cache [n, b, d] whose best key agrees most."""
    scores = torch.einsum("thd,nbd->thnb", idx_q, idx_k_cache).amax(-1)
    return scores.topk(topk_blocks, -1).indices.to(torch.int32)


@reference("tensor_cast.minimax_sparse_attention")
def block_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    topk_idx: Tensor,
    seq_lens: Any,
    query_lens: Any,
    block_table: Any,
    *,
    hidden_size: int,
    num_q_heads: int,
    num_kv_heads: int,
    head_dim: int,
    topk_blocks: int,
    block_size: int,
    local_blocks: int,
    seq_lens_values: Any = None,
    query_lens_values: Any = None,
    is_decode_values: Any = None,
) -> Tensor:
    """Attention of every query [t, h r d] to the keys of the blocks that `topk_idx` [t, h, k] names, r queries a head of the
    caches [n, b, h, d].
    """
    heads = query.unflatten(-1, (key_cache.shape[2], -1, head_dim))
    at = topk_idx.long().unsqueeze(-1).expand(-1, -1, -1, block_size)
    rows, own = torch.arange(block_size), torch.arange(key_cache.shape[2])[:, None, None]
    keys, values = (c[at, rows, own].flatten(2, 3) for c in (key_cache, value_cache))
    weights = torch.einsum("thrd,thsd->thrs", heads, keys).softmax(-1)
    return torch.einsum("thrs,thsd->thrd", weights, values).reshape(query.shape)


@reference("tensor_cast.quant_lightning_indexer")
def quant_indexer(
    q_states: Tensor,
    weights: Tensor,
    indexer_cache: Tensor,
    topk_limit: int,
    tp_world_size: int = 1,
    seq_lens: Any = None,
    query_lens: Any = None,
) -> Tensor:
    """Of every query [.., t, h, d] the rows of the cache that agree most, over all heads; the rank has all of them.
    One batch where none is given.
    """
    scores = torch.einsum("...hd,sd->...hs", q_states, indexer_cache.reshape(-1, indexer_cache.shape[-1]))
    best = torch.einsum("...h,...hs->...s", weights, torch.relu(scores)).topk(topk_limit, -1)
    return best.indices if best.indices.dim() > 2 else best.indices.unsqueeze(0)
