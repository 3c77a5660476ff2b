"""Decoders with linears of every form: annotated, they hold the contract, and nothing is quantised that was not."""

from __future__ import annotations

from collections import Counter

import attrs
import pytest

from layoutcheck import check
from layoutcheck.graph import Arg, Graph, Node, Ref, TensorMeta
from layoutcheck.models import load_model
from layoutcheck.models.decoder import build_decoder
from layoutcheck.models.step import step_for
from layoutcheck.placement.annotated import annotate
from layoutcheck.placement.certificate import verify

BLOCK = 32
"""Elements of one scale of the mxfp4 form."""

LINEAR = "tensor_cast.static_quant_linear.default"
# What a linear of the written decoder is called in a form that no decoder is written in.
INT4 = {
    LINEAR: "tensor_cast.static_quant_linear_int4.default",
    "tensor_cast.dispatch_ffn_combine_quant.default": "tensor_cast.dispatch_ffn_combine_quant_int4.default",
}
MXFP4 = {
    "tensor_cast.fp8_linear.default": "tensor_cast.mxfp4_linear.default",
}
ROUTED = "tensor_cast.dispatch_ffn_combine_{}.default"

CASES = [
    ("glm-5.1", 4, "mc2-decode", "dsa-cp-prefill"),
    ("glm-5.1", 4, "mc2-decode", "dsa-cp-entry-slice"),
    ("glm-5.1", 4, "mc2-decode", "mc2-decode"),
    ("deepseek-v3", 8, "tensor-parallel", "sequence-parallel"),
    ("qwen3-30b-a3b", 4, "tensor-parallel", "mc2-decode"),
    ("qwen3-8b", 8, "tensor-parallel", "sequence-parallel"),
]


def written(name: str, tp: int, style: str, form: str) -> Graph:
    """A decoder that hands on all tokens, with linears of this form."""
    quant = {"int4": "int8", "mxfp4": "fp8"}.get(form, form)
    graph = build_decoder(load_model(name), step_for(load_model(name), tp=tp, contract=style, quant=quant))
    if form == "int4":
        return packed(graph)
    return blocks_of_codes(graph) if form == "mxfp4" else graph


def packed(graph: Graph) -> Graph:
    """The graph with weights of int8 linears packed in pairs along the features that are summed over."""
    reads = {n.name: [a.name for a in n.args if isinstance(a, Ref)] for n in graph.nodes}
    turned = {reads[n.name][1] for n in graph.nodes if n.target == LINEAR}
    weights = {reads[name][0] for name in turned}

    def of(node: Node) -> Node:
        meta = node.meta
        if node.name in weights and isinstance(meta, TensorMeta):
            rows, columns = meta.shape
            text = meta.layout
            if text is not None:
                *_, inner = text.strip("[]").split(", ")
                whole, cut = inner.split("/") if "/" in inner else (inner, "")
                text = f"{text[: text.index(',')]}, {int(whole) // 2}{'/' if cut else ''}{cut}]"
            return attrs.evolve(node, meta=attrs.evolve(meta, shape=(rows, columns // 2), layout=text))
        if node.name in turned and isinstance(meta, TensorMeta):
            columns, rows = meta.shape
            return attrs.evolve(node, meta=attrs.evolve(meta, shape=(columns // 2, rows)))
        return attrs.evolve(node, target=INT4.get(node.target, node.target))

    return attrs.evolve(graph, nodes=[of(n) for n in graph.nodes])


def blocks_of_codes(graph: Graph) -> Graph:
    """The graph with four-bit codes, of which each block has a scale."""
    quantise = "tensor_cast.dynamic_quantize_symmetric.default"
    made = {n.name for n in graph.nodes if n.target == quantise}

    def of(node: Node) -> Node:
        meta = node.meta
        if node.target == quantise:
            args: tuple[Arg, ...] = (node.args[0], BLOCK)
            return attrs.evolve(
                node, target="tensor_cast.dynamic_quantize_mxfp4.default", args=args, kwargs={}, meta=None
            )
        if node.target == "operator.getitem" and isinstance(node.args[0], Ref) and node.args[0].name in made:
            return attrs.evolve(node, meta=None)
        if isinstance(meta, TensorMeta) and meta.dtype == "float8_e4m3fn":
            node = attrs.evolve(node, meta=attrs.evolve(meta, dtype="int4"))
        if node.target == ROUTED.format("fp8"):
            given: tuple[Arg, ...] = (
                *node.args[:7],
                BLOCK,
                *node.args[7:],
            )  # behind the first products' data type
            return attrs.evolve(node, target=ROUTED.format("mxfp4"), args=given)
        return attrs.evolve(node, target=MXFP4.get(node.target, node.target))

    return attrs.evolve(graph, nodes=[of(n) for n in graph.nodes])


def quantised(graph: Graph) -> Counter[str]:
    """Ops on codes, and values that are codes, how often each stands in the graph."""
    words = ("quant", "fp8", "mxfp4", "int4")
    ops = Counter(n.target for n in graph.nodes if any(w in n.target for w in words))
    inner = Counter(
        str(a) for n in graph.nodes for a in n.args if "OpOverload" in str(a) and "quant" in str(a)
    )
    return ops + inner


@pytest.mark.parametrize("form", ["none", "int8", "fp8", "int4", "mxfp4"])
@pytest.mark.parametrize(("name", "tp", "style", "contract"), CASES)
def test_linears_of_every_form_hold_the_contract(
    name: str, tp: int, style: str, contract: str, form: str
) -> None:
    graph = written(name, tp, style, form)
    found = annotate(graph, contract, tokens=[("input_ids", 0)])
    assert [str(f) for f in found.check().findings] == []
    assert quantised(found.graph) == quantised(graph)
    assert verify(found._placed.problem.problem, found._placed.placement) is None
    plain = annotate(written(name, tp, style, "none"), contract, tokens=[("input_ids", 0)])
    assert set(found.counts()) == set(plain.counts())


def test_a_routed_call_that_lacks_an_argument_is_told() -> None:
    graph = written("qwen3-30b-a3b", 4, "tensor-parallel", "mxfp4")
    short = [
        attrs.evolve(n, args=(*n.args[:7], *n.args[8:])) if n.target == ROUTED.format("mxfp4") else n
        for n in graph.nodes
    ]
    report = check(attrs.evolve(graph, nodes=short), contract="mc2-decode")
    assert "LC903" in {f.code for f in report.findings}
