"""Collectives over another group than they run over: at the call itself, or at one whose result is complete only in part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs

from layoutcheck.infer.calls.call import Issue, Result
from layoutcheck.infer.issues.path import main_input
from layoutcheck.infer.repairs.prices import Cost, paid_by
from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.infer.solver.one_call import apply, make_call
from layoutcheck.infer.solver.run import Key
from layoutcheck.layouts import Layout
from layoutcheck.mesh import Group
from layoutcheck.program import CALL, OpInstance
from layoutcheck.rules.kinds import GOING_UP
from layoutcheck.transforms.exchanges import group_of

Words = Callable[[int], str]
Site = Callable[[int], "int | None"]
_FAR = 64


def with_param(instance: OpInstance, meaning: str, value: Any) -> OpInstance:
    """A call with another argument, by the meaning that its rule gives it."""
    assert instance.rule is not None
    name = instance.rule.options.get(meaning, meaning)
    return attrs.evolve(instance, params={**instance.params, name: value})


def over_groups(analysis: Analysis, instance: OpInstance) -> Iterator[tuple[Group, OpInstance]]:
    """A collective over each group of the program, in the way that it names its own."""
    assert instance.rule is not None
    options, mesh = instance.rule.options, analysis.mesh
    if "ranks" in options:
        for ranks, group in mesh.by_ranks.items():
            yield group, with_param(instance, "ranks", ranks)
        return
    for group in mesh.groups.values():
        other = with_param(instance, "group", group.name)
        yield group, with_param(other, "size", group.size) if "size" in options else other


def wider_group(
    analysis: Analysis, k: int, issue: Issue
) -> Iterator[tuple[Words, Cost, dict[Key, Result], Site]]:
    """All of a group for the collective that left an operand unfinished over the rest of it."""
    p, types = analysis.program, analysis.solution.typing.types
    ctx = analysis.solution.runner.ctx
    for slot in issue.operands:
        at = _unfinished(analysis, k, slot)
        if at is None:
            continue
        instance = p.instances[p.op[at]]
        ins = tuple(types[v] for v in p.inputs[at])
        rest, now = _open(types[p.inputs[k][slot]]), group_of(make_call(ctx, instance, ins))
        of = next((x for x in ins if isinstance(x, Layout)), None)
        if now is None or of is None:
            continue
        for group, other in over_groups(analysis, instance):
            if not set(now.axes) < set(group.axes) or not set(group.axes) <= {*now.axes, *rest}:
                continue
            result = apply(ctx, other, ins)
            if result.issues or any(w.issue is not None for w in result.wants):
                continue
            cost = paid_by(ctx, other, ins, of) + -paid_by(ctx, instance, ins, of)
            key: Key = (p.op[at], *ins)
            patches = {key: Result(result.outs, (), (), result.mutated)}
            yield _words(analysis, slot, group.name), cost, patches, _site(analysis, slot)


def _open(of: Any) -> set[int]:
    """Mesh axes over which a value is a sum or a shard."""
    return {*of.partial, *of.bound_map} if isinstance(of, Layout) else set()


def _site(analysis: Analysis, slot: int) -> Site:
    return lambda k: _unfinished(analysis, k, slot)


def _words(analysis: Analysis, slot: int, group: str) -> Words:
    def words(k: int) -> str:
        at = _unfinished(analysis, k, slot)
        return f"run {analysis.program.nodes[at if at is not None else k].name} over {group} instead"

    return words


def _unfinished(analysis: Analysis, k: int, slot: int) -> int | None:
    """The last collective on the way to an operand, if the operand is a sum or a shard over what it did not run over."""
    p, typing = analysis.program, analysis.solution.typing
    ctx = analysis.solution.runner.ctx
    at: int | None = p.inputs[k][slot] if 0 <= slot < len(p.inputs[k]) else None
    rest = _open(typing.types[at]) if at is not None else set()
    for _ in range(_FAR):
        if at is None or not rest:
            return None
        call = p.value_call[at]
        if p.kind[call] != CALL:
            return None
        instance = p.instances[p.op[call]]
        if instance.rule is not None and instance.rule.code in GOING_UP:
            group = group_of(make_call(ctx, instance, tuple(typing.types[v] for v in p.inputs[call])))
            return call if group is not None and not set(group.axes) & rest else None
        at = main_input(analysis, typing, call) if p.inputs[call] else None
    return None
