"""How tokens spread over experts: how many experts are hit on a rank, and how loaded the fullest rank is.

Three routings:

* ``balanced``: tokens are dealt round robin. A rank's ``rows`` copies hit ``min(experts, rows)`` experts.
* ``uniform``: every token picks its experts at random. Of ``e`` experts on a rank, one row misses a given
  one with probability ``1 - 1/e``, so ``e (1 - (1 - 1/e)^rows)`` are hit on average.
* ``skewed``: loads are drawn log-uniformly between 1 and 0.8 of the tokens and scaled to the number of
  copies, which is how published collections draw their "power law" rows (exponents near 1); the rank is the
  fullest one. An expert is hit if its load rounds to a copy; the fullest of ``r`` ranks exceeds the mean by
  about ``cv sqrt(2 ln r / e)``, with cv the loads' relative deviation.
"""

from __future__ import annotations

from attrs import frozen

from layoutcheck.cost.algebra import Num, ceil_div, log, maximum, minimum, power, sqrt
from layoutcheck.errors import InputError

ROUTINGS = ("balanced", "uniform", "skewed")
_SPREAD = 0.8  # the largest load, as a share of the tokens
_HIT = 0.25  # a load that counts as a hit: below one copy, since a drawn load is rounded


@frozen
class Load:
    """What the fullest rank has to compute: copies of tokens, experts among which they are spread."""

    rows: Num
    experts: Num
    exact: bool
    """Whether both are integers and the experts are equally loaded."""


def load(
    tokens: Num, topk: Num, experts: Num, ep: Num = 1, routing: str = "balanced", excess: float = 1.0
) -> Load:
    """Return the load of the fullest of ``ep`` ranks.

    Args:
        tokens: tokens of the whole group, before they are copied to their experts.
        topk: experts a token goes to.
        experts: experts of the layer, all ranks together.
        ep: ranks that the experts are spread over.
        routing: one of :data:`ROUTINGS`.
        excess: fitted factor on the skewed excess.

    Raises:
        InputError: no such routing.
    """
    local = maximum(experts // ep if isinstance(experts, int) and isinstance(ep, int) else experts / ep, 1)
    if routing == "balanced":
        rows = ceil_div(tokens * topk, ep)
        return Load(rows, minimum(local, rows), True)
    rows = tokens * topk / ep
    if routing == "uniform":
        missed = (
            (1 - 1 / local) ** rows
            if isinstance(local, (int, float)) and local == 1
            else _missed(local, rows)
        )
        return Load(rows, maximum(local * (1 - missed), 1), False)
    if routing != "skewed":
        raise InputError(f"no routing is called {routing!r}; there are {', '.join(ROUTINGS)}")
    largest = maximum(_SPREAD * tokens, 1.5)
    spread = log(largest)
    unit = tokens * topk * spread / (experts * maximum(largest - 1, 0.5))
    share = maximum(0.0, 1 - log(maximum(_HIT / unit, 1.0)) / spread)
    hit = minimum(maximum(local * share, 1.0), minimum(local, maximum(rows, 1.0)))
    deviation = sqrt(maximum(spread / 2 - 1, 0.2))
    factor = minimum(1 + excess * deviation * sqrt(2 * log(maximum(ep, 1)) / local), maximum(ep, 1))
    return Load(rows * factor, hit, False)


def _missed(local: Num, rows: Num) -> Num:
    from layoutcheck.cost.algebra import is_symbolic

    base = maximum(1 - 1 / local, 1e-12)
    if is_symbolic(base, rows):
        return base**rows
    return power(base, rows)
