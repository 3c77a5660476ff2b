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
from layoutcheck.infer.calls.call import Result
from layoutcheck.infer.issues.boundary import boundary_issues
from layoutcheck.infer.issues.entries import Entry, downstream, first_per_call, is_error
from layoutcheck.infer.issues.oddities import odd_groups
from layoutcheck.infer.issues.path import trail
from layoutcheck.infer.repairs.moves import completions
from layoutcheck.infer.repairs.repair import Candidate, candidates
from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.infer.solver.run import Key
from layoutcheck.infer.solver.solve import Solution
from layoutcheck.layouts import Layout
from layoutcheck.program import CALL

MAX_ROOTS = 400
MAX_TRIALS = 240
_PADDING = ("LC401", "LC402")


@attrs.frozen(eq=False)
class Root:
    """A root cause with its repairs; `repaired` where the search went on with one of them."""

    entry: Entry
    fixes: tuple[Fix, ...]
    repaired: bool


@attrs.frozen(eq=False)
class Search:
    """Root causes in order of calls, the errors that are none, and the issues of any kind that all repairs together leave."""

    roots: list[Root]
    rest: list[Entry]
    left: set[tuple[int, str]]


@attrs.define
class _Trial:
    """A pass with repairs: its errors, its layouts, and how many of the errors are old and new ones."""

    option: Candidate | None
    errors: list[Entry]
    types: list[Any]
    fresh: list[Entry]
    old: int = 0


def find_roots(analysis: Analysis, errors: list[Entry]) -> Search:
    """Root causes with their fixes.

    A root is an error that is there before and after everything before it is repaired, whichever way, at operands
    that hold the same in both, and not behind an error that only one of these ways leaves. A size literal that
    does not fit is no root downstream of another. The repair that lets the fewest of the errors stand is the one
    to go on with.
    """
    if not errors:
        return Search([], [], set())
    solver = analysis.solver
    solver.patched = {}
    roots: list[Root] = []
    standing = first_per_call(errors)
    marks = {(e[0], e[2].code) for e in errors}
    possible = set(marks)
    taken: set[int] = set()
    behind_roots: set[int] = set()
    behind: set[int] = set()
    budget = MAX_TRIALS
    while standing and len(roots) < MAX_ROOTS:
        _, key, issue = standing[0]
        tried, spent = _try_all(analysis, standing[0], marks, taken, budget)
        budget -= spent
        alike = [e for e in standing if e[1] == key and e[2].code == issue.code] or [standing[0]]
        best = min(tried, key=lambda t: (t.old, len(t.fresh)), default=None)
        if best is None or best.option is None:
            # Nothing repairs it locally: go on as the rule recovered, without the complaint.
            solver.patched[key] = _silenced(analysis, key)
            best = _retry(analysis, None, marks, taken)
        else:
            solver.patched.update(best.option.patches)
            solver.given = {**solver.given, **best.option.given}
        taken.update(entry[0] for entry in alike)
        for entry in _each_site(alike, best.option):
            roots.append(Root(entry, _fixes(analysis, entry[0], tried), bool(tried)))
            behind_roots |= downstream(analysis, entry[0])
            if issue.code == "LC301":
                # What a wrong group makes of the rest can't be repaired here.
                behind |= downstream(analysis, entry[0]) | _feeding(analysis, entry[0])
        for trial in tried:
            possible &= {(e[0], e[2].code) for e in trial.errors}
        left = {(e[0], e[2].code): e for e in best.errors}
        before = analysis.solution.typing.types
        clouded: set[int] = set(behind)
        for k_left, code in left:
            if (k_left, code) not in possible and k_left not in taken and k_left not in clouded:
                clouded |= downstream(analysis, k_left)
        standing = [
            left[(e[0], e[2].code)]
            for e in first_per_call(errors)
            if e[0] not in taken
            and e[0] not in clouded
            and (e[0], e[2].code) in left
            and (e[0], e[2].code) in possible
            and not _derailed(left[(e[0], e[2].code)])
            and _untainted(analysis, e, before, best.types, behind_roots)
            and not ("literal" in e[2].hints and e[0] in behind_roots)
        ]
    final = all_issues(analysis, _resolve(analysis))
    solver.patched, solver.given = {}, {}
    roots.sort(key=lambda root: root.entry[0])
    root_calls = {root.entry[0] for root in roots}
    rest = [e for e in errors if e[0] not in root_calls]
    roots, merged = _merge_same_origin(analysis, roots)
    return Search(roots, [*rest, *merged], {(e[0], e[2].code) for e in final})


def _each_site(alike: list[Entry], best: Candidate | None) -> list[Entry]:
    """Of errors that are alike, those that are repaired by changes of their own: the first at each of the calls to change."""
    if best is None or best.site is None:
        return alike
    sites: dict[int | None, Entry] = {}
    for entry in alike:
        sites.setdefault(best.site(entry[0]), entry)
    return list(sites.values())


def _try_all(
    analysis: Analysis, entry: Entry, marks: set[tuple[int, str]], taken: set[int], budget: int
) -> tuple[list[_Trial], int]:
    """Trials of the candidates that make an error go away, and how many passes that took."""
    k, key, issue = entry
    tried: list[_Trial] = []
    spent = 0
    for option in candidates(analysis, analysis.solver.patched, k, key, issue):
        if spent >= budget and tried:
            break
        spent += 1
        trial = _retry(analysis, option, marks, taken)
        if _stands(analysis, entry, trial):
            continue
        if trial.fresh and spent < budget:
            for more in completions(analysis, option, k, key, trial.fresh):
                spent += 1
                completed = _retry(analysis, more, marks, taken)
                if len(completed.fresh) < len(trial.fresh) and not _stands(analysis, entry, completed):
                    trial = completed
        tried.append(trial)
    return tried, spent


def _stands(analysis: Analysis, entry: Entry, trial: _Trial) -> bool:
    """Whether an error is still there; a repair at the output changes what leaves, which no pass types."""
    k, key, issue = entry
    if analysis.program.op[k] < 0 or trial.option is None:
        return False
    if key in trial.option.patches:
        return any(e[0] == k and e[1] == key for e in trial.errors)
    return any(e[0] == k and e[2].code == issue.code for e in trial.errors)


def _fixes(analysis: Analysis, k: int, tried: list[_Trial]) -> tuple[Fix, ...]:
    """What to print of the trials: those that leave nothing new, else those that leave the least; free ones first."""
    fewest = min((len(trial.fresh) for trial in tried), default=0)
    kept = [trial for trial in tried if len(trial.fresh) == fewest]
    kept.sort(key=lambda trial: (trial.old, trial.option is not None and trial.option.cost.sign > 0))
    times = _runs(analysis, k)
    names = analysis.program.nodes
    fixes: dict[str, Fix] = {}
    for trial in kept:
        if trial.option is not None:
            leaves = tuple((e[2].code, names[e[0]].name) for e in trial.fresh)
            fix = trial.option.fix(k, times, tuple(dict.fromkeys(leaves)))
            fixes.setdefault(fix.text, fix)
    return tuple(fixes.values())


def _runs(analysis: Analysis, k: int) -> int:
    """How often a call runs: in a repeated region once for the body and once for each copy."""
    repeats = analysis.solution.runner.repeats
    times = 1
    for region, span in analysis.solution.typing.regions.items():
        if span[0] <= k <= span[1]:
            times *= repeats[region].runs
    return times


def _merge_same_origin(analysis: Analysis, roots: list[Root]) -> tuple[list[Root], list[Entry]]:
    """Several readers of one wrong value are one finding: same code, operands last changed at the same nodes."""
    typing = analysis.solution.typing
    seen: set[tuple[Any, ...]] = set()
    kept: list[Root] = []
    merged: list[Entry] = []
    for root in roots:
        k, _, issue = root.entry
        ins = analysis.program.inputs[k]
        origins = []
        for slot in issue.operands:
            if slot < len(ins):
                steps = trail(analysis, typing, ins[slot])
                origins.append(steps[-1].node if steps else "")
        mark = (issue.code, tuple(sorted(origins)))
        if origins and issue.code in _PADDING and mark in seen:
            merged.append(root.entry)
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
    analysis: Analysis, entry: Entry, before: list[Any], after: list[Any], behind_roots: set[int]
) -> bool:
    """Whether an issue stands by itself: its operands hold the same with and without the earlier faults.

    One operand is enough where that one depends on an earlier fault and is right all the same: what is wrong came later.
    """
    p = analysis.program
    ins = p.inputs[entry[0]]
    slots = [s for s in entry[2].operands if s < len(ins)] or list(range(len(ins)))
    same = [s for s in slots if before[ins[s]] is after[ins[s]]]
    return len(same) == len(slots) or any(p.value_call[ins[s]] in behind_roots for s in same)


def _retry(
    analysis: Analysis, option: Candidate | None, marks: set[tuple[int, str]], taken: set[int]
) -> _Trial:
    """Type the program with what is repaired so far and one more candidate."""
    solver = analysis.solver
    before, given = solver.patched, solver.given
    cuts, same = {v: list(found) for v, found in solver.cuts.items()}, dict(solver.same)
    if option is not None:
        solver.patched, solver.given = {**before, **option.patches}, {**given, **option.given}
    solution = _resolve(analysis)
    # A wrong group is seen in the op, not in its answer.
    found = [e for e in all_issues(analysis, solution) if e[2].code != "LC301" or e[1] not in solver.patched]
    solver.patched, solver.given, solver.cuts, solver.same = before, given, cuts, same
    errors = [e for e in found if is_error(e[2], e[0] in analysis.trusted)]
    fresh = [e for e in errors if (e[0], e[2].code) not in marks]
    old = sum(1 for e in errors if (e[0], e[2].code) in marks and e[0] not in taken)
    return _Trial(option, errors, solution.typing.types, fresh, old)


def all_issues(analysis: Analysis, solution: Solution) -> list[Entry]:
    """Issues of the calls, of groups and of the output."""
    return [
        *solution.issues,
        *odd_groups(analysis, solution.typing),
        *boundary_issues(analysis, solution.typing),
    ]


def _resolve(analysis: Analysis) -> Solution:
    """Type again with the patches, keeping what was learned of inputs."""
    return analysis.solver.solve(siblings=False)


def _silenced(analysis: Analysis, key: Key) -> Result:
    known = analysis.solver.patched.get(key) or analysis.solver.memo.get(key)
    if known is None:
        return Result(())
    return Result(known.outs, (), (), known.mutated)
