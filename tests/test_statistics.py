"""`check --stats`: where layouts came from, and a note on an activation that was only assumed whole."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import shared
from support.builder import GraphBuilder
from support.engine import check

from layoutcheck.findings import Severity


def pair(layout: str | None = None, share: bool = False) -> GraphBuilder:
    """A column- and a row-parallel linear on an input whose tokens are static."""
    b = GraphBuilder()
    x = b.input("x", (16, 8), layout=layout)
    up, down = b.weight((4, 8)), b.weight((8, 4))
    out = b.all_reduce(b.linear(b.linear(x, up), down))
    b.output([b.all_gather(b.rank_slice(b.add(out, x))) if share else out])
    return b


def notes(report: object) -> list[tuple[str, str]]:
    return [(f.code, f.node) for f in report.findings if f.severity is Severity.NOTE]  # type: ignore[attr-defined]


def test_an_activation_that_nothing_says_anything_of_is_a_note() -> None:
    report = check(pair().graph())
    assert notes(report) == [("LC107", "x")]
    assert report.exit_code(strict=True) == 0
    assert report.statistics.defaulted == 1 and report.statistics.inferred == 2


def test_a_declaration_settles_it() -> None:
    report = check(pair("[T, 8]").graph())
    assert notes(report) == [] and report.statistics.declared == 1 and report.statistics.defaulted == 0


def test_a_share_that_is_cut_from_it_settles_it() -> None:
    report = check(pair(share=True).graph())
    assert notes(report) == [] and report.statistics.defaulted == 0


@pytest.mark.parametrize("reduced", [True, False])
def test_a_branch_that_alone_is_not_reduced_is_a_note(reduced: bool) -> None:
    """Smaller whole weights make the same graph right: what nothing settles is said. Of other sizes than the branch before."""
    b = GraphBuilder()
    x = b.input("x", (16, 8), layout="[T, 8]")
    x = b.add(x, b.all_reduce(b.linear(b.linear(x, b.weight((4, 8))), b.weight((8, 4)))))
    last = b.linear(b.linear(x, b.weight((6, 8))), b.weight((8, 6)))
    b.output([b.add(x, b.all_reduce(last) if reduced else last)])
    report = check(b.graph())
    assert report.errors == ()
    assert notes(report) == ([] if reduced else [("LC201", "add_1")])


@pytest.mark.parametrize("name", sorted(shared.CLEAN))
def test_the_shares_add_up_and_no_activation_is_defaulted(name: str) -> None:
    if name in shared.LARGE:
        pytest.skip("its layers are those of a smaller graph in this list")
    report = check(shared.load(name))
    found = report.statistics
    assert found.derived + found.declared + found.inferred + found.defaulted == found.values
    assert min(found.derived, found.declared, found.inferred, found.defaulted) >= 0
    assert notes(report) == []


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 5))
def test_on_one_device_nothing_is_defaulted(layers: int) -> None:
    b = GraphBuilder(groups={})
    x = b.input("x", (16, 8))
    for _ in range(layers):
        x = b.add(x, b.linear(b.linear(x, b.weight((4, 8))), b.weight((8, 4))))
    b.output([x])
    report = check(b.graph())
    assert report.findings == () and report.statistics.defaulted == 0
