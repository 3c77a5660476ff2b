"""A program as a placement problem: its calls' ways within what a contract demands, its regions tied."""

from __future__ import annotations

from typing import Any

import attrs

from layoutcheck.errors import InputError
from layoutcheck.infer.solver.repeats import body_runs
from layoutcheck.layouts import Layout
from layoutcheck.placement.base import Base
from layoutcheck.placement.demands import Demand, Demands
from layoutcheck.placement.modes import Ways
from layoutcheck.placement.pricing import Pricing
from layoutcheck.placement.problem import FULL, LOCAL, NAMES, PARTIAL, Mode, Op, Problem
from layoutcheck.placement.repeats import Region
from layoutcheck.placement.way import Way
from layoutcheck.program import CALL, OUTPUT, PLACEHOLDER, UNKNOWN


@attrs.define
class ProgramProblem:
    """The problem with what its ops are: `calls` per op (several for the markers of a carried value), `ways` per op."""

    problem: Problem
    calls: list[tuple[int, ...]]
    ways: list[tuple[Way, ...]]
    runs: list[tuple[int, int, int]] = attrs.field(factory=list)
    regions: tuple[Region, ...] = ()

    def times(self, k: int) -> int:
        """How often a call runs: more than once in a repeated body."""
        times = 1
        for low, high, n in self.runs:
            if low <= k <= high:
                times *= n
        return times


def build_problem(base: Base, ways: Ways, demands: Demands, pricing: Pricing) -> ProgramProblem:
    """The placement problem of a program.

    Raises:
        InputError: a call can't be run as a contract's boundary demands, whatever stands around it.
    """
    return _Builder(base, ways, demands, pricing).build()


@attrs.define
class _Builder:
    base: Base
    ways: Ways
    demands: Demands
    pricing: Pricing
    ops: list[Op] = attrs.field(factory=list)
    calls: list[tuple[int, ...]] = attrs.field(factory=list)
    found: list[tuple[Way, ...]] = attrs.field(factory=list)
    runs: list[tuple[int, int, int]] = attrs.field(factory=list)

    def build(self) -> ProgramProblem:
        analysis = self.base.analysis
        p = analysis.program
        self.runs = body_runs(analysis.solution.runner.repeats, analysis.solution.typing.regions)
        for k in self.base.kept:
            kind = p.kind[k]
            if kind == PLACEHOLDER:
                self._add((k,), (), (p.first[k],), (self._given(k),), k)
            elif kind in (CALL, UNKNOWN):
                self._call(k)
            elif kind == OUTPUT:
                self._output(k)
        ties: dict[Any, tuple[int, ...]] = {}
        for number, repeats in analysis.solution.runner.repeats.items():
            first = len(self.ops)
            for i, (begin, end) in enumerate(zip(repeats.begins, repeats.ends)):
                self._region(begin, end, tuple(repeats.copies[i :: repeats.carried]))
            ties[number] = tuple(range(first, len(self.ops)))
        values = tuple(self.pricing.value(v, self._times(p.value_call[v])) for v in range(p.n_values))
        regions = tuple(self._repeated(number, at) for number, at in ties.items() if at)
        return ProgramProblem(Problem(tuple(self.ops), values), self.calls, self.found, self.runs, regions)

    def _repeated(self, number: Any, ties: tuple[int, ...]) -> Region:
        """A region of the problem: its ties, and the ops between its markers."""
        repeats = self.base.analysis.solution.runner.repeats[number]
        low, high = min(repeats.begins), max(repeats.ends)
        body = frozenset(o for o, calls in enumerate(self.calls) if low < calls[0] < high and o not in ties)
        # What a repeat before the last one hands on goes to the next repeat only.
        p, inside = self.base.analysis.program, {*repeats.copies}
        early = [*repeats.ends, *repeats.copies][: -repeats.carried]
        is_open = all(
            k in inside for call in early for k, _ in self.base.analysis.uses.get(p.first[call], ())
        )
        return Region(number, ties, body, repeats.runs, is_open)

    def _times(self, k: int) -> int:
        return ProgramProblem(Problem((), ()), [], [], self.runs).times(k)

    def _add(
        self,
        calls: tuple[int, ...],
        reads: tuple[int, ...],
        writes: tuple[int, ...],
        ways: tuple[Way, ...],
        k: int,
    ) -> None:
        times = self._times(k)
        called = self.base.analysis.program.kind[k] == CALL
        modes = tuple(Mode(w.needs, w.gives, self.pricing.way(k, w, times) if called else 0) for w in ways)
        barred = frozenset(
            (slot, *move) for slot in range(len(reads)) for move in self.demands.barred.get((k, slot), ())
        )
        self.ops.append(Op(reads, writes, modes, barred))
        self.calls.append(calls)
        self.found.append(ways)

    def _given(self, k: int) -> Way:
        """An input is what the graph says it is."""
        p = self.base.analysis.program
        of = self.base.analysis.solution.typing.types[p.first[k]]
        return Way((), (self._held(p.first[k], of),), (), (of,))

    def _held(self, value: int, of: object) -> int | None:
        form = self.base.full[value]
        if not isinstance(of, Layout) or not isinstance(form, Layout):
            return None
        return LOCAL if of is not form and of is self.ways.local(value) else FULL

    def _call(self, k: int) -> None:
        p = self.base.analysis.program
        reads = tuple(self.base.root(v) for v in p.inputs[k])
        outs = tuple(range(p.first[k], p.first[k] + p.outs[k]))
        ways = self.ways.of(k)
        if not ways:
            # Something is wrong here already, or its operands can't be anything else: it stays as it is.
            ways = (self.ways.as_in_the_graph(k, reads),)
        kept = ways
        for (call, slot), demand in self._of(self.demands.operands, k):
            kept = self._within(kept, [w.needs[slot] for w in kept], demand, f"operand {slot} of", call)
        for (call, place), demand in self._of(self.demands.results, k):
            if place < len(outs):
                kept = self._within(kept, [w.gives[place] for w in kept], demand, "the result of", call)
        self._add((k,), reads, outs, kept, k)

    def _of(self, all_: dict[tuple[int, int], Demand], k: int) -> list[tuple[tuple[int, int], Demand]]:
        p = self.base.analysis.program
        n = max(len(p.inputs[k]), p.outs[k])
        return [((k, i), all_[(k, i)]) for i in range(n) if (k, i) in all_]

    def _within(
        self, ways: tuple[Way, ...], states: list[int | None], demand: Demand, what: str, k: int
    ) -> tuple[Way, ...]:
        kept = tuple(w for w, s in zip(ways, states) if s is None or s in demand.states)
        if kept:
            return kept
        name = self.base.analysis.program.nodes[k].name
        could = ", ".join(sorted({NAMES[s] for s in states if s is not None}))
        wanted = " or ".join(NAMES[s] for s in sorted(demand.states))
        raise InputError(
            f"{what} {name} can only be {could}, and the contract wants it {wanted or 'nothing'}"
            f" ({', '.join(dict.fromkeys(b.title for b in demand.why))})"
        )

    def _output(self, k: int) -> None:
        """Outputs are handed over as the graph does it."""
        p = self.base.analysis.program
        types = self.base.analysis.solution.typing.types
        reads = tuple(self.base.root(v) for v in p.inputs[k])
        needs = tuple(self._held(r, types[v]) for r, v in zip(reads, p.inputs[k]))
        ins = tuple(self.ways.layout(r, s) for r, s in zip(reads, needs))
        self._add((k,), reads, (), (Way(needs, (), ins, ()),), k)

    def _region(self, begin: int, end: int, copies: tuple[int, ...]) -> None:
        """The markers of one carried value: it is handed on in the state in which the body takes it."""
        p = self.base.analysis.program
        reads = (self.base.root(p.inputs[begin][0]), self.base.root(p.inputs[end][0]))
        writes = tuple(p.first[k] for k in (begin, end, *copies))
        states = [s for s in (FULL, LOCAL, PARTIAL) if all(self.ways.layout(v, s) is not None for v in reads)]
        if not states:
            states = [FULL]
        ways = tuple(
            Way((s, s), (s,) * len(writes), tuple(self.ways.layout(v, s) for v in reads), ()) for s in states
        )
        for k in (begin, end):
            demand = self.demands.results.get((k, 0))
            if demand is not None:
                ways = self._within(ways, [w.gives[0] for w in ways], demand, "the value carried by", k)
        modes = tuple(Mode(w.needs, w.gives) for w in ways)
        barred = frozenset(
            (slot, *move)
            for slot, k in enumerate((begin, end))
            for move in self.demands.barred.get((k, 0), ())
        )
        self.ops.append(Op(reads, writes, modes, barred))
        self.calls.append((begin, end, *copies))
        self.found.append(ways)
