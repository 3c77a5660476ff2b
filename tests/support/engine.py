"""How tests call the checker and read its report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from layoutcheck.check import check as run_check
from layoutcheck.json_form import graph_from_json


def load(graph: Any) -> Any:
    """A plain dict of the JSON form as the package's Graph; a Graph as it is."""
    if not isinstance(graph, dict):
        return graph
    return graph_from_json(graph)


def check(graph: Any, **options: Any) -> Any:
    """The report on a graph, given as a dict or a Graph."""
    return run_check(load(graph), **options)


def text(value: Any) -> str:
    """An enum member or a string as plain text."""
    return str(getattr(value, "value", value))


def code(finding: Any) -> str:
    return text(finding.code)


def severity(finding: Any) -> str:
    return text(finding.severity).lower()


def errors(report: Any) -> list[Any]:
    """Findings of severity error."""
    return [f for f in report.findings if severity(f) == "error"]


def error_roots(report: Any) -> list[Any]:
    """Errors that no other finding explains."""
    return [f for f in errors(report) if f.caused_by is None]


def describe(report: Any) -> str:
    """The findings in one line each, for a failing test's message."""
    return "\n".join(
        f"{code(f)} {f.node} {severity(f)} caused_by={f.caused_by} {f.message}" for f in report.findings
    )


def refs(node: dict[str, Any]) -> Iterator[str]:
    """Names of the nodes that a JSON node reads."""

    def walk(arg: Any) -> Iterator[str]:
        if isinstance(arg, dict):
            if set(arg) == {"node"}:
                yield arg["node"]
            else:
                for item in arg.values():
                    yield from walk(item)
        elif isinstance(arg, list):
            for item in arg:
                yield from walk(item)

    yield from walk(node["args"])
    yield from walk(node.get("kwargs", {}))
