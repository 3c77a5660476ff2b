"""Which branch a call with mixed tokens belongs to, for findings that a declared trust softens."""

from __future__ import annotations

from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.layouts import Layout
from layoutcheck.roles.detect import find_roles
from layoutcheck.roles.model import Roles

_STEPS = 200


def role_at(analysis: Analysis, call: int, roles: Roles | None = None) -> str | None:
    """The role of a call, or that of the branch whose mixed tokens reach it.

    A reduction or a merge behind a branch has no role of its own, or that of what it is added to: where its operands are
    Mixed, the nearest calls with a role behind them tell. None where the branches behind it differ.
    Pass `roles` where they are known already; else they are found anew.
    """
    found = find_roles(analysis) if roles is None else roles
    own = found.of(call)
    if own == "moe.shared":
        return own
    p = analysis.program
    types = analysis.solution.typing.types
    seen: set[int] = set()
    todo = [v for v in p.inputs[call] if _mixed(types[v])]
    behind: set[str] = set()
    while todo and len(seen) < _STEPS:
        value = todo.pop()
        if value in seen:
            continue
        seen.add(value)
        maker = p.value_call[value]
        role = found.of(maker)
        if role is not None:
            behind.add(role)
            continue
        todo.extend(v for v in p.inputs[maker] if _mixed(types[v]))
    if len(behind) == 1:
        return behind.pop()
    return own if not behind else None


def _mixed(of: object) -> bool:
    return isinstance(of, Layout) and any(of.is_mixed(m) for m, _ in of.bound)


def shared_expert_calls(analysis: Analysis, roles: Roles | None = None) -> frozenset[int]:
    """All calls with the role `moe.shared`."""
    found = find_roles(analysis) if roles is None else roles
    return frozenset(k for k, role in found.calls.items() if role == "moe.shared")
