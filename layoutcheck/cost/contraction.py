"""The sizes of a product from its rule: rows m, columns n, contraction k, and a batch that all of them share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from layoutcheck.cost.call_view import CallView, Missing
from layoutcheck.layouts import Layout
from layoutcheck.rules.types import Axis, Pattern, Rule, Variadic
from layoutcheck.symbols import Size

Parts = dict[str, Size]


def product_sizes(view: CallView, rule: Rule) -> dict[str, Size] | None:
    """``m``, ``n``, ``k`` and ``batch`` of a call whose rule contracts two operands; None where it is no such call."""
    if rule.code == "einsum":
        return _einsum(view, rule)
    if rule.kind != "factors" or not rule.outputs or rule.outputs[0].pattern is None:
        return None
    kept = {label.name for label in rule.outputs[0].pattern.labels()}
    operands: list[Parts] = []
    for operand in rule.operands:
        try:
            of = view.tensor(operand.param)
        except Missing:
            continue
        if isinstance(of, Layout):
            operands.append(_labelled(view, operand.pattern, of))
    return _sizes(operands, kept)


def _sizes(operands: Sequence[Parts], kept: set[str]) -> dict[str, Size] | None:
    for i, left in enumerate(operands):
        for right in operands[i + 1 :]:
            summed = [n for n in left if n in right and n not in kept]
            if summed:
                shared = [n for n in left if n in right and n in kept]
                found = {
                    "k": _of(left, summed),
                    "batch": _of(left, shared),
                    "m": _of(left, [n for n in left if n in kept and n not in right]),
                    "n": _of(right, [n for n in right if n in kept and n not in left]),
                }
                return found
    return None


def _of(parts: Mapping[str, Size], names: Sequence[str]) -> Size:
    total: Size = 1
    for name in names:
        total = total * parts[name]
    return total


def _labelled(view: CallView, pattern: Pattern, of: Layout) -> Parts:
    """Extents by label; an axis of several labels counts under all of them joined."""
    axes = list(view.axes(of))
    found: Parts = {}
    patterns = list(pattern.axes)
    lead = next((i for i, a in enumerate(patterns) if isinstance(a, Variadic)), None)
    if lead is None:
        pairs = list(zip(patterns, axes))
    else:
        many = len(axes) - (len(patterns) - 1)
        variadic = patterns[lead]
        assert isinstance(variadic, Variadic)
        total: Size = 1
        for size in axes[lead : lead + max(many, 0)]:
            total = total * size
        found[variadic.label.name] = total
        pairs = list(zip(patterns[:lead], axes[:lead])) + list(
            zip(patterns[lead + 1 :], axes[lead + max(many, 0) :])
        )
    for part, size in pairs:
        if isinstance(part, Axis) and part.labels:
            found["*".join(label.name for label in part.labels)] = size
    return found


def _einsum(view: CallView, rule: Rule) -> dict[str, Size] | None:
    """A contraction of two operands by its equation; letters of broadcast axes and more operands are not covered."""
    equation: Any = view.tensor("equation")
    tensors: Any = view.tensor(rule.options.get("operands", "operands"))
    if not isinstance(equation, str) or not isinstance(tensors, list) or len(tensors) != 2:
        return None
    sides = equation.replace(" ", "").split("->")
    inputs = sides[0].split(",")
    if len(sides) != 2 or len(inputs) != 2 or "." in equation:
        return None
    operands = [dict(zip(letters, view.axes(of))) for letters, of in zip(inputs, tensors)]
    return _sizes(operands, set(sides[1]))
