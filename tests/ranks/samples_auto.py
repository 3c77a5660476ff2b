"""Calls of the pointwise rules, made from torch's schemas: operands of one shape, and broadcast ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from layoutcheck.rules.rulebook import RuleBook
from layoutcheck.rules.types import Rule

from .calls import Sample, X

INTEGERS = frozenset(
    [
        "bitwise_and",
        "bitwise_or",
        "bitwise_xor",
        "bitwise_not",
        "bitwise_left_shift",
        "bitwise_right_shift",
        "__and__",
        "__or__",
        "__xor__",
        "__lshift__",
        "__rshift__",
        "__iand__",
        "__ior__",
        "__ixor__",
        "gcd",
        "lcm",
    ]
)
SHIFTS = frozenset(["bitwise_left_shift", "bitwise_right_shift", "__lshift__", "__rshift__"])
POSITIVE = frozenset(["log", "log2", "log10", "log1p", "sqrt", "rsqrt", "logit", "xlogy", "pow", "acosh"])
RANDOM = frozenset(["dropout", "native_dropout", "bernoulli"])
SCALARS: dict[str, Any] = {
    "other": 3,
    "exponent": 3,
    "value": 2,
    "alpha": 1,
    "negative_slope": 0.25,
    "threshold": 0.5,
    "min": -1,
    "max": 2,
    "weight": 0.25,
    "decimals": 1,
    "p": 0.5,
    "train": False,
    "rounding_mode": "floor",
    "self": 3,
    "eps": 0.125,
}
THRESHOLD_VALUE = 0.75


def schema_of(target: str) -> Any:
    """Torch's schema of a rule's target; a rule for all overloads takes the default one."""
    namespace, op, *overload = target.split(".")
    packet = getattr(getattr(torch.ops, namespace), op, None)
    if packet is None:
        return None
    names = overload or (["default"] if "default" in packet.overloads() else packet.overloads()[:1])
    return getattr(packet, names[0])._schema


def full_target(rule: Rule) -> str:
    """The target with its overload."""
    parts = rule.target.split(".")
    return rule.target if len(parts) > 2 else rule.target + ".default"


def pointwise(book: RuleBook) -> Iterator[Sample]:
    """Samples of all elementwise rules of torch."""
    for rule in book.rules.values():
        if rule.kind != "elementwise" or rule.then or not rule.target.startswith("aten."):
            continue
        op = rule.target.split(".")[1]
        schema = schema_of(rule.target)
        if schema is None or op in RANDOM:
            continue
        kind = "i" if op in INTEGERS or op.startswith("logical_") else "p" if op in POSITIVE else "f"
        tensors: list[str] = []
        rest: dict[str, Any] = {}
        for a in schema.arguments:
            text = str(a.type)
            if text in ("Tensor", "Optional[Tensor]"):
                tensors.append(a.name)
            elif not a.has_default_value() or a.name in ("min", "max"):
                rest[a.name] = THRESHOLD_VALUE if op == "threshold" and a.name == "value" else SCALARS[a.name]
        if op == "clamp_min":
            rest = {k: v for k, v in rest.items() if k == "min"}
        if not tensors:
            continue
        kinds = {name: kind for name in tensors}
        if op in SHIFTS and len(tensors) > 1:
            kinds[tensors[1]] = "@4"
        shapes = [["t h"] * len(tensors)]
        if len(tensors) == 1:
            shapes = [["b t h"]]
        elif len(tensors) == 2:
            shapes += [["t h", "h"], ["t h", "t 1"], ["h", "t h"]]
        elif len(tensors) == 3:
            shapes += [["t h", "h", "t h"], ["t h", "t h", "1"]]
        for axes in shapes:
            if op == "prelu":
                axes = ["t h", "1"]
            operands = {n: X(a, kinds[n]) for n, a in zip(tensors, axes)}
            yield Sample(
                full_target(rule),
                {**operands, **rest},
                note="" if axes == shapes[0] else " against ".join(axes),
            )
            if op == "prelu":
                break
