"""``layoutcheck check``."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from attrs import evolve

from layoutcheck.cli import EXIT_INPUT, _fail, warn
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
from layoutcheck.findings import Finding, Report, Unchecked


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
    from being checked: every rendering says that it is missing, and the exit code is 2. What is wrong with the
    options themselves is said once, before any graph is read.
    """
    from layoutcheck.check import check_options
    from layoutcheck.reports import render
    from layoutcheck.reports.wording import plural, summary

    stated = dict(program)
    options = engine_options(program)
    if counter_examples:
        options["counter_examples"] = True
    if contract is not None:
        options["contract"] = contract
    wanted, unwanted = code_prefixes(select, "--select"), code_prefixes(ignore, "--ignore")
    shared = ("rules", "plan", "trust", "assumptions")
    check_options(contract=contract, **{name: options[name] for name in shared})
    reports: list[Report] = []
    unchecked: list[Unchecked] = []
    for path, *others in [list(graphs)] if together else [[path] for path in graphs]:
        try:
            report, _graph = check_program(path, others, options)
        except InputError as error:
            unchecked.append(Unchecked(path, str(error)))
            _fail(str(error) if path in str(error) else f"{path}: {error}")
            continue
        report = evolve(report, findings=tuple(_replayable(f, path, others, stated) for f in report.findings))
        # The layouts are not needed any more, and those of many graphs would add up.
        reports.append(evolve(report.filtered(wanted, unwanted), layout_lookup=None, graph_maker=None))
    if not reports and form == "text":
        return EXIT_INPUT
    unused = warn_unused(options["plan"], [report.unused for report in reports])
    colored = output is None and wants_color(color, sys.stdout.isatty())
    _write(render(reports, form, color=colored, stats=stats, unchecked=unchecked), output, colored)
    if output is not None:
        said = summary(finding for report in reports for finding in report.findings)
        missing = f" {plural(len(unchecked), 'graph')} could not be checked." if unchecked else ""
        click.echo(said + missing, err=True)
    if unchecked:
        return EXIT_INPUT
    return max(int(strict and unused), *(report.exit_code(strict) for report in reports))


def warn_unused(plan: Path | None, unused: Sequence[Sequence[tuple[str, tuple[str, ...]]]]) -> bool:
    """Warn on stderr of the plan's patterns that fit no weight of any graph, and say whether there are such."""
    if plan is None or not unused:
        return False
    everywhere = [one for one in unused[0] if all(one[0] in dict(other) for other in unused[1:])]
    for pattern, near in everywhere:
        hint = f"; did you mean {near[0]}?" if near else ""
        warn(f"{plan}: no weight is called {pattern!r}{hint}")
    return bool(everywhere)
