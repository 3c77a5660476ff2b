"""Which errors are root causes, which repairs make them go away, and what follows from them.

A repair is a changed operand (sliced, gathered, reduced, padded) or a dropped collective. A candidate is tried by answering
the call with what its rule says on the repaired operand and running the pass again; the one that leaves the fewest errors is
kept while the search goes on. What an earlier repair makes go away follows from it.
"""

from __future__ import annotations

from typing import Any

import attrs

from layoutcheck.domains import Domain, Factor
from layoutcheck.findings import Fix
from layoutcheck.infer.analysis import Analysis
from layoutcheck.infer.boundary import boundary_issues
from layoutcheck.infer.call import Result
from layoutcheck.infer.entries import Entry, first_per_call, is_error, unique
from layoutcheck.infer.oddities import odd_groups
from layoutcheck.infer.path import trail
from layoutcheck.infer.repair import Candidate, candidates
from layoutcheck.infer.run import Key
from layoutcheck.infer.solve import Solution
from layoutcheck.layouts import Layout
from layoutcheck.program import CALL

MAX_ROOTS = 400
MAX_TRIALS = 240
_PADDING = ("LC401", "LC402")


def find_roots(
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
    standing = first_per_call(errors)
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
            for e in first_per_call(errors)
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
    for k, _, issue in unique(rest):
        followers.setdefault(call_owner.get(k, default), []).append((issue.code, p.nodes[k].name))
    del reached
    return roots, {root: tuple(found) for root, found in followers.items()}
