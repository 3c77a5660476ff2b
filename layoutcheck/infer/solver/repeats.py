"""Repeated regions: which markers belong together, and how often a body runs.

A body that hands on several values has one begin, one end and one copy a value, all with the region's number; the n-th of
each belong together, and every n copies are one repeat.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Any

import attrs

from layoutcheck.program import REGION_BEGIN, REGION_COPY, REGION_END, Program

_MARKERS = (REGION_BEGIN, REGION_END, REGION_COPY)


@attrs.define
class Repeats:
    """The markers of one region by kind, in their order."""

    begins: list[int] = attrs.field(factory=list)
    ends: list[int] = attrs.field(factory=list)
    copies: list[int] = attrs.field(factory=list)

    @property
    def carried(self) -> int:
        """Number of values that a body hands on to the next repeat."""
        return max(len(self.begins), 1)

    @property
    def runs(self) -> int:
        """How often the body runs, itself included."""
        return 1 + len(self.copies) // self.carried

    def group_of(self, copy: int) -> tuple[int, tuple[int, ...]]:
        """A copy's place among those of its repeat, and all of them."""
        at = bisect_left(self.copies, copy)  # in order: a search of all of them would cost their square
        low = at - at % self.carried
        return at - low, tuple(self.copies[low : low + self.carried])


def find_repeats(p: Program) -> dict[Any, Repeats]:
    """The regions of a program by number."""
    found: dict[Any, Repeats] = {}
    for k, kind in enumerate(p.kind):
        if kind in _MARKERS:
            region = found.setdefault(region_id(p, k), Repeats())
            {REGION_BEGIN: region.begins, REGION_END: region.ends, REGION_COPY: region.copies}[kind].append(k)
    return found


def body_runs(
    repeats: Mapping[Any, Repeats], regions: Mapping[Any, tuple[int, int, Any, Any]]
) -> list[tuple[int, int, int]]:
    """First and last call of each typed region's body, and how often it runs."""
    return [(low, high, repeats[region].runs) for region, (low, high, *_) in regions.items()]


def region_id(p: Program, k: int) -> Any:
    """The number that a region's markers carry."""
    for value in p.instances[p.op[k]].params.values():
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None
