"""The cheapest placement, against all placements."""

from __future__ import annotations

from itertools import product

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutcheck.placement.problem import FULL, LOCAL, PARTIAL, Infeasible, Mode, Op, Problem, Value, price_of
from layoutcheck.placement.solve import solve, verify

pytest.importorskip("scipy")

prices = st.integers(0, 6)


@st.composite
def modes(draw: st.DrawFn, n_in: int, n_out: int, chain: bool) -> tuple[Mode, ...]:
    """Modes of an op: the same state everywhere (pointwise ops), a product with a sharded weight, whatever comes."""
    kind = draw(st.sampled_from(["same", "row", "query", "any"] if not chain else ["same", "row", "query"]))
    if kind == "row":
        return (Mode((FULL,) * n_in, (PARTIAL,) * n_out, draw(prices)),)
    if kind == "query":
        found = [
            Mode((FULL,) * n_in, (FULL,) * n_out, draw(prices)),
            Mode((LOCAL, *(FULL,) * (n_in - 1))[:n_in], (LOCAL,) * n_out, draw(prices)),
        ]
    elif kind == "same":
        states = draw(st.lists(st.sampled_from([PARTIAL, LOCAL, FULL]), min_size=1, max_size=3, unique=True))
        found = [Mode((s,) * n_in, (s,) * n_out, draw(prices)) for s in states]
    else:
        state = st.sampled_from([PARTIAL, LOCAL, FULL])
        found = [
            Mode(
                tuple(draw(state) for _ in range(n_in)),
                tuple(draw(state) for _ in range(n_out)),
                draw(prices),
            )
            for _ in range(draw(st.integers(1, 3)))
        ]
    return tuple({(m.needs, m.gives): m for m in found}.values())


@st.composite
def problems(draw: st.DrawFn, chain: bool = False) -> Problem:
    """Small graphs with shared values, ops of several results, regions (a value that is read by an earlier op)."""
    n_ops = draw(st.integers(1, 6))
    ops: list[Op] = []
    n_values = 0
    for _ in range(n_ops):
        n_in = draw(st.integers(0, min(3, n_values)))
        reads = tuple(draw(st.integers(0, n_values - 1)) for _ in range(n_in))
        n_out = draw(st.integers(1, 2))
        barred = draw(
            st.frozensets(
                st.tuples(st.integers(0, 2), st.sampled_from([0, 1, 2]), st.sampled_from([0, 1, 2])),
                max_size=1,
            )
        )
        barred = frozenset(b for b in barred if b[1] != b[2])
        ops.append(
            Op(reads, tuple(range(n_values, n_values + n_out)), draw(modes(n_in, n_out, chain)), barred)
        )
        n_values += n_out
    if n_ops > 1 and draw(st.booleans()):
        # a repeated body: the op at its begin is also read by what comes from its end
        at = draw(st.integers(0, n_ops - 1))
        op = ops[at]
        back = draw(st.integers(0, n_values - 1))
        same = [m for m in op.modes if len(set(m.gives)) == 1]
        if same:
            ops[at] = Op(
                (*op.reads, back),
                op.writes,
                tuple(attrs.evolve(m, needs=(*m.needs, m.gives[0])) for m in same),
                op.barred,
            )
    values = []
    for _ in range(n_values):
        a, b = draw(prices), draw(prices)
        reduce = a + b if chain or draw(st.booleans()) else draw(st.none() | st.integers(0, 12))
        values.append(
            Value(a, b, reduce, draw(st.integers(0, 3)) if chain else draw(st.none() | st.integers(0, 3)))
        )
    return Problem(tuple(ops), tuple(values))


def brute_force(problem: Problem) -> int | None:
    """The least price over all choices of modes."""
    found = [price_of(problem, c) for c in product(*(range(len(op.modes)) for op in problem.ops))]
    return min((p for p in found if p is not None), default=None)


def holds(problem: Problem) -> str:
    best = brute_force(problem)
    try:
        found = solve(problem)
    except Infeasible:
        assert best is None
        return "none"
    assert best == found.price
    assert verify(problem, found) is None
    return found.certificate.method


@settings(max_examples=1500, deadline=None)
@given(problems(chain=True))
def test_the_cut_is_as_cheap_as_the_cheapest_of_all(problem: Problem) -> None:
    holds(problem)


@settings(max_examples=1500, deadline=None)
@given(problems())
def test_cut_and_integer_program_are_as_cheap_as_the_cheapest_of_all(problem: Problem) -> None:
    holds(problem)
