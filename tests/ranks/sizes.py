"""Arithmetic on sizes, and assertions: what a rule says of symbols holds for all numbers that are put in their place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from layoutcheck.arguments import Hole
from layoutcheck.infer.calls.call import Context
from layoutcheck.infer.solver.one_call import apply
from layoutcheck.layouts import Layout, layout
from layoutcheck.mesh import build_mesh
from layoutcheck.program import OpInstance
from layoutcheck.ranks.reference import find
from layoutcheck.rules.rulebook import RuleBook
from layoutcheck.rules.types import Rule
from layoutcheck.symbols import Expr, cdiv, evaluate, floordiv, sym
from layoutcheck.transforms.scalars import Ratio

T, P = sym("T"), sym("p")
SIZES: tuple[Any, ...] = (0, 1, 3, 8, -2, T, P, 2 * T + 1, T * P, -T, T - 5, floordiv(T, 4), 4 * cdiv(T, 4))
FLOATS: tuple[Any, ...] = (2.5, -2.5, True, False, Ratio(T, 4), Ratio(T, P), Ratio(T - 5, 3), Ratio(T, -2))
NUMBERS = tuple({"T": t, "p": p} for t in (1, 2, 3, 4, 5, 9) for p in (1, 2, 4))
BIG = 12


@dataclass
class Judged:
    """How often a rule said something, and where it was wrong."""

    claims: int = 0
    trials: int = 0
    wrong: list[str] = field(default_factory=list)


def arithmetic(book: RuleBook) -> Iterator[Rule]:
    """Rules on numbers alone."""
    for rule in book.rules.values():
        if rule.code == "sym" and not rule.target.startswith("aten."):
            yield rule


def assertions(book: RuleBook) -> Iterator[Rule]:
    """Rules that give nothing."""
    yield from (rule for rule in book.rules.values() if rule.code == "assert_")


def _number(of: Any, at: dict[str, int]) -> Any:
    if isinstance(of, Ratio):
        return _number(of.num, at) / _number(of.den, at)
    return evaluate(of, at) if isinstance(of, Expr) else of


def _arguments(rule: Rule) -> Iterator[tuple[Any, ...]]:
    names = [p.name for p in rule.params]
    if rule.target == "torch.sym_sum":
        yield from product(SIZES, SIZES, (3, T))
    elif rule.target == "torch.sym_ite":
        yield from product((True, False), SIZES[:6], SIZES[:6])
    elif len(names) == 1:
        yield from ((x,) for x in (*SIZES, *FLOATS))
    else:
        yield from product(SIZES, SIZES)


def _plain_context() -> Context:
    return Context(build_mesh([], {}, rank=0), None, None)


def answer(book: RuleBook, target: str, *given: Any) -> Any:
    """What a rule says of sizes."""
    rule = book.lookup(target)
    assert rule is not None
    return apply(_plain_context(), OpInstance(target, rule, rule.bind(given, {}), 0, 1), ()).outs[0]


def judge_sizes(book: RuleBook, rule: Rule) -> Judged:
    """Ask for symbols, and compare with the op on numbers."""
    out = Judged()
    run = find(rule.target)
    assert run is not None, rule.target
    for given in _arguments(rule):
        try:
            claim = answer(book, rule.target, *given)
        except (ZeroDivisionError, OverflowError):
            out.wrong.append(f"{rule.target}{given} fails")
            continue
        if claim is None:
            continue
        out.claims += 1
        for at in NUMBERS:
            try:
                numbers = [_number(x, at) for x in given]
                if any(abs(x) > 1 << BIG for x in numbers):
                    continue
                want = run(*numbers)
            except (ZeroDivisionError, ValueError, TypeError, OverflowError):
                continue
            out.trials += 1
            got = _number(claim, at)
            if got != want:
                out.wrong.append(f"{rule.target}{tuple(map(str, given))} at {at}: {got}, not {want}")
    return out


def judge_nothing(book: RuleBook, rule: Rule) -> Judged:
    """An assertion has no result and objects to nothing, whatever its operand holds."""
    out = Judged()
    for of in (layout("float32", ()), layout("float32", (), {}, (0,)), T, 3):
        given = {p.name: Hole(0) if i == 0 else None for i, p in enumerate(rule.params)}
        result = apply(_plain_context(), OpInstance(rule.target, rule, rule.bind((), given), 1, 0), (of,))
        out.trials += 1
        if any(isinstance(o, Layout) for o in result.outs) or result.issues or result.wants:
            out.wrong.append(f"{rule.target}({of}) gives {result.outs}, {result.issues}")
    return out
