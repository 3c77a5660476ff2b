"""Renderings of reports: text, JSON, SARIF and GitHub annotations, each a function of reports to text."""

from __future__ import annotations

from collections.abc import Sequence

from layoutcheck.findings import Report
from layoutcheck.reports import github, json, sarif, text

FORMATS = ("text", "json", "sarif", "github")


def render(reports: Sequence[Report], form: str, *, color: bool = False, stats: bool = False) -> str:
    """Return the reports in one of :data:`FORMATS`, ending in a newline unless there is nothing to say.

    ``color`` and ``stats`` matter to the text alone: the JSON form always has the statistics.

    Raises:
        ValueError: there is no such format.
    """
    if form == "text":
        return text.render(reports, color=color, stats=stats)
    if form == "json":
        return json.render(reports)
    if form == "sarif":
        return sarif.render(reports)
    if form == "github":
        return github.render(reports)
    raise ValueError(f"unknown report format {form!r}")
