"""Clean parallel programs of two layers, for transforms and seeded faults."""

from __future__ import annotations

from collections.abc import Callable

from .builder import GraphBuilder, Json
from .faults.base import EVEN, SIZES, Size, attention_layer, cut, enter, enter_full, finish, scatter, whole
from .faults.moe import MOE_SIZES, dispatch_combine

Program = Callable[[GraphBuilder, Size, bool], None]


def tensor_parallel(b: GraphBuilder, s: Size, declare: bool) -> None:
    """Everything Full; all_reduce after attention and after the MLP."""
    x = enter_full(b, s, declare)
    for _ in range(2):
        x = b.add(
            x, b.all_reduce(b.attention(b.norm(x), s.heads, s.head_dim, declared=s.head_shards(declare)))
        )
        x = b.add(x, b.all_reduce(b.mlp(b.norm(x), s.inner, s.columns(declare))))
    finish(b, s, x, local=False, declare=declare)


def sequence_parallel(b: GraphBuilder, s: Size, declare: bool) -> None:
    """Norms and residual Local; gather before and reduce_scatter after the sharded parts."""
    x = enter(b, s, declare)
    for _ in range(2):
        x = attention_layer(b, s, x, declare)
        x = b.add(x, scatter(b, s, b.mlp(whole(b, s, b.norm(x)), s.inner, s.columns(declare))))
    finish(b, s, x, local=True, declare=declare)


def entry_slice(b: GraphBuilder, s: Size, declare: bool) -> None:
    """Attention with all heads, its rows cut before o_proj; the MLP sharded on gathered tokens."""
    full = enter_full(b, s, declare)
    x = cut(b, s, full)
    for _ in range(2):
        heads = s.heads * s.p
        core = b.attention(whole(b, s, b.norm(x)), heads, s.head_dim, row_parallel=False)
        x = b.add(x, b.linear(cut(b, s, core), b.weight((s.H, heads * s.head_dim))))
        x = b.add(x, scatter(b, s, b.mlp(whole(b, s, b.norm(x)), s.inner, s.columns(declare))))
    finish(b, s, x, local=True, declare=declare)


def expert_parallel(b: GraphBuilder, s: Size, declare: bool) -> None:
    """A sequence-parallel attention, then dispatch, one expert a rank, combine."""
    x = enter(b, s, declare)
    for _ in range(2):
        x = attention_layer(b, s, x, declare)
        routed, _ = dispatch_combine(b, s, b.norm(x))
        x = b.add(x, routed)
    finish(b, s, x, local=True, declare=declare)


def batched(b: GraphBuilder, s: Size, declare: bool) -> None:
    """Sequence parallelism along dimension 1 of two sequences."""
    x = b.reduce_scatter(b.vocab_embedding(b.tokens(batch=2), s.vocab, s.H, declare=declare), dim=1)
    for _ in range(2):
        h = b.all_gather(b.norm(x), dim=1)
        x = b.add(
            x, b.reduce_scatter(b.attention(h, s.heads, s.head_dim, declared=s.head_shards(declare)), dim=1)
        )
        h = b.all_gather(b.norm(x), dim=1)
        x = b.add(x, b.reduce_scatter(b.mlp(h, s.inner, s.columns(declare)), dim=1))
    b.output([b.norm(b.all_gather(x, dim=1))], layouts=[f"[B, T, {s.H}]"] if declare else None)


PROGRAMS: dict[str, tuple[Program, tuple[Size, ...]]] = {
    "tensor_parallel": (tensor_parallel, SIZES),
    "sequence_parallel": (sequence_parallel, SIZES),
    "entry_slice": (entry_slice, SIZES),
    "batched": (batched, EVEN),
    "expert_parallel": (expert_parallel, MOE_SIZES),
}


def build(name: str, dialect: str, size: Size, declare: bool = False) -> Json:
    """A clean graph by the name of its program.

    `declare`: the layouts of sharded weights and of the output are declared. Without, a dropped all_reduce
    has a reading in which nothing is wrong: weights that are replicated and small.
    """
    program, _ = PROGRAMS[name]
    b = GraphBuilder({"tp": size.p}, rank=size.rank, T=size.tokens, dialect=dialect)
    program(b, size, declare)
    return b.graph(f"{name}-{dialect}-{size.label}")
