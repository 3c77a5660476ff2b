"""Linears on codes: y = ((x - ox) sx) ((w - ow) sw) + b.

The accumulator is a sum of products of codes; scales and offsets are applied as they are defined, so that a
shard of the summed axis gives its own part. Four-bit weights are packed in pairs along the summed axis: row
i holds the codes of 2i (low) and 2i + 1 (high).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import torch
from torch import Tensor

from layoutcheck.ranks.reference.registry import Exchange, reference


def unpack(w: Tensor) -> Tensor:
    """Two signed four-bit codes a byte along axis -2, as twice as many rows."""
    low = (w.to(torch.int64) & 15 ^ 8) - 8
    high = (w.to(torch.int64) >> 4 & 15 ^ 8) - 8
    return torch.stack([low, high], -2).flatten(-3, -2)


def real(codes: Tensor, scale: Any = None, offset: Any = None) -> Tensor:
    """What codes stand for: (codes - offset) scale; a scale of blocks of the last or the first axis is spread."""
    x = codes.to(torch.float64)
    if offset is not None:
        x = x - _spread(offset, x)
    return x if scale is None else x * _spread(scale, x)


def _spread(scale: Any, like: Tensor) -> Any:
    if not isinstance(scale, torch.Tensor) or scale.dim() != like.dim():
        return scale
    for axis in range(like.dim()):
        have, want = scale.shape[axis], like.shape[axis]
        if have not in (1, want) and want % have == 0:
            scale = scale.repeat_interleave(want // have, axis)
    return scale


def _biased(y: Tensor, bias: Tensor | None) -> Tensor:
    return y if bias is None else y + bias


@reference("tensor_cast.static_quant_linear")
def static_quant_linear(
    x: Tensor, w: Tensor, w_scale: Any, w_offset: Any, x_scale: Any, x_offset: Any, bias: Any, out_dtype: Any
) -> Tensor:
    """A linear on eight-bit codes, w [k, n]."""
    return _biased(real(x, x_scale, x_offset) @ real(w, w_scale, w_offset), bias)


@reference("tensor_cast.static_quant_linear_int4")
def static_quant_linear_int4(
    x: Tensor, w: Tensor, w_scale: Any, w_offset: Any, x_scale: Any, x_offset: Any, bias: Any, out_dtype: Any
) -> Tensor:
    """A linear on packed four-bit codes, w [k/2, n]."""
    return static_quant_linear(x, unpack(w), w_scale, w_offset, x_scale, x_offset, bias, out_dtype)


@reference("tensor_cast.fp8_linear")
def fp8_linear(x: Tensor, w: Tensor, x_scale: Any, w_scale: Any, bias: Any, out_dtype: Any) -> Tensor:
    """A linear on eight-bit floats."""
    return _biased(real(x, x_scale) @ real(w, w_scale), bias)


@reference("tensor_cast.mxfp4_linear")
def mxfp4_linear(x: Tensor, w: Tensor, x_scale: Any, w_scale: Any, bias: Any, out_dtype: Any) -> Tensor:
    """A linear on four-bit floats (codes are halves) with a scale a block of the summed axis."""
    return _biased((real(x, x_scale) / 2) @ (real(w, w_scale) / 2), bias)


Talk = Generator[Exchange, Any, Any]


@reference("tensor_cast.matmul_all_reduce")
def matmul_all_reduce(mat1: Tensor, mat2: Tensor, bias: Any, rank: int, rank_group: Sequence[int]) -> Talk:
    """The sum over the group of mat1 mat2 + bias."""
    return (yield Exchange("all_reduce", _biased(mat1 @ mat2, bias), rank_group))


@reference("tensor_cast.static_quant_linear_all_reduce")
def static_quant_linear_all_reduce(
    x: Tensor,
    w: Tensor,
    w_scale: Any,
    w_offset: Any,
    x_scale: Any,
    x_offset: Any,
    bias: Any,
    out_dtype: Any,
    rank: int,
    rank_group: Sequence[int],
) -> Talk:
    """The sum over the group of a linear on codes."""
    y = static_quant_linear(x, w, w_scale, w_offset, x_scale, x_offset, bias, out_dtype)
    return (yield Exchange("all_reduce", y, rank_group))


@reference("tensor_cast.static_quant_linear_int4_all_reduce")
def static_quant_linear_int4_all_reduce(
    x: Tensor,
    w: Tensor,
    w_scale: Any,
    w_offset: Any,
    x_scale: Any,
    x_offset: Any,
    bias: Any,
    out_dtype: Any,
    rank: int,
    rank_group: Sequence[int],
) -> Talk:
    """The sum over the group of a linear on packed codes."""
    y = static_quant_linear_int4(x, w, w_scale, w_offset, x_scale, x_offset, bias, out_dtype)
    return (yield Exchange("all_reduce", y, rank_group))


@reference("tensor_cast.fp8_linear_all_reduce")
def fp8_linear_all_reduce(
    x: Tensor,
    w: Tensor,
    x_scale: Any,
    w_scale: Any,
    bias: Any,
    out_dtype: Any,
    rank: int,
    rank_group: Sequence[int],
) -> Talk:
    """The sum over the group of a linear on eight-bit floats."""
    return (yield Exchange("all_reduce", fp8_linear(x, w, x_scale, w_scale, bias, out_dtype), rank_group))


@reference("tensor_cast.mxfp4_linear_all_reduce")
def mxfp4_linear_all_reduce(
    x: Tensor,
    w: Tensor,
    x_scale: Any,
    w_scale: Any,
    bias: Any,
    out_dtype: Any,
    rank: int,
    rank_group: Sequence[int],
) -> Talk:
    """The sum over the group of a linear on four-bit floats."""
    return (yield Exchange("all_reduce", mxfp4_linear(x, w, x_scale, w_scale, bias, out_dtype), rank_group))
