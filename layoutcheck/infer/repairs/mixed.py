"""The two repairs of a value whose ranks hold other tokens and other features at once: whole weights, or whole tokens."""

from __future__ import annotations

import attrs

from layoutcheck.domains import Factor, factor, is_token_like
from layoutcheck.infer.calls.call import Result
from layoutcheck.infer.issues.path import main_input
from layoutcheck.infer.repairs.prices import FREE, Cost, collective, gathering
from layoutcheck.infer.repairs.shards import weight_behind
from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.infer.solver.one_call import apply
from layoutcheck.infer.solver.run import Key
from layoutcheck.layouts import Layout, partner_axis, replace
from layoutcheck.mesh import Group
from layoutcheck.program import CALL, PLACEHOLDER


@attrs.frozen(eq=False)
class Way:
    """Words, price, the inputs and answers that it changes, and what then reaches the reader that was wrong."""

    text: str
    cost: Cost
    operand: Layout
    given: dict[int, Layout] = attrs.field(factory=dict)
    patches: dict[Key, Result] = attrs.field(factory=dict)


def restored(of: Layout, mesh_axes: tuple[int, ...], tokens: bool) -> Layout:
    """The layout with what these mesh axes select put back where it was cut: tokens, or features."""
    axes = list(of.axes)
    bound = {m: list(fs) for m, fs in of.bound}
    for m in mesh_axes:
        for b in list(bound.get(m, ())):
            if is_token_like(b.domain) is not tokens:
                continue
            bound[m].remove(b)
            at = partner_axis(of, b)
            if at is not None:
                axes[at] = tuple(_grown(f, b) for f in axes[at])
    return replace(of, axes=tuple(axes), bound={m: tuple(fs) for m, fs in bound.items()})


def _grown(digit: Factor, major: Factor) -> Factor:
    if digit.domain is not major.domain or digit.is_whole:
        return digit
    return factor(digit.domain, digit.stride, digit.extent * major.extent)


def _before_mixing(analysis: Analysis, value: int, mesh_axes: tuple[int, ...]) -> Layout | None:
    """The tokens' layout where they last stood alone, in front of the first sharded weight."""
    p, typing = analysis.program, analysis.solution.typing
    at: int | None = value
    for _ in range(10_000):
        if at is None:
            return None
        of = typing.types[at]
        if isinstance(of, Layout) and not any(of.is_mixed(m) for m in mesh_axes):
            return of
        k = p.value_call[at]
        if p.kind[k] == PLACEHOLDER or not p.inputs[k]:
            return None
        at = main_input(analysis, typing, k)
    return None


def _mixing(analysis: Analysis, value: int, mesh_axes: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """The calls in which a value came to be mixed, and the weights that they and what lies between have as shards."""
    p, types = analysis.program, analysis.solution.typing.types
    calls: list[int] = []
    weights: list[int] = []
    todo, seen = [value], {value}
    while todo:
        k = p.value_call[todo.pop()]
        mixed = [
            v
            for v in p.inputs[k]
            if isinstance(of := types[v], Layout) and any(of.is_mixed(m) for m in mesh_axes)
        ]
        if not mixed:
            calls.append(k)
        for v in p.inputs[k]:
            weight = weight_behind(analysis, v)
            if weight is not None:
                weights.append(weight)
        for v in mixed:
            if v not in seen:
                seen.add(v)
                todo.append(v)
    return calls, weights


def _whole_weights(analysis: Analysis, values: list[int], mesh_axes: tuple[int, ...]) -> dict[int, Layout]:
    given: dict[int, Layout] = {}
    for value in values:
        for weight in _mixing(analysis, value, mesh_axes)[1]:
            of = analysis.solution.runner.inputs[weight]
            if isinstance(of, Layout):
                given[weight] = restored(of, mesh_axes, False)
    return given


def _whole_tokens(analysis: Analysis, values: list[int], mesh_axes: tuple[int, ...]) -> dict[Key, Result]:
    """The answers of the calls that mix, on gathered tokens."""
    p, types = analysis.program, analysis.solution.typing.types
    patches: dict[Key, Result] = {}
    for value in values:
        for k in _mixing(analysis, value, mesh_axes)[0]:
            if p.kind[k] != CALL:
                continue
            ins = tuple(types[v] for v in p.inputs[k])
            key: Key = (p.op[k], *ins)
            if key not in patches:
                wide = tuple(restored(x, mesh_axes, True) if isinstance(x, Layout) else x for x in ins)
                patches[key] = apply(analysis.solution.runner.ctx, p.instances[p.op[k]], wide)
    return patches


def unmixed(analysis: Analysis, values: list[int], of: Layout, kind: str, place: str) -> list[Way]:
    """The two repairs in front of `place`, a collective of this kind or another reader, for all values that it gets so."""
    mixed = tuple(m for m in analysis.mesh.names() if of.is_mixed(m))
    ways = analysis.solution.runner.ctx.ways(mixed)
    group = Group(analysis.mesh.group_name(mixed), mixed, ways)
    pending = any(m in of.partial for m in mixed)
    whole = replace(restored(of, mixed, False), partial=tuple(m for m in of.partial if m not in mixed))
    wide = restored(of, mixed, True)
    tokens = _before_mixing(analysis, values[0], mixed) or whole
    saved = -collective(kind, ways, of)
    early = gathering(ways, tokens) + saved
    gather = f"all_gather the tokens over {group.name} before the first of these weights"
    replicate = f"replicate the weights over {group.name}"
    if kind == "all_gather":
        cut = [d for d in range(wide.rank) if wide.axes[d] != restored(wide, mixed, False).axes[d]]
        axis = f" along axis {cut[0]}" if cut else ""
        first = f"{replicate}, keep the gather", gathering(ways, whole) + saved
        second = f"{gather} instead of here, and gather the features{axis}", early + gathering(ways, wide)
    else:
        here = {"": f"in front of {place}", "output": "before it leaves"}.get(kind, "here")
        leave = " and leave this collective out" if kind not in ("", "output") else ""
        scatter = gathering(ways, whole) if pending else FREE
        first = f"{replicate}{leave}", saved
        second = f"{gather}, reduce_scatter {here}" if pending else gather, early + scatter
    return [
        Way(*first, whole, _whole_weights(analysis, values, mixed)),
        Way(*second, wide, {}, _whole_tokens(analysis, values, mixed)),
    ]
