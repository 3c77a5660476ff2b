"""The commands' names and options. What a command needs is imported when it runs."""

from __future__ import annotations

from typing import Any

import click

from layoutcheck._version import __version__
from layoutcheck.cli.annotate_cmd import annotate_command
from layoutcheck.cli.compare_cmd import compare_command
from layoutcheck.cli.cost_cmd import cost_command
from layoutcheck.cli.diff import diff_command
from layoutcheck.cli.expand import expand_command
from layoutcheck.cli.fold import fold_command
from layoutcheck.cli.memory_cmd import memory_command
from layoutcheck.cli.options import program_options
from layoutcheck.cli.sweep_cmd import sweep_command
from layoutcheck.cli.verify import replay_command, verify_command

GRAPHS = click.argument("graphs", nargs=-1, required=True, metavar="GRAPH...")
GRAPH = click.argument("graph", metavar="GRAPH")
COLOR = click.option(
    "--color", type=click.Choice(["auto", "always", "never"]), default="auto", show_default=True
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="layoutcheck", message="%(prog)s %(version)s")
def app() -> None:
    """Check the token layout of exported LLM decoder graphs."""


@app.command()
@GRAPHS
@program_options
@click.option("--together", is_flag=True, help="The graphs are exports of one program from several ranks.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "sarif", "github"]),
    default="text",
    show_default=True,
)
@click.option("--output", "-o", metavar="FILE", help="Write the report to a file instead of stdout.")
@click.option("--contract", metavar="NAME|FILE", help="Also check what each boundary of the decoder holds.")
@click.option(
    "--counter-examples",
    is_flag=True,
    help="Run the graphs on ranks: on which inputs does each LC1 and LC2 show? (needs torch)",
)
@click.option("--select", multiple=True, metavar="CODES", help="Only these codes, or prefixes such as LC1.")
@click.option("--ignore", multiple=True, metavar="CODES", help="All but these codes or prefixes.")
@click.option("--strict", is_flag=True, help="Exit with 1 on warnings too.")
@click.option("--stats", is_flag=True, help="Say how the layouts became known and where the time went.")
@COLOR
def check(**options: Any) -> int:
    """Type every tensor of the graphs and report what is wrong.

    A GRAPH is a torch.export archive (.pt2) or a layoutcheck-graph/1 file (.json, .json.gz).

    Exit code: 0 clean, 1 findings of severity error, 2 bad input.
    """
    from layoutcheck.cli.check import run

    return run(**options)


@app.command()
@GRAPH
@program_options
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option(
    "--roles", is_flag=True, help="The decoder's structure: layers, blocks and the role of each node."
)
@COLOR
def show(**options: Any) -> int:
    """Print the typed graph, a line a node, grouped by module."""
    from layoutcheck.cli.show import run

    return run(**options)


@app.command()
@click.argument("codes", nargs=-1, metavar="[CODE]...")
def explain(codes: tuple[str, ...]) -> int:
    """Explain finding codes (LC203) or names (mixed-tokens); without one, list them all."""
    from layoutcheck.cli.pages import explain_codes

    return explain_codes(codes)


@app.group()
def rules() -> None:
    """Look at the rules: what layoutcheck knows about ops."""


@rules.command("list")
@click.argument("prefix", default="")
@click.option("--rules", "folders", multiple=True, metavar="DIR", help="A folder of your own to include.")
def rules_list(prefix: str, folders: tuple[str, ...]) -> int:
    """List the ops that have a rule; PREFIX keeps those whose name begins so (aten.s)."""
    from layoutcheck.cli.pages import list_rules

    return list_rules(prefix, folders)


@rules.command("show")
@click.argument("op")
@click.option("--rules", "folders", multiple=True, metavar="DIR", help="A folder of your own to include.")
def rules_show(op: str, folders: tuple[str, ...]) -> int:
    """Print the rule of an op, such as aten.mm or torch.ops.aten.mm.default."""
    from layoutcheck.cli.pages import show_rule

    return show_rule(op, folders)


@app.command()
@GRAPH
@click.option("--output", "-o", required=True, metavar="OUT", help="A .json or .json.gz file to write.")
def convert(graph: str, output: str) -> int:
    """Write a graph in the form layoutcheck-graph/1."""
    from layoutcheck.cli.pages import convert_graph

    return convert_graph(graph, output)


app.add_command(annotate_command)
app.add_command(compare_command)
app.add_command(memory_command)
app.add_command(cost_command)
app.add_command(sweep_command)
app.add_command(verify_command)
app.add_command(replay_command)
for _command in (expand_command, fold_command, diff_command):
    app.add_command(_command)
