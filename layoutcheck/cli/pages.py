"""The small commands: ``explain``, ``rules`` and ``convert``."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

import click

from layoutcheck.cli.options import existing
from layoutcheck.codes import CODES
from layoutcheck.errors import InputError


def explain_codes(codes: Sequence[str]) -> int:
    """Print the pages of codes, each once and a blank line between two, or the table of all codes.

    Raises:
        InputError: one of them is no code; nothing is printed then.
    """
    if not codes:
        for info in CODES.values():
            click.echo(f"{info.code} {info.name:22} {info.severity.value:8} {info.summary}")
        return 0
    from layoutcheck.explain import code_of, explain

    click.echo("\n".join(explain(code) for code in dict.fromkeys(map(code_of, codes))), nl=False)
    return 0


def list_rules(prefix: str, folders: Sequence[str]) -> int:
    """Print the ops that have a rule, one a line, with what kind of rule it is.

    Raises:
        InputError: no op begins so.
    """
    from layoutcheck.rules.rulebook import RuleBook, canonical_target

    book = RuleBook.load([existing(folder, "--rules", folder=True) for folder in folders])
    start = canonical_target(prefix)
    found = [(target, rule) for target, rule in sorted(book.rules.items()) if target.startswith(start)]
    if not found:
        heads = {".".join(target.split(".")[: start.count(".") + 1]) for target in book.rules}
        near = difflib.get_close_matches(start, heads, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]}?" if near else f"they begin with {_spaces(book.rules)}"
        raise InputError(f"no op that has a rule begins with {prefix!r}; {hint}", where="rules list")
    for target, rule in found:
        click.echo(f"{target:60} {rule.kind}{f' {rule.code}' if rule.code else ''}")
    return 0


def _spaces(targets: Iterable[str]) -> str:
    return ", ".join(sorted({target.partition(".")[0] for target in targets}))


def show_rule(op: str, folders: Sequence[str]) -> int:
    """Print the rule that an op has, and where it is written."""
    from layoutcheck.rules.printer import format_rule
    from layoutcheck.rules.rulebook import RuleBook, canonical_target

    book = RuleBook.load([existing(folder, "--rules", folder=True) for folder in folders])
    target = canonical_target(op)
    rule = book.lookup(target)
    rules = [rule] if rule else [r for name, r in sorted(book.rules.items()) if name.startswith(f"{target}.")]
    if not rules:
        near = difflib.get_close_matches(target, book.rules, n=3, cutoff=0.7)
        hint = f"; did you mean {' or '.join(near)}?" if near else "; see layoutcheck rules list"
        raise InputError(f"no rule for {target}{hint}")
    for each in rules:
        click.echo(f"# {each.source}\n{format_rule(each)}", nl=False)
    return 0


def convert_graph(graph: str, output: str) -> int:
    """Read a graph and write it as layoutcheck-graph/1, gzipped if the name ends in ``.gz``."""
    import layoutcheck

    if not output.endswith((".json", ".json.gz")):
        raise InputError(f"the name has to end in .json or .json.gz, not {output!r}", where="--output")
    loaded = layoutcheck.load(graph)
    try:
        layoutcheck.save(loaded, output)
    except OSError as error:
        raise InputError(f"cannot write {output}: {error.strerror or error}", where="--output") from None
    return 0
