"""Biases of row-parallel products are added once, behind the reduction; those of column-parallel ones are cut with their columns."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from layoutcheck.findings import Severity  # noqa: E402
from layoutcheck.placement.annotated import AnnotatedGraph, Shard  # noqa: E402
from layoutcheck.ranks.annotated import run_annotated  # noqa: E402
from layoutcheck.readers import from_fx  # noqa: E402

HIDDEN, INNER, TOKENS, HEADS = 16, 24, 8, 4


def linear(x: Any, w: Any, b: Any) -> Any:
    return torch.nn.functional.linear(x, w, b)


def addmm(x: Any, w: Any, b: Any) -> Any:
    return torch.ops.aten.addmm.default(b, x, w.t())


def scaled(x: Any, w: Any, b: Any) -> Any:
    """The bias counts twice, which no product without it says."""
    return torch.ops.aten.addmm.default(b, x, w.t(), beta=2)


class Layer(torch.nn.Module):  # type: ignore[misc]
    """A decoder layer with a bias in every product, which `product` spells."""

    def __init__(self, product: Any, inner: int) -> None:
        super().__init__()

        def make(*shape: int) -> Any:
            return torch.nn.Parameter(torch.randn(shape, dtype=torch.float64) / 4)

        self.n1, self.n2 = make(HIDDEN), make(HIDDEN)
        self.q, self.k, self.v, self.o = (make(HIDDEN, HIDDEN) for _ in range(4))
        self.up, self.down = make(inner, HIDDEN), make(HIDDEN, inner)
        self.bq, self.bk, self.bv, self.bo, self.bdown = (make(HIDDEN) for _ in range(5))
        self.bup = make(inner)
        self.product = product

    def forward(self, x: Any) -> Any:
        def norm(y: Any, w: Any) -> Any:
            return y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6) * w

        y = norm(x, self.n1)
        pairs = ((self.q, self.bq), (self.k, self.bk), (self.v, self.bv))
        q, k, v = (
            self.product(y, w, b).view(TOKENS, HEADS, HIDDEN // HEADS).transpose(0, 1) for w, b in pairs
        )
        a = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.product(a.transpose(0, 1).reshape(TOKENS, HIDDEN), self.o, self.bo)
        return x + self.product(
            self.product(norm(x, self.n2), self.up, self.bup).relu(), self.down, self.bdown
        )


def annotated(product: Any, contract: str, inner: int = INNER) -> AnnotatedGraph:
    """Annotate for two ranks, and hold what they give against one device."""
    torch.manual_seed(3)
    module = Layer(product, inner)
    x = torch.randn(TOKENS, HIDDEN, dtype=torch.float64)
    graph = from_fx(torch.export.export(module, (x,), strict=False))
    names = {spec.fqn: node for node, spec in graph.inputs.items() if spec.fqn}
    inputs = {names[name]: w.detach() for name, w in module.named_parameters()}
    inputs["x"] = x
    found = run_annotated(graph, contract, 2, inputs, tokens=[("x", 0)])
    with torch.no_grad():
        want = module(x)
    for mine in found.runs:
        assert (mine.outputs[0] - want).abs().max() < 1e-12
    assert [f for f in found.annotated[0].check().findings if f.severity is not Severity.NOTE] == []
    return found.annotated[0]


@pytest.mark.parametrize("contract", ["tensor-parallel", "sequence-parallel"])
@pytest.mark.parametrize("product", [linear, addmm])
def test_a_bias_behind_a_sum_over_ranks_is_added_once(product: Any, contract: str) -> None:
    found = annotated(product, contract)
    assert found.notes == ()
    columns = {f"p_{name}": Shard(0, 2) for name in ("q", "k", "v", "up", "bq", "bk", "bv", "bup")}
    assert found.shards == columns | {"p_o": Shard(1, 2), "p_down": Shard(1, 2)}
    kinds = found.counts()
    assert kinds["all_reduce" if contract == "tensor-parallel" else "reduce_scatter"] == 2
    for name in ("p_bo", "p_bdown"):
        (reader,) = (n for n in found.graph.nodes if name in n.refs())
        assert reader.target == "aten.add.Tensor"
        assert "+tp" not in found.layouts[reader.name]


def test_a_block_that_is_not_cut_keeps_its_bias_in_the_product() -> None:
    found = annotated(linear, "tensor-parallel", inner=25)
    assert [note.partition(" keeps")[0] for note in found.notes] == ["dense block 1"]
    readers = {name: n.target for n in found.graph.nodes for name in ("p_bo", "p_bdown") if name in n.refs()}
    assert readers == {"p_bo": "aten.add.Tensor", "p_bdown": "aten.linear.default"}


def test_a_bias_that_counts_several_times_stays() -> None:
    """Without a rule that says how to write the product alone the block is left whole."""
    found = annotated(scaled, "tensor-parallel")
    assert found.shards == {}
    assert len(found.notes) == 2
