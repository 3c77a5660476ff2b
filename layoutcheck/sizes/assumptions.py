"""What the user (or an export's ranges) says of symbols: divisibility, ranges, equalities, orders."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import lcm
from typing import NamedTuple

from layoutcheck.errors import InputError
from layoutcheck.sizes.bounds import Bounds, Interval
from layoutcheck.sizes.core import Expr, Size, add, multiply, sym, symbol_name
from layoutcheck.sizes.substitution import evaluate, free_symbols, substitute

_COMPARE = re.compile(r"(.*?)(==|!=|<=|>=|<|>|=)(.*)\Z", re.DOTALL)
_MODULO = re.compile(r"\s*([A-Za-z_]\w*)\s*%\s*([A-Za-z_]\w*|\d+)\s*\Z")


class Assumption(NamedTuple):
    """`symbol relation value`: relation is `divisible`, `==`, or `>=` (then `left - right >= 0`)."""

    relation: str
    left: Size
    right: Size
    text: str

    def holds(self, values: Mapping[str, int]) -> bool:
        """Say whether it is true of these values of its symbols."""
        left, right = evaluate(self.left, values), evaluate(self.right, values)
        if self.relation == "divisible":
            return right != 0 and left % right == 0
        return left == right if self.relation == "==" else left >= right


def parse_assumption(text: str) -> Assumption:
    """Read `T % 4 == 0`, `T >= 5`, `T > p`, `T == 4096`, `2 <= p`.

    Raises InputError with one sentence per mistake.
    """
    from layoutcheck.sizes.text import parse_size

    match = _COMPARE.match(text)
    if match is None:
        raise InputError(
            f"the assumption {text!r} compares nothing; write 'T % 4 == 0', 'T >= 5' or 'T == 4096'"
        )
    left_text, op, right_text = match.groups()
    if op == "!=":
        raise InputError(f"the assumption {text!r}: '!=' tells nothing that sizes can use")
    if op == "=":
        raise InputError(f"the assumption {text!r}: write '==' for equality")
    if _COMPARE.match(right_text):
        raise InputError(f"the assumption {text!r}: one comparison at a time")
    try:
        modulo = _MODULO.match(left_text)
        right = parse_size(right_text)
        if modulo is not None and op == "==":
            if right != 0:
                raise InputError("only '% n == 0' can be assumed")
            divisor = parse_size(modulo[2])
            if divisor == 0:
                raise InputError("division by zero")
            return Assumption("divisible", sym(modulo[1]), divisor, text)
        left = parse_size(left_text)
    except InputError as error:
        raise InputError(f"the assumption {text!r}: {error.message}") from None
    if isinstance(left, int) and isinstance(right, int):
        raise InputError(f"the assumption {text!r} names no symbol")
    if op == "==":
        if symbol_name(left) is None:
            left, right = right, left
        name = symbol_name(left)
        if name is None or name in free_symbols(right):
            raise InputError(f"the assumption {text!r}: one side of '==' must be a symbol alone")
        return Assumption("==", left, right, text)
    if op in ("<", "<="):
        left, right, op = right, left, ">" if op == "<" else ">="
    return Assumption(">=", left, add(right, 1) if op == ">" else right, text)


class Assumptions:
    """Several assumptions put together.

    `substitution` maps a symbol to the size to write instead (`T` to 4 times the symbol that prints as
    `T/4`); `bounds` holds ranges and facts about the symbols left, after the substitution. Raises InputError
    where they contradict each other.
    """

    def __init__(self, texts: Iterable[str] = (), ranges: Mapping[str, Interval] | None = None) -> None:
        self.texts = tuple(texts)
        parsed = [parse_assumption(text) for text in self.texts]
        self.substitution: dict[str, Size] = {}
        self._parts: dict[str, tuple[str, Size]] = {}
        for one in parsed:
            if one.relation == "==":
                self._equate(one)
        self._divide([one for one in parsed if one.relation == "divisible"])
        self._ranges: dict[str, Interval] = {}
        self._facts: list[Size] = []
        for name, (low, high) in (ranges or {}).items():
            origin = f"the range of {name}"
            if low is not None:
                self._at_least(sym(name), low, origin)
            if high is not None:
                self._at_least(high, sym(name), origin)
        for one in parsed:
            if one.relation == ">=":
                self._at_least(one.left, one.right, f"the assumption {one.text!r}")
        self.bounds = Bounds(self._ranges, tuple(self._facts))

    def apply(self, e: Size) -> Size:
        """`e` under these assumptions."""
        if isinstance(e, int):
            return e
        return substitute(e, self.substitution, self.bounds)

    def extend(self, values: Mapping[str, int]) -> dict[str, int]:
        """`values` with those of the symbols that a substitution made (`T/4`).

        Raises InputError where the values break an assumption.
        """
        result = dict(values)
        for name, (whole, divisor) in self._parts.items():
            if whole in values:
                by = evaluate(divisor, values)
                if by == 0 or values[whole] % by:
                    raise InputError(f"{whole} = {values[whole]} is no multiple of {divisor}")
                result[name] = values[whole] // by
        return result

    def _equate(self, one: Assumption) -> None:
        name = symbol_name(one.left)
        assert name is not None
        right = substitute(one.right, self.substitution)
        if name in self.substitution:
            known = self.substitution[name]
            if known is not right:
                if isinstance(known, int) and isinstance(right, int):
                    if known == right:
                        return
                    raise InputError(f"the assumption {one.text!r} contradicts {name} == {known}")
                raise InputError(f"the assumption {one.text!r}: {name} is given twice")
            return
        if name in free_symbols(right):
            raise InputError(f"the assumption {one.text!r} defines {name} by itself")
        if isinstance(right, int) and right < 1:
            raise InputError(f"the assumption {one.text!r}: sizes are at least 1")
        self.substitution = {k: substitute(v, {name: right}) for k, v in self.substitution.items()}
        self.substitution[name] = right

    def _divide(self, parsed: list[Assumption]) -> None:
        numbers: dict[str, int] = {}
        symbols: dict[str, list[Expr]] = {}
        for one in parsed:
            name = symbol_name(one.left)
            assert name is not None
            known = self.substitution.get(name)
            divisor = substitute(one.right, self.substitution)
            if known is not None:
                if isinstance(known, int) and isinstance(divisor, int) and known % divisor:
                    raise InputError(f"the assumption {one.text!r} contradicts {name} == {known}")
            elif isinstance(divisor, int):
                numbers[name] = lcm(numbers.get(name, 1), divisor)
            elif divisor not in symbols.setdefault(name, []):
                symbols[name].append(divisor)
        for name in {**numbers, **symbols}:
            divisor = numbers.get(name, 1)
            if name in symbols:
                if len(symbols[name]) > 1 or divisor != 1:
                    raise InputError(
                        f"{name} is assumed divisible by {symbols[name][0]} and by something else"
                    )
                divisor = symbols[name][0]
                if name in free_symbols(divisor):
                    raise InputError(f"{name} is assumed divisible by itself")
            if divisor == 1:
                continue
            part = f"{name}_div{divisor}"
            self._parts[part] = (name, divisor)
            self.substitution[name] = multiply(divisor, sym(part, shown=f"{name}/{divisor}"))

    def _at_least(self, left: Size, right: Size, origin: str) -> None:
        gap = substitute(add(left, multiply(right, -1)), self.substitution)
        if isinstance(gap, int):
            if gap < 0:
                raise InputError(f"{origin} contradicts the others")
            return
        single = [(m, c) for m, c in gap.terms if m.factors]
        if len(single) == 1 and len(single[0][0].factors) == 1 and single[0][0].factors[0][1] == 1:
            (m, c) = single[0]
            a = m.factors[0][0]
            if a.kind == "sym":
                self._narrow(a.args[0], c, gap.terms[-1][1] if len(gap.terms) > 1 else 0, origin)
                return
        self._facts.append(gap)

    def _narrow(self, name: str, c: int, constant: int, origin: str) -> None:
        """c * name + constant >= 0."""
        low, high = self._ranges.get(name, (None, None))
        if c > 0:
            bound = -(constant // c)
            low = bound if low is None else max(low, bound)
        else:
            bound = constant // -c
            high = bound if high is None else min(high, bound)
        least = 1 if low is None else low
        if high is not None and high < least:
            raise InputError(f"{origin} contradicts the others: no {name} is left")
        self._ranges[name] = (low, high)
