"""Prices of a program's values and calls, as whole numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from layoutcheck.cost.prices import ByteRates, Prices
from layoutcheck.infer.repairs.prices import nbytes
from layoutcheck.layouts import Layout
from layoutcheck.placement.modes import Ways
from layoutcheck.placement.problem import Value
from layoutcheck.placement.way import Way
from layoutcheck.roles.flow import Flow
from layoutcheck.symbols import Size, evaluate, free_symbols
from layoutcheck.transforms.gathers import gather_onto

# A femtosecond: a byte at 200 GB/s takes 5000 of them.
UNIT = 1e-15
NOMINAL = 4096
# A collective that moves nothing still starts and meets: what prices by bytes alone would leave out.
START = 5e-6
# A slice is a view, but a node that runs: of two placements that move the same bytes the one with fewer slices is cheaper.
VIEW = 1e-7


@attrs.define
class Pricing:
    """Prices at numbers for the symbolic sizes (`values`; 4096 where none is given)."""

    ways: Ways
    prices: Prices
    values: Mapping[str, int]
    flow: Flow
    _known: dict[Any, Value] = attrs.field(factory=dict)
    _calls: dict[Any, int] = attrs.field(factory=dict)

    def number(self, size: Size) -> int:
        """A size as a number."""
        names = free_symbols(size)
        return int(evaluate(size, {n: self.values.get(n, NOMINAL) for n in names})) if names else int(size)  # type: ignore[arg-type]

    def value(self, value: int, times: int) -> Value:
        """The conversions of a value, which are made `times` times."""
        full = self.ways.base.full[value]
        local = self.ways.local(value)
        if value in self.ways.base.written:
            return Value(None, None, None, None)
        key = (full, local, value in self.ways.pending, times, self.flow.kinds[value])
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._value(value, full, local, times)
        return known

    def _value(self, value: int, full: Any, local: Layout | None, times: int) -> Value:
        tokens = self.ways.base.tokens
        if not isinstance(full, Layout):
            return Value(None, None, None, None)
        ranks = self.number(tokens.group.size)
        apart = tokens.apart(full)
        dim = tokens.dim(full if apart is None else apart)
        movable = dim is not None and local is tokens.local(full) and local is not None
        moved = local if apart is None else tokens.local(apart)
        gather = scatter = reduce = None
        # What follows from inputs alone every rank can work out for all tokens: nobody sends it.
        sent = self.flow.kinds[value] not in ("I", "W")
        if (
            sent
            and movable
            and local is not None
            and dim is not None
            and moved is not None
            and not gather_onto(moved, dim, tokens.group)[1]
        ):
            gather = self._price("all_gather", local, ranks, times)
            if value in self.ways.pending:
                scatter = self._price("reduce_scatter", full, ranks, times)
        if value in self.ways.pending:
            reduce = self._price("all_reduce", full, ranks, times)
            if scatter is not None and gather is not None and abs(scatter + gather - reduce) <= times:
                reduce = scatter + gather
        return Value(scatter, gather, reduce, round(VIEW / UNIT) * times if movable else None)

    def _price(self, kind: str, of: Layout, ranks: int, times: int) -> int:
        paid = self.prices.collective(kind, self.number(nbytes(of)), ranks)
        if isinstance(self.prices, ByteRates):
            paid += 2 * START if kind == "all_reduce" else START
        return round(paid / UNIT) * times

    def way(self, k: int, way: Way, times: int) -> int:
        """A call in one of its ways."""
        base = self.ways.base
        p = base.analysis.program
        was = base.analysis.solution.typing.types[p.first[k]] if p.outs[k] else None
        key = (p.op[k], way.ins, way.outs, was)
        if key not in self._calls:
            self._calls[key] = self._call(k, way)
        return self._calls[key] * times

    def _call(self, k: int, way: Way) -> int:
        if not any(isinstance(of, Layout) for of in way.outs):
            return 0
        instance = self.ways.base.sized(k, way.outs[0])
        return round(self.prices.op(instance, way.ins, way.outs) / UNIT)
