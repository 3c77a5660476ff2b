"""Finding where a sequence of keys repeats itself.

A period is a candidate if windows of keys come again at that distance. For each candidate the runs in which every key equals the
one a period later are read off; a run of length L at period P holds 1 + L // P repeats, starting at any of its first L % P + 1
places.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import attrs

WINDOWS = (1, 3, 12)
CANDIDATES = 8


@attrs.frozen
class Run:
    """`repeats` equal stretches of `period` keys, the first one at any of `start .. start + slack`."""

    start: int
    period: int
    repeats: int
    slack: int

    @property
    def saved(self) -> int:
        """Keys that need not be written when the stretch is written once."""
        return (self.repeats - 1) * self.period

    def clipped(self, low: int, high: int) -> int:
        """What is saved by the part of the run between two places."""
        stop = min(high, self.start + self.repeats * self.period + self.slack)
        repeats = (stop - max(low, self.start)) // self.period
        return (repeats - 1) * self.period if repeats > 1 else 0


def find_runs(keys: Sequence[int], low: int, high: int) -> list[Run]:
    """The runs within `low .. high`, those that save most first; of equal ones the shorter period, then the earlier."""
    found: list[Run] = []
    for period in _candidates(keys, low, high):
        found.extend(_runs(keys, low, high, period))
    found.sort(key=lambda run: (-run.saved, run.period, run.start))
    return found


def _candidates(keys: Sequence[int], low: int, high: int) -> list[int]:
    """Distances at which windows come again, by how many keys they would cover."""
    best: dict[int, int] = {}
    for width in WINDOWS:
        last: dict[object, int] = {}
        distances: Counter[int] = Counter()
        for i in range(low, high - width + 1):
            window = keys[i] if width == 1 else tuple(keys[i : i + width])
            before = last.get(window)
            if before is not None:
                distances[i - before] += 1
            last[window] = i
        ranked = sorted(distances.items(), key=lambda entry: (-entry[0] * entry[1], entry[0]))
        for distance, count in ranked[:CANDIDATES]:
            best[distance] = max(best.get(distance, 0), distance * count)
    return sorted(best, key=lambda d: (-best[d], d))


def _runs(keys: Sequence[int], low: int, high: int, period: int) -> list[Run]:
    runs: list[Run] = []
    if high - low < 2 * period:
        return runs
    same = [a == b for a, b in zip(keys[low : high - period], keys[low + period : high])]
    at, end = 0, len(same)
    while at < end:
        try:
            start = same.index(True, at)
        except ValueError:
            break
        try:
            stop = same.index(False, start)
        except ValueError:
            stop = end
        length = stop - start
        if length >= period:
            runs.append(Run(low + start, period, 1 + length // period, length % period))
        at = stop
    return runs
