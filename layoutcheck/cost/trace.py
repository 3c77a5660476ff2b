"""A timeline in the Chrome trace form, which Perfetto opens: one process, a track for kernels and one for collectives.

Everything runs one after the other, in the order of the graph; repeated regions are written out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from layoutcheck.cost.evaluate import CostReport, Timed
from layoutcheck.errors import InputError

MOST_EVENTS = 500_000


def trace(report: CostReport) -> dict[str, Any]:
    """Return the timeline as plain data.

    Raises:
        InputError: written out it would have more than ``MOST_EVENTS`` events.
    """
    events: list[dict[str, Any]] = [
        _named("process_name", 0, report.hardware.label),
        _named("thread_name", 1, "kernels"),
        _named("thread_name", 2, "collectives"),
    ]
    if sum(t.term.count for t in report.timed) > MOST_EVENTS:
        raise InputError(f"the timeline would have more than {MOST_EVENTS} events", where="--trace")
    now = 0.0
    for timed in _unrolled([t for t in report.timed if not t.term.again], 0, 1):
        term = timed.term
        events.append(
            {
                "name": f"{term.role} {term.title}",
                "cat": term.role,
                "ph": "X",
                "pid": 1,
                "tid": 2 if term.kernel == "collective" else 1,
                "ts": round(now, 3),
                "dur": round(timed.entry.us, 3),
                "args": {
                    "node": term.node,
                    "op": term.op,
                    "layer": term.layer,
                    **timed.sizes,
                    "flops": float(timed.work.flops),
                    "bytes": float(timed.work.traffic),
                    "wire": float(timed.work.wire),
                    "evidence": timed.entry.trust,
                },
            }
        )
        now += timed.entry.us
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _named(what: str, thread: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": 1, "tid": thread, "args": {"name": name}}


def _unrolled(terms: Sequence[Timed], depth: int, runs: int) -> Iterator[Timed]:
    """The terms of one run of a region, inner regions repeated where they stand."""
    i = 0
    while i < len(terms):
        path = terms[i].term.regions
        if len(path) <= depth:
            yield terms[i]
            i += 1
            continue
        end = i
        while end < len(terms) and terms[end].term.regions[depth : depth + 1] == path[depth : depth + 1]:
            end += 1
        total = path[depth][1]
        for _ in range(max(1, total // runs)):
            yield from _unrolled(terms[i:end], depth + 1, total)
        i = end
