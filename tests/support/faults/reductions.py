"""Faults of reductions: over different tokens, of complete values, missing, or of a shard by a whole."""

from __future__ import annotations

from ..builder import GraphBuilder, Val
from .base import EVEN, Size, attention_layer, cut, enter, enter_full, fault, finish, scatter, whole


@fault("1", "LC203")
def dense_mlp_on_token_shards(b: GraphBuilder, s: Size, broken: bool) -> Val:
    """A dense MLP that kept its tensor-parallel weights while its tokens became Local."""
    x = attention_layer(b, s, enter(b, s))
    h = b.norm(x)
    if broken:
        y = b.all_reduce(b.mlp(h, s.inner))
    else:
        y = b.reduce_scatter(b.mlp(b.all_gather(h), s.inner))
    finish(b, s, b.add(x, y), local=True)
    return y


@fault("3", "LC203", "LC201", note="the shared expert is never reduced, so its weights' shards are declared")
def shared_expert_on_chunk(b: GraphBuilder, s: Size, broken: bool) -> Val:
    """Tokens are cut, a sharded shared expert runs on them, and its unreduced part joins the routed sum."""
    x = enter_full(b, s)
    h = b.norm(x)
    local = cut(b, s, h)
    routed = b.mlp(local, s.F)
    if broken:
        shared = b.mlp(local, s.inner, (s.up(), s.down()))
    else:
        shared = scatter(b, s, b.mlp(h, s.inner, (s.up(), s.down())))
    y = b.add(routed, shared)
    finish(b, s, b.add(x, whole(b, s, y)), local=False)
    return y


@fault("5", "LC202")
def reduce_after_scatter(b: GraphBuilder, s: Size, broken: bool) -> Val:
    """The finalising step reduce-scattered already, then the tensor-parallel all_reduce runs as well."""
    x = attention_layer(b, s, enter(b, s))
    y = b.reduce_scatter(b.mlp(b.all_gather(b.norm(x)), s.inner))
    if broken:
        y = b.all_reduce(y)
    finish(b, s, b.add(x, y), local=True)
    return y


@fault("7", "LC202", note="the predicate that should have dropped one reduction: both stand in the graph")
def scatter_after_reduce(b: GraphBuilder, s: Size, broken: bool) -> Val:
    """The MLP's sum is complete on every rank, and then it is summed and scattered again."""
    x = attention_layer(b, s, enter(b, s))
    part = b.mlp(b.all_gather(b.norm(x)), s.inner)
    y = b.reduce_scatter(b.all_reduce(part) if broken else part)
    finish(b, s, b.add(x, y), local=True)
    return y


@fault("11", "LC201", note="the sum's origin is declared, since the late all_reduce has another reading")
def norm_of_partial(b: GraphBuilder, s: Size, broken: bool) -> Val:
    """A norm and a projection run on each rank's own part of the sum, the all_reduce comes after them."""
    x = enter_full(b, s)
    part = b.mlp(b.norm(x), s.inner, (s.up(), s.down()))
    normed = b.norm(part if broken else b.all_reduce(part))
    y = b.linear(normed, b.weight((s.H, s.H)))
    finish(b, s, b.add(x, b.all_reduce(y) if broken else y), local=False)
    return normed


@fault("13", "LC205")
def whole_features_into_row_shard(b: GraphBuilder, s: Size, broken: bool) -> Val:
    """Attention ran with all heads on its rows, but o_proj still holds a shard of its input features."""
    x = enter(b, s)
    heads = s.heads * s.p
    full = whole(b, s, b.norm(x))
    core = cut(b, s, b.attention(full, heads, s.head_dim, row_parallel=False))
    wide = heads * s.head_dim
    w = b.weight((s.H, wide // s.p))
    y = b.linear(core, w if broken else b.all_gather(w, dim=1))
    finish(b, s, b.add(x, y), local=True)
    return y


@fault("15", "LC204", note="a bias that only rank 0 adds is a bias declared Partial over tp")
def bias_on_one_rank(b: GraphBuilder, s: Size, broken: bool) -> Val:
    """The linear's result is complete on each rank, its bias is added on one of them."""
    x = enter(b, s)
    wide = s.F
    h = b.linear(b.norm(x), b.weight((wide, s.H)))
    y = b.linear(h, b.weight((s.H, wide)))
    bias = b.weight((s.H,), name="quant_bias", layout=f"[{s.H}] +tp" if broken else f"[{s.H}]")
    z = b.add(y, bias)
    finish(b, s, b.add(x, z), local=True)
    return z


@fault("15-every-rank", "LC204", note="the same fault the other way round: every rank adds it to its part")
def bias_on_every_rank(b: GraphBuilder, s: Size, broken: bool) -> Val:
    """A whole bias is added to each rank's part of a sum, so the sum holds it p times."""
    x = enter_full(b, s)
    part = b.mlp(b.norm(x), s.inner)
    bias = b.weight((s.H,))
    z = b.add(part if broken else b.all_reduce(part), bias)
    finish(b, s, b.add(x, b.all_reduce(z) if broken else z), local=False)
    return z


@fault("33-fused", "LC202", note="the reduction that a fused kernel would do, written out")
def fused_reduce_of_scattered(b: GraphBuilder, s: Size, broken: bool) -> Val:
    """A fused all_reduce + norm is picked although the hidden states are scattered already."""
    x = enter(b, s)
    y = scatter(b, s, b.attention(whole(b, s, b.norm(x)), s.heads, s.head_dim))
    z = b.all_reduce(y) if broken else y
    normed = b.norm(b.add(x, z))
    finish(b, s, normed, local=True)
    return z


@fault("37", "LC201", note="no reduction is left to tell, so the expert's shards are declared")
def partial_logits(b: GraphBuilder, s: Size, broken: bool) -> Val:
    """The draft model's MoE sum is not reduced and its parts become logits."""
    x = b.norm(enter_full(b, s))
    part = b.mlp(x, s.inner, (s.up(), s.down()))
    hidden = part if broken else b.all_reduce(part)
    logits = b.linear(hidden, b.weight((s.vocab, s.H)))
    return b.output([logits])


@fault("37-argmax", "LC201", note="the draft token is picked from the parts")
def partial_argmax(b: GraphBuilder, s: Size, broken: bool) -> Val:
    """As row 37, and the next token is the argmax of one rank's part."""
    x = b.norm(enter_full(b, s))
    part = b.mlp(x, s.inner, (s.up(), s.down()))
    hidden = part if broken else b.all_reduce(part)
    logits = b.linear(hidden, b.weight((s.vocab, s.H)))
    token = b.call("aten.argmax.default", logits, -1, shape=(s.T,), dtype="int64")
    b.output([token])
    return token


@fault("39", "LC201", note="the shared expert's shards are declared")
def partial_plus_full(b: GraphBuilder, s: Size, broken: bool) -> Val:
    """The shared expert's part joins the routed experts' complete sum."""
    x = enter_full(b, s)
    h = b.norm(x)
    routed = b.all_reduce(b.mlp(h, s.inner))
    shared = b.mlp(h, s.inner, (s.up(), s.down()))
    y = b.add(shared if broken else b.all_reduce(shared), routed)
    finish(b, s, b.add(x, y), local=False)
    return y


@fault(
    "49", "LC201", note="the backward pass is one product and one sum over the rank's own tokens", sizes=EVEN
)
def unreduced_norm_gradient(b: GraphBuilder, s: Size, broken: bool) -> Val:
    """The gradient of a replicated norm weight on a Local input, summed over the rank's tokens only."""
    rows = (s.share, s.H)
    grad = b.input("grad_output", rows, layout=s.local)
    normed = b.input("normed", rows, layout=s.local)
    each = b.multiply(grad, normed)
    dw = b.call("aten.sum.dim_IntList", each, [0], shape=(s.H,))
    return b.output([dw if broken else b.all_reduce(dw)])
