"""The modes of a call: in which states of its operands it runs, and what it gives then, as its rule says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import attrs

from layoutcheck.infer.calls.call import slots_in
from layoutcheck.layouts import Layout, replace
from layoutcheck.placement.base import Base, typed
from layoutcheck.placement.buffers import Buffers, states_around
from layoutcheck.placement.made import counted, filled
from layoutcheck.placement.problem import FULL, LOCAL, PARTIAL
from layoutcheck.placement.resize import size_param
from layoutcheck.placement.way import Ins, Way
from layoutcheck.program import CALL

MAX_FREE = 4


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
    done: dict[int, tuple[Way, ...]] = attrs.field(factory=dict)
    buffers: Buffers = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.buffers = Buffers(self.base)

    def local(self, value: int) -> Layout | None:
        """A value's layout in the state Local."""
        if value in self.base.written:
            return self.buffers.layout(value, LOCAL)
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
        if value in self.base.written:
            return self.buffers.layout(value, state) or self.base.full[value]
        if state == LOCAL:
            return self.local(value)
        if state == PARTIAL:
            return self.partial(value)
        return self.base.full[value]

    def of(self, k: int) -> tuple[Way, ...]:
        """The ways of a call, Full ones first. Empty where its rule refuses all.

        Calls are asked for in the order of the program the first time, since buffers change as ops write into them.
        """
        if k not in self.done:
            self.done[k] = self._ways(k)
            first = self.base.analysis.program.first[k]
            self.pending.update(
                first + j for way in self.done[k] for j, state in enumerate(way.gives) if state == PARTIAL
            )
        return self.done[k]

    def _ways(self, k: int) -> tuple[Way, ...]:
        p = self.base.analysis.program
        rule = self.base.instance(k).rule
        writes = rule is not None and bool(rule.mutates) and not self.base.instance(k).bases
        if writes or any(v in self.base.written for v in range(p.first[k], p.first[k] + p.outs[k])):
            return tuple(self._with_buffers(k))
        if self._counts(k):
            return tuple(counted(self, k))
        if rule is not None and rule.code == "create":
            return tuple(filled(self, k))
        reads = tuple(self.base.root(v) for v in p.inputs[k])
        full = tuple(self.layout(v, FULL) for v in reads)
        outs = tuple(self.base.full[p.first[k] + j] for j in range(p.outs[k]))
        odd = tuple(self.odd.get(v) or (self.local(v) if v in self.base.written else None) for v in reads)
        was = tuple(self.base.analysis.solution.typing.types[p.first[k] + j] for j in range(p.outs[k]))
        pending = tuple(v in self.pending for v in reads)
        key = (
            p.op[k],
            full,
            outs,
            odd,
            pending,
            was,
            _pattern(reads),
            k in self.base.fixed,
            k if k in self.base.params else -1,
        )
        known = self.memo.get(key)
        if known is None:
            known = self.memo[key] = tuple(self._find(k, reads, full, outs))
        for way in known[:]:
            for j, (state, of) in enumerate(zip(way.gives, way.outs)):
                value = p.first[k] + j
                if state == LOCAL and self.local(value) is not of:
                    self.odd.setdefault(value, of)
        return known

    def _find(self, k: int, reads: Sequence[int], full: Ins, outs: Ins) -> Iterator[Way]:
        if k in self.base.fixed:
            yield self.as_in_the_graph(k, reads)
            return
        found: dict[tuple[Any, ...], Way] = {}
        odd: dict[int, Layout] = {}
        sized = size_param(self.base.instance(k)) is not None
        for states in dict.fromkeys(self._combinations(reads)):
            if not self._together(reads, states):
                continue
            ins = tuple(self.layout(v, s) for v, s in zip(reads, states))
            if any(x is None and f is not None for x, f in zip(ins, full)):
                continue
            for wanted in self._wanted(outs, states, sized):
                way = self._way(k, states, ins, outs, wanted, odd)
                if way is not None:
                    found.setdefault((way.needs, way.gives), way)
                    break
        for way in found.values():
            yield self._without_mere_dtypes(k, way)

    def _without_mere_dtypes(self, k: int, way: Way) -> Way:
        """Of what a cast takes its dtype from no tokens are read: its state plays no part."""
        rule = self.base.instance(k).rule
        if rule is None or rule.kind != "code" or rule.code != "same":
            return way
        data = rule.options.get("self", "self")
        slots = set(slots_in(self.base.instance(k).params.get(data)))
        needs = tuple(s if slot in slots or not slots else None for slot, s in enumerate(way.needs))
        return attrs.evolve(way, needs=needs)

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
        if value not in self.base.own and set(self.base.tokens.group.axes) & set(of.partial):
            return PARTIAL
        return FULL if value in self.base.own or self.base.tokens.full(of) is of else LOCAL

    def _together(self, reads: Sequence[int], states: Sequence[int | None]) -> bool:
        """Rows in an order that data decides, counts and scales taken over rows go with others of the same state only."""
        mine = {s for v, s in zip(reads, states) if s is not None and self.local(v) is not None}
        return len(mine) <= 1 or not any(v in self.odd for v in reads)

    def _wanted(self, outs: Ins, states: Sequence[int | None], sized: bool) -> Iterator[list[Any]]:
        """Result layouts for which sizes are written: the share where an operand is one, else all tokens."""
        tokens = self.base.tokens
        if sized and LOCAL in states:
            yield [(tokens.local(o) or o) if isinstance(o, Layout) else o for o in outs]
        yield list(outs)

    def _way(
        self,
        k: int,
        states: tuple[int | None, ...],
        ins: Ins,
        outs: Ins,
        wanted: list[Any],
        odd: dict[int, Layout],
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
        elif result.mutated:
            return None
        gives = []
        for j, (of, form) in enumerate(zip(given, outs)):
            state = self._state(of, form, LOCAL in states)
            if state == LOCAL and bases and j >= len(given) - len(bases):
                # A cache that each rank fills with its own rows is filled in part.
                return None
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
        # Rows that each rank orders by itself, and scales taken over them: no conversion leads to them or from them.
        free = beside_shares and tokens.local(form) is None
        return LOCAL if free and tokens.is_cut(of) and tokens.fits(of, form) else None

    def _with_buffers(self, k: int) -> Iterator[Way]:
        """Ways of a call that makes, views, writes or reads a buffer: one a state of the buffer."""
        p = self.base.analysis.program
        tokens = self.base.tokens
        reads = tuple(self.base.root(v) for v in p.inputs[k])
        outs = tuple(range(p.first[k], p.first[k] + p.outs[k]))
        forms = tuple(self.base.full[v] for v in outs)
        made = [v for v in outs if v in self.base.written]
        choices = {
            v: [
                s
                for s in (FULL, LOCAL)
                if self.layout(v, s) is not None and (s == FULL or self.local(v) is not None)
            ]
            if isinstance(self.base.full[v], Layout)
            else []
            for v in reads
        }
        for state in (FULL, LOCAL, PARTIAL):
            fixed = {v: state for v in reads if v in self.base.written}
            if any(not self.buffers.can(v, state) for v in fixed):
                continue
            for states in states_around(reads, choices, fixed, LOCAL if state == LOCAL else FULL):
                ins = tuple(self.layout(v, s) for v, s in zip(reads, states))
                if any(x is None and isinstance(self.base.full[v], Layout) for x, v in zip(ins, reads)):
                    continue
                wanted = [
                    (tokens.local(f) or f) if isinstance(f, Layout) and state == LOCAL else f for f in forms
                ]
                result = typed(self.base, k, ins, wanted)
                if result is None:
                    continue
                written = {p.inputs[k][slot]: of for slot, of in result.mutated.items() if slot >= 0}
                if not all(
                    self.buffers.fits(of, state) or (not made and not fixed) for of in written.values()
                ):
                    continue
                gives = tuple(
                    None
                    if not isinstance(f, Layout)
                    else state
                    if v in made
                    else self._state(of, f, LOCAL in states)
                    for v, f, of in zip(outs, forms, result.outs)
                )
                if any(g is None and isinstance(f, Layout) for g, f in zip(gives, forms)):
                    continue
                if made and state == LOCAL and not self._is_shorter(result.outs, forms):
                    continue
                if made and state == PARTIAL and not self._is_part(result.outs):
                    continue
                for v, of, g in zip(outs, result.outs, gives):
                    if v in made:
                        self.buffers.made(v, state, of)
                    elif g == LOCAL and self.local(v) is not of:
                        self.odd.setdefault(v, of)
                for v, of in written.items():
                    self.buffers.write(v, state, of)
                yield Way(states, gives, ins, tuple(result.outs[: len(outs)]))
                break

    def _is_part(self, outs: Sequence[Any]) -> bool:
        """Whether a buffer is made with what one rank knows of a sum, or is a view of one."""
        group = set(self.base.tokens.group.axes)
        return all(isinstance(of, Layout) and group <= {*of.partial, *of.bound_map} for of in outs)

    def _is_shorter(self, outs: Sequence[Any], forms: Ins) -> bool:
        """Whether a buffer made Local has the extents of a share."""
        return any(
            isinstance(of, Layout)
            and isinstance(f, Layout)
            and of.shape != f.shape
            and self.base.tokens.fits(of, f)
            for of, f in zip(outs, forms)
        )

    def _counts(self, k: int) -> bool:
        """Whether a call counts rows, 0, 1, 2, .., for ops that write by them: then each rank counts its own."""
        p = self.base.analysis.program
        rule = self.base.instance(k).rule
        if rule is None or rule.code != "arange" or not isinstance(self.base.full[p.first[k]], Layout):
            return False
        users = self.base.analysis.uses.get(p.first[k], [])
        return bool(users) and all(
            (r := self.base.instance(u).rule) is not None and bool(r.mutates)
            for u, _ in users
            if p.kind[u] == CALL
        )

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

    def _as_it_is(
        self, reads: Sequence[int], choices: dict[int, list[int]], spread: Any
    ) -> Iterator[tuple[int | None, ...]]:
        """Each operand with a share alone, for ops with many operands."""
        for v, c in choices.items():
            if LOCAL in c:
                yield spread({u: LOCAL if u == v else (FULL if d else None) for u, d in choices.items()})


def _pattern(reads: Sequence[int]) -> tuple[int, ...]:
    """Which operands are the same value."""
    seen: dict[int, int] = {}
    return tuple(seen.setdefault(v, len(seen)) for v in reads)
