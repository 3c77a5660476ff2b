"""A repair that a finding prints, carried out word by word, leaves a graph without errors."""

from __future__ import annotations

import re
from fractions import Fraction
from math import prod
from typing import Any

import pytest
from support import engine, messages_graphs, messages_padding, messages_sums, messages_tokens
from support.builder import Json
from support.messages import CASES, Case
from support.repairs import repaired

FILES = (messages_graphs, messages_padding, messages_sums, messages_tokens)
FIX = re.compile(r"\s*fix (\d+)  (.*?)(?:  ([-+0].* bytes.*))?")

# A rule to paste is tried in test_messages; a value that is zero on all ranks but one has no form in a graph of one rank.
ELSEWHERE = re.compile(r"add a rule to a folder.*|zero \w+ on all ranks.*")

REPAIRS = [
    pytest.param(case, found[2], found[3] or "", id=f"{case.name}-{found[1]}")
    for case in CASES
    for line in case.text.splitlines()
    if (found := FIX.fullmatch(line)) and not ELSEWHERE.fullmatch(found[2])
]


def test_there_are_repairs() -> None:
    assert FILES and len(REPAIRS) > 40


@pytest.mark.parametrize(("case", "text", "price"), REPAIRS)
def test_a_repair_repairs(case: Case, text: str, price: str) -> None:
    """No error is left but what the repair says it leaves."""
    graph = case.build().graph()
    report = engine.check(repaired(graph, engine.check(graph), case.node, text))
    left = re.search(r"\(leaves (\w+) (\w+)", price)
    allowed = {left.groups()} if left else set()
    assert {(f.code, f.node) for f in report.errors} <= allowed, engine.describe(report)


def wire(graph: Json, report: Any) -> Fraction:
    """Bytes that a rank sends in all collectives, a ring's: an all_reduce is a reduce_scatter and an all_gather."""
    total = Fraction(0)
    for n in graph["nodes"]:
        kind = n["target"].removeprefix("tensor_cast.").removesuffix(".default")
        if kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
            of = report.layout_of(next(engine.refs(n)))
            ways, size = len(n["args"][-1]), prod(of.shape) * {"bfloat16": 2, "int64": 8}[of.dtype]
            share = {"all_reduce": Fraction(2, ways), "all_gather": Fraction(1)}.get(kind, Fraction(1, ways))
            total += share * (ways - 1) * size
    return total


@pytest.mark.parametrize(("case", "text", "price"), REPAIRS)
def test_a_repair_costs_what_it_says(case: Case, text: str, price: str) -> None:
    """The price is what the repaired program sends more than the faulty one."""
    graph = case.build().graph()
    before = engine.check(graph)
    better = repaired(graph, before, case.node, text)
    said = re.match(r"([-+]?) ?(\d+) bytes", price)
    assert said, price
    more = wire(better, engine.check(better)) - wire(graph, before)
    assert more == int(said[1] + said[2])
