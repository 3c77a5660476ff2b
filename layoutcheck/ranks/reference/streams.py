"""Hyper-connections (parallel residual streams) and gated linear attention (the gated delta rule).

delta rule, per head: S = exp(g) S; S = S + k (beta (v - S^T k))^T; out = S^T q.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from layoutcheck.ranks.reference.registry import reference


@reference("tensor_cast.hc_pre_inv_rms")
def hc_pre_inv_rms(x: Tensor, hc_mult: int) -> Tensor:
    """1 / rms over all streams of a token."""
    return torch.rsqrt((x * x).mean((-2, -1)) + 1e-6).unsqueeze(-1)


@reference("tensor_cast.hc_post")
def hc_post(
    x: Tensor, residual: Tensor, hc_weight: Tensor | None, hc_combine: Tensor | None, hc_mult: int
) -> Tensor:
    """Stream c gets weight[c] x + sum over e of combine[e, c] residual[e]."""
    assert hc_weight is not None and hc_combine is not None
    mixed = torch.einsum("...ec,...ed->...cd", hc_combine, residual)
    return hc_weight.unsqueeze(-1) * x.unsqueeze(-2) + mixed


@reference("tensor_cast.linear_attn_apply_padding_mask")
def apply_padding_mask(hidden_states: Tensor, attention_mask: Tensor) -> Tensor:
    """Rows of padding become 0."""
    return hidden_states * attention_mask.unsqueeze(-1)


@reference("tensor_cast.linear_attn_gated_rmsnorm")
def gated_rmsnorm(core_attn_out: Tensor, z: Tensor, weight: Tensor, eps: float) -> Tensor:
    """rms norm, times silu of the gate."""
    x = core_attn_out
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight * z * torch.sigmoid(z)


@reference("tensor_cast.linear_attn_fused_gdn_gating")
def gdn_gating(
    query: Tensor,
    key: Tensor,
    b: Tensor,
    a: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    num_v_heads: int,
) -> tuple[Tensor, ...]:
    """Query and key for every value head, beta = sigmoid(b), g = -exp(a_log) softplus(a + dt_bias)."""
    times = b.shape[-1] // query.shape[-2]
    beta, g = torch.sigmoid(b), -torch.exp(a_log) * torch.nn.functional.softplus(a + dt_bias)
    return query.repeat_interleave(times, -2), key.repeat_interleave(times, -2), beta, g


@reference(
    "tensor_cast.linear_attn_chunk_gated_delta_rule", "tensor_cast.linear_attn_recurrent_gated_delta_rule"
)
def gated_delta_rule(
    query: Tensor, key: Tensor, value: Tensor, beta: Tensor, g: Tensor, *sizes: Any, **more: Any
) -> Tensor:
    """The recurrence, token by token: q and k [b, t, h, d], v [b, t, h, e]."""
    b, t, h, d = query.shape
    state = query.new_zeros(b, h, d, value.shape[-1])
    out = []
    for i in range(t):
        state = state * torch.exp(g[:, i])[..., None, None]
        read = torch.einsum("bhde,bhd->bhe", state, key[:, i])
        write = beta[:, i].unsqueeze(-1) * (value[:, i] - read)
        state = state + torch.einsum("bhd,bhe->bhde", key[:, i], write)
        out.append(torch.einsum("bhde,bhd->bhe", state, query[:, i]))
    return torch.stack(out, 1)


@reference("tensor_cast.shift_and_update_input_ids")
def shift_ids(input_ids: Tensor, query_start_loc: Tensor, next_tokens: Tensor) -> Tensor:
    """Each token takes its right neighbour's place; a sequence's last one is the sampled token."""
    out = input_ids.roll(-1, -1).clone()
    ends = query_start_loc[1:] - 1
    out[..., ends] = next_tokens.reshape(-1)[: len(ends)]
    return out


def _normalised(x: Tensor, axis: int, eps: float) -> Tensor:
    return x / (x.sum(axis, keepdim=True) + eps)


@reference("tensor_cast.hc_pre_sinkhorn")
def hc_pre_sinkhorn(
    x: Tensor,
    hidden_states: Tensor,
    hc_scale: Tensor,
    hc_base: Tensor,
    hc_mult: int,
    sinkhorn_iters: int = 1,
    hc_eps: float = 1e-6,
) -> tuple[Tensor, Tensor, Tensor]:
    """Manifold-constrained hyper-connections: from the projections x [.., 2 c + c c] of a token the streams' weights
    into a layer (a sigmoid), out of it (twice a sigmoid), and among each other (made doubly stochastic by
    Sinkhorn's iteration). Gives the layer's input, the weights out of it, and the c by c combination.
    """
    c = hc_mult
    pre, post, mixed = x.split([c, c, x.shape[-1] - 2 * c], -1)
    base = hc_base.split([c, c, hc_base.shape[-1] - 2 * c], -1)
    enter = torch.sigmoid(pre * hc_scale[0] + base[0]) + hc_eps
    leave = 2 * torch.sigmoid(post * hc_scale[1] + base[1])
    among = torch.softmax((mixed * hc_scale[2] + base[2]).unflatten(-1, (c, c)), -1) + hc_eps
    for _ in range(sinkhorn_iters):
        among = _normalised(_normalised(among, -1, hc_eps), -2, hc_eps)
    return torch.einsum("...c,...cd->...d", enter, hidden_states), leave, among


@reference("tensor_cast.hc_head")
def hc_head(
    x: Tensor,
    hc_head_fn: Tensor,
    hc_head_scale: Tensor,
    hc_head_base: Tensor,
    hc_mult: int,
    hc_eps: float = 1e-6,
) -> Tensor:
    """The streams [.., c, d] of a token added up, with weights that are a sigmoid of a projection [c, c d] of all of
    them over their rms.
    """
    flat = x.flatten(-2)
    weights = (flat @ hc_head_fn.T) * torch.rsqrt((flat * flat).mean(-1, keepdim=True) + hc_eps)
    enter = torch.sigmoid(weights * hc_head_scale + hc_head_base) + hc_eps
    return torch.einsum("...c,...cd->...d", enter, x)
