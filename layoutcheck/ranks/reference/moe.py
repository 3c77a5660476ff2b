"""Routing, dispatch, experts and combine.

dispatch: a row per (token, choice), grouped by expert, tokens in order inside a group; combine undoes that
order. Grouped matmuls take lists of rows and of weights, one pair an expert, and give the concatenation.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import torch
from torch import Tensor

from layoutcheck.ranks.reference.linears import real, unpack
from layoutcheck.ranks.reference.quantise import blockwise
from layoutcheck.ranks.reference.registry import Exchange, reference


@reference("tensor_cast.moe_gating_top_k_softmax")
def gate_softmax(x: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """The best experts by softmax over all."""
    best: tuple[Tensor, Tensor] = torch.softmax(x, -1).topk(top_k, -1)
    return best


@reference("tensor_cast.moe_gating_top_k_sigmoid")
def gate_sigmoid(
    x: Tensor, top_k: int, routed_scaling_factor: float = 1.0, correction_bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Sigmoid scores, chosen with a bias, weighted without it, normalised and scaled (DeepSeek-V3)."""
    scores = torch.sigmoid(x)
    ids = (scores if correction_bias is None else scores + correction_bias).topk(top_k, -1)[1]
    values = scores.gather(-1, ids)
    return values / values.sum(-1, keepdim=True) * routed_scaling_factor, ids


@reference("tensor_cast.moe_gating_top_k")
def gate(
    scores: Tensor,
    top_k: int,
    normalize_weights: bool = True,
    route_scale: float = 1.0,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The best of given scores."""
    ids = (scores if bias is None else scores + bias).topk(top_k, -1)[1]
    values = scores.gather(-1, ids)
    values = values / values.sum(-1, keepdim=True) if normalize_weights else values
    return values * route_scale, ids


@reference("tensor_cast.moe_gating_top_k_hash")
def gate_hash(
    scores: Tensor,
    top_k: int,
    normalize_weights: bool = True,
    route_scale: float = 1.0,
    input_ids: Tensor | None = None,
    tid2eid: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Experts looked up by token id where a table is given."""
    if input_ids is None or tid2eid is None:
        plain: tuple[Tensor, Tensor] = gate(scores, top_k, normalize_weights, route_scale)
        return plain
    ids = tid2eid[input_ids][..., :top_k].to(torch.int64)
    values = scores.gather(-1, ids)
    values = values / values.sum(-1, keepdim=True) if normalize_weights else values
    return values * route_scale, ids


def by_expert(ids: Tensor) -> Tensor:
    """The order that groups (token, choice) pairs by expert."""
    return ids.flatten().argsort(stable=True)


@reference("tensor_cast.init_routing_v2")
def init_routing(x: Tensor, topk_indices: Tensor) -> Tensor:
    """Rows of x, one a choice, grouped by expert."""
    return x.reshape(-1, x.shape[-1])[by_expert(topk_indices) // topk_indices.shape[-1]]


@reference("tensor_cast.unpermute_tokens")
def unpermute(x: Tensor, topk_indices: Tensor) -> Tensor:
    """Grouped rows back in token order, [tokens.., k, hidden]."""
    rows = torch.empty_like(x)
    rows[by_expert(topk_indices)] = x
    return rows.view(*topk_indices.shape, x.shape[-1])


def _product(rows: Tensor, weight: Tensor, bias: Any, e: int) -> Tensor:
    y = rows @ weight
    return y if bias is None or bias[e] is None else y + bias[e]


def _each(x: Any, i: int) -> Any:
    return x[i] if isinstance(x, (list, tuple)) else x


def grouped(x: Sequence[Tensor], product: Callable[[Tensor, int], Tensor], bias: Any) -> Tensor:
    """The concatenation of one product an expert."""
    out = []
    for i, rows in enumerate(x):
        y = product(rows, i)
        out.append(y if bias is None or _each(bias, i) is None else y + _each(bias, i))
    return torch.cat(out, 0)


def _halved(y: Tensor) -> Tensor:
    gate_part, up = y.chunk(2, -1)
    return gate_part * torch.sigmoid(gate_part) * up


@reference("tensor_cast.grouped_matmul")
def grouped_matmul(x: Sequence[Tensor], w: Sequence[Tensor], bias: Any) -> Tensor:
    """Rows of expert i times weight i."""
    return grouped(x, lambda rows, i: rows @ w[i], bias)


@reference("tensor_cast.grouped_matmul_quant")
def grouped_matmul_quant(
    x: Sequence[Tensor],
    w: Sequence[Tensor],
    w_scale: Any,
    w_offset: Any,
    x_scale: Any,
    x_offset: Any,
    bias: Any,
    out_dtype: Any,
) -> Tensor:
    """On eight-bit codes."""

    def product(rows: Tensor, i: int) -> Tensor:
        return real(rows, _each(x_scale, i), _each(x_offset, i)) @ real(
            w[i], _each(w_scale, i), _each(w_offset, i)
        )

    return grouped(x, product, bias)


@reference("tensor_cast.grouped_matmul_quant_int4")
def grouped_matmul_quant_int4(
    x: Sequence[Tensor],
    w: Sequence[Tensor],
    w_scale: Any,
    w_offset: Any,
    x_scale: Any,
    x_offset: Any,
    bias: Any,
    out_dtype: Any,
) -> Tensor:
    """On packed four-bit codes."""
    return grouped_matmul_quant(
        x, [unpack(m) for m in w], w_scale, w_offset, x_scale, x_offset, bias, out_dtype
    )


@reference("tensor_cast.grouped_matmul_fp8")
def grouped_matmul_fp8(
    x: Sequence[Tensor], w: Sequence[Tensor], w_scale: Any, x_scale: Any, bias: Any, out_dtype: Any
) -> Tensor:
    """On eight-bit floats."""
    return grouped_matmul_quant(x, w, w_scale, None, x_scale, None, bias, out_dtype)


@reference("tensor_cast.grouped_matmul_mxfp4")
def grouped_matmul_mxfp4(
    x: Sequence[Tensor], w: Sequence[Tensor], w_scale: Any, x_scale: Any, bias: Any, out_dtype: Any
) -> Tensor:
    """On four-bit floats, whose codes are halves."""
    return grouped(x, lambda r, i: real(r, _each(x_scale, i)) @ real(w[i], _each(w_scale, i)) / 4, bias)


@reference("tensor_cast.grouped_matmul_swiglu")
def grouped_matmul_swiglu(x: Sequence[Tensor], w: Sequence[Tensor], bias: Any) -> Tensor:
    """Gate and up in one weight, then silu(gate) up."""
    return _halved(grouped_matmul(x, w, bias))


@reference("tensor_cast.grouped_matmul_quant_swiglu")
def grouped_matmul_quant_swiglu(
    x: Sequence[Tensor],
    w: Sequence[Tensor],
    w_scale: Any,
    w_offset: Any,
    x_scale: Any,
    x_offset: Any,
    bias: Any,
    out_dtype: Any,
) -> Tensor:
    """As `grouped_matmul_swiglu`, on codes."""
    return _halved(grouped_matmul_quant(x, w, w_scale, w_offset, x_scale, x_offset, bias, out_dtype))


@reference("tensor_cast.grouped_matmul_quant_int4_swiglu")
def grouped_matmul_quant_int4_swiglu(
    x: Sequence[Tensor],
    w: Sequence[Tensor],
    w_scale: Any,
    w_offset: Any,
    x_scale: Any,
    x_offset: Any,
    bias: Any,
    out_dtype: Any,
) -> Tensor:
    """As `grouped_matmul_swiglu`, on packed codes."""
    return _halved(grouped_matmul_quant_int4(x, w, w_scale, w_offset, x_scale, x_offset, bias, out_dtype))


@reference("tensor_cast.grouped_matmul_fp8_swiglu")
def grouped_matmul_fp8_swiglu(
    x: Sequence[Tensor], w: Sequence[Tensor], w_scale: Any, x_scale: Any, bias: Any, out_dtype: Any
) -> Tensor:
    """As `grouped_matmul_swiglu`, on eight-bit floats."""
    return _halved(grouped_matmul_fp8(x, w, w_scale, x_scale, bias, out_dtype))


@reference("tensor_cast.grouped_matmul_mxfp4_swiglu")
def grouped_matmul_mxfp4_swiglu(
    x: Sequence[Tensor], w: Sequence[Tensor], w_scale: Any, x_scale: Any, bias: Any, out_dtype: Any
) -> Tensor:
    """As `grouped_matmul_swiglu`, on four-bit floats."""
    return _halved(grouped_matmul_mxfp4(x, w, w_scale, x_scale, bias, out_dtype))


@reference("tensor_cast.grouped_matmul_mxfp4_swiglu_quant")
def grouped_matmul_mxfp4_swiglu_quant(
    x: Sequence[Tensor],
    w: Sequence[Tensor],
    w_scale: Any,
    x_scale: Any,
    bias: Any,
    out_dtype: Any,
    group_size: int,
) -> tuple[Tensor, ...]:
    """The same, coded in blocks again."""
    return blockwise(grouped_matmul_mxfp4_swiglu(x, w, w_scale, x_scale, bias, out_dtype), group_size)


@reference("tensor_cast.dispatch_ffn_combine")
def dispatch_ffn_combine(
    x: Tensor,
    expert_indices: Tensor,
    gmm1_w: Any,
    gmm1_bias: Any,
    gmm2_w: Any,
    gmm2_bias: Any,
    rank: int,
    rank_group: Sequence[int],
) -> Generator[Exchange, Any, Any]:
    """The mean over the choices of each row's experts: W2 (silu(gate) up) with [gate, up] = x W1. Expert e
    lives on rank e // (experts a rank).
    """
    weights1, weights2 = (
        list(w.unbind(0)) if isinstance(w, torch.Tensor) else list(w) for w in (gmm1_w, gmm2_w)
    )
    mine, n = len(weights1), len(rank_group)
    rows = init_routing(x, expert_indices)
    order = expert_indices.flatten().sort(stable=True)[0]
    sent = [int((order // mine == j).sum()) for j in range(n)]
    got = yield Exchange("all_to_all", rows, rank_group, 0, sent)
    which = yield Exchange("all_to_all", order, rank_group, 0, sent)
    counts = torch.tensor(sent)
    back = (yield Exchange("all_to_all", counts, rank_group, 0, [1] * n)).tolist()
    first = list(rank_group).index(rank) * mine
    out = got.new_zeros(got.shape[0], weights2[0].shape[-1])
    for e in range(mine):
        at = which == first + e
        y = _halved(_product(got[at], weights1[e], gmm1_bias, e))
        out[at] = _product(y, weights2[e], gmm2_bias, e)
    home = yield Exchange("all_to_all", out, rank_group, 0, back)
    return unpermute(home, expert_indices).mean(-2).view(*x.shape[:-1], home.shape[-1])


@reference("transformers.grouped_mm_fallback")
def grouped_mm_fallback(input: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
    """Rows up to offs[e] from offs[e - 1] on times weight[e]."""
    out = input.new_zeros(input.shape[0], weight.shape[-1])
    low = 0
    for e, high in enumerate(offs.tolist()):
        out[low:high] = input[low:high] @ weight[e]
        low = high
    return out


@reference("aten._grouped_mm")
def grouped_mm(
    self: Tensor, mat2: Tensor, offs: Tensor | None = None, bias: Tensor | None = None, out_dtype: Any = None
) -> Tensor:
    """A batch of products, or rows in groups that end at `offs` times one matrix a group."""
    y = torch.bmm(self, mat2) if offs is None else grouped_mm_fallback(self, mat2, offs)
    return y if bias is None else y + bias
