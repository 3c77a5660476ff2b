"""Checking a solved program against a contract: findings LC501 to LC506.

What one boundary has wrong in many layers is one finding, at its first place, with the others counted under it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import attrs

from layoutcheck.contracts.applies import NO_LAYER, missing_group, other_kind
from layoutcheck.contracts.causes import Fault, errors_of, grouped
from layoutcheck.contracts.model import CHAIN, Boundary, Contract
from layoutcheck.contracts.read import load_contract
from layoutcheck.contracts.repairs import Repairs
from layoutcheck.contracts.sites import Site, layers_of, sites_of
from layoutcheck.contracts.ways import Way, ways_in, ways_to
from layoutcheck.contracts.wording import finding, not_applied
from layoutcheck.findings import Finding
from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.layouts import Layout, state_of
from layoutcheck.mesh import Group
from layoutcheck.roles import Roles, find_roles


def check_contract(
    analysis: Analysis,
    contract: Contract | str | Path,
    roles: Roles | None = None,
    findings: Sequence[Finding] | None = None,
) -> list[Finding]:
    """Where a program falls short of a contract.

    Args:
        analysis: the solved program.
        contract: a contract, the name of a shipped one, or a file.
        roles: the program's structure, where it is known already.
        findings: what checking without the contract found; what follows from one of these errors names it in
            `caused_by`. Without them, it names the node of the error next to it.

    Returns:
        Findings LC501 to LC505 in order of the program; a single LC506 where the contract speaks of nothing that the
        graph has, or where nothing in the graph was done as it says. Empty: the contract is met.

    Raises:
        InputError: there is no such contract, or its file is malformed.
    """
    if not isinstance(contract, Contract):
        contract = load_contract(contract)
    found = find_roles(analysis) if roles is None else roles
    reason = _unfit(analysis, contract, found)
    if reason is not None:
        return [not_applied(analysis, contract, found, reason, [])]
    group = analysis.mesh.groups[contract.group]
    checker = _Checker(analysis, contract, found, group)
    checker.run()
    if not checker.places:
        reason = "the graph has none of the boundaries that it speaks of"
        return [not_applied(analysis, contract, found, reason, [])]
    errors = errors_of(analysis, findings)
    faults = list(checker.faults)
    groups = grouped(analysis, found, checker.faults, checker.right, errors)
    if checker.telling and not checker.applied:
        reason = f"nothing that it wants Local over {group.name} is Local, the graph was not rewritten"
        return [not_applied(analysis, contract, found, reason, groups, group)]
    repairs = Repairs(analysis, group, found, faults, lambda again: faults_of(again, contract))
    return [
        finding(analysis, contract, group, found, entry, errors, repairs.fixes(entry)) for entry in groups
    ]


def faults_of(analysis: Analysis, contract: Contract) -> list[Fault] | None:
    """All that a program departs from a contract in, one by one; None where the contract has nothing to say to it."""
    roles = find_roles(analysis)
    if _unfit(analysis, contract, roles) is not None:
        return None
    checker = _Checker(analysis, contract, roles, analysis.mesh.groups[contract.group])
    checker.run()
    return checker.faults


def _unfit(analysis: Analysis, contract: Contract, roles: Roles) -> str | None:
    """Why a contract has nothing to say to a program; None where it has."""
    if not roles.layers:
        return NO_LAYER
    missing = missing_group(analysis, contract)
    if missing is not None:
        return missing
    other = other_kind(contract, roles)
    return None if other is None else f"it is {other}"


@attrs.define
class _Checker:
    analysis: Analysis
    contract: Contract
    roles: Roles
    group: Group
    faults: list[Fault] = attrs.Factory(list)
    right: set[int] = attrs.Factory(set)
    places: int = 0
    telling: int = 0
    applied: int = 0

    def run(self) -> None:
        """Visit all boundaries."""
        tells = telling(self.contract)
        for boundary in self.contract.boundaries:
            if boundary.role == "layer":
                self._layers(boundary)
                continue
            sites = sites_of(self.analysis, self.roles, boundary, self.group)
            self.places += len(sites)
            for site in sites:
                self._site(boundary, site, boundary in tells)
            if boundary.count:
                self._counted(boundary, sites)
        self.right -= {fault.site.value for fault in self.faults if fault.code != "LC504"}

    def _site(self, b: Boundary, site: Site, tells: bool) -> None:
        if site.value >= self.analysis.program.n_values:
            return
        of = self.analysis.solution.typing.types[site.value]
        if not isinstance(of, Layout):
            return
        state = self._state(of)
        ways = tuple(ways_to(self.analysis, self.roles, self.group, site.value))
        if tells:
            self.telling += 1
            self.applied += state == "Local"
        if state == "Mixed":
            # Mixed tokens are reported where they are added up (LC203); what they should be, no contract says.
            return
        codes = []
        code = _judge(b, state)
        if code is not None:
            codes.append(code)
        if b.carry is not None and state != b.carry:
            codes.append("LC505")
        if b.via is not None and any(way.kind not in b.via for way in ways):
            codes.append("LC503")
        self.faults.extend(Fault(code, b, site, state, ways) for code in codes)
        if not codes and (b.require or b.at_most or b.at_least or b.carry):
            self.right.add(site.value)

    def _state(self, of: Layout) -> str:
        """The one state over all mesh axes of the group; `Mixed` too where they differ."""
        states = {state_of(of, axis) for axis in self.group.axes}
        return states.pop() if len(states) == 1 else "Mixed"

    def _counted(self, b: Boundary, sites: list[Site]) -> None:
        """Conversions that lead to a boundary, layer by layer."""
        by_layer: dict[int, list[Site]] = {}
        for site in sites:
            by_layer.setdefault(site.layer, []).append(site)
        for mine in by_layer.values():
            ways = {w for site in mine for w in ways_to(self.analysis, self.roles, self.group, site.value)}
            self._compare(b, mine[0], sorted(ways, key=lambda w: w.call))

    def _layers(self, b: Boundary) -> None:
        for layer in layers_of(self.analysis, self.roles, b, self.group):
            self.places += 1
            ways = ways_in(self.analysis, self.roles, self.group, layer.begin, layer.end)
            self._compare(b, Site(layer.end, -1, layer.blocks[-1].join.total, layer.index), ways)

    def _compare(self, b: Boundary, site: Site, ways: list[Way]) -> None:
        for kind, low, high in b.count:
            mine = tuple(w for w in ways if w.kind == kind)
            if low <= len(mine) <= high:
                continue
            at = site
            if len(mine) > high:
                last = mine[-1].call
                at = attrs.evolve(site, call=last, slot=-1, value=self.analysis.program.first[last])
            self.faults.append(Fault("LC504", b, at, kind, mine, (low, high)))


def telling(contract: Contract) -> list[Boundary]:
    """The boundaries that show whether a contract was applied at all: those that carry a rank's tokens, else those
    that want them."""
    carried = [b for b in contract.boundaries if b.carry == "Local"]
    return carried or [b for b in contract.boundaries if b.require == ("Local",)]


def _judge(b: Boundary, state: str) -> str | None:
    """LC501 where a state is fuller than a boundary allows, LC502 where it is less full, None where it fits."""
    if b.require:
        if state in b.require:
            return None
        wanted = b.require[0]
        if state not in CHAIN or wanted not in CHAIN:
            return "LC501" if state == "Full" else "LC502"
        return "LC501" if CHAIN[state] < CHAIN[wanted] else "LC502"
    place = CHAIN.get(state, CHAIN["Local"])
    if b.at_most is not None and place < CHAIN[b.at_most]:
        return "LC501"
    if b.at_least is not None and place > CHAIN[b.at_least]:
        return "LC502"
    return None
