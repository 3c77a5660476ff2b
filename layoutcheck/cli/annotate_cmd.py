"""``layoutcheck annotate``: the command and its options. What it needs is imported when it runs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import click

from layoutcheck.cli.options import program_options
from layoutcheck.errors import InputError

FORMAT = "layoutcheck-annotation/1"
MAX_SHOWN = 12


def size_values(texts: Iterable[str]) -> dict[str, int]:
    """``T=4096`` texts as numbers by name. Raises InputError for other texts."""
    from layoutcheck.cli.options import pairs

    out = {}
    for name, text in pairs(texts, "--at", "NAME=NUMBER").items():
        if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= 10**9):
            raise InputError(f"the size of {name} is a number from 1, not {text!r}", "--at")
        out[name] = int(text)
    return out


@click.command("annotate")
@click.argument("graph", metavar="GRAPH")
@program_options
@click.option(
    "--contract", required=True, metavar="NAME|FILE", help="What each boundary of the decoder holds."
)
@click.option(
    "--output", "-o", metavar="OUT", help="A .json or .json.gz file to write the annotated graph to."
)
@click.option(
    "--hardware", metavar="NAME|FILE", help="Prices of a hardware; without it, bytes over default bandwidths."
)
@click.option(
    "--at", "sizes", multiple=True, metavar="NAME=N", help="A symbolic size at which prices are compared."
)
@click.option(
    "--explain-placement",
    "nodes",
    multiple=True,
    metavar="NODE",
    help="Why a conversion stands there; the alternatives.",
)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def annotate_command(
    graph: str,
    contract: str,
    output: str | None,
    hardware: str | None,
    sizes: tuple[str, ...],
    nodes: tuple[str, ...],
    form: str,
    **program: Any,
) -> int:
    """Insert the conversions that a contract demands, at the lowest price.

    GRAPH may be of one device (then name the group, --tp 4), of a rank without conversions, or with other ones: these are
    taken out first. Prints what was inserted and why; -o writes the graph with all layouts.

    Exit code: 0 if the result holds the contract, 1 with findings if not, 2 bad input or no placement.
    """
    from layoutcheck.cli.check import engine_options
    from layoutcheck.cli.expand import write_graph
    from layoutcheck.cost.prices import prices_of
    from layoutcheck.placement.annotated import annotate

    options = engine_options(program)
    if output is not None and not output.endswith((".json", ".json.gz")):
        raise InputError(f"the name has to end in .json or .json.gz, not {output!r}", where="--output")
    found = annotate(graph, contract, sizes=size_values(sizes), prices=prices_of(hardware), **options)
    told = [found.explain(node) for node in nodes]
    report = found.check()
    if output is not None:
        write_graph(found.graph, output)
    if form == "json":
        codes = [{"code": f.code, "node": f.node, "message": f.message} for f in report.findings]
        click.echo(json.dumps({**document(graph, found, told), "findings": codes}, indent=1))
    else:
        for line in told or summary(found):
            click.echo(line)
        if not told:
            click.echo(
                "  checked against the contract: "
                + (f"{len(report.findings)} findings" if report.findings else "no findings")
            )
        for finding in report.findings:
            click.echo(f"{finding.code} {finding.node}: {finding.message}", err=True)
    return 1 if report.errors else 0


def document(graph: str, found: Any, told: list[str]) -> dict[str, Any]:
    """The annotation as plain data."""
    return {
        "format": FORMAT,
        "graph": graph,
        "contract": found.contract,
        "group": found.group,
        "prices": found.prices,
        "price_seconds": found.price * 1e-15,
        "bound_seconds": found.bound * 1e-15,
        "method": found.method,
        "counts": found.counts(),
        "insertions": [
            {
                "kind": i.kind,
                "nodes": list(i.nodes),
                "source": i.source,
                "readers": list(i.readers),
                "times": i.times,
                "reason": i.reason,
                "layout": found.layouts.get(i.nodes[-1]),
            }
            for i in found.insertions
        ],
        "shards": {
            name: {
                "axis": s.axis,
                "ways": s.ways,
                "pieces": list(s.pieces),
                "copies": s.copies,
                "padding": s.padding,
            }
            for name, s in found.shards.items()
        },
        "notes": list(found.notes),
        "certificate": found.certificate(),
        "explanations": told,
    }


def summary(found: Any) -> list[str]:
    """The annotation as lines for people: counts, the conversions grouped by reason, how it was found."""
    counts = found.counts()
    shown = ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items())) or "none"
    lines = [f"{found.contract} over {found.group}: {shown}"]
    groups: dict[tuple[str, str], list[Any]] = {}
    for i in found.insertions:
        groups.setdefault((i.kind, i.reason), []).append(i)
    for (kind, reason), mine in groups.items():
        times = sum(i.times for i in mine)
        lines.append(f"  {times:4} x {kind:14}  {reason}")
        for i in mine[:MAX_SHOWN]:
            layout = found.layouts.get(i.nodes[-1], "")
            lines.append(
                f"           {i.source} -> {i.nodes[-1]}  {layout}"
                + (f"  x {i.times}" if i.times > 1 else "")
            )
        if len(mine) > MAX_SHOWN:
            lines.append(f"           .. and {len(mine) - MAX_SHOWN} more")
    if found.shards:
        lines.append(f"  {len(found.shards)} weights are cut over {found.group}")
    lines.extend(f"  note: {note}" for note in found.notes)
    exact = (
        "nothing is cheaper"
        if found.bound == found.price
        else f"nothing is cheaper than {found.bound * 1e-12:.6g} ms"
    )
    lines.append(f"  {found.price * 1e-12:.6g} ms at prices `{found.prices}` ({found.method}, {exact})")
    return lines
