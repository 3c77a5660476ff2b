"""Sizes as text, LaTeX and sympy expressions."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeAlias

from layoutcheck.sizes.core import Atom, Expr, Mono, Size, add, multiply, terms_of

NamePrinter: TypeAlias = Callable[[tuple[Any, ...]], str]
_UNBACKED = re.compile(r"u\d+\Z")
_PLAIN = re.compile(r"[A-Za-z_]\w*\Z")


def default_positive(name: str) -> bool:
    """Whether a bare name stands for a positive symbol: all do except torch's unbacked `u0`, `u1`, ..."""
    return not _UNBACKED.match(name)


def _shown(args: tuple[Any, ...]) -> str:
    return str(args[2])


def _plain(args: tuple[Any, ...]) -> str:
    name, positive = args[0], args[1]
    if default_positive(name) == positive and _PLAIN.match(name):
        return str(name)
    return f"Symbol('{name}', {'positive=True, ' if positive else ''}integer=True)"


def ceil_parts(num: Size, den: Size) -> Size | None:
    """x where `num // den` reads best as `ceil(x / den)`, else None."""
    x = add(num, multiply(add(den, -1), -1))
    if isinstance(den, int):
        return x if terms_of(num)[-1][1] == den - 1 and den > 1 and not terms_of(num)[-1][0].factors else None
    return x if isinstance(x, Expr) and len(x.terms) < len(terms_of(num)) else None


def atom_text(kind: str, args: tuple[Any, ...], name: NamePrinter = _shown) -> str:
    """Text of an atom."""
    if kind == "sym":
        return name(args)
    if kind == "floordiv":
        num, den = args
        x = ceil_parts(num, den)
        if x is not None:
            return f"ceil({_operand(x, name)}/{_operand(den, name)})"
        return f"({_operand(num, name)}//{_operand(den, name)})"
    return f"{kind}({', '.join(size_text(x, name) for x in args)})"


def _operand(e: Size, name: NamePrinter) -> str:
    text = size_text(e, name)
    return text if re.fullmatch(r"\w+", text) else f"({text})"


def _term_text(m: Mono, c: int, name: NamePrinter) -> str:
    """Text of `abs(c) * m`. `4` times the symbol shown as `T/4` reads `T`."""
    c = abs(c)
    parts: list[str] = []
    factors = dict(m.factors)
    for a, p in m.factors:
        if a not in factors:
            continue
        text = a.text if name is _shown else atom_text(a.kind, a.args, name)
        if a.kind == "sym" and name is _shown and "/" in text:
            whole, _, part = text.partition("/")
            partner = next((x for x in factors if x.kind == "sym" and x.text == part), None)
            if p == 1 and part.isdigit() and c % int(part) == 0:
                c, text = c // int(part), whole
            elif p == 1 and partner is not None and factors[partner] == 1:
                del factors[partner]
                if partner.text in parts:
                    parts.remove(partner.text)
                text = whole
            elif p > 1 or len(m.factors) > 1 or c > 1:
                text = f"({text})"
        parts.append(text if p == 1 else f"{text}**{p}")
    if c != 1 or not parts:
        parts.insert(0, str(c))
    return "*".join(parts)


def size_text(e: Size, name: NamePrinter = _shown) -> str:
    """Infix text of a size."""
    if isinstance(e, int):
        return str(e)
    items = list(e.terms)
    if items[0][1] < 0:
        # `4*ceil(T/4) - T` reads better than `-T + 4*ceil(T/4)`.
        lead = next((i for i, (m, c) in enumerate(items) if c > 0 and m.factors), 0)
        items.insert(0, items.pop(lead))
    out: list[str] = []
    for m, c in items:
        text = _term_text(m, c, name)
        if out:
            out.append(f" {'-' if c < 0 else '+'} {text}")
        else:
            out.append(f"-{text}" if c < 0 else text)
    return "".join(out)


def expr_text(e: Expr) -> str:
    """What `str(e)` gives, for people."""
    text = size_text(e)
    # `T//4` alone needs no brackets.
    if len(e.terms) == 1 and e.terms[0][1] == 1 and re.fullmatch(r"\(\w+//\w+\)", text):
        return text[1:-1]
    return text


def plain_text(e: Size) -> str:
    """Infix text that `layoutcheck.sizes.text.parse_size` reads back to the same size."""
    return size_text(e, _plain)


def latex(e: Size) -> str:
    """LaTeX of a size, without the dollar signs."""
    if isinstance(e, int):
        return str(e)
    out: list[str] = []
    for m, c in e.terms:
        body = r" \, ".join(_atom_latex(a) + (f"^{{{p}}}" if p > 1 else "") for a, p in m.factors)
        size = abs(c)
        text = (body if size == 1 else rf"{size} \, {body}") if body else str(size)
        sign = "-" if c < 0 else "+"
        out.append(f" {sign} {text}" if out else (f"-{text}" if c < 0 else text))
    return "".join(out)


def _atom_latex(a: Atom) -> str:
    if a.kind == "sym":
        shown = str(a.args[2])
        head, slash, tail = shown.partition("/")
        if slash:
            return rf"\frac{{{head}}}{{{tail}}}"
        match = re.fullmatch(r"([A-Za-z]+)_?(\w+)", shown)
        if match and (match[2].isdigit() or "_" in shown):
            return f"{match[1]}_{{{match[2]}}}".replace("_{_", "_{")
        return shown if len(shown) == 1 else rf"\mathrm{{{shown}}}"
    if a.kind == "floordiv":
        num, den = a.args
        x = ceil_parts(num, den)
        if x is not None:
            return rf"\left\lceil \frac{{{latex(x)}}}{{{latex(den)}}} \right\rceil"
        return rf"\left\lfloor \frac{{{latex(num)}}}{{{latex(den)}}} \right\rfloor"
    return rf"\{a.kind}\left({', '.join(latex(x) for x in a.args)}\right)"


def to_sympy(e: Size) -> Any:
    """The sympy expression equal to `e`; symbols are integer and, where so declared, positive."""
    import sympy

    if isinstance(e, int):
        return sympy.Integer(e)
    total = []
    for m, c in e.terms:
        factors = [sympy.Integer(c)]
        factors.extend(_atom_sympy(a) ** p for a, p in m.factors)
        total.append(sympy.Mul(*factors))
    return sympy.Add(*total)


def _atom_sympy(a: Atom) -> Any:
    import sympy

    if a.kind == "sym":
        name, positive, _ = a.args
        return (
            sympy.Symbol(name, integer=True, positive=True) if positive else sympy.Symbol(name, integer=True)
        )
    if a.kind == "floordiv":
        num, den = a.args
        x = ceil_parts(num, den)
        if x is not None:
            return sympy.ceiling(to_sympy(x) / to_sympy(den))
        return sympy.floor(to_sympy(num) / to_sympy(den))
    make = sympy.Min if a.kind == "min" else sympy.Max
    return make(*(to_sympy(x) for x in a.args))
