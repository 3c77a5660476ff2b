"""Symbolic integers: sizes read from tensors, and arithmetic on them."""

from __future__ import annotations

import math
from typing import Any

import attrs

from layoutcheck.infer.calls.call import Call, Result
from layoutcheck.layouts import Layout
from layoutcheck.symbols import Expr, cdiv, floordiv, lower_bound, modulo, smax, smin
from layoutcheck.transforms.registry import register


def _numel(of: Layout) -> Any:
    total: Any = 1
    for n in of.shape:
        total = total * n
    return total


def _is_size(value: Any) -> bool:
    return isinstance(value, (int, Expr)) and not isinstance(value, bool)


_ROUNDINGS: dict[str, Any] = {"ceil": math.ceil, "floor": math.floor, "trunc": math.trunc, "int": int}


def _at_least(a: Any, low: int) -> bool:
    found = lower_bound(a)
    return found is not None and found >= low


@attrs.frozen
class Ratio:
    """A quotient of sizes that is not rounded yet."""

    num: Any
    den: Any

    def rounded(self, op: str) -> Any:
        """The size that rounding gives; None where it is not known. Rounding to zero is rounding down from 0 on."""
        if op == "ceil":
            return cdiv(self.num, self.den)
        if op == "floor" or (op in ("int", "trunc") and _at_least(self.num, 0) and _at_least(self.den, 1)):
            return floordiv(self.num, self.den)
        return self if op in ("pos", "float") else None

    def __str__(self) -> str:
        return f"({self.num})/({self.den})"


@register("sym")
def sym(call: Call) -> Result:
    """One operation on sizes; None where the value is not a size that is known."""
    return call.result(_evaluate(call))


def _evaluate(call: Call) -> Any:
    op = call.rule.options.get("op", "")
    of = next((x for _, _, x in call.tensors()), None)
    if op in ("size", "stride", "numel", "storage_offset", "item"):
        if of is None:
            return None
        if op == "numel":
            return _numel(of)
        if op == "storage_offset":
            return 0
        if op == "item":
            return None
        dim = call.get("dim")
        if not isinstance(dim, int):
            return None
        dim += of.rank if dim < 0 else 0
        if not 0 <= dim < of.rank:
            return None
        if op == "size":
            return of.shape[dim]
        stride: Any = 1
        for n in of.shape[dim + 1 :]:
            stride = stride * n
        return stride
    names = list(call.params)
    values = [call.fill(v) for v in call.params.values()]
    if op == "sum":
        items = values[0] if len(values) == 1 and isinstance(values[0], list) else values
        if not all(_is_size(v) for v in items):
            return None
        total: Any = 0
        for v in items:
            total = total + v
        return total
    if len(names) == 1:
        return _unary(op, values[0])
    a, b = values[0], values[1]
    if not (_is_size(a) and _is_size(b)):
        return _plain(op, a, b)
    return _binary(op, a, b)


def _unary(op: str, a: Any) -> Any:
    if isinstance(a, Ratio):
        return a.rounded(op)
    if isinstance(a, (bool, float)):
        if op == "not":
            return not a
        if isinstance(a, float) and math.isfinite(a) and op in _ROUNDINGS:
            return _ROUNDINGS[op](a)
        return a if op in ("pos", "float") else None
    if not _is_size(a):
        return None
    if op == "neg":
        return -a
    if op == "abs":
        return abs(a) if isinstance(a, int) else a if _at_least(a, 0) else None
    return a if op in ("pos", "index", "int", "ceil", "floor", "trunc", "float") else None


def _plain(op: str, a: Any, b: Any) -> Any:
    if isinstance(a, (int, float)) and isinstance(b, (int, float)) and op in ("add", "sub", "mul"):
        return {"add": a + b, "sub": a - b, "mul": a * b}[op]
    return None


def _binary(op: str, a: Any, b: Any) -> Any:
    if op == "add":
        return a + b
    if op == "sub":
        return a - b
    if op == "mul":
        return a * b
    if op == "floordiv":
        return None if b == 0 else floordiv(a, b)
    if op == "mod":
        return None if b == 0 else modulo(a, b)
    if op == "max":
        return smax(a, b)
    if op == "min":
        return smin(a, b)
    if op == "truediv":
        if isinstance(a, int) and isinstance(b, int) and b:
            return a / b if a % b else a // b
        return None if b == 0 else Ratio(a, b)
    if op == "pow" and isinstance(b, int) and 0 <= b <= 8:
        out: Any = 1
        for _ in range(b):
            out = out * a
        return out
    if isinstance(a, int) and isinstance(b, int):
        compare = {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}
        if op in compare:
            return compare[op]
        if op in ("and", "or", "xor"):
            return {"and": a & b, "or": a | b, "xor": a ^ b}[op]
        if op in ("lshift", "rshift") and 0 <= b < 64 and abs(a) < math.inf:
            return a << b if op == "lshift" else a >> b
    return None
