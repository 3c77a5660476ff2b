"""``layoutcheck show``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any

import click

from layoutcheck.cli.check import check_program, engine_options, warn_unused
from layoutcheck.cli.options import wants_color
from layoutcheck.findings import Report
from layoutcheck.reports.wording import printable

FORMAT = "layoutcheck-typed/1"


def typed_nodes(graph: Any, report: Report) -> Iterator[dict[str, Any]]:
    """Yield each node as plain data: its name, op, target, module, location, and layout."""
    for node in graph.nodes:
        yield {
            "name": node.name,
            "op": node.op,
            "target": node.target,
            "module": node.module,
            "location": None if node.location is None else str(node.location),
            "layout": report.layout_text(node.name),
        }


def typed_blocks(graph: Any, report: Report) -> Iterator[tuple[str, list[str]]]:
    """Yield the graph in execution order as blocks of nodes of one module: its path and a line a node."""
    for module, nodes in groupby(typed_nodes(graph, report), key=itemgetter("module")):
        rows = []
        for node in nodes:
            called = node["target"] if node["op"] == "call_function" else node["op"]
            rows.append((printable(node["name"]), printable(called), printable(node["layout"] or "")))
        widths = [max(len(row[i]) for row in rows) for i in range(2)]
        lines = (
            f"  {name:{widths[0]}}  {called:{widths[1]}}  {text}".rstrip() for name, called, text in rows
        )
        yield printable(module or "(no module)"), list(lines)


def run(graph: str, form: str, color: str, roles: bool = False, **program: Any) -> int:
    """Type the graph and print it; findings are left to ``check``, so the exit code is 0."""
    if roles:
        from layoutcheck.cli.roles import run as show_roles

        return show_roles(graph, form, color, **program)
    options = engine_options(program)
    report, loaded = check_program(graph, [], options)
    warn_unused(options["plan"], [report.unused])
    if form == "json":
        nodes = list(typed_nodes(loaded, report))
        click.echo(json.dumps({"format": FORMAT, "graph": graph, "nodes": nodes}, indent=1))
        return 0
    colored = wants_color(color, sys.stdout.isatty())
    for module, lines in typed_blocks(loaded, report):
        click.echo(click.style(module, bold=True) if colored else module, color=colored)
        click.echo("\n".join(lines), color=colored)
    return 0
