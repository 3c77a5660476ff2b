"""What Python shows of results: a short line for each, and the text report for `print(report)`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import layoutcheck
from layoutcheck.contracts import load_contract
from layoutcheck.cost.evaluate import time_graph
from layoutcheck.cost.hardware import load_hardware
from layoutcheck.cost.lift import lift
from layoutcheck.infer.solver.analysis import analyse
from layoutcheck.memory.graph_ledger import graph_memory
from layoutcheck.models import load_model
from layoutcheck.reports import render
from layoutcheck.roles import find_roles
from layoutcheck.rules.rulebook import RuleBook


@pytest.fixture
def fault(repo_root: Path) -> str:
    return str(repo_root / "examples" / "exports" / "shared_expert_fault.pt2")


def test_results_are_short(fault: str) -> None:
    analysis = analyse(fault)
    report = layoutcheck.check(fault)
    memory = graph_memory(analysis, {"T": 64})
    cost = lift(analysis)
    hardware = load_hardware("h100")
    solver, solution = analysis.solver, analysis.solution
    results: list[Any] = [
        *(report, *report.findings, analysis, analysis.graph, *analysis.graph.nodes, analysis.program),
        *(analysis.plan, analysis.mesh, solver, solution, solution.typing, solution.runner),
        *(memory, memory.ledger, memory.activations, cost, hardware, find_roles(analysis)),
        *(layoutcheck.diff(fault, fault), load_contract("dsa-cp-prefill"), load_model("glm-5.1")),
        *(RuleBook.load([]), time_graph(cost, hardware, {"T": 64})),
    ]
    for result in results:
        text = repr(result).replace(fault, "")
        assert len(text) < 200, text[:400]
        assert "\n" not in text


def test_a_report_prints_as_the_command_does(fault: str) -> None:
    report = layoutcheck.check(fault)
    assert f"{report}\n" == render([report], "text")
    assert repr(report) == f"<Report {fault}: 2 errors, 0 warnings, 0 notes; 185 nodes>"
    finding = report.findings[0]
    assert str(finding) in str(report) and str(finding).startswith("LC203 mixed-tokens  layers.0.mlp")
    assert repr(finding) == (
        "<Finding LC203 mixed-tokens at all_reduce: 'over tp every rank holds other tokens, and their parts ar...'>"
    )
