"""``layoutcheck fold``: the command and its options. What it needs is imported when it runs."""

from __future__ import annotations

import click


@click.command("fold")
@click.argument("graph", metavar="GRAPH")
@click.option("--output", "-o", metavar="OUT", help="A .json or .json.gz file to write.")
@click.option("--nested", is_flag=True, help="Fold what repeats inside of bodies too.")
@click.option("--no-fusion", is_flag=True, help="Compare fused ops as they are, not as what they stand for.")
@click.option("--rules", "folders", multiple=True, metavar="DIR", help="A folder with rules of your own.")
def fold_command(
    graph: str, output: str | None, nested: bool, no_fusion: bool, folders: tuple[str, ...]
) -> int:
    """Find repeated layers and write each body once, as a region."""
    import layoutcheck
    from layoutcheck.cli.expand import describe_regions, write_graph
    from layoutcheck.cli.options import existing
    from layoutcheck.regions.fold import fold
    from layoutcheck.rules.rulebook import RuleBook

    rules = [existing(folder, "--rules", folder=True) for folder in folders]
    book = RuleBook.load(rules)
    loaded = layoutcheck.load(graph)
    found = fold(loaded, fusion=not no_fusion, nested=nested, rules=rules, book=book)
    click.echo(describe_regions(found, book))
    if output is not None:
        write_graph(found, output)
    click.echo(f"{len(loaded.nodes)} nodes folded to {len(found.nodes)}")
    return 0
