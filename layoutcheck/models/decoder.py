"""A model's decoder as a graph in the form that exporters give, from its figures alone.

Layers that are alike are a region with its repeats. The graph is rank 0's; its token count is a small one, since the formulas that
are lifted from it hold at any.
"""

from __future__ import annotations

from layoutcheck.graph import DtypeArg, Graph
from layoutcheck.models.attention_parts import Inputs, attention
from layoutcheck.models.builder import Builder, Value
from layoutcheck.models.config import ModelConfig
from layoutcheck.models.step import Step
from layoutcheck.models.writer import Writer

Kind = tuple[bool, bool]
"""Whether a layer has experts, and whether it has an indexer of its own."""


def build_decoder(config: ModelConfig, step: Step) -> Graph:
    """The graph of one step of a model.

    Args:
        config: the model's figures.
        step: groups, contract, phase and data types; see ``step_for``, which checks them.
    """
    b = Writer(config, step)
    ids = b.input("input_ids", (b.tokens,), "int64")
    embedded = _embedding(b, ids)
    inputs = Inputs.of(b)
    state: tuple[Value, ...] = (embedded,)
    for kinds, times in stacks(config):
        state = _stack(b, kinds, times, state, inputs)
    hidden = state[0]
    results = [_head(b, b.norm(hidden))]
    for _ in range(config.mtp_layers if step.mtp else 0):
        shifted = _embedding(b, ids)
        both = (b.norm(shifted), b.norm(hidden))
        joined = b.call("aten.cat.default", both, -1, shape=(hidden.shape[0], 2 * config.hidden_size))
        hidden = b.project((joined, None), config.hidden_size)
        last = (config.layer_is_sparse(config.num_layers), config.indexer is not None)
        hidden, _ = _layer(b, last, hidden, inputs, None)
        results.append(_head(b, b.norm(hidden)))
    return b.finished(*results)


def stacks(config: ModelConfig) -> list[tuple[tuple[Kind, ...], int]]:
    """The layers as bodies and how often each repeats.

    A body is a layer, or one with an indexer and those behind it that use its positions.
    """
    bodies: list[list[Kind]] = []
    for layer in range(config.num_layers):
        kind = (config.layer_is_sparse(layer), config.layer_owns_indexer(layer))
        if config.indexer is not None and not kind[1] and bodies:
            bodies[-1].append(kind)
        else:
            bodies.append([kind])
    found: list[tuple[tuple[Kind, ...], int]] = []
    for body in bodies:
        kinds = tuple(body)
        if found and found[-1][0] == kinds:
            found[-1] = (kinds, found[-1][1] + 1)
        else:
            found.append((kinds, 1))
    return found


def _stack(
    b: Writer, kinds: tuple[Kind, ...], times: int, state: tuple[Value, ...], inputs: Inputs
) -> tuple[Value, ...]:
    def body(_: Builder, values: tuple[Value, ...]) -> tuple[Value, ...]:
        hidden, topk = values[0], None
        for kind in kinds:
            hidden, topk = _layer(b, kind, hidden, inputs, topk)
        return (hidden,)

    return b.repeat(body, state, times)


def _layer(
    b: Writer, kind: Kind, hidden: Value, inputs: Inputs, topk: Value | None
) -> tuple[Value, Value | None]:
    sparse, owns = kind
    update, topk = attention(b, b.norm(hidden), inputs, topk, owns)
    normed, residual = b.add_norm(hidden, update)
    update = _experts(b, normed) if sparse else _dense(b, normed, b.config.intermediate_size)
    return b.add(residual, update), topk


# ---- feed-forward


def _dense(b: Writer, x: Value, inner: int) -> Value:
    """A gated MLP whose inner features are cut over tp, on all rows."""
    local = b.step.style.residual == "local"
    rows = b.whole(x) if local else x
    return b.spread(_gated(b, rows, inner // b.ranks, cut=True), local)


def _gated(b: Writer, x: Value, inner: int, cut: bool) -> Value:
    codes = b.codes(x)
    gate, up = (b.project(codes, inner, cut="columns" if cut else "") for _ in range(2))
    mixed = b.multiply(b.silu(gate), up)
    return b.project(b.codes(mixed), b.config.hidden_size, cut="rows" if cut else "")


def _experts(b: Writer, x: Value) -> Value:
    """Routed and shared experts on a rank's own rows; where the experts are on every rank, cut over tp, on all rows."""
    experts = b.config.experts
    assert experts is not None
    local = b.step.style.residual == "local"
    cut = b.step.ep == 1
    rows = b.whole(x) if local and cut else x
    logits = _logits(b, rows)
    if not cut and not local:
        rows, logits = b.own(rows), b.own(logits)
    n = rows.shape[0]
    chosen = [((n, experts.per_token), "float32"), ((n, experts.per_token), "int64")]
    weights, ids = b.call_many(
        "tensor_cast.moe_gating_top_k_softmax.default", logits, experts.per_token, metas=chosen
    )
    total = b.call("aten.sum.dim_IntList", weights, (-1,), True, shape=(n, 1), dtype="float32")
    share = b.call("aten.div.Tensor", weights, total, shape=weights.shape, dtype="float32")
    _cast(b, share, b.dtype)
    mixed = _routed(b, rows, ids, experts.intermediate_size // (b.ranks if cut else 1))
    if experts.shared_intermediate_size:
        inner = experts.shared_intermediate_size
        shared = _gated(b, rows, inner // b.ranks if cut else inner, cut=cut)
        mixed = b.add(mixed, shared)
    if cut:
        return b.spread(mixed, local)
    return mixed if local else b.whole(mixed)


def _logits(b: Writer, rows: Value) -> Value:
    """The gate, in float32."""
    experts = b.config.experts
    assert experts is not None
    n, width = rows.shape
    weight = _cast(b, b.weight(experts.count, width), "float32")
    turned = b.call("aten.permute.default", weight, (1, 0), shape=(width, experts.count), dtype="float32")
    wide = _cast(b, rows, "float32")
    return b.call("aten.mm.default", wide, turned, shape=(n, experts.count), dtype="float32")


def _cast(b: Writer, x: Value, dtype: str) -> Value:
    return b.call("prims.convert_element_type.default", x, DtypeArg(dtype), shape=x.shape, dtype=dtype)


def _routed(b: Writer, rows: Value, ids: Value, inner: int) -> Value:
    """Dispatch, the experts' products and combine as one op."""
    experts = b.config.experts
    assert experts is not None
    width, here = rows.shape[1], experts.count // b.step.ep
    quant = b.step.quant
    cut = b.step.ep == 1
    gate_up = b.cut(here, width, 2 * inner, axis=2 if cut else None, dtype=quant)
    down = b.cut(here, inner, width, axis=1 if cut else None, dtype=quant)
    group = b.experts_group
    if quant is None:
        return b.call(
            "tensor_cast.dispatch_ffn_combine.default",
            *(rows, ids, gate_up, None, down, None, 0, group),
            shape=rows.shape,
        )
    out = DtypeArg(b.dtype)
    args = (gate_up, b.scalar(), None, None, out, down, b.scalar(), None, None, out, 0, group)
    form = "quant" if quant == "int8" else "fp8"
    return b.call(f"tensor_cast.dispatch_ffn_combine_{form}.default", rows, ids, *args, shape=rows.shape)


# ---- ends


def _embedding(b: Writer, ids: Value) -> Value:
    """Rows of a table that is cut over the vocabulary; other ranks' ids give zeros, which are added up."""
    width, local = b.config.hidden_size, b.step.style.residual == "local"
    if b.ranks == 1:
        return b.call(
            "aten.embedding.default", b.weight(b.config.vocab_size, width), ids, shape=(b.tokens, width)
        )
    rows = -(-b.config.vocab_size // b.ranks)
    t = (b.tokens,)
    low = b.call("aten.ge.Scalar", ids, 0, shape=t, dtype="bool")
    high = b.call("aten.lt.Scalar", ids, rows, shape=t, dtype="bool")
    mine = b.call("aten.bitwise_and.Tensor", low, high, shape=t, dtype="bool")
    moved = b.call("aten.sub.Tensor", ids, 0, shape=t, dtype="int64")
    zero = b.call("aten.zeros_like.default", ids, shape=t, dtype="int64")
    safe = b.call("aten.where.self", mine, moved, zero, shape=t, dtype="int64")
    table = b.input("w", (rows, width), None, f"[{rows * b.ranks}/{b.ranks}@tp, {width}]")
    found = b.call("aten.embedding.default", table, safe, shape=(b.tokens, width))
    column = b.call("aten.unsqueeze.default", mine, -1, shape=(b.tokens, 1), dtype="bool")
    other = b.call("aten.bitwise_not.default", column, shape=(b.tokens, 1), dtype="bool")
    nothing = b.constant(0.0)
    kept = b.call("aten.where.self", other, nothing, found, shape=(b.tokens, width))
    return b.spread(kept, local)


def _head(b: Writer, normed: Value) -> Value:
    """Logits of each sequence's last token, gathered over the vocabulary."""
    rows = b.whole(normed) if b.step.style.residual == "local" else normed
    count = b.tokens if b.step.decode else b.step.sequences
    width = b.config.hidden_size
    if not b.step.decode:
        last = b.input("last", (count,), "int64")
        rows = b.call("aten.index.Tensor", rows, (last,), shape=(count, width))
    vocab = -(-b.config.vocab_size // b.ranks)
    logits = b.project((rows, None), vocab, cut="columns")
    if b.ranks == 1:
        return logits
    return b.call(
        "tensor_cast.all_gather.default",
        *(logits, -1, b.rank, b.group),
        shape=(count, vocab * b.ranks),
    )
