"""Kernels that torch has for some devices only, by their definitions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from layoutcheck.ranks.reference.linears import real
from layoutcheck.ranks.reference.registry import reference


def attended(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, is_causal: bool, scale: float | None
) -> tuple[Tensor, Tensor]:
    """softmax(q k^T scale + bias) v and the logarithm of the softmax' denominator, q [.., h r, n, d], k [.., h, m, d]:
    r query heads share a key head. Causal: query i sees the keys up to i.
    """
    repeat = query.shape[-3] // key.shape[-3]
    key, value = (x.repeat_interleave(repeat, -3) for x in (key, value))
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if bias is not None:
        scores = scores.masked_fill(~bias, float("-inf")) if bias.dtype == torch.bool else scores + bias
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
    return torch.softmax(scores, -1) @ value, torch.logsumexp(scores, -1)


@reference("aten._scaled_dot_product_flash_attention")
def flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """Attention and its logsumexp; the state of random numbers and further sizes are nothing here."""
    return (*attended(query, key, value, None, is_causal, scale), *[None] * 7)


@reference("aten._scaled_dot_product_efficient_attention")
def efficient_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """Attention, its logsumexp, seed and offset of random numbers."""
    seed = torch.zeros((), dtype=torch.int64)
    return (*attended(query, key, value, attn_bias, is_causal, scale), seed, seed.clone())


@reference("aten._scaled_dot_product_cudnn_attention")
def cudnn_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """Attention and its logsumexp."""
    return (*attended(query, key, value, attn_bias, is_causal, scale), *[None] * 7)


@reference("aten._scaled_dot_product_fused_attention_overrideable")
def overrideable_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """Attention and its logsumexp."""
    return (*attended(query, key, value, attn_bias, is_causal, scale), *[None] * 7)


@reference("aten.mm.dtype", "aten.bmm.dtype")
def matmul_dtype(self: Tensor, mat2: Tensor, out_dtype: Any) -> Tensor:
    """A product that is given in another dtype."""
    return self @ mat2


@reference("aten.addmm.dtype")
def addmm_dtype(
    self: Tensor, mat1: Tensor, mat2: Tensor, out_dtype: Any, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """A product and an addend, given in another dtype."""
    return beta * self + alpha * (mat1 @ mat2)


@reference("aten._scaled_mm")
def scaled_mm(
    self: Tensor,
    mat2: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None = None,
    scale_result: Tensor | None = None,
    out_dtype: Any = None,
    use_fast_accum: bool = False,
) -> Tensor:
    """A product of codes with their scales (one, or one a row of `self` and a column of `mat2`)."""
    y = real(self, scale_a) @ real(mat2, scale_b)
    y = y if bias is None else y + bias
    return y if scale_result is None else y * scale_result


@reference("aten._fused_rms_norm")
def fused_rms_norm(
    input: Tensor, normalized_shape: Any, weight: Tensor | None, eps: float | None
) -> tuple[Tensor, Tensor]:
    """The norm over the last axis, and 1 / rms."""
    inverse = torch.rsqrt((input * input).mean(-1, keepdim=True) + (eps or 0.0))
    y = input * inverse
    return y if weight is None else y * weight, inverse


@reference("aten._masked_softmax")
def masked_softmax(
    self: Tensor, mask: Tensor, dim: int | None = None, mask_type: int | None = None
) -> Tensor:
    """The softmax over what the mask leaves (it marks what is left out); rows without anything left are 0."""
    at = -1 if dim is None else dim
    return torch.softmax(self.masked_fill(mask, float("-inf")), at).nan_to_num(0.0)
