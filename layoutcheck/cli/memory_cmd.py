"""``layoutcheck memory``: the command and its options. What it needs is imported when it runs."""

from __future__ import annotations

from typing import Any

import click
from click.core import ParameterSource


@click.command("memory")
@click.argument("model", metavar="MODEL")
@click.option(
    "--config", metavar="FILE", help="The config.json of a checkpoint that is not in a folder with it."
)
@click.option("--tp", type=int, default=1, show_default=True, help="Tensor parallel ranks.")
@click.option("--dp", type=int, default=1, show_default=True, help="Data parallel groups.")
@click.option("--ep", type=int, default=1, show_default=True, help="Expert parallel ranks.")
@click.option(
    "--etp", type=int, default=0, help="Ranks that cut each expert.  [default: 1 with --ep, else all]"
)
@click.option("--rank", type=int, default=0, show_default=True, help="The rank of the ledger.")
@click.option(
    "--engine", default="vllm-ascend", show_default=True, metavar="NAME|FILE", help="Engine profile."
)
@click.option(
    "--mode", "modes", multiple=True, metavar="NAME", help="Switch on a mode of the profile (dsa-cp)."
)
@click.option(
    "--quant",
    metavar="NAME|FILE",
    help="A scheme (W8A8, AWQ:bits=4,group=64), or a quant_model_description.json.",
)
@click.option(
    "--scheme",
    "overrides",
    multiple=True,
    metavar="PATTERN=NAME",
    help="With a --quant NAME: other scheme for modules (*.experts.*=W8A8_DYNAMIC, *.kv_b_proj=FLOAT).",
)
@click.option("--mtp/--no-mtp", default=None, help="Count the layers for multi-token prediction.")
@click.option("--embedding", type=click.Choice(["replicated", "vocab"]), help="Whole, or divided.")
@click.option(
    "--distribute", multiple=True, metavar="MODULE", help="Spread a module's layers over the ranks."
)
@click.option("--gather", multiple=True, metavar="MODULE", help="Keep a module divided and gather it.")
@click.option("--whole", multiple=True, metavar="PATTERN", help="More modules that are whole on every rank.")
@click.option("--divided", multiple=True, metavar="PATTERN", help="Modules that are divided after all.")
@click.option("--companions", type=click.Choice(["full", "scalars", "none"]), help="Scales and offsets.")
@click.option("--no-derived", is_flag=True, help="Leave out weights that are made after load.")
@click.option("--max-tokens", type=int, default=8192, show_default=True, help="Tokens of a step.")
@click.option("--context", type=int, default=0, help="Tokens of a cached sequence.")
@click.option("--sequences", type=int, default=1, show_default=True, help="Cached sequences a rank.")
@click.option("--block", type=int, help="Tokens of a cache block.  [default: the profile's]")
@click.option("--cache-dtype", metavar="DTYPE", help="Of keys and values.  [default: the model's]")
@click.option("--index-dtype", metavar="DTYPE", help="Of indexer keys.  [default: the model's]")
@click.option("--cache-ranks", type=int, default=1, help="Ranks that share the tokens of a sequence.")
@click.option("--device", metavar="NAME|FILE", help="Hardware profile: its memory and its links' bandwidth.")
@click.option("--memory", metavar="SIZE", help="A device's memory (64GiB): judge whether it fits.")
@click.option("--utilisation", type=float, default=1.0, show_default=True, help="Usable share of --memory.")
@click.option("--reserve", metavar="SIZE", default="0", help="What else lies there (runtime, buffers).")
@click.option("--bandwidth", type=float, metavar="GB/S", help="Of the links: options carry their time.")
@click.option("--explain-total", metavar="SIZE", help="List the deployments that give a logged number.")
@click.option("--within", type=float, metavar="PERCENT", help="Tolerance.  [default: half the last digit]")
@click.option("--world", type=int, help="With --explain-total: the number of ranks.")
@click.option(
    "--given", multiple=True, metavar="NAME", help="With --explain-total: tp, ep, engine are known."
)
@click.option("--graph", metavar="GRAPH", help="A graph of one step: its activations join the ledger.")
@click.option("--at", multiple=True, metavar="T=NUMBER", help="Token counts of a graph.  [default: its own]")
@click.option("--group", "groups", multiple=True, metavar="NAME=SIZE", help="Size of a graph's group.")
@click.option(
    "--tokens", multiple=True, metavar="NAME:DIM", help="Dimension DIM of input NAME counts tokens."
)
@click.option(
    "--layout", "layouts", multiple=True, metavar="NAME=TEXT", help="The layout of a graph's input."
)
@click.option("--assume", "assumptions", multiple=True, metavar="EXPR", help='A fact, such as "T % 4 == 0".')
@click.option("--rules", multiple=True, metavar="DIR", help="A folder with *.rules files of your own.")
@click.option(
    "--picture", metavar="FILE", help="Draw the ledger as a bar (.png, .svg, .pdf; needs matplotlib)."
)
@click.option("--ranks", is_flag=True, help="One line a group of ranks that hold the same.")
@click.option("--all", "all_lines", is_flag=True, help="Every line, with its formula.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "bars"]),
    default="text",
    show_default=True,
)
def memory_command(**options: Any) -> int:
    """Say what lies on a rank, why, and whether it fits.

    MODEL is a shipped name (glm-5.1), a config.json, a folder with a checkpoint, a safetensors index, a
    safetensors file (only headers are read), or an exported graph (.pt2, or layoutcheck-graph/1 in JSON).

    Exit code: 0, 1 if --device or --memory is given and it does not fit, 2 bad input.
    """
    from layoutcheck.cli.run_memory import run

    context = click.get_current_context()
    given = {
        str(param.name): param.opts[0]
        for param in context.command.params
        if context.get_parameter_source(str(param.name)) is ParameterSource.COMMANDLINE
    }
    return run(options, given)
