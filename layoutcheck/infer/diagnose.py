"""From issues to findings: roots, what follows from them, repairs and the path to the first divergence.

A repair is a changed operand (sliced, gathered, reduced, padded) or a dropped collective. A candidate is tried by answering
the call with what its rule says on the repaired operand and running the pass again; the one that leaves the fewest errors is
kept while the search goes on. What an earlier repair makes go away follows from it.
"""

from __future__ import annotations

import time
from typing import Any

import attrs

from layoutcheck.domains import Domain, Factor
from layoutcheck.findings import CODES, Evidence, Finding, Fix, Operand, Place, Report, Severity, Statistics
from layoutcheck.infer.analysis import Analysis
from layoutcheck.infer.boundary import boundary_issues
from layoutcheck.infer.call import Issue, Result
from layoutcheck.infer.oddities import odd_groups
from layoutcheck.infer.path import path_to, trail
from layoutcheck.infer.redundant import redundant
from layoutcheck.infer.repair import Candidate, candidates
from layoutcheck.infer.run import Key, Typing
from layoutcheck.infer.solve import Solution
from layoutcheck.infer.stale import stale_shapes
from layoutcheck.layouts import Layout, render
from layoutcheck.program import CALL, PLACEHOLDER, UNKNOWN

MAX_ROOTS = 400
MAX_TRIALS = 240
_PADDING = ("LC401", "LC402")

Entry = tuple[int, Key, Issue]


def is_error(issue: Issue, trusted: bool = False) -> bool:
    """Whether an issue is of severity error. A mixed sum at a trusted place is a warning for good."""
    if trusted and issue.code == "LC203":
        return False
    return CODES[issue.code].severity is Severity.ERROR and "warning" not in issue.hints


def diagnose(analysis: Analysis, started: float) -> Report:
    """All findings of a solved program."""
    at = time.process_time()
    solution = analysis.solution
    found = [
        *solution.issues,
        *odd_groups(analysis, solution.typing),
        *boundary_issues(analysis, solution.typing),
        *redundant(analysis, solution.typing),
    ]
    found.sort(key=lambda entry: entry[0])
    errors = [e for e in found if is_error(e[2], e[0] in analysis.trusted)]
    warnings = [e for e in [*found, *solution.repeated] if not is_error(e[2], e[0] in analysis.trusted)]
    alone, under = _repeat_errors(analysis, errors)
    roots, followers = _roots(analysis, [*errors, *alone], under)
    findings = [
        _finding(analysis, solution.typing, root, fixes, followers.get(id(root[2]), ()))
        for root, fixes in roots
    ]
    findings += [_finding(analysis, solution.typing, entry, (), ()) for entry in _unique(warnings)]
    findings += stale_shapes(analysis)
    stages = dict(analysis.stages)
    stages["diagnose"] = time.process_time() - at
    stages["total"] = time.process_time() - started
    return Report(
        findings=tuple(findings),
        statistics=_statistics(analysis, stages),
        graph_path=analysis.path,
        inferred=_inferred(analysis),
        layout_lookup=_lookup(analysis),
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


def _unique(entries: list[Entry]) -> list[Entry]:
    seen = set()
    out = []
    for k, key, issue in entries:
        mark = (k, issue.code, issue.text)
        if mark not in seen:
            seen.add(mark)
            out.append((k, key, issue))
    return out


def _first_per_call(entries: list[Entry]) -> list[Entry]:
    seen: set[int] = set()
    out = []
    for entry in entries:
        if entry[0] not in seen:
            seen.add(entry[0])
            out.append(entry)
    return out


def _roots(
    analysis: Analysis, errors: list[Entry], under: list[Entry]
) -> tuple[list[tuple[Entry, tuple[Fix, ...]]], dict[int, tuple[tuple[str, str], ...]]]:
    """Root causes with their fixes, and per root what follows from it.

    A root is an error that is there before and after everything before it is repaired, whichever way, at operands
    that hold the same in both, and not behind an error that only one of these ways leaves. A size literal that
    does not fit is no root downstream of another. The repair that lets the fewest of the errors stand is the one
    to go on with.
    """
    if not errors:
        return [], {}
    solver = analysis.solver
    solver.patched = {}
    roots: list[tuple[Entry, tuple[Fix, ...]]] = []
    standing = _first_per_call(errors)
    marks = {(e[0], e[2].code) for e in errors}
    possible = set(marks)
    trials = 0
    taken: set[int] = set()
    downstream: set[int] = set()
    behind: set[int] = set()
    while standing and len(roots) < MAX_ROOTS:
        k, key, issue = standing[0]
        best: Candidate | None = None
        best_score: tuple[int, int] = (1 << 30, 0)
        best_left: _Retried | None = None
        verified: list[tuple[tuple[int, int], Candidate]] = []
        survivors: set[tuple[int, str]] | None = None
        for option in candidates(analysis, solver.patched, k, key, issue):
            trials += 1
            if trials > MAX_TRIALS and best is not None:
                break
            retried = _retry(analysis, option.patches)
            if any(e[1] == key and e[0] == k for e in retried.errors) and analysis.program.op[k] >= 0:
                continue
            old = sum(1 for e in retried.errors if (e[0], e[2].code) in marks and e[0] not in taken)
            new = len(retried.errors) - old
            verified.append(((new, old), option))
            still = {(e[0], e[2].code) for e in retried.errors}
            survivors = still if survivors is None else survivors & still
            if (old, new) < best_score:
                best, best_left, best_score = option, retried, (old, new)
        alike = [e for e in standing if e[1] == key and e[2].code == issue.code] or [standing[0]]
        if best is None:
            # Nothing repairs it locally: go on as the rule recovered, without the complaint.
            solver.patched[key] = _silenced(analysis, key)
            best_left = _retry(analysis, {})
        else:
            solver.patched.update(best.patches)
        verified.sort(key=lambda entry: entry[0])
        fixes = tuple(option.fix(score[0] == 0) for score, option in verified)
        for entry in alike:
            taken.add(entry[0])
            roots.append((entry, fixes))
            downstream |= _downstream(analysis, entry[0])
            if issue.code == "LC301":
                # What a wrong group makes of the rest can't be repaired here.
                behind |= _downstream(analysis, entry[0]) | _feeding(analysis, entry[0])
        assert best_left is not None
        left = {(e[0], e[2].code): e for e in best_left.errors}
        if survivors is not None:
            possible &= survivors
        before = analysis.solution.typing.types
        clouded: set[int] = set(behind)
        for k_left, code in left:
            if (k_left, code) not in possible and k_left not in taken and k_left not in clouded:
                clouded |= _downstream(analysis, k_left)
        standing = [
            left[(e[0], e[2].code)]
            for e in _first_per_call(errors)
            if e[0] not in taken
            and e[0] not in clouded
            and (e[0], e[2].code) in left
            and (e[0], e[2].code) in possible
            and not _derailed(left[(e[0], e[2].code)])
            and _untainted(analysis, e, before, best_left.types, downstream)
            and not ("literal" in e[2].hints and e[0] in downstream)
        ]
    solver.patched = {}
    root_calls = {entry[0] for entry, _ in roots}
    rest = [e for e in errors if e[0] not in root_calls]
    roots, merged = _merge_same_origin(analysis, roots)
    return _attribute(analysis, roots, [*rest, *merged, *under])


def _merge_same_origin(
    analysis: Analysis, roots: list[tuple[Entry, tuple[Fix, ...]]]
) -> tuple[list[tuple[Entry, tuple[Fix, ...]]], list[Entry]]:
    """Several readers of one wrong value are one finding: same code, operands last changed at the same nodes."""
    typing = analysis.solution.typing
    seen: set[tuple[Any, ...]] = set()
    kept, merged = [], []
    for root in sorted(roots, key=lambda r: r[0][0]):
        k, _, issue = root[0]
        ins = analysis.program.inputs[k]
        origins = []
        for slot in issue.operands:
            if slot < len(ins):
                steps = trail(analysis, typing, ins[slot])
                origins.append(steps[-1].node if steps else "")
        mark = (issue.code, tuple(sorted(origins)))
        if origins and issue.code in _PADDING and mark in seen:
            merged.append(root[0])
            continue
        seen.add(mark)
        kept.append(root)
    return kept, merged


def _derailed(entry: Entry) -> bool:
    """Whether an operand holds tokens several times over, which only an unrepaired fault makes."""
    for of in entry[1][1:]:
        if isinstance(of, Layout):
            for axis in of.axes:
                for f in axis:
                    domain: Any = f.domain
                    for _ in range(16):
                        if domain.kind == "repeat" and not domain.args[2]:
                            return True
                        first = domain.args[0] if domain.args else None
                        if isinstance(first, Factor):
                            domain = first.domain
                        elif isinstance(first, Domain):
                            domain = first
                        else:
                            break
    return False


def _downstream(analysis: Analysis, k: int) -> set[int]:
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


def _feeding(analysis: Analysis, k: int) -> set[int]:
    """Calls that a call's inputs depend on: a wrong group changes what is concluded of the weights before it."""
    p = analysis.program
    found: set[int] = set()
    todo = list(p.inputs[k])
    while todo and len(found) < 64:
        call = p.value_call[todo.pop()]
        if call not in found and p.kind[call] == CALL:
            found.add(call)
            todo.extend(p.inputs[call])
    return found


def _untainted(
    analysis: Analysis, entry: Entry, before: list[Any], after: list[Any], downstream: set[int]
) -> bool:
    """Whether an issue stands by itself: its operands hold the same with and without the earlier faults.

    One operand is enough where that one depends on an earlier fault and is right all the same: what is wrong came later.
    """
    p = analysis.program
    ins = p.inputs[entry[0]]
    slots = [s for s in entry[2].operands if s < len(ins)] or list(range(len(ins)))
    same = [s for s in slots if before[ins[s]] is after[ins[s]]]
    return len(same) == len(slots) or any(p.value_call[ins[s]] in downstream for s in same)


@attrs.define
class _Retried:
    """The errors and layouts of a pass with repairs."""

    errors: list[Entry]
    types: list[Any]


def _retry(analysis: Analysis, patches: dict[Key, Result]) -> _Retried:
    solver = analysis.solver
    before = solver.patched
    solver.patched = {**before, **patches}
    solution = _resolve(analysis)
    solver.patched = before
    found = [
        *solution.issues,
        *odd_groups(analysis, solution.typing),
        *boundary_issues(analysis, solution.typing),
    ]
    return _Retried([e for e in found if is_error(e[2], e[0] in analysis.trusted)], solution.typing.types)


def _resolve(analysis: Analysis) -> Solution:
    """Type again with the patches, keeping what was learned of inputs."""
    return analysis.solver.solve(siblings=False)


def _silenced(analysis: Analysis, key: Key) -> Result:
    known = analysis.solver.patched.get(key) or analysis.solver.memo.get(key)
    if known is None:
        return Result(())
    return Result(known.outs, (), (), known.mutated)


def _attribute(
    analysis: Analysis, roots: list[tuple[Entry, tuple[Fix, ...]]], rest: list[Entry]
) -> tuple[list[tuple[Entry, tuple[Fix, ...]]], dict[int, tuple[tuple[str, str], ...]]]:
    """Count the errors that repairs made go away under the nearest root that they depend on."""
    p = analysis.program
    roots.sort(key=lambda r: r[0][0])
    reached: dict[int, int] = {}
    starts = {entry[0]: id(entry[2]) for entry, _ in roots}
    owner: list[int] = [0] * p.n_values
    call_owner: dict[int, int] = {}
    for k in range(len(p.kind)):
        mine = starts.get(k, 0)
        if not mine:
            for v in p.inputs[k]:
                if owner[v]:
                    mine = owner[v]
        if mine:
            call_owner[k] = mine
            for v in range(p.first[k], p.first[k] + p.outs[k]):
                owner[v] = mine
    followers: dict[int, list[tuple[str, str]]] = {}
    default = id(roots[0][0][2]) if roots else 0
    for k, _, issue in _unique(rest):
        followers.setdefault(call_owner.get(k, default), []).append((issue.code, p.nodes[k].name))
    del reached
    return roots, {root: tuple(found) for root, found in followers.items()}


def _finding(
    analysis: Analysis,
    typing: Typing,
    entry: Entry,
    fixes: tuple[Fix, ...],
    followers: tuple[tuple[str, str], ...],
) -> Finding:
    k, key, issue = entry
    p = analysis.program
    node = p.nodes[k]
    names = analysis.mesh.names()
    ins = p.inputs[k]
    texts = [render(x, names) if isinstance(x, Layout) else str(x) for x in key[1:]]
    shown = []
    for slot in issue.operands:
        if 0 <= slot < len(ins):
            value = ins[slot]
            source = p.nodes[p.value_call[value]].name
            shown.append(Operand(p.name_of(value), slot, texts[slot] if slot < len(texts) else "", source))
    message = issue.text
    for i, slot in enumerate(issue.operands):
        if slot < len(texts):
            message = message.replace(f"{{{i}}}", texts[slot])
    location = None
    if node.location is not None:
        location = Place(node.location.file, node.location.line, node.location.function or "")
    return Finding(
        code=issue.code,
        node=_node_name(analysis, k),
        message=message,
        severity=CODES[issue.code].severity if is_error(issue, k in analysis.trusted) else _softened(issue),
        module=node.module or "",
        location=location,
        operands=tuple(shown),
        path=path_to(analysis, typing, k, issue),
        fixes=fixes or _rule_fix(analysis, k, issue),
        consequences=followers,
        operand=issue.operands[-1] if issue.operands else None,
        graph=analysis.path,
    )


def _node_name(analysis: Analysis, k: int) -> str:
    return analysis.program.nodes[k].name


def _softened(issue: Issue) -> Severity:
    """What an error becomes where it is only a hint, or its place is trusted."""
    severity = CODES[issue.code].severity
    return Severity.WARNING if severity is Severity.ERROR else severity


def _rule_fix(analysis: Analysis, k: int, issue: Issue) -> tuple[Fix, ...]:
    if issue.code != "LC901":
        return ()
    from layoutcheck.infer.solve import recorded_meta
    from layoutcheck.rules.rulebook import suggestion

    p = analysis.program
    instance = p.instances[p.op[k]]
    shapes: list[Any] = []
    for v in p.inputs[k]:
        of = analysis.solution.typing.types[v]
        shapes.append(of.shape if isinstance(of, Layout) else None)
    for v in range(p.first[k], p.first[k] + p.outs[k]):
        meta = recorded_meta(p, v)
        shapes.append(meta.shape if meta is not None else None)
    text = suggestion(instance.target, len(p.inputs[k]), shapes)
    return (Fix(f"add a rule to a folder and pass it with --rules:\n{text}", "", 1, False),)


def _statistics(analysis: Analysis, stages: dict[str, float]) -> Statistics:
    p = analysis.program
    solution = analysis.solution
    declared = sum(1 for v in analysis.plan.declared)
    inferred = sum(1 for v, cuts in solution.cuts.items() if cuts)
    defaulted = 0
    for k, kind in enumerate(p.kind):
        if kind == UNKNOWN:
            defaulted += p.outs[k]
        elif kind == PLACEHOLDER:
            v = p.first[k]
            if v in analysis.plan.declared or solution.cuts.get(v):
                continue
            of = solution.typing.types[v]
            if (
                isinstance(of, Layout)
                and any(f.domain.kind == "variable" for a in of.axes for f in a)
                and analysis.plan.roles.get(v) == "activation"
            ):
                defaulted += 1
    values = p.n_values
    return Statistics(
        nodes=len(analysis.graph.nodes),
        values=values,
        derived=values - declared - inferred - defaulted,
        declared=declared,
        inferred=inferred,
        defaulted=defaulted,
        seconds=stages,
        notes=(f"{solution.passes} passes", f"{len(p.instances)} distinct calls of {len(p.nodes)}"),
    )


def _inferred(analysis: Analysis) -> tuple[tuple[str, str], ...]:
    names = analysis.mesh.names()
    out = []
    p = analysis.program
    for value in sorted(v for v, cuts in analysis.solution.cuts.items() if cuts):
        of = analysis.solution.typing.types[value]
        if isinstance(of, Layout):
            why = " (as in layers like it)" if value in analysis.solution.alike else ""
            node = p.nodes[p.value_call[value]].name
            spec = analysis.graph.inputs.get(node)
            out.append((spec.fqn if spec is not None and spec.fqn else node, render(of, names) + why))
    return tuple(out)


def _lookup(analysis: Analysis) -> Any:
    p, types = analysis.program, analysis.solution.typing.types

    def layout_of(name: str) -> Any:
        value = p.by_name.get(name)
        if value is None:
            spec = next((n for n, s in analysis.graph.inputs.items() if s.fqn == name), None)
            value = p.by_name.get(spec) if spec is not None else None
        if value is None:
            raise KeyError(name)
        return types[value]

    return layout_of


def evidence_of(analysis: Analysis, value: int) -> Evidence:
    """How a value's layout came to be known."""
    if value in analysis.plan.declared:
        return Evidence.DECLARED
    if analysis.solution.cuts.get(value):
        return Evidence.INFERRED
    return Evidence.DERIVED


evolve = attrs.evolve
