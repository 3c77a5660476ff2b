"""``layoutcheck show``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import click

from layoutcheck.cli.check import check_program, engine_options
from layoutcheck.cli.options import wants_color
from layoutcheck.findings import Report

FORMAT = "layoutcheck-typed/1"


def _layout(report: Report, name: str) -> Any:
    """Return the text of a value's layout, a list of texts for several outputs, None for no tensor."""
    try:
        layout = report.layout_of(name)
    except KeyError:
        return None
    if layout is None or isinstance(layout, str):
        return layout
    if isinstance(layout, (tuple, list)):
        return [None if part is None else str(part) for part in layout]
    return str(layout)


def typed_nodes(graph: Any, report: Report) -> Iterator[dict[str, Any]]:
    """Yield each node as plain data: its name, op, target, module, location, and layout."""
    for node in graph.nodes:
        yield {
            "name": node.name,
            "op": node.op,
            "target": node.target,
            "module": node.module,
            "location": None if node.location is None else str(node.location),
            "layout": _layout(report, node.name),
        }


def run(graph: str, form: str, color: str, **program: Any) -> int:
    """Type the graph and print it; findings are left to ``check``, so the exit code is 0."""
    report, loaded = check_program(graph, [], engine_options(program))
    if form == "json":
        nodes = list(typed_nodes(loaded, report))
        click.echo(json.dumps({"format": FORMAT, "graph": graph, "nodes": nodes}, indent=1))
        return 0
    from layoutcheck.show import typed_lines

    colored = wants_color(color, sys.stdout.isatty())
    for line in typed_lines(loaded, report):
        # A line that is not indented names the module that the lines below it belong to.
        heading = colored and not line.startswith(" ")
        click.echo(click.style(line, bold=True) if heading else line, color=colored)
    return 0
