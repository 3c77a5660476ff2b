"""Replacing symbols by sizes, evaluating, and collecting symbols."""

from __future__ import annotations

from collections.abc import Mapping

from layoutcheck.errors import InputError
from layoutcheck.sizes.bounds import Bounds, smax, smin
from layoutcheck.sizes.core import Atom, Expr, Size, add_all, from_terms, multiply, of_atom, power
from layoutcheck.sizes.division import floordiv


def substitute(e: Size, values: Mapping[str, Size], bounds: Bounds | None = None) -> Size:
    """`e` with each symbol named in `values` replaced, all at once, and canonicalised again. With
    `bounds`, min and max are decided by them too."""
    if isinstance(e, int):
        return e
    return _substitute(e, values, bounds, {})


def _substitute(e: Size, values: Mapping[str, Size], bounds: Bounds | None, memo: dict[Atom, Size]) -> Size:
    if isinstance(e, int):
        return e
    parts: list[Size] = []
    for m, c in e.terms:
        product: Size = c
        for a, p in m.factors:
            value = memo.get(a)
            if value is None:
                value = memo[a] = _atom_value(a, values, bounds, memo)
            product = multiply(product, power(value, p))
        parts.append(product)
    return add_all(parts) if len(parts) > 1 else parts[0]


def _atom_value(a: Atom, values: Mapping[str, Size], bounds: Bounds | None, memo: dict[Atom, Size]) -> Size:
    if a.kind == "sym":
        value = values.get(a.args[0])
        return of_atom(a) if value is None else value
    args = [_substitute(x, values, bounds, memo) for x in a.args]
    if a.kind == "floordiv":
        return floordiv(args[0], args[1])
    return (smin if a.kind == "min" else smax)(*args, bounds=bounds)


def refine(e: Size, bounds: Bounds) -> Size:
    """`e` with min and max decided by `bounds`."""
    return substitute(e, {}, bounds)


def evaluate(e: Size, values: Mapping[str, int]) -> int:
    """The exact number that `e` is for these values of its symbols.

    Raises InputError naming a symbol without a value, ZeroDivisionError for a division by 0.
    """
    if isinstance(e, int):
        return e
    total = 0
    for m, c in e.terms:
        product = c
        for a, p in m.factors:
            product *= _atom_number(a, values) ** p
        total += product
    return total


def _atom_number(a: Atom, values: Mapping[str, int]) -> int:
    if a.kind == "sym":
        value = values.get(a.args[0])
        if value is None:
            raise InputError(f"no value for the symbol {a.args[0]}")
        return value
    args = [evaluate(x, values) for x in a.args]
    if a.kind == "floordiv":
        return args[0] // args[1]
    return min(args) if a.kind == "min" else max(args)


def free_symbols(e: Size) -> frozenset[str]:
    """Names of the symbols that `e` mentions."""
    names: set[str] = set()
    _collect(e, names)
    return frozenset(names)


def _collect(e: Size, names: set[str]) -> None:
    if isinstance(e, Expr):
        for m, _ in e.terms:
            for a, _p in m.factors:
                if a.kind == "sym":
                    names.add(a.args[0])
                else:
                    for x in a.args:
                        _collect(x, names)


def coefficient(e: Size, name: str) -> Size:
    """Coefficient of the first power of the symbol `name` in `e` (0 where it is absent)."""
    if isinstance(e, int):
        return 0
    parts: list[Size] = []
    for m, c in e.terms:
        for a, p in m.factors:
            if a.kind == "sym" and a.args[0] == name and p == 1:
                left = from_terms({m: c})
                parts.append(_without(left, a))
    return add_all(parts)


def _without(e: Size, a: Atom) -> Size:
    from layoutcheck.sizes.core import divide_exact

    result = divide_exact(e, of_atom(a))
    assert result is not None
    return result
