"""A program that checks clean on every rank computes what the single device computes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from ranks.outcomes import outcome  # noqa: E402

torch.set_num_threads(1)
TAPES = st.binary(min_size=60, max_size=60).map(
    lambda raw: [raw[i] * 256 + raw[i + 1] for i in range(0, 60, 2)]
)
CHECKS = settings(deadline=None, max_examples=400, suppress_health_check=list(HealthCheck))


@CHECKS
@given(TAPES)
def test_right_program_is_clean_and_equal(tape: list[int]) -> None:
    found = outcome(tape, faults=False)
    assert found.equal and found.clean, found.text()


@CHECKS
@given(TAPES)
def test_clean_program_is_equal(tape: list[int]) -> None:
    found = outcome(tape, faults=True)
    assert found.equal or not found.clean, found.text()


def test_faults_are_made_and_found() -> None:
    """The property is not empty: many programs with a fault differ, and are refused."""
    import random

    rng = random.Random(5)
    found = [outcome([rng.randrange(1 << 16) for _ in range(30)], faults=True) for _ in range(200)]
    assert sum(not f.equal for f in found) > 20
    assert sum(f.clean for f in found) > 60


@pytest.mark.nightly
@settings(CHECKS, max_examples=5000)
@given(TAPES)
def test_clean_program_is_equal_at_length(tape: list[int]) -> None:
    found = outcome(tape, faults=True)
    assert found.equal or not found.clean, found.text()
