"""Whether a run of equal calls is a repeated body, and what it carries, shares and owns.

Between repeats a call's reads have to agree: what it reads inside of its repeat is at the same place in each, what it reads of the
repeat before likewise (a carried value; the first repeat reads the value that enters), what it reads from before the run is one
value for all (shared), and inputs are either shared or each repeat's own.
"""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from typing import Any

import attrs

from layoutcheck.graph import Node
from layoutcheck.regions.flat import INPUT, OUTPUT, OUTS, Flat, Keys, size_calls
from layoutcheck.regions.layers import differences
from layoutcheck.regions.periods import Run

WRAPPERS = frozenset(("auto_functionalized", "auto_functionalized_v2"))
"""Calls of other ops that return what these write."""

Place = tuple[int, int]
"""A value of a body: the call's place in it, and the output's number."""

MAX_PHASES = 6
MAX_FACTOR = 8
"""How many times longer than the distance at which calls come again a body may be."""


@attrs.define
class Stretch:
    """A repeated body found: its first call and length (in calls that are no inputs), and the number of repeats.

    `entries` maps each carried value to the value that enters; `reads` says at which reads (place, number of the read) of the
    body it is read; `own` are the inputs of each repeat that it has for itself, in one order; `shown` is what the graph's
    output reads of every repeat.
    """

    start: int
    period: int
    repeats: int
    entries: dict[Place, int]
    reads: dict[tuple[int, int], Place]
    own: list[list[int]]
    shown: set[Place]

    @property
    def saved(self) -> int:
        """Calls that need not be written."""
        return (self.repeats - 1) * self.period

    @property
    def stop(self) -> int:
        """The place behind the last repeat."""
        return self.start + self.period * self.repeats


class Sequence_:
    """The calls of a graph in order, with who reads what.

    Inputs are left out, and so is arithmetic on sizes that come from inputs: exporters compute a size once and use it in all
    layers, so that it belongs to none of them. `sizes` are these calls.
    """

    def __init__(self, flat: Flat, keys: Keys) -> None:
        self.flat = flat
        self.sizes = size_calls(flat, keys)
        apart = set(self.sizes)
        self.same = _representatives(flat, self.sizes)
        self.calls = [i for i, key in enumerate(flat.keys) if key >= 0 and i not in apart]
        self.place = [-1] * len(flat.keys)
        for at, call in enumerate(self.calls):
            self.place[call] = at
        self.keys = [flat.keys[call] for call in self.calls]
        self.readers: dict[int, list[int]] = {}
        for call, refs in enumerate(flat.refs):
            for value in refs:
                self.readers.setdefault(value, []).append(call)
        self.width = self._widths()
        self.returned = [v for key, refs in zip(flat.keys, flat.refs) if key == OUTPUT for v in refs]
        self._keys = keys

    def outs(self, at: int) -> list[int]:
        """Numbers of the outputs of the call at a place, as far as nodes stand for them."""
        flat = self.flat
        items = flat.items.get(self.calls[at])
        return [0, *{flat.values[item.name] % OUTS for item in items}] if items else [0]

    def writes(self, at: int) -> bool:
        """Whether the call at a place writes into an operand."""
        target = self._keys.infos[self.flat.keys[self.calls[at]]].target
        rule = self._keys.book.lookup(target)
        return target in WRAPPERS or (rule is not None and bool(rule.mutates))

    def is_input(self, value: int) -> bool:
        """Whether a value is an input or a constant."""
        return self.flat.keys[value // OUTS] == INPUT

    def _widths(self) -> list[int]:
        """Per place, the number of values that are made before it and read at it or later."""
        n = len(self.calls)
        change = [0] * (n + 2)
        place = self.place
        for value, readers in self.readers.items():
            made = place[value // OUTS]
            last = max((place[r] for r in readers), default=-1)
            if made >= 0 and last > made:
                change[made + 1] += 1
                change[last + 1] -= 1
        widths, level = [], 0
        for step in change:
            level += step
            widths.append(level)
        return widths

    def _unnumbered(self, run: Run, whole: int) -> list[int]:
        """Per offset in a run, how many calls before it have a path that does not grow to that of a period later as most do."""
        nodes, calls = self.flat.nodes, self.calls
        paths = [nodes[calls[run.start + i]].module for i in range(whole)]
        pairs = list(zip(paths, paths[run.period :]))
        growth = {pair: _growth(*pair) for pair in set(pairs)}
        counts = Counter(growth[pair] for pair in pairs)
        counts.pop(None, None)
        most = counts.most_common(1)[0][0] if counts else None
        return [0, *accumulate(growth[pair] not in (None, most) for pair in pairs)]

    def stretch(self, run: Run, low: int, high: int, others: list[Run]) -> Stretch | None:
        """The repeated body of a run between two places; None where it is none.

        Of the starts that carry the fewest values the one is taken whose repeats are numbered on in module paths, then the one that
        leaves most of what `others` would save before and behind it: a stack of layers does not begin in the middle of the layer
        before it. Where the run is not one body repeated as a whole, bodies of several periods are tried too.
        """
        period = run.period
        whole = run.repeats * period + run.slack
        odd = self._unnumbered(run, whole)

        def rank(phase: int) -> tuple[int, int, int, int]:
            first = run.start + phase
            repeats = (whole - phase) // period
            width = max(self.width[first + r * period] for r in range(1, repeats))
            left = max((r.clipped(low, first) for r in others), default=0)
            right = max((r.clipped(first + repeats * period, high) for r in others), default=0)
            return width, odd[phase + (repeats - 1) * period] - odd[phase], -(left + right), phase

        phases = sorted(range(run.slack + 1), key=rank)[:MAX_PHASES]
        stop = min(high, run.start + whole)
        found = None
        for phase in phases:
            start = run.start + phase
            limit = (stop - start) // period
            found = _Check(self, start, period).run(limit)
            if found is not None:
                if found.repeats == limit:
                    return found
                break
        tried = (self._longer(run.start + phase, stop, period) for phase in phases)
        longer = next((one for one in tried if one is not None), None)
        if longer is None or (found is not None and found.saved >= longer.saved):
            return found
        return longer

    def _longer(self, start: int, stop: int, period: int) -> Stretch | None:
        """The body that saves most of those that are some periods long and begin some periods behind a start.

        Calls that are the same may read other values in every other layer: masks of two kinds, weights of two widths.
        """
        best: Stretch | None = None
        for factor in range(1, MAX_FACTOR + 1):
            at, long = start, factor * period
            while at + 2 * long <= stop:
                found = _Check(self, at, long).run((stop - at) // long)
                if found is None or not found.entries:
                    at += period
                    continue
                if best is None or found.saved > best.saved:
                    best = found
                at = found.stop
        return best


def _growth(one: str | None, other: str | None) -> object:
    """How a path grows to another one: nothing where they are equal, else by how much which number."""
    return None if one == other else next(differences([(one, other)]), "otherwise")


class _Check:
    def __init__(self, sequence: Sequence_, start: int, period: int) -> None:
        self.s, self.start, self.period = sequence, start, period
        self.reads: dict[tuple[int, int], Place] = {}
        self.entries: dict[Place, int] = {}
        self.shared: dict[tuple[int, int], int] = {}
        self.inside: dict[tuple[int, int], Place] = {}
        self.own_at: dict[int, int] = {}
        self.own: list[list[int]] = []
        self.shown: set[Place] = set()

    def run(self, limit: int) -> Stretch | None:
        if limit < 2 or not self._first_two():
            return None
        repeats = 2
        while repeats < limit and self._next(repeats):
            repeats += 1
        while repeats >= 2:
            fewer = self._escapes(repeats)
            if fewer == repeats:
                return Stretch(
                    self.start,
                    self.period,
                    repeats,
                    self.entries,
                    self.reads,
                    self.own[:repeats],
                    self.shown,
                )
            repeats = fewer
        return None

    def _first_two(self) -> bool:
        """The second repeat says what is carried; the first one has to fit it."""
        start, period, s = self.start, self.period, self.s
        flat, place, calls = s.flat, s.place, s.calls
        first_own: dict[int, int] = {}
        for q in range(period):
            one = flat.refs[calls[start + period + q]]
            zero = flat.refs[calls[start + q]]
            for j, (v, v0) in enumerate(zip(one, zero)):
                at = place[v // OUTS]
                at0 = place[v0 // OUTS]
                slot = (q, j)
                if at >= start + period:
                    found = (at - start - period, v % OUTS)
                    if at0 < start or (at0 - start, v0 % OUTS) != found:
                        return False
                    self.inside[slot] = found
                elif at >= start:
                    if at0 >= start:
                        return False
                    found = (at - start, v % OUTS)
                    if self.entries.setdefault(found, v0) != v0:
                        return False
                    self.reads[slot] = found
                elif at0 >= start:
                    return False
                elif s.same.get(v, v) == s.same.get(v0, v0):
                    self.shared[slot] = s.same.get(v, v)
                elif s.is_input(v) and s.is_input(v0):
                    if first_own.setdefault(v0, v) != v:
                        return False
                    self.shared[slot] = -1 - self.own_at.setdefault(v0, len(self.own_at))
                else:
                    return False
        own0 = list(self.own_at)
        own1 = [first_own[v] for v in own0]
        self.own = [own0]
        if not self._distinct(own1, 1) or not self._distinct(own0, 0):
            return False
        self.own.append(own1)
        shared = {v for v in self.shared.values() if v >= 0}
        return not shared.intersection(own0) and not shared.intersection(own1)

    def _distinct(self, own: list[int], number: int) -> bool:
        """Own inputs are read by their repeat alone, and are like those of the first repeat."""
        if len(set(own)) != len(own):
            return False
        s = self.s
        low, high = self.start + number * self.period, self.start + (number + 1) * self.period
        for v, like in zip(own, self.own[0]):
            if any(not low <= s.place[r] < high for r in s.readers[v]):
                return False
            if not _alike(s.flat, s.flat.nodes[v // OUTS], s.flat.nodes[like // OUTS]):
                return False
        return True

    def _next(self, number: int) -> bool:
        """Whether repeat `number` is like the second one."""
        s, period = self.s, self.period
        start = self.start + number * period
        place, calls, all_refs = s.place, s.calls, s.flat.refs
        inside, reads, shared = self.inside, self.reads, self.shared
        own = [-1] * len(self.own_at)
        for q in range(period):
            for j, v in enumerate(all_refs[calls[start + q]]):
                slot = (q, j)
                found = inside.get(slot)
                at = place[v // OUTS]
                if found is not None:
                    if at - start != found[0] or v % OUTS != found[1]:
                        return False
                    continue
                found = reads.get(slot)
                if found is not None:
                    if at - start + period != found[0] or v % OUTS != found[1]:
                        return False
                    continue
                expected = shared[slot]
                if expected >= 0:
                    if s.same.get(v, v) != expected:
                        return False
                    continue
                if not s.is_input(v):
                    return False
                known = own[-1 - expected]
                if known >= 0 and known != v:
                    return False
                own[-1 - expected] = v
        if not self._distinct(own, number):
            return False
        self.own.append(own)
        return True

    def _escapes(self, repeats: int) -> int:
        """How many repeats can be folded, for what is read of them from behind: of the last one its carried values,
        of each one what the output reads of all."""
        s, start, period = self.s, self.start, self.period
        stop = start + repeats * period
        limit = repeats
        for at in range(start, stop):
            number, q = divmod(at - start, period)
            for out in s.outs(at):
                if any(s.place[r] >= stop for r in s.readers.get(s.calls[at] * OUTS + out, ())):
                    limit = min(limit, number + 1 if (q, out) in self.entries else number)
        shown = self._shown(repeats)
        self.shown = {found for found, numbers in shown.items() if len(numbers) == repeats}
        for found, numbers in shown.items():
            # Shown by the last repeat alone, a carried value is what leaves the region.
            if found in self.shown or (set(numbers) == {repeats - 1} and found in self.entries):
                continue
            missing = next(n for n in range(repeats) if n not in numbers)
            limit = min(limit, missing or min(numbers))
        if limit == repeats and not self._in_order(shown):
            return 0
        return limit

    def _shown(self, repeats: int) -> dict[Place, dict[int, int]]:
        """Per place of the body that the output reads, the repeats of which it does and where in the output that first stands."""
        s = self.s
        found: dict[Place, dict[int, int]] = {}
        stop = self.start + repeats * self.period
        for position, value in enumerate(s.returned):
            at = s.place[value // OUTS]
            if self.start <= at < stop:
                number, q = divmod(at - self.start, self.period)
                found.setdefault((q, value % OUTS), {}).setdefault(number, position)
        return found

    def _in_order(self, shown: dict[Place, dict[int, int]]) -> bool:
        """Whether the output reads what all repeats show repeat by repeat; written caches may stand in any order."""
        s = self.s
        places = [p for p in self.shown if not s.writes(self.start + p[0])]
        if len(places) < 2:
            return all(list(shown[p]) == sorted(shown[p]) for p in places)
        places.sort(key=lambda p: shown[p][0])
        order = [shown[p][n] for n in range(len(shown[places[0]])) for p in places]
        return order == sorted(order)


def _alike(flat: Flat, one: Node, other: Node) -> bool:
    if one.op != other.op or one.meta != other.meta:
        return False
    inputs = flat.graph.inputs
    a: Any = inputs.get(one.name)
    b: Any = inputs.get(other.name)
    return (a.kind if a else None) == (b.kind if b else None)


def _representatives(flat: Flat, sizes: list[int]) -> dict[int, int]:
    """The values of size calls that compute the same, by the first of them."""
    first: dict[Any, int] = {}
    same: dict[int, int] = {}
    for call in sizes:
        what = (flat.keys[call], *[same.get(v, v) for v in flat.refs[call]])
        same[call * OUTS] = first.setdefault(what, call * OUTS)
    return same
