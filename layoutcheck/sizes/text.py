"""Parser of size expressions as exports write them: sympy's srepr and infix, in one grammar.

Nothing is evaluated by Python: the text is data. `FloorDiv(Add(Symbol('s77', positive=True, integer=True),
Integer(3)), Integer(4))`, `4*(((s96 + 3)//4))`, `Min(6, s27)`, `ceil(T/4)` all give a `Size`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeAlias

from layoutcheck.errors import InputError
from layoutcheck.sizes.bounds import smax, smin
from layoutcheck.sizes.core import Size, add_all, divide_exact, multiply, power, sym
from layoutcheck.sizes.division import cdiv, floordiv, modulo
from layoutcheck.sizes.printing import default_positive

MAX_LENGTH = 20_000
MAX_DEPTH = 100
MAX_DIGITS = 40
_MEMO_LIMIT = 50_000
_MEMO_LENGTH = 1000

_TOKEN = re.compile(
    r"\s*(?:(?P<int>\d+)(?![\w.])|(?P<name>[A-Za-z_]\w*)|(?P<str>'[^'\\\n]*'|\"[^\"\\\n]*\")|(?P<op>\*\*|//|[-+*/%(),=]))"
)
_SYMBOL = re.compile(r"[A-Za-z_][\w.]{0,199}\Z")
_FLAGS = frozenset(
    {"positive", "integer", "nonnegative", "nonzero", "negative", "real", "finite", "zero", "commutative"}
    | {"rational", "extended_real", "even", "odd", "evaluate"}
)


class _Ratio:
    """A quotient that is no size yet: only a rounding function may use it."""

    __slots__ = ("den", "num")

    def __init__(self, num: Size, den: Size) -> None:
        self.num = num
        self.den = den


Value: TypeAlias = Size | _Ratio
_MEMO: dict[str, Size] = {}


def parse_size(text: str) -> Size:
    """The size that `text` writes.

    Raises InputError for anything but the grammar: an unknown function (naming it), a fraction, a division
    by zero, text longer than 20,000 characters or nested deeper than 100.
    """
    found = _MEMO.get(text)
    if found is None:
        if len(text) > MAX_LENGTH:
            raise InputError(f"size expression of {len(text)} characters; at most {MAX_LENGTH} are read")
        found = _Parser(text).parse()
        if len(_MEMO) > _MEMO_LIMIT:
            _MEMO.clear()
        if len(text) <= _MEMO_LENGTH:
            _MEMO[text] = found
    return found


def _clip(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[tuple[str, str]] = []
        self.at = 0
        self.depth = 0
        position = 0
        end = len(text.rstrip())
        while position < end:
            match = _TOKEN.match(text, position)
            if match is None:
                raise self.error(f"unexpected {_clip(text[position : position + 12].strip())}")
            kind = match.lastgroup or "op"
            token = match[kind]
            if kind == "int" and len(token) > MAX_DIGITS:
                raise self.error(f"a number of {len(token)} digits")
            self.tokens.append((kind, token))
            position = match.end()
        self.tokens.append(("end", ""))

    def error(self, message: str) -> InputError:
        return InputError(f"{message} in the size expression {_clip(self.text)}")

    def parse(self) -> Size:
        try:
            value = self.sum()
            if self.tokens[self.at][0] != "end":
                raise self.error(f"unexpected {_clip(self.tokens[self.at][1])}")
            return self.size(value)
        except ZeroDivisionError:
            raise self.error("division by zero") from None
        except RecursionError:
            raise self.error("nesting too deep") from None

    def size(self, value: Value) -> Size:
        if isinstance(value, _Ratio):
            raise self.error("a fraction that is not rounded")
        return value

    def enter(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error(f"nesting deeper than {MAX_DEPTH}")

    def accept(self, *ops: str) -> str | None:
        kind, token = self.tokens[self.at]
        if kind == "op" and token in ops:
            self.at += 1
            return token
        return None

    def expect(self, op: str) -> None:
        if self.accept(op) is None:
            kind, token = self.tokens[self.at]
            raise self.error(f"'{op}' expected, {'the end' if kind == 'end' else _clip(token)} found")

    def sum(self) -> Value:
        self.enter()
        value = self.product()
        rest: list[Size] = []
        while op := self.accept("+", "-"):
            right = self.size(self.product())
            rest.append(right if op == "+" else multiply(right, -1))
        self.depth -= 1
        return add_all((self.size(value), *rest)) if rest else value

    def product(self) -> Value:
        value = self.unary()
        while op := self.accept("*", "//", "%", "/"):
            right = self.unary()
            if op == "*":
                value = self.times(value, right)
            elif op == "/":
                value = self.over(value, self.size(right))
            elif op == "//":
                value = floordiv(*self.pair(value, right))
            else:
                value = modulo(self.size(value), self.size(right))
        return value

    def pair(self, a: Value, b: Value) -> tuple[Size, Size]:
        if isinstance(a, _Ratio):
            return a.num, multiply(a.den, self.size(b))
        return a, self.size(b)

    def times(self, a: Value, b: Value) -> Value:
        if isinstance(a, _Ratio):
            return self.over(multiply(a.num, self.size(b)), a.den)
        if isinstance(b, _Ratio):
            return self.over(multiply(a, b.num), b.den)
        return multiply(a, b)

    def over(self, a: Value, den: Size) -> Value:
        if isinstance(a, _Ratio):
            return self.over(a.num, multiply(a.den, den))
        if den == 0:
            raise ZeroDivisionError
        exact = divide_exact(a, den)
        return _Ratio(a, den) if exact is None else exact

    def unary(self) -> Value:
        sign = 1
        while op := self.accept("-", "+"):
            if op == "-":
                sign = -sign
        value = self.factor()
        return value if sign == 1 else self.times(value, -1)

    def factor(self) -> Value:
        value = self.primary()
        if self.accept("**"):
            self.enter()
            exponent = self.unary()
            self.depth -= 1
            return self.raised(value, exponent)
        return value

    def raised(self, base: Value, exponent: Value) -> Value:
        if not isinstance(exponent, int):
            raise self.error("a power whose exponent is no number")
        if exponent == -1:
            return self.over(1, self.size(base))
        try:
            return power(self.size(base), exponent)
        except InputError as error:
            raise self.error(error.message) from None

    def primary(self) -> Value:
        kind, token = self.tokens[self.at]
        if kind == "end":
            raise self.error("the end")
        self.at += 1
        if kind == "int":
            return int(token)
        if kind == "name":
            if self.accept("("):
                return self.call(token)
            return sym(token, default_positive(token))
        if token == "(":
            value = self.sum()
            self.expect(")")
            return value
        raise self.error(f"unexpected {_clip(token)}")

    def call(self, name: str) -> Value:
        if name in ("Symbol", "Dummy"):
            return self.symbol()
        function = _FUNCTIONS.get(name)
        if function is None:
            raise self.error(f"unknown function {_clip(name)}")
        return function(self, self.arguments())

    def arguments(self) -> list[Value]:
        args: list[Value] = []
        first = True
        while not self.accept(")"):
            if not first:
                self.expect(",")
            first = False
            if self.flag() is None:
                args.append(self.sum())
        return args

    def flag(self) -> tuple[str, str] | None:
        """Read one `positive=True` of sympy's printing."""
        kind, token = self.tokens[self.at]
        if kind != "name" or self.tokens[self.at + 1] != ("op", "="):
            return None
        value = self.tokens[self.at + 2][1]
        if token not in _FLAGS or value not in ("True", "False", "None"):
            raise self.error(f"unexpected {_clip(token + '=' + value)}")
        self.at += 3
        return token, value

    def symbol(self) -> Size:
        kind, token = self.tokens[self.at]
        if kind != "str" or not _SYMBOL.match(token[1:-1]):
            raise self.error(f"a symbol named {_clip(token)}")
        self.at += 1
        positive = False
        while not self.accept(")"):
            self.expect(",")
            flag = self.flag()
            if flag is None:
                raise self.error(f"unexpected {_clip(self.tokens[self.at][1])}")
            positive = positive or flag == ("positive", "True")
        return sym(token[1:-1], positive)

    # Functions of sympy's and torch's printing, by the names below.

    def count(self, args: list[Value], number: int) -> list[Value]:
        if len(args) != number:
            raise self.error(f"{len(args)} arguments where {number} belong")
        return args

    def f_integer(self, args: list[Value]) -> Value:
        (value,) = self.count(args, 1)
        if not isinstance(value, int):
            raise self.error("Integer of no number")
        return value

    def f_add(self, args: list[Value]) -> Value:
        return add_all(self.size(x) for x in args)

    def f_mul(self, args: list[Value]) -> Value:
        value: Value = 1
        for x in args:
            value = self.times(value, x)
        return value

    def f_min(self, args: list[Value]) -> Value:
        return smin(*(self.size(x) for x in args))

    def f_max(self, args: list[Value]) -> Value:
        return smax(*(self.size(x) for x in args))

    def f_floordiv(self, args: list[Value]) -> Value:
        a, b = self.count(args, 2)
        return floordiv(*self.pair(a, b))

    def f_mod(self, args: list[Value]) -> Value:
        a, b = self.count(args, 2)
        return modulo(self.size(a), self.size(b))

    def f_ratio(self, args: list[Value]) -> Value:
        a, b = self.count(args, 2)
        return self.over(a, self.size(b))

    def f_ceil(self, args: list[Value]) -> Value:
        (value,) = self.count(args, 1)
        return cdiv(value.num, value.den) if isinstance(value, _Ratio) else value

    def f_floor(self, args: list[Value]) -> Value:
        (value,) = self.count(args, 1)
        return floordiv(value.num, value.den) if isinstance(value, _Ratio) else value

    def f_same(self, args: list[Value]) -> Value:
        return self.count(args, 1)[0]

    def f_pow(self, args: list[Value]) -> Value:
        base, exponent = self.count(args, 2)
        return self.raised(base, exponent)

    def f_neg(self, args: list[Value]) -> Value:
        return self.times(self.count(args, 1)[0], -1)


_FUNCTIONS: dict[str, Callable[[_Parser, list[Value]], Value]] = {
    "Integer": _Parser.f_integer,
    "Add": _Parser.f_add,
    "Mul": _Parser.f_mul,
    "Pow": _Parser.f_pow,
    "PowByNatural": _Parser.f_pow,
    "Min": _Parser.f_min,
    "min": _Parser.f_min,
    "Max": _Parser.f_max,
    "max": _Parser.f_max,
    "FloorDiv": _Parser.f_floordiv,
    "CleanDiv": _Parser.f_floordiv,
    "Mod": _Parser.f_mod,
    "PythonMod": _Parser.f_mod,
    "Rational": _Parser.f_ratio,
    "IntTrueDiv": _Parser.f_ratio,
    "FloatTrueDiv": _Parser.f_ratio,
    "CeilToInt": _Parser.f_ceil,
    "ceiling": _Parser.f_ceil,
    "ceil": _Parser.f_ceil,
    "FloorToInt": _Parser.f_floor,
    "floor": _Parser.f_floor,
    "ToFloat": _Parser.f_same,
    "Identity": _Parser.f_same,
    "neg": _Parser.f_neg,
}
