"""SARIF 2.1.0, in the form that GitHub code scanning takes.

GitHub wants every result to have a physical location, rules listed in the driver, and a fingerprint that
stays the same while lines move; see "SARIF support for code scanning" in its documentation.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from layoutcheck._version import __version__
from layoutcheck.codes import CODES, Severity
from layoutcheck.explain.pages import explain, section
from layoutcheck.findings import Finding, Report, Unchecked
from layoutcheck.reports.places import anchor, relative_path, uri
from layoutcheck.reports.wording import fix_line, headline, path_line, printable, printable_lines

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVEL = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "note"}


def _rule(code: str) -> dict[str, Any]:
    info, page = CODES[code], explain(code)
    return {
        "id": code,
        "name": "".join(word.capitalize() for word in info.name.split("-")),
        "shortDescription": {"text": f"{info.name}: {info.summary}"},
        "fullDescription": {"text": section(page, "The rule")},
        "help": {"text": section(page, "How to fix"), "markdown": page},
        "defaultConfiguration": {"level": _LEVEL[info.severity]},
        "properties": {
            "tags": ["token-layout"],
            "problem.severity": info.severity.value.replace("note", "recommendation"),
        },
    }


def _message(finding: Finding) -> str:
    lines = [f"{finding.name} at {headline(finding)}: {printable_lines(finding.message)}"]
    lines += [
        printable(f"operand {o.index} {o.name}: {o.layout} {o.origin}".rstrip()) for o in finding.operands
    ]
    if finding.path:
        lines.append(f"path: {path_line(finding)}")
    lines += [f"fix {i}: {fix_line(fix)}" for i, fix in enumerate(finding.fixes, 1)]
    lines += [printable(line) for line in finding.details]
    if finding.consequences:
        lines.append(f"{len(finding.consequences)} further findings follow from it")
    return "\n".join(lines)


def _artifact(file: str) -> dict[str, Any]:
    location: dict[str, Any] = {"uri": uri(file)}
    if relative_path(file) is not None:
        location["uriBaseId"] = "%SRCROOT%"
    return location


def _logical(finding: Finding) -> list[dict[str, Any]]:
    full = f"{finding.module}.{finding.node}" if finding.module else finding.node
    places = [{"name": printable(finding.node), "fullyQualifiedName": printable(full), "kind": "member"}]
    if finding.module:
        places.append({"fullyQualifiedName": printable(finding.module), "kind": "module"})
    return places


def _result(finding: Finding, report: Report, seen: Counter[str], index: dict[str, int]) -> dict[str, Any]:
    file, line = anchor(finding, report)
    identity = "\0".join((finding.code, finding.module, finding.node, relative_path(file) or file))
    digest = hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    seen[digest] += 1
    location = {
        "physicalLocation": {"artifactLocation": _artifact(file), "region": {"startLine": line}},
        "logicalLocations": _logical(finding),
    }
    return {
        "ruleId": finding.code,
        "ruleIndex": index[finding.code],
        "level": _LEVEL[finding.severity],
        "message": {"text": _message(finding)},
        "locations": [location],
        "partialFingerprints": {"primaryLocationLineHash": f"{digest}:{seen[digest]}"},
        "properties": {"graph": report.graph_path, "finding": finding.to_dict()},
    }


def _invocation(unchecked: Sequence[Unchecked]) -> dict[str, Any]:
    """How the run went: a graph that could not be checked is a notification of level error, as SARIF has it (3.20.21)."""
    notes = [
        {
            "level": "error",
            "message": {"text": printable(one.error)},
            "locations": [{"physicalLocation": {"artifactLocation": _artifact(one.graph)}}],
        }
        for one in unchecked
    ]
    return {
        "executionSuccessful": not notes,
        **({"toolExecutionNotifications": notes} if notes else {}),
    }


def to_dict(reports: Sequence[Report], unchecked: Sequence[Unchecked] = ()) -> dict[str, Any]:
    """Return the reports as one SARIF log with one run."""
    used = sorted({finding.code for report in reports for finding in report.findings})
    index = {code: i for i, code in enumerate(used)}
    seen: Counter[str] = Counter()
    driver = {
        "name": "layoutcheck",
        "semanticVersion": __version__,
        "rules": [_rule(code) for code in used],
    }
    results = [_result(finding, report, seen, index) for report in reports for finding in report.findings]
    run = {
        "tool": {"driver": driver},
        "automationDetails": {"id": "layoutcheck/"},
        "columnKind": "unicodeCodePoints",
        "invocations": [_invocation(unchecked)],
        "results": results,
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def render(reports: Sequence[Report], unchecked: Sequence[Unchecked] = ()) -> str:
    """Return the reports as SARIF text."""
    return json.dumps(to_dict(reports, unchecked), indent=2, ensure_ascii=True) + "\n"
