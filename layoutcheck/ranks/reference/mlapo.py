"""The preparation of multi-head latent attention (DeepSeek-V2, section 2.1) as one op.

q latent = rms(h Wqa^T); query = latent Wqb^T by head, its last channels turned; kv = h Wkva^T; latent key =
rms of its first l channels, rotary key = its last r channels turned. Weights are [out, in].
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from layoutcheck.ranks.reference.linears import real
from layoutcheck.ranks.reference.norms import rms_norm
from layoutcheck.ranks.reference.registry import reference
from layoutcheck.ranks.reference.rotary import rotate

EPS = 1e-6


@reference("tensor_cast.mlapo")
def mlapo(
    hidden_states: Tensor,
    cos: Tensor,
    sin: Tensor,
    q_a_proj_weight: Tensor | None,
    q_a_layernorm_weight: Tensor | None,
    q_b_proj_weight: Tensor | None,
    kv_a_proj_weight: Tensor,
    kv_a_layernorm_weight: Tensor,
    num_heads: int,
    qk_head_dim: int,
    qk_nope_head_dim: int,
    qk_rope_head_dim: int,
    kv_lora_rank: int,
    q_lora_rank: int,
) -> tuple[Tensor, ...]:
    """Query by head [t, h, d], latent [t, l], rotary key [t, r], normalised query latent [t, a]."""
    h = hidden_states.reshape(-1, hidden_states.shape[-1])
    c, s = cos.reshape(-1, cos.shape[-1]), sin.reshape(-1, sin.shape[-1])
    assert q_a_proj_weight is not None and q_a_layernorm_weight is not None and q_b_proj_weight is not None
    latent = rms_norm(h @ q_a_proj_weight.T, q_a_layernorm_weight, EPS)
    query = (latent @ q_b_proj_weight.T).unflatten(-1, (-1, qk_head_dim))
    turned = rotate(query[..., qk_nope_head_dim:], c.unsqueeze(1), s.unsqueeze(1))
    query = torch.cat([query[..., :qk_nope_head_dim], turned], -1)
    kv = h @ kv_a_proj_weight.T
    key = rms_norm(kv[:, :kv_lora_rank], kv_a_layernorm_weight, EPS)
    return query, key, rotate(kv[:, kv_lora_rank:], c, s), latent


@reference("tensor_cast.mlapo_quant")
def mlapo_quant(
    hidden_states: Tensor,
    cos: Tensor,
    sin: Tensor,
    q_a_proj_weight: Tensor,
    q_a_layernorm_weight: Tensor,
    q_b_proj_weight: Tensor,
    kv_a_proj_weight: Tensor,
    kv_a_layernorm_weight: Tensor,
    num_heads: int,
    qk_head_dim: int,
    qk_nope_head_dim: int,
    qk_rope_head_dim: int,
    kv_lora_rank: int,
    q_lora_rank: int,
    q_a_proj_scale: Any,
    q_a_proj_offset: Any,
    q_b_proj_scale: Any,
    q_b_proj_offset: Any,
    kv_a_proj_scale: Any,
    kv_a_proj_offset: Any,
) -> tuple[Tensor, ...]:
    """As `mlapo`, on codes of the weights."""

    def weight(w: Tensor, scale: Any, offset: Any) -> Tensor:
        return real(w.T, scale, offset).T

    outputs: tuple[Tensor, ...] = mlapo(
        hidden_states,
        cos,
        sin,
        weight(q_a_proj_weight, q_a_proj_scale, q_a_proj_offset),
        q_a_layernorm_weight,
        weight(q_b_proj_weight, q_b_proj_scale, q_b_proj_offset),
        weight(kv_a_proj_weight, kv_a_proj_scale, kv_a_proj_offset),
        kv_a_layernorm_weight,
        num_heads,
        qk_head_dim,
        qk_nope_head_dim,
        qk_rope_head_dim,
        kv_lora_rank,
        q_lora_rank,
    )
    return outputs
