"""What follows from which root: errors that repairs make go away, and what a rule that recovered says of what it made up."""

from __future__ import annotations

from collections.abc import Sequence

from layoutcheck.findings import Finding
from layoutcheck.infer.diagnosis.roots import Search
from layoutcheck.infer.issues.entries import Entry, unique
from layoutcheck.infer.solver.analysis import Analysis

Followers = dict[int, list[tuple[str, str]]]


def follow(
    analysis: Analysis,
    search: Search,
    under: Sequence[Entry],
    warnings: Sequence[Entry],
    stale: Sequence[Finding],
) -> tuple[Followers, list[Entry], list[Finding]]:
    """Per root (its call) what is counted under it, and the warnings and stale shapes that stand by themselves.

    An error counts under the nearest root that it depends on. So does a warning that the repairs make go away, or that
    depends on a root without one; and a recorded shape, which is measured against what a rule made up to go on.
    """
    if not search.roots:
        return {}, list(warnings), list(stale)
    p = analysis.program
    owner = _owners(analysis, search)
    repaired = {root.entry[0]: root.repaired for root in search.roots}
    first = search.roots[0].entry[0]
    followers: Followers = {}
    for k, _, issue in unique([*search.rest, *under]):
        followers.setdefault(owner.get(k, first), []).append((issue.code, p.nodes[k].name))
    alone: list[Entry] = []
    for entry in warnings:
        k, _, issue = entry
        mine = owner.get(k)
        if mine is not None and (not repaired[mine] or (k, issue.code) not in search.left):
            followers.setdefault(mine, []).append((issue.code, p.nodes[k].name))
        else:
            alone.append(entry)
    fresh: list[Finding] = []
    for finding in stale:
        mine = owner.get(p.node_call.get(finding.node, -1))
        if mine is None:
            fresh.append(finding)
        else:
            followers.setdefault(mine, []).extend([(finding.code, finding.node), *finding.consequences])
    return followers, alone, fresh


def _owners(analysis: Analysis, search: Search) -> dict[int, int]:
    """The nearest root that each call depends on, for calls that depend on one."""
    p = analysis.program
    starts = {root.entry[0] for root in search.roots}
    owner: list[int] = [-1] * p.n_values
    calls: dict[int, int] = {}
    for k in range(len(p.kind)):
        mine = k if k in starts else -1
        if mine < 0:
            for v in p.inputs[k]:
                if owner[v] >= 0:
                    mine = owner[v]
        if mine >= 0:
            calls[k] = mine
            for v in range(p.first[k], p.first[k] + p.outs[k]):
                owner[v] = mine
    return calls
