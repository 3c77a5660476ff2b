"""Renderings of reports: text, JSON, SARIF and GitHub annotations, each a function of reports to text."""

from __future__ import annotations

from collections.abc import Sequence

from layoutcheck.findings import Report, Unchecked
from layoutcheck.reports import github, json, sarif, text

FORMATS = ("text", "json", "sarif", "github")


def render(
    reports: Sequence[Report],
    form: str,
    *,
    color: bool = False,
    stats: bool = False,
    unchecked: Sequence[Unchecked] = (),
) -> str:
    """Return the reports in one of :data:`FORMATS`, ending in a newline unless there is nothing to say.

    ``color`` and ``stats`` matter to the text alone: the JSON form always has the statistics. ``unchecked`` are the graphs
    without a report: every form says that they are missing.

    Raises:
        ValueError: there is no such format.
    """
    if form == "text":
        return text.render(reports, color=color, stats=stats, unchecked=unchecked)
    if form == "json":
        return json.render(reports, unchecked)
    if form == "sarif":
        return sarif.render(reports, unchecked)
    if form == "github":
        return github.render(reports, unchecked)
    raise ValueError(f"unknown report format {form!r}")
