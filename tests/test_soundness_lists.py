"""Collectives on lists, a tensor a rank: run by their own definition, and typed as what they are written out as."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")


from support import engine  # noqa: E402

from layoutcheck.graph import Graph, Node, Other, Ref, TensorMeta  # noqa: E402
from layoutcheck.infer.solver.analysis import analyse  # noqa: E402
from layoutcheck.ranks.interpreter import named_groups, run  # noqa: E402
from layoutcheck.ranks.verify import verify  # noqa: E402

torch.set_num_threads(1)
WIDTH = 12
RANKS = (1, 2, 3, 4)


class Program:
    """One rank's graph: x [T, 12] whole, and a row-parallel weight."""

    def __init__(self, p: int, rank: int, rows: int = 2) -> None:
        self.p, self.rank, self.c, self.T = p, rank, rows, rows * p
        self.nodes: list[Node] = []
        self._input("x", (self.T, WIDTH), f"[T, {WIDTH}]")

    def _input(self, name: str, shape: tuple[int, ...], text: str) -> None:
        self.nodes.append(Node(name, "placeholder", name, meta=TensorMeta(shape, "float32", text)))

    def call(self, name: str, target: str, *args: Any) -> Ref:
        self.nodes.append(Node(name, "call_function", target, args))
        return Ref(name)

    def share(self, dim: int = 0) -> Ref:
        n = (self.T if dim == 0 else WIDTH) // self.p
        return self.call("mine", "aten.slice.Tensor", Ref("x"), dim, self.rank * n, self.rank * n + n)

    def summand(self) -> Ref:
        size = WIDTH // self.p
        text = f"[{WIDTH}, {WIDTH}/{self.p}@tp]" if self.p > 1 else f"[{WIDTH}, {WIDTH}]"
        self._input("w", (WIDTH, size), text)
        return self.call("y", "aten.linear.default", self.share(1), Ref("w"))

    def pieces(self, x: Ref, dim: int, turn: int = 0) -> list[Ref]:
        cut = self.call("cut", "aten.chunk.default", x, self.p, dim)
        found = [self.call(f"cut{i}", "operator.getitem", cut, i) for i in range(self.p)]
        return found[turn:] + found[:turn]

    def graph(self, out: Ref) -> Graph:
        meta = (TensorMeta((self.T, WIDTH), "float32", f"[T, {WIDTH}]"),)
        nodes = [*self.nodes, Node("output", "output", "output", ((out,),), meta=meta)]
        nodes.sort(key=lambda n: n.op != "placeholder")
        config = {"groups": {"tp": list(range(self.p))}, "tp_size": self.p, "world_size": self.p}
        return Graph(nodes, rank=self.rank, config=config)


def gathered(p: int, rank: int, how: str = "list") -> Graph:
    """all_gather into a list of tensors, into pieces of one, or read from the call's result."""
    b = Program(p, rank)
    mine = b.share()
    if how == "views":
        whole = b.call("e", "aten.empty_like.default", Ref("x"))
        into = b.pieces(whole, 0)
    else:
        into = [b.call(f"e{i}", "aten.empty_like.default", mine) for i in range(p)]
    b.call("done", "c10d.allgather_.default", (tuple(into),), (mine,), "tp")
    if how == "views":
        return b.graph(b.call("out", "aten.silu.default", Ref("e")))
    if how == "result":
        lists = b.call("lists", "operator.getitem", Ref("done"), 0)
        first = b.call("first", "operator.getitem", lists, 0)
        into = [b.call(f"r{i}", "operator.getitem", first, i) for i in range(p)]
    return b.graph(b.call("out", "aten.cat.default", tuple(into if how != "turned" else into[::-1]), 0))


def scattered(p: int, rank: int, turn: int = 0) -> Graph:
    """reduce_scatter of a sum's pieces."""
    b = Program(p, rank)
    pieces = b.pieces(b.summand(), 0, turn)
    into = b.call("e", "aten.empty_like.default", pieces[0])
    b.call("done", "c10d.reduce_scatter_.default", (into,), (tuple(pieces),), "tp", Other("SUM"))
    mine = b.call("z", "aten.mul.Tensor", into, into)
    return b.graph(b.call("out", "tensor_cast.all_gather.default", mine, 0, rank, tuple(range(p))))


def exchanged(p: int, rank: int, dim: int = 1) -> Graph:
    """all_to_all: shares of tokens become shards of features."""
    b = Program(p, rank)
    pieces = b.pieces(b.share(), 1)
    into = [b.call(f"e{i}", "aten.empty_like.default", piece) for i, piece in enumerate(pieces)]
    b.call("done", "c10d.alltoall_.default", tuple(into), tuple(pieces), "tp")
    mine = b.call("z", "aten.cat.default", tuple(into), 0)
    return b.graph(b.call("out", "tensor_cast.all_gather.default", mine, dim, rank, tuple(range(p))))


RIGHT = {
    "gather": lambda p, r: gathered(p, r),
    "gather into views": lambda p, r: gathered(p, r, "views"),
    "gather's result": lambda p, r: gathered(p, r, "result"),
    "scatter": scattered,
    "exchange": exchanged,
}
WRONG = {
    "gather in another order": lambda p, r: gathered(p, r, "turned"),
    "scatter of turned pieces": lambda p, r: scattered(p, r, 1),
    "exchange, gathered along tokens": lambda p, r: exchanged(p, r, 0),
}


def wholes(graph: Graph, p: int) -> tuple[list[dict[str, Any]], torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(p)
    x = torch.randn(2 * p, WIDTH, generator=generator, dtype=torch.float64)
    w = torch.randn(WIDTH, WIDTH, generator=generator, dtype=torch.float64)
    names = {n.name for n in graph.nodes if n.op == "placeholder"}
    given = [{"x": x.clone(), **({"w": w.chunk(p, 1)[r]} if "w" in names else {})} for r in range(p)]
    return given, x, w


@pytest.mark.parametrize("p", RANKS)
@pytest.mark.parametrize("name", RIGHT)
def test_right_lists_are_clean_and_equal(name: str, p: int) -> None:
    graphs = [RIGHT[name](p, r) for r in range(p)]
    given, x, w = wholes(graphs[0], p)
    want = {"gather into views": torch.nn.functional.silu(x), "scatter": (x @ w.T) ** 2}.get(name, x)
    for one in run(graphs, given, named_groups(graphs)):  # the calls as they are, by their own definition
        assert torch.allclose(one.outputs[0], want)
    for r in range(p):
        assert not engine.errors(engine.check(graphs[r])), engine.describe(engine.check(graphs[r]))
    a = analyse(graphs[-1])
    for verdict in (verify(a), verify(a, graphs=graphs)):
        assert verdict.equal and not verdict.taken, verdict


@pytest.mark.parametrize("p", RANKS[1:])
@pytest.mark.parametrize("name", WRONG)
def test_wrong_lists_are_reported(name: str, p: int) -> None:
    graphs = [WRONG[name](p, r) for r in range(p)]
    given, x, w = wholes(graphs[0], p)
    want = (x @ w.T) ** 2 if "scatter" in name else x
    outs = run(graphs, given, named_groups(graphs))
    assert any(o.outputs[0].shape != want.shape or not torch.allclose(o.outputs[0], want) for o in outs)
    for graph in graphs:
        assert engine.errors(engine.check(graph)), name


def test_a_list_of_another_length_is_refused() -> None:
    b = Program(2, 0)
    mine = b.share()
    into = b.call("e0", "aten.empty_like.default", mine)
    b.call("done", "c10d.allgather_.default", into, (mine,), "tp")
    report = engine.check(b.graph(into))
    assert [f.message for f in report.findings if f.code == "LC903"] == [
        "its lists do not hold one tensor a rank of the group"
    ]
