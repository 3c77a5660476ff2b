"""What a contract demands of calls: states in which operands and results may be, conversions that may not stand before an operand."""

from __future__ import annotations

import attrs

from layoutcheck.contracts.model import CONVERSIONS, Boundary, Contract
from layoutcheck.contracts.sites import sites_of
from layoutcheck.placement.base import Base
from layoutcheck.placement.problem import FULL, LOCAL, PARTIAL
from layoutcheck.program import CALL, REGION_BEGIN, REGION_END
from layoutcheck.roles import Roles

_STATES = {"Full": FULL, "Local": LOCAL, "Partial": PARTIAL}
ALL = frozenset((FULL, LOCAL, PARTIAL))
# What brings a value from one state to another, each a list of conversions in a row.
PATHS = {
    (PARTIAL, LOCAL): (("reduce_scatter",),),
    (LOCAL, FULL): (("all_gather",),),
    (PARTIAL, FULL): (("all_reduce",), ("reduce_scatter", "all_gather")),
    (FULL, LOCAL): (("slice",),),
}


@attrs.define
class Demand:
    """States that an operand (or a result) may be in, with the boundaries that say so."""

    states: frozenset[int] = ALL
    why: list[Boundary] = attrs.field(factory=list)


@attrs.define
class Demands:
    """A contract's demands by `(call, slot)` of operands, `(call, place)` of results, and conversions barred by operand."""

    operands: dict[tuple[int, int], Demand] = attrs.field(factory=dict)
    results: dict[tuple[int, int], Demand] = attrs.field(factory=dict)
    barred: dict[tuple[int, int], set[tuple[int, int]]] = attrs.field(factory=dict)
    sites: int = 0


# Attention runs on all tokens where a contract does not say otherwise: metadata of fused attention (query starts, lengths) describes
# whose rows the queries are, and no layout says so.
WHOLE = Boundary(
    "attention.core",
    "output",
    require=("Full",),
    doc="attention runs on all tokens unless a contract says otherwise",
)


def demands_of(base: Base, roles: Roles, contract: Contract) -> Demands:
    """All demands of a contract on the program below its conversions."""
    found = Demands()
    kept = set(base.kept)
    for boundary in contract.boundaries:
        if boundary.role == "layer":
            continue
        for site in sites_of(base.analysis, roles, boundary, base.tokens.group):
            if site.value >= base.analysis.program.n_values:
                continue
            found.sites += 1
            _states(base, found, boundary, site.call, site.slot, site.value, kept)
            if boundary.via is not None:
                _bars(base, roles, found, boundary, site.call, site.slot, site.value, kept)
    _one_state_in_norms(base, roles, found, kept)
    core = next((b for b in contract.boundaries if b.role == "attention.core"), WHOLE)
    if core.require == ("Full",):
        _whole_attention(base, roles, found, core, kept)
    return found


def _one_state_in_norms(base: Base, roles: Roles, found: Demands, kept: set[int]) -> None:
    """No conversion stands inside a norm that is spelled out."""
    p = base.analysis.program
    for norm in roles.norms:
        mine = set(norm.calls)
        for k in norm.calls:
            if k not in kept:
                continue
            for slot, v in enumerate(p.inputs[k]):
                if p.value_call[base.root(v)] in mine:
                    found.barred.setdefault((k, slot), set()).update(PATHS)


def _whole_attention(base: Base, roles: Roles, found: Demands, core: Boundary, kept: set[int]) -> None:
    """All between the entry of an attention block and the end of its core is on all tokens."""
    p = base.analysis.program
    for block in roles.blocks:
        if not block.core:
            continue
        last = block.core[-1]
        inside = set(block.entry)
        for k in sorted({*block.calls, *block.core}):
            if k > last or p.kind[k] != CALL or not inside.intersection(p.inputs[k]):
                continue
            inside.update(range(p.first[k], p.first[k] + p.outs[k]))
            if k not in kept:
                continue
            for place in range(p.outs[k]):
                demand = found.results.setdefault((k, place), Demand())
                demand.states &= {FULL}
                demand.why.append(core)


def _states(
    base: Base, found: Demands, b: Boundary, call: int, slot: int, value: int, kept: set[int]
) -> None:
    states = set(ALL)
    if b.require and "Sharded" not in b.require:
        states &= {_STATES[s] for s in b.require}
    if b.at_most is not None:
        states &= {s for s in ALL if s <= _STATES[b.at_most]}
    if b.at_least is not None:
        states &= {s for s in ALL if s >= _STATES[b.at_least]}
    if b.carry is not None and b.carry in _STATES:
        states &= {_STATES[b.carry]}
    if states == ALL:
        return
    p = base.analysis.program
    if slot >= 0 and call in kept and p.kind[call] == CALL:
        demand = found.operands.setdefault((call, slot), Demand())
    else:
        root = base.root(value)
        maker = p.value_call[root]
        demand = found.results.setdefault((maker, root - p.first[maker]), Demand())
    demand.states &= states
    demand.why.append(b)


def _bars(
    base: Base, roles: Roles, found: Demands, b: Boundary, call: int, slot: int, value: int, kept: set[int]
) -> None:
    """Conversions that a boundary does not allow, on its operand and on the views that lead to it."""
    assert b.via is not None
    away = {
        move
        for move, ways in PATHS.items()
        if not any(all(kind in b.via or kind not in CONVERSIONS for kind in way) for way in ways)
    }
    direct = away | {move for move, ways in PATHS.items() if not set(ways[0]) <= set(b.via)}
    if not direct:
        return
    p = base.analysis.program
    if slot >= 0 and call in kept and p.kind[call] == CALL:
        found.barred.setdefault((call, slot), set()).update(away)
    todo: list[int | None] = [value]
    seen: set[int] = set()
    while todo:
        at = todo.pop()
        if at is None or at >= p.n_values or at in seen:
            continue
        seen.add(at)
        maker = p.value_call[at]
        before = roles.flow.carried(at)
        if p.kind[maker] in (REGION_BEGIN, REGION_END):
            # A repeat hands on what the next one reads: neither what comes in nor what comes back is converted so. What is one
            # conversion here is not made up for by two.
            for marker in base.markers(maker):
                found.barred.setdefault((marker, 0), set()).update(direct)
                todo.append(p.inputs[marker][0])
        elif before is not None and maker in kept and p.kind[maker] == CALL and before in p.inputs[maker]:
            found.barred.setdefault((maker, p.inputs[maker].index(before)), set()).update(away)
        todo.append(before)
