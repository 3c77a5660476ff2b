"""Second halves of repairs: where a first one leaves a collective with nothing to do, or its result too whole, this ends it."""

from __future__ import annotations

from collections.abc import Sequence

from layoutcheck.infer.calls.call import Result
from layoutcheck.infer.issues.entries import Entry, downstream
from layoutcheck.infer.repairs.conversions import all_groups, along
from layoutcheck.infer.repairs.prices import FREE, Cost, paid_by
from layoutcheck.infer.repairs.repair import Candidate, Words, left_out
from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.infer.solver.run import Key
from layoutcheck.layouts import Layout, bound_on_axis
from layoutcheck.transforms.gathers import gather_onto


def completions(
    analysis: Analysis, option: Candidate, k: int, key: Key, fresh: Sequence[Entry]
) -> list[Candidate]:
    """Candidates that do more than this one, which left fresh errors behind."""
    if key not in option.patches:
        return []
    found = [_moved(analysis, option, k, fresh), _narrowed(analysis, option, k, key)]
    return [more for more in found if more is not None]


def _moved(analysis: Analysis, option: Candidate, k: int, fresh: Sequence[Entry]) -> Candidate | None:
    """A collective that has nothing left to do behind the repaired call is left out: it has moved in front of it."""
    p = analysis.program
    behind = downstream(analysis, k)
    patches = dict(option.patches)
    cost = option.cost
    calls: list[int] = []
    kinds: set[str | None] = set()
    for at, key, issue in fresh:
        instance = p.instances[p.op[at]] if p.op[at] >= 0 else None
        slot = issue.operands[0] if issue.operands else 0
        if instance is None or instance.rule is None or "drop" not in issue.hints:
            continue
        of = key[1 + slot]
        if not isinstance(of, Layout):
            continue
        patches[key] = left_out(instance, slot, of, p.outs[at])
        calls.append(at)
        if at in behind:
            if not kinds:
                cost = cost + -_now_paid(analysis, at, slot)
            kinds.add(instance.rule.code)
    if not kinds:
        return None

    def words(at: int) -> str:
        after = downstream(analysis, at)
        gone = next((p.nodes[c].name for c in sorted(calls) if c in after), p.nodes[calls[0]].name)
        if kinds == {option.kind} and len(option.slots) == 1:
            name = p.name_of(p.inputs[at][option.slots[0]])
            where = f", to {name}" if len(p.inputs[at]) > 1 else ""
            return f"move {gone} in front of {p.nodes[at].name}{where}"
        return f"{option.words(at)}, and leave {gone} out"

    return Candidate(words, cost, patches, option.kind, slots=option.slots)


def _now_paid(analysis: Analysis, k: int, slot: int) -> Cost:
    """What a collective sends in the program as it is."""
    p, types = analysis.program, analysis.solution.typing.types
    ins = tuple(types[v] for v in p.inputs[k])
    of = ins[slot]
    if not isinstance(of, Layout):
        return FREE
    return paid_by(analysis.solution.runner.ctx, p.instances[p.op[k]], ins, of)


def _narrowed(analysis: Analysis, option: Candidate, k: int, key: Key) -> Candidate | None:
    """The call done in full, and the rank's share taken of its result: Full to Local costs nothing."""
    known = analysis.solver.memo.get(key)
    result = option.patches[key]
    if known is None or analysis.program.outs[k] != 1 or option.kind != "all_gather" or result.mutated:
        return None
    was, now = known.outs[0], result.outs[0]
    if not isinstance(was, Layout) or not isinstance(now, Layout):
        return None
    for group in all_groups(analysis):
        if not all(len(was.bound_map.get(m, ())) == 1 for m in group.axes):
            continue
        for dim in range(was.rank):
            if set(group.axes) <= {m for m, _ in bound_on_axis(was, dim)} and gather_onto(
                was, dim, group
            ) == (
                now,
                "",
            ):
                end = f", slice at rank({group.name}){along(dim)} of the result"
                patches = {**option.patches, key: Result((was,))}
                return Candidate(_followed(option, end), option.cost, patches)
    return None


def _followed(option: Candidate, end: str) -> Words:
    return lambda k: option.words(k) + end
