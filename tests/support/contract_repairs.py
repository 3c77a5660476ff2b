"""Doing to a graph what the words of a contract finding's repair say. Nothing here looks at how the checker found them."""

from __future__ import annotations

import re
from typing import Any

from .builder import Json
from .engine import check
from .repairing import AXIS, CONVERSIONS, Repair, Unclear

NAME = r"[\w.]+"
LEFT_OUT = re.compile(rf"leave out \w+ ({NAME})(?: and read ({NAME}) instead)?")
EXCHANGED = re.compile(rf"(reduce_scatter|all_reduce){AXIS} instead of \w+ ({NAME})")
BYPASSED = re.compile(rf"let ({NAME}) read ({NAME}) instead of ({NAME})")
CONVERTED = re.compile(rf"(?P<way>.*) of (?P<value>{NAME})(?: before (?P<readers>{NAME}(?:, {NAME})*))?")
# Where the next part of a repair begins: parts are joined by commas, and so are names in them.
PART = re.compile(r",? and (?=leave out|let|slice|all_|reduce_)|, (?=leave out|let|slice|all_|reduce_)")


class ContractRepair(Repair):
    """One repair of one contract finding; `carried_out` gives the repaired graph."""

    def __init__(self, graph: Json, report: Any, finding: Any, dialect: str) -> None:
        super().__init__(graph, report, finding, dialect)

    def carried_out(self, text: str) -> Json:
        """Apply all parts, what is left out first: sizes follow from it."""
        for part in sorted(PART.split(text), key=lambda part: not LEFT_OUT.fullmatch(part)):
            if found := LEFT_OUT.fullmatch(part):
                self._without(found[1], found[2])
            elif found := EXCHANGED.fullmatch(part):
                self._exchanged(found[1], int(found["axis"] or 0), found[3])
            elif found := BYPASSED.fullmatch(part):
                self.e.replace_uses(found[3], found[2], only=[found[1]])
            elif found := CONVERTED.fullmatch(part):
                readers = found["readers"].split(", ") if found["readers"] else None
                self._read(found["way"], found["value"], readers)
            else:
                raise Unclear(part)
        self.e.strip_below()
        return self.e.graph

    def shape(self, name: str) -> list[Any]:
        """The shape that a value has with the parts that are done."""
        self.e.strip_below()
        return list(check(self.e.graph).layout_of(name).shape)

    def _without(self, name: str, same: str | None) -> None:
        if same is None:
            self.left_out(name)
            return
        out = self.e.unit(name).out
        self.e.replace_uses(out, self.e.unit(same).out)
        for gone in dict.fromkeys((out, name)):
            self.e.remove(gone)

    def _exchanged(self, kind: str, dim: int, name: str) -> None:
        unit = self.e.unit(name)
        group = unit.group or next(
            g for g, ranks in self.ranks.items() if ranks == self.e.node(name)["args"][-1]
        )
        new = self.collective(kind, unit.operand, group, dim, self.e.before(name))
        self.e.replace_uses(unit.out, new)
        for gone in dict.fromkeys((unit.out, unit.name)):
            self.e.remove(gone)

    def _read(self, way: str, value: str, readers: list[str] | None) -> None:
        named = readers or [n["name"] for n in self.e.readers(value)]
        for kind, pattern in CONVERSIONS.items():
            if found := re.fullmatch(pattern, way):
                new = self.converted(kind, found, value, value)
                self.e.replace_uses(value, new, only=named)
                return
        raise Unclear(way)
