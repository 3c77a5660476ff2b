"""Theorem R: the cheapest placement of N repeats costs N times the body, and what the ends make of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from placement_problems import Repeated, repeated
from support.pieces import pieces, run_piece

from layoutcheck.placement.certificate import verify
from layoutcheck.placement.problem import FULL, LOCAL, Infeasible, Mode, Op, Problem, Value
from layoutcheck.placement.repeats import Region, ends_apart, unrolled
from layoutcheck.placement.solve import solve

EXAMPLES, NIGHTLY = 1_000, 20_000
SLOW = list(HealthCheck)


def price(problem: Problem) -> int | None:
    try:
        return solve(problem).price
    except Infeasible:
        return None


def expanded(made: Repeated, times: tuple[int, ...]) -> int | None:
    """The price with every repeat written out."""
    problem, regions = made.build(times)
    return price(unrolled(problem, regions, {r.id: (r.times, r.times) for r in regions}))


def placed(made: Repeated, times: tuple[int, ...]) -> int | None:
    """The price with repeats at the ends written out where that is cheaper."""
    problem, regions = made.build(times)
    tied = price(problem)
    try:
        ends = ends_apart(problem, regions, tied)
    except Infeasible:
        return None
    if not ends:
        return tied
    apart = unrolled(problem, regions, ends)
    found = solve(apart)
    assert verify(apart, found) is None
    assert tied is None or found.price < tied
    return found.price


def holds(made: Repeated, n: int) -> None:
    times = tuple(n + (i * 3) % 4 for i in range(len(made.ties)))
    assert placed(made, times) == expanded(made, times)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=SLOW)
@given(repeated(), st.integers(2, 5))
def test_repeats_cost_what_they_cost_written_out(made: Repeated, n: int) -> None:
    holds(made, n)


@pytest.mark.nightly
@pieces
def test_repeats_cost_what_they_cost_written_out_at_length(piece: int) -> None:
    run_piece(piece, NIGHTLY, holds, repeated(), st.integers(2, 9))


def grows_evenly(made: Repeated, more: int) -> None:
    counts = [(12 + i * more, *[5] * (len(made.ties) - 1)) for i in range(3)]
    found = [placed(made, times) for times in counts]
    assert None in found or found[2] - found[1] == found[1] - found[0]  # type: ignore[operator]


@settings(max_examples=150, deadline=None, suppress_health_check=SLOW)
@given(repeated(), st.integers(1, 1000))
def test_far_from_the_ends_one_more_repeat_costs_what_the_one_before_cost(made: Repeated, more: int) -> None:
    grows_evenly(made, more)


@pytest.mark.nightly
@pieces
def test_far_from_the_ends_one_more_repeat_costs_what_the_one_before_cost_at_length(piece: int) -> None:
    run_piece(piece, NIGHTLY // 4, grows_evenly, repeated(), st.integers(1, 1000))


def tied(state: int) -> tuple[Problem, tuple[Region, ...]]:
    """A body of one op that is cheap on shares, between an input and an output that are both in one state."""
    entry = Op((), (0,), (Mode((), (FULL,)),))
    body = Op((1,), (2,), (Mode((LOCAL,), (LOCAL,), 10), Mode((FULL,), (FULL,), 1000)))
    tie = Op((0, 2), (1, 3, 4), tuple(Mode((s, s), (s, s, s)) for s in (LOCAL, FULL)))
    last = Op((4,), (), (Mode((state,), ()),))
    around, inside = Value(3, 7, 10, 1), Value(30, 70, 100, 10)
    values = (around, inside, inside, around, around)
    return Problem((entry, body, tie, last), values), (Region(0, (2,), frozenset((1,)), 10),)


def test_a_slice_at_the_entry_and_a_gather_behind_the_last_repeat_count_once() -> None:
    problem, regions = tied(FULL)
    found = solve(problem)
    assert found.price == 10 + 1 + 7
    assert ends_apart(problem, regions, found.price) == {}


def test_a_repeat_that_the_entry_makes_cheaper_is_written_out() -> None:
    """The first repeat is free on Full tokens, and the rest is not."""
    problem, regions = tied(LOCAL)
    ops = list(problem.ops)
    ops[1] = Op(
        (1,), (2,), (Mode((LOCAL,), (LOCAL,), 50), Mode((FULL,), (LOCAL,), 10), Mode((FULL,), (FULL,), 900))
    )
    dear = Value(30, 990, 1020, 40)
    problem = Problem(
        tuple(ops), (Value(3, 99, 102, 4), dear, dear, Value(3, 99, 102, 4), Value(3, 99, 102, 4))
    )
    alike = solve(problem)
    assert alike.price == 4 + 50
    ends = ends_apart(problem, regions, alike.price)
    assert ends == {0: (1, 0)}
    assert solve(unrolled(problem, regions, ends)).price == 1 + 9 * 5


def test_a_body_that_cannot_be_alike_is_placed_with_its_ends_written_out() -> None:
    """What comes in can't be converted, and the body gives nothing of that kind."""
    none = Value(None, None, None, None)
    entry = Op((), (0,), (Mode((), (FULL,)),))
    body = Op((1,), (2,), (Mode((LOCAL,), (LOCAL,), 10), Mode((FULL,), (LOCAL,), 30)))
    tie = Op((0, 2), (1, 3, 4), tuple(Mode((s, s), (s, s, s)) for s in (LOCAL, FULL)))
    last = Op((4,), (), (Mode((LOCAL,), ()),))
    problem = Problem((entry, body, tie, last), (none,) * 5)
    regions = (Region(0, (2,), frozenset((1,)), 10),)
    with pytest.raises(Infeasible):
        solve(problem)
    assert ends_apart(problem, regions, None) == {0: (1, 0)}
    assert solve(unrolled(problem, regions, {0: (1, 0)})).price == 3 + 9


def shared_with_the_next(times: int) -> tuple[Problem, tuple[Region, ...]]:
    """What is handed on is born Full; its own repeat reads a share of it, and the next one the whole and a share."""
    both = (LOCAL, FULL)
    ops = (
        Op((), (0,), (Mode((), (FULL,)),)),
        Op((1,), (2,), (Mode((FULL,), (FULL,), times),)),
        Op((1, 2), (3,), (Mode((LOCAL, LOCAL), (LOCAL,), times),)),
        Op((0, 2), (1, 4, 5), tuple(Mode((s, s), (s, s, s)) for s in both)),
        Op((5,), (), (Mode((FULL,), ()),)),
    )
    inside, around = Value(90 * times, 90 * times, 180 * times, 2 * times), Value(90, 90, 180, 2)
    values = (around, inside, inside, inside, around, around)
    return Problem(ops, values), (Region(0, (3,), frozenset((1, 2)), times),)


@pytest.mark.parametrize("times", [20, 78])
def test_a_conversion_that_two_repeats_could_share_writes_no_repeat_out(times: int) -> None:
    """Each repeat slices what it gets and what it gives; written out, the next one reads the share that is there."""
    problem, regions = shared_with_the_next(times)
    tied = solve(problem).price
    assert tied == times * (1 + 1 + 2 + 2)
    assert solve(unrolled(problem, regions, {0: (times, times)})).price == times * (1 + 1 + 2) + 2
    assert ends_apart(problem, regions, tied) == {}


# ---- these tests can fail


def first_failure(check: Callable[[Repeated], None]) -> bool:
    """Whether some small problem fails a check."""

    @settings(
        max_examples=200, deadline=None, suppress_health_check=SLOW, database=None, phases=[Phase.generate]
    )
    @given(repeated())
    def run(made: Repeated) -> None:
        check(made)

    try:
        run()
    except AssertionError:
        return True
    return False


def test_a_miscounted_repeat_is_seen() -> None:
    def check(made: Repeated) -> None:
        times = tuple(4 for _ in made.ties)
        assert placed(made, (5, *times[1:])) == expanded(made, times)

    assert first_failure(check)


def test_ends_that_are_never_written_out_are_seen() -> None:
    def check(made: Repeated) -> None:
        times = tuple(4 for _ in made.ties)
        assert price(made.build(times)[0]) == expanded(made, times)

    assert first_failure(check)


def test_a_value_that_is_handed_on_as_it_comes_is_seen() -> None:
    """An opaque marker: what is handed on is Full, whatever the body needs."""

    def check(made: Repeated) -> None:
        times = tuple(4 for _ in made.ties)
        problem, regions = made.build(times)
        opaque = {o for r in regions for o in r.ties}
        ops = tuple(
            Op(op.reads, op.writes, tuple(m for m in op.modes if m.gives[0] == FULL)) if o in opaque else op
            for o, op in enumerate(problem.ops)
        )
        assert price(Problem(ops, problem.values)) == expanded(made, times)

    assert first_failure(check)


def test_a_residual_that_is_gathered_in_one_form_only_is_seen() -> None:
    """In the tied form what is carried is gathered by everyone that reads it."""

    def check(made: Repeated) -> None:
        times = tuple(4 for _ in made.ties)
        problem, regions = made.build(times)
        carried = {problem.ops[o].writes[0] for r in regions for o in r.ties}
        ops = tuple(
            Op(op.reads, op.writes, tuple(m for m in op.modes if m.needs[0] == FULL) or op.modes)
            if op.reads and op.reads[0] in carried
            else op
            for op in problem.ops
        )
        assert placed(made, times) == price(
            unrolled(Problem(ops, problem.values), regions, {r.id: (4, 4) for r in regions})
        )

    assert first_failure(check)
