"""Whole decoders from a few numbers, written with regions or with every layer."""

from __future__ import annotations

import attrs

from layoutcheck.graph import Graph
from layoutcheck.models.builder import Builder, Value
from layoutcheck.testing.blocks import LOCAL_ROWS, Shared, attention, experts, latent, mlp

KINDS = ("dense", "moe", "dsa", "reuse")
CARRIED = ("hidden", "pair", "state")
STYLES = ("tp", "sp", "cp")

WRITTEN_FOR: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "tensor-parallel": ("tp", KINDS, CARRIED),
    "sequence-parallel": ("sp", ("dense", "moe"), ("hidden", "pair")),
    "dsa-cp-prefill": ("cp", ("dsa", "reuse"), ("hidden", "pair")),
}
"""Shipped contracts, each with the style, the kinds of layers and what is carried of the decoders that keep it."""


@attrs.frozen
class Layers:
    """`repeats` layers of one kind.

    kind: `dense` (attention, MLP), `moe` (attention, experts), `dsa` (sparse latent attention with caches, MLP), `reuse` (a
    body of `period` layers of which the first computes the indexer's top-k and the others reuse it).
    """

    kind: str = "dense"
    repeats: int = 2
    heads: int = 2
    inner: int = 8
    period: int = 4
    nested: bool = False


@attrs.frozen
class Decoder:
    """A decoder: an embedding of Full hidden states, stacks of layers, a final norm.

    Attributes:
        style: `tp` (rows Full between the parts), `sp` (rows Local) or `cp` (rows Local; sparse attention's output is cut by rows in
            front of o_proj).
        carried: `hidden` (one value goes from layer to layer), `pair` (the update and the residual, added in the next layer) or
            `state` (the hidden states and a second stream that every layer adds to, such as a router's state).
        fused: write additions in front of norms as one op.
        mtp: a block behind the stack that joins the hidden states with the embedding again.
    """

    stack: tuple[Layers, ...] = (Layers(),)
    width: int = 32
    tokens: int = 16
    ranks: int = 4
    rank: int = 0
    style: str = "tp"
    carried: str = "hidden"
    fused: bool = False
    mtp: bool = False

    @property
    def contract(self) -> str | None:
        """The shipped contract that it is written for, None where it is for none."""
        for name, (style, kinds, carried) in WRITTEN_FOR.items():
            if (
                style == self.style
                and carried.count(self.carried)
                and {s.kind for s in self.stack} <= {*kinds}
            ):
                return name
        return None

    def build(self, form: str = "expanded") -> Graph:
        """The graph; `form` is `expanded` or `repeated`."""
        b = Builder(self.ranks, self.tokens, rank=self.rank, expanded=form == "expanded")
        embedded = b.input("hidden_states", (self.tokens, self.width))
        shared = Shared.of(b) if any(layers.kind in ("dsa", "reuse") for layers in self.stack) else None
        x = b.share(embedded) if self.style in LOCAL_ROWS else embedded
        state: tuple[Value, ...] = (x,)
        if self.carried == "pair":
            state = (b.silu(x), x)
        elif self.carried == "state":
            state = (x, b.silu(x))
        for layers in self.stack:
            state = self._stack(b, layers, state, shared)
        if self.mtp:
            state = self._mtp(b, state, x, shared)
        b.module = None
        total = self._total(b, state)
        return b.graph(b.norm(total))

    def _stack(
        self, b: Builder, layers: Layers, state: tuple[Value, ...], shared: Shared | None
    ) -> tuple[Value, ...]:
        def body(b: Builder, values: tuple[Value, ...]) -> tuple[Value, ...]:
            if layers.kind != "reuse":
                return self._layer(b, layers, values, shared, None)[0]
            values, topk = self._layer(b, layers, values, shared, None)

            def reusing(b: Builder, inside: tuple[Value, ...]) -> tuple[Value, ...]:
                return self._layer(b, layers, inside, shared, topk)[0]

            if layers.nested:
                return b.repeat(reusing, values, layers.period - 1)
            for _ in range(layers.period - 1):
                values = reusing(b, values)
            return values

        return b.repeat(body, state, layers.repeats)

    def _normed(self, b: Builder, update: Value | None, residual: Value) -> tuple[Value, Value]:
        """The norm's output and the residual stream behind the addition."""
        if update is None:
            return b.norm(residual), residual
        if self.fused:
            return b.add_norm(residual, update)
        total = b.add(residual, update)
        return b.norm(total), total

    def _layer(
        self, b: Builder, layers: Layers, state: tuple[Value, ...], shared: Shared | None, topk: Value | None
    ) -> tuple[tuple[Value, ...], Value | None]:
        pair = self.carried == "pair"
        module = f"model.layers.{b.layer}"
        b.layer += 1
        b.module = f"{module}.self_attn"
        normed, residual = self._normed(b, state[0] if pair else None, state[1] if pair else state[0])
        stream = b.add(state[1], b.silu(b.linear(normed, self.width))) if self.carried == "state" else None
        if layers.kind in ("dsa", "reuse"):
            assert shared is not None
            update, topk = latent(b, self.style, normed, layers.heads, shared, topk)
        else:
            update = attention(b, self.style, normed, layers.heads, 8)
        b.module = f"{module}.mlp"
        normed, residual = self._normed(b, update, residual)
        if layers.kind == "moe":
            update = experts(b, self.style, normed, layers.inner)
        else:
            update = mlp(b, self.style, normed, layers.inner)
        if pair:
            return (update, residual), topk
        if stream is not None:
            return (b.add(residual, b.multiply(update, stream)), stream), topk
        return (b.add(residual, update),), topk

    def _total(self, b: Builder, state: tuple[Value, ...]) -> Value:
        """The hidden states, with what is still to be added."""
        return state[0] if len(state) == 1 else b.add(state[1], state[0])

    def _mtp(
        self, b: Builder, state: tuple[Value, ...], embedded: Value, shared: Shared | None
    ) -> tuple[Value, ...]:
        """Hidden states and embedding side by side, projected to the width again, then one more dense layer."""
        hidden = self._total(b, state)
        rows, width = hidden.shape
        both = b.call("aten.cat.default", (b.norm(embedded), b.norm(hidden)), -1, shape=(rows, 2 * width))
        joined = b.linear(both, width)
        layer = Layers("dsa" if self.style == "cp" and shared is not None else "dense", 1)
        if self.carried == "hidden":
            state = (joined,)
        else:
            state = (joined, b.silu(joined)) if self.carried == "state" else (b.silu(joined), joined)
        return self._layer(b, layer, state, shared, None)[0]
