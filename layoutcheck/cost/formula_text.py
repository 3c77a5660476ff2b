"""Work and time as formulas for reading: plain text or LaTeX.

Shares of features (``12288//tp``) must come out even, so they are shown as quotients; shares of tokens stay ceilings. What a model's
figures are multiplied with stands in front of them: ``78*T*(hidden_size*q_lora_rank + ...)``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from attrs import frozen

from layoutcheck.cost.terms import GraphCost, Term

FORMS = ("text", "latex")


@frozen
class Formulas:
    """Formulas of one line of a breakdown: flops, bytes of memory and wire bytes of a rank, and the kernels whose times add up."""

    name: str
    flops: str
    moved: str
    wire: str
    time: str


def work_formulas(cost: GraphCost, key: Callable[[Term], str]) -> dict[str, tuple[Any, Any, Any]]:
    """Flops, memory traffic and wire bytes as sympy expressions, by line of a breakdown."""
    import sympy

    found: dict[str, list[Any]] = defaultdict(lambda: [sympy.Integer(0)] * 3)
    known: dict[Any, tuple[Any, Any, Any]] = {}
    for term in cost.terms:
        place = (term.kernel, tuple(term.sizes.items()), tuple(sorted(term.options.items())))
        work = known.get(place)
        if work is None:
            one = term.work(term.formulas())
            work = known[place] = (
                sympy.sympify(one.flops),
                sympy.sympify(one.traffic),
                sympy.sympify(one.wire),
            )
        line = found[key(term)]
        for i, part in enumerate(work):
            line[i] = line[i] + term.count * part
    return {name: (line[0], line[1], line[2]) for name, line in found.items()}


def formulas(cost: GraphCost, key: Callable[[Term], str], form: str = "text") -> list[Formulas]:
    """The formulas of every line of a breakdown, and of the whole graph.

    Args:
        cost: the lifted graph.
        key: the line that a term belongs to.
        form: ``text`` or ``latex``.
    """
    import sympy

    work = work_formulas(cost, key)
    terms: dict[str, list[Term]] = defaultdict(list)
    for term in cost.terms:
        terms[key(term)].append(term)
    zero = (sympy.Integer(0),) * 3
    total = tuple(sum((w[i] for w in work.values()), zero[i]) for i in range(3))
    figures = frozenset(cost.figures)
    lines = [_line(name, parts, _times(terms[name], form), form, figures) for name, parts in work.items()]
    every = " + ".join(f"time({name})" for name in work) if form == "text" else ""
    return [*lines, _line("total", total, every, form, figures)]


def _line(name: str, parts: tuple[Any, ...], time: str, form: str, figures: frozenset[str]) -> Formulas:
    flops, moved, wire = (readable(p, form, figures) for p in parts)
    return Formulas(name, flops, moved, wire, time)


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
