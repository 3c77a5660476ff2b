"""Faults as findings: what is said, the operand that is meant, how to repair it."""

from __future__ import annotations

from collections.abc import Mapping

from layoutcheck.contracts.causes import Fault
from layoutcheck.contracts.causes import Group as Faults
from layoutcheck.contracts.model import Contract
from layoutcheck.contracts.ways import Way
from layoutcheck.findings import Finding, Fix, Operand, Place, Step
from layoutcheck.infer.issues.path import trail
from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.layouts import Layout, render
from layoutcheck.mesh import Group
from layoutcheck.roles.model import Roles

MAX_STEPS = 12


def finding(
    analysis: Analysis,
    contract: Contract,
    group: Group,
    roles: Roles,
    faults: Faults,
    errors: Mapping[int, str],
    fixes: tuple[Fix, ...],
) -> Finding:
    """The finding of faults that have one root each and are alike, with its repairs."""
    fault = faults.first
    p = analysis.program
    site = fault.site
    node = p.nodes[site.call]
    typing = analysis.solution.typing
    location = None
    if node.location is not None:
        location = Place(node.location.file, node.location.line, node.location.function or "")
    shown: tuple[Operand, ...] = ()
    steps: tuple[Step, ...] = ()
    of = typing.types[site.value] if site.value < p.n_values else None
    if isinstance(of, Layout):
        text = render(of, analysis.mesh.names())
        origin = p.nodes[p.value_call[site.value]].name
        shown = (Operand(p.name_of(site.value), site.slot, text, origin),)
        steps = tuple(trail(analysis, typing, site.value)[-MAX_STEPS:])
    return Finding(
        code=fault.code,
        node=node.name,
        message=_message(analysis, contract, group, roles, faults),
        module=node.module or "",
        location=location,
        operands=shown,
        path=steps,
        fixes=fixes,
        caused_by=_cause(fault, errors),
        consequences=_consequences(analysis, faults),
        operand=site.slot if site.slot >= 0 else None,
        details=tuple(f"contract {contract.name}: {fault.boundary.doc}" for _ in (0,) if fault.boundary.doc),
        graph=analysis.path,
    )


def _consequences(analysis: Analysis, faults: Faults) -> tuple[tuple[str, str], ...]:
    nodes = analysis.program.nodes
    others = sorted((*faults.faults[1:], *faults.followers), key=lambda fault: fault.site.call)
    pairs = dict.fromkeys((fault.code, nodes[fault.site.call].name) for fault in others)
    pairs.pop((faults.first.code, nodes[faults.first.site.call].name), None)
    return tuple(pairs)


def _where(roles: Roles, faults: Faults) -> str:
    layers = sorted({fault.site.layer for fault in faults.faults if fault.site.layer >= 0})
    if not layers:
        return ""
    if len(layers) == 1:
        times = roles.layers[layers[0]].times
        return f"layer {layers[0]}" + (f" (x {times})" if times > 1 else "") + ": "
    return f"layers {layers[0]} .. {layers[-1]} ({len(layers)} of {len(roles.layers)}): "


def _message(analysis: Analysis, contract: Contract, group: Group, roles: Roles, faults: Faults) -> str:
    fault = faults.first
    b = fault.boundary
    where = _where(roles, faults)
    by = _by(analysis, fault.ways)
    over = f"over {group.name}"
    if fault.code == "LC504":
        low, high = fault.wanted
        number = str(low) if low == high else f"{low} to {high}"
        place = "has" if b.role == "layer" else f"has before {b.title}"
        return f"{where}the layer {place} {len(fault.ways)} {fault.state} {over}{by}, and {contract.name} counts {number}"
    if fault.code == "LC503":
        wanted = " or ".join(b.via or ()) or "no conversion"
        return f"{where}{b.title} is reached{by}, and {contract.name} allows {wanted}"
    if fault.code == "LC505":
        return f"{where}the residual is handed on {fault.state} {over}{by}, and {contract.name} carries it {b.carry}"
    if b.require:
        wanted = "wants it " + " or ".join(b.require)
    elif fault.code == "LC501":
        wanted = f"allows at most {b.at_most}"
    else:
        wanted = f"wants at least {b.at_least}"
    return f"{where}{b.title} is {fault.state} {over}{by}, and {contract.name} {wanted}"


def _by(analysis: Analysis, ways: tuple[Way, ...]) -> str:
    if not ways:
        return ""
    nodes = analysis.program.nodes
    shown = [f"{way.kind} {nodes[way.call].name}" for way in ways[:4]]
    return " by " + ", ".join(shown) + (" ..." if len(ways) > 4 else "")


def _cause(fault: Fault, errors: Mapping[int, str]) -> str | None:
    """The node of a typing error that a fault follows from.

    What is too local for its reader may be an error of its own there: global positions that meet a share.
    """
    if fault.issue is not None:
        return fault.issue
    return errors.get(fault.site.call) if fault.code == "LC502" else None


def not_applied(
    analysis: Analysis,
    contract: Contract,
    roles: Roles,
    reason: str,
    faults: list[Faults],
    group: Group | None = None,
) -> Finding:
    """LC506, with what the contract would have had otherwise counted under it.

    What to do is advice, not a repair that was tried: the whole graph would be another one.
    """
    p = analysis.program
    nodes = p.nodes
    first = roles.layers[0].begin if roles.layers else len(nodes) - 1
    at = nodes[first] if nodes else None
    pairs: dict[tuple[str, str], None] = {}
    for entry in faults:
        pairs[(entry.first.code, nodes[entry.first.site.call].name)] = None
        pairs.update(dict.fromkeys(_consequences(analysis, entry)))
    details = [contract.doc] if contract.doc else []
    if faults and group is not None:
        details += [
            _ragged(analysis, roles, group),
            f"rewrite the graph as {contract.name} says: layoutcheck show --roles gives the places",
        ]
    return Finding(
        code="LC506",
        node=at.name if at is not None else "",
        message=f"contract {contract.name} was asked for and not applied: {reason}",
        module=(at.module or "") if at is not None else "",
        consequences=tuple(pairs),
        details=tuple(text for text in details if text),
        graph=analysis.path,
    )


def _ragged(analysis: Analysis, roles: Roles, group: Group) -> str:
    """What to do about a token count that the group does not divide; empty where it does."""
    size = group.size
    for block in roles.blocks:
        of = analysis.solution.typing.types[block.join.branch]
        if not isinstance(of, Layout) or not isinstance(size, int):
            continue
        for axis in of.axes:
            for f in axis:
                tokens = f.domain.extent
                if not f.domain.is_feature and isinstance(tokens, int) and tokens % size:
                    full = -(-tokens // size) * size
                    return f"pad the {tokens} tokens to {full}, a multiple of {group.name}'s {size} ranks"
    return ""
