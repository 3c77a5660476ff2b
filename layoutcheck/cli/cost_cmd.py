"""``layoutcheck cost``: the command and its options. What it needs is imported when it runs."""

from __future__ import annotations

from typing import Any

import click


@click.command("cost")
@click.argument("source", metavar="GRAPH|MODEL", required=False)
@click.option("--hardware", metavar="NAME|FILE", help="Hardware: a shipped name or your own .json.")
@click.option("--list-hardware", is_flag=True, help="List the shipped hardware and stop.")
@click.option("--group", "groups", multiple=True, metavar="NAME=SIZE", help="Size of a group.")
@click.option("--tp", type=click.IntRange(1), help="Tensor parallel ranks: short for --group tp=N.")
@click.option("--ep", type=click.IntRange(1), help="Expert parallel ranks.")
@click.option("--dp", type=click.IntRange(1), help="Data parallel groups.")
@click.option(
    "--tokens", type=click.IntRange(1), metavar="N", help="Tokens of the step.  [default: the graph's]"
)
@click.option("--context", type=click.IntRange(0), metavar="N", help="Cached tokens of a sequence.")
@click.option(
    "--contract", metavar="NAME", help="Of a model: what each boundary holds.  [default: tensor-parallel]"
)
@click.option("--decode", is_flag=True, help="Of a model: one token of each sequence, --tokens of them.")
@click.option(
    "--sequences",
    type=click.IntRange(1),
    metavar="N",
    help="Of a model: sequences of a prefill step.  [default: 1]",
)
@click.option(
    "--quant",
    type=click.Choice(["none", "int8", "w8a8", "fp8"]),
    help="Of a model: quantised linears.  [default: none]",
)
@click.option("--mtp", is_flag=True, help="Of a model: with its layers for multi-token prediction.")
@click.option(
    "--distribute", multiple=True, metavar="MODULE", help="Of a model: broadcast this weight, layer by layer."
)
@click.option("--gather", multiple=True, metavar="MODULE", help="Of a model: keep it divided and gather it.")
@click.option("--engine", metavar="NAME|FILE", help="Engine profile: how weights move.")
@click.option(
    "--overlap",
    is_flag=True,
    help="Without a profile: moving weights runs beside the kernels of their layers.",
)
@click.option("--at", multiple=True, metavar="NAME=NUMBER", help="Value of another symbol.")
@click.option(
    "--by", type=click.Choice(["role", "op", "layer", "kernel", "node"]), default="role", show_default=True
)
@click.option(
    "--reference", is_flag=True, help="Beside each line: rooflines with fixed and without any efficiencies."
)
@click.option("--top", type=click.IntRange(0), default=0, help="Only the longest lines.  [default: all]")
@click.option("--figures", metavar="MODEL", help="Of a graph: name this model's figures in its formulas.")
@click.option("--formula", type=click.Choice(["text", "latex"]), help="Also print the formulas.")
@click.option(
    "--table",
    "tables",
    multiple=True,
    metavar="FILE",
    help="Your measurements: CSV or Parquet, or the mapping.",
)
@click.option(
    "--routing",
    type=click.Choice(["balanced", "uniform", "skewed"]),
    default="balanced",
    show_default=True,
    help="How tokens spread over experts.",
)
@click.option(
    "--indexer-queries",
    type=click.Choice(["auto", "local", "full"]),
    default="auto",
    show_default=True,
    help="Tokens of an indexer's query side.",
)
@click.option("--trace", metavar="OUT.json", help="Write a timeline for Perfetto.")
@click.option(
    "--token-axis",
    "token_axes",
    multiple=True,
    metavar="NAME:DIM",
    help="Dimension DIM of an input counts tokens.",
)
@click.option(
    "--layout", "layouts", multiple=True, metavar="NAME=TEXT", help="The layout of a graph's input."
)
@click.option("--assume", "assumptions", multiple=True, metavar="EXPR", help='A fact, such as "T % 4 == 0".')
@click.option("--rules", multiple=True, metavar="DIR", help="A folder with *.rules files of your own.")
@click.option("--kernels", multiple=True, metavar="DIR", help="A folder with *.kernels files of your own.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def cost_command(**options: Any) -> int:
    """Say how long a graph or a model takes on given hardware, on one rank, and how far to trust that.

    GRAPH is an exported graph (.pt2, or layoutcheck-graph/1 in JSON). MODEL is a shipped name (glm-5.1), a config.json,
    or a folder that holds one; its decoder is written as a graph for the contract and the groups.

    Exit code: 0, 2 bad input.
    """
    from layoutcheck.cli.options import existing, group_sizes, pairs, token_axes
    from layoutcheck.cli.run_cost import run

    options["groups"] = group_sizes(None, options["groups"])
    options["token_axes"] = token_axes(options["token_axes"])
    options["layouts"] = pairs(options["layouts"], "--layout", "NAME=TEXT")
    options["at"] = pairs(options["at"], "--at", "NAME=NUMBER")
    for name in ("rules", "kernels"):
        options[name] = [existing(f, f"--{name}", folder=True) for f in options[name]]
    options["tables"] = [existing(f, "--table") for f in options["tables"]]
    return run(options)
