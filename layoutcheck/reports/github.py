"""Workflow commands that GitHub Actions turns into annotations on a pull request."""

from __future__ import annotations

from collections.abc import Sequence

from layoutcheck.findings import Finding, Report, Severity, Unchecked
from layoutcheck.reports.places import anchor, relative_path
from layoutcheck.reports.wording import fix_line, headline, printable, printable_lines

_COMMAND = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}


def escape_data(text: str) -> str:
    """Return ``text`` escaped for the message of a workflow command."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def escape_property(text: str) -> str:
    """Return ``text`` escaped for a property (``file``, ``title``) of a workflow command."""
    return escape_data(text).replace(":", "%3A").replace(",", "%2C")


def _message(finding: Finding) -> str:
    lines = [f"{headline(finding)}: {printable_lines(finding.message)}"]
    lines += [printable(f"operand {o.index} {o.layout} {o.origin}").rstrip() for o in finding.operands]
    lines += [f"fix: {fix_line(fix)}" for fix in finding.fixes]
    if finding.consequences:
        lines.append(f"{len(finding.consequences)} further findings follow from it")
    return "\n".join(lines)


def annotation(finding: Finding, report: Report) -> str:
    """Return the workflow command for one finding."""
    file, line = anchor(finding, report)
    title = f"{finding.code} {finding.name}"
    shown = escape_property(printable(relative_path(file) or file))
    place = f"file={shown},line={line},title={escape_property(title)}"
    return f"::{_COMMAND[finding.severity]} {place}::{escape_data(_message(finding))}"


def render(reports: Sequence[Report], unchecked: Sequence[Unchecked] = ()) -> str:
    """Return one workflow command a finding and one a graph that could not be checked, a line each."""
    lines = [annotation(f, report) for report in reports for f in report.findings]
    for one in unchecked:
        file = escape_property(printable(relative_path(one.graph) or one.graph))
        lines.append(f"::error file={file},title=not checked::{escape_data(printable(one.error))}")
    return "".join(f"{line}\n" for line in lines)
