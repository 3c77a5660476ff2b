"""``layoutcheck check``."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from attrs import evolve

from layoutcheck.cli import EXIT_INPUT, _fail
from layoutcheck.cli.options import (
    code_prefixes,
    existing,
    group_sizes,
    pairs,
    token_axes,
    trust_levels,
    wants_color,
)
from layoutcheck.errors import InputError
from layoutcheck.findings import Finding, Report


def engine_options(options: dict[str, Any]) -> dict[str, Any]:
    """Take the options about the program out of ``options`` and return them in the checker's words.

    Raises:
        InputError: an option's text cannot be read, or names a file that does not exist.
    """
    plan = options.pop("plan")
    return {
        "groups": group_sizes(options.pop("tp"), options.pop("groups")),
        "rank": options.pop("rank"),
        "world": options.pop("world"),
        "tokens": token_axes(options.pop("tokens")),
        "layouts": pairs(options.pop("layouts"), "--layout", "NAME=TEXT"),
        "assumptions": list(options.pop("assumptions")),
        "rules": [existing(text, "--rules", folder=True) for text in options.pop("rules")],
        "plan": None if plan is None else existing(plan, "--plan"),
        "trust": trust_levels(options.pop("trust")),
    }


def check_program(path: str, others: Sequence[str], options: dict[str, Any]) -> tuple[Report, Any]:
    """Read a graph (and the other ranks' graphs of the same program), check it, and return the report and
    the graph.

    Raises:
        InputError: a file cannot be read, or an option does not fit the graph.
    """
    import layoutcheck

    start = time.process_time()
    graph, *rest = [layoutcheck.load(name) for name in (path, *others)]
    read = time.process_time() - start
    report = layoutcheck.check(graph, **options, others=rest)
    # The checker got graphs that were read already: only here is it known how long that took.
    seconds = {**report.statistics.seconds, "read": read, "total": time.process_time() - start}
    statistics = evolve(report.statistics, seconds=seconds)
    return evolve(report, graph_path=path, statistics=statistics), graph


def _replayable(finding: Finding, path: str, others: Sequence[str], program: dict[str, Any]) -> Finding:
    """A finding whose counter-example says of which graph it is, and how that was read."""
    example = finding.counter_example
    if example is None or example["status"] != "differs":
        return finding
    return evolve(finding, counter_example={**example, **program_record(path, others, program)})


def program_record(path: str, others: Sequence[str], program: dict[str, Any]) -> dict[str, Any]:
    """What ``replay`` needs to read a program again: the graph, other ranks' graphs, and options as they were given."""
    given = {k: list(v) if isinstance(v, tuple) else v for k, v in program.items()}
    return {
        "graph": str(Path(path).resolve()),
        "others": [str(Path(other).resolve()) for other in others],
        "program": given,
    }


def _write(text: str, output: str | None, color: bool) -> None:
    if output is None:
        click.echo(text, nl=False, color=color)
        return
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {output}: {error.strerror or error}", where="--output") from None


def run(
    graphs: Sequence[str],
    together: bool,
    form: str,
    output: str | None,
    select: Sequence[str],
    ignore: Sequence[str],
    strict: bool,
    stats: bool,
    color: str,
    contract: str | None = None,
    counter_examples: bool = False,
    **program: Any,
) -> int:
    """Check the graphs, write the report, and return the exit code.

    Of several graphs that are not ranks of one program, one that cannot be read does not keep the others
    from being checked; the exit code is 2 all the same.
    """
    from layoutcheck.reports import render
    from layoutcheck.reports.wording import summary

    stated = dict(program)
    options = engine_options(program)
    if counter_examples:
        options["counter_examples"] = True
    if contract is not None:
        options["contract"] = contract
    wanted, unwanted = code_prefixes(select, "--select"), code_prefixes(ignore, "--ignore")
    reports: list[Report] = []
    failed = 0
    for path, *others in [list(graphs)] if together else [[path] for path in graphs]:
        try:
            report, _graph = check_program(path, others, options)
        except InputError as error:
            failed = _fail(str(error) if path in str(error) else f"{path}: {error}")
            continue
        report = evolve(report, findings=tuple(_replayable(f, path, others, stated) for f in report.findings))
        # The layouts are not needed any more, and those of many graphs would add up.
        reports.append(evolve(report.filtered(wanted, unwanted), layout_lookup=None, graph_maker=None))
    if not reports:
        return EXIT_INPUT
    colored = output is None and wants_color(color, sys.stdout.isatty())
    _write(render(reports, form, color=colored, stats=stats), output, colored)
    if output is not None:
        click.echo(summary(finding for report in reports for finding in report.findings), err=True)
    return failed or max(report.exit_code(strict) for report in reports)
