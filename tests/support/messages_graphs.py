"""Faults of groups and graphs: LC301, LC601, LC602, LC901 to LC903 (see `support.messages`)."""

from __future__ import annotations

from support.builder import GraphBuilder
from support.messages import case, full, local, pending, sharded


@case(
    """
    LC301 group-mismatch  all_reduce_1, operand 0
      operand 0  y  bf16[T, 8] +dp +tp/dp
      runs over 2 of the 4 ranks over which the other collectives run: the rest of the shards is left out
      path   y bf16[T, 8] +dp +tp/dp  <- first divergence
      fix 1  run it over tp instead  + 128 bytes
      counted under it  LC201 output
    """
)
def part_of_the_ranks() -> GraphBuilder:
    b = GraphBuilder()
    first, second = b.all_reduce(pending(b)), pending(b, "y")
    half = b.call("tensor_cast.all_reduce.default", second, 0, [0, 1], shape=(16, 8))
    b.output([first, half])
    return b


@case(
    """
    LC602 replicated-dispatch (warning)  all_to_all, operand 0
      operand 0  init_routing_v2  bf16[routed(T*2), 8]
      every rank of ep dispatches the same tokens bf16[routed(T*2), 8]: the experts do the work 4 times
      path   x bf16[T, 8] -> init_routing_v2 bf16[routed(T*2), 8]  <- first divergence
    """
)
def dispatch_of_the_same_tokens() -> GraphBuilder:
    b = GraphBuilder({"ep": 4})
    scores = b.input("scores", (16, 8), layout="[T, 8]")
    metas = [((16, 2), "bfloat16"), ((16, 2), "int64")]
    _, ids = b.call_many("tensor_cast.moe_gating_top_k_softmax.default", scores, 2, metas=metas)
    rows = b.call("tensor_cast.init_routing_v2.default", full(b), ids, shape=(32, 8))
    back = b.all_to_all(b.all_to_all(rows, "ep"), "ep")
    b.output([b.call("tensor_cast.unpermute_tokens.default", back, ids, shape=(16, 2, 8))])
    return b


@case(
    """
    LC901 unknown-op  mystery
      no rule for vendor.mystery.default
      fix 1  add a rule to a folder and pass it with --rules:
             vendor.mystery(x)
                 x: t.. x_0! -> t.. x_0
    """
)
def unknown_op() -> GraphBuilder:
    b = GraphBuilder()
    b.output([b.call("vendor.mystery.default", local(b), 2, shape=(4, 8))])
    return b


@case(
    """
    LC901 unknown-op  blend
      no rule for vendor.blend.default
      fix 1  add a rule to a folder and pass it with --rules:
             vendor.blend(x, w)
                 x: t.. k, w: k n -> t.. n
                 linear x
                 weight w
    """
)
def unknown_op_of_two() -> GraphBuilder:
    b = GraphBuilder()
    op = "vendor.blend.default"
    b.output([b.call(op, full(b), b.weight((8, 6), "w", "[8, 6]"), shape=(16, 6))])
    return b


@case(
    """
    LC902 stale-shape (warning)  silu
      operand 0  silu  bf16[T/4@tp, 8]
      recorded as [16, 8], computed as [4, 8]
      counted under it  LC902 silu_1
    """
)
def stale_shapes() -> GraphBuilder:
    b = GraphBuilder()
    first = b.call("aten.silu.default", local(b), shape=(16, 8))
    b.output([b.call("aten.silu.default", first, shape=(16, 8))])
    return b


@case(
    """
    LC902 stale-shape (warning)  all_gather
      operand 0  all_gather  bf16[T, 8]
      recorded as [16, 2], computed as [16, 8]
    """
)
def stale_shape_of_a_shard() -> GraphBuilder:
    b = GraphBuilder()
    whole = b.call("tensor_cast.all_gather.default", sharded(b), 1, 0, [0, 1, 2, 3], shape=(16, 2))
    b.output([whole])
    return b


@case(
    """
    LC301 group-mismatch  all_gather, operand 0
      operand 0  x  bf16[T/4@tp, 8]
      gathers over dp, but bf16[T/4@tp, 8] is split over tp along axis 0: every rank of dp holds the same part
      path   x bf16[T/4@tp, 8]  <- first divergence
      fix 1  run it over tp instead  + 128 bytes
    """
)
def gather_over_another_group() -> GraphBuilder:
    b = GraphBuilder({"tp": 4, "dp": 2}, ranks={"tp": [0, 1, 2, 3], "dp": [0, 4]})
    b.output([b.all_gather(local(b), 0, "dp")])
    return b


@case(
    """
    LC301 group-mismatch  add, operand 1
      operand 0  x  bf16[T/4@tp, 8]
      operand 1  y  bf16[T/4@dp, 8]
      bf16[T/4@tp, 8] is cut over tp, bf16[T/4@dp, 8] over dp: they hold different tokens
      path   y bf16[T/4@dp, 8]  <- first divergence
      fix 1  all_gather over tp of x and all_gather over dp of y first  + 384 bytes
    """
)
def shares_of_two_groups() -> GraphBuilder:
    b = GraphBuilder({"tp": 4, "dp": 4}, ranks={"tp": [0, 1, 2, 3], "dp": [0, 4, 8, 12]})
    b.output([b.add(local(b), b.input("y", (4, 8), layout="[T/4@dp, 8]"))])
    return b


@case(
    """
    LC601 redundant-collective (warning)  all_gather_1, operand 0
      operand 0  x  bf16[T/4@tp, 8]
      the same all_gather as all_gather: read that result
      path   x bf16[T/4@tp, 8]  <- first divergence
    """
)
def gathered_twice() -> GraphBuilder:
    b = GraphBuilder()
    x = local(b)
    b.output([b.multiply(b.all_gather(x), b.all_gather(x))])
    return b


@case(
    """
    LC601 redundant-collective (warning)  all_gather, operand 0
      operand 0  slice  bf16[T/4@tp, 8]
      it puts together again what slice cut: read x
      path   x bf16[T, 8] -> slice bf16[T/4@tp, 8]  <- first divergence
    """
)
def gathered_from_its_own_slices() -> GraphBuilder:
    b = GraphBuilder()
    b.output([b.all_gather(b.rank_slice(full(b)))])
    return b


@case(
    """
    LC601 redundant-collective (warning)  all_gather, operand 0
      operand 0  x  bf16[T/4@tp, 8]
      slice cuts the rank's own share from it again: read x
      path   x bf16[T/4@tp, 8]  <- first divergence
    """
)
def gathered_and_cut_again() -> GraphBuilder:
    b = GraphBuilder()
    b.output([b.rank_slice(b.all_gather(local(b)))])
    return b


@case(
    """
    LC903 malformed-graph  mm
      the arguments do not fit aten.mm.default: aten.mm needs its argument mat2
    """
)
def an_argument_short() -> GraphBuilder:
    b = GraphBuilder()
    b.output([b.call("aten.mm.default", full(b), shape=(16, 8))])
    return b


@case(
    """
    LC903 malformed-graph  mm, operand 1
      operand 0  x  bf16[T, 8]
      operand 1  w  bf16[9, 8]
      sums over 8 elements of bf16[T, 8] and 9 of bf16[9, 8]: no op takes these two
      path   w bf16[9, 8]  <- first divergence
    """
)
def sizes_that_never_fit() -> GraphBuilder:
    b = GraphBuilder()
    b.output([b.call("aten.mm.default", full(b), b.weight((9, 8), "w", "[9, 8]"), shape=(16, 8))])
    return b


@case(
    """
    LC903 malformed-graph  all_reduce
      rank 9 is not one of the ranks [0, 1, 2, 3] of its own group
    """
)
def a_rank_of_another_group() -> GraphBuilder:
    b = GraphBuilder()
    b.output([b.call("tensor_cast.all_reduce.default", pending(b), 9, [0, 1, 2, 3], shape=(16, 8))])
    return b
