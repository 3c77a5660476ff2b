"""Kinds of collectives, by the transform that their rule names.

Several passes ask of a call which kind it is; here each kind is written once.
"""

from __future__ import annotations

SUMMING = frozenset(("all_reduce", "reduce_scatter"))
"""Those that end a pending sum."""

GOING_UP = SUMMING | {"all_gather"}
"""Those that go up the chain ``Full <: Local <: Partial``."""

CONVERTING = GOING_UP | {"all_to_all"}
"""Those that bring a value to another layout over a group."""

COMMUNICATING = CONVERTING | {"broadcast"}
"""Those, and one rank's value sent to all."""
