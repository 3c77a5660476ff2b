"""Calls of the fused ops that have reference implementations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from layoutcheck.graph import DtypeArg
from layoutcheck.ranks.reference import find

from .calls import At, Env, Sample, X

TH = X("t h")
BTH = X("b t h")
W = X("h")
F32 = DtypeArg("float32")
GROUP = At(lambda env: list(range(env.p)))
RANK = At(lambda env: env.rank or 0)
ONE = X("1", "p", states="full")


def _s(op: str, note: str = "", **args: Any) -> Sample:
    return Sample(f"tensor_cast.{op}.default", args, note=note)


def pointwise() -> Iterator[Sample]:
    """Activations."""
    for op in ("silu", "gelu"):
        yield _s(op, x=BTH)
    yield _s("swiglu", gate=TH, up=TH)
    yield _s("v4_clamped_swiglu", gate=TH, up=TH, swiglu_limit=2.0)
    yield _s("m3_swiglu", gate=TH, up=TH, alpha=1.5, limit=2.0)
    yield replace(_s("m3_swiglu_quant", gate=TH, up=TH, alpha=1.5, limit=2.0, group_size=4), codes=2)
    yield _s("gated_residual_add", residual=TH, update=TH, gate=W)
    yield _s("static_false_mask", mask=X("t s", "b"))
    yield _s("cat", "tokens", tensors=[TH, X("s h")], dim=0)
    for op in ("_internal_mark_region_begin", "_internal_mark_region_end"):
        yield _s(op, x=TH, id=0)
    yield _s("_internal_wait_and_bind", x=TH, stream_id=0, deps=None)
    yield _s("_internal_order_barrier", x=TH, dep=None)


def norms() -> Iterator[Sample]:
    """Norms and their quantised forms."""
    yield _s("rms_norm", x=BTH, weight=W, eps=1e-6)
    yield _s("layer_norm", x=TH, weight=W, bias=W, eps=1e-6)
    yield _s("modulated_layer_norm", x=TH, weight=W, bias=None, scale=TH, shift=TH, eps=1e-6)
    for op in ("add_rms_norm", "add_rms_norm2"):
        yield _s(op, x=TH, residual=TH, weight=W, eps=1e-6)
    static = dict(quant_scale=ONE, quant_offset=None, eps=1e-6)
    yield _s("rms_norm_quant", x=TH, weight=W, **static)
    for op in ("add_rms_norm_quant", "add_rms_norm_quant2"):
        yield _s(op, x=TH, residual=TH, weight=W, **static)
    for kind in ("symmetric", "asymmetric"):
        for dims in ([-1], []):
            note = "a scale a row" if dims else "one scale"
            n = 2 if kind == "symmetric" else 3
            norm = _s(f"rms_norm_dynamic_quant_{kind}", note, x=TH, weight=W, eps=1e-6, dims=dims)
            yield replace(norm, codes=n)
            for prefix in ("add_rms_norm_dynamic_quant_", "add_rms_norm_dynamic_quant2_"):
                added = _s(prefix + kind, note, x=TH, residual=TH, weight=W, eps=1e-6, dims=dims)
                yield replace(added, codes=n)
            yield replace(_s(f"dynamic_quantize_{kind}", note, x=BTH if dims else TH, dims=dims), codes=n)
    yield _s("rms_norm_dynamic_quant_mxfp4", x=TH, weight=W, eps=1e-6, group_size=4)
    for prefix in ("add_rms_norm_dynamic_quant_", "add_rms_norm_dynamic_quant2_"):
        yield _s(prefix + "mxfp4", x=TH, residual=TH, weight=W, eps=1e-6, group_size=4)
    yield _s("dynamic_quantize_mxfp4", x=X("t k"), group_size=2)
    yield _s("quantize", x=TH, scale=ONE, offset=None)


def _reduced(op: str, note: str = "", **args: Any) -> Iterator[Sample]:
    """A linear, and the same with an all_reduce behind, which on one device adds nothing."""
    yield _s(op, note, **args)
    fused = find(f"tensor_cast.{op}.default")
    name = "matmul_all_reduce" if op == "matmul" else f"{op}_all_reduce"

    def alone(given: dict[str, Any], env: Env) -> Any:
        assert fused is not None
        return fused(**{k: v for k, v in given.items() if k not in ("rank", "rank_group")})

    yield Sample(
        f"tensor_cast.{name}.default", {**args, "rank": RANK, "rank_group": GROUP}, expected=alone, note=note
    )


def linears() -> Iterator[Sample]:
    """Linears on codes."""
    x, w = X("t k", "c"), X("k n", "c")
    quant = dict(w_offset=None, x_offset=None, out_dtype=F32)
    row = X("t 1", "p", states="cut")
    yield from _reduced(
        "static_quant_linear", "scalar scales", x=x, w=w, w_scale=ONE, x_scale=ONE, bias=None, **quant
    )
    yield from _reduced(
        "static_quant_linear",
        "a scale a row and a column",
        x=x,
        w=w,
        w_scale=X("n", "p", states="cut"),
        x_scale=row,
        bias=None,
        **quant,
    )
    yield from _reduced(
        "static_quant_linear", "with bias", x=x, w=w, w_scale=ONE, x_scale=ONE, bias=X("n"), **quant
    )
    packed = X("h n", "c", {"h": 12})
    yield from _reduced(
        "static_quant_linear_int4",
        x=X("t k", "c", {"k": 24}),
        w=packed,
        w_scale=ONE,
        x_scale=ONE,
        bias=None,
        **quant,
    )
    for op in ("fp8_linear", "mxfp4_linear"):
        yield from _reduced(op, x=x, w=w, x_scale=row, w_scale=ONE, bias=None, out_dtype=F32)
    matmul = dict(mat1=X("t k"), mat2=X("k n"))

    def product(given: dict[str, Any], env: Env) -> torch.Tensor:
        y: torch.Tensor = given["mat1"] @ given["mat2"]
        return y if given["bias"] is None else y + given["bias"]

    for bias in (None, X("n")):
        args = {**matmul, "bias": bias, "rank": RANK, "rank_group": GROUP}
        yield Sample(
            "tensor_cast.matmul_all_reduce.default",
            args,
            expected=product,
            note="" if bias is None else "with bias",
        )


def rotary() -> Iterator[Sample]:
    """Rotary embeddings."""
    cos = X("b t d", states="cut")
    yield _s("apply_rope", query=X("b h t d"), key=X("b n t d"), cos=cos, sin=cos)
    yield _s("apply_rope_single", x=X("b h t d"), cos=cos, sin=cos)
    yield _s("apply_rope_single", "as it came", x=X("b h t d"), cos=cos, sin=cos, transpose_output=False)
    yield _s("apply_rope_inplace", x=X("t h d"), cos=X("t d", states="cut"), sin=X("t d", states="cut"))
    yield _s("fused_rope", query=X("t h d"), key=X("t n d"), cos_sin=X("t 4"), rotary_dim=4)


def collectives() -> Iterator[Sample]:
    """Collectives and slices at the rank: on one device the value itself."""
    for sample in _collectives():
        yield replace(sample, conversion=True)


def _collectives() -> Iterator[Sample]:
    for operand in (X("s h", extents={"s": 12}), X("t h")):
        for dim in (0, 1):
            for op in ("all_gather", "reduce_scatter"):
                yield Sample(
                    f"tensor_cast.{op}.default",
                    {"x": operand, "dim": dim, "rank": RANK, "rank_group": GROUP},
                    expected=_itself,
                    note=f"dim {dim}",
                )
        yield Sample(
            "tensor_cast.all_reduce.default",
            {"x": operand, "rank": RANK, "rank_group": GROUP},
            expected=_itself,
        )
        yield Sample(
            "_c10d_functional.all_gather_into_tensor.default",
            {"input": operand, "group_size": At(lambda e: e.p), "group_name": "tp"},
            expected=_input,
        )
        yield Sample(
            "_c10d_functional.reduce_scatter_tensor.default",
            {"input": operand, "reduce_op": "sum", "group_size": At(lambda e: e.p), "group_name": "tp"},
            expected=_input,
        )
        yield Sample(
            "_c10d_functional.all_reduce.default",
            {"input": operand, "reduce_op": "sum", "group_name": "tp"},
            expected=_input,
        )
    yield Sample("_c10d_functional.wait_tensor.default", {"tensor": TH}, expected=lambda a, e: a["tensor"])
    even = X("s h", extents={"s": 12})
    slice_args = {
        "self": even,
        "dim": 0,
        "start": At(lambda e: (e.rank or 0) * (12 // e.p)),
        "end": At(lambda e: ((e.rank or 0) + 1) * (12 // e.p)),
    }
    yield Sample("aten.slice.Tensor", slice_args, expected=_self, note="at the rank", only=lambda p, T: p > 1)
    narrow_args = {"self": even, "dim": 0, "start": slice_args["start"], "length": At(lambda e: 12 // e.p)}
    yield Sample(
        "aten.narrow.default", narrow_args, expected=_self, note="at the rank", only=lambda p, T: p > 1
    )


def _itself(given: dict[str, Any], env: Env) -> torch.Tensor:
    x: torch.Tensor = given["x"]
    return x


def _input(given: dict[str, Any], env: Env) -> torch.Tensor:
    x: torch.Tensor = given["input"]
    return x


def _self(given: dict[str, Any], env: Env) -> torch.Tensor:
    x: torch.Tensor = given["self"]
    return x


def experts() -> Iterator[Sample]:
    """Routing, dispatch and grouped matmuls."""
    scores = X("t e", "rows")
    yield _s("moe_gating_top_k_softmax", x=scores, top_k=3)
    yield _s("moe_gating_top_k_sigmoid", x=scores, top_k=3, correction_bias=X("e", "rows"))
    yield _s("moe_gating_top_k", scores=scores, top_k=3, bias=X("e", "rows"))
    ids = X("t", "@7")
    yield _s(
        "moe_gating_top_k_hash",
        scores=scores,
        top_k=2,
        input_ids=ids,
        tid2eid=X("n k", "@e", {"n": 7, "k": 2}, states="full"),
    )
    yield _s("init_routing_v2", x=TH, topk_indices=X("t k", "@e", {"k": 2}))
    lists = dict(x=[X("s k"), X("q k")], w=[X("k n"), X("k n")])
    codes = dict(
        x=[X("s k", "c"), X("q k", "c")], w=[X("k n", "c", states="cut"), X("k n", "c", states="cut")]
    )
    few = dict(x=[X("s k", "c", states="cut"), X("q k", "c", states="cut")], w=codes["w"])
    scale = dict(w_scale=ONE, x_scale=ONE, bias=None, out_dtype=F32)
    yield _s("grouped_matmul", **lists, bias=None)
    yield _s("grouped_matmul_swiglu", **lists, bias=None)
    for op in ("grouped_matmul_quant", "grouped_matmul_quant_swiglu"):
        yield _s(op, **few, w_offset=None, x_offset=None, **scale)
    for op in (
        "grouped_matmul_fp8",
        "grouped_matmul_mxfp4",
        "grouped_matmul_fp8_swiglu",
        "grouped_matmul_mxfp4_swiglu",
    ):
        yield _s(op, **few, **scale)
    yield _s("grouped_matmul_mxfp4_swiglu_quant", **few, **scale, group_size=2)
    int4 = dict(x=few["x"], w=[X("h n", "c", states="cut"), X("h n", "c", states="cut")])
    for op in ("grouped_matmul_quant_int4", "grouped_matmul_quant_int4_swiglu"):
        yield _s(op, **int4, w_offset=None, x_offset=None, **scale)


def _rows(env: Env) -> tuple[int, int]:
    """First row of the tokens that a rank's queries are, and how many there are."""
    return (0, env.T) if env.rank is None or "t" not in env.cut else (env.rank * env.c, env.c)


def attention() -> Iterator[Sample]:
    """Latent attention, caches and the indexer, on one sequence that fills its cache's first rows."""
    blocks = dict(block_table=At(lambda e: torch.arange(4)[None]))
    # metadata of a rank's own rows: its queries, and the keys up to the last of them
    counts = At(lambda e: torch.tensor([_rows(e)[1]]))
    lens = At(lambda e: torch.tensor([sum(_rows(e))]))
    starts = At(lambda e: torch.tensor([0, _rows(e)[1]]))
    meta: dict[str, Any] = dict(**blocks, query_start_loc=starts, seq_lens=lens, query_lens=counts)
    cache = X("4 8 h", states="full")
    full = dict(extents={"u": 4, "l": 8, "v": 6})
    yield _s(
        "multihead_latent_attention",
        q=X("t n d", extents={"d": 8}),
        kv_cache=cache,
        **meta,
        W_UK_T=X("n u l", **full),
        W_UV=X("n l v", **full),
        kv_b_proj=None,
        v_head_dim=6,
    )
    yield _s(
        "mla_sparse_attention",
        q=X("t n d", extents={"d": 8}),
        kv_cache=cache,
        **meta,
        W_UK_T=X("n u l", **full, states="cut"),
        W_UV=X("n l v", **full, states="cut"),
        kv_b_proj=None,
        v_head_dim=6,
        topk_limit=3,
        topk_indices=X("t k", "@t", {"k": 3}),
    )
    yield _s(
        "attention",
        query=X("t (h r d)"),
        key=X("4 8 g d", extents={"g": 1}, states="full"),
        value=X("4 8 g d", extents={"g": 1}, states="full"),
        attention_mask=None,
        **meta,
    )
    yield _s(
        "sparse_attn_sharedkv",
        q=X("1 t h d"),
        kv=X("1 s d", states="full"),
        attn_sink=X("h", states="cut"),
        topk_indices=X("1 t k", "@s", {"k": 3}),
        softmax_scale=0.5,
        head_dim=4,
    )
    angles = X("t r", extents={"r": 2}, states="cut")
    yield _s(
        "mlapo",
        hidden_states=X("t m", extents={"m": 12}),
        cos=angles,
        sin=angles,
        q_a_proj_weight=X("a m", extents={"a": 12, "m": 12}, states="cut"),
        q_a_layernorm_weight=X("a", extents={"a": 12}, states="full"),
        q_b_proj_weight=X("(h d) a", extents={"a": 12}, states="cut"),
        kv_a_proj_weight=X("c m", extents={"c": 12, "m": 12}, states="full"),
        kv_a_layernorm_weight=X("l", extents={"l": 10}, states="full"),
        num_heads=12,
        qk_head_dim=4,
        qk_nope_head_dim=2,
        qk_rope_head_dim=2,
        kv_lora_rank=10,
        q_lora_rank=12,
    )
    yield _s(
        "dsa_indexer",
        hidden_states=X("t m", extents={"m": 12}, states="cut"),
        qa_normed=X("t a", extents={"a": 12}, states="cut"),
        cos=angles,
        sin=angles,
        indexer_cache=X("4 8 d", states="full"),
        slot_mapping=At(lambda e: torch.arange(e.T)),
        block_tables=At(lambda e: torch.arange(4)[None]),
        seq_lens=lens,
        wq_b_weight=X("(h d) a", extents={"a": 12}, states="cut"),
        wk_weight=X("d m", extents={"m": 12}, states="full"),
        weights_proj_weight=X("h m", extents={"m": 12}, states="full"),
        k_norm_weight=X("d", states="full"),
        num_heads=12,
        head_dim=4,
        qk_rope_head_dim=2,
        topk_limit=3,
    )


def all_samples() -> Iterator[Sample]:
    """All of the above."""
    for make in (pointwise, norms, linears, rotary, collectives, experts, attention):
        yield from make()
