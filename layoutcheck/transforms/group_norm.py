"""Norms over groups of features: a group is normalised by itself, so that whole groups may be sharded."""

from __future__ import annotations

from typing import Any

import attrs

from layoutcheck.infer.calls.call import Call, Result
from layoutcheck.infer.calls.factor_rule import apply_factors
from layoutcheck.infer.calls.factor_sources import Source, label_sources
from layoutcheck.layouts import layout
from layoutcheck.rules.types import Axis, Label, OperandPattern, OutputPattern, Pattern
from layoutcheck.transforms.registry import register


def _as_factors(call: Call) -> Call | None:
    """`input [n, (g k), s..]`, `weight [(g k)]`, `bias [(g k)]`: k and s are read whole. None where the input has no such axes."""
    of = call.tensor("input")
    if of is None or of.rank < 2:
        return None
    features = Axis((Label("g", False), Label("k", True)))
    behind = [Axis((Label(f"s{i}", True),)) for i in range(of.rank - 2)]
    pattern = Pattern((Axis((Label("n", False),)), features, *behind))
    sizes = {"g": call.name("num_groups")}
    operands = [OperandPattern(call.name("input"), False, False, pattern, sizes)]
    operands += [
        OperandPattern(call.name(name), True, False, Pattern((features,))) for name in ("weight", "bias")
    ]
    rule = attrs.evolve(
        call.rule, kind="factors", operands=tuple(operands), outputs=(OutputPattern("tensor", pattern),)
    )
    return Call(call.ctx, rule, call.params, call.slots)


def _back_group_norm(call: Call, outs: Any, output: int, axis: int, inner: Any) -> list[Source] | None:
    factors = _as_factors(call)
    return label_sources(factors, output, outs[output], axis, inner) if factors is not None else None


@register("group_norm", back=_back_group_norm)
def group_norm(call: Call) -> Result:
    """As torch.nn.functional.group_norm; `num_groups` counts this rank's groups."""
    factors = _as_factors(call)
    if factors is None:
        _, _, first = next(call.tensors(), ("", -1, layout("float32", ())))
        return call.result(first)
    factors.issues, factors.wants = call.issues, call.wants
    return apply_factors(factors)
