"""Repairs that contract findings print, carried out word by word, make their finding go away and bring no other."""

from __future__ import annotations

import json
from fractions import Fraction
from math import prod
from pathlib import Path
from typing import Any

import pytest
from support import engine
from support.builder import DIALECTS, Json
from support.contract_repairs import ContractRepair
from support.programs import PROGRAMS, build
from support.sparse_decoder import STYLES, SparseDecoder

from layoutcheck.contracts import check_contract, contract_names, parse_contract
from layoutcheck.infer.solver.analysis import Analysis, analyse

# Programs of one layer, so that the words, which are those of the first layer, speak of all: (key, graph, contract).
DENSE = ("all_reduced_mlp",)
WRONG = (
    *("full_o_proj", "gathered_residual", "full_gate", "full_shared", "two_gathers"),
    *("local_attention", "all_reduced_mlp", "local_head"),
)


def programs(dialect: str, folder: Path) -> dict[str, tuple[Json, str]]:
    """Programs that depart from a contract in one place, and ones that were laid out by another contract."""
    found: dict[str, tuple[Json, str]] = {}
    own = folder / "carried.json"
    boundary = {"role": "residual", "operand": "output", "carry": "Full"}
    own.write_text(
        json.dumps({"format": "layoutcheck-contract/1", "name": "carried", "boundaries": [boundary]})
    )
    found["carried"] = (SparseDecoder(p=4, dialect=dialect, fixed=False).build(2), str(own))
    for wrong in WRONG:
        more = {"gated": wrong not in DENSE, "wrong": wrong}
        layers = 2 if wrong == "gathered_residual" else 1
        graph = SparseDecoder(p=4, dialect=dialect, fixed=False, **more).build(layers)
        found[wrong] = (graph, "dsa-cp-prefill")
    for style in STYLES:
        for gated in (True, False):
            graph = SparseDecoder(p=4, dialect=dialect, style=style, gated=gated, fixed=False).build(1)
            for name in contract_names():
                found[f"{style} {'experts' if gated else 'dense'} as {name}"] = (graph, name)
    return found


def analysed(graph: Json) -> Analysis:
    return analyse(
        engine.load(graph),
    )


def checked(graph: Json, contract: str) -> tuple[Any, set[tuple[str, str]]]:
    """The report, and all that it finds: findings of severity error and departures, with what is counted under them."""
    report = engine.check(graph, contract=contract)
    errors = [f for f in report.findings if engine.severity(f) == "error" or f.code.startswith("LC5")]
    found = {(f.code, f.node) for f in errors}
    return report, found | {pair for f in errors for pair in f.consequences}


def wire(graph: Json) -> Fraction:
    """Bytes that a rank sends in all collectives, a ring's: an all_reduce is a reduce_scatter and an all_gather."""
    report = engine.check(graph)
    total = Fraction(0)
    for n in graph["nodes"]:
        kind = n["target"].split(".")[1] if "." in n["target"] else ""
        kind = next((k for k in ("all_reduce", "all_gather", "reduce_scatter") if kind.startswith(k)), "")
        if kind:
            of = report.layout_of(next(engine.refs(n)))
            size = prod(of.shape) * 4
            total += (
                {"all_reduce": Fraction(2, 4), "all_gather": Fraction(1)}.get(kind, Fraction(1, 4)) * 3 * size
            )
    return total


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_is_printed_holds(dialect: str, tmp_path: Path) -> None:
    tried = 0
    kinds: set[str] = set()
    for key, (graph, contract) in programs(dialect, tmp_path).items():
        report, before = checked(graph, contract)
        for finding in report.findings:
            if not finding.code.startswith("LC5"):
                continue
            for fix in finding.fixes:
                text = (key, finding.code, finding.node, fix.text)
                assert fix.verified and fix.times == 1 and not fix.leaves, text
                assert len(finding.fixes) <= 3
                repaired = ContractRepair(graph, report, finding, dialect).carried_out(fix.text)
                _again, after = checked(repaired, contract)
                assert (finding.code, finding.node) not in after, text
                assert after <= before, (text, after - before)
                assert wire(repaired) - wire(graph) == Fraction(fix.bytes), text
                tried += 1
                kinds.add(finding.code)
    assert tried >= 15 and kinds == {"LC501", "LC502", "LC503", "LC504", "LC505"}


def test_words_are_those_of_one_layer_and_prices_are_a_layers() -> None:
    """In three layers the same repair as in one, three times."""
    for wrong in ("full_gate", "two_gathers", "full_o_proj"):
        fixes = []
        for layers in (1, 3):
            graph = SparseDecoder(p=4, wrong=wrong).build(layers)
            first = next(f for f in engine.check(graph, contract="dsa-cp-prefill").findings if f.fixes)
            fixes.append([(fix.text, fix.bytes, fix.times) for fix in first.fixes])
        assert fixes[0] and fixes[1] == [(text, price, 3) for text, price, _ in fixes[0]]


def test_what_cannot_be_repaired_at_its_place_has_no_repair() -> None:
    """A scattered branch cannot be added to a residual that is Full: that takes another graph, which nobody tried."""
    boundary = {"role": "residual", "operand": "branch", "via": "reduce_scatter"}
    document = {"format": "layoutcheck-contract/1", "name": "mine", "boundaries": [boundary]}
    graph = build("tensor_parallel", "c10d", PROGRAMS["tensor_parallel"][1][0])
    found = check_contract(analysed(graph), parse_contract(document))
    assert [f.code for f in found] == ["LC503"] and not found[0].fixes
