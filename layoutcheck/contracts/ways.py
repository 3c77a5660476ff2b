"""Conversions: which calls change a value's layout over a group, and which of them lie between a value and its origin."""

from __future__ import annotations

import attrs

from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.infer.solver.one_call import make_call
from layoutcheck.layouts import Layout
from layoutcheck.mesh import Group
from layoutcheck.program import CALL
from layoutcheck.roles.model import Roles
from layoutcheck.rules.kinds import CONVERTING
from layoutcheck.transforms.exchanges import group_of

_CUTTING = frozenset(("slice", "narrow", "select", "split", "chunk", "shard"))


@attrs.frozen
class Way:
    """One conversion: its kind and its call."""

    kind: str
    call: int


def conversion(analysis: Analysis, group: Group, call: int) -> tuple[str, ...]:
    """The kinds of conversion over a group that a call does (a fused product may do one behind it).

    A sum of different tokens that is trusted for its shape converts nothing: its result is taken for the share that it was.
    """
    p = analysis.program
    if p.kind[call] != CALL or not p.outs[call] or call in analysis.trusted:
        return ()
    instance = p.instances[p.op[call]]
    rule = instance.rule
    if rule is None or instance.error is not None:
        return ()
    names = [rule.code] if rule.kind == "code" and rule.code else []
    names += [name for name, _ in rule.then]
    found = []
    for i, name in enumerate(names):
        if name in CONVERTING:
            if _over(analysis, call, group, None if i == 0 and rule.kind == "code" else name):
                found.append(name)
        elif name in _CUTTING and _takes_share(analysis, call, group):
            found.append("slice")
    return tuple(found)


def _over(analysis: Analysis, call: int, group: Group, then: str | None) -> bool:
    p = analysis.program
    instance = p.instances[p.op[call]]
    slots = tuple(analysis.solution.typing.types[v] for v in p.inputs[call])
    made = make_call(analysis.solution.runner.ctx, instance, slots)
    if then is not None:
        options = dict(next(options for name, options in made.rule.then if name == then))
        made.rule = attrs.evolve(made.rule, kind="code", code=then, options=options)
    found = group_of(made)
    return found is None or bool(set(found.axes) & set(group.axes))


def _takes_share(analysis: Analysis, call: int, group: Group) -> bool:
    types = analysis.solution.typing.types
    p = analysis.program
    before, after = types[p.inputs[call][0]] if p.inputs[call] else None, types[p.first[call]]
    if not isinstance(before, Layout) or not isinstance(after, Layout):
        return False
    return any(m in after.bound_map and m not in before.bound_map for m in group.axes)


def ways_to(analysis: Analysis, roles: Roles, group: Group, value: int) -> list[Way]:
    """The conversions between where a value's content was computed and the value, nearest to the value first."""
    flow = roles.flow
    found: list[Way] = []
    seen: set[int] = set()
    at: int | None = value
    while at is not None and at not in seen and at < analysis.program.n_values:
        seen.add(at)
        call = flow.maker[at]
        found.extend(Way(kind, call) for kind in conversion(analysis, group, call))
        at = flow.carried(at)
    return found


def ways_in(analysis: Analysis, roles: Roles, group: Group, begin: int, end: int) -> list[Way]:
    """All conversions in a range of calls, except among experts, where tokens move in a domain of their own."""
    found: list[Way] = []
    for call in range(begin, end + 1):
        if roles.of(call) == "moe.routed":
            continue
        found.extend(Way(kind, call) for kind in conversion(analysis, group, call))
    return found
