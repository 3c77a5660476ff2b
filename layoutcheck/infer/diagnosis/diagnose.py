"""From a solved program to a report: roots, what follows from them, and all the rest that was found."""

from __future__ import annotations

import time

from layoutcheck.findings import Report
from layoutcheck.infer.diagnosis.followers import follow
from layoutcheck.infer.diagnosis.roots import all_issues, find_roots
from layoutcheck.infer.diagnosis.statistics import inferred_layouts, lookup, statistics
from layoutcheck.infer.diagnosis.unsettled import unsettled_shares
from layoutcheck.infer.diagnosis.wording import finding_of
from layoutcheck.infer.issues.entries import Entry, is_error, unique
from layoutcheck.infer.issues.redundant import redundant
from layoutcheck.infer.issues.stale import stale_shapes
from layoutcheck.infer.issues.undeclared import undeclared_activations
from layoutcheck.infer.issues.unreduced import unreduced_branches
from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.layouts import Layout, render


def diagnose(analysis: Analysis, started: float) -> Report:
    """All findings of a solved program."""
    at = time.process_time()
    solution = analysis.solution
    found = [
        *all_issues(analysis, solution),
        *redundant(analysis, solution.typing),
        *undeclared_activations(analysis, solution.typing),
        *unreduced_branches(analysis, solution.typing),
    ]
    found += unsettled_shares(analysis, solution.typing, found)
    found.sort(key=lambda entry: entry[0])
    errors = [e for e in found if is_error(e[2], e[0] in analysis.trusted)]
    warnings = [e for e in [*found, *solution.repeated] if not is_error(e[2], e[0] in analysis.trusted)]
    alone, under = _repeat_errors(analysis, errors)
    search = find_roots(analysis, [*errors, *alone])
    followers, by_themselves, stale = follow(
        analysis, search, under, unique(warnings), stale_shapes(analysis)
    )
    findings = [
        finding_of(analysis, root.entry, root.fixes, tuple(followers.get(root.entry[0], ())))
        for root in search.roots
    ]
    findings += [finding_of(analysis, entry) for entry in [*analysis.apart, *by_themselves]]
    findings += stale
    stages = dict(analysis.stages)
    stages["diagnose"] = time.process_time() - at
    stages["total"] = time.process_time() - started
    return Report(
        findings=tuple(findings),
        statistics=statistics(analysis, stages),
        graph_path=analysis.path,
        inferred=inferred_layouts(analysis),
        layout_lookup=lookup(analysis),
        unused=analysis.plan.unused,
        layout_writer=lambda of: render(of, analysis.mesh.names()) if isinstance(of, Layout) else str(of),
    )


def _repeat_errors(analysis: Analysis, errors: list[Entry]) -> tuple[list[Entry], list[Entry]]:
    """Errors that only repeats of a region show: alone where its written body is right, else they follow from its faults."""
    alone: list[Entry] = []
    under: list[Entry] = []
    solution = analysis.solution
    for entry in solution.repeated:
        if not is_error(entry[2], entry[0] in analysis.trusted):
            continue
        spans = [(r[0], r[1]) for r in solution.typing.regions.values() if r[0] <= entry[0] <= r[1]]
        inside = any(low <= e[0] <= high for low, high in spans for e in errors)
        (under if inside else alone).append(entry)
    return alone, under
