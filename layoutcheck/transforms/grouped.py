"""Grouped matmuls: rows of an expert times that expert's matrix, as one tensor with offsets or as lists of tensors."""

from __future__ import annotations

from typing import Any

import attrs

from layoutcheck.arguments import Hole
from layoutcheck.infer.calls.call import Call, Result
from layoutcheck.infer.calls.factor_rule import apply_factors
from layoutcheck.layouts import Layout, bound_on_axis, replace
from layoutcheck.rules.types import Axis, Label, Pattern
from layoutcheck.symbols import divide_exact
from layoutcheck.transforms.contract import Terms, apply_terms, as_rule, back_by, summed_by
from layoutcheck.transforms.joinery import join
from layoutcheck.transforms.rank_shares import resized
from layoutcheck.transforms.registry import register


def grouped_terms(call: Call) -> tuple[list[Any], Terms, list[str]] | None:
    """Rows grouped by expert times one matrix an expert."""
    holes = [call.raw("self"), call.raw("mat2")]
    a, b = (call.fill(h) for h in holes)
    if not isinstance(a, Layout) or not isinstance(b, Layout):
        return None
    if a.rank == 2 and b.rank == 3:
        return holes, [["t", "k"], ["e", "k", "n"]], ["t", "n"]
    if a.rank == 3 and b.rank == 3:
        return holes, [["e", "t", "k"], ["e", "k", "n"]], ["e", "t", "n"]
    if a.rank == 2 and b.rank == 2:
        return holes, [["t", "k"], ["k", "n"]], ["t", "n"]
    return None


@register("grouped_mm", back=back_by(grouped_terms), summed=summed_by(grouped_terms))
def grouped_mm(call: Call) -> Result:
    """Rows in groups, one matrix a group: the expert axis of the weights is chosen by the row, not summed."""
    if isinstance(call.raw("self"), (list, tuple)):
        answer = _listed(call)
    else:
        answer = _offsets(call)
    if call.get("halves") != 1 or not answer.outs or not isinstance(answer.outs[0], Layout):
        return answer
    return attrs.evolve(answer, outs=(_halved(answer.outs[0]), *answer.outs[1:]))


def _offsets(call: Call) -> Result:
    found = grouped_terms(call)
    if found is None:
        return apply_terms(call, None)
    weight = call.tensor("mat2")
    rows = call.tensor("self")
    assert weight is not None and rows is not None
    holes, terms, out = found
    if weight.rank == 3 and rows.rank == 2:
        # e is selected: a shard of experts on a group leaves a factor on no axis
        inner = as_rule(call, holes, terms, out)
        patterns = inner.rule.operands
        e_whole = attrs.evolve(
            patterns[1], pattern=Pattern((Axis((Label("e", True),)), *patterns[1].pattern.axes[1:]))
        )
        if bound_on_axis(weight, 0):
            slots = list(inner.slots)
            hole = holes[1]
            slots[hole.slot] = replace(weight, axes=((), *weight.axes[1:]))
            inner.slots = tuple(slots)
        inner.rule = attrs.evolve(inner.rule, operands=(patterns[0], e_whole))
        return apply_factors(inner)
    return apply_terms(call, found)


def _listed(call: Call) -> Result:
    """One tensor of rows and one matrix an expert, in two lists; the products are joined by rows."""
    rows, weights = call.raw("self"), call.raw("mat2")
    packed = call.get("packed", 1)
    parts: list[tuple[str, int, Layout]] = []
    pairs = zip(rows, weights, strict=False) if isinstance(weights, (list, tuple)) else ()
    for left, right in pairs:
        a, b = call.fill(left), call.fill(right)
        if not isinstance(left, Hole) or not isinstance(right, Hole):
            continue
        if not isinstance(a, Layout) or not isinstance(b, Layout) or a.rank != 2 or b.rank != 2:
            continue
        inner = as_rule(call, [left, right], [["t", "k"], ["k", "n"]], ["t", "n"])
        inner.rule = attrs.evolve(inner.rule, addends=frozenset(), scales={})
        if isinstance(packed, int) and packed > 1:
            slots = list(inner.slots)
            axis, bound = resized(b, 0, b.shape[0] * packed)
            slots[right.slot] = replace(b, axes=(axis, b.axes[1]), bound=bound)
            inner.slots = tuple(slots)
        product = apply_factors(inner).outs[0]
        if isinstance(product, Layout):
            parts.append((call.name("self"), left.slot, product))
    if not parts:
        return apply_terms(call, None)
    return call.result(join(call, parts, 0) if len(parts) > 1 else parts[0][2])


def _halved(of: Layout) -> Layout:
    """Half the columns: a gate times what it gates."""
    half = divide_exact(of.shape[-1], 2)
    if half is None:
        return of
    axis, bound = resized(of, of.rank - 1, half)
    return replace(of, axes=(*of.axes[:-1], axis), bound=bound)
