"""What stands before and behind a value when repeated bodies are written out, without writing them out.

Markers hand values on: what lies before a repeat is the repeat before it. A region counts as one of a few repeats, since those that
are far from both of its ends have like surroundings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice, product
from typing import Any

from layoutcheck.infer.solver.repeats import Repeats
from layoutcheck.program import REGION_BEGIN, REGION_COPY, REGION_END, Program

Where = Mapping[Any, int]
"""Which repeat of the regions around it something is in, from 0; the first one where nothing is said."""

_MARKERS = frozenset((REGION_BEGIN, REGION_END, REGION_COPY))
_HOPS = 200
_RUNS = 64


class Unrolled:
    """A program read as if its regions were written out, each with at most `most` repeats."""

    def __init__(self, program: Program, repeats: Mapping[Any, Repeats], most: int) -> None:
        self.program = program
        self.most = most
        # markers that do not pair up are findings elsewhere, and hand nothing on here
        self.repeats = {
            region: of
            for region, of in repeats.items()
            if of.begins
            and len(of.ends) == len(of.begins)
            and len(of.copies) % len(of.begins) == 0
            and of.begins[-1] < of.ends[0]
            and (not of.copies or of.ends[-1] < of.copies[0])
        }
        self.marks: dict[int, tuple[Any, int, int]] = {}
        for region, of in self.repeats.items():
            last = self._times(region) - 1
            for j, (begin, end) in enumerate(zip(of.begins, of.ends, strict=True)):
                self.marks[begin] = self.marks[end] = (region, j, 0)
            for at, copy in enumerate(of.copies):
                number, j = divmod(at, of.carried)
                number = last if number + 2 == of.runs else min(number + 1, max(last - 1, 1))
                self.marks[copy] = (region, j, number)
        self.readers: dict[int, list[int]] = {}
        for k, ins in enumerate(program.inputs):
            for v in dict.fromkeys(ins):
                self.readers.setdefault(v, []).append(k)

    def runs(self, call: int) -> Iterator[Where]:
        """The repeats that a call is in."""
        around = self._around(call)
        numbers = product(*[range(self._times(region)) for region in around])
        for chosen in islice(numbers, _RUNS):
            yield dict(zip(around, chosen, strict=True))

    def stands_for(self, where: Where) -> int:
        """How many repeats of the program a repeat stands for: those far from both ends are counted as one."""
        found = 1
        for region, number in where.items():
            times = self._times(region)
            if number == times - 2:
                found *= self.repeats[region].runs - times + 1
        return found

    def order(self, call: int, where: Where) -> tuple[int, ...]:
        """A call's place in the order in which everything runs: a repeat runs where its first copy marker stands."""
        place = []
        for region in self._around(call):
            number = where.get(region, 0)
            of = self.repeats[region]
            place.append(of.begins[0] if number == 0 else self._copy_of(region, number, 0))
        return (*place, call)

    def source(self, value: int, where: Where) -> tuple[int, Where]:
        """The value that markers hand on as this one, and the repeat that made it."""
        if not self.repeats:
            return value, where
        p = self.program
        for _ in range(_HOPS):
            k = p.value_call[value]
            if p.kind[k] not in _MARKERS or k not in self.marks:
                break
            region, j, number = self.marks[k]
            of = self.repeats[region]
            if p.kind[k] == REGION_BEGIN and where.get(region, 0):
                number = where[region]
                value = p.inputs[of.copies[(number - 1) * of.carried + j]][0]
                made = self.marks.get(p.value_call[value])
                if made is None or made[0] != region:
                    continue  # the repeat reads something of its own
                value = p.inputs[of.ends[made[1]]][0]
                where = {**where, region: number - 1}
            elif p.kind[k] == REGION_BEGIN:
                value = p.inputs[k][0]
            else:
                value = p.inputs[of.ends[j]][0]
                where = {**where, region: number}
        return value, where

    def read_by(self, value: int, where: Where) -> Iterator[tuple[int, Where]]:
        """The calls that read a value, or what markers hand on as this value, with the repeat that each is in."""
        p = self.program
        todo = [(value, where)]
        for _ in range(_HOPS):
            if not todo:
                return
            value, where = todo.pop()
            for k in self.readers.get(value, ()):
                if p.kind[k] not in _MARKERS or k not in self.marks:
                    yield k, where
                    continue
                region, j, number = self.marks[k]
                of = self.repeats[region]
                if p.kind[k] == REGION_END:
                    number = where.get(region, 0)
                    shown = of.ends[j] if number == 0 else self._copy_of(region, number, j)
                    todo.append((p.first[shown], where))
                    continue
                made = self.marks.get(p.value_call[value])
                if p.kind[k] == REGION_COPY and made is not None and made[0] == region:
                    number = where.get(region, 0) + 1
                    if number >= self._times(region):
                        continue
                todo.append((p.first[of.begins[j]], {**where, region: number}))

    def is_first(self, call: int, where: Where) -> bool:
        """Whether this is the first time that a call runs."""
        return not any(where.get(region, 0) for region in self._around(call))

    def _around(self, call: int) -> list[Any]:
        return [r for r, of in self.repeats.items() if of.begins[0] < call < of.ends[-1]]

    def _times(self, region: Any) -> int:
        return min(self.repeats[region].runs, self.most)

    def _copy_of(self, region: Any, number: int, j: int) -> int:
        of = self.repeats[region]
        number = of.runs - 1 if number == self._times(region) - 1 else number
        return of.copies[(number - 1) * of.carried + j]
