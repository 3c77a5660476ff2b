"""A graph's report: typed, diagnosed, and held against a contract where one is asked for."""

from __future__ import annotations

import difflib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from layoutcheck.errors import InputError
from layoutcheck.findings import Finding, Place, Report
from layoutcheck.graph import Graph
from layoutcheck.infer.diagnosis.diagnose import diagnose
from layoutcheck.infer.solver.analysis import Analysis, analyse
from layoutcheck.infer.solver.dataflow import dataflow
from layoutcheck.program import REGION_BEGIN, REGION_COPY, REGION_END
from layoutcheck.regions.markers import find_regions
from layoutcheck.rules.rulebook import RuleBook

if TYPE_CHECKING:
    from layoutcheck.contracts.model import Contract


def report_of(
    graph: Graph | str | Path,
    *,
    trust: Mapping[str, str] | None = None,
    contract: str | Path | Contract | None = None,
    **options: Any,
) -> tuple[Analysis, Report]:
    """Return the solved analysis of a graph and the report of what is wrong with it; `options` are those of `analyse`.

    Raises:
        InputError: the graph or an option is malformed.
    """
    started = time.process_time()
    accepted = dict(trust or {})
    if accepted:
        check_roles(accepted)
    agreed = None
    if contract is not None:
        from layoutcheck.contracts.read import load_contract  # most checks ask for no contract

        agreed = load_contract(contract) if isinstance(contract, (str, Path)) else contract
        accepted = {**agreed.trusts(), **accepted}
    analysis = analyse(graph, trust=accepted, **options)
    if accepted:
        analysis.trusted = _trusted(analysis, accepted)
    report = attrs.evolve(diagnose(analysis, started), graph_maker=lambda: dataflow(analysis))
    broken = _broken_regions(analysis, options.get("rules") or ())
    if broken is not None:
        report = attrs.evolve(report, findings=(*report.findings, broken))
    if agreed is None:
        return analysis, report
    from layoutcheck.contracts.check import check_contract

    more = check_contract(analysis, agreed, findings=report.findings)
    return analysis, attrs.evolve(report, findings=(*report.findings, *more))


def _broken_regions(analysis: Analysis, rules: Sequence[str | Path]) -> Finding | None:
    """LC903 where the markers of repeated bodies do not pair up: nothing says then what is repeated how often."""
    p = analysis.program
    if not {REGION_BEGIN, REGION_END, REGION_COPY} & set(p.kind):
        return None
    try:
        find_regions(analysis.graph, RuleBook.load([Path(r) for r in rules]))
    except InputError as error:
        node = next(n for n in analysis.graph.nodes if n.name == error.where)
        place = node.location and Place(node.location.file, node.location.line, node.location.function or "")
        return Finding(
            "LC903",
            node.name,
            f"the markers of repeated bodies do not pair up: {error.message}",
            module=node.module or "",
            location=place,
            graph=analysis.path,
        )
    return None


def check_roles(trust: Mapping[str, str]) -> None:
    """Raise InputError for a role that there is none of."""
    from layoutcheck.roles import ROLES

    for role in trust:
        if role not in ROLES:
            near = difflib.get_close_matches(role, ROLES, 1)
            hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(ROLES)}"
            raise InputError(f"there is no role {role!r}{hint}", "--trust")


def _trusted(analysis: Analysis, trust: Mapping[str, str]) -> frozenset[int]:
    """Calls that add up different tokens in a branch whose shape-only reading is accepted."""
    from layoutcheck.roles import find_roles, role_at

    calls = {k for k, _, issue in analysis.solution.issues if issue.code == "LC203"}
    if not calls:
        return frozenset()
    roles = find_roles(analysis)
    return frozenset(k for k in calls if trust.get(role_at(analysis, k, roles) or "") == "shape-only")
