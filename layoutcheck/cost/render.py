"""A cost report as text and as plain data for JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from layoutcheck.cost.evaluate import CostReport, Row
from layoutcheck.cost.formula_text import Formulas
from layoutcheck.cost.reference import Reference, by_row

_TRUST = {
    "table": "from your tables",
    "fitted": "by formulas fitted on this hardware",
    "borrowed": "by formulas fitted on other hardware or another data type",
    "assumed": "by assumed efficiencies",
}


def text(
    report: CostReport,
    by: str,
    top: int,
    lines: Sequence[Formulas] = (),
    figures: Mapping[str, int] | None = None,
    references: Sequence[Reference] = (),
) -> str:
    """The report as text: the total, a breakdown, formulas where given with the figures in them, and how far to trust it.

    Rooflines with fixed efficiencies stand in columns of their own.
    """
    beside = {r.name: by_row(report, by, r) for r in references}
    values = ", ".join(f"{n} = {v}" for n, v in report.values.items())
    rows = report.rows(by)
    shown = rows if not top else rows[:top]
    width = max([len(by), *(len(r.name) for r in shown)], default=5)
    head = f"{by:<{width}}  {'ms':>10}  {'share':>6}  {'TFLOP':>9}  {'GB':>9}  {'wire GB':>8}  {'calls':>6}"
    head += "".join(f"  {name + ' ms':>10}" for name in beside)
    out = [f"{report.cost.source} on {report.hardware.label}", f"{values}; one rank", "", head]
    total = report.total()

    def more(names: Sequence[str]) -> str:
        return "".join(f"  {sum(us[n] for n in names) / 1e3:>10.3f}" for us in beside.values())

    out += [_row(r, total.us, width) + more([r.name]) for r in shown]
    if len(rows) > len(shown):
        rest = rows[len(shown) :]
        out.append(_row(_sum(rest), total.us, width) + more([r.name for r in rest]))
    out += [_row(total, total.us, width) + more(["total"]), ""]
    out += [f"{r.name}: {_words(r)}" for r in references] + [""] * bool(references)
    for line in lines:
        out.append(line.name)
        out += [f"  flops    {dtype}: {flops}" for dtype, flops in line.flops.items()]
        out += [f"  read     {line.read}", f"  written  {line.written}", f"  wire     {line.wire}"]
        out += [f"  time     {line.time}"] * bool(line.time)
    if figures:
        out.append("with " + ", ".join(f"{n} = {v}" for n, v in figures.items()))
    if lines:
        out.append("")
    return "\n".join(out + evidence(report))


def evidence(report: CostReport) -> list[str]:
    """Sentences on where the times come from, what is not covered, and what was assumed."""
    total = report.total_us
    out = []
    for kind, us in report.estimate.by_trust().items():
        error = report.estimate.expected_error() if kind == "fitted" else None
        more = f", mean held-out error {100 * error:.0f} %" if error is not None else ""
        out.append(f"{_percent(us, total)} of the time {_TRUST[kind]}{more}")
    for name, share in report.estimate.tables.shares().items():
        if name != "formula":
            out.append(f"  {_percent(share, 1)} from {name}")
    for name in report.estimate.tables.unused():
        out.append(f"no time from {name}: no kernel here is of its class and inside its sizes")
    out += [f"  {line}" for line in report.estimate.caveats()]
    if not report.hardware.measured:
        out.append(f"nothing was measured on {report.hardware.label}")
    for op, us in sorted(report.uncovered_us.items(), key=lambda item: -item[1]):
        reason = next(u.reason for u in report.cost.uncovered if u.op == op)
        calls = sum(u.count for u in report.cost.uncovered if u.op == op)
        out.append(
            f"no cost for {op} ({calls} calls): {reason}; its bytes alone take {us / 1e3:.3f} ms, in no sum"
        )
    if report.uncovered_us:
        out.append(f"not covered: at least {100 * report.uncovered_share:.1f} % of the time")
    return out + [f"note: {note}" for note in report.cost.notes]


def _words(reference: Reference) -> str:
    shares = f"{reference.peak:g} of the peak and of links, {reference.memory:g} of the bandwidth"
    return f"a roofline of every kernel, {shares}, {reference.launch:g} us a kernel"


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "0 %"


def _row(row: Row, total: float, width: int) -> str:
    share = _percent(row.us, total)
    return (
        f"{row.name:<{width}}  {row.us / 1e3:>10.3f}  {share:>6}  {row.flops / 1e12:>9.3f}  "
        f"{row.moved / 1e9:>9.3f}  {row.wire / 1e9:>8.3f}  {row.calls:>6}"
    )


def _sum(rows: Sequence[Row]) -> Row:
    return Row(
        f"{len(rows)} more",
        sum(r.us for r in rows),
        sum(r.flops for r in rows),
        sum(r.moved for r in rows),
        sum(r.wire for r in rows),
        sum(r.calls for r in rows),
    )


def record(
    report: CostReport,
    by: str,
    lines: Sequence[Formulas] = (),
    figures: Mapping[str, int] | None = None,
    references: Sequence[Reference] = (),
) -> dict[str, Any]:
    """The report as plain data."""
    found: dict[str, Any] = {
        "format": "layoutcheck-cost/1",
        "source": report.cost.source,
        "hardware": report.hardware.name,
        "measured_hardware": report.hardware.measured,
        "values": dict(report.values),
        "total": _plain(report.total()),
        "by": by,
        "rows": [_plain(r) for r in report.rows(by)],
        "evidence_us": report.estimate.by_trust(),
        "expected_error": report.estimate.expected_error(),
        "tables": report.estimate.tables.shares(),
        "unused_tables": report.estimate.tables.unused(),
        "caveats": report.estimate.caveats(),
        "uncovered": [
            {"op": u.op, "node": u.node, "calls": u.count, "reason": u.reason} for u in report.cost.uncovered
        ],
        "uncovered_least_share": report.uncovered_share,
        "notes": list(report.cost.notes),
        "terms": [
            {
                "node": t.term.node,
                "op": t.term.op,
                "kernel": t.term.title,
                "role": t.term.role,
                "layer": t.term.layer,
                "calls": t.term.count,
                "us": t.entry.us,
                "sizes": dict(t.sizes),
                "formulas": {n: str(s) for n, s in t.term.sizes.items()},
                "flops": float(t.work.flops),
                "dtype": t.work.dtype,
                "bytes": float(t.work.traffic),
                "read": float(t.work.read),
                "written": float(t.work.write),
                "wire": float(t.work.wire),
                "evidence": t.entry.trust,
                "held_out": t.entry.held_out,
                "source": t.entry.source,
            }
            for t in report.timed
        ],
    }
    if lines:
        found["formulas"] = [
            {
                "name": f.name,
                "flops": dict(f.flops),
                "read": f.read,
                "written": f.written,
                "wire": f.wire,
                "time": f.time,
            }
            for f in lines
        ]
    if figures:
        found["figures"] = dict(figures)
    if references:
        found["references_us"] = {r.name: by_row(report, by, r) for r in references}
    return found


def _plain(row: Row) -> dict[str, Any]:
    return {
        "name": row.name,
        "us": row.us,
        "flops": row.flops,
        "flops_by_dtype": dict(row.by_dtype),
        "bytes": row.moved,
        "read": row.read,
        "written": row.moved - row.read,
        "wire": row.wire,
        "calls": row.calls,
    }
