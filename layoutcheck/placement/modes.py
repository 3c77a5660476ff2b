"""The modes of a call: in which states of its operands it runs, and what it gives then, as its rule says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import attrs

from layoutcheck.layouts import Layout, replace
from layoutcheck.placement.base import Base, typed
from layoutcheck.placement.problem import FULL, LOCAL, PARTIAL

MAX_FREE = 4
Ins = tuple[Any, ...]


@attrs.frozen
class Way:
    """A mode before it has a price: states of operands and results, and the layouts in them."""

    needs: tuple[int | None, ...]
    gives: tuple[int | None, ...]
    ins: Ins
    outs: tuple[Any, ...]


@attrs.define
class Ways:
    """Finds the ways of calls, each kind of call once.

    odd: per value that has no share by its own axes the layout that it has beside shares (a scale taken over a rank's rows).
    pending: values that some way gives as a pending sum.
    """

    base: Base
    odd: dict[int, Layout] = attrs.field(factory=dict)
    pending: set[int] = attrs.field(factory=set)
    memo: dict[Any, tuple[Way, ...]] = attrs.field(factory=dict)

    def local(self, value: int) -> Layout | None:
        """A value's layout in the state Local."""
        of = self.base.full[value]
        if value in self.base.own:
            return None
        if value in self.odd:
            return self.odd[value]
        return self.base.tokens.local(of) if isinstance(of, Layout) else None

    def partial(self, value: int) -> Layout | None:
        """A value's layout in the state Partial."""
        of = self.base.full[value]
        return self.base.tokens.partial(of) if isinstance(of, Layout) and value in self.pending else None

    def layout(self, value: int, state: int | None) -> Any:
        """A value's layout in a state."""
        if state == LOCAL:
            return self.local(value)
        if state == PARTIAL:
            return self.partial(value)
        return self.base.full[value]

    def of(self, k: int) -> tuple[Way, ...]:
        """The ways of a call, Full ones first. Empty where its rule refuses all."""
        p = self.base.analysis.program
        reads = tuple(self.base.root(v) for v in p.inputs[k])
        full = tuple(self.base.full[v] for v in reads)
        outs = tuple(self.base.full[p.first[k] + j] for j in range(p.outs[k]))
        odd = tuple(self.odd.get(v) for v in reads)
        was = tuple(self.base.analysis.solution.typing.types[p.first[k] + j] for j in range(p.outs[k]))
        pending = tuple(v in self.pending for v in reads)
        key = (p.op[k], full, outs, odd, pending, was, _pattern(reads), k in self.base.fixed)
        known = self.memo.get(key)
        if known is None:
            known = self.memo[key] = tuple(self._find(k, reads, full, outs))
        for way in known[:]:
            for j, (state, of) in enumerate(zip(way.gives, way.outs)):
                value = p.first[k] + j
                if state == PARTIAL:
                    self.pending.add(value)
                if state == LOCAL and self.local(value) is not of:
                    self.odd.setdefault(value, of)
        return known

    def _find(self, k: int, reads: Sequence[int], full: Ins, outs: Ins) -> Iterator[Way]:
        if k in self.base.fixed:
            yield self.as_in_the_graph(k, reads)
            return
        found: dict[tuple[Any, ...], Way] = {}
        odd: dict[int, Layout] = {}
        for states in self._combinations(reads):
            ins = tuple(self.layout(v, s) for v, s in zip(reads, states))
            if any(x is None and f is not None for x, f in zip(ins, full)):
                continue
            for wanted in self._wanted(outs, states):
                way = self._way(k, states, ins, outs, wanted, odd)
                if way is not None:
                    found.setdefault((way.needs, way.gives), way)
                    break
        yield from found.values()

    def as_in_the_graph(self, k: int, reads: Sequence[int]) -> Way:
        """The only way of a call whose rows are each rank's own."""
        p = self.base.analysis.program
        types = self.base.analysis.solution.typing.types
        ins = tuple(types[v] for v in p.inputs[k])
        needs = tuple(self._held(r, of) for r, of in zip(reads, ins))
        outs = tuple(types[p.first[k] + j] for j in range(p.outs[k]))
        gives = tuple(self._held(p.first[k] + j, of) for j, of in enumerate(outs))
        return Way(needs, gives, ins, outs)

    def _held(self, value: int, of: Any) -> int | None:
        """The state in which the graph has a value."""
        form = self.base.full[value]
        if not isinstance(of, Layout) or not isinstance(form, Layout):
            return None
        return FULL if value in self.base.own or self.base.tokens.full(of) is of else LOCAL

    def _wanted(self, outs: Ins, states: Sequence[int | None]) -> Iterator[list[Any]]:
        """Result layouts for which sizes are written: the share where an operand is one, else all tokens."""
        tokens = self.base.tokens
        if LOCAL in states:
            yield [(tokens.local(o) or o) if isinstance(o, Layout) else o for o in outs]
        yield list(outs)

    def _way(
        self, k: int, states: tuple[int | None, ...], ins: Ins, outs: Ins, wanted: list[Any], odd: dict[int, Layout]
    ) -> Way | None:
        result = typed(self.base, k, ins, wanted)
        if result is None:
            return None
        given = list(result.outs[: len(outs)]) + [None] * (len(outs) - len(result.outs))
        bases = self.base.instance(k).bases
        if bases:
            reads = self.base.analysis.program.inputs[k]
            changed = {reads[slot]: of for slot, of in result.mutated.items() if 0 <= slot < len(reads)}
            own = len(given) - len(bases)
            for j, slot in enumerate(bases):
                if slot >= 0:
                    given[own + j] = changed.get(reads[slot], ins[slot])
        gives = []
        for j, (of, form) in enumerate(zip(given, outs)):
            state = self._state(of, form, LOCAL in states)
            if state is None and (isinstance(form, Layout) or (isinstance(of, Layout) or of != form)):
                return None
            if state == LOCAL and self.base.tokens.local(form) is not of and odd.setdefault(j, of) is not of:
                return None
            gives.append(state)
        return Way(states, tuple(gives), ins, tuple(given))

    def _state(self, of: Any, form: Any, beside_shares: bool) -> int | None:
        """The state of a result: its layout against the one with all tokens."""
        if not isinstance(of, Layout) or not isinstance(form, Layout):
            return None
        if of is form:
            return FULL
        if of.value != form.value:
            of = replace(of, value=form.value)
        if of is form:
            return FULL
        tokens = self.base.tokens
        if of is tokens.local(form):
            return LOCAL
        if of is tokens.partial(form):
            return PARTIAL
        return LOCAL if beside_shares and tokens.full(of) is form and not set(tokens.group.axes) & set(of.partial) else None

    def _combinations(self, reads: Sequence[int]) -> Iterator[tuple[int | None, ...]]:
        """States to try: all operands alike first, then each mixture, where there are few operands with a choice."""
        choices: dict[int, list[int]] = {}
        for v in reads:
            if v not in choices:
                of = self.base.full[v]
                mine = [FULL] if isinstance(of, Layout) else []
                if mine and self.local(v) is not None:
                    mine.append(LOCAL)
                if mine and self.partial(v) is not None:
                    mine.append(PARTIAL)
                choices[v] = mine
        values = list(choices)

        def spread(states: dict[int, int | None]) -> tuple[int | None, ...]:
            return tuple(states[v] for v in reads)

        for state in (FULL, LOCAL, PARTIAL):
            yield spread({v: (state if state in c else FULL if c else None) for v, c in choices.items()})
        mixed = [v for v in values if LOCAL in choices[v]]
        if len(mixed) <= MAX_FREE:
            for picked in product((FULL, LOCAL), repeat=len(mixed)):
                states: dict[int, int | None] = {v: FULL if c else None for v, c in choices.items()}
                states.update(dict(zip(mixed, picked)))
                yield spread(states)
        for v in values:
            if PARTIAL in choices[v]:
                yield spread({u: PARTIAL if u == v else (FULL if c else None) for u, c in choices.items()})
        yield from self._as_it_is(reads, choices, spread)

    def _as_it_is(self, reads: Sequence[int], choices: dict[int, list[int]], spread: Any) -> Iterator[tuple[int | None, ...]]:
        """Each operand with a share alone, for ops with many operands."""
        for v, c in choices.items():
            if LOCAL in c:
                yield spread({u: LOCAL if u == v else (FULL if d else None) for u, d in choices.items()})


def _pattern(reads: Sequence[int]) -> tuple[int, ...]:
    """Which operands are the same value."""
    seen: dict[int, int] = {}
    return tuple(seen.setdefault(v, len(seen)) for v in reads)
