"""Work and time as formulas for reading: plain text or LaTeX.

Shares of features (``12288//tp``) must come out even, so they are shown as quotients; shares of tokens stay ceilings. What a model's
figures are multiplied with stands in front of them: ``78*T*(hidden_size*q_lora_rank + ...)``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import frozen

from layoutcheck.cost.terms import GraphCost, Term

FORMS = ("text", "latex")


@frozen
class Parts:
    """Work as sympy expressions: flops by the data type that they are done in, bytes read and written, wire bytes, of a rank."""

    flops: Mapping[str, Any]
    read: Any
    written: Any
    wire: Any


@frozen
class Formulas:
    """The formulas of one line of a breakdown as texts, and the kernels whose times add up."""

    name: str
    flops: Mapping[str, str]
    read: str
    written: str
    wire: str
    time: str


def work_formulas(cost: GraphCost, key: Callable[[Term], str]) -> dict[str, Parts]:
    """The work of every line of a breakdown."""
    import sympy

    found: dict[str, list[tuple[int, Parts]]] = defaultdict(list)
    known: dict[Any, Parts] = {}
    for term in cost.terms:
        place = (term.kernel, tuple(term.sizes.items()), tuple(sorted(term.options.items())))
        work = known.get(place)
        if work is None:
            one = term.work(term.formulas())
            read, written, wire = (sympy.sympify(x) for x in (one.read, one.write, one.wire))
            work = known[place] = Parts({one.dtype: sympy.sympify(one.flops)}, read, written, wire)
        found[key(term)].append((term.count, work))
    return {name: _sum(parts) for name, parts in found.items()}


def _sum(parts: Sequence[tuple[int, Parts]]) -> Parts:
    import sympy

    flops: dict[str, Any] = defaultdict(lambda: sympy.Integer(0))
    for count, part in parts:
        for dtype, number in part.flops.items():
            if number != 0:
                flops[dtype] += count * number
    read, written, wire = (
        sympy.Add(*(count * getattr(part, name) for count, part in parts))
        for name in ("read", "written", "wire")
    )
    return Parts(dict(flops), read, written, wire)


def formulas(cost: GraphCost, key: Callable[[Term], str], form: str = "text") -> list[Formulas]:
    """The formulas of every line of a breakdown, and of the whole graph.

    Args:
        cost: the lifted graph.
        key: the line that a term belongs to.
        form: ``text`` or ``latex``.
    """
    work = work_formulas(cost, key)
    terms: dict[str, list[Term]] = defaultdict(list)
    for term in cost.terms:
        terms[key(term)].append(term)
    figures = frozenset(cost.figures)
    lines = [_line(name, parts, _times(terms[name], form), form, figures) for name, parts in work.items()]
    every = " + ".join(f"time({name})" for name in work) if form == "text" else ""
    return [*lines, _line("total", _sum([(1, p) for p in work.values()]), every, form, figures)]


def _line(name: str, parts: Parts, time: str, form: str, figures: frozenset[str]) -> Formulas:
    flops = {dtype: readable(number, form, figures) for dtype, number in parts.flops.items()}
    read, written, wire = (readable(p, form, figures) for p in (parts.read, parts.written, parts.wire))
    return Formulas(name, flops, read, written, wire, time)


def readable(expression: Any, form: str = "text", figures: frozenset[str] = frozenset()) -> str:
    """An expression expanded, with even shares as quotients, as text or LaTeX; figures are gathered behind what they multiply."""
    import sympy

    even = expression.replace(sympy.floor, lambda x: x)
    # written without being compared, which takes long in formulas of times; sizes are at least 0
    even = even.replace(sympy.Max, lambda *a: sympy.Max(*a)).replace(sympy.Min, lambda *a: sympy.Min(*a))
    simple = _gathered(sympy.expand(even), figures)
    if form == "latex":
        names = {s: rf"\mathrm{{{_escaped(s.name)}}}" for s in simple.free_symbols if "_" in s.name}
        return str(sympy.latex(simple, symbol_names=names))
    return str(simple).replace("ceiling(", "ceil(")


def _gathered(expanded: Any, figures: frozenset[str]) -> Any:
    """A sum with the addends that differ in figures alone put together, their common factor in front."""
    import sympy

    if not figures:
        return expanded
    found: dict[Any, Any] = defaultdict(lambda: sympy.Integer(0))
    for addend in sympy.Add.make_args(expanded):
        own, rest = addend.as_independent(
            *(f for f in sympy.Mul.make_args(addend) if not {s.name for s in f.free_symbols} <= figures)
        )
        found[rest] += own
    return sympy.Add(*(rest * sympy.gcd_terms(own, clear=False) for rest, own in found.items()))


def _times(terms: list[Term], form: str) -> str:
    """The kernels of a line with their sizes, like ones counted together."""
    counts: dict[str, int] = defaultdict(int)
    for term in terms:
        sizes = ", ".join(
            f"{n}={s}" for n, s in term.sizes.items() if not (n in ("batch", "flops", "tp") and s in (0, 1))
        )
        dtype = term.options.get("dtype")
        name = term.options["op"] if term.kernel == "collective" else term.kernel
        counts[f"{name}({dtype + '; ' if dtype else ''}{sizes})"] += term.count
    if form == "latex":
        return " + ".join(rf"{n}\cdot\mathrm{{{_escaped(text)}}}" for text, n in counts.items())
    return " + ".join(f"{n}*{text}" if n > 1 else text for text, n in counts.items())


def _escaped(text: str) -> str:
    for sign in "_&%#":
        text = text.replace(sign, "\\" + sign)
    return text.replace(" ", r"\ ")
