"""Calls of repairs' conversions, conditions, pipeline stages, and of kernels whose definition is an assumption."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .calls import At, Sample, X

TH = X("t h")
GROUP = At(lambda e: list(range(e.p)))
SIZE = At(lambda e: e.p)
RANK = At(lambda e: e.rank or 0)


def _s(target: str, note: str = "", **args: Any) -> Sample:
    return Sample(target + ".default", args, note=note)


def conversions() -> Iterator[Sample]:
    """A group by name or by its ranks; on one device each is the value itself."""
    even = X("s h", extents={"s": 12})
    for group in (dict(group="tp", ranks=None), dict(group=None, ranks=GROUP)):
        for op in ("all_gather", "reduce_scatter", "all_reduce", "slice"):
            for operand, dim in ((TH, 0), (even, 0), (even, 1)):
                args = dict(x=operand, dim=dim, size=SIZE, rank=RANK, **group)
                yield Sample(
                    f"layoutcheck.{op}.default",
                    args,
                    expected=lambda a, e: a["x"],
                    conversion=True,
                    note=f"dim {dim} by {'name' if group['group'] else 'ranks'}",
                    only=lambda p, T: p > 1,
                )
    unpadded = dict(x=even, dim=0, group="tp", size=SIZE, rank=RANK, ranks=None, unpad=True)
    yield Sample(
        "layoutcheck.all_gather.default",
        unpadded,
        expected=lambda a, e: a["x"],
        conversion=True,
        note="unpad",
    )
    yield Sample(
        "vllm.maybe_all_gather_and_maybe_unpad.default",
        dict(x=even, label=True),
        expected=lambda a, e: a["x"],
        conversion=True,
        only=lambda p, T: p > 1,
    )
    yield _s("vllm.maybe_all_gather_and_maybe_unpad", "without a gather", x=TH, label=False)


def passed_on() -> Iterator[Sample]:
    """Both branches of a condition, and what goes from stage to stage."""
    yield _s("layoutcheck.branch", a=TH, b=TH)
    yield Sample(
        "layoutcheck.branch.default", dict(a=TH, b=TH), expected=lambda a, e: a["a"], note="the first"
    )
    yield _s("_c10d_functional.isend", tensor=TH, dst=1, tag=0, group_name="pp")
    yield _s("_c10d_functional.irecv", tensor=TH, src=1, tag=0, group_name="pp")
    lists: dict[str, Any] = dict(op_list=["isend"], peer_list=[1], tag_list=[0], group_name="pp")
    yield _s("_c10d_functional.batch_p2p_ops", tensors=[TH], **lists)
    stages = dict(source_rank=0, target_rank=1, source_stage_id=0, target_stage_id=1)
    yield _s("tensor_cast.pipeline_send_recv", x=TH, **stages)


def kernels() -> Iterator[Sample]:
    """Which axes and operands rules let through."""
    heads = dict(num_k_heads=2, num_v_heads=2, head_k_dim=2, head_v_dim=2, conv_kernel_size=3)
    none: dict[str, Any] = dict(attention_mask=None, cache_position=None)
    yield _s("tensor_cast.linear_attention", hidden_states=X("b t h", extents={"h": 12}), **none, **heads)
    for op in ("causal_conv", "causal_conv_update"):
        yield _s(f"tensor_cast.linear_attn_{op}", mixed_qkv=X("b h t"), conv_kernel_size=3)
    yield _s(
        "tensor_cast.attention_route_generate",
        query=X("1 t h d"),
        key=X("1 s h d"),
        block_size=2,
        sparsity=0.5,
    )
    yield _s(
        "tensor_cast.block_sparse_attention",
        query=X("1 t (h r) d"),
        key=X("1 s h d"),
        value=X("1 s h e"),
        attention_mask=None,
        route_metadata=X("n", "@6"),
        block_size=2,
        sparsity=0.5,
    )
    yield _s(
        "tensor_cast.compressor",
        hidden_states=X("t h"),
        kv_cache=X("k h", states="full"),
        compress_ratio=2,
        head_dim=12,
        rope_head_dim=4,
        rotate=False,
    )
    yield _s(
        "tensor_cast.quant_lightning_indexer",
        q_states=X("t n d", states="rows"),
        weights=X("t n", states="rows"),
        indexer_cache=X("k 2 d", states="cut"),
        topk_limit=3,
    )
    metadata: dict[str, Any] = dict(seq_lens=None, query_lens=None, block_table=None)
    yield _s(
        "tensor_cast.minimax_indexer",
        idx_q=X("t h d"),
        idx_k_cache=X("k 2 d"),
        topk_blocks=3,
        block_size=2,
        **metadata,
    )
    yield _s(
        "tensor_cast.minimax_sparse_attention",
        query=X("t (h r d)"),
        key_cache=X("k 2 h d"),
        value_cache=X("k 2 h d"),
        topk_idx=X("t h 3", "@k"),
        hidden_size=48,
        num_q_heads=12,
        num_kv_heads=1,
        head_dim=4,
        topk_blocks=3,
        block_size=2,
        local_blocks=1,
        **metadata,
    )


def all_samples() -> Iterator[Sample]:
    """All of the above."""
    for make in (conversions, passed_on, kernels):
        yield from make()
