"""What a rule says about an op's part in a decoder: does it contract with a weight, carry a value along, choose, attend.

Facts hold for an op instance; where they depend on what the operands are (weights or activations), the flow decides.
"""

from __future__ import annotations

import attrs

from layoutcheck.infer.calls.call import slots_in
from layoutcheck.program import CALL, OpInstance, Program
from layoutcheck.rules.kinds import COMMUNICATING
from layoutcheck.rules.types import Axis, Rule, Variadic

# Transforms whose result is their operand's content: in another shape, a part of it, on other ranks, or in codes.
CARRYING = frozenset(
    (
        *("view", "flatten", "unflatten", "permute", "transpose", "t", "movedim", "squeeze", "unsqueeze"),
        *("expand", "slice", "narrow", "select", "split", "chunk", "unbind", "cat", "stack", "pad"),
        *("same", "wait", "copy", "quantize", "shard"),
        *COMMUNICATING,
        *("region_begin", "region_end", "region_copy"),
    )
)
ALIASING = frozenset(
    (
        *("view", "flatten", "unflatten", "permute", "transpose", "t", "movedim", "squeeze", "unsqueeze"),
        *("expand", "slice", "narrow", "select", "split", "chunk", "unbind"),
    )
)
PICKING_ROWS = frozenset(("index", "index_select", "gather"))
_PRODUCTS = frozenset(("matmul", "einsum", "grouped_mm", "conv"))


@attrs.frozen
class Facts:
    """`params[slot]` is the parameter that an input slot is part of. `adds` are the two parameters of a sum."""

    params: tuple[str, ...]
    weights: frozenset[str]
    contracts: bool
    carries: bool
    carried: str | None
    aliases: bool
    pointwise: bool
    factors: bool
    reduces: bool
    looks_up: bool
    picks_rows: bool
    chooses: bool
    routes: bool
    norm: bool
    adds: tuple[str, ...]
    normed: str | None
    attention: bool
    indexer: bool
    whole: frozenset[str]
    mutates: tuple[str, ...]
    code: str | None


_NOTHING = Facts(
    *((), frozenset(), False, False, None, False, False, False, False, False, False, False, False, False),
    *((), None, False, False, frozenset(), (), None),
)


def facts_of(program: Program) -> list[Facts]:
    """The facts of every op instance."""
    return [facts_of_instance(instance) for instance in program.instances]


def facts_of_instance(instance: OpInstance) -> Facts:
    """The facts of one op instance."""
    rule = instance.rule
    if rule is None or instance.error is not None:
        return _NOTHING
    params = [""] * instance.n_inputs
    for name, value in instance.params.items():
        for slot in slots_in(value):
            params[slot] = name
    code = rule.code if rule.kind == "code" else None
    one = len(rule.linear) == 1 and rule.kind == "elementwise"
    part = rule.part[0] if rule.part else ""
    norm, normed = _norm(rule)
    sums = tuple(rule.part[1:]) if part == "norm" else ()
    carried = None
    if code == "copy":
        carried = rule.options.get("src", "src")
    elif code == "same" or code in ALIASING:
        # A second tensor gives a shape or a dtype (`view_as`, `type_as`).
        main = rule.options.get("self", "self")
        carried = main if main in params and len({name for name in params if name}) > 1 else None
    return Facts(
        params=tuple(params),
        weights=rule.weights,
        contracts=_contracts(rule),
        carries=code in CARRYING or (one and len([n for n in params if n]) == 1),
        carried=carried,
        aliases=code in ALIASING,
        pointwise=rule.kind == "elementwise" or code in ("same", "where", "masked_fill"),
        factors=rule.kind == "factors",
        reduces=code == "reduce",
        looks_up=code == "embedding" or (code in PICKING_ROWS),
        picks_rows=code in PICKING_ROWS,
        chooses=code in ("topk", "argmax", "sort")
        or (code == "reduce" and "indices" in rule.options)
        or any(key.startswith("out") for key in rule.into),
        routes=code in ("dispatch", "combine", "moe"),
        norm=norm,
        adds=sums,
        normed=normed,
        attention=part == "attention",
        indexer=part == "indexer",
        whole=rule.whole,
        mutates=rule.mutates,
        code=code,
    )


def additive_pair(rule: Rule | None) -> bool:
    """Whether a call adds two values of equal standing, as a residual connection does."""
    return rule is not None and rule.kind in ("elementwise", "factors") and len(rule.additive) == 2


def _labels(rule: Rule, param: str) -> set[str]:
    return {
        label.name
        for operand in rule.operands
        if operand.param == param
        for label in operand.pattern.labels()
    }


def _contracts(rule: Rule) -> bool:
    """Whether some axis is summed over in a product of two operands."""
    if rule.kind == "code":
        return rule.code in _PRODUCTS
    if rule.kind != "factors":
        return False
    kept = {label.name for out in rule.outputs if out.pattern is not None for label in out.pattern.labels()}
    seen: set[str] = set()
    for operand in rule.operands:
        mine = _labels(rule, operand.param) - kept
        if mine & seen:
            return True
        seen |= mine
    return False


def _norm(rule: Rule) -> tuple[bool, str | None]:
    """Whether an op is a norm, and the parameter that it normalises.

    Said by the rule, or seen: it reads a whole last axis, has a weight along just that axis, and keeps the axes.
    """
    if rule.part and rule.part[0] == "norm":
        return True, rule.operands[0].param if rule.operands else None
    if rule.kind != "factors" or not rule.operands or not rule.outputs:
        return False, None
    first = rule.operands[0]
    axes = first.pattern.axes
    if not axes or not isinstance(axes[-1], Axis) or len(axes[-1].labels) != 1 or first.param in rule.weights:
        return False, None
    last = axes[-1].labels[0]
    out = rule.outputs[0].pattern
    if not last.whole or out is None or [_name(a) for a in out.axes] != [_name(a) for a in axes]:
        return False, None
    along = any(
        operand.param in rule.weights and [_name(a) for a in operand.pattern.axes] == [(last.name,)]
        for operand in rule.operands
    )
    return along, first.param if along else None


def _name(axis: object) -> object:
    if isinstance(axis, Axis):
        return tuple(label.name for label in axis.labels)
    return axis.label.name if isinstance(axis, Variadic) else axis


def is_call(program: Program, k: int) -> bool:
    """Whether a call has an op that a rule speaks of."""
    return program.kind[k] == CALL
