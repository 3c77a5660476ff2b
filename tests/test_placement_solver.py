"""The cheapest placement, against all placements."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from layoutcheck.placement.certificate import verify
from layoutcheck.placement.problem import (
    FULL,
    LOCAL,
    PARTIAL,
    Infeasible,
    Mode,
    Op,
    Placement,
    Problem,
    Solved,
    Value,
    price_of,
)
from layoutcheck.placement.solve import solve

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


MOVES = (
    ("scatter", PARTIAL, LOCAL),
    ("gather", LOCAL, FULL),
    ("reduce", PARTIAL, FULL),
    ("slice", FULL, LOCAL),
)


def conversions(value: Value, born: int, needs: set[int]) -> int | None:
    """The least sum of prices of conversions that lead from one state to all that are needed, over all sets of conversions."""
    best = None
    for made in product((False, True), repeat=len(MOVES)):
        picked = [m for m, yes in zip(MOVES, made) if yes]
        paid = [getattr(value, name) for name, _, _ in picked]
        have = {born}
        for _ in MOVES:
            have.update(to for _, start, to in picked if start in have)
        if None not in paid and needs <= have and (best is None or sum(paid) < best):
            best = sum(paid)
    return best


def reference_price(problem: Problem, modes: tuple[int, ...]) -> int | None:
    """What a choice of modes costs, counted from the definition alone. None where an operand can't be had."""
    chosen = [op.modes[m] for op, m in zip(problem.ops, modes)]
    total = sum(m.price for m in chosen)
    for v, value in enumerate(problem.values):
        born = [m.gives[op.writes.index(v)] for op, m in zip(problem.ops, chosen) if v in op.writes]
        needs = set()
        for op, mode in zip(problem.ops, chosen):
            for slot, read in enumerate(op.reads):
                if read == v and mode.needs[slot] is not None:
                    if not born or (slot, born[0], mode.needs[slot]) in op.barred:
                        return None
                    needs.add(mode.needs[slot])
        paid = conversions(value, born[0], needs) if needs else 0
        if paid is None:
            return None
        total += paid
    return total


def brute_force(problem: Problem) -> int | None:
    """The least price over all choices of modes."""
    found = [reference_price(problem, c) for c in product(*(range(len(op.modes)) for op in problem.ops))]
    return min((p for p in found if p is not None), default=None)


def holds(problem: Problem) -> str:
    best = brute_force(problem)
    try:
        found = solve(problem)
    except Infeasible:
        assert best is None
        return "none"
    assert best == found.price == price_of(problem, found.modes) == reference_price(problem, found.modes)
    assert verify(problem, found) is None
    return found.certificate.method


@settings(max_examples=2500, deadline=None)
@given(problems(chain=True))
def test_the_cut_is_as_cheap_as_the_cheapest_of_all(problem: Problem) -> None:
    holds(problem)


@settings(max_examples=2500, deadline=None)
@given(problems())
def test_cut_and_integer_program_are_as_cheap_as_the_cheapest_of_all(problem: Problem) -> None:
    holds(problem)


# ---- wrong certificates


def _another_part(found: Placement, **changes: Any) -> Placement:
    """The placement with its first cut changed."""
    certificate = found.certificate
    at = next(i for i, p in enumerate(certificate.parts) if p.solved.method == "min-cut")
    part = certificate.parts[at]
    new = attrs.evolve(part, solved=attrs.evolve(part.solved, **changes))
    parts = (*certificate.parts[:at], new, *certificate.parts[at + 1 :])
    return attrs.evolve(found, certificate=attrs.evolve(certificate, parts=parts))


def _first_cut(found: Placement) -> Solved:
    return next(p.solved for p in found.certificate.parts if p.solved.method == "min-cut")


def _capacity(found: Placement) -> Placement:
    """An edge that lets more through than it costs, and a flow that uses it."""
    cut = _first_cut(found)
    x, y, c = next(e for e in cut.network if e[2] is not None)
    network = tuple((x, y, c + 1) if e[:2] == (x, y) else e for e in cut.network)
    return _another_part(found, network=network)


def _implication(found: Placement) -> Placement:
    """What follows from nothing."""
    cut = _first_cut(found)
    o, op = next((o, op) for o, op in enumerate(cut.problem.ops) if len(op.modes) > 1)
    return _another_part(found, network=(*cut.network, ("source", (o, len(op.modes) - 1), None)))


def _edge(found: Placement) -> Placement:
    return _another_part(found, network=(*_first_cut(found).network, ("source", "sink", 1)))


def _flow(found: Placement) -> Placement:
    cut = _first_cut(found)
    return _another_part(found, flow={(x, y): 1 for x, y, _ in cut.network})


def _side(found: Placement) -> Placement:
    return _another_part(found, source_side=frozenset(("source", "sink")))


def _constant(found: Placement) -> Placement:
    cut = _first_cut(found)
    return _another_part(found, constant=cut.constant + 1, bound=cut.bound + 1)


def _price(found: Placement) -> Placement:
    """A part whose op is said to cost less."""
    cut = _first_cut(found)
    op = cut.problem.ops[0]
    less = attrs.evolve(op, modes=tuple(attrs.evolve(m, price=m.price - 1) for m in op.modes))
    return _another_part(found, problem=attrs.evolve(cut.problem, ops=(less, *cut.problem.ops[1:])))


def _reader(found: Placement) -> Placement:
    """A part with a reader that is not there."""
    cut = _first_cut(found)
    v = len(cut.problem.values) - 1
    more = Op((v,), (), (Mode((FULL,), ()),), frozenset({(0, PARTIAL, LOCAL), (0, LOCAL, PARTIAL)}))
    modes = (*cut.modes, 0)
    return _another_part(found, problem=attrs.evolve(cut.problem, ops=(*cut.problem.ops, more)), modes=modes)


def _left_out(found: Placement) -> Placement:
    certificate = found.certificate
    return attrs.evolve(found, certificate=attrs.evolve(certificate, parts=certificate.parts[1:]))


def _forced(found: Placement) -> Placement:
    certificate = found.certificate
    more = attrs.evolve(certificate, forced=certificate.forced + 1, bound=certificate.bound + 1)
    return attrs.evolve(found, certificate=more)


def _bound(found: Placement) -> Placement:
    certificate = found.certificate
    return attrs.evolve(found, certificate=attrs.evolve(certificate, bound=certificate.bound + 1))


WRONG = [_capacity, _implication, _edge, _flow, _side, _constant, _price, _reader, _left_out, _forced, _bound]


@pytest.mark.parametrize("wrong", WRONG, ids=[w.__name__[1:] for w in WRONG])
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(problem=problems(chain=True))
def test_a_wrong_certificate_is_refused(wrong: Callable[[Placement], Placement], problem: Problem) -> None:
    try:
        found = solve(problem)
    except Infeasible:
        assume(False)
    assume(found.certificate.method == "min-cut")
    assume(any(c is not None for _, _, c in _first_cut(found).network))
    assert verify(problem, found) is None
    assert verify(problem, wrong(found)) is not None


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(problem=problems(chain=True), data=st.data())
def test_another_placement_is_not_proven_by_the_certificate(problem: Problem, data: st.DataObject) -> None:
    try:
        found = solve(problem)
    except Infeasible:
        assume(False)
    modes = tuple(data.draw(st.integers(0, len(op.modes) - 1)) for op in problem.ops)
    price = price_of(problem, modes)
    assume(price is not None and price > found.price)
    assert price is not None
    assert verify(problem, Placement(modes, price, found.certificate)) is not None
