"""Symbolic sizes: `Size` is an int or an interned `Expr`, and equality is identity.

    >>> T, p = sym("T"), sym("p")
    >>> (T + p - 1) // p is -((-T) // p)
    True
    >>> str(T - 3 * cdiv(T, 4))
    'T - 3*ceil(T/4)'

All symbols are integers; those made by `sym(name)` are at least 1.
"""

from __future__ import annotations

from layoutcheck.sizes.assumptions import Assumptions, parse_assumption
from layoutcheck.sizes.bounds import (
    Bounds,
    Interval,
    interval,
    known_positive,
    lower_bound,
    smax,
    smin,
    upper_bound,
)
from layoutcheck.sizes.core import Expr, Size, divide_exact, sym, symbol_name
from layoutcheck.sizes.division import cdiv, floordiv, modulo
from layoutcheck.sizes.printing import latex, plain_text, to_sympy
from layoutcheck.sizes.substitution import coefficient, evaluate, free_symbols, refine, substitute

__all__ = [
    "Assumptions",
    "Bounds",
    "Expr",
    "Interval",
    "Size",
    "cdiv",
    "coefficient",
    "divide_exact",
    "evaluate",
    "floordiv",
    "free_symbols",
    "interval",
    "known_positive",
    "latex",
    "lower_bound",
    "modulo",
    "parse_assumption",
    "plain_text",
    "refine",
    "smax",
    "smin",
    "substitute",
    "sym",
    "symbol_name",
    "to_sympy",
    "upper_bound",
]
