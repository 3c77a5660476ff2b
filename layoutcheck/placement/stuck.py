"""What is said where no placement holds a contract: the call at which nothing fits, and the boundaries that meet there."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from layoutcheck.contracts.model import Contract
from layoutcheck.placement.base import Base
from layoutcheck.placement.demands import Demand, Demands
from layoutcheck.placement.problem import NAMES
from layoutcheck.placement.program_problem import ProgramProblem
from layoutcheck.roles import Roles

MAX_CALLS = 60


def stuck(
    base: Base, roles: Roles, demands: Demands, problem: ProgramProblem, op: int | None, contract: Contract
) -> str:
    """The message; `op` is the one of the problem that was left without a mode, None where that is not known."""
    text = f"no placement holds {contract.name}: its boundaries contradict each other or the weights' layout"
    if op is None:
        return text
    k = problem.calls[op][0]
    role = roles.of(k)
    text += f" at {base.analysis.program.nodes[k].name}" + (f" ({role})" if role else "")
    before, behind = (_nearest(base, demands, k, back) for back in (True, False))
    parts = [
        f"{where} it {_said(found)}" for where, found in (("before", before), ("behind", behind)) if found
    ]
    return text + (f"; {', '.join(parts)}" if parts else "")


def _said(found: Demand) -> str:
    wanted = " or ".join(NAMES[s] for s in sorted(found.states, reverse=True)) or "nothing"
    return f"{', '.join(dict.fromkeys(b.title for b in found.why))} wants {wanted}"


def _nearest(base: Base, demands: Demands, k: int, back: bool) -> Demand | None:
    """The first boundary before a call, its operands' among them, or behind it, its results' among them."""
    p = base.analysis.program
    todo, seen = deque([k]), {k}
    while todo and len(seen) < MAX_CALLS:
        at = todo.popleft()
        places = len(p.inputs[at]) if back else p.outs[at]
        table = demands.operands if back else demands.results
        for i in range(places):
            if (at, i) in table:
                return table[(at, i)]
        for other, demand in _beside(base, demands, at, back):
            if demand is not None:
                return demand
            if other not in seen:
                seen.add(other)
                todo.append(other)
    return None


def _beside(base: Base, demands: Demands, k: int, back: bool) -> Iterator[tuple[int, Demand | None]]:
    """Calls that give what a call reads, or read what it gives, with the boundary that lies between."""
    p = base.analysis.program
    if back:
        for v in p.inputs[k]:
            root = base.root(v)
            maker = p.value_call[root]
            yield maker, demands.results.get((maker, root - p.first[maker]))
        return
    mine = set(range(p.first[k], p.first[k] + p.outs[k]))
    for v, root in enumerate(base.alias):
        if root in mine:
            for reader, slot in base.analysis.uses.get(v, ()):
                yield reader, demands.operands.get((reader, slot))
