"""``layoutcheck expand``: the command and its options. What it needs is imported when it runs."""

from __future__ import annotations

from typing import Any

import click

from layoutcheck.errors import InputError


def repeat_numbers(text: str | None) -> list[int] | None:
    """The numbers in ``3,75``; None for none.

    Raises:
        InputError: something else.
    """
    if text is None:
        return None
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdecimal() and len(word) <= 18 for word in words):
        raise InputError(f"expected numbers of repeats, such as 3,75, got {text!r}", where="--repeats")
    return [int(word) for word in words]


def write_graph(graph: Any, output: str) -> None:
    """Save a graph as layoutcheck-graph/1.

    Raises:
        InputError: the name has another ending, or the file cannot be written.
    """
    import layoutcheck

    if not output.endswith((".json", ".json.gz")):
        raise InputError(f"the name has to end in .json or .json.gz, not {output!r}", where="--output")
    try:
        layoutcheck.save(graph, output)
    except OSError as error:
        raise InputError(f"cannot write {output}: {error.strerror or error}", where="--output") from None


def describe_regions(graph: Any, book: Any) -> str:
    """One line a region: its id, repeats, carried values and length."""
    from layoutcheck.regions.markers import find_regions

    lines = []
    for region in find_regions(graph, book):
        inside = "" if region.parent is None else f", in region {region.parent}"
        length = region.ends[0] - region.begins[-1] - 1
        values = f"{region.carried} carried value{'s' if region.carried > 1 else ''}"
        lines.append(f"region {region.id}: {region.repeats} repeats of {length} nodes, {values}{inside}")
    return "\n".join(lines) or "no regions"


@click.command("expand")
@click.argument("graph", metavar="GRAPH")
@click.option("--output", "-o", required=True, metavar="OUT", help="A .json or .json.gz file to write.")
@click.option("--repeats", metavar="N,N,...", help="Other numbers of repeats than the graph has, by region.")
@click.option("--rules", "folders", multiple=True, metavar="DIR", help="A folder with rules of your own.")
def expand_command(graph: str, output: str, repeats: str | None, folders: tuple[str, ...]) -> int:
    """Write every repeat of the regions of a graph out."""
    import layoutcheck
    from layoutcheck.cli.options import existing
    from layoutcheck.regions.expand import expand
    from layoutcheck.rules.rulebook import RuleBook

    numbers = repeat_numbers(repeats)
    book = RuleBook.load([existing(folder, "--rules", folder=True) for folder in folders])
    loaded = layoutcheck.load(graph)
    click.echo(describe_regions(loaded, book))
    found = expand(loaded, repeats=numbers, book=book)
    write_graph(found, output)
    click.echo(f"{len(loaded.nodes)} nodes written out as {len(found.nodes)}")
    return 0
