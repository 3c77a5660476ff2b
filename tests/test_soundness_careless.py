"""Programs of any ops on any values: what is clean on all ranks together is what one device computes."""

from __future__ import annotations

import random
import warnings

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from ranks.careless_outcomes import outcome  # noqa: E402

torch.set_num_threads(1)


def tapes(seed: int, count: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(1 << 16) for _ in range(rng.choice((30, 60, 100)))] for _ in range(count)]


def judge(numbers: list[int]) -> tuple[bool, str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = outcome(numbers)
    assert not found.claim.startswith("wrong"), found.text()
    return not found.issues, found.claim


@given(st.lists(st.integers(0, (1 << 16) - 1), min_size=20, max_size=80))
def test_whatever_is_clean_is_right(numbers: list[int]) -> None:
    judge(numbers)


def test_some_are_clean_and_some_are_not() -> None:
    """The programs tell something: both kinds occur, and most clean ones claim a value."""
    found = [judge(tape) for tape in tapes(1, 150)]
    clean = [claim for is_clean, claim in found if is_clean]
    assert 10 < len(clean) < 140
    assert clean.count("right") > len(clean) / 2


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(10, 30))
def test_many_programs(seed: int) -> None:
    for tape in tapes(seed, 1000):
        judge(tape)
