"""Parts of decoders on ranks against single-device models of their own, written here and not derived from
types.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import attrs
import pytest

torch = pytest.importorskip("torch")

from support.builder import DIALECTS, GraphBuilder, Val  # noqa: E402
from support.faults import Size  # noqa: E402
from support.faults.base import cut, enter_full, finish, whole  # noqa: E402
from support.faults.moe import dispatch_combine  # noqa: E402
from support.programs import build  # noqa: E402

from layoutcheck.graph import Graph  # noqa: E402
from layoutcheck.infer.solver.analysis import analyse  # noqa: E402
from layoutcheck.json_form import graph_from_json  # noqa: E402
from layoutcheck.ranks.interpreter import named_groups, run, run_call  # noqa: E402
from layoutcheck.ranks.reference.linears import real  # noqa: E402
from layoutcheck.ranks.reference.quantise import symmetric  # noqa: E402
from layoutcheck.ranks.verify import verify  # noqa: E402

torch.set_num_threads(1)
Tensor = Any


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def on_ranks(graphs: list[Graph], inputs: list[dict[str, Tensor]]) -> list[Tensor]:
    return [r.outputs[0] for r in run(graphs, inputs, named_groups(graphs))]


# ---- the MoE round trip


def expert(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    gate, value = (x @ up).chunk(2, -1)
    return (torch.nn.functional.silu(gate) * value) @ down


def moe(x: Tensor, ids: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """Each token through each of its experts, one by one; the mean over them."""
    out = torch.zeros(x.shape[0], down.shape[-1], dtype=torch.float64)
    for t in range(x.shape[0]):
        parts = [expert(x[t : t + 1], up[int(e)], down[int(e)])[0] for e in ids[t]]
        out[t] = torch.stack(parts).mean(0)
    return out


@pytest.mark.parametrize("p", [1, 2, 4])
@pytest.mark.parametrize("rows", [1, 3, 6])
def test_dispatch_experts_combine(p: int, rows: int) -> None:
    experts, hidden, inner, k = 8, 6, 4, 3
    up, down = random(experts, hidden, 2 * inner, seed=1), random(experts, inner, hidden, seed=2)
    x = random(p * rows, hidden, seed=3)
    ids = torch.stack([random(experts, seed=10 + t).topk(k)[1] for t in range(p * rows)])
    args = []
    for r in range(p):
        mine = slice(r * rows, (r + 1) * rows)
        own = slice(r * experts // p, (r + 1) * experts // p)
        args.append(
            dict(
                x=x[mine],
                expert_indices=ids[mine],
                gmm1_w=up[own],
                gmm1_bias=None,
                gmm2_w=down[own],
                gmm2_bias=None,
                rank=r,
                rank_group=list(range(p)),
            )
        )
    got = run_call("tensor_cast.dispatch_ffn_combine.default", args, lambda r, g: list(g))
    torch.testing.assert_close(torch.cat(got), moe(x, ids, up, down))


def routed(p: int, rows: int, width: int) -> Tensor:
    """Rows of p ranks whose two best experts are p in turn, so that every rank sends as many rows to each of them."""
    x = random(p * rows, width, seed=7) / 8
    for t in range(p * rows):
        x[t, t % p] += 4
        x[t, (t + 1) % p] += 2
    return x


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("p", [2, 4])
def test_round_trip_in_parts(p: int, dialect: str) -> None:
    """Router, rows sorted by expert, all_to_all, one expert a rank, back, put in order, weighted sum: against every
    token through each of its experts, one by one.
    """
    rows, width, inner = 2 * p, 8, 6
    x, router = routed(p, rows, width), torch.eye(p, width, dtype=torch.float64)
    shapes = ((inner, width), (inner, width), (width, inner))
    experts = [[random(*n, seed=20 + 3 * e + i) for i, n in enumerate(shapes)] for e in range(p)]
    graphs, inputs = [], []
    for r in range(p):
        b = GraphBuilder({"tp": p}, rank=r, T=p * rows, dialect=dialect)
        local = b.input("x", (rows, width))
        y, _ = dispatch_combine(b, Size(T=p * rows, H=width, F=inner, p=p, rank=r), local)
        b.output([y])
        graphs.append(graph_from_json(b.graph()))
        weights = [n.name for n in graphs[-1].nodes if n.op == "placeholder" and n.name != "x"]
        inputs.append({"x": x.chunk(p)[r], **dict(zip(weights, [router, *experts[r]]))})
    got = torch.cat(on_ranks(graphs, inputs))
    silu = torch.nn.functional.silu
    want = torch.zeros_like(x)
    for t, (chances, ids) in enumerate(zip(*torch.softmax(x @ router.T, -1).topk(2))):
        for chance, e in zip(chances, ids.tolist()):
            up, gate, down = experts[e]
            want[t] += chance * (down @ (silu(gate @ x[t]) * (up @ x[t])))
    torch.testing.assert_close(got, want)


# ---- the masked lookup


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(("p", "tokens"), [(2, 5), (4, 9), (3, 1)])
def test_masked_vocabulary_lookup(dialect: str, p: int, tokens: int) -> None:
    vocab, width = 12 * p, 5
    table, ids = (
        random(vocab, width),
        torch.randint(0, vocab, (tokens,), generator=torch.Generator().manual_seed(4)),
    )
    graphs, inputs = [], []
    for r in range(p):
        b = GraphBuilder({"tp": p}, rank=r, T=tokens, dialect=dialect)
        b.output([b.all_reduce(b.vocab_embedding(b.tokens(), vocab, width))])
        graph = graph_from_json(b.graph())
        given = {
            n.name: ids if n.meta.dtype == "int64" else table.chunk(p)[r]
            for n in graph.nodes
            if n.op == "placeholder"
        }
        graphs.append(graph)
        inputs.append(given)
    for out in on_ranks(graphs, inputs):
        torch.testing.assert_close(out, table[ids])


# ---- the indexer with Local queries


def indexer(b: GraphBuilder, p: int, rank: int, tokens: int, heads: int, width: int, k: int) -> None:
    """Scores of the rank's own queries against gathered keys, behind a mask that knows where the rank's rows
    begin.
    """
    c = tokens // p
    q, key, w = b.input("q", (c, heads * width)), b.input("key", (c, width)), b.input("w", (c, heads))
    keys = b.all_gather(key)
    keys_t = b.call("aten.permute.default", keys, [1, 0], shape=(width, tokens))
    flat = b.view(q, (c * heads, width))
    scores = b.call(
        "aten.relu.default",
        b.call("aten.mm.default", flat, keys_t, shape=(c * heads, tokens)),
        shape=(c * heads, tokens),
    )
    by_head = b.view(scores, (c, heads, tokens))
    column = b.call("aten.unsqueeze.default", w, -1, shape=(c, heads, 1))
    total = b.call(
        "aten.sum.dim_IntList",
        b.call("aten.mul.Tensor", by_head, column, shape=(c, heads, tokens)),
        [1],
        shape=(c, tokens),
    )
    bias = b.input("bias", (c, tokens))
    masked = b.call("aten.add.Tensor", total, bias, shape=(c, tokens))
    _, ids = b.call_many("aten.topk.default", masked, k, -1, metas=[((c, k), b.dtype), ((c, k), "int64")])
    b.output([ids])


@pytest.mark.parametrize("p", [2, 4])
def test_indexer_with_local_queries(p: int) -> None:
    tokens, heads, width, k = 4 * p, 3, 4, 2
    q, key, w = (
        random(tokens, heads * width, seed=1),
        random(tokens, width, seed=2),
        random(tokens, heads, seed=3),
    )
    future = torch.ones(tokens, tokens).triu(1).bool()
    bias = torch.zeros(tokens, tokens, dtype=torch.float64).masked_fill(future, -1e9)
    want = []
    for t in range(tokens):
        score = torch.zeros(tokens, dtype=torch.float64)
        for h in range(heads):
            score += w[t, h] * torch.relu(key @ q[t, h * width : (h + 1) * width])
        want.append((score + bias[t]).topk(k)[1])
    graphs, inputs = [], []
    for r in range(p):
        b = GraphBuilder({"tp": p}, rank=r, T=tokens, dtype="float32")
        indexer(b, p, r, tokens, heads, width, k)
        graphs.append(graph_from_json(b.graph()))
        inputs.append({n: v.chunk(p)[r] for n, v in (("q", q), ("key", key), ("w", w), ("bias", bias))})
    got = torch.cat(on_ranks(graphs, inputs))
    assert torch.equal(got[1:], torch.stack(want)[1:])  # row 0 has one key only: its second choice is noise


# ---- a quantised row-parallel linear


@pytest.mark.parametrize("p", [1, 2, 4])
def test_quantised_row_parallel_linear(p: int) -> None:
    """A scale a row of each rank's shard: equal to one device with the same blocks, and within the coarser
    step of one with whole rows.
    """
    tokens, k, n = 5, 24, 7
    x, w = (
        random(tokens, k, seed=1),
        torch.randint(-7, 8, (k, n), generator=torch.Generator().manual_seed(2)).to(torch.int8),
    )
    w_scale = torch.tensor(0.125, dtype=torch.float64)
    args = []
    blocks = torch.zeros(tokens, n, dtype=torch.float64)
    for r in range(p):
        codes, scale = symmetric(x.chunk(p, 1)[r], [-1])
        args.append(
            dict(
                x=codes,
                w=w.chunk(p, 0)[r],
                w_scale=w_scale,
                w_offset=None,
                x_scale=scale,
                x_offset=None,
                bias=None,
                out_dtype=None,
                rank=r,
                rank_group=list(range(p)),
            )
        )
        blocks += (codes.double() * scale) @ (w.chunk(p, 0)[r].double() * w_scale)
    got = run_call("tensor_cast.static_quant_linear_all_reduce.default", args, lambda r, g: list(g))
    for y in got:
        torch.testing.assert_close(y, blocks)
    codes, scale = symmetric(x, [-1])
    one = (codes.double() * scale) @ real(w, w_scale)
    # each of k products is off by half a step of x times its weight, on both sides
    bound = scale * (w.double() * w_scale).abs().sum(0)
    assert bool(((got[0] - one).abs() <= bound).all())
    assert p == 1 or not torch.equal(got[0], one)


# ---- the shared expert whose all_reduce mixes tokens


def shared_expert(b: GraphBuilder, s: Size, form: str) -> Val:
    x = enter_full(b, s)
    local = cut(b, s, b.norm(x))
    if form == "mixed":
        y = b.all_reduce(b.mlp(local, s.inner, (s.up(), s.down())))
    elif form == "gathered":
        y = b.reduce_scatter(b.mlp(b.all_gather(local), s.inner, (s.up(), s.down())))
    else:
        y = b.mlp(local, s.F)
    finish(b, s, b.add(x, whole(b, s, y)), local=False)
    return y


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    "size", [Size(), Size("uneven", T=13), Size("pair", T=8, p=2)], ids=lambda s: s.label
)
@pytest.mark.parametrize("form", ["mixed", "gathered", "replicated"])
def test_shared_expert(form: str, size: Size, dialect: str) -> None:
    graphs = []
    for r in range(size.p):
        b = GraphBuilder({"tp": size.p}, rank=r, T=size.T, dialect=dialect)
        shared_expert(b, replace(size, rank=r), form)
        graphs.append(graph_from_json(b.graph()))
    verdict = verify(analyse(graphs[0]), graphs=graphs)
    assert verdict.equal == (form != "mixed"), verdict


# ---- what is each rank's own is compared with one device, too


def broken_on_rank(name: str, dialect: str, target: str, change: Any, rank: int = 1) -> Any:
    """A right program in which one rank's call of an op is another one."""
    size = Size("pair", T=8, p=2)
    graphs = [graph_from_json(build(name, dialect, replace(size, rank=r))) for r in range(2)]
    at = next(i for i, n in enumerate(graphs[rank].nodes) if n.target == target)
    node = graphs[rank].nodes[at]
    graphs[rank].nodes[at] = change(node)
    return node.name, verify(analyse(graphs[0]), graphs=graphs)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_wrong_limit_of_a_vocabulary_shard_shows(dialect: str) -> None:
    """A rank that leaves out the first half of its rows of the table."""
    _, verdict = broken_on_rank(
        "tensor_parallel",
        dialect,
        "aten.ge.Scalar",
        lambda node: attrs.evolve(node, args=(node.args[0], node.args[1] + 64)),
    )
    assert verdict.first is not None and verdict.error is None
    assert verdict.first[0].startswith("where")


def test_an_expert_that_does_something_else_shows() -> None:
    """Rows on their way between experts are compared rank by rank, where the expert is."""
    name, verdict = broken_on_rank(
        "expert_parallel",
        "tensor_cast",
        "tensor_cast.silu.default",
        lambda node: attrs.evolve(node, target="tensor_cast.gelu.default"),
    )
    assert verdict.first is not None and verdict.first[0] == name
    assert verdict.place == "rank 1 "


def packed(p: int, rank: int, wrong: bool) -> Graph:
    """Gate and up packed rank by rank in one weight, split behind the product."""
    b = GraphBuilder({"tp": p}, rank=rank, T=6, dtype="float32")
    x = b.input("x", (6, 8), layout="[T, 8]")
    both = b.linear(x, b.weight((12, 8), layout=f"[{12 * p}/{p}@tp, 8]"))
    first = b.slice(both, 0, 6, dim=1)
    second = b.slice(both, 6, 12, dim=1)
    gate, up = (second, first) if wrong else (first, second)
    down = b.weight((8, 6), layout=f"[8, {6 * p}/{p}@tp]")
    b.output([b.all_reduce(b.linear(b.multiply(b.silu(gate), up), down))])
    return graph_from_json(b.graph())


def test_pieces_of_a_feature_shard_are_compared() -> None:
    """One rank takes the halves of its packed weight the other way round: its silu is of another half."""
    right = [packed(2, r, wrong=False) for r in range(2)]
    verdict = verify(analyse(right[0]), graphs=right)
    assert verdict.equal and not verdict.taken, verdict
    mixed = [right[0], packed(2, 1, wrong=True)]
    verdict = verify(analyse(right[0]), graphs=mixed)
    assert verdict.first is not None and not verdict.equal
