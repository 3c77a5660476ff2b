"""Quantisation: codes, scale and offset.

symmetric: s = max|x| / 127, q = round(x / s); asymmetric: s = (max - min) / 255, q = round(x / s) + o with
o = -128 - round(min / s); mxfp4: blocks of the last axis share a power of two, elements are E2M1 (OCP MX
1.0). `dims` are the axes over which one scale is taken; empty: over everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from layoutcheck.ranks.reference.registry import reference

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
TINY = 1e-12


def _dims(x: Tensor, dims: Any) -> list[int]:
    given = [dims] if isinstance(dims, int) else list(dims or ())
    return [d % x.dim() for d in given] or list(range(x.dim()))


def _codes(x: Tensor, out_dtype: Any) -> Tensor:
    if isinstance(out_dtype, torch.dtype) and out_dtype.is_floating_point:
        return x
    return torch.round(x).clamp(-128, 127).to(torch.int8)


def _kept(dims: Sequence[int], x: Tensor, statistic: Tensor, asked: Any) -> Tensor:
    """A statistic over everything is a scalar; one along some axes keeps them with extent one."""
    given = [asked] if isinstance(asked, int) else list(asked or ())
    return statistic if given else statistic.reshape(())


def symmetric(x: Tensor, dims: Any, out_dtype: Any = None) -> tuple[Tensor, Tensor]:
    """Codes and scale."""
    over = _dims(x, dims)
    scale = x.abs().amax(over, keepdim=True).clamp(min=TINY) / 127 if x.numel() else x.new_ones([1] * x.dim())
    return _codes(x / scale, out_dtype), _kept(over, x, scale, dims)


def asymmetric(x: Tensor, dims: Any, out_dtype: Any = None) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, scale and offset: x = (code - offset) scale."""
    over = _dims(x, dims)
    low, high = x.amin(over, keepdim=True), x.amax(over, keepdim=True)
    scale = (high - low).clamp(min=TINY) / 255
    offset = -128 - torch.round(low / scale)
    codes = _codes(torch.round(x / scale) + offset, out_dtype)
    return codes, _kept(over, x, scale, dims), _kept(over, x, offset, dims).to(torch.int32)


def blockwise(x: Tensor, group_size: int) -> tuple[Tensor, Tensor]:
    """E2M1 codes (as halves, in int8) and one power of two a block of the last axis."""
    blocks = x.unflatten(-1, (-1, group_size))
    largest = blocks.abs().amax(-1, keepdim=True).clamp(min=TINY)
    scale = torch.exp2(torch.floor(torch.log2(largest)) - 2)
    grid = torch.tensor(E2M1, dtype=x.dtype)
    nearest = ((blocks / scale).abs().unsqueeze(-1) - grid).abs().argmin(-1)
    codes = (grid[nearest] * 2 * blocks.sign()).to(torch.int8)
    return codes.flatten(-2), scale.squeeze(-1)


def static_codes(x: Tensor, scale: Tensor, offset: Any, out_dtype: Any = None) -> Tensor:
    """Codes by a given scale."""
    return _codes(x / scale + (0 if offset is None else offset), out_dtype)


@reference("tensor_cast.quantize")
def quantize(x: Tensor, scale: Tensor, offset: Any, out_dtype: Any = None) -> Tensor:
    """Codes by a scale that was measured before."""
    return static_codes(x, scale, offset, out_dtype)


@reference("tensor_cast.dynamic_quantize_symmetric")
def dynamic_symmetric(
    x: Tensor, dims: Any, scale_dtype: Any = None, out_dtype: Any = None
) -> tuple[Tensor, ...]:
    """Codes and scale."""
    return symmetric(x, dims, out_dtype)


@reference("tensor_cast.dynamic_quantize_asymmetric")
def dynamic_asymmetric(
    x: Tensor, dims: Any, scale_dtype: Any = None, out_dtype: Any = None
) -> tuple[Tensor, ...]:
    """Codes, scale and offset."""
    return asymmetric(x, dims, out_dtype)


@reference("tensor_cast.dynamic_quantize_mxfp4")
def dynamic_mxfp4(x: Tensor, group_size: int) -> tuple[Tensor, ...]:
    """Codes and one scale a block."""
    return blockwise(x, group_size)


@reference("tensor_cast.m3_swiglu_quant")
def offset_swiglu_quant(
    gate: Tensor, up: Tensor, alpha: float, limit: float, group_size: int
) -> tuple[Tensor, ...]:
    """The gated activation, one scale a row."""
    from layoutcheck.ranks.reference.pointwise import offset_swiglu

    return symmetric(offset_swiglu(gate, up, alpha, limit), -1)
