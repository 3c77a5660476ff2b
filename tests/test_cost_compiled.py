"""Compiled formulas against sympy's own exact evaluation."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutcheck.cost import blocks, stages
from layoutcheck.cost.compiled import compile_formula, compile_formulas
from layoutcheck.errors import InputError

T, P, K = sympy.symbols("T p k", integer=True, positive=True)
SYMBOLS = (T, P, K)


def exact(expr: Any, point: dict[Any, int]) -> Fraction:
    """Walk the expression in fractions: what every compiled result is held against."""
    if expr.is_Rational:
        return Fraction(int(expr.p), int(expr.q))
    if expr.is_Symbol:
        return Fraction(point[expr])
    if isinstance(expr, sympy.Piecewise):
        for value, condition in expr.args:
            if condition is sympy.true:
                return exact(value, point)
            left, right = exact(condition.lhs, point), exact(condition.rhs, point)
            if {
                "<=": left <= right,
                ">=": left >= right,
                "<": left < right,
                ">": left > right,
                "==": left == right,
                "!=": left != right,
            }[condition.rel_op]:
                return exact(value, point)
    args = [exact(a, point) for a in expr.args]
    if expr.is_Add:
        return sum(args, Fraction(0))
    if expr.is_Mul:
        return math.prod(args, start=Fraction(1))
    if expr.is_Pow:
        return args[0] ** int(args[1])
    ways: dict[Any, Any] = {
        sympy.ceiling: lambda: Fraction(math.ceil(args[0])),
        sympy.floor: lambda: Fraction(math.floor(args[0])),
        sympy.Mod: lambda: args[0] % args[1],
        sympy.Min: lambda: min(args),
        sympy.Max: lambda: max(args),
        sympy.Abs: lambda: abs(args[0]),
    }
    return ways[expr.func]()


def integers() -> st.SearchStrategy[Any]:
    """Integer-valued expressions of sizes, ceilings of ratios inside ratios included."""
    leaves = st.sampled_from(SYMBOLS) | st.integers(-7, 40).map(sympy.Integer)

    def grow(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        sizes = st.sampled_from(SYMBOLS) | st.integers(1, 40).map(sympy.Integer)
        ratios = st.tuples(inner, sizes, st.integers(0, 3)).map(
            lambda a: a[0] / a[1] + sympy.Rational(a[2], 4)
        )
        pairs = st.tuples(inner, inner)
        return st.one_of(
            pairs.map(lambda a: a[0] + a[1]),
            pairs.map(lambda a: a[0] - a[1]),
            pairs.map(lambda a: a[0] * a[1]),
            ratios.map(sympy.ceiling),
            ratios.map(sympy.floor),
            st.tuples(inner, sizes).map(lambda a: sympy.Mod(a[0], a[1])),
            pairs.map(lambda a: sympy.Min(*a, evaluate=False)),
            pairs.map(lambda a: sympy.Max(*a, evaluate=False)),
            st.tuples(inner, inner, leaves, leaves).map(
                lambda a: sympy.Piecewise((a[0], a[2] <= a[3]), (a[1], True), evaluate=False)
            ),
        )

    return st.recursive(leaves, grow, max_leaves=6)


points = st.lists(st.tuples(*[st.integers(1, 5000) | st.integers(1, 40)] * 3), min_size=1, max_size=6)


@settings(max_examples=80)
@given(integers(), points)
def test_integers_are_exact_at_every_point(expr: Any, at: list[tuple[int, int, int]]) -> None:
    program = compile_formula(expr)
    columns = {s.name: np.array([p[i] for p in at]) for i, s in enumerate(SYMBOLS)}
    found = program(**columns)["value"]
    found = np.broadcast_to(found, (len(at),))
    assert found.dtype.kind in "iO"
    for i, point in enumerate(at):
        want = exact(expr, dict(zip(SYMBOLS, point)))
        assert want.denominator == 1
        assert int(found[i]) == want.numerator
        assert program.at(**{s.name: v for s, v in zip(SYMBOLS, point)})["value"] == want.numerator


@settings(max_examples=80)
@given(
    st.lists(integers(), min_size=1, max_size=3),
    st.lists(st.tuples(*[st.integers(1, 9) | st.integers(1, 4)] * 3), min_size=1, max_size=30),
    st.sampled_from([1, 2]),
)
def test_sizes_that_repeat_are_computed_once_each(exprs: list[Any], at: list[Any], fewer: int) -> None:
    """Every operation under the smallest key that it can have: the same integers at every point."""
    program = compile_formulas({str(i): e for i, e in enumerate(exprs)})
    columns = {s.name: np.array([p[i] for p in at]) for i, s in enumerate(SYMBOLS)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "_STAGED", 1)
        patch.setattr(stages, "_FEWER", fewer)
        patch.setattr(stages, "_LEAST_STEPS", 1)
        found = program(**columns)
    for name in found:
        column = np.broadcast_to(found[name], (len(at),))
        for i, point in enumerate(at):
            assert int(column[i]) == program.at(**{s.name: v for s, v in zip(SYMBOLS, point)})[name]


def test_work_is_done_for_distinct_values_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A formula of one size with few values runs over these, and a share of it over fewer still."""
    share = sympy.ceiling(T / 16)
    formula = sum(sympy.sqrt(share + i) for i in range(20)) + sum(sympy.sqrt(T + i) for i in range(20))
    program = compile_formula(formula + sympy.sqrt(T + K))
    rng = np.random.default_rng(3)
    t, k = rng.integers(1, 2001, 200_000), rng.integers(1, 10**6, 200_000)
    ran: dict[int, int] = {}
    original = blocks._Plan._run

    def counted(self: Any, steps: Any, wanted: Any, count: int, *more: Any) -> Any:
        ran[count] = ran.get(count, 0) + len(steps)
        return original(self, steps, wanted, count, *more)

    monkeypatch.setattr(blocks._Plan, "_run", counted)
    found = program(T=t, k=k)["value"]
    assert sorted(ran) == [125, 2000, 200_000]
    assert ran[125] > 30 and ran[2000] > 40 and ran[200_000] < 6
    for i in range(0, 200_000, 20_011):
        assert found[i] == pytest.approx(program.at(T=int(t[i]), k=int(k[i]))["value"], rel=1e-14)


def test_a_size_that_no_point_has_is_not_computed() -> None:
    """1/(T - 5) between the smallest and the largest T, where no T is 5."""
    t = np.array([4, 6] * 20_000)
    assert (compile_formula(1 / (T - 5) + T)(T=t)["value"] == np.array([3.0, 7.0] * 20_000)).all()
    with pytest.raises(InputError, match="division by zero"):
        compile_formula(1 / (T - 5) + T)(T=np.array([4, 5] * 20_000))


@settings(max_examples=40)
@given(integers(), st.sampled_from(SYMBOLS), points)
def test_ratios_are_the_nearest_float(expr: Any, divisor: Any, at: list[tuple[int, int, int]]) -> None:
    ratio = expr / divisor + sympy.Rational(1, 3)
    program = compile_formula(ratio)
    columns = {s.name: np.array([p[i] for p in at]) for i, s in enumerate(SYMBOLS)}
    found = np.broadcast_to(program(**columns)["value"], (len(at),))
    for i, point in enumerate(at):
        want = exact(ratio, dict(zip(SYMBOLS, point)))
        assert float(found[i]) == pytest.approx(float(want), rel=1e-15)


@settings(max_examples=100)
@given(
    st.integers(1, 2**61),
    st.integers(1, 2**31),
    st.sampled_from(["below", "at", "above"]),
)
def test_ceilings_beside_multiples(quotient: int, divisor: int, side: str) -> None:
    """Just below and above a multiple of the divisor, where rounding would show, at all magnitudes."""
    top = quotient * divisor + {"below": -1, "at": 0, "above": 1}[side]
    program = compile_formulas({"up": sympy.ceiling(T / P), "down": sympy.floor(T / P)})
    found = program(T=np.array([top, top], dtype=object), p=np.array([divisor, divisor]))
    assert [int(v) for v in found["up"]] == [-(-top // divisor)] * 2
    assert [int(v) for v in found["down"]] == [top // divisor] * 2


def test_each_way_of_running_is_taken() -> None:
    program = compile_formula(sympy.ceiling(T / P) * K)
    assert program.mode({"T": 10**6, "p": 16, "k": 100}) == "float64"
    assert program.mode({"T": 10**12, "p": 16, "k": 10**5}) == "int64"
    assert program.mode({"T": 10**12, "p": 16, "k": 10**12}) == "python"
    for k in (100, 10**5, 10**12):
        t = 10**12 + 7
        assert int(program(T=np.array([t]), p=16, k=np.array([k]))["value"][0]) == -(-t // 16) * k


@pytest.mark.parametrize("divisor", [3, 7, 10, 48, 49])
def test_no_ceiling_of_a_reciprocal(divisor: int) -> None:
    """``ceil(T * (1/p))`` in floats is wrong at multiples of 49, for one."""
    tokens = np.arange(1, 50_000)
    found = compile_formula(sympy.ceiling(T / divisor))(T=tokens)["value"]
    assert (found == -(-tokens // divisor)).all()


def test_integers_that_only_enter_a_time_may_pass_2_to_the_63() -> None:
    program = compile_formula(sympy.Float(1e-6) * T**6 + sympy.ceiling(T / P))
    t = np.array([10**5, 123_457])
    assert program.mode({"T": int(t.max()), "p": 3}) == "float64"
    want = [1e-6 * float(v) ** 6 + -(-int(v) // 3) for v in t]
    assert program(T=t, p=3)["value"] == pytest.approx(want, rel=1e-14)
    # the ceiling now needs int64, the power still passes 2^63
    wide = compile_formula(sympy.Float(1e-6) * T**6 + sympy.ceiling(T * K / P))
    k = np.array([10**11, 10**11])
    assert wide.mode({"T": int(t.max()), "p": 3, "k": int(k[0])}) == "int64"
    want = [1e-6 * float(v) ** 6 + -(-int(v) * 10**11 // 3) for v in t]
    assert wide(T=t, p=3, k=k)["value"] == pytest.approx(want, rel=1e-14)


def test_arrays_are_broadcast() -> None:
    program = compile_formula(sympy.ceiling(T / P))
    tokens, ranks = np.arange(1, 40)[:, None], np.array([1, 2, 4, 8])[None, :]
    found = program(T=tokens, p=ranks)["value"]
    assert found.shape == (39, 4)
    assert (found == -(-tokens // ranks)).all()
    assert program(T=17, p=4)["value"] == 5


def test_blocks_and_threads_agree_with_one_pass() -> None:
    formula = sympy.sqrt(T * K) + sympy.Min(sympy.ceiling(T / P), K) + sympy.log(1 + T / P)
    rng = np.random.default_rng(1)
    t, p, k = (rng.integers(1, 10**5, 250_001) for _ in range(3))
    found = compile_formula(formula)(T=t, p=p, k=k)["value"]
    want = np.sqrt(t * k) + np.minimum(-(-t // p), k) + np.log(1 + t / p)
    assert np.allclose(found, want, rtol=1e-13)


def test_nested_conditions() -> None:
    inner = sympy.Piecewise((T <= P, T <= K), (T <= 2 * P, True))
    formula = sympy.Piecewise((T, inner), (sympy.ceiling(P / 2), True))
    program = compile_formula(formula)
    for t in range(1, 12):
        condition = t <= 4 if t <= 6 else t <= 8
        assert program(T=np.array([t]), p=4, k=6)["value"][0] == (t if condition else 2)


def test_shared_parts_are_computed_once() -> None:
    share = sympy.ceiling(T / P)
    both = compile_formulas({"a": share * 3, "b": share * K + 1})
    assert sum(op.name == "ceil_div" for op in both.ops) == 1


def test_a_ceiling_of_an_inexact_value_is_counted() -> None:
    assert compile_formula(sympy.ceiling(sympy.sqrt(T))).inexact_ceilings == 1
    assert compile_formula(sympy.ceiling(T / P)).inexact_ceilings == 0


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"T": 5}, "no value for p"),
        ({"T": np.array([1.5]), "p": 2}, "T: sizes are integers"),
        ({"T": np.array([-1]), "p": 2}, "T: a size is negative"),
        ({"T": np.array([1, 2]), "p": np.array([1, 0])}, "division by zero"),
        ({"T": np.array([1, 2]), "p": 0}, "division by zero"),
    ],
)
def test_bad_sizes_are_refused(sizes: dict[str, Any], message: str) -> None:
    for formula in (sympy.ceiling(T / P), T / P):
        with pytest.raises(InputError, match=message):
            compile_formula(formula)(**sizes)


def test_unknown_functions_are_refused() -> None:
    with pytest.raises(InputError, match="cannot be compiled: gamma"):
        compile_formula(sympy.gamma(T))
    with pytest.raises(InputError, match="no value where no condition holds"):
        compile_formula(sympy.Piecewise((T, T < P)))
