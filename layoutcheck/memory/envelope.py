"""The peak of live bytes as a function of the token counts, not at one of them.

At every step the live bytes are a sum of the same few terms (1, T, ceil(T/16), T*T, ...) with integer coefficients. A step
whose coefficients are all at most another's is never above it, whatever T is: what is left are the candidates, and the
peak is the largest of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from layoutcheck.errors import InputError
from layoutcheck.memory.liveness import Interval, Region, resolve, steps_of
from layoutcheck.sizes.core import Mono, from_terms, terms_of
from layoutcheck.symbols import Size, evaluate

Vector = tuple[int, ...]
Places = dict[Vector, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Envelope:
    """The candidates for the peak: live bytes as a size, and the path of the first step that has them."""

    candidates: tuple[tuple[Size, tuple[int, ...]], ...]

    def at(self, symbols: Mapping[str, int]) -> tuple[int, Size, tuple[int, ...]]:
        """Return the peak for these symbols: its bytes, the formula that gives them, and the place.

        Raises:
            InputError: a symbol has no value.
        """
        best: tuple[int, Size, tuple[int, ...]] = (0, 0, ())
        for size, path in self.candidates:
            number = evaluate(size, symbols)
            if number > best[0]:
                best = (number, size, path)
        return best


def envelope(intervals: Iterable[Interval], regions: Iterable[Region] = ()) -> Envelope:
    """Return all steps that may be the peak, for sizes over symbols that are not negative.

    Args:
        intervals, regions: as for ``liveness_peak``; bytes are sizes, not formulas as text.

    Raises:
        InputError: as ``liveness_peak``.
    """
    sweep = _Sweep()
    found = sweep.level(list(intervals), list(regions), None, "program")
    basis = list(sweep.basis)
    return Envelope(tuple((from_terms(dict(zip(basis, v))), path) for v, path in found.items()))


class _Sweep:
    def __init__(self) -> None:
        self.basis: dict[Mono, int] = {}
        self.bodies: dict[tuple[int, int, int, int], Places] = {}

    def level(
        self, intervals: Sequence[Interval], regions: Sequence[Region], steps: int | None, where: str
    ) -> Places:
        steps = steps_of(intervals, regions, steps, where)
        delta: list[dict[int, int]] = [{} for _ in range(steps + 1)]
        for interval, first, last in resolve(intervals, where):
            if isinstance(interval.bytes, str):
                raise InputError("an envelope takes sizes, not formulas as text", where=interval.name)
            for mono, coefficient in terms_of(interval.bytes):
                term = self.basis.setdefault(mono, len(self.basis))
                delta[first][term] = delta[first].get(term, 0) + coefficient
                delta[last + 1][term] = delta[last + 1].get(term, 0) - coefficient
        inside = [(r.at, self.body(r, where)) for r in regions if r.repeats]
        bodies: dict[int, list[Places]] = {}
        for at, places in inside:
            bodies.setdefault(at, []).append(places)
        live = [0] * len(self.basis)
        seen: Places = {}
        alone: Places = {(): ()}
        for step in range(steps):
            changed = bool(delta[step]) or step == 0
            for term, coefficient in delta[step].items():
                live[term] += coefficient
            if changed or step in bodies:
                for places in bodies.get(step, [alone]):
                    for extra, path in places.items():
                        vector = tuple(a + b for a, b in _paired(live, extra))
                        seen.setdefault(vector, (step, *path))
        return _undominated(seen, len(self.basis))

    def body(self, region: Region, where: str) -> Places:
        key = (id(region.intervals), id(region.carried), id(region.regions), region.steps)
        found = self.bodies.get(key)
        if found is None:
            inner = [*region.intervals, *region.carried]
            found = self.level(inner, list(region.regions), region.steps, f"{where}/{region.at}")
            self.bodies[key] = found
        return found


def _paired(a: Sequence[int], b: Sequence[int]) -> Iterable[tuple[int, int]]:
    """Two vectors side by side, the shorter one filled with 0: the basis grows as terms are met."""
    n = max(len(a), len(b))
    return zip([*a, *[0] * (n - len(a))], [*b, *[0] * (n - len(b))])


def _undominated(places: Places, length: int) -> Places:
    """The vectors that no other is at least as large as in every term; of equal ones the first."""
    padded: Places = {}
    for vector, path in places.items():
        padded.setdefault(vector + (0,) * (length - len(vector)), path)
    kept: list[Vector] = []
    for vector in sorted(padded, key=sum, reverse=True):
        if not any(all(a <= b for a, b in zip(vector, other)) for other in kept):
            kept.append(vector)
    return {v: padded[v] for v in kept}
