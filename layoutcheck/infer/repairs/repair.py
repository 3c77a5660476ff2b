"""Candidate repairs of one issue: operands converted first, a collective or slice left out or asked for otherwise.

A candidate is a set of answers that stand in for the rules' own; whether it repairs anything is for a trial to say.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import attrs

from layoutcheck.findings import Fix
from layoutcheck.infer.calls.call import Issue, Result, slots_in
from layoutcheck.infer.issues.boundary import boundary_issues
from layoutcheck.infer.repairs.conversions import Conversion, conversions, on_one_rank, paddings
from layoutcheck.infer.repairs.elsewhere import Site, before_the_merge, later_addend, own_rows, whole_buffer
from layoutcheck.infer.repairs.mixed import restored, unmixed
from layoutcheck.infer.repairs.other_groups import over_groups, wider_group, with_param
from layoutcheck.infer.repairs.prices import FREE, Cost, nbytes, paid_by
from layoutcheck.infer.repairs.rearranged import not_rearranged
from layoutcheck.infer.repairs.shards import as_shard, replicated, weight_behind
from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.infer.solver.one_call import apply, transform_of
from layoutcheck.infer.solver.run import Key
from layoutcheck.layouts import Layout
from layoutcheck.program import CALL, PLACEHOLDER, OpInstance
from layoutcheck.rules.kinds import COMMUNICATING

__all__ = ["Candidate", "Conversion", "candidates", "conversions", "nbytes"]

Words = Callable[[int], str]
_AXIS_VERBS = {"all_gather": "gather", "reduce_scatter": "scatter"}
_MAX_TOGETHER = 5


@attrs.frozen(eq=False)
class Candidate:
    """A repair: its words at a call, the bytes that a rank sends more (less is negative), the answers that it changes.

    `kind` is the conversion of operands that it does first, if that is what it does,
    of the operands `slots`; `given` are inputs that it changes; `site` is the other call that it changes for a call.
    """

    words: Words
    cost: Cost
    patches: dict[Key, Result]
    kind: str = ""
    given: dict[int, Layout] = attrs.field(factory=dict)
    slots: tuple[int, ...] = ()
    site: Site | None = None

    def fix(self, k: int, times: int, leaves: tuple[tuple[str, str], ...]) -> Fix:
        """The repair as part of the finding at a call."""
        return Fix(self.words(k), str(self.cost), times, not leaves, leaves)


def candidates(
    analysis: Analysis, patched: dict[Key, Result], k: int, key: Key, issue: Issue
) -> list[Candidate]:
    """Repairs of one issue whose call is right on the repaired operands, cheapest kind first."""
    p = analysis.program
    if p.op[k] < 0:
        return _at_output(analysis, k, key, issue)
    instance = p.instances[p.op[k]]
    if instance.rule is None or p.kind[k] != CALL or issue.code.startswith("LC9"):
        return []
    if key[-1] == "buffer":
        found = whole_buffer(analysis, k, key, issue)
        return [Candidate(words, cost, patches) for words, cost, patches in found]
    if issue.code == "LC301" and instance.rule.code in COMMUNICATING:
        return _over_another_group(analysis, k, key)
    known = patched.get(key) or analysis.solver.memo.get(key)
    out = _of_the_call(analysis, k, key, issue, instance)
    for words, patches, site in (*own_rows(analysis, k, issue), *not_rearranged(analysis, k, issue)):
        out.append(Candidate(words, FREE, patches, site=site))
    out += _converted(analysis, k, key, issue, instance)
    out += _wider_before(analysis, k, issue)
    if known is not None and issue.code == "LC204":
        late = later_addend(analysis, k, issue)
        if late is not None:
            out.insert(0, Candidate(late, FREE, {key: Result(known.outs, (), (), known.mutated)}))
    return out


def _of_the_call(analysis: Analysis, k: int, key: Key, issue: Issue, instance: OpInstance) -> list[Candidate]:
    """Repairs of the call itself: whole weights or tokens, leaving it out, another axis, an earlier place."""
    p, ins, rule = analysis.program, key[1:], instance.rule
    assert rule is not None
    ctx = analysis.solution.runner.ctx
    slot = issue.operands[0] if issue.operands else 0
    of = ins[slot] if slot < len(ins) else None
    out: list[Candidate] = []
    if not isinstance(of, Layout):
        return out
    if "mixed" in issue.hints or any(of.is_mixed(m) for m, _ in of.bound):
        out += _of_mixed(analysis, k, key, slot, of)
    if "drop" in issue.hints or issue.code == "LC403":
        what = "collective" if rule.code in COMMUNICATING else rule.code
        out.append(
            Candidate(
                _said(f"leave this {what} out"),
                -paid_by(ctx, instance, ins, of),
                {key: left_out(instance, slot, of, p.outs[k])},
            )
        )
    if "redimension" in issue.hints:
        for dim in range(of.rank):
            result = _fits(analysis, with_param(instance, "dim", dim), ins)
            if result is not None:
                text = f"{_AXIS_VERBS.get(rule.code or '', 'work')} along axis {dim}"
                out.append(Candidate(_said(text), FREE, {key: result}))
    if issue.code == "LC105" and rule.code == "all_gather":
        for words, result in before_the_merge(analysis, k, slot):
            out.append(Candidate(words, FREE, {key: result}))
    return out


def _of_mixed(analysis: Analysis, k: int, key: Key, slot: int, of: Layout) -> list[Candidate]:
    """Whole weights or whole tokens in front of a call that reads a mixed value, at all calls like it."""
    p, ins = analysis.program, key[1:]
    instance = p.instances[p.op[k]]
    code = instance.rule.code if instance.rule is not None else None
    kind = code if code in COMMUNICATING else ""
    values = [p.inputs[k][slot]]
    values += [p.inputs[c][slot] for c, other, _ in analysis.solution.issues if other == key and c != k]
    weights, tokens = unmixed(analysis, values, of, kind or "", p.nodes[k].name)
    pending = bool(of.partial)

    def reading(operand: Layout) -> Key:
        return (key[0], *[operand if i == slot else x for i, x in enumerate(ins)])

    patches = dict(tokens.patches)
    if kind in ("all_reduce", "reduce_scatter"):
        weights.patches[reading(weights.operand)] = left_out(instance, slot, weights.operand, p.outs[k])
    if kind == "all_reduce":
        patches[reading(tokens.operand)] = left_out(instance, slot, weights.operand, p.outs[k])
    elif kind == "all_gather":
        whole = restored(tokens.operand, tuple(m for m, _ in of.bound if of.is_mixed(m)), False)
        patches[reading(tokens.operand)] = left_out(instance, slot, whole, p.outs[k])
    elif not kind and pending:
        result = _fits(analysis, instance, reading(weights.operand)[1:])
        if result is not None:
            patches[reading(tokens.operand)] = result
    return [
        Candidate(_said(weights.text), weights.cost, weights.patches, "", weights.given),
        Candidate(_said(tokens.text), tokens.cost, patches),
    ]


def left_out(instance: OpInstance, slot: int, of: Layout, count: int) -> Result:
    """The answer of a call that hands its operand on."""
    assert instance.rule is not None
    mutated = {slot: of} if instance.rule.mutates else {}
    return Result(tuple([of] * count), (), (), mutated)


def _said(text: str) -> Words:
    return lambda _k: text


def _fits(analysis: Analysis, instance: OpInstance, ins: tuple[Any, ...]) -> Result | None:
    """What a call's rule says of these operands, where it has nothing against them."""
    result = apply(analysis.solution.runner.ctx, instance, ins)
    if result.issues or any(w.issue is not None for w in result.wants):
        return None
    return Result(result.outs, (), (), result.mutated)


def _over_another_group(analysis: Analysis, k: int, key: Key) -> list[Candidate]:
    """The same collective over each of the other groups."""
    p, ins = analysis.program, key[1:]
    ctx = analysis.solution.runner.ctx
    instance = p.instances[p.op[k]]
    rule = instance.rule
    of = next((x for x in ins if isinstance(x, Layout)), None)
    if rule is None or of is None:
        return []
    out = []
    now = paid_by(ctx, instance, ins, of)
    for group, other in over_groups(analysis, instance):
        result = _fits(analysis, other, ins)
        if result is not None and other.params != instance.params:
            cost = paid_by(ctx, other, ins, of) + -now
            out.append(Candidate(_said(f"run it over {group.name} instead"), cost, {key: result}))
    return out


def _wider_before(analysis: Analysis, k: int, issue: Issue) -> list[Candidate]:
    """The collective before a call over all of a group where it runs over a part of it."""
    return [
        Candidate(words, cost, patches, site=site)
        for words, cost, patches, site in wider_group(analysis, k, issue)
    ]


def _converted(analysis: Analysis, k: int, key: Key, issue: Issue, instance: OpInstance) -> list[Candidate]:
    """One operand converted first; where no single one will do, several in the same way at once."""
    ins = key[1:]
    tensors = [i for i, x in enumerate(ins) if isinstance(x, Layout)]
    blamed = [s for s in dict.fromkeys(issue.operands) if s in tensors] or tensors
    fixed = _written_inputs(analysis, k, instance)
    options: dict[int, list[Conversion]] = {}
    out: list[Candidate] = []
    for slot in blamed:
        if slot in fixed:
            continue
        options[slot] = _ways(analysis, k, slot, ins[slot], issue)
        for way in options[slot]:
            made = _with_operands(analysis, k, key, instance, {slot: way}, len(tensors) == 1)
            if made is not None:
                out.append(made)
    if not out and 1 < len(tensors) <= _MAX_TOGETHER:
        for slot in tensors:
            if slot not in options and slot not in fixed:
                options[slot] = _ways(analysis, k, slot, ins[slot], issue)
        out += _together(analysis, k, key, instance, options, set(blamed))
    return out


def _ways(analysis: Analysis, k: int, slot: int, of: Layout, issue: Issue) -> list[Conversion]:
    """Conversions of one operand that this issue may ask for."""
    p = analysis.program
    value = p.inputs[k][slot]
    weight = weight_behind(analysis, value)
    ways = conversions(analysis, of, every_axis=True)
    if weight is not None:
        ways = [replicated(way) if _of_features(analysis, of, way) else way for way in ways]
        if weight == value and value in analysis.plan.declared:
            ways += as_shard(analysis, of)
    if issue.code == "LC401" or "pad" in issue.hints:
        ways += paddings(analysis, of)
    if issue.code in ("LC204", "LC201"):
        ways += on_one_rank(analysis, of)
    return ways


def _of_features(analysis: Analysis, of: Layout, way: Conversion) -> bool:
    """Whether a conversion gathers the shards of features that a weight has."""
    held = [b for m, fs in of.bound if m not in way.layout.bound_map for b in fs]
    return way.kind == "all_gather" and all(b.domain.is_feature for b in held)


def _written_inputs(analysis: Analysis, k: int, instance: OpInstance) -> set[int]:
    """Operands that are written in place and belong to an input: a converted copy of them would not reach it."""
    p = analysis.program
    known = analysis.solver.memo.get((p.op[k], *[analysis.solution.typing.types[v] for v in p.inputs[k]]))
    out: set[int] = set()
    for slot in set(known.mutated if known is not None else ()) | _mutable(instance):
        at = p.inputs[k][slot] if 0 <= slot < len(p.inputs[k]) else -1
        while at >= 0:
            call = p.value_call[at]
            if p.kind[call] == PLACEHOLDER:
                out.add(slot)
            transform = transform_of(p.instances[p.op[call]]) if p.kind[call] == CALL else None
            at = p.inputs[call][0] if transform is not None and transform.is_view and p.inputs[call] else -1
    return out


def _mutable(instance: OpInstance) -> set[int]:
    assert instance.rule is not None
    return {s for name in instance.rule.mutates for s in slots_in(instance.params.get(name))}


def _with_operands(
    analysis: Analysis,
    k: int,
    key: Key,
    instance: OpInstance,
    ways: dict[int, Conversion],
    lone: bool,
) -> Candidate | None:
    p, ins = analysis.program, key[1:]
    changed = tuple(ways[i].layout if i in ways else x for i, x in enumerate(ins))
    result = _fits(analysis, instance, changed)
    if result is None:
        return None
    code = instance.rule.code if instance.rule is not None else None
    undone = any(way.kind == "slice" and code == "all_gather" for way in ways.values())
    if lone and (undone or (result.outs and any(result.outs[0] is ins[slot] for slot in ways))):
        # The call would only undo what the conversion does.
        return None
    cost, ctx = FREE, analysis.solution.runner.ctx
    for slot, way in ways.items():
        # A collective sends as much more or less as it is now given.
        own = paid_by(ctx, instance, changed, way.layout) + -paid_by(ctx, instance, ins, ins[slot])
        cost = cost + way.cost + own
    kinds = {way.kind for way in ways.values()}
    return Candidate(
        lambda at: _operand_words({p.name_of(p.inputs[at][s]): way for s, way in ways.items()}),
        cost,
        {key: result},
        kinds.pop() if len(kinds) == 1 else "",
        slots=tuple(ways),
    )


def _operand_words(ways: dict[str, Conversion]) -> str:
    """`all_gather over tp of k and v first`; what has words of its own keeps them."""
    named: dict[str, list[str]] = {}
    for name, way in ways.items():
        named.setdefault(way.text, []).append(name)
    parts = []
    for text, names in named.items():
        joined = " and ".join(names)
        parts.append(
            text.replace("{}", joined).removesuffix(" first") if "{}" in text else f"{text} of {joined}"
        )
    first = "" if all("declare" in part for part in parts) else " first"
    return " and ".join(parts) + first


def _together(
    analysis: Analysis,
    k: int,
    key: Key,
    instance: OpInstance,
    options: dict[int, list[Conversion]],
    blamed: set[int],
) -> list[Candidate]:
    """Several operands gathered, sliced or reduced, over one group or each over its own: as few of them as will do."""
    kinds = {(way.kind, way.group) for slot in blamed & set(options) for way in options[slot]}
    each = {(kind, "") for kind, _ in kinds}
    for several in (kinds, each):
        out: list[Candidate] = []
        for kind, group in sorted(several - {(kind, "") for kind in ("pad", "declare", "zero")}):
            able: dict[int, Conversion] = {}
            for slot, ways in options.items():
                for way in ways:
                    if way.kind == kind and way.group == (group or way.group):
                        able.setdefault(slot, way)
            out += _fewest(analysis, k, key, instance, able, blamed)
        if out:
            return out
    return []


def _fewest(
    analysis: Analysis,
    k: int,
    key: Key,
    instance: OpInstance,
    able: dict[int, Conversion],
    blamed: set[int],
) -> list[Candidate]:
    for count in range(2, len(able) + 1):
        sets = [set(chosen) for chosen in combinations(sorted(able), count)]
        made = [
            _with_operands(analysis, k, key, instance, {s: able[s] for s in sorted(chosen)}, False)
            for chosen in sets
            if chosen & blamed
        ]
        found = [one for one in made if one is not None]
        if found:
            return found
    return []


def _at_output(analysis: Analysis, k: int, key: Key, issue: Issue) -> list[Candidate]:
    """The output has no rule; a repair there changes nothing further down, so it is right if it may leave."""
    slot = issue.operands[0] if issue.operands else 0
    of = key[1 + slot] if 1 + slot < len(key) else None
    if not isinstance(of, Layout):
        return []
    value = analysis.program.inputs[k][slot]
    found = [
        (Candidate(_said(f"{way.text} before it leaves"), way.cost, {}), way.layout)
        for way in conversions(analysis, of)
    ]
    if any(of.is_mixed(m) for m in analysis.mesh.names()):
        weights, tokens = unmixed(analysis, [value], of, "output", "output")
        # A pending sum is scattered behind the last call, where no pass sees it.
        patches, after = ({}, weights.operand) if of.partial else (tokens.patches, tokens.operand)
        found = [
            (Candidate(_said(weights.text), weights.cost, {}, "", weights.given), weights.operand),
            (Candidate(_said(tokens.text), tokens.cost, patches), after),
        ]
    typing = analysis.solution.typing
    out = []
    for option, after in found:
        types = list(typing.types)
        types[value] = after
        left = boundary_issues(analysis, attrs.evolve(typing, types=types))
        if not any(e[2].operands[:1] == (slot,) and "warning" not in e[2].hints for e in left):
            out.append(option)
    return out + _wider_before(analysis, k, issue)
