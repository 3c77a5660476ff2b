"""Norms over the last axis, with a residual before and a quantisation behind.

rms: x / sqrt(mean(x^2) + eps) weight (Zhang and Sennrich 2019); layer: (x - mean) / sqrt(var + eps) weight
+ bias (Ba et al. 2016).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from layoutcheck.ranks.reference.quantise import asymmetric, blockwise, static_codes, symmetric
from layoutcheck.ranks.reference.registry import reference


@reference("tensor_cast.rms_norm")
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last axis."""
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


@reference("tensor_cast.layer_norm")
def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Layer norm over the last axis."""
    centred = x - x.mean(-1, keepdim=True)
    y = centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


@reference("tensor_cast.modulated_layer_norm")
def modulated_layer_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, scale: Tensor, shift: Tensor, eps: float
) -> Tensor:
    """layer_norm(x) (1 + scale) + shift."""
    return layer_norm(x, weight, bias, eps) * (1 + scale) + shift


@reference("tensor_cast.add_rms_norm")
def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The norm of the sum."""
    return rms_norm(x + residual, weight, eps)


@reference("tensor_cast.add_rms_norm2")
def add_rms_norm2(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The norm of the sum, and the sum."""
    return rms_norm(x + residual, weight, eps), x + residual


@reference("tensor_cast.rms_norm_quant")
def rms_norm_quant(
    x: Tensor, weight: Tensor, quant_scale: Tensor, quant_offset: Any, eps: float, out_dtype: Any = None
) -> Tensor:
    """The norm, coded by a scale that was measured before."""
    return static_codes(rms_norm(x, weight, eps), quant_scale, quant_offset, out_dtype)


@reference("tensor_cast.add_rms_norm_quant")
def add_rms_norm_quant(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    quant_scale: Tensor,
    quant_offset: Any,
    eps: float,
    out_dtype: Any = None,
) -> Tensor:
    """The sum's norm, coded by a scale that was measured before."""
    return static_codes(rms_norm(x + residual, weight, eps), quant_scale, quant_offset, out_dtype)


@reference("tensor_cast.add_rms_norm_quant2")
def add_rms_norm_quant2(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    quant_scale: Tensor,
    quant_offset: Any,
    eps: float,
    out_dtype: Any = None,
) -> tuple[Tensor, Tensor]:
    """As `add_rms_norm_quant`, and the sum."""
    return add_rms_norm_quant(x, residual, weight, quant_scale, quant_offset, eps, out_dtype), x + residual


@reference("tensor_cast.rms_norm_dynamic_quant_symmetric")
def rms_norm_symmetric(
    x: Tensor, weight: Tensor, eps: float, dims: Any, scale_dtype: Any = None, out_dtype: Any = None
) -> tuple[Tensor, ...]:
    """The norm in symmetric codes, and their scale."""
    return symmetric(rms_norm(x, weight, eps), dims, out_dtype)


@reference("tensor_cast.rms_norm_dynamic_quant_asymmetric")
def rms_norm_asymmetric(
    x: Tensor, weight: Tensor, eps: float, dims: Any, scale_dtype: Any = None, out_dtype: Any = None
) -> tuple[Tensor, ...]:
    """The norm in codes with an offset, their scale and the offset."""
    return asymmetric(rms_norm(x, weight, eps), dims, out_dtype)


@reference("tensor_cast.rms_norm_dynamic_quant_mxfp4")
def rms_norm_mxfp4(x: Tensor, weight: Tensor, eps: float, group_size: int) -> tuple[Tensor, ...]:
    """The norm in blocks with a shared power of two."""
    return blockwise(rms_norm(x, weight, eps), group_size)


@reference("tensor_cast.add_rms_norm_dynamic_quant_symmetric")
def add_rms_norm_symmetric(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    dims: Any,
    scale_dtype: Any = None,
    out_dtype: Any = None,
) -> tuple[Tensor, ...]:
    """The sum's norm in symmetric codes, and their scale."""
    return symmetric(rms_norm(x + residual, weight, eps), dims, out_dtype)


@reference("tensor_cast.add_rms_norm_dynamic_quant_asymmetric")
def add_rms_norm_asymmetric(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    dims: Any,
    scale_dtype: Any = None,
    out_dtype: Any = None,
) -> tuple[Tensor, ...]:
    """The sum's norm in codes with an offset."""
    return asymmetric(rms_norm(x + residual, weight, eps), dims, out_dtype)


@reference("tensor_cast.add_rms_norm_dynamic_quant_mxfp4")
def add_rms_norm_mxfp4(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, group_size: int
) -> tuple[Tensor, ...]:
    """The sum's norm in blocks."""
    return blockwise(rms_norm(x + residual, weight, eps), group_size)


@reference("tensor_cast.add_rms_norm_dynamic_quant2_symmetric")
def add_rms_norm2_symmetric(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    dims: Any,
    scale_dtype: Any = None,
    out_dtype: Any = None,
) -> tuple[Tensor, ...]:
    """Codes, scale, and the sum."""
    return (*symmetric(rms_norm(x + residual, weight, eps), dims, out_dtype), x + residual)


@reference("tensor_cast.add_rms_norm_dynamic_quant2_asymmetric")
def add_rms_norm2_asymmetric(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    dims: Any,
    scale_dtype: Any = None,
    out_dtype: Any = None,
) -> tuple[Tensor, ...]:
    """Codes, scale, offset, and the sum."""
    return (*asymmetric(rms_norm(x + residual, weight, eps), dims, out_dtype), x + residual)


@reference("tensor_cast.add_rms_norm_dynamic_quant2_mxfp4")
def add_rms_norm2_mxfp4(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, group_size: int
) -> tuple[Tensor, ...]:
    """Codes, scales, and the sum."""
    return (*blockwise(rms_norm(x + residual, weight, eps), group_size), x + residual)
