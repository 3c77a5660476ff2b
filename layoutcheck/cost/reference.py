"""Rooflines that a report's times are compared with: kernel by kernel, and op by op as an exported graph is written.

A roofline takes ``launch + max(flops / (peak x share), bytes / (bandwidth x share))``, a collective its latency and its wire bytes
over a share of the link. ``PLAIN`` has shares of 1 and no launch, ``FIXED`` 0.7 of the peak and of links, 0.6 of the bandwidth, 5 us.

Op by op a fused op is *one* roofline of its operands, and experts that are written one by one are not read as one product. This is
how simulators with fixed efficiencies count, and what a sum of kernels is to be held against.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import frozen

from layoutcheck.cost.call_view import bits_of
from layoutcheck.cost.hardware import Hardware
from layoutcheck.cost.terms import GraphCost, Term
from layoutcheck.cost.work import Work, bytes_of
from layoutcheck.layouts import Layout

if TYPE_CHECKING:
    from layoutcheck.cost.evaluate import CostReport, Timed
    from layoutcheck.infer.solver.analysis import Analysis


@frozen
class Reference:
    """A roofline with fixed efficiencies.

    Attributes:
        peak, memory, link: shares of the peak, of the memory's bandwidth, of a link.
        launch: microseconds of starting a kernel, an op or a collective.
        gather: share of that bandwidth at which rows are gathered that a query picks; only op by op.
    """

    name: str
    peak: float
    memory: float
    link: float
    launch: float
    gather: float = 1.0


PLAIN = Reference("plain", 1.0, 1.0, 1.0, 0.0)
FIXED = Reference("fixed", 0.7, 0.6, 0.7, 5.0)


@frozen
class OpLine:
    """What calls of one op in one role take op by op: milliseconds in all, those of arithmetic and of bytes alone, and runs."""

    role: str
    op: str
    ms: float
    compute: float
    bytes: float
    runs: int


def kernel_us(hardware: Hardware, timed: Timed, reference: Reference) -> float:
    """Return the microseconds of one run of a kernel or a collective."""
    work = timed.work
    if timed.term.kernel == "collective":
        return _wire_us(hardware, work, int(timed.sizes["ranks"]), reference)
    moved = float(work.traffic) / (hardware.bandwidth * reference.memory)
    return reference.launch + max(_flops_us(hardware, timed.term, work, reference), moved)


def by_row(report: CostReport, by: str, reference: Reference) -> dict[str, float]:
    """Return the microseconds of every line of a breakdown, kernel by kernel, and of ``total``; nothing runs beside anything."""
    from layoutcheck.cost.evaluate import KEYS

    found: dict[str, float] = defaultdict(float)
    for timed in report.timed:
        us = timed.term.count * kernel_us(report.hardware, timed, reference)
        found[KEYS[by](timed.term)] += us
        found["total"] += us
    return dict(found)


def op_lines(
    analysis: Analysis,
    cost: GraphCost,
    hardware: Hardware,
    reference: Reference,
) -> list[OpLine]:
    """Return the roofline of every op of an exported graph at its recorded counts, summed by role and op, the longest first.

    Args:
        analysis: the typed graph.
        cost: what it was lifted to with ``unrolled`` experts.
    """
    from layoutcheck.roles.flow import build_flow

    kinds = build_flow(analysis).kinds
    calls: dict[tuple[int, str], list[Term]] = defaultdict(list)
    for term in cost.terms:
        calls[term.call, term.role].append(term)
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0, 0.0])
    for (call, _), terms in calls.items():
        works = [(t, t.work(t.numbers(cost.values))) for t in terms if t.kernel != "collective"]
        compute = sum(_flops_us(hardware, t, w, reference) for t, w in works)
        read = sum(float(w.traffic) for _, w in works)
        if len(works) > 1:
            read = _operands(analysis, kinds, call, terms, cost.values, reference)
        moved = read / (hardware.bandwidth * reference.memory)
        us = reference.launch + max(compute, moved) if works else 0.0
        for t in terms:
            if t.kernel == "collective":
                sizes = t.numbers(cost.values)
                us += _wire_us(hardware, t.work(sizes), int(sizes["ranks"]), reference)
        line = sums[terms[0].role, terms[0].op.removesuffix(".default")]
        for i, value in enumerate((us, compute, moved)):
            line[i] += terms[0].count * value / 1e3
        line[3] += terms[0].count
    lines = [
        OpLine(role, op, ms, compute, moved, int(n)) for (role, op), (ms, compute, moved, n) in sums.items()
    ]
    return sorted(lines, key=lambda line: -line.ms)


def _flops_us(hardware: Hardware, term: Term, work: Work, reference: Reference) -> float:
    vector = work.dtype == "float32" and term.kernel != "gemm"
    rate = hardware.vector if vector else hardware.peak(work.dtype)
    return float(work.flops) / (rate * reference.peak)


def _wire_us(hardware: Hardware, work: Work, ranks: int, reference: Reference) -> float:
    tier = hardware.tier_of(ranks)
    return float(tier.latency + work.wire / (tier.bandwidth * reference.link)) + reference.launch


def _operands(
    analysis: Analysis,
    kinds: Sequence[str],
    call: int,
    terms: Iterable[Term],
    values: Mapping[str, int],
    reference: Reference,
) -> float:
    """Bytes of a fused op: activations in and out, the weights of its products, and the rows that it gathers."""
    p, types = analysis.program, analysis.solution.typing.types
    outs: Sequence[int] = range(p.first[call], p.first[call] + p.outs[call])
    found = sum(_bytes(types[v]) for v in (*p.inputs[call], *outs) if kinds[v] != "W")
    for term in terms:
        s = term.numbers(values)
        if term.kernel == "gemm":
            found += s["batch"] * s["n"] * s["k"] * bytes_of(1, str(term.options["dtype"]))
        elif term.kernel == "sparse_attention":
            row = s["latent"] + s["rope"]
            found += s["sequences"] * s["new"] * s["topk"] * row * 2 / reference.gather
    return float(found)


def _bytes(of: Any) -> float:
    if not isinstance(of, Layout):
        return 0.0
    return math.prod(size for size in of.shape if isinstance(size, int)) * bits_of(of.dtype) / 8
