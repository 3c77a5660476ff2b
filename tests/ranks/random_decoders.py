"""Random decoders of one device, written op by op: the many ways in which exports spell the same few blocks.

Every call is run as it is written, so that shapes, and the outputs to compare with, are torch's own.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import attrs
import torch
from hypothesis import strategies as st
from torch import Tensor

from layoutcheck.graph import Graph
from layoutcheck.json_form import graph_from_json

VOCABULARY = 40


@attrs.frozen
class Spelling:
    """Sizes of a decoder and how it is written.

    qkv: `apart`, `split` (one product, split_with_sizes) or `sliced`. repeat: key heads `expand`ed for the query heads, or left to the
    attention (`gqa`). mlp: `apart`, `chunk`, `sliced` (gate and up in one product), or `two` (no gate).
    """

    layers: int
    batch: int
    tokens: int
    heads: int
    kv_heads: int
    head_dim: int
    width: int
    inner: int
    qkv: str
    repeat: str
    mlp: str
    bias: bool
    mask: bool
    tables: bool
    dropout: bool
    scaled: bool


class Writer:
    """A graph under construction: values by node name, nodes in JSON."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.values: dict[str, Any] = {}
        self.inputs: list[dict[str, Any]] = []
        self.nodes: list[dict[str, Any]] = []
        self.names: dict[int, str] = {}

    def _enter(self, name: str, value: Any) -> dict[str, Any]:
        self.values[name] = value
        metas = [
            {
                "shape": list(v.shape),
                "dtype": str(v.dtype).removeprefix("torch.").replace("float64", "float32"),
            }
            for v in (value if isinstance(value, (tuple, list)) else [value])
        ]
        return metas[0] if isinstance(value, Tensor) else metas  # type: ignore[return-value]

    def input(self, name: str, value: Tensor, kind: str) -> str:
        """An input."""
        meta = self._enter(name, value)
        self.inputs.append(
            {
                "name": name,
                "op": "placeholder",
                "target": name,
                "args": [],
                "meta": meta,
                "kind": kind,
                "fqn": name,
            }
        )
        return name

    def weight(self, name: str, *shape: int) -> str:
        """A random weight, a norm's where it has one axis."""
        value = torch.randn(shape, generator=self.generator, dtype=torch.float64)
        value = value * shape[-1] ** -0.5 if len(shape) > 1 else 1 + value / 4
        return self.input(name, value, "parameter")

    def call(self, target: str, *args: Any, **kwargs: Any) -> str:
        """A call of an aten op; strings that name values stand for them."""
        op = torch.ops
        for part in target.split("."):
            op = getattr(op, part)
        name = f"{target.split('.')[1].strip('_')}_{len(self.nodes)}"
        value = op(*(self._value(a) for a in args), **{k: self._value(v) for k, v in kwargs.items()})  # type: ignore[operator]
        meta = self._enter(name, value)
        self.nodes.append(
            {
                "name": name,
                "op": "call_function",
                "target": target,
                "args": [self._json(a) for a in args],
                "kwargs": {k: self._json(v) for k, v in kwargs.items()},
                "meta": meta,
            }
        )
        return name

    def item(self, of: str, number: int) -> str:
        """One of several results."""
        name = f"{of}_{number}"
        meta = self._enter(name, self.values[of][number])
        args = [{"node": of}, number]
        self.nodes.append(
            {"name": name, "op": "call_function", "target": "operator.getitem", "args": args, "meta": meta}
        )
        return name

    def _value(self, arg: Any) -> Any:
        if isinstance(arg, list):
            return [self._value(a) for a in arg]
        return self.values[arg] if isinstance(arg, str) else arg

    def _json(self, arg: Any) -> Any:
        if isinstance(arg, list):
            return [self._json(a) for a in arg]
        if isinstance(arg, torch.dtype):
            return {"dtype": str(arg).removeprefix("torch.").replace("float64", "float32")}
        return {"node": arg} if isinstance(arg, str) else arg

    def graph(self, *outputs: str) -> Graph:
        """The graph with these outputs."""
        out = {"name": "output", "op": "output", "target": "output", "args": [[{"node": o} for o in outputs]]}
        return graph_from_json({"format": "layoutcheck-graph/1", "nodes": [*self.inputs, *self.nodes, out]})


def linear(w: Writer, x: str, name: str, out: int, bias: bool = False) -> str:
    """A linear of a weight of its own."""
    weight = w.weight(f"{name}.weight".replace(".", "_"), out, w.values[x].shape[-1])
    return w.call("aten.linear.default", x, weight, *([w.weight(f"{name}_bias", out)] if bias else []))


def norm(w: Writer, x: str, name: str) -> str:
    """Root mean square, spelled out."""
    weight = w.weight(f"{name}_weight", w.values[x].shape[-1])
    mean = w.call("aten.mean.dim", w.call("aten.pow.Tensor_Scalar", x, 2), [-1], True)
    scale = w.call("aten.rsqrt.default", w.call("aten.add.Tensor", mean, 1e-6))
    return w.call("aten.mul.Tensor", weight, w.call("aten.mul.Tensor", x, scale))


def heads_of(w: Writer, s: Spelling, x: str, heads: int) -> str:
    """A projection's result by heads."""
    shaped = w.call("aten.view.default", x, [s.batch, s.tokens, heads, s.head_dim])
    return w.call("aten.transpose.int", shaped, 1, 2)


def attention(w: Writer, s: Spelling, x: str, name: str, mask: str | None, table: str | None) -> str:
    """Grouped-query attention up to the output projection."""
    q, k = s.heads * s.head_dim, s.kv_heads * s.head_dim
    if s.qkv == "apart":
        parts = [
            linear(w, x, f"{name}_{n}_proj", width, s.bias) for n, width in (("q", q), ("k", k), ("v", k))
        ]
    else:
        packed = linear(w, x, f"{name}_qkv_proj", q + 2 * k, s.bias)
        if s.qkv == "split":
            pieces = w.call("aten.split_with_sizes.default", packed, [q, k, k], -1)
            parts = [w.item(pieces, i) for i in range(3)]
        else:
            ends = [0, q, q + k, q + 2 * k]
            parts = [w.call("aten.slice.Tensor", packed, 2, a, b) for a, b in pairwise(ends)]
    query, key, value = (heads_of(w, s, part, n) for part, n in zip(parts, (s.heads, s.kv_heads, s.kv_heads)))
    if table is not None:
        query, key = w.call("aten.mul.Tensor", query, table), w.call("aten.mul.Tensor", key, table)
    times = s.heads // s.kv_heads
    if times > 1 and s.repeat == "expand":
        shape = [s.batch, s.kv_heads, times, s.tokens, s.head_dim]
        flat = [s.batch, s.heads, s.tokens, s.head_dim]
        key, value = (
            w.call(
                "aten.reshape.default",
                w.call("aten.expand.default", w.call("aten.unsqueeze.default", y, 2), shape),
                flat,
            )
            for y in (key, value)
        )
    gqa = times > 1 and s.repeat == "gqa"
    found = w.call(
        "aten.scaled_dot_product_attention.default",
        query, key, value, mask, 0.0, mask is None, scale=0.5, enable_gqa=gqa,
    )  # fmt: skip
    rows = w.call("aten.transpose.int", found, 1, 2)
    flat_rows = w.call("aten.reshape.default", rows, [s.batch, s.tokens, q])
    return linear(w, flat_rows, f"{name}_o_proj", s.width)


def mlp(w: Writer, s: Spelling, x: str, name: str) -> str:
    """A gated MLP, or one of two products."""
    if s.mlp == "two":
        inner = w.call("aten.relu.default", linear(w, x, f"{name}_up_proj", s.inner, s.bias))
    else:
        if s.mlp == "apart":
            gate, up = (linear(w, x, f"{name}_{n}_proj", s.inner, s.bias) for n in ("gate", "up"))
        else:
            packed = linear(w, x, f"{name}_gate_up_proj", 2 * s.inner, s.bias)
            if s.mlp == "chunk":
                pieces = w.call("aten.chunk.default", packed, 2, -1)
                gate, up = w.item(pieces, 0), w.item(pieces, 1)
            else:
                gate = w.call("aten.slice.Tensor", packed, -1, 0, s.inner)
                up = w.call("aten.slice.Tensor", packed, -1, s.inner, 2 * s.inner)
        inner = w.call("aten.mul.Tensor", w.call("aten.silu.default", gate), up)
    return linear(w, inner, f"{name}_down_proj", s.width)


def write(s: Spelling, seed: int = 0) -> tuple[Graph, dict[str, Any], Tensor]:
    """The graph, its inputs, and its logits."""
    w = Writer(seed)
    ids = torch.randint(0, VOCABULARY, (s.batch, s.tokens), generator=w.generator)
    tokens = w.input("input_ids", ids, "user_input")
    x = w.call("aten.embedding.default", w.weight("embed_tokens_weight", VOCABULARY, s.width), tokens)
    positions = w.call("aten.arange.default", s.tokens)
    mask = table = None
    if s.mask:
        columns = w.call("aten.unsqueeze.default", positions, 0)
        mask = w.call("aten.le.Tensor", columns, w.call("aten.unsqueeze.default", positions, 1))
    if s.tables:
        row = w.call("aten.unsqueeze.default", w.call("aten.to.dtype", positions, torch.float64), 1)
        table = w.call("aten.cos.default", w.call("aten.mul.Tensor", row, w.weight("inv_freq", s.head_dim)))
    for i in range(s.layers):
        update = attention(w, s, norm(w, x, f"l{i}_in"), f"l{i}_attn", mask, table)
        x = w.call("aten.add.Tensor", x, _around(w, s, update))
        update = mlp(w, s, norm(w, x, f"l{i}_post"), f"l{i}_mlp")
        x = w.call("aten.add.Tensor", x, _around(w, s, update))
    logits = linear(w, norm(w, x, "final"), "lm_head", VOCABULARY)
    inputs = {n["name"]: w.values[n["name"]] for n in w.inputs}
    return w.graph(logits), inputs, w.values[logits]


def _around(w: Writer, s: Spelling, update: str) -> str:
    """What stands between a block and the residual stream."""
    if s.dropout:
        update = w.call("aten.dropout.default", update, 0.5, False)
    return w.call("aten.mul.Tensor", update, 0.5) if s.scaled else update


@st.composite
def spellings(draw: st.DrawFn) -> Spelling:
    """Decoders of one or two layers, whose heads divide among two or four ranks or do not."""
    heads = draw(st.sampled_from((4, 8)))
    return Spelling(
        layers=draw(st.integers(1, 2)),
        batch=draw(st.integers(1, 2)),
        tokens=draw(st.integers(2, 9)),
        heads=heads,
        kv_heads=draw(st.sampled_from([n for n in (1, 2, 4, 8) if n <= heads])),
        head_dim=draw(st.sampled_from((4, 6))),
        width=draw(st.sampled_from((16, 20))),
        inner=draw(st.sampled_from((12, 24))),
        qkv=draw(st.sampled_from(("apart", "split", "sliced"))),
        repeat=draw(st.sampled_from(("expand", "gqa"))),
        mlp=draw(st.sampled_from(("apart", "chunk", "sliced", "two"))),
        bias=draw(st.booleans()),
        mask=draw(st.booleans()),
        tables=draw(st.booleans()),
        dropout=draw(st.booleans()),
        scaled=draw(st.booleans()),
    )
