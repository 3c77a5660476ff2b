"""The time of a graph's terms on a hardware, and how far each part of it can be trusted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from attrs import evolve, field, frozen

from layoutcheck.cost.collectives import exposed_us
from layoutcheck.cost.estimate import Entry, Estimate
from layoutcheck.cost.hardware import Hardware
from layoutcheck.cost.tables import Measured
from layoutcheck.cost.terms import BALANCED, GraphCost, Term
from layoutcheck.cost.work import Work
from layoutcheck.symbols import Expr, evaluate

GROUPINGS = ("op", "role", "layer", "kernel", "node")


@frozen
class Timed:
    """A term at certain counts: its sizes, the work and the time of one run, and the evidence behind the time."""

    term: Term
    sizes: Mapping[str, int]
    work: Work
    entry: Entry

    @property
    def us(self) -> float:
        """Microseconds of all runs."""
        return self.entry.us * self.term.count


@frozen
class Row:
    """A line of a breakdown; flops and bytes are those of all runs on one rank.

    Attributes:
        moved: bytes read and written; ``read`` of them are read.
        by_dtype: flops by the data type that they are done in.
    """

    name: str
    us: float
    flops: float
    moved: float
    wire: float
    calls: int
    read: float = 0.0
    by_dtype: Mapping[str, float] = field(factory=dict)


@frozen
class CostReport:
    """A graph's time on one hardware.

    Attributes:
        cost: the terms.
        values: the counts that they were evaluated at.
        timed: every term with its time.
        estimate: the sum with its evidence.
        uncovered_us: by op without a known cost, the time that its bytes alone would take; in no sum.
    """

    cost: GraphCost
    hardware: Hardware
    values: Mapping[str, int]
    timed: tuple[Timed, ...]
    estimate: Estimate
    uncovered_us: Mapping[str, float]

    def __repr__(self) -> str:
        return f"<CostReport of {self.cost!r}>"

    @property
    def total_us(self) -> float:
        """Microseconds of all terms, one after the other."""
        return sum(t.us for t in self.timed)

    @property
    def uncovered_share(self) -> float:
        """The share of the time that ops without a known cost take at least."""
        least = sum(self.uncovered_us.values())
        return least / (least + self.total_us) if least else 0.0

    def rows(self, by: str) -> list[Row]:
        """The breakdown by ``op``, ``role``, ``layer``, ``kernel`` or ``node``, the longest first (layers in order)."""
        key = KEYS[by]
        found: dict[str, list[Timed]] = defaultdict(list)
        for timed in self.timed:
            found[key(timed.term)].append(timed)
        rows = [_row(name, group) for name, group in found.items()]
        return rows if by in ("layer", "node") else sorted(rows, key=lambda r: -r.us)

    def total(self) -> Row:
        """The sum of everything."""
        return _row("total", self.timed)


KEYS: dict[str, Callable[[Term], str]] = {
    "op": lambda t: t.op.removesuffix(".default"),
    "role": lambda t: t.role,
    "layer": lambda t: t.layer or "outside of layers",
    "kernel": lambda t: f"{t.role} {t.title}",
    "node": lambda t: f"{t.node} {t.title}",
}


def _row(name: str, group: Iterable[Timed]) -> Row:
    us = flops = moved = wire = read = 0.0
    by_dtype: dict[str, float] = defaultdict(float)
    calls = 0
    for t in group:
        n = t.term.count
        us += t.us
        flops += float(n * t.work.flops)
        by_dtype[t.work.dtype] += float(n * t.work.flops)
        moved += float(n * t.work.traffic)
        read += float(n * t.work.read)
        wire += float(n * t.work.wire)
        calls += n
    return Row(name, us, flops, moved, wire, calls, read, {d: f for d, f in by_dtype.items() if f})


def time_graph(
    cost: GraphCost,
    hardware: Hardware,
    given: Mapping[str, int] | None = None,
    *,
    tables: Measured | None = None,
    routing: str = "balanced",
    overlap: Collection[str] = (),
) -> CostReport:
    """Time every term at certain counts.

    Args:
        cost: the lifted graph.
        hardware: whose constants are taken.
        given: values of symbols other than the recorded ones.
        tables: a user's measurements, which win inside their range.
        routing: how tokens spread over experts: ``balanced``, ``uniform``, ``skewed``.
        overlap: by which collectives weights move while the kernels of their layers run, ``broadcast`` or ``all_gather``; of
            these only what exceeds the kernels counts.

    Raises:
        InputError: a symbol has no value or an impossible one, or a kernel cannot be timed on this hardware.
    """
    if routing != "balanced":
        cost = evolve(cost, notes=tuple(f"routing is {routing}" if n == BALANCED else n for n in cost.notes))
    values = cost.at(given or {})
    estimate = Estimate(hardware, tables or Measured())
    timed = []
    known: dict[Any, Timed] = {}
    for term in cost.terms:
        sizes = term.numbers(values)
        options = {**term.options, "routing": routing}
        key = (term.kernel, tuple(sizes.values()), tuple(sorted(term.options.items())))
        before = known.get(key)
        if before is None:
            work = term.work(sizes, options)
            entry = _time(estimate, hardware, term, sizes, options)
            known[key] = found = Timed(term, sizes, work, entry)
        else:
            entry = evolve(before.entry, count=term.count)
            estimate.tables.used[entry.source if entry.trust == "table" else "formula"] += entry.total
            estimate.entries.append(entry)
            found = Timed(term, sizes, before.work, entry)
        timed.append(found)
    if overlap:
        timed = _overlapped(timed, overlap)
        estimate.entries = [t.entry for t in timed]
    floor: dict[str, float] = defaultdict(float)
    for item in cost.uncovered:
        moved = evaluate(item.moved, values) if isinstance(item.moved, Expr) else item.moved
        floor[item.op] += item.count * (moved / hardware.bandwidth + hardware.launch_us)
    return CostReport(cost, hardware, values, tuple(timed), estimate, dict(floor))


def _overlapped(timed: list[Timed], overlap: Collection[str]) -> list[Timed]:
    """Of collectives of weights, what the other kernels of their region do not hide."""
    moved: dict[Any, float] = defaultdict(float)
    hiding: dict[Any, float] = defaultdict(float)
    for t in timed:
        if t.term.hidden(overlap):
            moved[t.term.regions] += t.us
        elif t.term.kernel != "collective":  # others want the links too
            hiding[t.term.regions] += t.us
    found = []
    for t in timed:
        if t.term.hidden(overlap) and moved[t.term.regions]:
            left = exposed_us(moved[t.term.regions], hiding[t.term.regions], True)
            share = float(left) / moved[t.term.regions]
            t = evolve(t, entry=evolve(t.entry, us=t.entry.us * share))
        found.append(t)
    return found


def _time(
    estimate: Estimate, hardware: Hardware, term: Term, sizes: Mapping[str, int], options: Mapping[str, Any]
) -> Entry:
    kernel, variant = term.table.fit(options)

    def formula() -> float:
        return float(term.table.time(hardware, sizes, options))

    if kernel == "collective":
        estimate.collective(variant, sizes["size"], sizes["ranks"], formula, term.count)
    else:
        estimate.kernel(kernel, variant, sizes, formula, term.count)
    return estimate.entries[-1]
