"""Rules that say something only within a program: repeats of a region, and rows that come back from where they were sent."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")


from support import engine  # noqa: E402

from layoutcheck.graph import Graph, Node, Ref, TensorMeta  # noqa: E402
from layoutcheck.infer.solver.analysis import analyse  # noqa: E402
from layoutcheck.ranks.interpreter import RankError, named_groups, run  # noqa: E402
from layoutcheck.ranks.verify import verify  # noqa: E402
from layoutcheck.regions.expand import expand  # noqa: E402

torch.set_num_threads(1)
WIDTH, CHOSEN = 6, 2


def token_counts(p: int) -> list[int]:
    return sorted({1, p - 1, p, p + 1, 2 * p + 1} - {0})


class Program:
    """One rank's graph on x [T, 6] and the chosen experts [T, 2]."""

    def __init__(self, p: int, rank: int, T: int) -> None:
        self.p, self.rank, self.T = p, rank, T
        self.rows = -(-T // p)
        self.pad = self.rows * p - T
        self.nodes: list[Node] = []
        for name, shape, dtype in (("x", (T, WIDTH), "float32"), ("ids", (T, CHOSEN), "int64")):
            text = f"[T, {shape[1]}]"
            self.nodes.append(Node(name, "placeholder", name, meta=TensorMeta(shape, dtype, text)))

    def call(self, name: str, target: str, *args: Any) -> Ref:
        self.nodes.append(Node(name, "call_function", target, args))
        return Ref(name)

    def share(self, x: str, of: int | None = None) -> Ref:
        """This rank's rows (or those of another one)."""
        at = (self.rank if of is None else of) * self.rows
        full = Ref(x)
        if self.pad:
            full = self.call(f"{x}_padded", "aten.constant_pad_nd.default", full, (0, 0, 0, self.pad), 0)
        return self.call(f"{x}_share", "aten.slice.Tensor", full, 0, at, at + self.rows)

    def whole(self, x: Ref) -> Ref:
        """All rows again."""
        out = self.call("gathered", "tensor_cast.all_gather.default", x, 0, self.rank, tuple(range(self.p)))
        return self.call("unpadded", "aten.slice.Tensor", out, 0, 0, self.T) if self.pad else out

    def graph(self, out: Ref) -> Graph:
        meta = (TensorMeta((self.T, WIDTH), "float32", f"[T, {WIDTH}]"),)
        config = {"groups": {"tp": list(range(self.p))}, "tp_size": self.p, "world_size": self.p}
        nodes = [*self.nodes, Node("output", "output", "output", ((out,),), meta=meta)]
        return Graph(nodes, rank=self.rank, config=config)


def given(T: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(T)
    x = torch.randn(T, WIDTH, generator=generator, dtype=torch.float64)
    return {"x": x, "ids": torch.randint(0, 4, (T, CHOSEN), generator=generator)}


def routed(p: int, rank: int, T: int, local: bool, ids: str = "own") -> Graph:
    """Rows of each token by expert, squared, and back; the mean over a token's experts."""
    b = Program(p, rank, T)
    x = b.share("x") if local else Ref("x")
    own = b.share("ids") if local else Ref("ids")
    back = {"own": own, "all": Ref("ids")}.get(ids)
    if back is None:
        back = b.call("another", "aten.flip.default", own, (1,))
    rows = b.call("rows", "tensor_cast.init_routing_v2.default", x, own)
    done = b.call("done", "aten.mul.Tensor", rows, rows)
    home = b.call("home", "tensor_cast.unpermute_tokens.default", done, back)
    out = b.call("out", "aten.mean.dim", home, (1,))
    return b.graph(b.whole(out) if local else out)


@pytest.mark.parametrize("p", (1, 2, 3, 4))
@pytest.mark.parametrize("local", (False, True))
def test_rows_come_back_to_their_tokens(p: int, local: bool) -> None:
    for T in token_counts(p):
        graphs = [routed(p, r, T, local) for r in range(p)]
        x = given(T)["x"]
        for one in run(graphs, [given(T) for _ in range(p)], named_groups(graphs)):
            assert torch.allclose(one.outputs[0], x * x)
        report = engine.check(graphs[-1])
        assert not engine.errors(report), engine.describe(report)
        assert verify(analyse(graphs[-1]), graphs=graphs).equal


@pytest.mark.parametrize("p", (2, 3, 4))
def test_rows_of_other_tokens_do_not_come_back(p: int) -> None:
    """The ids of all tokens are not those that the rank's own rows were sent by."""
    graphs = [routed(p, r, 2 * p, True, "all") for r in range(p)]
    with pytest.raises(RankError):
        run(graphs, [given(2 * p) for _ in range(p)], named_groups(graphs))
    assert engine.errors(engine.check(graphs[0]))


def repeated(p: int, rank: int, T: int, state: str, op: str) -> Graph:
    """A body once, and a marker for its second time."""
    b = Program(p, rank, T)
    x = b.share("x") if state == "local" else Ref("x")
    if state == "partial":
        b.nodes[0] = Node(
            "x", "placeholder", "x", meta=TensorMeta((T, WIDTH), "float32", f"[T, {WIDTH}] +tp")
        )
    begun = b.call("begin", "tensor_cast._internal_mark_region_begin.default", x, 0)
    inside = b.call("inside", op, begun, *((0.5,) if "Scalar" in op else ()))
    ended = b.call("end", "tensor_cast._internal_mark_region_end.default", inside, 0)
    out = b.call("copy", "tensor_cast._internal_copy_region.default", ended, 0)
    if state == "partial":
        return b.graph(b.call("out", "tensor_cast.all_reduce.default", out, rank, tuple(range(p))))
    return b.graph(b.whole(out) if state == "local" else out)


@pytest.mark.parametrize("p", (1, 2, 3, 4))
@pytest.mark.parametrize("state", ("full", "local", "partial"))
@pytest.mark.parametrize("op", ("aten.silu.default", "aten.mul.Scalar"))
def test_a_copied_region_is_its_body_again(state: str, op: str, p: int) -> None:
    """What is said of the marker holds of the body written out."""
    if state == "partial" and p == 1:
        return
    for T in token_counts(p):
        folded = [repeated(p, r, T, state, op) for r in range(p)]
        graphs = [expand(g) for g in folded]
        assert sum(n.target == op for n in graphs[0].nodes) == 2
        wrong = state == "partial" and op == "aten.silu.default"
        said = [analyse(g).solution for g in (folded[-1], graphs[-1])]
        assert bool(engine.errors(engine.check(folded[-1]))) == wrong
        last = [analyse(g).program.by_name for g in (folded[-1], graphs[-1])]
        if not wrong:
            name = {"full": "copy", "local": "gathered", "partial": "out"}[state]
            types = [s.typing.types[names[name]] for s, names in zip(said, last) if name in names]
            assert all(t is types[0] for t in types)
            assert verify(analyse(graphs[-1]), graphs=graphs, tokens=T).equal
