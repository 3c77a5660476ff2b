"""The liveness peak against brute force, with and without regions."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layoutcheck.errors import InputError
from layoutcheck.memory.ledger import Ledger, add_activations
from layoutcheck.memory.liveness import Interval, Region, liveness_peak, peak_formula
from layoutcheck.memory.verdict import largest_tokens

STEPS = 8


@st.composite
def intervals(draw: st.DrawFn, prefix: str = "v") -> list[Interval]:
    found: list[Interval] = []
    for number in range(draw(st.integers(0, 8))):
        first = draw(st.integers(0, STEPS - 1))
        last = draw(st.integers(first, STEPS - 1))
        bases = [i.name for i in found]
        base = draw(st.sampled_from(bases)) if bases and draw(st.booleans()) else None
        found.append(Interval(f"{prefix}{number}", draw(st.integers(0, 50)), first, last, base))
    return found


def _root(name: str, by_name: dict[str, Interval]) -> str:
    while by_name[name].alias_of is not None:
        name = by_name[name].alias_of or name
    return name


def _live(values: list[Interval], step: int) -> int:
    """Bytes alive at a step: a base with all its views is alive from the first to the last use of any."""
    by_name = {i.name: i for i in values}
    total = 0
    for base in by_name.values():
        if base.alias_of is None:
            family = [i for i in values if _root(i.name, by_name) == base.name]
            if min(i.first for i in family) <= step <= max(i.last for i in family):
                total += int(base.bytes)
    return total


@given(intervals())
def test_a_straight_program(values: list[Interval]) -> None:
    peak = liveness_peak(values, steps=STEPS)
    sums = [_live(values, step) for step in range(STEPS)]
    assert peak.bytes == max(sums)
    assert peak.path == (sums.index(max(sums)),)
    assert sum(size for _, size in peak.live) == peak.bytes


@given(intervals("o"), intervals("b"), intervals("c"), st.integers(0, STEPS - 1), st.integers(0, 4))
def test_a_region_equals_its_expansion(
    outer: list[Interval], body: list[Interval], inner: list[Interval], at: int, repeats: int
) -> None:
    nested = Region(at=3, repeats=2, steps=STEPS, intervals=inner)
    peak = liveness_peak(outer, [Region(at, repeats, STEPS, body, [nested])], steps=STEPS)
    profile: list[int] = []
    for step in range(STEPS):
        around = _live(outer, step)
        if step != at or repeats == 0:
            profile.append(around)
            continue
        for _ in range(repeats):
            for k in range(STEPS):
                here = around + _live(body, k)
                if k == 3:
                    profile += [here + _live(inner, j) for _ in range(2) for j in range(STEPS)]
                else:
                    profile.append(here)
    assert peak.bytes == max(profile)
    assert sum(size for _, size in peak.live) == peak.bytes


@given(
    st.integers(1, 5), st.integers(1, 30), st.integers(0, 30), st.integers(0, STEPS - 1), st.integers(0, 7)
)
def test_a_carried_value_is_there_twice_while_the_next_is_made(
    repeats: int, size: int, other: int, made: int, used: int
) -> None:
    body = [Interval("next", size, made, STEPS - 1), Interval("work", other, 2, 4)]
    carried = [Interval("previous", size, 0, used)]
    outer = [Interval("out", size, 2, 3)]
    peak = liveness_peak(outer, [Region(1, repeats, STEPS, body, carried=carried)], steps=4)
    time_line = [0] * (repeats * STEPS)
    for iteration in range(repeats):
        for step in range(STEPS):
            live = (
                (size if step <= used else 0)
                + (size if step >= made else 0)
                + (other if 2 <= step <= 4 else 0)
            )
            time_line[iteration * STEPS + step] = live
    assert peak.bytes == max([*time_line, size])


def test_formulas_and_where() -> None:
    values = [Interval("x", "2*T*h", 0, 2), Interval("view", "2*T*h", 1, 3, "x"), Interval("y", "T*4", 3, 4)]
    peak = liveness_peak(values, symbols={"T": 10, "h": 3})
    assert (peak.bytes, peak.path) == (100, (3,))
    assert peak.live == (("x", 60), ("y", 40))
    assert peak_formula(peak, values) == "2*T*h + T*4"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([Interval("x", 1, 2, 1)], "from step 2 to 1"),
        ([Interval("x", 1, -1, 1)], "from step -1"),
        ([Interval("x", 1, 0, 1), Interval("x", 1, 0, 1)], "two values"),
        ([Interval("x", 1, 0, 1, "y")], "not there"),
        ([Interval("x", 1, 0, 1, "y"), Interval("y", 1, 0, 1, "x")], "view of itself"),
        ([Interval("x", -1, 0, 1)], "-1 bytes"),
        ([Interval("x", "T", 0, 1)], "unknown symbol"),
        ([Interval("x", 1, 0, 99)], "step 99 of 8"),
    ],
)
def test_what_is_refused(values: list[Interval], message: str) -> None:
    with pytest.raises(InputError, match=message):
        liveness_peak(values, steps=STEPS)


def test_the_peak_is_a_line_and_says_how_many_tokens_fit() -> None:
    values = [Interval("x", "2*T*h", 0, 2), Interval("y", "T*4", 2, 4)]

    def peak_at(tokens: int) -> int:
        return liveness_peak(values, symbols={"T": tokens, "h": 3}).bytes

    assert largest_tokens(peak_at, 1005) == 100  # ten bytes a token
    assert largest_tokens(peak_at, 9) == 0
    assert largest_tokens(lambda t: 0, 1, most=77) == 77
    ledger = Ledger("a rank", 0, {"T": 7, "h": 3})
    peak = liveness_peak(values, symbols=ledger.symbols)
    line = add_activations(ledger, peak, peak_formula(peak, values))
    assert (line.bytes, line.tensors, line.note) == (70, ("x", "y"), "at step 2")
    assert ledger.total(["activations"]) == 70 and ledger.static == 0
    with pytest.raises(InputError, match="gives 71 bytes"):
        add_activations(ledger, peak, "71")


def test_nothing_lives_in_an_empty_program() -> None:
    assert liveness_peak([]).bytes == 0


def test_many_intervals_and_a_deep_chain_of_views_in_a_second() -> None:
    rng = random.Random(0)
    count = 17_723
    values = []
    for n in range(count):
        base = f"v{n - 1}" if n % 3 else None
        values.append(Interval(f"v{n}", rng.randrange(1000), n, min(count - 1, n + rng.randrange(40)), base))
    chain = [Interval("w0", 1, 0, 0)] + [Interval(f"w{n}", 1, 0, n, f"w{n - 1}") for n in range(1, 5000)]
    values += reversed(chain)
    begin = time.process_time()
    peak = liveness_peak(values)
    assert time.process_time() - begin < 1
    assert peak.bytes > 0
