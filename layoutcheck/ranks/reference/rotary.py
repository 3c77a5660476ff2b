"""Rotary position embedding (Su et al. 2021): pairs of channels turned by an angle a position.

neox style pairs channel i with i + d/2, the other style 2i with 2i + 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from layoutcheck.ranks.reference.registry import reference


def turned(x: Tensor, is_neox: bool = True) -> Tensor:
    """The partner of each channel, with its sign: (-b, a) of every pair (a, b)."""
    if is_neox:
        a, b = x.chunk(2, -1)
        return torch.cat([-b, a], -1)
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack([-b, a], -1).flatten(-2)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, is_neox: bool = True) -> Tensor:
    """x cos + turned(x) sin; cos and sin hold every channel and broadcast."""
    return x * cos + turned(x, is_neox) * sin


@reference("tensor_cast.apply_rope")
def apply_rope(
    query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, is_neox: bool = True
) -> tuple[Tensor, Tensor]:
    """Query and key [b, heads, t, d] turned, tokens before heads on the way out."""
    c, s = cos.unsqueeze(1), sin.unsqueeze(1)
    return rotate(query, c, s, is_neox).transpose(1, 2), rotate(key, c, s, is_neox).transpose(1, 2)


@reference("tensor_cast.apply_rope_single")
def apply_rope_single(
    x: Tensor, cos: Tensor, sin: Tensor, is_neox: bool = True, transpose_output: bool = True
) -> Tensor:
    """One tensor turned."""
    y = rotate(x, cos.unsqueeze(1), sin.unsqueeze(1), is_neox)
    return y.transpose(1, 2) if transpose_output else y


@reference("tensor_cast.apply_rope_inplace")
def apply_rope_inplace(
    x: Tensor, cos: Tensor, sin: Tensor, is_neox: bool = True, inverse: bool = False, rope_head_dim: int = -1
) -> Tensor:
    """The last rope_head_dim channels turned in place; cos and sin [t, r] broadcast over what is between."""
    r = cos.shape[-1] if rope_head_dim < 0 else rope_head_dim
    c, s = cos, -sin if inverse else sin
    while c.dim() < x.dim():
        c, s = c.unsqueeze(-2), s.unsqueeze(-2)
    x[..., -r:] = rotate(x[..., -r:].clone(), c, s, is_neox)
    return x


@reference("tensor_cast.fused_rope")
def fused_rope(
    query: Tensor, key: Tensor, cos_sin: Tensor, rotary_dim: int, is_neox_style: bool = True
) -> tuple[Tensor, Tensor]:
    """Query [t, h, d] and key [t, g, e] turned in their first rotary_dim channels; cos_sin [t, rotary_dim]
    holds cos, then sin.
    """
    cos, sin = cos_sin.chunk(2, -1)
    cos, sin = torch.cat([cos, cos], -1).unsqueeze(1), torch.cat([sin, sin], -1).unsqueeze(1)

    def turn(x: Tensor) -> Tensor:
        return torch.cat([rotate(x[..., :rotary_dim], cos, sin, is_neox_style), x[..., rotary_dim:]], -1)

    return turn(query), turn(key)
