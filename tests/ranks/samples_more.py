"""Calls of what the other tables leave: further overloads, collectives, caches, linear attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from layoutcheck.graph import DtypeArg

from .calls import At, Env, Sample, X

TH = X("t h")
F32 = DtypeArg("float32")
GROUP = At(lambda e: list(range(e.p)))
RANK = At(lambda e: e.rank or 0)
P = At(lambda e: e.p)


def _s(target: str, note: str = "", **args: Any) -> Sample:
    return Sample(target if target.count(".") > 1 else target + ".default", args, note=note)


def _ends(env: Env) -> torch.Tensor:
    """Where two groups of the 12 rows end, among the rank's own rows."""
    ends = torch.tensor([5, 12])
    if env.rank is None or "s" not in env.cut:
        return ends
    rows = 12 // env.p
    return (ends - env.rank * rows).clamp(0, rows)


def overloads() -> Iterator[Sample]:
    """Further overloads of torch's ops."""
    yield _s("aten.fill.Tensor", self=TH, value=X("", states="full"))
    yield _s("aten.arange.start_step", start=0, end=9, step=2)
    yield _s("aten.eye.m", n=3, m=4)
    yield _s("aten.scatter.reduce", self=TH, dim=1, index=X("t h", "@h"), src=TH, reduce="add")
    yield _s("aten.scatter.value_reduce", self=TH, dim=1, index=X("t h", "@h"), value=2.0, reduce="add")
    yield _s("aten._unsafe_index_put", self=X("k h"), indices=[X("k", "u")], values=X("k h"))
    yield _s("aten._index_put_impl_", self=X("k h"), indices=[X("k", "u")], values=X("k h"))
    yield _s(
        "aten.index_fill.int_Tensor", self=TH, dim=1, index=X("n", "@h", {"n": 3}), value=X("", states="full")
    )
    yield _s("aten.masked_fill.Tensor", self=TH, mask=X("t h", "b"), value=X("", states="full"))
    yield _s(
        "aten.masked_scatter",
        self=X("s h", states="full"),
        mask=X("s h", "b", states="full"),
        source=X("s h", states="full"),
    )
    yield _s("aten.where.Scalar", condition=X("t h", "b"), self=1.0, other=2.0)
    yield _s("aten.conv1d.padding", input=X("b h t"), weight=X("n h 1"))
    yield _s("aten.conv2d", input=X("2 h t n"), weight=X("k h 1 1", extents={"k": 12}))
    yield _s("aten.conv2d.padding", input=X("2 h t n"), weight=X("k h 1 1", extents={"k": 12}))
    yield _s(
        "aten.convolution",
        input=X("b h t"),
        weight=X("n h 1"),
        bias=None,
        stride=[1],
        padding=[0],
        dilation=[1],
        transposed=False,
        output_padding=[0],
        groups=1,
    )
    yield _s("aten.floor_divide.Scalar", self=X("t h", "i"), other=3)
    yield _s("aten.norm.ScalarOpt_dim_dtype", self=TH, p=2, dim=[1], keepdim=False, dtype=DtypeArg("float64"))
    yield _s("aten.norm.ScalarOpt_dtype", self=TH, p=2, dtype=DtypeArg("float64"))
    for op in ("any", "all"):
        yield _s(f"aten.{op}.dims", self=X("t h", "b"), dim=[1])
    yield _s("aten.var_mean", self=TH)
    yield _s("prims.prod", inp=TH, dims=[1])
    yield _s("aten.view.dtype", self=X("t h", "i"), dtype=DtypeArg("int64"))
    yield _s("aten.view_copy.dtype", self=X("t h", "i"), dtype=DtypeArg("int64"))
    for op in ("lift", "lift_fresh_copy"):
        yield _s(f"aten.{op}", self=TH)
    yield _s("aten.to.device", self=TH, device="cpu", dtype=F32)
    yield _s("aten.to.dtype_layout", self=TH, dtype=F32)
    yield _s("aten.to.prim_dtype", self=TH, dtype=F32)
    yield _s("aten.to.other", self=TH, other=TH)
    yield _s("prims.view_of", a=TH)
    yield _s(
        "aten.repeat_interleave.self_Tensor",
        self=X("s h", states="full"),
        repeats=X("s", "@3", states="full"),
        dim=0,
    )
    yield _s("aten.unique_consecutive", self=X("t", "@3"))
    yield _s(
        "transformers.grouped_mm_fallback",
        input=X("s k"),
        weight=X("2 k n"),
        offs=At(_ends),
    )


def _take(name: str, at: int | None = None) -> Callable[[dict[str, Any], Env], Any]:
    def value(given: dict[str, Any], env: Env) -> Any:
        x = given[name]
        return x if at is None else x[at]

    return value


def collectives() -> Iterator[Sample]:
    """Other spellings of the collectives: on one device the value itself."""
    x = X("s h", extents={"s": 12})
    made: list[tuple[str, str, dict[str, Any]]] = []
    c10d, auto = "_c10d_functional", "_c10d_functional_autograd"
    made.append((f"{auto}.all_gather_into_tensor", "input", dict(input=x, group_size=P, group_name="tp")))
    made.append(
        (
            f"{auto}.reduce_scatter_tensor",
            "input",
            dict(input=x, reduce_op="sum", group_size=P, group_name="tp"),
        )
    )
    made.append((f"{c10d}._wrap_tensor_autograd", "input", dict(input=x)))
    made.append((f"{c10d}.broadcast", "input", dict(input=x, src=0, group_name="tp")))
    old = dict(tag="", ranks=GROUP, group_size=P)
    made.append(("c10d_functional.all_reduce", "self", dict(self=x, reduceOp="sum", **old)))
    made.append(("c10d_functional.all_gather_into_tensor", "shard", dict(shard=x, **old)))
    made.append(("c10d_functional.reduce_scatter_tensor", "input", dict(input=x, reduceOp="sum", **old)))
    made.append(("c10d_functional.broadcast", "self", dict(self=x, src=0, **old)))
    made.append(("c10d_functional.wait_tensor", "self", dict(self=x)))
    made.append(("vllm.all_reduce", "tensor", dict(tensor=x, group_name="tp")))
    maybe = "vllm.maybe_all_reduce_tensor_model_parallel"
    made.append((maybe, "final_hidden_states", dict(final_hidden_states=x)))
    for dim in (0, 1):
        made.append(("vllm.all_gather", "tensor", dict(tensor=x, dim=dim, world_size=P, group_name="tp")))
        made.append(("vllm.reduce_scatter", "tensor", dict(tensor=x, dim=dim, world_size=P, group_name="tp")))
    for t in (x, TH):
        made.append(("vllm.sequence_parallel_chunk_impl", "x", dict(x=t)))
        made.append(("vllm.maybe_pad_and_reduce", "x", dict(x=t)))
    for target, name, args in made:
        yield Sample(
            target + ".default", args, expected=_take(name), conversion=True, only=lambda p, T: p > 1
        )
    lists = dict(inputs=[x, x], group_name="tp")
    for target, more in (
        (f"{c10d}.all_reduce_coalesced", dict(reduce_op="sum")),
        (f"{c10d}.all_gather_into_tensor_coalesced", dict(group_size=P)),
        (f"{c10d}.reduce_scatter_tensor_coalesced", dict(reduce_op="sum", group_size=P)),
    ):
        args = {**lists, **more}
        yield Sample(
            target + ".default",
            args,
            expected=lambda a, e: a["inputs"],
            conversion=True,
            only=lambda p, T: p > 1,
        )
    yield Sample(
        "symm_mem.fused_matmul_reduce_scatter.default",
        dict(A=X("s k", extents={"s": 12}), B=X("k n"), reduce_op="sum", scatter_dim=0, group_name="tp"),
        expected=lambda a, e: a["A"] @ a["B"],
        only=lambda p, T: p > 1,
    )


def caches() -> Iterator[Sample]:
    """Linear attention, gates and hyper-connections."""
    yield _s("tensor_cast.linear_attn_apply_padding_mask", hidden_states=TH, attention_mask=X("t", "i"))
    yield _s("tensor_cast.linear_attn_gated_rmsnorm", core_attn_out=TH, z=TH, weight=X("h"), eps=1e-6)
    heads = X("t (h r)")
    yield _s(
        "tensor_cast.linear_attn_fused_gdn_gating",
        query=X("t h d"),
        key=X("t h d", states="full"),
        b=replace(heads, states="cut"),
        a=replace(heads, states="full"),
        a_log=X("(h r)", states="cut"),
        dt_bias=X("(h r)", states="cut"),
        num_v_heads=24,
    )
    wide = X("2 t h d", states="cut")
    for op in ("chunk", "recurrent"):
        more = dict(chunk_size=4) if op == "chunk" else {}
        yield _s(
            f"tensor_cast.linear_attn_{op}_gated_delta_rule",
            query=wide,
            key=wide,
            value=X("2 t h e", extents={"e": 4}),
            beta=X("2 t h", states="cut" if op == "chunk" else "full"),
            g=X("2 t h", states="full"),
            **more,
            state_read_passes=1,
            state_write_passes=1,
        )
    yield _s(
        "tensor_cast.shift_and_update_input_ids",
        input_ids=X("1 t", "@9"),
        query_start_loc=At(lambda e: torch.tensor([0, e.T])),
        next_tokens=X("1", "@9", states="full"),
    )
    yield _s("tensor_cast.hc_pre_inv_rms", x=X("t c d", extents={"c": 4}), hc_mult=4)
    streams = {"c": 4, "e": 4}
    yield _s(
        "tensor_cast.hc_post",
        x=X("t d"),
        residual=X("t e d", extents=streams),
        hc_weight=X("t c", extents=streams),
        hc_combine=X("t e c", extents=streams),
        hc_mult=4,
    )


def all_samples() -> Iterator[Sample]:
    """All of the above."""
    for make in (overloads, collectives, caches):
        yield from make()
