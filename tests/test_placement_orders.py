"""Orders of features that no weight has, slices that look like shares, tensors made like others: right or left whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from layoutcheck.placement.annotated import AnnotatedGraph, annotate  # noqa: E402
from layoutcheck.ranks.interpreter import run  # noqa: E402
from layoutcheck.readers import from_fx  # noqa: E402

HIDDEN, INNER, TOKENS = 16, 24, 8


class Block(torch.nn.Module):  # type: ignore[misc]
    """One decoder layer whose MLP puts features in an order of its own."""

    def __init__(self, mlp: Callable[[Any, Any], Any], width: int) -> None:
        super().__init__()
        make = lambda a, b: torch.nn.Parameter(torch.randn(b, a, dtype=torch.float64) / a**0.5)  # noqa: E731
        self.n1, self.n2 = (torch.nn.Parameter(torch.ones(HIDDEN, dtype=torch.float64)) for _ in range(2))
        self.q, self.k, self.v, self.o = (make(HIDDEN, HIDDEN) for _ in range(4))
        self.up, self.gate, self.down = make(HIDDEN, INNER), make(HIDDEN, INNER), make(width, HIDDEN)
        self.mlp = mlp

    def forward(self, x: Any) -> Any:
        linear = torch.nn.functional.linear

        def norm(y: Any, w: Any) -> Any:
            return y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6) * w

        y = norm(x, self.n1)
        q, k, v = (linear(y, w).view(TOKENS, 4, 4).transpose(0, 1) for w in (self.q, self.k, self.v))
        a = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + linear(a.transpose(0, 1).reshape(TOKENS, HIDDEN), self.o)
        return x + linear(self.mlp(self, norm(x, self.n2)), self.down)


def _linear(y: Any, w: Any) -> Any:
    return torch.nn.functional.linear(y, w)


MLPS: dict[str, tuple[Callable[[Any, Any], Any], int]] = {
    "one after another": (
        lambda m, y: torch.cat([_linear(y, m.gate).relu(), _linear(y, m.up)], -1),
        2 * INNER,
    ),
    "both signs": (
        lambda m, y: torch.cat([_linear(y, m.up).relu(), (-_linear(y, m.up)).relu()], -1),
        2 * INNER,
    ),
    "overlapping slices": (lambda m, y: _linear(y, m.up)[:, :16] * _linear(y, m.up)[:, 8:], 16),
    "the first half": (lambda m, y: _linear(y, m.up)[:, : INNER // 2].relu(), INNER // 2),
    "the second half": (lambda m, y: _linear(y, m.up)[:, INNER // 2 :].relu(), INNER // 2),
    "plain": (lambda m, y: torch.nn.functional.silu(_linear(y, m.gate)) * _linear(y, m.up), INNER),
}


def shares(value: Any, found: AnnotatedGraph, name: str, rank: int) -> Any:
    shard = found.shards.get(name)
    if shard is None:
        return value
    sizes = shard.pieces or (value.shape[shard.axis],)
    pieces = value.split(list(sizes), shard.axis)
    return torch.cat([p.chunk(shard.ways, shard.axis)[rank] for p in pieces], shard.axis)


@pytest.mark.parametrize("name", MLPS)
@pytest.mark.parametrize("contract", ["tensor-parallel", "sequence-parallel"])
def test_ranks_give_what_one_device_gives(name: str, contract: str) -> None:
    torch.manual_seed(3)
    module = Block(*MLPS[name])
    x = torch.randn(TOKENS, HIDDEN, dtype=torch.float64)
    graph = from_fx(torch.export.export(module, (x,), strict=False))
    inputs = {
        n.name: x
        if (spec := graph.inputs.get(n.name)) is None or spec.kind == "user_input"
        else module.get_parameter(str(spec.fqn)).detach()
        for n in graph.nodes
        if n.op == "placeholder"
    }
    options: Any = dict(groups={"tp": 2}, tokens=[("x", 0)])
    found = [annotate(graph, contract, rank=r, **options) for r in range(2)]
    assert {len(f.shards) for f in found} == {len(found[0].shards)}
    if name == "plain":
        assert len(found[0].shards) == 7
    whole = run([graph], [inputs], lambda r, g: [0])[0].outputs[0]
    mine = [{k: shares(v, f, k, r) for k, v in inputs.items()} for r, f in enumerate(found)]
    for one in run([f.graph for f in found], mine, lambda r, g: [0, 1]):
        torch.testing.assert_close(one.outputs[0], whole, rtol=1e-9, atol=1e-9)
