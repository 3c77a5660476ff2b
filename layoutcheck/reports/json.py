"""The rendering for programs. Its keys are fixed within one version of ``format``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from layoutcheck._version import __version__
from layoutcheck.findings import Report, Unchecked

FORMAT = "layoutcheck-report/1"


def to_dict(reports: Sequence[Report], unchecked: Sequence[Unchecked] = ()) -> dict[str, Any]:
    """Return the reports as plain data, as ``report-1.schema.json`` beside this file describes it.

    Only a document that lacks graphs has the key ``unchecked``: it names them, each with the reason.
    """
    findings = [finding for report in reports for finding in report.findings]
    missing = {"unchecked": [one.to_dict() for one in unchecked]} if unchecked else {}
    return {
        "format": FORMAT,
        "version": __version__,
        "graphs": [
            {
                "graph": report.graph_path,
                "findings": [finding.to_dict() for finding in report.findings],
                "inferred": [{"name": name, "layout": layout} for name, layout in report.inferred],
                "statistics": report.statistics.to_dict(),
            }
            for report in reports
        ],
        **missing,
        "summary": {
            "errors": sum(len(report.errors) for report in reports),
            "warnings": sum(len(report.warnings) for report in reports),
            "notes": sum(len(report.notes) for report in reports),
            "consequences": sum(len(finding.consequences) for finding in findings),
        },
    }


def render(reports: Sequence[Report], unchecked: Sequence[Unchecked] = ()) -> str:
    """Return the reports as JSON text."""
    return json.dumps(to_dict(reports, unchecked), indent=2, ensure_ascii=True) + "\n"
