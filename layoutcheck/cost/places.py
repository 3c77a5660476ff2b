"""Where a call stands: its role, the layers that it is part of, and how often it runs."""

from __future__ import annotations

from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.infer.solver.unrolled import Unrolled, Where
from layoutcheck.memory.activations import Body, bodies_of
from layoutcheck.roles.detect import find_roles

_STEPS = 6
OTHER = "other"


class Places:
    """Roles, layers and repeats of one program's calls."""

    def __init__(self, analysis: Analysis) -> None:
        self.program = analysis.program
        self.roles = find_roles(analysis)
        self.unrolled = Unrolled(self.program, analysis.solution.runner.repeats, _STEPS + 2)
        self.bodies = bodies_of(analysis.program)
        self._counts: dict[int, int] = {}
        self._labels: dict[int, str] = {}
        start = 0
        for layer in self.roles.layers:
            last = start + self.count(layer.begin) - 1
            self._labels[layer.index] = f"{start}-{last}" if last > start else str(start)
            start = last + 1

    def count(self, k: int) -> int:
        """How often a call runs: once for each repeat of the regions around it."""
        body = self._innermost(k)
        return 1 if body is None else self._runs(body)

    def regions(self, k: int) -> tuple[tuple[int, int], ...]:
        """The regions around a call, the outer ones first, with how often each runs altogether."""
        around = sorted((b for b in self.bodies if b.holds(k)), key=lambda b: b.begin)
        return tuple((b.begin, self._runs(b)) for b in around)

    def _innermost(self, k: int) -> Body | None:
        around = [b for b in self.bodies if b.holds(k)]
        return max(around, key=lambda b: b.begin) if around else None

    def _runs(self, body: Body) -> int:
        found = self._counts.get(body.begin)
        if found is None:
            found = self.count(body.begin) + sum(self.count(copy) for copy in body.copies)
            self._counts[body.begin] = found
        return found

    def role_counts(self, k: int) -> dict[str, int]:
        """The roles of a call in its repeats, the first ones first, with the number of repeats of each.

        What has no role of its own belongs to what reads it next, be it in the next repeat.
        """
        own = self.roles.of(k)
        if own is not None:
            return {own: self.count(k)}
        found: dict[str, int] = {}
        for where in self.unrolled.runs(k):
            role = self._role(k, where)
            found[role] = found.get(role, 0) + self.unrolled.stands_for(where)
        # of regions inside of many others not every repeat is looked at
        found[next(iter(found))] += self.count(k) - sum(found.values())
        return found

    def _role(self, k: int, where: Where) -> str:
        p = self.program
        for _ in range(_STEPS):
            found = self.roles.of(k)
            if found is not None:
                return found
            if k in self.roles.later and not self.unrolled.is_first(k, where):
                return "residual"
            outs = range(p.first[k], p.first[k] + p.outs[k])
            readers = [r for v in outs for r in self.unrolled.read_by(v, where)]
            if not readers:
                return OTHER
            k, where = min(readers, key=lambda reader: self.unrolled.order(*reader))
        return OTHER

    def layer(self, k: int) -> str:
        """The layers that a call stands for, as ``3`` or ``3-77``; empty outside of layers."""
        layer = self.roles.layer_of(k)
        return "" if layer is None else self._labels[layer.index]
