"""Long property tests in pieces, each with examples of its own, so that they run beside each other and one at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

PIECES = 10

pieces = pytest.mark.parametrize("piece", range(PIECES))


def run_piece(
    piece: int, examples: int, check: Callable[..., Any], *strategies: st.SearchStrategy[Any], first: int = 1
) -> None:
    """Check one piece's share of `examples`, which are others in every piece and the same in every run.

    Args:
        first: another number draws other examples.
    """

    @seed(first * PIECES + piece)
    @settings(
        max_examples=examples // PIECES,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
        derandomize=False,
    )
    @given(st.tuples(*strategies))
    def run(drawn: tuple[Any, ...]) -> None:
        check(*drawn)

    run()
