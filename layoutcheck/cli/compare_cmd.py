"""``layoutcheck compare``: the command and its options. What it needs is imported when it runs."""

from __future__ import annotations

import json
from typing import Any

import click

from layoutcheck.cli.annotate_cmd import size_values
from layoutcheck.cli.options import program_options
from layoutcheck.errors import InputError

FORMAT = "layoutcheck-comparison/1"
MIB = 1 << 20


@click.command("compare")
@click.argument("graph", metavar="GRAPH")
@program_options
@click.option("--contracts", required=True, metavar="A,B,...", help="Names or files of contracts.")
@click.option("--at", "sizes", multiple=True, metavar="NAME=N", help="The value of a symbolic size.")
@click.option(
    "--hardware", metavar="NAME|FILE", help="Prices of a hardware; without it, bytes over default bandwidths."
)
@click.option("--formulas", is_flag=True, help="Also print the formulas.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def compare_command(
    graph: str,
    contracts: str,
    sizes: tuple[str, ...],
    hardware: str | None,
    formulas: bool,
    form: str,
    **program: Any,
) -> int:
    """Annotate a graph under several contracts and print, for a layer and in total, what each sends, computes and holds.

    A contract that does not apply, or that the graph can't hold, has the reason in place of figures.

    Exit code: 0 if at least one contract has figures, 2 for bad input or where none has.
    """
    from layoutcheck.cli.check import engine_options
    from layoutcheck.cost.prices import prices_of
    from layoutcheck.placement.compare import Refused, compare

    names = [name.strip() for name in contracts.split(",")]
    if not all(names):
        raise InputError(
            f"expected names of contracts, such as sequence-parallel,tensor-parallel, got {contracts!r}",
            "--contracts",
        )
    found = compare(
        graph, names, at=size_values(sizes), prices=prices_of(hardware), **engine_options(program)
    )
    if form == "json":
        click.echo(
            json.dumps(
                {
                    "format": FORMAT,
                    "graph": graph,
                    "contracts": [_document(c) for c in found if not isinstance(c, Refused)],
                    "refused": [
                        {"contract": c.contract, "reason": c.reason} for c in found if isinstance(c, Refused)
                    ],
                },
                indent=1,
            )
        )
        return 0
    for line in _table(found):
        click.echo(line)
    if formulas:
        for line in _formulas([c for c in found if not isinstance(c, Refused)]):
            click.echo(line)
    return 0


def _document(c: Any) -> dict[str, Any]:
    from layoutcheck.placement.compare import formula

    return {
        "contract": c.contract,
        "values": dict(c.values),
        "live_bytes": c.live,
        "live_formula": c.live_formula,
        "prices": c.annotated.prices,
        "parts": [
            {
                "name": p.name,
                "count": p.count,
                "collectives": dict(p.collectives),
                **p.at(c.values),
                "formulas": {
                    "received": formula(p.received),
                    "flops": formula(p.flops),
                    "attention": formula(p.attention),
                },
            }
            for p in c.parts
        ],
    }


def _name(p: Any) -> str:
    if p.name in ("total", "outside"):
        return "outside of layers" if p.name == "outside" else p.name
    return f"a layer of {p.name}" if p.count > 1 else f"layer {p.name}"


def _table(found: list[Any]) -> list[str]:
    from layoutcheck.placement.compare import Refused

    values = {k: v for c in found if not isinstance(c, Refused) for k, v in c.values.items()}
    lines = [", ".join(f"{k} = {v}" for k, v in sorted(values.items())) + "; one rank", ""]
    head = f"{'':28}{'received MiB':>14}{'GFLOP':>12}{'attention':>12}  collectives"
    for c in found:
        if isinstance(c, Refused):
            lines += [f"{c.contract}: no figures: {c.reason}", ""]
            continue
        lines.append(f"{c.contract}, at most {c.live / MIB:.1f} MiB of activations")
        lines.append(head)
        for p in c.parts:
            at = p.at(c.values)
            shown = ", ".join(f"{n} {kind}" for kind, n in sorted(p.collectives.items())) or "-"
            lines.append(
                f"  {_name(p):26}{at['received'] / MIB:14.2f}{at['flops'] / 1e9:12.1f}{at['attention'] / 1e9:12.1f}  {shown}"
            )
        lines.append("")
    return lines


def _formulas(found: list[Any]) -> list[str]:
    from layoutcheck.placement.compare import formula

    lines = []
    for c in found:
        lines.append(f"{c.contract}")
        for p in c.parts:
            lines.append(f"  {_name(p)}")
            lines.append(f"    received   {formula(p.received)}")
            lines.append(f"    flops      {formula(p.flops)}")
            lines.append(f"    attention  {formula(p.attention)}")
        lines.append(f"  live bytes   {c.live_formula}")
    return lines
