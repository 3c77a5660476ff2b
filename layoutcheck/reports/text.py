"""The rendering for people: one block a finding, then one line that counts them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from layoutcheck.findings import Evidence, Finding, Report, Severity, Unchecked
from layoutcheck.reports.wording import (
    headline,
    path_line,
    plural,
    price,
    printable,
    printable_lines,
    summary,
)

Paint = Callable[[str, str], str]

_ANSI = {"error": "1;31", "warning": "1;33", "note": "1;36", "bold": "1", "dim": "2", "good": "32"}


def _paint(text: str, style: str) -> str:
    return f"\x1b[{_ANSI[style]}m{text}\x1b[0m"


def _plain(text: str, style: str) -> str:
    return text


def _operands(finding: Finding) -> Iterator[str]:
    rows = [(f"operand {o.index}", o.name, o.layout, o.origin) for o in finding.operands]
    widths = [max(len(printable(row[i])) for row in rows) for i in range(3)] if rows else []
    for label, name, layout, origin in rows:
        cells = [printable(text).ljust(width) for text, width in zip((label, name, layout), widths)]
        yield "  " + "  ".join(cells) + (f"  {printable(origin)}" if origin not in ("", name) else "")


def _fixes(finding: Finding, paint: Paint) -> Iterator[str]:
    for number, fix in enumerate(finding.fixes, 1):
        first, *rest = fix.text.splitlines() or [""]
        cost = price(fix)
        doubt = "" if fix.verified or not cost else "  (not checked)"
        if fix.leaves:
            doubt = f"  (leaves {printable(', '.join(f'{code} {node}' for code, node in fix.leaves))})"
        yield f"  {paint(f'fix {number}', 'good')}  {printable(first)}  {cost}{doubt}".rstrip()
        # What is to be pasted keeps its lines.
        yield from (f"         {printable(line)}".rstrip() for line in rest)


def _block(finding: Finding, paint: Paint) -> Iterator[str]:
    kind = "" if finding.severity is Severity.ERROR else f" ({finding.severity.value})"
    code = paint(f"{finding.code} {finding.name}", finding.severity.value)
    yield f"{code}{kind}  {paint(headline(finding), 'bold')}"
    if finding.location is not None:
        yield paint(f"  at  {printable(str(finding.location))}", "dim")
    yield from (line.rstrip() for line in _operands(finding))
    yield from (f"  {line}" for line in printable_lines(finding.message).splitlines())
    if finding.path:
        yield f"  path   {path_line(finding)}"
    yield from _fixes(finding, paint)
    for line in finding.details:
        yield f"  {printable(line)}"
    if finding.caused_by:
        yield f"  follows from  {printable(finding.caused_by)}"
    if finding.consequences:
        yield f"  counted under it  {_consequences(finding)}"


def finding_text(finding: Finding) -> str:
    """One finding as text, without colours."""
    return "\n".join(_block(finding, _plain))


def _consequences(finding: Finding, shown: int = 4) -> str:
    names = [f"{code} {node}" for code, node in finding.consequences[:shown]]
    rest = Counter(code for code, _node in finding.consequences[shown:])
    names += [f"and {count} more {code}" for code, count in sorted(rest.items())]
    return printable(", ".join(names))


def statistics(report: Report) -> Iterator[str]:
    """Yield the lines that say how the layouts became known and where the time went."""
    stats = report.statistics
    name = printable(report.graph_path or "the graph")
    yield f"statistics of {name}: {stats.nodes} nodes, {stats.values} values"
    shares = (f"{e.value} {getattr(stats, e.value)} ({100 * stats.share(e):.1f} %)" for e in Evidence)
    yield "  layouts  " + ", ".join(shares)
    if stats.seconds:
        yield "  seconds  " + ", ".join(f"{name} {value:.3f}" for name, value in stats.seconds.items())
    grouped: dict[str, list[str]] = {}
    for name, text in report.inferred:
        grouped.setdefault(text, []).append(name)
    for text, names in grouped.items():
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        yield f"  inferred  {printable(text)}: {printable(', '.join(names[:3]))}{more}"
    yield from (f"  {printable(note)}" for note in stats.notes)


def render(
    reports: Sequence[Report],
    *,
    color: bool = False,
    stats: bool = False,
    unchecked: Sequence[Unchecked] = (),
) -> str:
    """Return the reports as text for a terminal or a log; ANSI colours only if ``color``."""
    paint = _paint if color else _plain
    lines: list[str] = []
    for report in reports:
        if len(reports) > 1 and report.findings:
            lines += [paint(printable(report.graph_path), "bold"), ""]
        for finding in report.findings:
            lines += [*_block(finding, paint), ""]
        if stats:
            lines += [*statistics(report), ""]
    findings = [finding for report in reports for finding in report.findings]
    nodes = sum(report.statistics.nodes for report in reports)
    checked = f"{summary(findings)} {nodes} nodes checked." if nodes else summary(findings)
    if unchecked:
        checked += f" {plural(len(unchecked), 'graph')} could not be checked."
    worst = min((list(Severity).index(f.severity) for f in findings), default=None)
    style = "error" if unchecked else "good" if worst is None else list(Severity)[worst].value
    lines.append(paint(checked, style))
    return "\n".join(lines) + "\n"
