"""Faults of uneven and padded tokens: LC401 to LC403 (see `support.messages`)."""
# ruff: noqa: E501

from __future__ import annotations

from support.builder import GraphBuilder
from support.messages import case, local


@case(
    """
    LC401 uneven-tokens  reduce_scatter, operand 0
      operand 0  x  bf16[T, 8] +tp
      10 rows of bf16[T, 8] +tp do not divide by the 4 ranks of tp: pad them first
      path   x bf16[T, 8] +tp  <- first divergence
      fix 1  pad x by 2 rows to 12 first  + 24 bytes
    """
)
def scatter_of_uneven_tokens() -> GraphBuilder:
    b = GraphBuilder(T=10)
    x = b.input("x", (10, 8), layout="[T, 8] +tp")
    b.output([b.call("tensor_cast.reduce_scatter.default", x, 0, 0, [0, 1, 2, 3], shape=(3, 8))])
    return b


@case(
    """
    LC401 uneven-tokens  add, operand 1
      operand 0  all_gather  bf16[pad(T, 12), 8]
      operand 1  x           bf16[T, 8]
      12 padded tokens meet 10 tokens: bf16[pad(T, 12), 8] and bf16[T, 8]; pad both, or cut the padding off first
      path   x bf16[T, 8] -> constant_pad_nd bf16[pad(T, 12), 8] -> slice bf16[pad(T, 12)/4@tp, 8] -> all_gather bf16[pad(T, 12), 8]  <- first divergence
      fix 1  cut the padding off of all_gather first  0 bytes
      fix 2  pad x by 2 rows to 12 first  0 bytes
    """
)
def padded_meets_unpadded() -> GraphBuilder:
    b = GraphBuilder(T=10)
    x = b.input("x", (10, 8), layout="[T, 8]")
    whole = b.all_gather(b.rank_slice(b.pad_rows(x, 2)))
    met = b.call("aten.add.Tensor", whole, x, shape=(12, 8))
    b.output([b.slice(met, 0, 10)])
    return b


@case(
    """
    LC401 uneven-tokens  all_to_all, operand 0
      operand 0  x  bf16[T, 8/4@tp]
      axis 0 of bf16[T, 8/4@tp] does not divide among the 4 ranks of tp
      path   x bf16[T, 8/4@tp]  <- first divergence
      fix 1  pad x by 2 rows to 12 first  + 6 bytes  (leaves LC107 output)
    """
)
def exchange_of_uneven_tokens() -> GraphBuilder:
    b = GraphBuilder(T=10)
    x = b.input("x", (10, 2), layout="[T, 8/4@tp]")
    splits = [3, 3, 3, 1]
    out = b.call("tensor_cast.all_to_all.default", x, splits, splits, 0, [0, 1, 2, 3], shape=(10, 2))
    b.output([out], ["[T, 8/4@tp]"])
    return b


@case(
    """
    LC402 unmasked-padding  mean, operand 0
      operand 0  constant_pad_nd  bf16[pad(T, 12), 8]
      bf16[pad(T, 12), 8] has padding rows on this axis, reduced with the tokens: mask them, or cut them off
      path   x bf16[T, 8] -> constant_pad_nd bf16[pad(T, 12), 8]  <- first divergence
      fix 1  cut the padding off of constant_pad_nd first  0 bytes
    """
)
def mean_over_padding() -> GraphBuilder:
    b = GraphBuilder(T=10)
    padded = b.pad_rows(b.input("x", (10, 8), layout="[T, 8]"), 2)
    b.output([b.call("aten.mean.dim", padded, [0], shape=(8,))])
    return b


@case(
    """
    LC402 unmasked-padding (warning)  output, operand 0
      operand 0  constant_pad_nd  bf16[pad(T, 12), 8]
      bf16[pad(T, 12), 8] leaves with padding rows behind its 10 tokens: cut them off
      path   x bf16[T, 8] -> constant_pad_nd bf16[pad(T, 12), 8]  <- first divergence
    """
)
def padding_leaves() -> GraphBuilder:
    b = GraphBuilder(T=10)
    b.output([b.pad_rows(b.input("x", (10, 8), layout="[T, 8]"), 2)])
    return b


@case(
    """
    LC403 empty-slice  slice, operand 0
      operand 0  x  bf16[T/4@tp, 8]
      rows 12:16 of 4 are empty, every token is lost; bf16[T/4@tp, 8] is this rank's share over tp already: do not slice it again
      path   x bf16[T/4@tp, 8]  <- first divergence
      fix 1  leave this slice out  0 bytes
    """
)
def sliced_twice() -> GraphBuilder:
    b = GraphBuilder(rank=3)
    b.output([b.call("aten.slice.Tensor", local(b), 0, 12, 16, shape=(4, 8))])
    return b
