"""Faults in front of the output, and pieces that do not fit (see `support.messages`)."""
# ruff: noqa: E501

from __future__ import annotations

from support.builder import GraphBuilder
from support.messages import case, full, local


@case(
    """
    LC107 boundary-mismatch (warning)  output, operand 0
      operand 0  slice_1  bf16[T/4@tp, 8]
      bf16[T/4@tp, 8] leaves as this rank's share over tp of tokens that came in whole: gather it, or declare the output's layout
      path   x bf16[T, 8] -> slice bf16[T/4@tp, 8] -> all_gather bf16[T, 8] -> slice_1 bf16[T/4@tp, 8]  <- first divergence
    """
)
def share_leaves() -> GraphBuilder:
    b = GraphBuilder()
    own = b.silu(b.rank_slice(full(b)))
    b.output([b.rank_slice(b.silu(b.all_gather(own)))])
    return b


@case(
    """
    LC107 boundary-mismatch  output, operand 0
      operand 0  slice_1  bf16[pad(T, 12)/4@tp, 8]
      bf16[pad(T, 12)/4@tp, 8] leaves as this rank's share over tp, though slice_1 was to cut all 10 tokens from it: gather it before
      path   x bf16[T, 8] -> constant_pad_nd bf16[pad(T, 12), 8] -> slice bf16[pad(T, 12)/4@tp, 8]  <- first divergence
      fix 1  all_gather over tp before it leaves  + 144 bytes
      fix 2  all_gather over tp, then cut the padding off before it leaves  + 144 bytes
    """
)
def share_leaves_that_was_to_be_cut() -> GraphBuilder:
    b = GraphBuilder(T=10)
    x = b.input("x", (10, 8), layout="[T, 8]")
    own = b.silu(b.rank_slice(b.pad_rows(x, 2)))
    b.output([b.call("aten.slice.Tensor", own, 0, 0, 10, shape=(3, 8))])
    return b


@case(
    """
    LC402 unmasked-padding  output, operand 0
      operand 0  all_gather_1  bf16[pad(T, 12), 8]
      bf16[pad(T, 12), 8] leaves with padding rows behind its 10 tokens: cut them off
      path   x bf16[T, 8] -> constant_pad_nd_1 bf16[pad(T, 12), 8] -> slice_2 bf16[pad(T, 12)/4@tp, 8] -> all_gather_1 bf16[pad(T, 12), 8]  <- first divergence
      fix 1  slice at rank(tp) before it leaves  0 bytes
      fix 2  cut the padding off before it leaves  0 bytes
    """
)
def padding_leaves_that_is_cut_elsewhere() -> GraphBuilder:
    b = GraphBuilder(T=10)
    x = b.input("x", (10, 8), layout="[T, 8]")
    own = b.silu(b.rank_slice(b.pad_rows(x, 2)))
    whole = b.add(x, b.slice(b.all_gather(own), 0, 10))
    b.output([b.all_gather(b.rank_slice(b.pad_rows(whole, 2)))])
    return b


@case(
    """
    LC107 boundary-mismatch  output, operand 0
      operand 0  mm_2  bf16[T, 64/4@tp]
      bf16[T, 64/4@tp] leaves as a part of the 64 entries of the vocabulary over tp: gather it, or declare the output's layout
      path   input_ids i64[T] -> mm bf16[T, 24/4@tp] -> mm_1 bf16[T, 8] +tp -> all_reduce bf16[T, 8] -> mm_2 bf16[T, 64/4@tp]  <- first divergence
      fix 1  all_gather over tp along axis 1 before it leaves  + 1536 bytes
    """
)
def part_of_the_vocabulary_leaves() -> GraphBuilder:
    b = GraphBuilder()
    x = b.embedding(b.tokens(), 64, 8)
    own = b.all_reduce(
        b.linear(
            b.silu(b.linear(x, b.weight((6, 8), layout="[24/4@tp, 8]"))),
            b.weight((8, 6), layout="[8, 24/4@tp]"),
        )
    )
    b.output([b.linear(own, b.weight((16, 8)))])
    return b


@case(
    """
    LC104 wrong-dimension  all_gather_into_tensor, operand 0
      operand 0  x  bf16[T/4@tp, 8]
      the ranks' pieces are put side by side along axis 1, but over tp bf16[T/4@tp, 8] is sharded along axis 0: join them along that one
      path   x bf16[T/4@tp, 8]  <- first divergence
    """
)
def pieces_put_beside_each_other() -> GraphBuilder:
    b = GraphBuilder(dialect="c10d")
    parts = b.call_many("aten.chunk.default", b.all_gather(local(b)), 4, 0, metas=[((4, 8), b.dtype)] * 4)
    b.output([b.call("aten.cat.default", parts, 1, shape=(4, 32))])
    return b


@case(
    """
    LC101 layout-mismatch  split, operand 0
      operand 0  x  bf16[T, 8]
      bf16[T, 8] is cut into 1 here, and piece 2 is read: it was written for another extent
      path   x bf16[T, 8]  <- first divergence
    """
)
def piece_that_is_not_there() -> GraphBuilder:
    b = GraphBuilder()
    parts = b.call_many("aten.split.Tensor", full(b), 16, 0, metas=[((16, 8), b.dtype)] * 2)
    b.output([b.add(*parts)])
    return b
