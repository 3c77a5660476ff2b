"""Faults at boundaries: a Local value where the other side takes it for Full."""

from __future__ import annotations

from ..builder import GraphBuilder, Val
from .base import EVEN, Size, attention_layer, enter, fault, finish, whole


@fault("21", "LC107", note="the stage's send is an output that is declared Full")
def residual_sent_as_full(b: GraphBuilder, s: Size, broken: bool) -> Val:
    """A pipeline stage sends the Local residual, the send takes it for replicated."""
    x = attention_layer(b, s, enter(b, s))
    h = b.norm(x)
    residual = x if broken else whole(b, s, x)
    return b.output([whole(b, s, h), residual], layouts=[s.full, s.full])


@fault("23", "LC107", note="the stage's hand-over is two outputs that are declared Full")
def hidden_and_residual_sent_as_full(b: GraphBuilder, s: Size, broken: bool) -> Val:
    """A pipeline stage hands hidden states and residual over without gathering them."""
    x = attention_layer(b, s, enter(b, s))
    y = b.reduce_scatter(b.mlp(b.all_gather(b.norm(x)), s.inner))
    values = [y, x] if broken else [whole(b, s, y), whole(b, s, x)]
    return b.output(values, layouts=[s.full, s.full])


@fault(
    "23-receive",
    "LC107",
    note="the receiving stage: declared Full rows of the sender are cut again",
    sizes=EVEN,
)
def full_sent_as_local(b: GraphBuilder, s: Size, broken: bool) -> Val:
    """A stage that is to hand over Local rows hands over all of them."""
    x = b.input("hidden", (s.share, s.H), layout=s.local)
    y = b.reduce_scatter(b.mlp(b.all_gather(b.norm(x)), s.inner))
    out = b.add(x, y)
    return b.output([b.all_gather(out) if broken else out], layouts=[s.local])


@fault(
    "25",
    "LC107",
    note="the buffer is an input that is declared Full, the store is a copy_ into its first rows",
)
def local_stored_to_full_buffer(b: GraphBuilder, s: Size, broken: bool) -> Val:
    """The draft model's input buffer holds all tokens, and only the rank's rows are stored."""
    x = attention_layer(b, s, enter(b, s))
    buffer = b.input("hidden_buffer", (s.T, s.H), layout=s.full)
    h = x if broken else whole(b, s, x)
    target = b.slice(buffer, 0, h.shape[0]) if broken else buffer  # type: ignore[arg-type]
    stored = b.call("aten.copy_.default", target, h, shape=h.shape)
    finish(b, s, x, local=True)
    return stored
