"""``layoutcheck diff``: the command and its options. What it needs is imported when it runs."""

from __future__ import annotations

import json
from typing import Any

import click

from layoutcheck.cli.options import program_options

FORMAT = "layoutcheck-diff/1"


@click.command("diff")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@program_options
@click.option(
    "--repeats", metavar="N,N,...", help="Compare with so many repeats of each region, not its own."
)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def diff_command(a: str, b: str, repeats: str | None, form: str, **program: Any) -> int:
    """Say whether two graphs are the same program.

    Compares calls, wiring, layouts, shapes, collectives and their bytes, after expansion and up to fusion
    classes, and prints the first divergence.

    Exit code: 0 the same, 1 they differ, 2 bad input.
    """
    from layoutcheck.cli.check import engine_options
    from layoutcheck.cli.expand import repeat_numbers
    from layoutcheck.equivalence import diff
    from layoutcheck.reports.wording import printable

    found = diff(a, b, repeats=repeat_numbers(repeats), **engine_options(program))
    if form == "json":
        click.echo(json.dumps(as_data(found, a, b), indent=1))
    else:
        click.echo("\n".join(printable(line) for line in str(found).splitlines()))
    return 0 if found else 1


def as_data(found: Any, a: str, b: str) -> dict[str, Any]:
    """A comparison as plain data."""

    def side(shown: Any) -> dict[str, Any]:
        return {"node": shown.node, "place": shown.place, "call": shown.call, "layout": shown.layout}

    def sent(traffic: Any) -> dict[str, Any] | None:
        return None if traffic is None else {"count": traffic.count, "bytes": str(traffic.bytes)}

    first = found.divergence
    return {
        "format": FORMAT,
        "a": a,
        "b": b,
        "equivalent": found.equal,
        "matched": found.matched,
        "calls": list(found.calls),
        "divergence": None
        if first is None
        else {
            "kind": first.kind,
            "text": first.text,
            "a": side(first.a),
            "b": side(first.b),
            "reads": list(first.reads),
        },
        "collectives": [
            {"op": op, "group": group, "a": sent(x), "b": sent(y)}
            for (op, group), (x, y) in sorted(found.traffic.items())
        ],
    }
