"""Checking a graph: type it, find what is wrong, find what would repair it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from layoutcheck.contracts.report import check_roles, report_of
from layoutcheck.errors import InputError
from layoutcheck.findings import Finding, Report
from layoutcheck.graph import Graph
from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.symbols import parse_assumption

if TYPE_CHECKING:
    from layoutcheck.contracts.model import Contract


def check(
    graph: Graph | str | Path,
    *,
    groups: dict[str, Any] | None = None,
    rank: int | None = None,
    world: int | None = None,
    tokens: Sequence[tuple[str, int]] = (),
    layouts: dict[str, str] | None = None,
    assumptions: Sequence[str] = (),
    rules: Sequence[str | Path] = (),
    plan: str | Path | None = None,
    trust: dict[str, str] | None = None,
    contract: str | Path | Contract | None = None,
    others: Sequence[Graph] = (),
    counter_examples: bool = False,
) -> Report:
    """Type every tensor of an exported graph and say what is wrong.

    Args:
        graph: a graph, or the path of a `.pt2` archive or a graph in JSON.
        groups: sizes of groups by name, as in `{"tp": 16}`; a size may be a symbol's name.
        rank: the exporting rank, where the graph does not say it.
        world: number of ranks altogether.
        tokens: token axes of inputs, `(name, axis)`.
        layouts: declared layouts of inputs as text, `{"x": "[T/4@tp, 64]"}`.
        assumptions: what is known of sizes, `"T % 4 == 0"`.
        rules: folders of further op rules.
        plan: a file of weight layouts by name pattern.
        trust: boundaries whose shape-only reading is accepted, `{"moe.shared": "shape-only"}`.
        contract: the name of a shipped contract, a file, or a contract; what departs from it is reported as LC5xx.
        others: exports of the same program from other ranks.
        counter_examples: run the graph on ranks, and say of each LC1xx and LC2xx on which inputs it shows (needs torch).

    Returns:
        The report; `report.layout_of(name)` gives the layout of a value.

    Raises:
        InputError: the graph or an option is malformed.
    """
    analysis, report = report_of(
        graph,
        groups=groups or {},
        rank=rank,
        world=world,
        tokens=list(tokens),
        layouts=layouts or {},
        assumptions=list(assumptions),
        rules=list(rules),
        plan=plan,
        trust=trust,
        contract=contract,
        others=list(others),
    )
    if counter_examples:
        report = attrs.evolve(report, findings=_shown(analysis, report, others))
    return report


def _shown(analysis: Analysis, report: Report, others: Sequence[Graph]) -> tuple[Finding, ...]:
    """The findings with what running shows of them; on the ranks' own graphs where all of them are given."""
    try:
        from layoutcheck.ranks.shown import rank_graphs, with_counter_examples
    except ImportError:
        raise InputError(
            "running on ranks needs torch: install layoutcheck[torch]", "counter-examples"
        ) from None
    return with_counter_examples(analysis, report.findings, rank_graphs(analysis, others))


def check_options(
    *,
    contract: str | Path | None = None,
    rules: Sequence[str | Path] = (),
    plan: str | Path | None = None,
    trust: dict[str, str] | None = None,
    assumptions: Sequence[str] = (),
) -> None:
    """Read what the options name, without a graph: whatever is wrong with them is wrong for every graph.

    Raises:
        InputError: a contract, a rule, a plan or an assumption is malformed, or a role does not exist.
    """
    from layoutcheck.contracts import load_contract
    from layoutcheck.infer.solver.weight_plan import read_plan
    from layoutcheck.rules.rulebook import RuleBook

    if contract is not None:
        load_contract(contract)
    if rules:
        RuleBook.load([Path(folder) for folder in rules], builtin=False)
    if plan is not None:
        read_plan(plan)
    if trust:
        check_roles(trust)
    for text in assumptions:
        parse_assumption(text)
