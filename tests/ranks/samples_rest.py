"""Calls of kernels of other devices, of ops that write into their operands, of caches, experts, and of random numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from layoutcheck.graph import DtypeArg

from .calls import At, Env, Sample, X

TH = X("t h")
F32 = DtypeArg("float32")
ONE = X("1", "p", states="full")
SH = X("s h", extents={"s": 12})
P = At(lambda e: e.p)
RANK = At(lambda e: e.rank or 0)
GROUP = At(lambda e: list(range(e.p)))
OWN = At(lambda e: [0] if e.rank is None else list(range(e.p)))
"""On one device a group of one."""


def _s(target: str, note: str = "", **args: Any) -> Sample:
    return Sample(target if target.count(".") > 1 else target + ".default", args, note=note)


def several(p: int, T: int) -> bool:
    """More than one rank."""
    return p > 1


def kernels() -> Iterator[Sample]:
    """Attention, products and norms of devices that are not here."""
    qkv: dict[str, Any] = dict(query=X("1 h t d"), key=X("1 h s d"), value=X("1 h s d"))
    own: dict[str, Any] = dict(query=X("1 h t d"), key=X("1 h t d"), value=X("1 h t d"), is_causal=True)
    grouped: dict[str, Any] = dict(query=X("1 (h r) t d"), key=X("1 h s d"), value=X("1 h s d"))
    biased: dict[str, Any] = {
        name: X(axes, states="cut")
        for name, axes in dict(query="1 h t d", key="1 h s d", value="1 h s d", attn_bias="1 h t s").items()
    }
    fused = "aten._scaled_dot_product_fused_attention_overrideable"
    sdpa: list[tuple[str, dict[str, Any]]] = [
        ("aten._scaled_dot_product_flash_attention", {}),
        ("aten._scaled_dot_product_efficient_attention", dict(attn_bias=None, compute_log_sumexp=True)),
        ("aten._scaled_dot_product_cudnn_attention", dict(attn_bias=None, compute_log_sumexp=True)),
        (fused, {}),
    ]
    for target, more in sdpa:
        yield _s(target, **qkv, **more)
        yield _s(target, "causal", **own, **more)
        yield _s(target, "grouped", **grouped, **more)
        if "attn_bias" in more or target == fused:
            yield _s(target, "with a bias", **{**more, **biased})
    yield _s("aten.mm.dtype", self=X("t k"), mat2=X("k n"), out_dtype=F32)
    yield _s("aten.bmm.dtype", self=X("b t k"), mat2=X("b k n"), out_dtype=F32)
    yield _s("aten.addmm.dtype", self=X("n"), mat1=X("t k"), mat2=X("k n"), out_dtype=F32)
    codes: dict[str, Any] = dict(self=X("t k", "c"), mat2=X("k n", "c"), out_dtype=F32)
    yield _s("aten._scaled_mm", "one scale", **codes, scale_a=ONE, scale_b=ONE)
    rows = dict(scale_a=X("t 1", "p", states="cut"), scale_b=X("1 n", "p", states="cut"))
    yield _s("aten._scaled_mm", "a scale a row and a column", **codes, **rows)
    yield _s("aten._scaled_mm", "with bias", **codes, scale_a=ONE, scale_b=ONE, bias=X("n"))
    yield _s("aten._fused_rms_norm", input=X("b t h"), normalized_shape=[12], weight=X("h"), eps=1e-6)
    yield _s("aten._masked_softmax", self=X("2 n t s"), mask=X("2 n t s", "b"), dim=3, mask_type=2)


def random_values() -> Iterator[Sample]:
    """Random or undefined values: the shapes; and where the distribution leaves one value, that."""
    size = [3, 4]
    for op, args in (
        ("rand", {}),
        ("randn", {}),
        ("empty.memory_format", {}),
        ("empty_strided", dict(stride=[4, 1])),
        ("empty_permuted", dict(physical_layout=[0, 1])),
    ):
        yield replace(_s(f"aten.{op}", size=size, **args), shape_only=True)
    yield _s("aten.randint", "one value", high=1, size=size)
    yield _s("aten.randint.low", "one value", low=3, high=4, size=size)
    for op in ("rand_like", "randn_like", "empty_like", "exponential"):
        yield replace(_s(f"aten.{op}", self=X("t h", states="cut")), shape_only=True)
    yield replace(_s("aten.bernoulli", self=X("t h", "01", states="cut")), shape_only=True)
    yield replace(_s("aten.bernoulli.p", self=X("t h", states="cut"), p=0.5), shape_only=True)
    for op, more in (("new_empty", {}), ("new_empty_strided", dict(stride=[4, 1]))):
        yield replace(_s(f"aten.{op}", self=X("t h", states="cut"), size=size, **more), shape_only=True)
    yield Sample(
        "aten.uniform.default", {"self": X("t h", states="cut"), "from": 0.5, "to": 0.5}, note="one value"
    )
    yield _s("aten.normal_", "one value", self=X("t h", states="cut"), mean=2.0, std=0.0)
    yield _s("aten.dropout", "nothing dropped", input=TH, p=0.5, train=False)
    yield _s("aten.native_dropout", "nothing dropped", input=TH, p=0.5, train=False)
    yield replace(_s("aten.randperm", n=5), shape_only=True)
    chosen = _s("aten.multinomial", self=X("t e", "p"), num_samples=2, replacement=True)
    yield replace(chosen, shape_only=True)
    yield _s(
        "prims.iota", length=5, start=0, step=1, dtype=DtypeArg("int64"), device="cpu", requires_grad=False
    )


def shapes() -> Iterator[Sample]:
    """Sizes of tensors, rows that data decides, complex numbers, devices by name."""
    for target, more in (
        ("aten.sym_size.int", dict(dim=0)),
        ("aten.size.int", dict(dim=1)),
        ("aten.sym_stride.int", dict(dim=0)),
        ("aten.sym_numel", {}),
        ("aten.numel", {}),
        ("aten.sym_storage_offset", {}),
    ):
        yield _s(target, self=TH, **more)
    for op in ("item", "_local_scalar_dense"):
        yield _s(f"aten.{op}", self=X("", "i", states="full"))
    yield _s("aten.repeat_interleave.Tensor", repeats=X("t", "@3"))
    yield _s("aten._unique2", self=X("t", "@3"))
    yield replace(_s("aten.tensor_split.sections", self=X("b h"), sections=2, dim=0), packed=True)
    yield replace(_s("aten.glu", self=X("t h", extents={"h": 24}), dim=-1), packed=True)
    yield _s("aten.tensor_split.sections", "of tokens", self=X("s h"), sections=3, dim=0)
    ends = At(lambda e: torch.tensor([2, 5]))
    yield _s(
        "aten.tensor_split.tensor_indices_or_sections", self=X("s h"), tensor_indices_or_sections=ends, dim=0
    )
    yield _s("aten.to.prim_Device", self=TH, device="cpu", dtype=F32)
    yield _s("prims.device_put", a=TH, device="cpu", non_blocking=False)
    yield _s("aten.view_as_real", self=X("t h", "z"))
    yield _s("tensor_cast._internal_record", x=TH, stream_id=0)


def _take(name: str) -> Callable[[dict[str, Any], Env], Any]:
    return lambda given, env: given[name]


def _first(name: str) -> Callable[[dict[str, Any], Env], Any]:
    return lambda given, env: given[name][0]


def collectives() -> Iterator[Sample]:
    """Eager collectives, which write into an operand, and exchanges of one axis for another."""
    for p in (2, 3, 4):
        yield from _eager(p)
    for target, name, more in (
        ("_c10d_functional.all_to_all_single", "input", dict(group_name="tp")),
        ("_c10d_functional_autograd.all_to_all_single", "input", dict(group_name="tp")),
        ("c10d_functional.all_to_all_single", "input", dict(tag="", ranks=GROUP, group_size=P)),
        ("tensor_cast.all_to_all", "x", dict(rank=RANK, rank_group=GROUP)),
    ):
        for x in (X("n s", extents={"n": 12}), X("s n", extents={"n": 12})):
            args = {name: x, "output_split_sizes": None, "input_split_sizes": None, **more}
            yield Sample(target + ".default", args, expected=_take(name), conversion=True, only=several)
    for gather, scatter in ((0, 1), (1, 0)):
        yield Sample(
            "_dtensor.shard_dim_alltoall.default",
            dict(input=SH, gather_dim=gather, shard_dim=scatter, group_name="tp"),
            expected=_take("input"),
            conversion=True,
            only=several,
            note=f"from {gather} to {scatter}",
        )
    yield Sample(
        "vllm.maybe_chunk_residual.default",
        dict(x=X("t h", states="cut"), residual=X("t h")),
        expected=_take("residual"),
        conversion=True,
        only=several,
    )
    scaled: dict[str, Any] = dict(A_scale=ONE, B_scale=ONE, reduce_op="sum", orig_scatter_dim=0)
    yield Sample(
        "vllm.patched_fused_scaled_matmul_reduce_scatter.default",
        dict(
            A=X("s k", "c", extents={"s": 12}),
            B=X("k n", "c"),
            **scaled,
            scatter_dim_after_maybe_reshape=0,
            group_name="tp",
            output_shape=None,
        ),
        expected=lambda a, e: (a["A"].double() * a["A_scale"]) @ (a["B"].double() * a["B_scale"]),
        only=several,
    )


def _eager(p: int) -> Iterator[Sample]:
    """For a group of p: the written tensors are fresh memory of the size that comes out."""

    def exactly(n: int, T: int) -> bool:
        return n == p

    x = X("s h", extents={"s": 12}, states="rows")
    part, same = X("q h", states="full", extents={"q": 12 // p}), X("q h", states="full")
    more: dict[str, Any] = dict(process_group="tp")
    summed: dict[str, Any] = dict(process_group="tp", reduce_op="sum")
    written: list[tuple[str, str, dict[str, Any], Any]] = [
        ("c10d.allreduce_", "tensors", dict(tensors=[x], sparse_indices=None, **summed), _first("tensors")),
        ("c10d.allreduce_coalesced_", "tensors", dict(tensors=[x, x], **summed), _take("tensors")),
        (
            "c10d.broadcast_",
            "tensors",
            dict(tensors=[x], root_rank=0, root_tensor=0, **more),
            _first("tensors"),
        ),
        (
            "c10d._allgather_base_",
            "output_tensor",
            dict(output_tensor=same, input_tensor=x, **more),
            _take("input_tensor"),
        ),
        (
            "c10d.allgather_into_tensor_coalesced_",
            "outputs",
            dict(outputs=[same], inputs=[x], process_group="tp"),
            _first("inputs"),
        ),
        (
            "c10d._reduce_scatter_base_",
            "output_tensor",
            dict(output_tensor=part, input_tensor=x, **summed),
            _take("input_tensor"),
        ),
        (
            "c10d.reduce_scatter_tensor_coalesced_",
            "outputs",
            dict(outputs=[part], inputs=[x], **summed),
            _first("inputs"),
        ),
        (
            "c10d.alltoall_base_",
            "output",
            dict(output=X("n s"), input=X("n s"), output_split_sizes=None, input_split_sizes=None, **more),
            _take("input"),
        ),
        (
            "_c10d_functional.all_gather_into_tensor_out",
            "out",
            dict(input=x, group_size=P, group_name="tp", out=same),
            _take("input"),
        ),
    ]
    for target, name, args, expected in written:
        yield Sample(
            target + ".default",
            args,
            expected=expected,
            written=name,
            conversion=True,
            only=exactly,
            note=f"{p} ranks",
            shape_of="output" if target == "c10d.alltoall_base_" else "",
        )


def caches() -> Iterator[Sample]:
    """Rows written into caches, whose slots 0 .. T are filled."""
    slots = At(
        lambda e: (
            torch.arange(e.T if e.rank is None or "t" not in e.cut else e.c)
            + (0 if e.rank is None or "t" not in e.cut else e.rank * e.c)
        )
    )
    heads = X("4 8 g d", extents={"g": 12})
    yield replace(
        _s(
            "tensor_cast.reshape_and_cache",
            key=X("t g d", extents={"g": 12}),
            value=X("t g d", extents={"g": 12}),
            kv_cache=X("2 4 8 g d", extents={"g": 12}),
            slot_mapping=slots,
        ),
        written="kv_cache",
    )
    yield replace(
        _s(
            "tensor_cast.siso_reshape_and_cache",
            key=X("t g d", extents={"g": 12}),
            kv_cache=heads,
            slot_mapping=slots,
        ),
        written="kv_cache",
    )
    latent = X("4 8 c", states="full", extents={"c": 12})
    yield replace(
        _s(
            "tensor_cast.concat_and_cache_mla",
            kv_c_normed=X("t l", extents={"l": 8}),
            k_rot=X("t r", extents={"r": 4}),
            kv_cache=latent,
            slot_mapping=slots,
        ),
        written="kv_cache",
    )
    angles = X("t r", extents={"r": 4}, states="cut")
    written = dict(
        kv=X("t c", extents={"c": 12}),
        gamma=X("l", extents={"l": 8}),
        cos=angles,
        sin=angles,
        kv_cache=latent,
        slot_mapping=slots,
        kv_lora_rank=8,
        qk_rope_head_dim=4,
    )
    yield _s("tensor_cast.kv_rmsnorm_rope_cache", **written)
    yield replace(_s("tensor_cast.kv_rmsnorm_rope_cache", "the cache", **written), written="kv_cache")
    yield _s(
        "tensor_cast.scatter_nd_update_mla",
        kv=X("t c", extents={"c": 12}),
        kv_cache=latent,
        slot_mapping=slots,
    )


def experts() -> Iterator[Sample]:
    """Dispatch, experts and combine in one op: two choices of eight experts that the ranks share."""
    rows: dict[str, Any] = dict(
        x=X("t h"), expert_indices=X("t j", "@12", {"j": 2}), rank=RANK, rank_group=OWN
    )
    up, down = X("e h m", extents={"m": 8}), X("e n h", extents={"n": 4})
    biases = dict(gmm1_bias=None, gmm2_bias=None)
    # gate and up stand in one weight, of which a rank's columns are packed for itself
    yield replace(
        _s("tensor_cast.dispatch_ffn_combine", **rows, gmm1_w=up, gmm2_w=down, **biases), packed=True
    )
    # the variants differ in what the weights are coded with
    stacked = X("e h m", "c", {"m": 8}, "rows"), X("e n h", "c", {"n": 4}, "rows")
    packed = X("e g m", "c", {"g": 6, "m": 8}, "rows"), X("e n h", "c", {"n": 2}, "rows")
    scales: dict[str, Any] = dict(gmm1_w_scale=ONE, gmm2_w_scale=ONE, gmm1_out_dtype=F32, gmm2_out_dtype=F32)
    offsets = dict(gmm1_w_offset=None, gmm2_w_offset=None)
    read = dict(gmm1_x_scale=None, gmm2_x_scale=None)
    variants: list[tuple[str, tuple[X, X], dict[str, Any]]] = [
        ("quant", stacked, offsets),
        ("quant_int4", packed, offsets),
        ("fp8", stacked, read),
        ("mxfp4", stacked, {**read, "gmm1_group_size": 4}),
    ]
    for name, (first, second), more in variants:
        mine = dict(gmm1_w=first, gmm2_w=second)
        sample = _s(f"tensor_cast.dispatch_ffn_combine_{name}", **rows, **mine, **biases, **scales, **more)
        yield replace(sample, packed=True)


def _rows(env: Env) -> tuple[int, int]:
    return (0, env.T) if env.rank is None or "t" not in env.cut else (env.rank * env.c, env.c)


def attention() -> Iterator[Sample]:
    """Quantised attention and its preparation, hyper-connections."""
    meta: dict[str, Any] = dict(
        block_table=At(lambda e: torch.arange(4)[None]),
        query_start_loc=At(lambda e: torch.tensor([0, _rows(e)[1]])),
        seq_lens=At(lambda e: torch.tensor([sum(_rows(e))])),
        query_lens=At(lambda e: torch.tensor([_rows(e)[1]])),
    )
    read: dict[str, Any] = dict(query_scale=ONE, query_offset=None, kv_scale=ONE, kv_offset=None)
    yield _s(
        "tensor_cast.attention_quant",
        query=X("t (h r d)", "c"),
        key=X("4 8 g d", "c", extents={"g": 1}, states="full"),
        value=X("4 8 g d", "c", extents={"g": 1}, states="full"),
        attention_mask=None,
        **meta,
        **read,
        attention_prob_scale=None,
        attention_prob_offset=None,
        out_dtype=F32,
    )
    between = (
        "kv_projected_scale kv_projected_offset qk_scale qk_offset v_scale v_offset attention_prob_scale "
        "attention_prob_offset kv_b_proj_scale kv_b_proj_offset out_scale out_offset"
    )
    full = dict(extents={"u": 4, "l": 8, "v": 6})
    for op in ("multihead_latent_attention_quant", "mla_sparse_attention_quant"):
        sparse = op.startswith("mla_sparse")
        yield _s(
            f"tensor_cast.{op}",
            q=X("t n d", "c", extents={"d": 8}),
            kv_cache=X("4 8 h", "c", states="full"),
            **meta,
            W_UK_T=X("n u l", **full, states="cut"),
            W_UV=X("n l v", **full, states="cut"),
            kv_b_proj=None,
            v_head_dim=6,
            topk_limit=3 if sparse else None,
            topk_indices=X("t k", "@t", {"k": 3}) if sparse else None,
            **read,
            **dict.fromkeys(between.split()),
            out_dtype=F32,
        )
    angles = X("t r", extents={"r": 2}, states="cut")
    yield _s(
        "tensor_cast.mlapo_quant",
        hidden_states=X("t m", extents={"m": 12}, states="cut"),
        cos=angles,
        sin=angles,
        q_a_proj_weight=X("a m", "c", extents={"a": 12, "m": 12}, states="full"),
        q_a_layernorm_weight=X("a", extents={"a": 12}, states="full"),
        q_b_proj_weight=X("(h d) a", "c", extents={"a": 12}, states="cut"),
        kv_a_proj_weight=X("c m", "c", extents={"c": 12, "m": 12}, states="full"),
        kv_a_layernorm_weight=X("l", extents={"l": 10}, states="full"),
        num_heads=12,
        qk_head_dim=4,
        qk_nope_head_dim=2,
        qk_rope_head_dim=2,
        kv_lora_rank=10,
        q_lora_rank=12,
        q_a_proj_scale=ONE,
        q_a_proj_offset=None,
        q_b_proj_scale=ONE,
        q_b_proj_offset=None,
        kv_a_proj_scale=ONE,
        kv_a_proj_offset=None,
    )
    scale = X("3", states="full")
    yield _s(
        "tensor_cast.hc_pre_sinkhorn",
        x=X("t m", extents={"m": 24}),
        hidden_states=X("t c d", extents={"c": 4, "d": 12}),
        hc_scale=scale,
        hc_base=X("m", extents={"m": 24}, states="full"),
        hc_mult=4,
        sinkhorn_iters=2,
    )
    yield _s(
        "tensor_cast.hc_head",
        x=X("t c d", extents={"c": 4}),
        hc_head_fn=X("c n", extents={"c": 4, "n": 16}, states="full"),
        hc_head_scale=X("", states="full"),
        hc_head_base=X("c", extents={"c": 4}, states="full"),
        hc_mult=4,
    )


def all_samples() -> Iterator[Sample]:
    """All of the above."""
    for make in (kernels, random_values, shapes, collectives, caches, experts, attention):
        yield from make()
