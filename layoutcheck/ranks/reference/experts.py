"""Dispatch, experts and combine in one op, on codes: as `moe.dispatch_ffn_combine` on what the codes stand for."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import torch
from torch import Tensor

from layoutcheck.ranks.reference.linears import real, unpack
from layoutcheck.ranks.reference.moe import dispatch_ffn_combine
from layoutcheck.ranks.reference.registry import Exchange, reference

Talk = Generator[Exchange, Any, Any]


def _each(w: Any) -> list[Tensor]:
    return list(w.unbind(0)) if isinstance(w, torch.Tensor) else list(w)


def _of(x: Any, e: int, experts: int) -> Any:
    """Expert e's entry of what is given an expert, or for all of them."""
    if isinstance(x, (list, tuple)):
        return x[e]
    return x[e] if isinstance(x, torch.Tensor) and x.dim() > 0 and x.shape[0] == experts else x


def _weights(w: Any, scale: Any, offset: Any = None, packed: bool = False) -> list[Tensor]:
    codes = _each(w)
    n = len(codes)
    return [
        real(unpack(m) if packed else m, _of(scale, e, n), _of(offset, e, n)) for e, m in enumerate(codes)
    ]


def _combined(packed: bool) -> Any:
    def run(
        x: Tensor,
        expert_indices: Tensor,
        gmm1_w: Any,
        gmm1_w_scale: Any,
        gmm1_w_offset: Any,
        gmm1_bias: Any,
        gmm1_out_dtype: Any,
        gmm2_w: Any,
        gmm2_w_scale: Any,
        gmm2_w_offset: Any,
        gmm2_bias: Any,
        gmm2_out_dtype: Any,
        rank: int,
        rank_group: Sequence[int],
    ) -> Talk:
        first = _weights(gmm1_w, gmm1_w_scale, gmm1_w_offset, packed)
        second = _weights(gmm2_w, gmm2_w_scale, gmm2_w_offset, packed)
        return (
            yield from dispatch_ffn_combine(
                x, expert_indices, first, gmm1_bias, second, gmm2_bias, rank, rank_group
            )
        )

    return run


dispatch_quant = reference("tensor_cast.dispatch_ffn_combine_quant")(_combined(packed=False))
dispatch_int4 = reference("tensor_cast.dispatch_ffn_combine_quant_int4")(_combined(packed=True))


@reference("tensor_cast.dispatch_ffn_combine_fp8")
def dispatch_fp8(
    x: Tensor,
    expert_indices: Tensor,
    gmm1_w: Any,
    gmm1_w_scale: Any,
    gmm1_x_scale: Any,
    gmm1_bias: Any,
    gmm1_out_dtype: Any,
    gmm2_w: Any,
    gmm2_w_scale: Any,
    gmm2_x_scale: Any,
    gmm2_bias: Any,
    gmm2_out_dtype: Any,
    rank: int,
    rank_group: Sequence[int],
) -> Talk:
    """On eight-bit floats; a scale of the rows undoes itself, since they are coded and read in the op."""
    first, second = _weights(gmm1_w, gmm1_w_scale), _weights(gmm2_w, gmm2_w_scale)
    return (
        yield from dispatch_ffn_combine(
            x, expert_indices, first, gmm1_bias, second, gmm2_bias, rank, rank_group
        )
    )


@reference("tensor_cast.dispatch_ffn_combine_mxfp4")
def dispatch_mxfp4(
    x: Tensor,
    expert_indices: Tensor,
    gmm1_w: Any,
    gmm1_w_scale: Any,
    gmm1_x_scale: Any,
    gmm1_bias: Any,
    gmm1_out_dtype: Any,
    gmm1_group_size: int,
    gmm2_w: Any,
    gmm2_w_scale: Any,
    gmm2_x_scale: Any,
    gmm2_bias: Any,
    gmm2_out_dtype: Any,
    rank: int,
    rank_group: Sequence[int],
) -> Talk:
    """On four-bit floats, whose codes are halves."""
    first = [w / 2 for w in _weights(gmm1_w, gmm1_w_scale)]
    second = [w / 2 for w in _weights(gmm2_w, gmm2_w_scale)]
    return (
        yield from dispatch_ffn_combine(
            x, expert_indices, first, gmm1_bias, second, gmm2_bias, rank, rank_group
        )
    )
