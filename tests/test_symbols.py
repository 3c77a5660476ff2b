"""Symbolic sizes: canonical forms never change a value, and equal spellings are one object."""

from __future__ import annotations

import contextlib
import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from layoutcheck.errors import InputError
from layoutcheck.sizes.text import parse_size
from layoutcheck.symbols import (
    Assumptions,
    Bounds,
    Expr,
    Size,
    cdiv,
    coefficient,
    divide_exact,
    evaluate,
    floordiv,
    free_symbols,
    interval,
    known_positive,
    latex,
    lower_bound,
    modulo,
    parse_assumption,
    plain_text,
    refine,
    smax,
    smin,
    substitute,
    sym,
    symbol_name,
    to_sympy,
    upper_bound,
)

T, S, p, u = sym("T"), sym("S"), sym("p"), sym("u")
NAMES = ("T", "S", "p")
Tree = Any
"""A number, a name, or (operation, left, right)."""

_positive = st.one_of(
    st.integers(1, 12),
    st.sampled_from(NAMES),
    st.tuples(st.just("*"), st.integers(1, 4), st.sampled_from(NAMES)),
)


def _grow(children: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    return st.one_of(
        st.tuples(st.sampled_from(["+", "-", "*", "min", "max"]), children, children),
        st.tuples(st.sampled_from(["//", "%", "ceil"]), children, _positive),
        st.tuples(st.just("neg"), children, st.just(0)),
    )


trees = st.recursive(st.one_of(st.integers(-9, 40), st.sampled_from(NAMES)), _grow, max_leaves=8)
values = st.fixed_dictionaries({name: st.integers(1, 60) for name in NAMES})

SIZE_OPS: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": floordiv,
    "%": modulo,
    "ceil": cdiv,
    "min": smin,
    "max": smax,
    "neg": lambda a, b: -a,
}
INT_OPS: dict[str, Callable[[int, int], int]] = {
    **SIZE_OPS,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "ceil": lambda a, b: -(-a // b),
    "min": min,
    "max": max,
}


def build(tree: Tree) -> Size:
    """The size of a tree."""
    if isinstance(tree, int):
        return tree
    if isinstance(tree, str):
        return sym(tree)
    return SIZE_OPS[tree[0]](build(tree[1]), build(tree[2]))


def compute(tree: Tree, numbers: dict[str, int]) -> int:
    """The value of a tree, by Python's own integers."""
    if isinstance(tree, int):
        return tree
    if isinstance(tree, str):
        return numbers[tree]
    return INT_OPS[tree[0]](compute(tree[1], numbers), compute(tree[2], numbers))


@given(trees, values)
def test_canonical_forms_keep_the_value(tree: Tree, numbers: dict[str, int]) -> None:
    assert evaluate(build(tree), numbers) == compute(tree, numbers)


@given(trees, values)
def test_bounds_hold(tree: Tree, numbers: dict[str, int]) -> None:
    low, high = interval(build(tree))
    value = compute(tree, numbers)
    assert low is None or low <= value
    assert high is None or value <= high


@given(trees, st.integers(1, 30), st.integers(1, 60), st.integers(1, 40))
def test_bounds_hold_under_ranges_and_facts(tree: Tree, s: int, share: int, more: int) -> None:
    numbers = {"S": s, "p": share, "T": max(8, share + more)}
    bounds = Bounds({"T": (8, None), "S": (1, 30)}, (T - p - 1,))
    e = build(tree)
    low, high = interval(e, bounds)
    value = compute(tree, numbers)
    assert low is None or low <= value
    assert high is None or value <= high
    assert evaluate(refine(e, bounds), numbers) == value


@given(trees)
def test_plain_text_reads_back_to_the_same_object(tree: Tree) -> None:
    e = build(tree)
    assert parse_size(plain_text(e)) is e or parse_size(plain_text(e)) == e


@given(trees, trees, values)
def test_sums_and_products_are_ring_operations(a: Tree, b: Tree, numbers: dict[str, int]) -> None:
    x, y = build(a), build(b)
    assert x + y == y + x and x * y == y * x
    assert (x + y) - y == x
    assert x * (y + 1) == x * y + x
    assert evaluate(x * y - x, numbers) == evaluate(x, numbers) * evaluate(y, numbers) - evaluate(x, numbers)


@given(trees, trees)
def test_exact_division_undoes_multiplication(a: Tree, b: Tree) -> None:
    x, y = build(a), build(b)
    assume(y != 0)
    product = x * y
    quotient = divide_exact(product, y)
    assert quotient is not None
    assert quotient * y == product
    assert quotient == x


@given(trees, trees)
def test_exact_division_is_never_wrong(a: Tree, b: Tree) -> None:
    x, y = build(a), build(b)
    quotient = divide_exact(x, y)
    if quotient is not None:
        assert quotient * y == x


@given(trees, trees, values)
def test_substitution_commutes_with_evaluation(a: Tree, b: Tree, numbers: dict[str, int]) -> None:
    inner = 1 + modulo(build(b), 50)
    replaced = substitute(build(a), {"T": inner})
    assert evaluate(replaced, numbers) == compute(a, {**numbers, "T": evaluate(inner, numbers)})


@given(trees, values)
def test_agrees_with_sympy(tree: Tree, numbers: dict[str, int]) -> None:
    import sympy

    symbols = {sympy.Symbol(name, integer=True, positive=True): value for name, value in numbers.items()}
    assert int(to_sympy(build(tree)).subs(symbols)) == compute(tree, numbers)


@given(st.integers(-30, 30), st.integers(-30, 30), st.integers(1, 24), st.integers(1, 24))
def test_floor_and_ceiling_spellings_meet(a: int, k: int, d: int, c: int) -> None:
    n = a * T + k
    assert cdiv(n, d) == (n + d - 1) // d == -((-n) // d)
    assert (n // d) // c == n // (d * c)
    assert (n * c) // (d * c) == n // d
    assert (n + d * S) // d == n // d + S


@pytest.mark.parametrize("q", [2, 3, 4, 16, p, 2 * p, p * S, p + 1], ids=str)
def test_all_spellings_of_a_share_are_one_object(q: Size) -> None:
    share = (T + q - 1) // q
    assert isinstance(share, Expr)
    assert -((-T) // q) is share
    assert cdiv(T, q) is share
    assert smax(1, share) is share
    assert smax(1, -((-T) // q)) is share
    assert divide_exact(share * q, q) is share
    assert divide_exact(share * q, share) == q
    assert lower_bound(share * q - T) == 0


def test_examples_of_canonical_forms() -> None:
    assert (4 * u + 3) // 4 is u
    assert (5 * T + 3) // 4 == T + (T + 3) // 4
    assert (p * T) // p is T
    assert divide_exact(T, 4) is None
    assert divide_exact(4 * T, 8) is None
    assert ((T + p - 1) // p + 3) // 4 == cdiv(T, 4 * p)
    assert smin(T, T + 1) is T
    assert smin(6, smin(T, 8)) is smin(T, 6)
    assert smax(8 * T, T, 3) is not None and smax(8 * T, T) == 8 * T
    assert T % 1 == 0 and (4 * T) % 4 == 0
    assert T - T == 0 and isinstance(T - T, int)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (4 * cdiv(T, 4), "4*ceil(T/4)"),
        (T - 3 * cdiv(T, 4), "T - 3*ceil(T/4)"),
        (4 * cdiv(T, 4) - T, "4*ceil(T/4) - T"),
        (cdiv(T + S, 4), "ceil((S + T)/4)"),
        (T // 4, "T//4"),
        (T // 4 + 1, "(T//4) + 1"),
        (cdiv(T, p), "ceil(T/p)"),
        (cdiv(T, 2 * p), "ceil(T/(2*p))"),
        (smin(6, T), "min(6, T)"),
        (-T, "-T"),
        (T * T + 1, "T**2 + 1"),
    ],
)
def test_printing(size: Size, text: str) -> None:
    assert str(size) == text


def test_latex() -> None:
    assert latex(3 * cdiv(T, 4)) == r"3 \, \left\lceil \frac{T}{4} \right\rceil"
    assert latex(sym("s77") + 1) == "s_{77} + 1"
    assert latex(T // 4) == r"\left\lfloor \frac{T}{4} \right\rfloor"
    assert latex(smin(6, T)) == r"\min\left(6, T\right)"


def test_copies_and_pickles_are_the_same_object() -> None:
    e = smin(T + 1, 4 * cdiv(T, p))
    assert copy.deepcopy(e) is e
    assert pickle.loads(pickle.dumps(e)) is e


def test_names_and_coefficients() -> None:
    e = 3 * T * S + T + cdiv(p, 4)
    assert free_symbols(e) == {"T", "S", "p"}
    assert coefficient(e, "T") == 3 * S + 1
    assert symbol_name(T) == "T" and symbol_name(T + 1) is None and symbol_name(3) is None
    with pytest.raises(InputError, match="no value for the symbol S"):
        evaluate(e, {"T": 1, "p": 1})


def test_unbacked_symbols_are_not_assumed_positive() -> None:
    free = parse_size("u0")
    assert not known_positive(free)
    assert smax(1, free) is not free
    assert lower_bound(free) is None and upper_bound(free) is None
    assert parse_size(plain_text(smax(0, free))) is smax(0, free)
    odd = parse_size("Symbol('s0', integer=True)")
    assert odd is not sym("s0") and parse_size(plain_text(odd)) is odd


def test_division_by_zero() -> None:
    with pytest.raises(ZeroDivisionError):
        T // 0
    assert divide_exact(T, 0) is None


class TestAssumptions:
    def test_divisibility_makes_shares_exact(self) -> None:
        known = Assumptions(["T % 4 == 0"])
        assert known.apply(4 * cdiv(T, 4) - T) == 0
        share = known.apply(cdiv(T, 4))
        assert str(share) == "T/4" and str(known.apply(T)) == "T" and str(3 * share) == "3*(T/4)"
        assert known.apply(T % 4) == 0 and known.apply(T) is 4 * share
        assert known.apply(cdiv(T, 2)) is 2 * share
        assert evaluate(share, known.extend({"T": 20})) == 5
        with pytest.raises(InputError, match="no multiple"):
            known.extend({"T": 21})

    def test_divisibility_by_a_symbol(self) -> None:
        known = Assumptions(["T % p == 0"])
        assert str(known.apply(cdiv(T, p))) == "T/p"
        assert known.apply(p * cdiv(T, p)) is known.apply(T)
        assert str(known.apply(T)) == "T"

    def test_two_divisors_join(self) -> None:
        known = Assumptions(["T % 4 == 0", "T % 6 == 0"])
        assert known.apply(T % 12) == 0

    def test_ranges_survive_the_substitution(self) -> None:
        known = Assumptions(["T % 4 == 0", "T >= 5", "T < 100"])
        assert lower_bound(known.apply(T), known.bounds) == 8
        assert upper_bound(known.apply(T), known.bounds) == 96
        assert known.apply(smax(8, T)) is known.apply(T)

    def test_order_of_two_symbols(self) -> None:
        known = Assumptions(["T > p"])
        assert lower_bound(T - p, known.bounds) == 1
        assert known.apply(smin(p, T)) is p
        assert Assumptions(["p < T"]).apply(smin(p, T)) is p

    def test_equality(self) -> None:
        assert Assumptions(["T == 4096"]).apply(cdiv(T, 16)) == 256
        assert Assumptions(["4096 == T"]).apply(T) == 4096
        assert Assumptions(["T == 4*S"]).apply(cdiv(T, 4)) is S

    def test_ranges_of_an_export(self) -> None:
        known = Assumptions([], {"T": (5, None), "S": (None, 7)})
        assert lower_bound(known.apply(cdiv(T, 4)), known.bounds) == 2
        assert upper_bound(S, known.bounds) == 7

    @pytest.mark.parametrize(
        ("texts", "message"),
        [
            (["T"], "compares nothing"),
            (["T != 3"], "'!=' tells nothing"),
            (["T = 3"], "write '=='"),
            (["1 < T < 5"], "one comparison"),
            (["T % 4 == 1"], "only '% n == 0'"),
            (["T % 0 == 0"], "division by zero"),
            (["3 > 2"], "names no symbol"),
            (["T + 1 == 4"], "must be a symbol alone"),
            (["T == T"], "must be a symbol alone"),
            (["T >= __import__('os')"], "unknown function '__import__'"),
            (["T == 4", "T == 5"], "contradicts T == 4"),
            (["T == 6", "T % 4 == 0"], "contradicts T == 6"),
            (["T >= 5", "T < 4"], "contradicts the others"),
            (["T == 3", "T > 4"], "contradicts the others"),
            (["T == 0"], "at least 1"),
            (["T % p == 0", "T % 4 == 0"], "by something else"),
        ],
    )
    def test_mistakes(self, texts: list[str], message: str) -> None:
        with pytest.raises(InputError, match=message.replace("%", "%").replace("(", r"\(")):
            Assumptions(texts)

    def test_parsing_alone(self) -> None:
        assert parse_assumption("s96 % 4 == 0").relation == "divisible"
        assert parse_assumption("T >= 5").left is T


SREPR = "FloorDiv(Add(Symbol('s77', positive=True, integer=True), Integer(3)), Integer(4))"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (SREPR, cdiv(sym("s77"), 4)),
        (f"Mul(Integer(4), Max(Integer(1), {SREPR}))", 4 * cdiv(sym("s77"), 4)),
        ("4*(((s96 + 3)//4))", 4 * cdiv(sym("s96"), 4)),
        ("s96 - 3*(((s96 + 3)//4))", sym("s96") - 3 * cdiv(sym("s96"), 4)),
        ("Min(6, s27)", smin(6, sym("s27"))),
        ("max(1, (-1)*(((-1)*s0) // 4))", cdiv(sym("s0"), 4)),
        ("Mod(s0, 4)", sym("s0") % 4),
        ("PythonMod(s0, 4)", sym("s0") % 4),
        ("s0 % 4", sym("s0") % 4),
        ("-s0 + 7", 7 - sym("s0")),
        ("- - s0", sym("s0")),
        ("Pow(Symbol('s0', positive=True, integer=True), Integer(2))", sym("s0") ** 2),
        ("s0**2", sym("s0") * sym("s0")),
        ("CleanDiv(4*s0, 2)", 2 * sym("s0")),
        ("CeilToInt(IntTrueDiv(s0, 4))", cdiv(sym("s0"), 4)),
        ("FloorToInt(IntTrueDiv(s0, Integer(4)))", sym("s0") // 4),
        ("ceil(s0/4)*4", 4 * cdiv(sym("s0"), 4)),
        ("ceiling(Mul(Rational(1, 4), Symbol('s0', positive=True, integer=True)))", cdiv(sym("s0"), 4)),
        ("floor(s0/4 * 1)", sym("s0") // 4),
        ("4*s0/4", sym("s0")),
        ("Integer(-3)", -3),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_spellings_in_exports(text: str, size: Size) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("__import__('os').system('true')", "unexpected"),
        ("__import__('os')", "unknown function '__import__'"),
        ("exec(print)", "unknown function 'exec'"),
        ("Lambda(x, x)", "unknown function 'Lambda'"),
        ("(lambda: 0)()", "unexpected"),
        ("s0.__class__", "unexpected"),
        ("[x for x in s0]", "unexpected"),
        ("s0 s1", "unexpected 's1'"),
        ("s0 +", "the end"),
        ("", "the end"),
        ("(s0", r"'\)' expected"),
        ("s0/3", "a fraction that is not rounded"),
        ("s0//0", "division by zero"),
        ("Mod(s0, s0 - s0)", "division by zero"),
        ("FloorDiv(s0)", "1 arguments where 2 belong"),
        ("s0**s1", "exponent is no number"),
        ("2**999999999", "power with exponent"),
        ("(a+b+c+d+e)**8*(f+g+h+i+j)**8", "terms"),
        ("9" * 4000, "digits"),
        ("1.5", "unexpected"),
        ("0x10", "unexpected"),
        ("Symbol('os.system(1)')", "a symbol named"),
        ("Symbol(s0)", "a symbol named"),
        ("Symbol('s0', exec=True)", "unexpected 'exec=True'"),
        ("(" * 150 + "s0" + ")" * 150, "nesting deeper than 100"),
        ("min(" * 150 + "s0" + ")" * 150, "nesting deeper than 100"),
        ("s0+" * 10_000 + "1", "characters"),
        ("min()", "min of nothing"),
        ("\x00", "unexpected"),
    ],
)
def test_hostile_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_size(text)


@given(st.text(alphabet="sT0123+-*/%(),' =MinFlorDvAd", max_size=60))
def test_any_text_parses_or_is_refused(text: str) -> None:
    with contextlib.suppress(InputError):
        parse_size(text)
