"""The peak of live bytes over a program that runs in order, with repeated bodies that are not expanded.

A program is a sequence of items: a ``Step`` (one node: what it allocates and how long each result lives)
or a ``Region`` (a body that runs ``repeats`` times). Values are ``Interval`` s: alive from ``first`` to
``last`` inclusive, counted in steps of the level they belong to. A view is no memory of its own: an interval
with ``alias_of`` keeps its base alive as long as it lives itself.

This is the seam for an activation ledger: whoever knows first and last uses (from a graph, from a trace)
hands over intervals and gets the peak, the place and what is alive there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from layoutcheck.errors import InputError
from layoutcheck.memory.formula import evaluate
from layoutcheck.symbols import Size
from layoutcheck.symbols import evaluate as evaluate_size

Bytes = Size | str
"""A number of bytes, a size over symbols, or a formula as text."""


@dataclass(frozen=True, slots=True)
class Interval:
    """One value: its bytes, first and last step of use, the value it views."""

    name: str
    bytes: Bytes
    first: int
    last: int
    alias_of: str | None = None


@dataclass(frozen=True, slots=True)
class Region:
    """A body that takes the place of one step and runs ``repeats`` times.

    ``intervals`` are in steps of the body (``0 .. steps - 1``). A value that one iteration hands to the
    next is an interval up to the last step in the body *and* an interval in ``carried``.

    Attributes:
        at: the step of the enclosing level at which the body runs.
        carried: bytes that are alive at step 0 of an iteration because the previous one left them, and in
            the first iteration because they came from outside: intervals of the body with ``first`` 0.
    """

    at: int
    repeats: int
    steps: int
    intervals: Sequence[Interval]
    regions: Sequence[Region] = ()
    carried: Sequence[Interval] = ()


@dataclass(frozen=True, slots=True)
class Peak:
    """The largest sum of live bytes, where it occurs first, and what is alive there.

    ``path`` is the step at the outermost level, then the step in each region entered. ``iteration`` of a
    region is always the first, since all iterations have the same profile.
    """

    bytes: int
    path: tuple[int, ...]
    live: tuple[tuple[str, int], ...] = field(default=())


def liveness_peak(
    intervals: Iterable[Interval],
    regions: Iterable[Region] = (),
    symbols: Mapping[str, int] | None = None,
    steps: int | None = None,
) -> Peak:
    """Return the peak of live bytes.

    While a region runs, everything that is alive at its step in the enclosing level stays alive, and the
    peak of its body comes on top, once: iterations follow each other, so ``repeats`` does not multiply it.

    Args:
        intervals: the values of the outermost level.
        regions: the repeated bodies, each at a step of the outermost level.
        symbols: values for the symbols in byte formulas.
        steps: number of steps; by default one more than the last use.

    Raises:
        InputError: an interval ends before it begins, views an unknown value, or lies outside the steps.
    """
    return _Sweep(symbols or {}).level(list(intervals), list(regions), steps, "program")


class _Sweep:
    """Peaks of levels. Bodies that are the same objects are swept once, and so is each size evaluated once."""

    def __init__(self, symbols: Mapping[str, int]) -> None:
        self.symbols = symbols
        self.bodies: dict[tuple[int, int, int, int], Peak] = {}
        self.sizes: dict[Bytes, int] = {}

    def level(self, intervals: list[Interval], regions: list[Region], steps: int | None, where: str) -> Peak:
        steps = steps_of(intervals, regions, steps, where)
        resolved = [(i.name, self.bytes(i, where), a, b) for i, a, b in resolve(intervals, where)]
        inside: dict[int, Peak] = {}
        for region in regions:
            if region.repeats == 0:
                continue
            body = self.body(region, where)
            known = inside.get(region.at)
            if known is None or body.bytes > known.bytes:
                inside[region.at] = body
        return _highest(resolved, inside, steps)

    def body(self, region: Region, where: str) -> Peak:
        key = (id(region.intervals), id(region.carried), id(region.regions), region.steps)
        found = self.bodies.get(key)
        if found is None:
            inner = [*region.intervals, *region.carried]
            found = self.level(inner, list(region.regions), region.steps, f"{where}/{region.at}")
            self.bodies[key] = found
        return found

    def bytes(self, interval: Interval, where: str) -> int:
        size = interval.bytes
        if not isinstance(size, int):
            known = self.sizes.get(size)
            if known is None:
                number = (
                    evaluate(size, self.symbols) if isinstance(size, str) else _number(size, self.symbols)
                )
                known = self.sizes[size] = number
            size = known
        if size < 0:
            raise InputError(f"{interval.name} has {size} bytes", where=where)
        return size


def _number(size: Size, symbols: Mapping[str, int]) -> int:
    return evaluate_size(size, symbols)


def steps_of(intervals: Sequence[Interval], regions: Sequence[Region], steps: int | None, where: str) -> int:
    """Return the number of steps of a level.

    Raises:
        InputError: a value is used after the last step, or a region has no step or a negative count.
    """
    if any(region.at < 0 or region.repeats < 0 for region in regions):
        raise InputError("a region needs a step and a number of repeats", where=where)
    needed = max([i.last for i in intervals] + [r.at for r in regions], default=-1) + 1
    if steps is None:
        return needed
    if needed > steps:
        raise InputError(f"a value is used at step {needed - 1} of {steps}", where=where)
    return steps


def _highest(resolved: list[tuple[str, int, int, int]], inside: Mapping[int, Peak], steps: int) -> Peak:
    delta = [0] * (steps + 1)
    for _, size, first, last in resolved:
        delta[first] += size
        delta[last + 1] -= size

    best, place, live = 0, -1, 0
    for step in range(steps):
        live += delta[step]
        here = live + inside[step].bytes if step in inside else live
        if here > best or place < 0:
            best, place = here, step
    if place < 0:
        return Peak(0, ())
    alive = [(name, size) for name, size, first, last in resolved if first <= place <= last and size]
    path: tuple[int, ...] = (place,)
    if place in inside:
        path += inside[place].path
        alive += inside[place].live
    return Peak(best, path, tuple(sorted(alive, key=lambda item: (-item[1], item[0]))))


def resolve(intervals: Sequence[Interval], where: str) -> list[tuple[Interval, int, int]]:
    """Return the values with memory of their own, with first and last step: a base lives as long as any view of it.

    Raises:
        InputError: an interval ends before it begins, has another's name, or views an unknown value or itself.
    """
    by_name: dict[str, Interval] = {}
    for interval in intervals:
        if interval.first < 0 or interval.last < interval.first:
            raise InputError(
                f"{interval.name} lives from step {interval.first} to {interval.last}", where=where
            )
        if interval.name in by_name:
            raise InputError(f"two values are called {interval.name}", where=where)
        by_name[interval.name] = interval
    root: dict[str, str] = {}
    for interval in intervals:
        trail: dict[str, None] = {}  # in order, and quick to ask
        name = interval.name
        while name not in root:
            if name in trail:
                raise InputError(f"{interval.name} is a view of itself", where=where)
            trail[name] = None
            base = by_name[name].alias_of
            if base is None:
                root[name] = name
                break
            if base not in by_name:
                raise InputError(f"{name} is a view of {base}, which is not there", where=where)
            name = base
        for passed in trail:
            root[passed] = root[name]
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for interval in intervals:
        base = root[interval.name]
        first[base] = min(first.get(base, interval.first), interval.first)
        last[base] = max(last.get(base, interval.last), interval.last)
    return [(by_name[name], first[name], last[name]) for name in first]


def peak_formula(peak: Peak, intervals: Iterable[Interval]) -> str:
    """Return the peak as the sum of the byte formulas of what is alive there."""
    texts = {i.name: str(i.bytes) for i in intervals}
    return " + ".join(texts.get(name, str(size)) for name, size in peak.live) or "0"
