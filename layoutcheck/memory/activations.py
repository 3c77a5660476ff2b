"""Activations of a typed graph: what is alive when, in the order in which the graph runs.

A value is alive from the call that makes it to the last call that reads it or a view of it; outputs of the graph stay. Inputs
and weights belong to the caller and are no activations. A region's body stands in the program once, as its first run;
each copy of it runs the body again in place, on values of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.infer.solver.repeats import find_repeats
from layoutcheck.layouts import Layout
from layoutcheck.memory.aliases import aliases_of
from layoutcheck.memory.envelope import Envelope, envelope
from layoutcheck.memory.extents import Extents
from layoutcheck.memory.liveness import Interval, Peak, Region, liveness_peak, resolve
from layoutcheck.program import (
    OUTPUT,
    PLACEHOLDER,
    REGION_BEGIN,
    REGION_COPY,
    REGION_END,
    Program,
)
from layoutcheck.rules.kinds import COMMUNICATING
from layoutcheck.symbols import evaluate


@dataclass(frozen=True, slots=True)
class Body:
    """A region: its markers by call, one a carried value: those that begin it, those that end it, and those of each repeat.

    A repeat runs where its first copy marker stands; the others of its round only hand on what it made.
    """

    begins: tuple[int, ...]
    ends: tuple[int, ...]
    rounds: tuple[tuple[int, ...], ...] = ()

    @property
    def begin(self) -> int:
        """The first call of the region, a marker."""
        return self.begins[0]

    @property
    def end(self) -> int:
        """The last call of the written body, a marker."""
        return self.ends[-1]

    @property
    def copies(self) -> tuple[int, ...]:
        """The calls at which the body runs again, one a repeat."""
        return tuple(round_[0] for round_ in self.rounds)

    def holds(self, call: int) -> bool:
        """Say whether a call is part of the body, and none of the markers around it."""
        return self.begin < call < self.end and call not in self.begins and call not in self.ends

    @property
    def runs(self) -> int:
        """How often the body runs, the written run included."""
        return 1 + len(self.rounds)


@dataclass(frozen=True)
class Activations:
    """The intervals of a program's activations.

    Attributes:
        intervals, regions: for ``liveness_peak`` and ``envelope``; bytes are sizes over the token symbols.
        bodies: the regions of the program, the outer ones first.
        values: the value behind an interval's name.
        roots: for every value, the value in whose memory it lies.
    """

    program: Program
    intervals: Sequence[Interval]
    regions: Sequence[Region]
    bodies: Sequence[Body]
    values: Mapping[str, int]
    roots: Sequence[int]

    def __repr__(self) -> str:
        return f"<Activations of {self.program!r}: {len(self.intervals)} intervals>"

    def peak(self, symbols: Mapping[str, int]) -> Peak:
        """Return the peak for these symbols, with what is alive there."""
        return liveness_peak(self.intervals, self.regions, symbols)

    def envelope(self) -> Envelope:
        """Return the peak as a function of the symbols."""
        return envelope(self.intervals, self.regions)

    def kept(self, symbols: Mapping[str, int]) -> dict[str, int]:
        """Return what is alive when the program ends, with its bytes: its outputs, and what they are views of."""
        end = max((i.last for i in self.intervals), default=-1)
        found = {}
        for interval, _, last in resolve(self.intervals, "program"):
            if last == end and not isinstance(interval.bytes, str):
                found[interval.name] = evaluate(interval.bytes, symbols)
        return found

    def node_at(self, path: Sequence[int]) -> str:
        """Return the name of the node at a peak's path; inside a repeat, that of the body, and which repeat."""
        if not path:
            return ""
        name = self.program.nodes[path[0]].name
        if len(path) == 1:
            return name
        level = _body_of_copy(self.bodies, path[0])
        inner = path[0]
        for step in path[1:]:
            inner = level.begin + 1 + step
            level = _body_of_copy(self.bodies, inner)
        return f"{self.program.nodes[inner].name} (repeated by {name})"

    def is_collective(self, name: str) -> bool:
        """Whether a value is what a collective wrote."""
        value = self.values.get(name)
        if value is None:
            return False
        op = self.program.op[self.program.value_call[value]]
        rule = self.program.instances[op].rule if op >= 0 else None
        return rule is not None and (
            rule.code in COMMUNICATING or any(step in COMMUNICATING for step, _ in rule.then)
        )


def _body_of_copy(bodies: Sequence[Body], copy: int) -> Body:
    return next((b for b in bodies if copy in b.copies), bodies[0] if bodies else Body((-1,), (-1,)))


def bodies_of(program: Program) -> list[Body]:
    """Return the regions of a program, with the calls that repeat each."""
    found = []
    for r in find_repeats(program).values():
        if r.begins and r.ends and r.ends[0] > r.begins[0]:
            n = r.carried
            rounds = tuple(tuple(r.copies[i : i + n]) for i in range(0, len(r.copies), n))
            found.append(Body(tuple(r.begins), tuple(r.ends), rounds))
    return sorted(found, key=lambda body: body.begin)


def activations_of(analysis: Analysis, extents: Extents) -> Activations:
    """Return the activations of a typed program.

    Args:
        analysis: the typed program.
        extents: turns its layouts into bytes.

    Raises:
        InputError: a dtype whose width is not known.
    """
    return _Builder(analysis, extents).build()


class _Builder:
    def __init__(self, analysis: Analysis, extents: Extents) -> None:
        self.program = p = analysis.program
        self.types = analysis.solution.typing.types
        self.extents = extents
        self.root = aliases_of(p, self.types)
        self.bodies = bodies_of(p)
        self.names: dict[int, str] = {}
        self.by_name: dict[str, int] = {}
        self.uses: dict[int, list[int]] = {}
        for value, places in analysis.uses.items():
            self.uses.setdefault(self.root[value], []).extend(k for k, _ in places)
        self.made: list[int] = [
            v
            for v in range(p.n_values)
            if self.root[v] == v
            and p.kind[p.value_call[v]] != PLACEHOLDER
            and isinstance(self.types[v], Layout)
        ]
        # what a region is handed or hands on lives as the region's own values do
        self.handed = {
            self.root[p.inputs[k][0]]
            for k, kind in enumerate(p.kind)
            if kind in (REGION_BEGIN, REGION_END, REGION_COPY) and p.inputs[k]
        }
        # where the repeat runs that a copy marker is of
        self.run_at = {c: round_[0] for b in self.bodies for round_ in b.rounds for c in round_}
        self.known: dict[tuple[int, bool], tuple[list[Interval], list[Region]]] = {}

    def build(self) -> Activations:
        intervals, regions = self.level(0, len(self.program.kind), frozenset())
        return Activations(self.program, intervals, regions, self.bodies, self.by_name, self.root)

    def name(self, value: int) -> str:
        found = self.names.get(value)
        if found is None:
            found = self.program.name_of(value)
            if self.by_name.setdefault(found, value) != value:
                found = f"{found}#{value}"
                self.by_name[found] = value
            self.names[value] = found
        return found

    def level(self, low: int, high: int, kept: frozenset[int]) -> tuple[list[Interval], list[Region]]:
        """The calls ``low .. high - 1``; ``kept`` are values that stay alive to the end of them."""
        p = self.program
        inner = [b for b in self.bodies if low <= b.begin and b.end < high]
        outer = [b for b in inner if not any(o.begin < b.begin and b.end < o.end for o in inner)]
        intervals: list[Interval] = []
        lasts: dict[int, int] = {}
        given: dict[int, list[Interval]] = {}
        for value in self._made_in(low, high):
            call = p.value_call[value]
            home = next((b for b in outer if b.holds(call)), None)
            last, after = self._last(value, call, low, high, outer, home)
            if value in kept:
                last = high - 1
            lasts[value] = last
            size = self.extents.bytes_of(self.types[value])
            base = None
            if p.kind[call] in (REGION_BEGIN, REGION_END):
                size, source = 0, self.root[p.inputs[call][0]]
                if low <= p.value_call[source] and p.kind[p.value_call[source]] != PLACEHOLDER:
                    base = self.name(source)
            first = self.run_at.get(call, call) + (p.kind[call] == REGION_COPY)
            body = next((b for b in outer if b.copies and last == b.copies[-1]), None)
            if body is not None and value not in self.handed:
                # needed up to somewhere inside the last repeat, which accounts for it from here on
                inside = [k for k in self.uses[value] if body.holds(k)]
                if inside:
                    name = f"{self.name(value)} (to its last use)"
                    self.by_name.setdefault(name, value)
                    until = Interval(name, size, 0, max(inside) - body.begin - 1)
                    given.setdefault(body.begin, []).append(until)
                    last -= 1
            if last >= first:
                intervals.append(Interval(self.name(value), size, first - low, last - low, base))
            if after is not None and home is not None:
                start = max(home.copies) + 1
                if after >= start:
                    again = f"{self.name(value)} (last repeat)"
                    self.by_name.setdefault(again, value)
                    intervals.append(Interval(again, size, start - low, after - low))
        regions = [
            r for body in outer for r in self._repeats(body, low, high, lasts, given.get(body.begin, []))
        ]
        return intervals, regions

    def _made_in(self, low: int, high: int) -> Iterator[int]:
        call = self.program.value_call
        return (v for v in self.made if low <= call[v] < high)

    def _last(
        self, value: int, call: int, low: int, high: int, outer: list[Body], home: Body | None
    ) -> tuple[int, int | None]:
        """The last call of this level that needs a value, and, where later repeats of its body replace it, the last
        one that reads what the last repeat made."""
        p = self.program
        last, after = call, None
        for use in self.uses.get(value, ()):
            if not low <= use < high:
                continue
            kind = p.kind[use]
            if home is not None and home.copies and use > home.end:
                end = high - 1 if kind == OUTPUT else use
                after = end if after is None else max(after, end)
            elif kind == OUTPUT:
                last = max(last, high - 1)
            elif kind == REGION_COPY:
                # the repeat's own body accounts for what it is given
                last = max(last, self.run_at.get(use, use) - 1)
            else:
                for body in outer:
                    if body.holds(use) and call < body.begin and body.copies:
                        use = max(use, body.copies[-1])
                last = max(last, use)
        return last, after

    def _repeats(
        self, body: Body, low: int, high: int, lasts: Mapping[int, int], ending: list[Interval]
    ) -> Iterator[Region]:
        p = self.program
        steps = body.end - body.begin - 1
        if steps <= 0:
            return
        ending_values = {self.root[p.inputs[end][0]] for end in body.ends}
        for round_ in body.rounds:
            at = round_[0]
            if not low <= at < high:
                continue
            intervals, regions = self._body(body, round_ is body.rounds[-1])
            carried: list[Interval] = list(ending) if round_ is body.rounds[-1] else []
            taken: dict[int, Interval] = {}
            for begin, copy in zip(body.begins, round_):
                given = self.root[p.inputs[copy][0]]
                source = p.value_call[given]
                if p.kind[source] == REGION_END:
                    given = self.root[p.inputs[source][0]]
                if p.kind[p.value_call[given]] == PLACEHOLDER or lasts.get(given, at - 1) >= at:
                    continue
                begun = p.first[begin]
                inside = [k for k in self.uses.get(begun, ()) if body.holds(k)]
                until = max(inside, default=body.begin + 1) - body.begin - 1
                if self.root[begun] in ending_values:
                    until = steps - 1  # the next repeat is handed it as it is
                before = taken.get(given)
                if before is None or before.last < until:  # one value may be handed on twice
                    size = self.extents.bytes_of(self.types[given])
                    taken[given] = Interval(f"{p.name_of(begun)} (given)", size, 0, until)
            yield Region(at - low, 1, steps, intervals, regions, [*carried, *taken.values()])

    def _body(self, body: Body, is_last: bool) -> tuple[list[Interval], list[Region]]:
        """A body's own values in one repeat; those that are read after the region stay alive in the last one."""
        found = self.known.get((body.begin, is_last))
        if found is None:
            p = self.program
            kept = {self.root[p.inputs[end][0]] for end in body.ends}
            if is_last:
                for value in self._made_in(body.begin + 1, body.end):
                    if any(use > body.end for use in self.uses.get(value, ())):
                        kept.add(value)
            found = self.level(body.begin + 1, body.end, frozenset(kept))
            self.known[(body.begin, is_last)] = found
        return found
