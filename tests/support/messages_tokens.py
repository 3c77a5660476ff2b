"""Faults of tokens: LC101 to LC108 and LC401 to LC403 (see `support.messages`)."""
# ruff: noqa: E501

from __future__ import annotations

from support.builder import GraphBuilder
from support.messages import case, full, local, pending, sharded


@case(
    """
    LC101 layout-mismatch  add, operand 1
      operand 0  x         bf16[T/4@tp, 8]
      operand 1  residual  bf16[T, 8]
      bf16[T/4@tp, 8] holds this rank's share of the tokens, bf16[T, 8] all of them
      path   residual bf16[T, 8]  <- first divergence
      fix 1  slice at rank(tp) of residual first  0 bytes
      fix 2  all_gather over tp of x first  + 192 bytes
    """
)
def share_meets_all() -> GraphBuilder:
    b = GraphBuilder()
    b.output([b.call("aten.add.Tensor", local(b), full(b, "residual"), shape=(4, 8))])
    return b


@case(
    """
    LC101 layout-mismatch  view, operand 0
      operand 0  x  bf16[T/4@tp, 8]
      the size 16 was written for another layout: bf16[T/4@tp, 8] has 4 tokens here
      path   x bf16[T/4@tp, 8]  <- first divergence
      fix 1  all_gather over tp of x first  + 192 bytes
    """
)
def literal_of_another_layout() -> GraphBuilder:
    b = GraphBuilder()
    b.output([b.call("aten.view.default", local(b), [16, 8], shape=(4, 8))])
    return b


@case(
    """
    LC101 layout-mismatch  expand, operand 0
      operand 0  unsqueeze  bf16[1, T, 8]
      the size 4 was written for another layout: bf16[1, T, 8] has 16 here
      path   x bf16[T, 8]  <- first divergence
      fix 1  slice at rank(tp) along axis 1 of unsqueeze first  0 bytes
    """
)
def expand_to_a_share() -> GraphBuilder:
    b = GraphBuilder()
    wide = b.call("aten.unsqueeze.default", full(b), 0, shape=(1, 16, 8))
    b.output([b.call("aten.expand.default", wide, [2, 4, 8], shape=(2, 16, 8))])
    return b


@case(
    """
    LC101 layout-mismatch  cat, operand 1
      operand 0  x  bf16[T, 8/4@tp]
      operand 1  y  bf16[T, 8]
      a sharded and a whole feature are joined along the sharded axis: bf16[T, 8/4@tp] and bf16[T, 8]
      path   y bf16[T, 8]  <- first divergence
      fix 1  all_gather over tp along axis 1 of x first  + 192 bytes
      counted under it  LC201 output
    """
)
def shard_beside_whole() -> GraphBuilder:
    b = GraphBuilder()
    b.output([b.call("aten.cat.default", [sharded(b), full(b, "y")], 1, shape=(16, 10))])
    return b


@case(
    """
    LC101 layout-mismatch  unpermute_tokens, operand 0
      operand 0  x    bf16[T, 8]
      operand 1  ids  i64[T, 2]
      bf16[T, 8] was not dispatched; only dispatched rows can be put back in token order
      path   x bf16[T, 8]  <- first divergence
    """
)
def put_back_undispatched() -> GraphBuilder:
    b = GraphBuilder()
    ids = b.input("ids", (16, 2), "int64", layout="[T, 2]")
    b.output([b.call("tensor_cast.unpermute_tokens.default", full(b), ids, shape=(16, 2, 8))])
    return b


@case(
    """
    LC102 wrong-tokens  add, operand 1
      operand 0  slice    bf16[T/4@tp, 8]
      operand 1  slice_1  bf16[prefix(T, 0, 4), 8]
      same extent, different tokens: bf16[T/4@tp, 8] is this rank's share, bf16[prefix(T, 0, 4), 8] holds prefix(T, 0, 4) on every rank
      path   x bf16[T, 8] -> slice_1 bf16[prefix(T, 0, 4), 8]  <- first divergence
      fix 1  slice at rank(tp)*4 instead of slice_1  0 bytes
      counter-example  p=4, T=16, rank 1: got tokens 0..3, want 4..7
    """
)
def constant_slice_for_a_share() -> GraphBuilder:
    b = GraphBuilder(rank=1)
    x = full(b)
    b.output([b.add(b.rank_slice(x), b.slice(x, 0, 4))])
    return b


@case(
    """
    LC102 wrong-tokens  add, operand 1
      operand 0  x       bf16[T/4@tp]
      operand 1  arange  i64[0..4]
      i64[0..4] counts from 0 on every rank, bf16[T/4@tp] is this rank's share: rank r needs the positions from its own offset on
      path   arange i64[0..4]  <- first divergence
      fix 1  count from rank(tp)*4 in arange  0 bytes
      counter-example  p=4, T=16, rank 1: got positions 0..3, want 4..7
    """
)
def positions_from_zero() -> GraphBuilder:
    b = GraphBuilder(rank=1)
    x = b.input("x", (4,), layout="[T/4@tp]")
    b.output([b.add(x, b.call("aten.arange.default", 4, shape=(4,), dtype="int64"))])
    return b


@case(
    """
    LC102 wrong-tokens  all_gather, operand 0
      operand 0  slice  bf16[prefix(T, 0, 4), 8]
      every rank of tp gathers the same rows bf16[prefix(T, 0, 4), 8]: they are a constant slice, not the rank's own
      path   x bf16[T, 8] -> slice bf16[prefix(T, 0, 4), 8]  <- first divergence
      fix 1  slice at rank(tp)*4 instead of slice  0 bytes
    """
)
def gather_of_a_constant_slice() -> GraphBuilder:
    b = GraphBuilder(rank=1)
    b.output([b.all_gather(b.slice(full(b), 0, 4))])
    return b


@case(
    """
    LC102 wrong-tokens  add, operand 1
      operand 0  slice    bf16[range(T, 1, 8), 8]
      operand 1  slice_1  bf16[range(T, 8, 15), 8]
      same extent, different tokens: range(T, 1, 8) and range(T, 8, 15)
      path   x bf16[T, 8] -> slice_1 bf16[range(T, 8, 15), 8]  <- first divergence
    """
)
def two_ranges() -> GraphBuilder:
    b = GraphBuilder()
    x = full(b)
    b.output([b.add(b.slice(x, 1, 8), b.slice(x, 8, 15))])
    return b


@case(
    """
    LC103 gather-of-full  all_gather, operand 0
      operand 0  x  bf16[T, 8]
      every rank of tp holds all of axis 0 of bf16[T, 8]; gathering repeats it 4 times, 16 become 64
      path   x bf16[T, 8]  <- first divergence
      fix 1  leave this collective out  - 768 bytes
    """
)
def gather_of_full() -> GraphBuilder:
    b = GraphBuilder()
    b.output([b.all_gather(full(b))])
    return b


@case(
    """
    LC104 wrong-dimension  all_gather, operand 0
      operand 0  x  bf16[T/4@tp, 8]
      gathers along axis 1, but over tp bf16[T/4@tp, 8] is sharded along another axis: gather along that one
      path   x bf16[T/4@tp, 8]  <- first divergence
      fix 1  gather along axis 0  0 bytes
    """
)
def gather_along_features() -> GraphBuilder:
    b = GraphBuilder()
    b.output([b.call("tensor_cast.all_gather.default", local(b), 1, 0, [0, 1, 2, 3], shape=(4, 32))])
    return b


@case(
    """
    LC104 wrong-dimension  reduce_scatter, operand 0
      operand 0  x  bf16[T, 8] +tp
      scatters axis 1, a feature of bf16[T, 8] +tp; the tokens are on another axis: scatter that one
      path   x bf16[T, 8] +tp  <- first divergence
      fix 1  scatter along axis 0  0 bytes  (leaves LC107 output)
    """
)
def scatter_along_features() -> GraphBuilder:
    b = GraphBuilder()
    out = b.reduce_scatter(pending(b), 1)
    b.output([out], ["[T, 8/4@tp]"])
    return b


@case(
    """
    LC105 gather-order  all_gather, operand 0
      operand 0  view  bf16[B*T/4@tp, 8]
      the shard over tp is not the leading factor of axis 0 of bf16[B*T/4@tp, 8]; the ranks' tokens come out in the wrong order: gather before the axes are merged
      path   x bf16[B, T/4@tp, 8]  <- first divergence
      fix 1  all_gather over tp along axis 1 of x, before view  0 bytes
    """
)
def gather_behind_a_merge() -> GraphBuilder:
    b = GraphBuilder()
    x = b.input("x", (2, 4, 8), layout="[B, T/4@tp, 8]")
    b.output([b.all_gather(b.view(x, (8, 8)))])
    return b


@case(
    """
    LC105 gather-order  add, operand 1
      operand 0  view    bf16[B*S, 8]
      operand 1  view_1  bf16[S*B, 8]
      the same tokens in another order: bf16[B*S, 8] and bf16[S*B, 8]
      path   x bf16[B, S, 8] -> permute bf16[S, B, 8]  <- first divergence
    """
)
def two_orders() -> GraphBuilder:
    b = GraphBuilder()
    x = b.input("x", (4, 4, 8), layout="[B, S, 8]")
    turned = b.call("aten.permute.default", x, [1, 0, 2], shape=(4, 4, 8))
    b.output([b.add(b.view(x, (16, 8)), b.view(turned, (16, 8)))])
    return b


@case(
    """
    LC106 needs-full  cumsum, operand 0
      operand 0  x  bf16[T/4@tp, 8]
      runs over all tokens of an axis on which bf16[T/4@tp, 8] is sharded over tp
      path   x bf16[T/4@tp, 8]  <- first divergence
      fix 1  all_gather over tp of x first  + 192 bytes
    """
)
def running_sum_of_a_share() -> GraphBuilder:
    b = GraphBuilder()
    b.output([b.call("aten.cumsum.default", local(b), 0, shape=(4, 8))])
    return b


@case(
    """
    LC106 needs-full  softmax, operand 0
      operand 0  x  bf16[T, 8/4@tp]
      runs over all features of an axis on which bf16[T, 8/4@tp] is sharded over tp
      path   x bf16[T, 8/4@tp]  <- first divergence
      fix 1  all_gather over tp along axis 1 of x first, slice at rank(tp) along axis 1 of the result  + 192 bytes
    """
)
def softmax_of_a_shard() -> GraphBuilder:
    b = GraphBuilder()
    out = b.call("aten.softmax.int", sharded(b), -1, shape=(16, 2))
    b.output([out], ["[T, 8/4@tp]"])
    return b


@case(
    """
    LC106 needs-full  rms_norm, operand 0
      operand 0  x  bf16[T, 8/4@tp]
      needs all features of this axis, bf16[T, 8/4@tp] is sharded over tp there
      path   x bf16[T, 8/4@tp]  <- first divergence
      fix 1  all_gather over tp along axis 1 of x and replicate w over tp first, slice at rank(tp) along axis 1 of the result  + 192 bytes
    """
)
def norm_of_a_shard() -> GraphBuilder:
    b = GraphBuilder()
    w = b.weight((2,), "w", "[8/4@tp]")
    out = b.call("tensor_cast.rms_norm.default", sharded(b), w, 1e-6, shape=(16, 2))
    b.output([out], ["[T, 8/4@tp]"])
    return b


@case(
    """
    LC106 needs-full  scaled_dot_product_attention, operand 1
      operand 1  k  bf16[1, 2, T/4@tp, 8]
      needs all tokens of this axis, bf16[1, 2, T/4@tp, 8] is sharded over tp there
      path   k bf16[1, 2, T/4@tp, 8]  <- first divergence
      fix 1  all_gather over tp along axis 2 of k and v first  + 768 bytes
    """
)
def keys_of_a_share() -> GraphBuilder:
    b = GraphBuilder()
    q, k, v = (b.input(name, (1, 2, 4, 8), layout="[1, 2, T/4@tp, 8]") for name in "qkv")
    b.output([b.call("aten.scaled_dot_product_attention.default", q, k, v, shape=(1, 2, 4, 8))])
    return b


@case(
    """
    LC106 needs-full  scaled_dot_product_attention, operand 0
      operand 0  q  bf16[1, 2, T/4@tp, 8]
      is_causal counts rows from the first one of each rank, bf16[1, 2, T/4@tp, 8] is sharded over tp there: give the mask of the rank's own rows instead
      path   q bf16[1, 2, T/4@tp, 8]  <- first divergence
      fix 1  all_gather over tp along axis 2 of q first  + 384 bytes
    """
)
def causal_queries_of_a_share() -> GraphBuilder:
    b = GraphBuilder()
    q = b.input("q", (1, 2, 4, 8), layout="[1, 2, T/4@tp, 8]")
    k, v = (b.input(name, (1, 2, 16, 8), layout="[1, 2, T, 8]") for name in "kv")
    op = "aten.scaled_dot_product_attention.default"
    b.output([b.call(op, q, k, v, None, 0.0, True, shape=(1, 2, 4, 8))])
    return b


@case(
    """
    LC107 boundary-mismatch  output, operand 0
      operand 0  silu  bf16[T/4@tp, 8]
      leaves as bf16[T/4@tp, 8], the boundary is declared as [T, 8]
      path   x bf16[T/4@tp, 8]  <- first divergence
      fix 1  all_gather over tp before it leaves  + 192 bytes
    """
)
def output_declared_otherwise() -> GraphBuilder:
    b = GraphBuilder()
    b.output([b.silu(local(b))], ["[T, 8]"])
    return b


@case(
    """
    LC107 boundary-mismatch (warning)  output, operand 0
      operand 0  silu  bf16[T, 8/4@tp]
      bf16[T, 8/4@tp] leaves as a shard over tp: gather it, or declare the output's layout
      path   x bf16[T, 8/4@tp]  <- first divergence
    """
)
def output_shard_undeclared() -> GraphBuilder:
    b = GraphBuilder()
    b.output([b.silu(sharded(b))])
    return b


@case(
    """
    LC107 boundary-mismatch  copy_, operand 1
      operand 0  cache  bf16[T, 8]
      operand 1  x      bf16[T/4@tp, 8]
      bf16[T/4@tp, 8] is this rank's share over tp, and is stored to a buffer that holds all tokens (bf16[T, 8])
      path   x bf16[T/4@tp, 8]  <- first divergence
      fix 1  all_gather over tp of x first  + 192 bytes
    """
)
def share_into_a_whole_buffer() -> GraphBuilder:
    b = GraphBuilder()
    cache = b.input("cache", (16, 8), layout="[T, 8]")
    b.output([b.call("aten.copy_.default", cache, local(b), shape=(16, 8))])
    return b


@case(
    """
    LC107 boundary-mismatch  copy_, operand 0
      operand 0  slice  bf16[T/4@tp, 8]
      each rank of tp stores its share of the tokens to a buffer that holds all of them: bf16[T/4@tp, 8]
      path   cache bf16[T, 8] -> slice bf16[T/4@tp, 8]  <- first divergence
      fix 1  all_gather over tp of x, and store it to all of cache  + 192 bytes
    """
)
def share_through_a_view() -> GraphBuilder:
    b = GraphBuilder()
    place = b.slice(b.input("cache", (16, 8), layout="[T, 8]"), 0, 4)
    b.output([b.call("aten.copy_.default", place, local(b), shape=(4, 8))])
    return b


@case(
    """
    LC108 index-domain  select, operand 0
      operand 0  x  bf16[T/4@tp, 8]
      element 15 is a position among all tokens, bf16[T/4@tp, 8] holds one rank's share over tp
      path   x bf16[T/4@tp, 8]  <- first divergence
      fix 1  all_gather over tp of x first  + 192 bytes
    """
)
def last_token_of_a_share() -> GraphBuilder:
    b = GraphBuilder()
    b.output([b.call("aten.select.int", local(b), 0, 15, shape=(8,))])
    return b


@case(
    """
    LC108 index-domain  index, operand 0
      operand 0  x     bf16[T/4@tp, 8]
      operand 1  last  i64[1]
      positions among all tokens are looked up in bf16[T/4@tp, 8], which holds one rank's share over tp
      path   x bf16[T/4@tp, 8]  <- first divergence
      fix 1  all_gather over tp of x first  + 192 bytes
    """
)
def positions_into_a_share() -> GraphBuilder:
    b = GraphBuilder()
    last = b.input("last", (1,), "int64", layout="[1]")
    b.output([b.call("aten.index.Tensor", local(b), [last], shape=(1, 8))])
    return b
