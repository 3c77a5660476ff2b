"""Faults of sums: LC201 to LC205 (see `support.messages`)."""
# ruff: noqa: E501

from __future__ import annotations

from support.builder import GraphBuilder
from support.messages import case, full, local, pending


@case(
    """
    LC201 partial-leak  silu, operand 0
      operand 0  x  bf16[T, 8] +tp
      bf16[T, 8] +tp is a pending sum over tp and goes into an op that is not linear in it
      path   x bf16[T, 8] +tp  <- first divergence
      fix 1  move all_reduce in front of silu  0 bytes
      fix 2  reduce_scatter over tp of x first, and leave all_reduce out  - 192 bytes
    """
)
def sum_into_a_nonlinear_op() -> GraphBuilder:
    b = GraphBuilder()
    b.output([b.all_reduce(b.silu(pending(b)))])
    return b


@case(
    """
    LC201 partial-leak  output, operand 0
      operand 0  mul  bf16[T, 8] +tp
      bf16[T, 8] +tp leaves as a pending sum over tp: reduce it first
      path   x bf16[T, 8] +tp  <- first divergence
      fix 1  all_reduce over tp before it leaves  + 384 bytes
      fix 2  reduce_scatter over tp before it leaves  + 192 bytes
    """
)
def sum_leaves() -> GraphBuilder:
    b = GraphBuilder()
    b.output([b.multiply(pending(b), full(b, "y"))])
    return b


@case(
    """
    LC201 partial-leak  add, operand 0
      operand 0  x         bf16[T, 8] +tp
      operand 1  residual  bf16[T, 8]
      bf16[T, 8] +tp is a pending sum over tp, bf16[T, 8] is not: reduce it before they are added
      path   x bf16[T, 8] +tp  <- first divergence
      fix 1  all_reduce over tp of x first  + 384 bytes
      fix 2  zero residual on all ranks of tp but one first  0 bytes
      counted under it  LC201 output
    """
)
def sum_plus_complete() -> GraphBuilder:
    b = GraphBuilder()
    b.output([b.add(pending(b), full(b, "residual"))])
    return b


@case(
    """
    LC201 partial-leak  mul, operand 0
      operand 0  x  bf16[T, 8] +tp
      operand 1  y  bf16[T, 8] +tp
      bf16[T, 8] +tp and bf16[T, 8] +tp are both pending sums over tp; their product is not one
      path   x bf16[T, 8] +tp  <- first divergence
      fix 1  all_reduce over tp of x first  + 384 bytes
      fix 2  all_reduce over tp of y first  + 384 bytes
    """
)
def product_of_sums() -> GraphBuilder:
    b = GraphBuilder()
    b.output([b.all_reduce(b.multiply(pending(b), pending(b, "y")))])
    return b


@case(
    """
    LC201 partial-leak  all_gather, operand 0
      operand 0  x  bf16[T, 8] +tp
      bf16[T, 8] +tp is a pending sum over tp; gathering its parts does not add them up
      path   x bf16[T, 8] +tp  <- first divergence
      fix 1  reduce_scatter over tp of x first  - 384 bytes
    """
)
def gather_of_a_sum() -> GraphBuilder:
    b = GraphBuilder()
    b.output([b.all_gather(pending(b))])
    return b


@case(
    """
    LC201 partial-leak  rms_norm, operand 0
      operand 0  x  bf16[T, 8] +tp
      bf16[T, 8] +tp is a pending sum over tp and goes into an op that is not linear in it
      path   x bf16[T, 8] +tp  <- first divergence
      fix 1  all_reduce over tp of x first  + 384 bytes
      fix 2  reduce_scatter over tp of x first  + 192 bytes
      counted under it  LC201 output
    """
)
def mean_of_squares_of_a_sum() -> GraphBuilder:
    b = GraphBuilder()
    w = b.weight((8,), "w", "[8]")
    b.output([b.call("tensor_cast.rms_norm.default", pending(b), w, 1e-6, shape=(16, 8))])
    return b


@case(
    """
    LC202 reduce-of-complete  all_reduce, operand 0
      operand 0  x  bf16[T, 8]
      bf16[T, 8] is complete on every rank of tp; all_reduce adds it up 4 times
      path   x bf16[T, 8]  <- first divergence
      fix 1  leave this collective out  - 384 bytes
    """
)
def reduce_of_complete() -> GraphBuilder:
    b = GraphBuilder()
    b.output([b.all_reduce(full(b))])
    return b


@case(
    """
    LC202 reduce-of-complete  reduce_scatter, operand 0
      operand 0  x  bf16[T, 8]
      bf16[T, 8] is complete on every rank of tp; reduce_scatter adds it up 4 times
      path   x bf16[T, 8]  <- first divergence
      fix 1  leave this collective out  - 192 bytes
    """
)
def scatter_of_complete() -> GraphBuilder:
    b = GraphBuilder()
    b.output([b.reduce_scatter(full(b))])
    return b


@case(
    """
    LC202 reduce-of-complete  all_reduce, operand 0
      operand 0  x  bf16[T/4@tp, 8]
      bf16[T/4@tp, 8] holds other tokens on every rank of tp; all_reduce adds them up
      path   x bf16[T/4@tp, 8]  <- first divergence
      fix 1  leave this collective out  - 96 bytes
    """
)
def reduce_of_shares() -> GraphBuilder:
    b = GraphBuilder()
    b.output([b.all_reduce(local(b))])
    return b


@case(
    """
    LC203 mixed-tokens  all_reduce, operand 0
      operand 0  mm_2  bf16[T/4@tp, 8] +tp mixed@tp
      over tp every rank holds other tokens, and their parts are added up: the weights are sharded over the group that shards the tokens (bf16[T/4@tp, 8] +tp mixed@tp)
      path   x bf16[T/4@tp, 8] -> mm bf16[T/4@tp, 16/4@tp] mixed@tp -> mm_2 bf16[T/4@tp, 8] +tp mixed@tp  <- first divergence
      fix 1  replicate the weights over tp and leave this collective out  - 96 bytes
      fix 2  all_gather the tokens over tp before the first of these weights, reduce_scatter here  + 288 bytes
    """
)
def reduce_of_mixed_tokens() -> GraphBuilder:
    b = GraphBuilder()
    b.output([b.all_reduce(b.mlp(local(b), 4, ("[16/4@tp, 8]", "[8, 16/4@tp]")))])
    return b


@case(
    """
    LC203 mixed-tokens  output, operand 0
      operand 0  mm_2  bf16[T/4@tp, 8] +tp mixed@tp
      bf16[T/4@tp, 8] +tp mixed@tp leaves with different tokens added up over tp
      path   x bf16[T/4@tp, 8] -> mm bf16[T/4@tp, 16/4@tp] mixed@tp -> mm_2 bf16[T/4@tp, 8] +tp mixed@tp  <- first divergence
      fix 1  replicate the weights over tp  0 bytes
      fix 2  all_gather the tokens over tp before the first of these weights, reduce_scatter before it leaves  + 384 bytes
    """
)
def mixed_tokens_leave() -> GraphBuilder:
    b = GraphBuilder()
    b.output([b.mlp(local(b), 4, ("[16/4@tp, 8]", "[8, 16/4@tp]"))])
    return b


@case(
    """
    LC203 mixed-tokens  output, operand 0
      operand 0  mm  bf16[T/4@tp, 16/4@tp] mixed@tp
      bf16[T/4@tp, 16/4@tp] mixed@tp leaves sharded by tokens and by features at once over tp
      path   x bf16[T/4@tp, 8] -> mm bf16[T/4@tp, 16/4@tp] mixed@tp  <- first divergence
      fix 1  replicate the weights over tp  0 bytes
      fix 2  all_gather the tokens over tp before the first of these weights  + 192 bytes
    """
)
def tokens_and_features_leave() -> GraphBuilder:
    b = GraphBuilder()
    b.output([b.linear(local(b), b.weight((4, 8), "w", "[16/4@tp, 8]"))])
    return b


@case(
    """
    LC203 mixed-tokens  all_gather, operand 0
      operand 0  mm  bf16[T/4@tp, 16/4@tp] mixed@tp
      over tp bf16[T/4@tp, 16/4@tp] mixed@tp is sharded by tokens and by features at once
      path   x bf16[T/4@tp, 8] -> mm bf16[T/4@tp, 16/4@tp] mixed@tp  <- first divergence
      fix 1  replicate the weights over tp, keep the gather  + 288 bytes
      fix 2  all_gather the tokens over tp before the first of these weights instead of here, and gather the features along axis 1  + 480 bytes
    """
)
def gather_of_tokens_and_features() -> GraphBuilder:
    b = GraphBuilder()
    b.output([b.all_gather(b.linear(local(b), b.weight((4, 8), "w", "[16/4@tp, 8]")))])
    return b


@case(
    """
    LC204 bias-per-rank  addmm, operand 0
      operand 0  bias  bf16[8]
      bf16[8] is added on every rank of tp to a product that is a pending sum, so it counts 4 times: add it after the reduction
      path   bias bf16[8]  <- first divergence
      fix 1  add bias behind all_reduce  0 bytes
    """
)
def bias_on_every_rank() -> GraphBuilder:
    b = GraphBuilder()
    h = b.input("h", (16, 4), layout="[T, 16/4@tp]")
    w, bias = b.weight((4, 8), "w", "[16/4@tp, 8]"), b.weight((8,), "bias", "[8]")
    b.output([b.all_reduce(b.call("aten.addmm.default", bias, h, w, shape=(16, 8)))])
    return b


@case(
    """
    LC204 bias-per-rank  add, operand 1
      operand 0  x     bf16[T, 8] +tp
      operand 1  bias  bf16[8]
      bf16[8] is added to the pending sum bf16[T, 8] +tp on every rank of tp, so it counts 4 times: add it after the reduction
      path   bias bf16[8]  <- first divergence
      fix 1  move all_reduce in front of add, to x  0 bytes
      fix 2  reduce_scatter over tp of x first, and leave all_reduce out  - 192 bytes
      fix 3  zero bias on all ranks of tp but one first  0 bytes
    """
)
def bias_on_a_sum() -> GraphBuilder:
    b = GraphBuilder()
    b.output([b.all_reduce(b.add(pending(b), b.weight((8,), "bias", "[8]")))])
    return b


@case(
    """
    LC204 bias-per-rank  add, operand 0
      operand 0  x  bf16[T, 8] +tp
      a number is added to bf16[T, 8] +tp on every rank of tp, so it counts 4 times: add it after the reduction
      path   x bf16[T, 8] +tp  <- first divergence
      fix 1  move all_reduce in front of add  0 bytes
      fix 2  reduce_scatter over tp of x first, and leave all_reduce out  - 192 bytes
    """
)
def number_on_a_sum() -> GraphBuilder:
    b = GraphBuilder()
    b.output([b.all_reduce(b.call("aten.add.Tensor", pending(b), 1.0, shape=(16, 8)))])
    return b


@case(
    """
    LC204 bias-per-rank  constant_pad_nd, operand 0
      operand 0  x  bf16[T, 8] +tp
      bf16[T, 8] +tp is a pending sum; padding with 1.0 on every rank counts once a rank: pad after the reduction
      path   x bf16[T, 8] +tp  <- first divergence
      fix 1  move all_reduce in front of constant_pad_nd  - 96 bytes
      fix 2  reduce_scatter over tp of x first, and leave all_reduce out  - 288 bytes
    """
)
def padding_with_ones() -> GraphBuilder:
    b = GraphBuilder()
    wide = b.call("aten.constant_pad_nd.default", pending(b), [0, 2], 1.0, shape=(16, 10))
    b.output([b.all_reduce(wide)])
    return b


@case(
    """
    LC205 contraction-mismatch  mm, operand 1
      operand 0  h  bf16[T, 16/4@tp]
      operand 1  w  bf16[4, 8]
      the summed axis holds 4 elements of bf16[T, 16/4@tp] and 4 of bf16[4, 8], not the same ones
      path   w bf16[4, 8]  <- first divergence
      fix 1  declare w as [16/4@tp, 8]  0 bytes
    """
)
def contraction_of_shard_and_whole() -> GraphBuilder:
    b = GraphBuilder()
    h, w = b.input("h", (16, 4), layout="[T, 16/4@tp]"), b.weight((4, 8), "w", "[4, 8]")
    b.output([b.all_reduce(b.call("aten.mm.default", h, w, shape=(16, 8)))])
    return b
