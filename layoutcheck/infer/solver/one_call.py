"""One call typed by its rule: the rule's kind is chosen, transforms that follow are applied, arguments that do not fit are reported."""

from __future__ import annotations

import os
from typing import Any

import attrs

from layoutcheck.arguments import Hole
from layoutcheck.infer.calls.call import Call, Context, Issue, Result, dim_of
from layoutcheck.infer.calls.elementwise import elementwise
from layoutcheck.infer.calls.factor_rule import apply_factors
from layoutcheck.infer.calls.positions import settled
from layoutcheck.layouts import Layout
from layoutcheck.program import OpInstance
from layoutcheck.transforms import find


def transform_of(instance: OpInstance) -> Any:
    """The transform of a code rule, or None."""
    rule = instance.rule
    return find(rule.code) if rule is not None and rule.code else None


def make_call(ctx: Context, instance: OpInstance, slots: tuple[Any, ...]) -> Call:
    """The call as its rule sees it."""
    assert instance.rule is not None
    return Call(ctx, instance.rule, instance.params, slots)


_WRONG_ARGUMENTS = (TypeError, ValueError, AttributeError, IndexError, KeyError, ArithmeticError)


def apply(ctx: Context, instance: OpInstance, slots: tuple[Any, ...]) -> Result:
    """Type one call by its rule.

    Arguments come from a file, and may be of a type that no rule expects; such a call is malformed (LC903).
    """
    try:
        return _apply(ctx, instance, slots)
    except _WRONG_ARGUMENTS as error:
        if os.environ.get("LAYOUTCHECK_DEBUG"):
            raise
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        text = f"the arguments do not fit {instance.target}: its rule can't use them ({what})"
        given = next((s for s in slots if isinstance(s, Layout)), None)
        return Result((given,) * max(instance.returns, 1), (Issue("LC903", text),))


def _apply(ctx: Context, instance: OpInstance, slots: tuple[Any, ...]) -> Result:
    rule = instance.rule
    assert rule is not None
    call = make_call(ctx, instance, settled(slots))
    if rule.kind == "elementwise":
        result = elementwise(call)
    elif rule.kind == "factors":
        result = apply_factors(call, complete=True)
    else:
        transform = find(rule.code or "")
        condition = rule.options.get("if")
        if condition in call.params and not call.fill(call.params[condition]):
            transform = find("wait")  # it is not done this time: the value itself
        result = transform.forward(call) if transform is not None else _unknown(instance, call)
    for name, options in rule.then:
        result = _then(call, result, name, dict(options))
    if len(result.outs) < instance.returns:
        result = _lacking(instance, call, result)
        filler = result.outs[-1] if result.outs else None
        result = attrs.evolve(result, outs=(*result.outs, *[filler] * (instance.returns - len(result.outs))))
    return result


def _lacking(instance: OpInstance, call: Call, result: Result) -> Result:
    """Pieces that are read and that a split does not give: it was written for another extent."""
    transform, made = transform_of(instance), len(result.outs)
    if transform is None or not transform.in_pieces or made >= instance.read or result.issues:
        return result
    of = next((s for s in call.slots if isinstance(s, Layout)), None)
    dim = dim_of(call, "dim", of.rank, 0) if of is not None else -1
    if of is None or dim < 0 or not isinstance(of.shape[dim], int):
        return result
    text = (
        f"{{0}} is cut into {made} here, and piece {instance.read} is read: it was written for another extent"
    )
    slot = call.slots.index(of)
    return attrs.evolve(result, issues=(Issue("LC101", text, (slot,), ("literal",)),), quiet=False)


def _then(call: Call, result: Result, name: str, options: dict[str, str]) -> Result:
    """A transform on output 0 afterwards (an all_reduce behind a matmul, a quantisation behind a norm)."""
    condition = options.pop("if", None)
    if condition is not None and not call.fill(call.params.get(condition)):
        return result
    first = result.outs[0] if result.outs else None
    if name == "cache_write":
        written = _run_then(call, call.rule.mutates, name, options, None)
        return Result(
            result.outs,
            (*result.issues, *written.issues),
            (*result.wants, *written.wants),
            {**result.mutated, **written.mutated},
        )
    if not isinstance(first, Layout):
        return result
    more = _run_then(call, (), name, options, first)
    slot = len(call.slots)
    issues = (
        *result.issues,
        *[attrs.evolve(i, operands=tuple(o for o in i.operands if o < slot) or (0,)) for i in more.issues],
    )
    wants = (*result.wants, *[attrs.evolve(w, slot=-2 if w.slot == slot else w.slot) for w in more.wants])
    return Result((*more.outs, *result.outs[1:]), issues, wants, result.mutated)


def _run_then(
    call: Call, mutates: tuple[str, ...], name: str, options: dict[str, str], first: Layout | None
) -> Result:
    transform = find(name)
    if transform is None:
        return Result(())
    params = dict(call.params)
    slots = call.slots
    if first is not None:
        for own in ("x", "self", "input"):
            params[own] = Hole(len(slots))
        slots = (*slots, first)
        options = {k: v for k, v in options.items() if k not in ("x", "self", "input")}
    rule = attrs.evolve(call.rule, kind="code", code=name, options=options, then=(), mutates=mutates)
    return transform.forward(Call(call.ctx, rule, params, slots))


def _unknown(instance: OpInstance, call: Call) -> Result:
    call.issue(
        "LC901",
        f"the rule of {instance.target} names a transform `{instance.rule.code if instance.rule else ''}` that does not exist",
    )
    return call.result(*[None] * instance.returns)
