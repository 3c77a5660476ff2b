"""The program below its conversions: every value once, in the form that holds all tokens.

What slices, gathers, reduces or pads the tokens over the group is left out, and with it the views that only bring them about: a value
that has the same content as one before it is that one. What is left is typed again on all tokens; an op that refuses them (a dispatch
of replicated tokens) is typed on a rank's share.
"""

from __future__ import annotations

from typing import Any

import attrs

from layoutcheck.infer.calls.call import Result, slots_in
from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.infer.solver.one_call import apply, transform_of
from layoutcheck.layouts import Layout
from layoutcheck.placement.resize import resized
from layoutcheck.placement.tokens import Tokens
from layoutcheck.program import (
    CALL,
    PLACEHOLDER,
    REGION_BEGIN,
    REGION_COPY,
    REGION_END,
    OpInstance,
)
from layoutcheck.rules.kinds import GOING_UP

# Transforms that only move elements, so that a conversion may be spelled with them.
MOVES = frozenset(
    (
        *GOING_UP,
        "wait",
        "shard",
        "slice",
        "narrow",
        "pad",
        "view",
        "permute",
        "transpose",
        "movedim",
        "squeeze",
        "unsqueeze",
        "flatten",
        "unflatten",
        "split",
        "chunk",
        "cat",
        "select",
        "unbind",
        "same",
    )
)
CONVERTS = GOING_UP | {"shard", "slice", "narrow", "pad"}
MAX_CHAIN = 12


@attrs.define
class Base:
    """The program without conversions.

    alias: per value the value that it is (itself, where it is no conversion's result).
    full: per value its layout with all tokens (`types` of the graph where it holds none).
    kept: calls that stay.
    fixed: calls that take their operands as the graph has them, since on others they would give other rows (a dispatch).
    own: values that are each rank's own for that reason.
    written: buffers that ops write into, with the views through which they do: no conversion may stand between.
    broad: values that are broadcast over an axis that is cut in others: the same for every share of it.
    params: by call, arguments that are others once weights are cut (where the pieces of a packed axis begin).
    """

    analysis: Analysis
    tokens: Tokens
    alias: list[int]
    full: list[Any]
    kept: list[int] = attrs.field(factory=list)
    fixed: set[int] = attrs.field(factory=set)
    own: set[int] = attrs.field(factory=set)
    written: set[int] = attrs.field(factory=set)
    broad: set[int] = attrs.field(factory=set)
    params: dict[int, dict[str, Any]] = attrs.field(factory=dict)

    def root(self, value: int) -> int:
        """The value that this one is below all conversions."""
        return self.alias[value]

    def markers(self, k: int) -> tuple[int, ...]:
        """The begin and the end marker of the carried value that a begin marker takes in; an end marker alone."""
        for repeats in self.analysis.solution.runner.repeats.values():
            if k in repeats.begins:
                return k, repeats.ends[repeats.begins.index(k)]
        return (k,)

    def instance(self, k: int) -> OpInstance:
        """The op of a call, with its arguments on shares of the weights."""
        p = self.analysis.program
        found = p.instances[p.op[k]]
        changed = self.params.get(k)
        return found if changed is None else attrs.evolve(found, params={**found.params, **changed})

    def sized(self, k: int, wanted: Any) -> OpInstance:
        """The op of a call with its sizes written for the first result `wanted`."""
        p = self.analysis.program
        instance = self.instance(k)
        if not p.outs[k] or not isinstance(wanted, Layout):
            return instance
        again = resized(instance, self.analysis.solution.typing.types[p.first[k]], wanted)
        return instance if again is None else again[0]


def strip(analysis: Analysis, tokens: Tokens, trusted: frozenset[int] = frozenset()) -> Base:
    """The program below its conversions over the tokens' group.

    Args:
        trusted: calls whose shape-only reading is accepted: they stay as the graph has them, collectives among them.
    """
    p = analysis.program
    types = analysis.solution.typing.types
    base = Base(analysis, tokens, list(range(p.n_values)), list(types))
    base.written = _written(analysis)
    chains: dict[int, tuple[tuple[int, ...], bool]] = {}
    memo: dict[Any, list[Any]] = {}
    for k, kind in enumerate(p.kind):
        outs = range(p.first[k], p.first[k] + p.outs[k])
        if kind == PLACEHOLDER:
            base.kept.append(k)
            continue
        if kind in (REGION_BEGIN, REGION_END, REGION_COPY):
            base.kept.append(k)
            base.full[p.first[k]] = base.full[base.root(p.inputs[k][0])]
            continue
        if kind != CALL:
            base.kept.append(k)
            continue
        if k in trusted:
            base.kept.append(k)
            _keep(base, k)
            continue
        if _is_conversion(base, k, chains):
            continue
        base.kept.append(k)
        _retype(base, k, memo)
        for v in outs:
            base.alias[v] = v
    base.kept = _alive(base)
    return base


def _alive(base: Base) -> list[int]:
    """The calls that stay, without movements that only conversions read."""
    p = base.analysis.program
    uses = base.analysis.uses
    needed: set[int] = set()
    out: list[int] = []
    for k in reversed(base.kept):
        values = range(p.first[k], p.first[k] + p.outs[k])
        rule = base.instance(k).rule if p.op[k] >= 0 else None
        moves = rule is not None and rule.kind == "code" and rule.code in MOVES and not rule.mutates
        read = any(uses.get(v) for v in values)
        if moves and read and not needed.intersection(values) and not base.written.intersection(values):
            continue
        needed.update(base.root(v) for v in p.inputs[k])
        out.append(k)
    return out[::-1]


def _written(analysis: Analysis) -> set[int]:
    """Values that ops change in place, and what they are views of, with all other views of that."""
    p = analysis.program
    source: dict[int, int] = {}
    found: set[int] = set()
    for k, kind in enumerate(p.kind):
        if kind != CALL:
            continue
        instance = p.instances[p.op[k]]
        transform = transform_of(instance)
        if transform is not None and transform.is_view and p.inputs[k]:
            for v in range(p.first[k], p.first[k] + p.outs[k]):
                source[v] = p.inputs[k][0]
        if instance.rule is not None and instance.rule.mutates and not instance.bases:
            for name in instance.rule.mutates:
                for slot in slots_in(instance.params.get(name)):
                    at: int | None = p.inputs[k][slot]
                    while at is not None and at not in found:
                        found.add(at)
                        at = source.get(at)
    for v in source:
        if source[v] in found:
            found.add(v)
    return found


def _is_conversion(base: Base, k: int, chains: dict[int, tuple[tuple[int, ...], bool]]) -> bool:
    """Whether all that a call gives is some value before it, converted; follows chains of movements."""
    p = base.analysis.program
    types = base.analysis.solution.typing.types
    instance = base.instance(k)
    rule = instance.rule
    if rule is None or rule.kind != "code" or rule.code not in MOVES or rule.mutates or instance.bases:
        return False
    data = [v for v in p.inputs[k] if isinstance(types[v], Layout)]
    if not data or not p.outs[k] or any(base.root(v) in base.own for v in data):
        return False
    if any(v in base.written for v in (*data, *range(p.first[k], p.first[k] + p.outs[k]))):
        return False
    found = [chains.get(v, ((v,), False)) for v in data]
    chain, converted = found[0]
    for other, flag in found[1:]:
        same = 0
        while same < min(len(chain), len(other)) and chain[same] == other[same]:
            same += 1
        chain, converted = chain[:same], converted or flag
    if not chain or len(chain) > MAX_CHAIN:
        return False
    source = types[data[0]]
    outs = range(p.first[k], p.first[k] + p.outs[k])
    now = converted or (rule.code in CONVERTS and _moves_tokens(base, source, types[p.first[k]]))
    if not (now or rule.code in MOVES):
        return False
    for v in outs:
        chains[v] = ((*chain, v), now)
    if not now:
        return False
    done = True
    for v in outs:
        of = types[v]
        match = None
        if isinstance(of, Layout):
            form = base.tokens.full(of)
            match = next((u for u in chain if _same_content(base, u, form)), None)
        if match is None:
            done = False
        else:
            base.alias[v] = base.alias[match]
    return done


def _same_content(base: Base, value: int, form: Layout) -> bool:
    of = base.analysis.solution.typing.types[value]
    return isinstance(of, Layout) and base.tokens.full(of) is form


def _moves_tokens(base: Base, source: Any, out: Any) -> bool:
    """Whether a call changes what the ranks of the group hold of the tokens, or pads them."""
    if not isinstance(source, Layout) or not isinstance(out, Layout):
        return False
    tokens = base.tokens
    for m in tokens.group.axes:
        if source.bound_map.get(m, ()) != out.bound_map.get(m, ()):
            return True
        if (m in source.partial) != (m in out.partial):
            return True
    # padding, the removal of it, a slice of the whole
    return tokens.full(source) is tokens.full(out)


def _keep(base: Base, k: int) -> None:
    """A call that stays as it is; what it gives is each rank's own as long as tokens are mixed in it."""
    p = base.analysis.program
    group = set(base.tokens.group.axes)
    base.fixed.add(k)
    for value in range(p.first[k], p.first[k] + p.outs[k]):
        of = base.analysis.solution.typing.types[value]
        if not isinstance(of, Layout):
            continue
        if group & set(of.partial) or any(of.is_mixed(m) for m in group):
            base.own.add(value)
        else:
            base.full[value] = base.tokens.full(of)


def _retype(base: Base, k: int, memo: dict[Any, list[Any]]) -> None:
    """The layouts that a call gives on all tokens, or on a rank's share where it refuses them."""
    p = base.analysis.program
    types = base.analysis.solution.typing.types
    ins = tuple(base.full[base.root(v)] for v in p.inputs[k])
    own = tuple(types[v] for v in p.inputs[k])
    outs = [types[p.first[k] + j] for j in range(p.outs[k])]
    if all(a is b or a == b for a, b in zip(ins, own)):
        given = [_form(base, of) for of in outs]
    else:
        key = (p.op[k], ins, tuple(outs))
        known = memo.get(key)
        given = memo[key] = _on_all(base, k, ins, outs) if known is None else known
        if base.instance(k).bases:
            own_outs = p.outs[k] - len(base.instance(k).bases)
            for j, slot in enumerate(base.instance(k).bases):
                if slot >= 0:
                    given = [*given[: own_outs + j], ins[slot], *given[own_outs + j + 1 :]]
    rows = any(base.root(v) in base.own for v in p.inputs[k])
    for j, (of, was) in enumerate(zip(given, outs)):
        value = p.first[k] + j
        base.full[value] = of
        if not isinstance(of, Layout) or not isinstance(was, Layout):
            continue
        same = _alike(of, _form(base, was)) or _ordered(base, of, was)
        if (rows and not base.tokens.holds(was)) or not same:
            base.own.add(value)
            base.full[value] = was
            if not rows:
                base.fixed.add(k)


def _alike(a: Layout, b: Layout) -> bool:
    return a is b or (a.axes == b.axes and a.bound == b.bound and a.dtype == b.dtype)


def _ordered(base: Base, of: Layout, was: Layout) -> bool:
    """Whether a value holds of a rank's tokens what `of` holds of all of them, in an order of its own (they were sorted)."""
    tokens = base.tokens
    return tokens.is_reordered(of) and tokens.is_cut(was) and tokens.fits(was, of)


def _form(base: Base, of: Any) -> Any:
    return base.tokens.full(of) if isinstance(of, Layout) else of


def _on_all(base: Base, k: int, ins: tuple[Any, ...], outs: list[Any]) -> list[Any]:
    wanted = [_form(base, of) for of in outs]
    result = typed(base, k, ins, wanted)
    if result is not None and len(result.outs) >= len(outs):
        return [_form(base, of) for of in result.outs[: len(outs)]]
    return wanted


def typed(base: Base, k: int, ins: tuple[Any, ...], wanted: list[Any]) -> Result | None:
    """What a call's rule says of these operands, its sizes written for the result `wanted`; None where it finds fault."""
    instance = base.sized(k, wanted[0] if wanted else None)
    result = apply(base.analysis.solver.ctx, instance, ins)
    return result if agrees(base, k, ins, result) else None


def agrees(base: Base, k: int, ins: tuple[Any, ...], result: Result, broad: set[int] | None = None) -> bool:
    """Whether a rule finds no fault, and wants nothing cut but axes along which its operands `ins` are broadcast."""
    if result.issues:
        return False
    p = base.analysis.program
    known = base.broad if broad is None else broad
    return all(
        w.kind == "cut"
        and 0 <= w.slot < len(p.inputs[k])
        and base.root(p.inputs[k][w.slot]) in known
        and _is_broad(ins[w.slot], w.axis)
        for w in result.wants
    )


def _is_broad(of: Any, axis: int) -> bool:
    """Whether an axis holds one element, however often; what is spread behind a whole axis of several is not."""
    if not isinstance(of, Layout) or not 0 <= axis < of.rank:
        return False
    return all(f.extent == 1 or f.domain.kind == "any" for f in of.axes[axis])
