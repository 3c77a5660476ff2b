"""A trusted shape-only reading: a mixed sum of the shared expert stays a warning, and everything else an error."""

from __future__ import annotations

from typing import Any

import pytest
from support import shared
from support.engine import check, code, errors

from layoutcheck.errors import InputError
from layoutcheck.layouts import Layout, state_of

GRAPH = "mega_dsa_cp_ws4_r0.pt2"


def mixed(report: Any) -> list[Any]:
    return [f for f in report.findings if code(f) == "LC203"]


def test_the_named_role_is_trusted_for_good_and_its_result_is_local() -> None:
    graph = shared.load(GRAPH)
    report = check(graph, trust={"moe.shared": "shape-only"}, groups={"0": 4})
    found = mixed(report)
    assert [f.node for f in found] == ["all_reduce", "all_reduce_1"]
    assert errors(report) == [] and not any(f.fixes for f in found)
    for f in found:
        of = report.layout_of(f.node)
        assert isinstance(of, Layout) and [state_of(of, m) for m, _ in of.bound] == ["Local"]


@pytest.mark.parametrize("role", ["attention.core", "moe.routed", "moe.gate", "lm_head"])
def test_trusting_another_role_changes_nothing(role: str) -> None:
    graph = shared.load(GRAPH)
    plain = [(code(f), f.node, f.message, f.severity) for f in check(graph).findings]
    trusted = [
        (code(f), f.node, f.message, f.severity) for f in check(graph, trust={role: "shape-only"}).findings
    ]
    assert trusted == plain and plain


def test_other_faults_beside_a_trusted_one_stay_errors() -> None:
    graph = shared.load(GRAPH)
    gathers = [n for n in graph["nodes"] if "all_gather" in str(n.get("target"))]
    for gather in gathers:
        # every gather becomes an all_reduce of the share: the sizes do not fit any more
        gather["target"] = "_c10d_functional.all_reduce.default"
        gather["kwargs"]["reduce_op"] = "sum"
        del gather["kwargs"]["group_size"]
    report = check(graph, trust={"moe.shared": "shape-only"}, groups={"0": 4})
    assert gathers and any(code(f) != "LC203" for f in errors(report))


def test_a_role_that_there_is_none_of_is_bad_input() -> None:
    graph = shared.load(GRAPH)
    with pytest.raises(InputError, match=r"there is no role 'moe\.shred'; did you mean moe\.shared\?"):
        check(graph, trust={"moe.shred": "shape-only"})
