"""From sympy expressions to a list of operations on whole arrays, keeping integers and ratios exact.

A value is an integer, a ratio of two integers, or inexact. Ratios are carried as numerator and denominator
until something asks for their value, so ``ceiling(T/p)`` becomes one integer ceiling of T and p, and
``ceiling(T/p + 1/2)`` one of ``2 T + p`` and ``2 p``. Equal subexpressions become one operation.

Symbols are sizes: integers from 0 up. A denominator that is a product of symbols is therefore positive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from math import lcm
from typing import Any

from attrs import define, field, frozen

from layoutcheck.errors import InputError

Ref = int
"""The index of an operation, whose value it names."""


@frozen
class Op:
    """One operation: its name, the operations it reads, and for ``const`` and ``input`` what it is."""

    name: str
    args: tuple[Ref, ...] = ()
    value: Any = None
    integer: bool = False


@frozen
class Value:
    """A lowered value: ``top``, or ``top / bottom``. ``exact`` where both are integers."""

    top: Ref
    bottom: Ref | None = None
    exact: bool = True
    positive_bottom: bool = True


@define
class Lowering:
    """Operations in the order in which they can be run."""

    ops: list[Op] = field(factory=list)
    inexact_ceilings: int = 0
    _known: dict[Op, Ref] = field(factory=dict)
    _memo: dict[Any, Value] = field(factory=dict)
    _inputs: list[frozenset[str]] = field(factory=list)

    def emit(self, name: str, *args: Ref, value: Any = None, integer: bool = False) -> Ref:
        """Add an operation, or return the equal one that is there; constants are folded."""
        if args and all(self.ops[a].name == "const" for a in args):
            return self.const(scalar(name, *(self.ops[a].value for a in args)))
        found = self._simplified(name, args)
        if found is not None:
            return found
        op = Op(name, args, value, integer)
        # 1 == 1.0 == True: the type is part of a constant's identity
        key: Any = (op, type(value)) if name == "const" else op
        if key not in self._known:
            self.ops.append(op)
            own = frozenset((str(value),) if name == "input" else ())
            self._inputs.append(own.union(*(self._inputs[a] for a in args)))
            self._known[key] = len(self.ops) - 1
        return self._known[key]

    def const(self, value: Any) -> Ref:
        """Add a number or truth value."""
        return self.emit("const", value=value, integer=isinstance(value, int) and not isinstance(value, bool))

    def _simplified(self, name: str, args: tuple[Ref, ...]) -> Ref | None:
        values = [self.ops[a].value if self.ops[a].name == "const" else None for a in args]
        if name == "mul" and 1 in values:
            return args[1 - values.index(1)]
        if name in ("ceil_div", "floor_div", "div") and type(values[1]) is int and values[1] == 1:
            return args[0]
        if name in ("min", "max") and args[0] == args[1]:
            return args[0]
        return None

    # values -----------------------------------------------------------------------------------------------

    def lower(self, expr: Any) -> Value:
        """Lower an expression.

        Raises:
            InputError: it holds a function that is not known here.
        """
        key = (type(expr), expr)  # some versions of sympy hold 1 and 1.0 equal
        if key not in self._memo:
            self._memo[key] = self._lower(expr)
        return self._memo[key]

    def number(self, value: Value) -> Ref:
        """Return a value as one operation: a ratio is divided."""
        return value.top if value.bottom is None else self.emit("div", value.top, value.bottom)

    def _lower(self, expr: Any) -> Value:
        import sympy

        if expr.is_Integer:
            return Value(self.const(int(expr)))
        if expr.is_Rational:
            return Value(self.const(int(expr.p)), self.const(int(expr.q)))
        if expr.is_Float or expr.is_NumberSymbol:
            return Value(self.const(float(expr)), exact=False)
        if expr.is_Symbol:
            return Value(self.emit("input", value=expr.name, integer=True))
        if expr.is_Add:
            return self._sum([self.lower(a) for a in expr.args])
        if expr.is_Mul:
            return reduce(self._product, [self.lower(a) for a in expr.args])
        if expr.is_Pow:
            return self._power(expr)
        if isinstance(expr, (sympy.ceiling, sympy.floor)):
            return self._round(expr.args[0], "ceil" if isinstance(expr, sympy.ceiling) else "floor")
        if isinstance(expr, sympy.Mod):
            top, bottom = (self.lower(a) for a in expr.args)
            quotient = self._rounded(self._ratio(top, bottom), "floor")
            return self._sum([top, self._product(Value(self.const(-1)), self._product(quotient, bottom))])
        if isinstance(expr, (sympy.Min, sympy.Max)):
            name = "min" if isinstance(expr, sympy.Min) else "max"
            return reduce(lambda a, b: self._pick(name, a, b), [self.lower(a) for a in expr.args])
        if isinstance(expr, sympy.Piecewise):
            return self._piecewise(expr)
        for kind, name in ((sympy.log, "log"), (sympy.exp, "exp"), (sympy.Abs, "abs")):
            if isinstance(expr, kind):
                inner = self.lower(expr.args[0])
                keeps = name == "abs" and inner.exact and inner.bottom is None
                return Value(self.emit(name, self.number(inner), integer=keeps), exact=keeps)
        raise InputError(f"cannot be compiled: {type(expr).__name__} in {expr}")

    def _sum(self, values: list[Value]) -> Value:
        # addends of the same symbols first: their sum can then be computed once for each value of these
        plain = sorted(
            (v for v in values if v.bottom is None),
            key=lambda v: (len(self._inputs[v.top]), sorted(self._inputs[v.top])),
        )
        ratios = [v for v in values if v.bottom is not None]
        total = reduce(self._add, plain) if plain else None
        by_bottom: dict[Ref, Value] = {}
        for ratio in ratios:
            assert ratio.bottom is not None
            other = by_bottom.get(ratio.bottom)
            by_bottom[ratio.bottom] = ratio if other is None else self._add(other, ratio)
        for ratio in by_bottom.values():
            total = ratio if total is None else self._add(total, ratio)
        assert total is not None
        return total

    def _add(self, a: Value, b: Value) -> Value:
        if not (a.exact and b.exact):
            return Value(self.emit("add", self.number(a), self.number(b)), exact=False)
        x, y, bottom, positive = self._common(a, b)
        return Value(self.emit("add", x, y, integer=True), bottom, True, positive)

    def _common(self, a: Value, b: Value) -> tuple[Ref, Ref, Ref | None, bool]:
        """Both numerators over one denominator."""
        if a.bottom == b.bottom:
            return a.top, b.top, a.bottom, a.positive_bottom
        one = self.const(1)
        p, q = one if a.bottom is None else a.bottom, one if b.bottom is None else b.bottom
        left, right = self.ops[p], self.ops[q]
        if left.name == "const" and right.name == "const":
            shared = lcm(left.value, right.value)
            x = self._times(a.top, self.const(shared // left.value))
            return x, self._times(b.top, self.const(shared // right.value)), self.const(shared), True
        positive = a.positive_bottom and b.positive_bottom
        return self._times(a.top, q), self._times(b.top, p), self._times(p, q), positive

    def _times(self, a: Ref, b: Ref) -> Ref:
        return self.emit("mul", *sorted((a, b)), integer=True)

    def _product(self, a: Value, b: Value) -> Value:
        if not (a.exact and b.exact):
            return Value(self.emit("mul", self.number(a), self.number(b)), exact=False)
        top = self._times(a.top, b.top)
        if a.bottom is None or b.bottom is None:
            kept = a if a.bottom is not None else b
            return Value(top, kept.bottom, True, kept.positive_bottom)
        bottom = self._times(a.bottom, b.bottom)
        return Value(top, bottom, True, a.positive_bottom and b.positive_bottom)

    def _ratio(self, a: Value, b: Value) -> Value:
        if not (a.exact and b.exact):
            return Value(self.emit("div", self.number(a), self.number(b)), exact=False)
        inverse = Value(self.const(1) if b.bottom is None else b.bottom, b.top, True, self._positive(b.top))
        return self._product(a, inverse)

    def _positive(self, ref: Ref) -> bool:
        """Whether an operation is positive because symbols are sizes."""
        op = self.ops[ref]
        if op.name == "const":
            return bool(op.value > 0)
        return op.name == "input" or (op.name in ("mul", "add") and all(self._positive(a) for a in op.args))

    def _power(self, expr: Any) -> Value:
        base, exponent = expr.args
        value = self.lower(base)
        if exponent.is_Integer:
            count = abs(int(exponent))
            if count <= 16:
                result = self._repeat(value, count)
                return result if int(exponent) > 0 else self._ratio(Value(self.const(1)), result)
        inner = self.number(value)
        if exponent.is_number and float(exponent) == 0.5:
            return Value(self.emit("sqrt", inner), exact=False)
        return Value(self.emit("pow", inner, self.number(self.lower(exponent))), exact=False)

    def _repeat(self, value: Value, count: int) -> Value:
        if count == 1:
            return value
        half = self._repeat(value, count // 2)
        square = self._product(half, half)
        return self._product(square, value) if count % 2 else square

    def _round(self, inner: Any, way: str) -> Value:
        return self._rounded(self.lower(inner), way)

    def _rounded(self, value: Value, way: str) -> Value:
        if not value.exact:
            self.inexact_ceilings += 1
            return Value(self.emit(way, value.top), exact=False)
        if value.bottom is None:
            return value
        return Value(self.emit(f"{way}_div", value.top, value.bottom, integer=True))

    def _pick(self, name: str, a: Value, b: Value) -> Value:
        if a.exact and b.exact and a.positive_bottom and b.positive_bottom:
            x, y, bottom, positive = self._common(a, b)
            return Value(self.emit(name, x, y, integer=True), bottom, True, positive)
        return Value(self.emit(name, self.number(a), self.number(b)), exact=False)

    def _piecewise(self, expr: Any) -> Value:
        import sympy

        branches = [(self.lower(value), condition) for value, condition in expr.args]
        result, last = branches[-1]
        if last is not sympy.true:
            raise InputError(f"cannot be compiled: {expr} has no value where no condition holds")
        for value, condition in reversed(branches[:-1]):
            test = self._condition(condition)
            if value.exact and result.exact:
                x, y, bottom, positive = self._common(value, result)
                result = Value(self.emit("where", test, x, y, integer=True), bottom, True, positive)
            else:
                x, y = self.number(value), self.number(result)
                result = Value(self.emit("where", test, x, y), exact=False)
        return result

    def _condition(self, condition: Any) -> Ref:
        import sympy

        if condition in (sympy.true, sympy.false):
            return self.const(condition is sympy.true)
        for kind, name in ((sympy.And, "and"), (sympy.Or, "or")):
            if isinstance(condition, kind):
                return reduce(
                    lambda a, b: self.emit(name, a, b), [self._condition(c) for c in condition.args]
                )
        if isinstance(condition, sympy.ITE):
            test, yes, no = (self._condition(c) for c in condition.args)
            return self.emit("or", self.emit("and", test, yes), self.emit("and", self.emit("not", test), no))
        if isinstance(condition, sympy.Not):
            return self.emit("not", self._condition(condition.args[0]))
        names = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne"}
        if not getattr(condition, "is_Relational", False):
            raise InputError(f"cannot be compiled: the condition {condition}")
        a, b = self.lower(condition.lhs), self.lower(condition.rhs)
        if a.exact and b.exact and a.positive_bottom and b.positive_bottom:
            x, y, _, _ = self._common(a, b)
        else:
            x, y = self.number(a), self.number(b)
        return self.emit(names[condition.rel_op], x, y)


def _safe(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        try:
            return function(*args)
        except ZeroDivisionError as error:
            raise InputError("division by zero: a size that divides is 0") from error

    return call


def _scalars() -> Mapping[str, Callable[..., Any]]:
    import math
    import operator

    return {
        "add": operator.add,
        "mul": operator.mul,
        "div": _safe(operator.truediv),
        "ceil_div": _safe(lambda a, b: -((-a) // b)),
        "floor_div": _safe(operator.floordiv),
        "ceil": math.ceil,
        "floor": math.floor,
        "min": min,
        "max": max,
        "sqrt": math.sqrt,
        "pow": operator.pow,
        "log": _safe(math.log),
        "exp": math.exp,
        "abs": abs,
        "where": lambda test, a, b: a if test else b,
        "lt": operator.lt,
        "le": operator.le,
        "gt": operator.gt,
        "ge": operator.ge,
        "eq": operator.eq,
        "ne": operator.ne,
        "and": lambda a, b: a and b,
        "or": lambda a, b: a or b,
        "not": operator.not_,
    }


SCALARS = _scalars()


def scalar(name: str, *args: Any) -> Any:
    """Run one operation on Python numbers: integers stay exact, whatever their size."""
    return SCALARS[name](*args)
