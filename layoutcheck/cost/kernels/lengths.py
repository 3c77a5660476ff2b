"""How many keys a query sees on average: causal, after cached tokens, within a window or a top-k."""

from __future__ import annotations

from layoutcheck.cost.algebra import Num, maximum, minimum


def causal_keys(new: Num, cached: Num) -> Num:
    """Return the mean number of keys of ``new`` causal queries after ``cached`` tokens."""
    return cached + (new + 1) / 2


def limited_pairs(new: Num, cached: Num, limit: Num) -> Num:
    """Return query-key pairs of one sequence where a query sees at most ``limit`` keys: twice the exact
    number.

    Twice, so that integers stay integers. The first ``limit - cached`` queries see all keys up to themselves.
    """
    early = minimum(new, maximum(0, limit - cached))
    return early * (2 * cached + early + 1) + 2 * (new - early) * limit


def limited_keys(new: Num, cached: Num, limit: Num) -> Num:
    """Return the mean number of keys a query sees where it sees at most ``limit``."""
    return limited_pairs(new, cached, limit) / (2 * new)
