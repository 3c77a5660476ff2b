"""Buffers that ops write into: what they hold in either state, write by write.

A buffer is Full or Local for all of its life: made with the sizes of that state, seen through views in that state, written with what
fits it. No conversion stands between a buffer, its views and what is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from layoutcheck.infer.solver.one_call import transform_of
from layoutcheck.infer.solver.written import written_back
from layoutcheck.layouts import Layout
from layoutcheck.placement.base import Base
from layoutcheck.placement.problem import FULL, LOCAL, PARTIAL
from layoutcheck.program import CALL

MAX_VIEWS = 16


@attrs.define
class Buffers:
    """Layouts of written values by `(value, state)`, as of the call that is looked at."""

    base: Base
    now: dict[tuple[int, int], Layout] = attrs.field(factory=dict)

    def layout(self, value: int, state: int | None) -> Layout | None:
        """What a buffer or a view of one holds in a state; None where it can't be in it."""
        return self.now.get((value, state)) if state is not None else None

    def can(self, value: int, state: int) -> bool:
        """Whether a buffer can be in a state."""
        return (value, state) in self.now

    def made(self, value: int, state: int, of: Any) -> None:
        """A buffer or a view of one came to be."""
        if isinstance(of, Layout):
            self.now[(value, state)] = of

    def write(self, value: int, state: int, of: Layout) -> None:
        """A write through a view: the view, and all that it is a view of, hold `of` then."""
        p = self.base.analysis.program
        runner = self.base.analysis.solution.runner
        self.now[(value, state)] = of
        for _ in range(MAX_VIEWS):
            call = p.value_call[value]
            if p.kind[call] != CALL or not p.inputs[call]:
                break
            transform = transform_of(p.instances[p.op[call]])
            if transform is None or not transform.is_view:
                break
            source = p.inputs[call][0]
            old, new = self.layout(source, state), self.layout(value, state)
            if old is None or new is None:
                break
            self.now[(source, state)] = written_back(old, new, runner.front_of(call, source))
            value = source

    def fits(self, of: Layout, state: int) -> bool:
        """Whether what was written leaves a buffer in its state."""
        group = set(self.base.tokens.group.axes)
        if state == PARTIAL:
            return group <= set(of.partial)
        cut = self.base.tokens.is_cut(of)
        return cut if state == LOCAL else not cut and not group & set(of.partial)


def states_around(
    reads: Sequence[int], choices: dict[int, list[int]], fixed: dict[int, int], prefer: int
) -> Iterator[tuple[int | None, ...]]:
    """States of operands of which some are fixed: the others in the preferred state first, then in the other one."""
    for state in (prefer, FULL if prefer == LOCAL else LOCAL):
        yield tuple(
            fixed[v] if v in fixed else (state if state in choices[v] else FULL if choices[v] else None)
            for v in reads
        )
