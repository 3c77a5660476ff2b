"""Repairs of contract findings: candidates are carried out on a copy of the graph, which is solved and checked again.

What is printed makes its finding go away in all its layers and brings no other, of the typing or of the contract. A candidate
that leaves something over which follows from it (a slice of what is a share now, a reader that wants the old state) is
completed and tried once more.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from layoutcheck.contracts.candidates import Maker, Plan, candidates
from layoutcheck.contracts.causes import Fault
from layoutcheck.contracts.causes import Group as Faults
from layoutcheck.contracts.completing import complete
from layoutcheck.contracts.edits import edited
from layoutcheck.contracts.ways import conversion
from layoutcheck.errors import InputError
from layoutcheck.findings import Fix
from layoutcheck.infer.diagnosis.roots import all_issues
from layoutcheck.infer.issues.entries import is_error
from layoutcheck.infer.repairs.prices import FREE, Cost, paid_by
from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.layouts import Layout
from layoutcheck.mesh import Group
from layoutcheck.program import CALL, PLACEHOLDER
from layoutcheck.roles import Roles

ROUNDS = 6
MAX_FIXES = 3
# Calls that may be typed again for all repairs of a program's findings, and for those of one.
MAX_CALLS = 150_000
MAX_TRIALS = 16

Mark = tuple[object, ...]


@attrs.frozen(eq=False)
class Trial:
    """A graph with a plan's edits, solved: errors and departures that the program did not have, and what still stands."""

    analysis: Analysis
    errors: tuple[tuple[str, str], ...]
    faults: tuple[Fault, ...]
    idle: tuple[int, ...]
    stands: bool

    @property
    def clean(self) -> bool:
        """Whether the finding is gone and nothing else has come."""
        return not (self.errors or self.faults or self.idle or self.stands)


class Repairs:
    """Finds the repairs of a program's findings.

    Args:
        analysis, group, roles: the program, the contract's group, its structure.
        faults: all departures from the contract.
        check: all departures of another form of the program; None where the contract does not apply to it.
    """

    def __init__(
        self,
        analysis: Analysis,
        group: Group,
        roles: Roles,
        faults: list[Fault],
        check: Callable[[Analysis], list[Fault] | None],
    ) -> None:
        self.analysis, self.group, self.check = analysis, group, check
        self.maker = Maker(analysis, group, roles)
        self.known = {_mark(analysis, fault) for fault in faults}
        self.errors = _errors(analysis)
        self.sent = _sent(analysis)
        self.left = MAX_CALLS
        p = analysis.program
        self.inputs = {
            p.nodes[k].name: of
            for k, kind in enumerate(p.kind)
            if kind == PLACEHOLDER and isinstance(of := analysis.solution.typing.types[p.first[k]], Layout)
        }
        self.moves = frozenset(k for k in range(len(p.kind)) if conversion(analysis, group, k))

    def fixes(self, faults: Faults) -> tuple[Fix, ...]:
        """The repairs of one finding that were found to hold, in the order in which they were tried."""
        found: dict[str, tuple[int, Fix]] = {}
        trials = MAX_TRIALS
        for plan in candidates(self.maker, faults):
            if len(found) >= MAX_FIXES or trials <= 0:
                break
            done, spent = self._carried_out(plan, faults)
            trials -= spent
            if done is not None:
                cost = _sent(done[1].analysis) + -self.sent
                fix = done[0].fix(self.maker.roles, faults, cost)
                found.setdefault(fix.text, (len(done[0].steps), fix))
        fewest = min((steps for steps, _ in found.values()), default=0)
        prices = {fix.bytes for steps, fix in found.values() if steps == fewest}
        # What needs more steps than another repair of the same price is a detour, and so is what needs many more.
        return tuple(
            fix
            for steps, fix in found.values()
            if steps == fewest or (steps <= 2 * fewest and fix.bytes not in prices)
        )

    def _carried_out(self, plan: Plan, faults: Faults) -> tuple[tuple[Plan, Trial] | None, int]:
        """A plan with what completes it, tried, and how many graphs were solved; None where it does not repair the finding."""
        for spent in range(1, ROUNDS + 1):
            if self.left < len(self.analysis.program.kind):
                return None, spent
            self.left -= len(self.analysis.program.kind)
            trial = self._try(plan, faults)
            if trial is None:
                return None, spent
            if trial.clean:
                return (plan, trial), spent
            sites = {fault.site.layer for fault in faults.faults}
            more = complete(self.maker, self.moves, sites, plan, trial)
            if more is None:
                return None, spent
            plan = more
        return None, ROUNDS

    def _try(self, plan: Plan, faults: Faults) -> Trial | None:
        assert self.analysis.again is not None
        try:
            again = self.analysis.again(edited(self.analysis, self.group, plan.edits), self.inputs)
        except InputError:
            return None
        now = self.check(again)
        if now is None:
            return None
        # What is counted under a finding goes with it.
        mine = {_mark(self.analysis, fault) for fault in (*faults.faults, *faults.followers)}
        errors = tuple(sorted(_errors(again) - self.errors))
        fresh = tuple(fault for fault in now if _mark(again, fault) not in self.known)
        stands = any(_mark(again, fault) in mine for fault in now)
        return Trial(again, errors, fresh, self._idle(again, plan), stands)

    def _idle(self, again: Analysis, plan: Plan) -> tuple[int, ...]:
        """Conversions of the program that convert nothing any more: on another rank they would take a wrong part."""
        old, new = self.analysis.program, again.program
        found = []
        for k in sorted(self.moves):
            call = new.node_call.get(old.nodes[k].name)
            if call is not None and k not in plan.gone and not conversion(again, self.group, call):
                found.append(k)
        return tuple(found)


def _mark(analysis: Analysis, fault: Fault) -> Mark:
    """What makes a departure the same one in another form of the program."""
    if fault.code == "LC504":
        return (fault.code, fault.boundary.key, fault.site.layer, fault.state)
    return (fault.code, fault.boundary.key, analysis.program.nodes[fault.site.call].name)


def _errors(analysis: Analysis) -> set[tuple[str, str]]:
    """Errors of the typing, as (node, code)."""
    nodes = analysis.program.nodes
    entries = [*all_issues(analysis, analysis.solution), *analysis.solution.repeated]
    return {(nodes[k].name, issue.code) for k, _, issue in entries if is_error(issue)}


def _sent(analysis: Analysis) -> Cost:
    """Bytes that a rank sends in the collectives of a program, each taken once."""
    p = analysis.program
    types = analysis.solution.typing.types
    total = FREE
    for k, kind in enumerate(p.kind):
        if kind != CALL or p.instances[p.op[k]].rule is None:
            continue
        ins = tuple(types[v] for v in p.inputs[k])
        if ins and isinstance(ins[0], Layout):
            total = total + paid_by(analysis.solution.runner.ctx, p.instances[p.op[k]], ins, ins[0])
    return total
