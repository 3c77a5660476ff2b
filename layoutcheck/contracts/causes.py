"""Which of many faults are roots: a value that is too full makes everything computed from it too full.

A fault follows from another one if the value that it complains of was computed from one that is at fault already,
without a boundary in between that is as it should be. Of several faults of one value, the conversion that should not be
there is the root.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from layoutcheck.contracts.model import Boundary
from layoutcheck.contracts.sites import Site
from layoutcheck.contracts.ways import Way
from layoutcheck.findings import CODES, Finding, Severity
from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.roles.model import Roles

_RANK = {"LC503": 0, "LC501": 1, "LC502": 1, "LC505": 2, "LC504": 3}
_STEPS = 400


@attrs.define(eq=False)
class Fault:
    """A boundary that is not as it should be at one place.

    `state` is what it holds (for a count: the kind of conversion), `ways` the conversions that lead to it, `wanted` the
    count that is allowed. `issue` is the node of a typing error that the fault follows from.
    """

    code: str
    boundary: Boundary
    site: Site
    state: str
    ways: tuple[Way, ...]
    wanted: tuple[int, int] = (0, 0)
    cause: Fault | None = None
    issue: str | None = None

    @property
    def root(self) -> Fault:
        """The fault at the end of the chain of causes."""
        at = self
        while at.cause is not None:
            at = at.cause
        return at


@attrs.define
class Group:
    """Root faults of one boundary and code, with all that follows from them."""

    faults: list[Fault]
    followers: list[Fault]

    @property
    def first(self) -> Fault:
        """The first of them in the program."""
        return self.faults[0]


def grouped(
    analysis: Analysis, roles: Roles, faults: list[Fault], right: Iterable[int], errors: Mapping[int, str]
) -> list[Group]:
    """Faults by their roots, in order of the program.

    `right` are the values of boundaries that are as they should be, `errors` the calls with a typing error, each with the
    node of the finding that reports it.
    """
    _find_causes(analysis, roles, faults, frozenset(right), errors)
    groups: dict[tuple[object, ...], Group] = {}
    by_root: dict[int, Group] = {}
    for fault in sorted(faults, key=lambda f: (f.site.call, _RANK[f.code])):
        if fault.cause is None:
            key = (fault.boundary.key, fault.code, fault.state if fault.code == "LC504" else "", fault.issue)
            group = groups.setdefault(key, Group([], []))
            group.faults.append(fault)
            by_root[id(fault)] = group
    for fault in faults:
        if fault.cause is not None:
            by_root[id(fault.root)].followers.append(fault)
    return sorted(groups.values(), key=lambda group: (group.first.site.call, group.first.code))


def errors_of(analysis: Analysis, findings: Sequence[Finding] | None) -> dict[int, str]:
    """Calls with a typing error and the node of the finding under which it is reported; without findings, their own."""
    nodes = analysis.program.nodes
    if findings is None:
        wrong = [
            k for k, _, issue in analysis.solution.issues if CODES[issue.code].severity is Severity.ERROR
        ]
        return {k: nodes[k].name for k in wrong}
    found: dict[int, str] = {}
    calls = analysis.program.node_call
    for finding in findings:
        if finding.severity is not Severity.ERROR:
            continue
        for name in (*(node for _, node in finding.consequences), finding.node):
            if name in calls:
                found[calls[name]] = finding.caused_by or finding.node
    return found


def _find_causes(
    analysis: Analysis, roles: Roles, faults: list[Fault], right: frozenset[int], errors: Mapping[int, str]
) -> None:
    at_value: dict[int, Fault] = {}
    for fault in sorted(faults, key=lambda f: (_RANK[f.code], f.site.call)):
        if fault.boundary.role != "layer":
            at_value.setdefault(fault.site.value, fault)
    by_way: dict[int, Fault] = {}
    by_layer: dict[int, Fault] = {}
    for fault in faults:
        if fault.boundary.role == "layer":
            continue
        by_layer.setdefault(fault.site.layer, fault)
        first = at_value[fault.site.value]
        if first is not fault:
            fault.cause = first
        elif fault.code == "LC503":
            # One conversion that should not be there is one fault, whoever reads what it gives.
            wrong = next(way for way in fault.ways if way.kind not in (fault.boundary.via or ()))
            if by_way.setdefault(wrong.call, fault) is not fault:
                fault.cause = by_way[wrong.call]
            elif wrong.call in errors:
                fault.issue = errors[wrong.call]
            elif wrong.kind == "slice":
                # What cuts a value that is too full is there because of it.
                before = analysis.program.inputs[wrong.call][0]
                fault.cause, _ = _behind(analysis, roles, fault, at_value, errors, right, before)
        else:
            fault.cause, fault.issue = _behind(
                analysis, roles, fault, at_value, errors, right, fault.site.value
            )
    for fault in faults:
        # Counts of a whole layer say little beside what is wrong at a place in it.
        if fault.boundary.role == "layer" and fault.site.layer in by_layer:
            fault.cause = by_layer[fault.site.layer]


def _behind(
    analysis: Analysis,
    roles: Roles,
    fault: Fault,
    at_value: dict[int, Fault],
    errors: Mapping[int, str],
    right: frozenset[int],
    start: int,
) -> tuple[Fault | None, str | None]:
    """The nearest fault or typing error that a fault follows from, behind the value `start`."""
    flow = roles.flow
    p = analysis.program
    own = at_value.get(start)
    if start != fault.site.value and own is not None and own.root is not fault:
        return own, None
    seen = {start}
    todo = [start]
    while todo and len(seen) < _STEPS:
        value = todo.pop(0)
        call = flow.maker[value]
        parents = flow.parents[value]
        if call in errors:
            # What an operand of the wrong call has wrong comes first.
            for before in (*parents, *p.inputs[call]):
                other = at_value.get(before)
                if other is not None and other.root is not fault:
                    return other, None
            return None, errors[call]
        for before in parents:
            if before in seen or flow.kinds[before] != "A" or flow.is_index(before):
                continue
            seen.add(before)
            other = at_value.get(before)
            if other is not None and other.root is not fault:
                return other, None
            if before in right:
                continue
            todo.append(before)
    return None, None
