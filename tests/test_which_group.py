"""Slices of rank 0 that fit several groups, or are the same first rows on every rank: what settles the reading, what is said else."""

from __future__ import annotations

import pytest
from support import engine
from support.builder import GraphBuilder, Json, Val

RANKS = {0: {"tp": [0, 1, 2, 3], "dp": [0, 4, 8, 12]}, 1: {"tp": [0, 1, 2, 3], "dp": [1, 5, 9, 13]}}
GROUPS = ("tp", "dp")


def builder(rank: int = 0) -> GraphBuilder:
    return GraphBuilder({"tp": 4, "dp": 4}, ranks=RANKS[rank], rank=rank)


def start(b: GraphBuilder) -> Val:
    """All tokens; both groups are in use, so that neither is for different tokens."""
    x = b.input("x", (16, 8), layout="[T, 8] +tp +dp")
    return b.all_reduce(b.all_reduce(x), group="dp")


def findings(graph: Json, **options: object) -> list[tuple[str, str, str]]:
    report = engine.check(graph, **options)
    return [(engine.code(f), engine.severity(f), f.node) for f in report.findings]


def gathered(group: str, steps: int = 0) -> tuple[Json, str]:
    b = builder()
    own = b.rank_slice(start(b), "tp")
    last = own
    for _ in range(steps):
        last = b.silu(last)
    b.output([b.all_gather(last, group=group)], ["[T, 8]"])
    return b.graph(), own.name


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("group", GROUPS)
def test_a_later_gather_settles_the_group(group: str, steps: int) -> None:
    graph, own = gathered(group, steps)
    assert findings(graph) == []
    assert engine.check(graph).layout_text(own) == f"bf16[T/4@{group}, 8]"


@pytest.mark.parametrize("group", GROUPS)
def test_an_operand_settles_the_group(group: str) -> None:
    """A share that came from a reduction meets the slice: it is one over the same group."""
    b = builder()
    x = start(b)
    own = b.rank_slice(x, "tp")
    share = b.reduce_scatter(b.input("y", (16, 8), layout=f"[T, 8] +{group}"), group=group)
    b.output([b.add(own, share)], [f"[T/4@{group}, 8]"])
    assert findings(b.graph()) == []
    assert engine.check(b.graph()).layout_text(own.name) == f"bf16[T/4@{group}, 8]"


def test_two_slices_of_one_program_may_be_over_two_groups() -> None:
    b = builder()
    x = start(b)
    owns = [b.silu(b.rank_slice(x, group)) for group in GROUPS]
    b.output(
        [b.all_gather(own, group=group) for own, group in zip(owns, GROUPS, strict=True)], ["[T, 8]"] * 2
    )
    assert findings(b.graph()) == []


def test_a_gather_over_a_third_group_is_still_wrong() -> None:
    b = GraphBuilder({"tp": 4, "dp": 4, "pp": 2}, ranks={**RANKS[0], "pp": [0, 16]})
    x = b.all_reduce(start(b), group="pp")
    own = b.rank_slice(x, "tp")
    b.output([b.all_gather(own, group="pp")])
    assert ("LC301", "error") in {(code, severity) for code, severity, _ in findings(b.graph())}


def unsettled(rank: int = 0) -> Json:
    b = builder(rank)
    own = b.rank_slice(start(b), "dp" if rank else "tp")
    b.output([b.silu(own)])
    return b.graph()


def test_nothing_settles_it() -> None:
    report = engine.check(unsettled())
    (note,) = report.findings
    assert (engine.code(note), engine.severity(note), note.node) == ("LC102", "note", "slice")
    assert note.message == (
        "read as this rank's share over tp (or over dp), bf16[T/4@tp, 8]; in an export of rank 0 the same first rows on every rank "
        "look alike, and nothing behind it settles which: another rank's export does (--together)"
    )


def test_another_ranks_export_settles_it() -> None:
    """On rank 1, the second group's number is 0 and the first group's is 1: its slice from row 0 can only be over the second."""
    mine, other = engine.load(unsettled()), engine.load(unsettled(rank=1))
    report = engine.check(mine, others=[other])
    assert [f for f in report.findings if engine.severity(f) != "note"] == []
    assert report.layout_text("slice") == "bf16[T/4@dp, 8]"


def test_rows_at_a_ranks_own_offset_need_no_note() -> None:
    b = GraphBuilder({"tp": 4}, rank=2)
    x = b.input("x", (16, 8), layout="[T, 8]")
    b.output([b.silu(b.rank_slice(x))])
    assert findings(b.graph()) == []
    b = GraphBuilder({"tp": 4})
    x = b.input("x", (16, 8), layout="[T, 8]")
    b.output([b.silu(b.rank_slice(x))])
    assert findings(b.graph()) == [("LC102", "note", "slice")]
    b = GraphBuilder({"tp": 4})
    x = b.input("x", (16, 8), layout="[T, 8]")
    b.output([b.silu(b.rank_slice(x))], ["[T/4@tp, 8]"])
    assert findings(b.graph()) == []
