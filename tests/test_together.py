"""Exports from several ranks checked together: what one rank's export leaves open, the others settle."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import engine
from support.builder import DIALECTS, GraphBuilder, Json

from layoutcheck.errors import InputError

RANKS = range(4)


def program(rank: int, at: int | None = None, dialect: str = "tensor_cast", **more: Any) -> Json:
    """x -> this rank's share of it (or that of rank `at`) -> silu -> all_gather."""
    width, tokens = more.pop("width", 8), more.pop("T", 16)
    b = GraphBuilder(rank=rank, dialect=dialect, T=tokens, **more)
    x = b.input("x", (tokens, width), layout=f"[T, {width}]")
    b.output([b.all_gather(b.silu(b.rank_slice(x, at=at)))])
    return b.graph()


def found(main: Json, others: list[Json]) -> list[tuple[str, str]]:
    report = engine.check(main, others=[engine.load(other) for other in others])
    return [(f.code, f.node) for f in report.findings]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("main", RANKS)
def test_ranks_that_each_take_their_share_are_clean(main: int, dialect: str) -> None:
    others = [program(r, dialect=dialect) for r in RANKS if r != main]
    for some in (others, others[:1], others[::-1], []):
        assert found(program(main, dialect=dialect), some) == []


def test_the_layouts_are_those_of_one_rank_alone() -> None:
    alone = engine.check(program(2))
    together = engine.check(program(2), others=[engine.load(program(r)) for r in (0, 1, 3)])
    for name in ("x", "slice", "silu", "all_gather"):
        assert together.layout_of(name) is alone.layout_of(name)
    assert together.layout_text("silu") == "bf16[T/4@tp, 8]"


def test_one_rank_is_proof_of_nothing() -> None:
    """Rows 0 to 4 on rank 0 may be its share or a constant slice: alone it passes, beside rank 1's same rows it does not."""
    assert found(program(0), []) == []
    assert found(program(0), [program(1, at=0)]) == [("LC102", "all_gather")]
    assert found(program(1, at=0), [program(0)]) == [("LC102", "all_gather")]
    # the same file twice is no second witness
    with pytest.raises(InputError, match="two of the exports say that they are rank 0's"):
        found(program(0), [program(0)])


@given(st.lists(st.integers(0, 3), min_size=4, max_size=4), st.integers(0, 3))
def test_any_rows_on_any_rank(taken: list[int], main: int) -> None:
    """The main rank's slice is found just where it is not its own share, or another rank takes the same rows.

    Where it is, every other rank that takes rows of a third is found by its name.
    """
    others = [program(r, at=taken[r]) for r in RANKS if r != main]
    wrong = taken[main] != main or any(taken[r] == taken[main] for r in RANKS if r != main)
    astray = [r for r in RANKS if r != main and taken[r] != r]
    expected = [("LC102", "all_gather")] if wrong else [("LC102", "slice")] * len(astray)
    assert found(program(main, at=taken[main]), others) == expected


def test_the_order_of_others_means_nothing() -> None:
    for some in permutations([program(1), program(2, at=0), program(3)]):
        assert found(program(0), list(some)) == [("LC102", "all_gather")]


def test_a_constant_slice_that_is_meant_as_one() -> None:
    """The same first rows on every rank are a prefix, and right where they are used as one."""

    def prefix(rank: int) -> Json:
        b = GraphBuilder(rank=rank)
        x = b.input("x", (16, 8), layout="[T, 8]")
        head = b.slice(x, 0, 4)
        b.output([b.multiply(head, head)])
        return b.graph()

    report = engine.check(prefix(0), others=[engine.load(prefix(1))])
    assert not report.findings
    assert report.layout_text("mul") == "bf16[prefix(T, 0, 4), 8]"
    assert engine.check(prefix(0)).layout_text("mul") == "bf16[T/4@tp, 8]"


def test_graphs_need_not_be_alike() -> None:
    """A rank whose share is short pads it: calls that only one rank has are left alone."""

    def ragged(rank: int) -> Json:
        b = GraphBuilder(rank=rank, T=15)
        x = b.input("x", (15, 8), layout="[T, 8]")
        short = 3 if rank == 3 else 4
        rows = b.call("aten.slice.Tensor", x, 0, 4 * rank, 4 * rank + 4, shape=(short, 8))
        b.output([b.slice(b.all_gather(b.pad_rows(rows, 4 - short)), 0, 15)])
        return b.graph()

    for main in RANKS:
        said = found(ragged(main), [ragged(r) for r in RANKS if r != main])
        assert [code for code, _ in said if code != "LC902"] == []


def test_other_ranks_have_their_own_declared_inputs() -> None:
    """Options hold for all of the exports."""
    graphs = []
    for rank in (0, 1):
        graph = program(rank)
        del graph["nodes"][0]["meta"]["layout"]
        graphs.append(graph)
    report = engine.check(graphs[0], others=[engine.load(graphs[1])], layouts={"x": "[T, 8]"})
    assert not report.findings and report.layout_text("silu") == "bf16[T/4@tp, 8]"


ELSEWHERE = [
    pytest.param(program(1, width=12), id="another width"),
    pytest.param(program(1, T=32), id="another number of tokens"),
    pytest.param(program(1, ranks={"tp": [0, 1]}, groups={"tp": 2}), id="another group"),
]


@pytest.mark.parametrize("other", ELSEWHERE)
def test_a_rank_that_runs_another_program(other: Json) -> None:
    """Collectives of one group must meet: the same op on the same shape over the same ranks, in the same order."""
    assert found(program(0), [other])


def test_a_rank_without_the_collective() -> None:
    b = GraphBuilder(rank=1)
    b.output([b.silu(b.input("x", (16, 8), layout="[T, 8]"))])
    assert found(program(0), [b.graph()])


def test_another_rank_takes_the_rows_of_a_third() -> None:
    """Every rank's own graph may look right where rows are used alone; together one of them is not its share."""
    assert ("LC102", "slice") in found(program(0), [program(1, at=2)])
    assert found(program(0), [program(1), program(2), program(3)]) == []


def test_a_plan_holds_for_every_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that a plan cuts are cut on the other ranks as well: their collectives and slices are compared as such."""
    plan = tmp_path / "plan.json"
    plan.write_text('{"group": "tp", "weights": {"up*": "column", "down*": "row"}}', encoding="utf-8")

    def pair(rank: int) -> Json:
        b = GraphBuilder(rank=rank)
        x = b.input("x", (16, 8), layout="[T, 8]")
        b.output([b.all_reduce(b.linear(b.linear(x, b.weight((4, 8))), b.weight((8, 4))))])
        graph = b.graph()
        weights = [n["name"] for n in graph["nodes"] if n["op"] == "placeholder"][1:]
        for old, new in zip(weights, ("up", "down"), strict=True):
            for node in graph["nodes"]:
                _rename(node, old, new)
        return graph

    ranks: list[Any] = []
    monkeypatch.setattr(
        "layoutcheck.infer.solver.analysis.differences",
        lambda mine, others: ranks.extend([mine, *others]) or [],
    )
    report = engine.check(pair(0), others=[engine.load(pair(1))], plan=plan)
    assert report.findings == ()
    assert [len(one.solver.plan.declared) for one in ranks] == [3, 3]


def _rename(node: Json, old: str, new: str) -> None:
    if node["name"] == old:
        node["name"] = node["target"] = new
    node["args"] = [{"node": new} if a == {"node": old} else a for a in node["args"]]


def piece(rank: int, start: int, local: bool = False, op: str = "slice") -> Json:
    """x -> features [start : start + 2], or feature `start` alone, or piece `start` of four -> silu."""
    b = GraphBuilder(rank=rank, T=16)
    x = b.input("x", (16, 8), layout="[T, 8]")
    rows = 4 if local else 16
    if local:
        x = b.rank_slice(x)
    if op == "slice":
        y = b.call("aten.slice.Tensor", x, 1, start, start + 2, shape=(rows, 2))
    elif op == "select":
        y = b.call("aten.select.int", x, 1, start, shape=(rows,))
    else:
        meta = [((rows, 2), "bfloat16")] * 4
        y = b.call_many("aten.split.Tensor", x, 2, 1, metas=meta)[start]
    b.output([b.all_gather(b.silu(y)) if local else b.silu(y)])
    return b.graph()


@pytest.mark.parametrize("op", ("slice", "select"))
@pytest.mark.parametrize("local", (False, True))
def test_other_features_on_another_rank_are_reported(local: bool, op: str) -> None:
    """A type does not say which features a piece has: ranks that take different ones, and no shares, look alike."""
    shifted = [piece(r, (r + 1) % 4 * 2, local, op) for r in RANKS]
    for main in RANKS:
        others = [shifted[r] for r in RANKS if r != main]
        name = "slice_1" if local and op == "slice" else op
        assert [f for f in found(shifted[main], others) if f[1] == name] == [("LC102", name)]
    same = [piece(r, 4, local, op) for r in RANKS]
    assert found(same[0], same[1:]) == []


def test_features_of_a_rank_of_its_own_rows_are_reported() -> None:
    """Rows and columns cut over one group: blocks on the diagonal, which no gather puts together."""
    blocks = [piece(r, 2 * r, local=True) for r in RANKS]
    assert ("LC102", "slice_1") in found(blocks[1], [blocks[0], *blocks[2:]])
    assert found(piece(1, 2), [piece(r, 2 * r) for r in (0, 2, 3)]) == [("LC107", "output")]
