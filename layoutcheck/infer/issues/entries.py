"""Issues at calls, as the search for roots and the findings handle them."""

from __future__ import annotations

from layoutcheck.findings import CODES, Severity
from layoutcheck.infer.calls.call import Issue
from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.infer.solver.run import Key

Entry = tuple[int, Key, Issue]


def is_error(issue: Issue, trusted: bool = False) -> bool:
    """Whether an issue is of severity error. A mixed sum at a trusted place is a warning for good."""
    if trusted and issue.code == "LC203":
        return False
    return CODES[issue.code].severity is Severity.ERROR and not {"warning", "note"} & set(issue.hints)


def softened(issue: Issue) -> Severity:
    """What an error becomes where it is only a hint, or its place is trusted."""
    if "note" in issue.hints:
        return Severity.NOTE
    severity = CODES[issue.code].severity
    return Severity.WARNING if severity is Severity.ERROR else severity


def unique(entries: list[Entry]) -> list[Entry]:
    seen = set()
    out = []
    for k, key, issue in entries:
        mark = (k, issue.code, issue.text)
        if mark not in seen:
            seen.add(mark)
            out.append((k, key, issue))
    return out


def first_per_call(entries: list[Entry]) -> list[Entry]:
    seen: set[int] = set()
    out = []
    for entry in entries:
        if entry[0] not in seen:
            seen.add(entry[0])
            out.append(entry)
    return out


def downstream(analysis: Analysis, k: int) -> set[int]:
    """Calls that depend on a call's outputs."""
    p = analysis.program
    found: set[int] = set()
    todo = list(range(p.first[k], p.first[k] + p.outs[k]))
    while todo:
        for reader, _ in analysis.uses.get(todo.pop(), ()):
            if reader not in found:
                found.add(reader)
                todo.extend(range(p.first[reader], p.first[reader] + p.outs[reader]))
    return found
