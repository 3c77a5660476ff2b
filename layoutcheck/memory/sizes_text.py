"""Sizes as ledger formulas (`layoutcheck.memory.formula`): the same value, written so that a ledger evaluates it."""

from __future__ import annotations

from layoutcheck.sizes.core import Atom, terms_of
from layoutcheck.sizes.printing import ceil_parts
from layoutcheck.symbols import Size


def formula_of(size: Size) -> str:
    """Return a size as formula text: ``12288*ceil(T, 16) + 64*T*T``."""
    parts: list[str] = []
    for mono, coefficient in terms_of(size):
        factors = [_atom(a) for a, power in mono.factors for _ in range(power)]
        if abs(coefficient) != 1 or not factors:
            factors.insert(0, str(abs(coefficient)))
        sign = "-" if coefficient < 0 else "+"
        parts.append(f" {sign} " if parts else ("-" if coefficient < 0 else ""))
        parts.append("*".join(factors))
    return "".join(parts) or "0"


def _atom(of: Atom) -> str:
    if of.kind == "sym":
        return str(of.args[0])
    if of.kind == "floordiv":
        num, den = of.args
        rounded = ceil_parts(num, den)
        if rounded is not None:
            return f"ceil({formula_of(rounded)}, {formula_of(den)})"
        return f"(({formula_of(num)})//({formula_of(den)}))"
    return f"{of.kind}({', '.join(formula_of(x) for x in of.args)})"
