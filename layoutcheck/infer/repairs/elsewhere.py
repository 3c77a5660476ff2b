"""Repairs that change another call than the one that is wrong: the slice that made an operand, the gather before a merge."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from layoutcheck.domains import Factor
from layoutcheck.infer.calls.call import Issue, Result
from layoutcheck.infer.issues.path import main_input
from layoutcheck.infer.repairs.conversions import all_groups, along, conversions
from layoutcheck.infer.repairs.mixed import restored
from layoutcheck.infer.repairs.prices import Cost
from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.infer.solver.one_call import apply, make_call, transform_of
from layoutcheck.infer.solver.run import Key
from layoutcheck.layouts import Layout, bound_on_axis, partner_axis, replace
from layoutcheck.program import CALL, PLACEHOLDER
from layoutcheck.rules.kinds import SUMMING
from layoutcheck.transforms.exchanges import group_of
from layoutcheck.transforms.gathers import gather_onto
from layoutcheck.transforms.rank_shares import take_share

Words = Callable[[int], str]
Site = Callable[[int], "int | None"]
_FAR = 64


def _maker(analysis: Analysis, value: int, kind: str) -> tuple[int, int] | None:
    """The call that gave a value's rows a domain of this kind, and the axis that has it there."""
    p, typing = analysis.program, analysis.solution.typing
    found = None
    at: int | None = value
    for _ in range(_FAR):
        if at is None:
            break
        of = typing.types[at]
        axis = next(
            (
                d
                for d in range(of.rank if isinstance(of, Layout) else 0)
                if len(of.axes[d]) == 1 and of.axes[d][0].is_whole and of.axes[d][0].domain.kind == kind
            ),
            None,
        )
        k = p.value_call[at]
        if axis is None or p.kind[k] != CALL:
            break
        found = (k, axis) if p.outs[k] == 1 else None
        if not p.inputs[k]:
            break
        at = main_input(analysis, typing, k)
    return found


def own_rows(analysis: Analysis, k: int, issue: Issue) -> Iterator[tuple[Words, dict[Key, Result], Site]]:
    """The rank's own rows instead of rows that are the same on every rank: a slice, or a count from 0; and which call that is."""
    if issue.code != "LC102":
        return
    p, types = analysis.program, analysis.solution.typing.types
    for slot in issue.operands:
        if not 0 <= slot < len(p.inputs[k]):
            continue
        for kind in ("range", "iota"):
            made = _maker(analysis, p.inputs[k][slot], kind)
            if made is None:
                continue
            at, dim = made
            of = types[p.first[at]]
            domain = of.axes[dim][0].domain
            for group in all_groups(analysis):
                if any(not of.is_full(m) for m in group.axes):
                    continue
                whole: Factor | None = (
                    domain.args[0] if kind == "range" else _partner_tokens(analysis, k, slot)
                )
                if whole is None or not whole.is_whole or whole.extent != domain.extent * group.size:
                    continue
                sizes = [analysis.mesh.size(m) for m in group.axes]
                cut = take_share(whole, group, domain.extent, sizes)
                if cut is None:
                    continue
                bound = {**of.bound_map, **{m: (b,) for m, b in cut[1].items()}}
                mine = replace(of, axes=(*of.axes[:dim], (cut[0],), *of.axes[dim + 1 :]), bound=bound)
                key: Key = (p.op[at], *[types[v] for v in p.inputs[at]])
                yield (
                    _own_words(analysis, slot, kind, f"rank({group.name})*{domain.extent}"),
                    {key: Result((mine,))},
                    _site(analysis, slot, kind),
                )


def _site(analysis: Analysis, slot: int, kind: str) -> Site:
    p = analysis.program

    def site(k: int) -> int | None:
        made = _maker(analysis, p.inputs[k][slot], kind)
        return made[0] if made is not None else None

    return site


def _own_words(analysis: Analysis, slot: int, kind: str, start: str) -> Words:
    p = analysis.program

    def words(k: int) -> str:
        made = _maker(analysis, p.inputs[k][slot], kind)
        name = p.nodes[made[0]].name if made is not None else p.name_of(p.inputs[k][slot])
        return f"slice at {start} instead of {name}" if kind == "range" else f"count from {start} in {name}"

    return words


def _partner_tokens(analysis: Analysis, k: int, slot: int) -> Factor | None:
    """The whole token factor of which another operand of the call holds a share."""
    p, types = analysis.program, analysis.solution.typing.types
    for other, v in enumerate(p.inputs[k]):
        of = types[v]
        if other != slot and isinstance(of, Layout):
            for d in range(of.rank):
                for _, b in bound_on_axis(of, d):
                    return b.domain.whole
    return None


def before_the_merge(analysis: Analysis, k: int, slot: int) -> Iterator[tuple[Words, Result]]:
    """A gather in front of the views that moved the gathered axis away from the front."""
    p, types = analysis.program, analysis.solution.typing.types
    ctx = analysis.solution.runner.ctx
    instance = p.instances[p.op[k]]
    group = group_of(make_call(ctx, instance, tuple(types[v] for v in p.inputs[k])))
    of = types[p.inputs[k][slot]]
    if group is None or not isinstance(of, Layout) or _earlier(analysis, k, slot) is None:
        return
    after = restored(of, group.axes, True)

    def words(at: int) -> str:
        found = _earlier(analysis, at, slot)
        if found is None:
            return f"all_gather over {group.name} before the axes are merged"
        value, dim, view = found
        return f"all_gather over {group.name}{along(dim)} of {p.name_of(value)}, before {p.nodes[view].name}"

    yield words, Result((after,))


def _earlier(analysis: Analysis, k: int, slot: int) -> tuple[int, int, int] | None:
    """The last value before a collective that can be gathered, along which axis, and the view that reads it."""
    p, types = analysis.program, analysis.solution.typing.types
    ctx = analysis.solution.runner.ctx
    group = group_of(make_call(ctx, p.instances[p.op[k]], tuple(types[v] for v in p.inputs[k])))
    at = p.inputs[k][slot]
    for _ in range(_FAR):
        call = p.value_call[at]
        transform = transform_of(p.instances[p.op[call]]) if p.kind[call] == CALL else None
        if group is None or transform is None or not transform.is_view or not p.inputs[call]:
            return None
        at = p.inputs[call][0]
        of = types[at]
        if not isinstance(of, Layout) or any(len(of.bound_map.get(m, ())) != 1 for m in group.axes):
            return None
        dims = {partner_axis(of, of.bound_map[m][0]) for m in group.axes}
        dim = dims.pop()
        if not dims and dim is not None and not gather_onto(of, dim, group)[1]:
            return at, dim, call
    return None


def later_addend(analysis: Analysis, k: int, issue: Issue) -> Words | None:
    """Adding a complete term behind the collective that completes the sum, where one op does both."""
    p = analysis.program
    rule = p.instances[p.op[k]].rule
    slot = issue.operands[0] if issue.operands else -1
    if rule is None or rule.kind != "factors" or len(issue.operands) != 1 or slot < 0:
        return None

    def words(at: int) -> str:
        found = next_reduction(analysis, at)
        name = p.name_of(p.inputs[at][slot])
        return f"add {name} behind {p.nodes[found].name}" if found is not None else f"add {name} to the sum"

    return words if next_reduction(analysis, k) is not None else None


def next_reduction(analysis: Analysis, k: int) -> int | None:
    """The reduction that alone reads a call's result, views aside."""
    p = analysis.program
    at = k
    for _ in range(_FAR):
        readers = {
            reader
            for v in range(p.first[at], p.first[at] + p.outs[at])
            for reader, _ in analysis.uses.get(v, ())
        }
        if len(readers) != 1:
            return None
        at = readers.pop()
        if p.kind[at] != CALL:
            return None
        instance = p.instances[p.op[at]]
        if instance.rule is not None and instance.rule.code in SUMMING:
            return at
        transform = transform_of(instance)
        if transform is None or not transform.is_view:
            return None
    return None


def whole_buffer(
    analysis: Analysis, k: int, key: Key, issue: Issue
) -> Iterator[tuple[Words, Cost, dict[Key, Result]]]:
    """All tokens gathered and stored to all of a buffer, instead of a rank's share to a part of it."""
    p, runner = analysis.program, analysis.solution.runner
    base, slot = key[:-1], issue.operands[0]
    ins = base[1:]
    at = p.inputs[k][slot]
    for _ in range(_FAR):
        call = p.value_call[at]
        if p.kind[call] == PLACEHOLDER:
            break
        if not p.inputs[call]:
            return
        at = p.inputs[call][0]
    given, name = runner.inputs.get(at), p.name_of(at)
    if given is None:
        return
    instance = p.instances[p.op[k]]
    for other, of in enumerate(ins):
        if other == slot or not isinstance(of, Layout):
            continue
        for way in conversions(analysis, of):
            changed = tuple(
                given if i == slot else way.layout if i == other else x for i, x in enumerate(ins)
            )
            result = apply(runner.ctx, instance, changed)
            if way.kind != "all_gather" or result.issues or any(w.issue is not None for w in result.wants):
                continue
            mutated = {slot: given} if instance.bases else {}
            data = p.name_of(p.inputs[k][other])
            yield (
                _constant(f"{way.text} of {data}, and store it to all of {name}"),
                way.cost,
                {base: Result(result.outs, (), (), mutated)},
            )


def _constant(text: str) -> Words:
    return lambda _k: text
