"""Checking a graph: type it, find what is wrong, find what would repair it."""

from __future__ import annotations

import difflib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from layoutcheck.errors import InputError
from layoutcheck.findings import Finding, Report
from layoutcheck.graph import Graph
from layoutcheck.infer.diagnosis.diagnose import diagnose
from layoutcheck.infer.solver.analysis import Analysis, analyse
from layoutcheck.infer.solver.dataflow import dataflow
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
    started = time.process_time()
    accepted = dict(trust or {})
    if accepted:
        check_roles(accepted)
    agreed = None
    if contract is not None:
        from layoutcheck.contracts import load_contract

        agreed = load_contract(contract) if isinstance(contract, (str, Path)) else contract
        accepted = {**agreed.trusts(), **accepted}
    analysis: Analysis = analyse(
        graph,
        groups=groups or {},
        rank=rank,
        world=world,
        tokens=list(tokens),
        layouts=layouts or {},
        assumptions=list(assumptions),
        rules=list(rules),
        plan=plan,
        trust=accepted,
        others=list(others),
    )
    if accepted:
        analysis.trusted = _trusted(analysis, accepted)
    report = attrs.evolve(diagnose(analysis, started), graph_maker=lambda: dataflow(analysis))
    if counter_examples:
        report = attrs.evolve(report, findings=_shown(analysis, report, others))
    if agreed is None:
        return report
    from layoutcheck.contracts import check_contract

    more = check_contract(analysis, agreed, findings=report.findings)
    return attrs.evolve(report, findings=(*report.findings, *more))


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


def check_roles(trust: dict[str, str]) -> None:
    """Raise InputError for a role that there is none of."""
    from layoutcheck.roles import ROLES

    for role in trust:
        if role not in ROLES:
            near = difflib.get_close_matches(role, ROLES, 1)
            hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(ROLES)}"
            raise InputError(f"there is no role {role!r}{hint}", "--trust")


def _trusted(analysis: Analysis, trust: dict[str, str]) -> frozenset[int]:
    """Calls that add up different tokens in a branch whose shape-only reading is accepted."""
    from layoutcheck.roles import find_roles, role_at

    calls = {k for k, _, issue in analysis.solution.issues if issue.code == "LC203"}
    if not calls:
        return frozenset()
    roles = find_roles(analysis)
    return frozenset(k for k in calls if trust.get(role_at(analysis, k, roles) or "") == "shape-only")
