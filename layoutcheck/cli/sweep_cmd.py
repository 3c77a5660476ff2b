"""``layoutcheck sweep``: the command and its options. What it needs is imported when it runs."""

from __future__ import annotations

from typing import Any

import click

_LIST = "LIST"


@click.command("sweep")
@click.argument("model", metavar="MODEL")
@click.option("--hardware", required=True, metavar="NAMES", help="Hardware, separated by commas.")
@click.option("--contract", metavar="NAMES", help="Contracts.  [default: tensor-parallel]")
@click.option("--tp", default="1", show_default=True, metavar=_LIST, help="Tensor parallel ranks.")
@click.option("--dp", default="1", show_default=True, metavar=_LIST, help="Data parallel groups.")
@click.option("--ep", metavar=_LIST, help="Expert parallel ranks.  [default: all ranks]")
@click.option("--tokens", default="4096", show_default=True, metavar=_LIST, help="Tokens of a step.")
@click.option("--context", default="0", show_default=True, metavar=_LIST, help="Cached tokens of a sequence.")
@click.option("--decode", is_flag=True, help="One token of each sequence.")
@click.option("--sequences", type=click.IntRange(1), default=1, show_default=True, help="Of a prefill step.")
@click.option(
    "--quant",
    type=click.Choice(["none", "int8", "w8a8", "fp8"]),
    default="none",
    show_default=True,
    help="Quantised linears.",
)
@click.option("--mtp", is_flag=True, help="With the layers for multi-token prediction.")
@click.option(
    "--routing", type=click.Choice(["balanced", "uniform", "skewed"]), default="balanced", show_default=True
)
@click.option("--best", is_flag=True, help="Only points that no other beats in time and ranks.")
@click.option("--csv", metavar="OUT.csv", help="Write all points, with the times by role.")
@click.option("--plot", metavar="OUT.png", help="Draw them (.png, .svg, .pdf; needs matplotlib).")
@click.option(
    "--kind",
    type=click.Choice(["time", "breakdown", "pareto"]),
    default="time",
    show_default=True,
    help="What is drawn.",
)
def sweep_command(**options: Any) -> int:
    """Time a model over tokens, contexts, groups, contracts and hardware.

    MODEL is a shipped name, a config.json, or a folder that holds one. A LIST is 1,2,4, or FROM:TO:STEP, or FROM:TO:xFACTOR.

    Exit code: 0, 2 bad input.
    """
    from layoutcheck.cli.run_sweep import run

    return run(options)
