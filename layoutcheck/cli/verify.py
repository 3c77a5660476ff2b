"""``layoutcheck verify`` and ``layoutcheck replay``: run a checked graph on simulated ranks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from layoutcheck.cli import EXIT_INPUT
from layoutcheck.cli.check import program_record
from layoutcheck.cli.options import existing, program_options
from layoutcheck.documents import read_document
from layoutcheck.errors import InputError

TOKENS = 5
REPEATS = 2


def _analysis(graph: str, options: dict[str, Any], others: Sequence[str] = ()) -> Any:
    from layoutcheck.infer.solver.analysis import analyse

    rules = options.get("rules") or ()
    return analyse(_load(graph, rules), **options, others=[_load(other, rules) for other in others])


def _load(path: str, rules: Sequence[Any] = ()) -> Any:
    """A graph as it is run: repeated bodies written out, a second time where they repeat, since all further repeats are alike."""
    from layoutcheck.readers import load
    from layoutcheck.regions import expand, find_regions
    from layoutcheck.rules.rulebook import RuleBook

    graph = load(path)
    book = RuleBook.load([Path(folder) for folder in rules])
    repeats = {r.id: min(r.repeats, REPEATS) for r in find_regions(graph, book) if r.parent is None}
    return expand(graph, repeats=repeats, book=book) if repeats else graph


def _need_torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError:
        raise InputError("running on ranks needs torch: install layoutcheck[torch]", "verify") from None


def _stated(program: dict[str, Any], ranks: int | None) -> dict[str, Any]:
    """The checker's options; ``--ranks`` is the size of the one group where no other size is given."""
    from layoutcheck.cli.check import engine_options

    options = engine_options(program)
    if ranks is not None and not options["groups"]:
        options["groups"] = {"tp": ranks}
    return options


def run_verify(
    graph: str,
    ranks: int | None,
    extent: int | None,
    seed: int,
    save: str | None,
    backend: str | None = None,
    time_limit: float = 300.0,
    **program: Any,
) -> int:
    """Run the graph on its ranks and on one device; 0 if they agree, 1 with the first tensor that differs if
    not.

    With a backend the ranks are processes as well. In the environment of torchrun each process runs this, and
    rank 0 reports.
    """
    _need_torch()
    if backend is None:
        return _verify(graph, ranks, extent, seed, save, program, None, "")
    from layoutcheck.ranks.distributed import check_backend
    from layoutcheck.ranks.launch import Elsewhere, group_rank, grouped, in_group, spawned

    try:
        check_backend(backend, 1)
        runs = (grouped if in_group() else spawned)(backend, time_limit)
        note = f"; {backend} processes equal to simulated ranks"
        return _verify(graph, ranks, extent, seed, save, program, runs, note)
    except Elsewhere as done:
        return done.code
    except InputError:
        if group_rank() > 0:
            return EXIT_INPUT  # rank 0 has the same to say
        raise


def _verify(
    graph: str,
    ranks: int | None,
    extent: int | None,
    seed: int,
    save: str | None,
    program: dict[str, Any],
    runs: Any,
    note: str,
) -> int:
    from layoutcheck.cli.check import warn_unused
    from layoutcheck.ranks.counterexample import CounterExample
    from layoutcheck.ranks.verify import verify

    stated = {**program}
    options = _stated(program, ranks)
    analysis = _analysis(graph, options)
    warn_unused(options["plan"], [analysis.plan.unused])
    tokens, shown = _extent(analysis, extent), ""
    verdict = verify(analysis, tokens=tokens, seed=seed)
    if extent is None and verdict.error is not None and verdict.world > 1:
        # sizes that a graph takes for multiples of the group
        even = verify(analysis, tokens=2 * verdict.world, seed=seed)
        if even.error is None:
            shown = f"{tokens} tokens do not run ({verdict.error}); {2 * verdict.world} do"
            tokens, verdict = 2 * verdict.world, even
    if ranks is not None and verdict.world != ranks:
        raise InputError(f"the graph's groups have {verdict.world} ranks", "--ranks")
    if runs is not None:
        verdict = verify(analysis, tokens=tokens, seed=seed, backend=runs)
    if shown:
        click.echo(shown)
    counted = f"{verdict.compared} values compared, {len(verdict.taken)} taken over from the ranks"
    if verdict.error is not None and not verdict.runs:
        at = verdict.first[0] if verdict.first is not None else ""
        reason = f"{tokens} tokens do not run on one device either, first at {at}: {verdict.error}"
        raise InputError(f"{reason}; try another --extent", "--extent")
    if verdict.equal:
        click.echo(f"equal on {verdict.world} ranks ({counted}{note})")
        return 0
    node, detail = verdict.first or ("", verdict.error or "")
    click.echo(f"differs on {verdict.world} ranks, first at {node}: {verdict.place}{detail} ({counted})")
    if save is not None:
        example = CounterExample(verdict.world, tokens, seed, node, f"{verdict.place}{detail}")
        record = {**example.to_dict(), **program_record(graph, (), stated), "ranks": ranks}
        try:
            Path(save).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise InputError(f"cannot write {save}: {error.strerror or error}", "--save") from None
    return 1


def _extent(analysis: Any, extent: int | None) -> int:
    """The value of symbolic sizes: what was asked for, or the default, inside of the ranges that the export gives.

    Raises:
        InputError: what was asked for is outside.
    """
    at = TOKENS if extent is None else extent
    for name, (low, high) in analysis.graph.ranges.items():
        near = max(at, low if low is not None else at)
        near = min(near, high if high is not None else near)
        if near != at and extent is not None:
            bound = f"at least {low}" if near > at else f"at most {high}"
            raise InputError(f"the export says that {name} is {bound}, not {extent}", "--extent")
        at = near
    return at


def run_replay(finding: str) -> int:
    """Run saved counter-examples again: what verify has saved, a finding, or those of a whole report; 1 if one still
    differs, 0 if none does.
    """
    _need_torch()
    from layoutcheck.ranks.counterexample import FORMAT
    from layoutcheck.reports.json import FORMAT as REPORT

    path = existing(finding, "replay")
    document = read_document(path, "a counter-example", also=(FORMAT, REPORT))
    records = _records(document, str(path))
    if len(records) == 1:
        return _replay(records[0][1], str(path))
    codes = []
    for name, record in records:
        click.echo(f"{name}: ", nl=False)
        codes.append(_replay(record, str(path)))
    return max(codes)


def _records(document: Any, path: str) -> list[tuple[str, Any]]:
    """The counter-examples in a document, each with the finding's code and node.

    Raises:
        InputError: there is none.
    """
    if not isinstance(document, dict) or not ("graphs" in document or "counter_example" in document):
        return [("", document)]
    findings: list[Any] = [document]
    if "graphs" in document:
        graphs = document["graphs"]
        findings = [
            f
            for g in (graphs if isinstance(graphs, list) else [])
            for f in (g.get("findings", []) if isinstance(g, dict) else [])
        ]
    out = []
    for f in findings:
        example = f.get("counter_example") if isinstance(f, dict) else None
        if isinstance(example, dict) and example.get("status", "differs") == "differs":
            out.append((f"{f.get('code', '')} {f.get('node', '')}", example))
    if not out:
        raise InputError(
            "it holds no counter-example; check --counter-examples --format json adds them", path
        )
    return out


def _replay(record: Any, path: str) -> int:
    from layoutcheck.ranks.counterexample import CounterExample
    from layoutcheck.ranks.shown import rank_graphs, replay

    example = CounterExample.from_dict(record)
    graph, program, others = record.get("graph"), record.get("program", {}), record.get("others", [])
    if not isinstance(graph, str) or not isinstance(program, dict):
        raise InputError("it names no graph", path)
    if not isinstance(others, list) or not all(isinstance(other, str) for other in others):
        raise InputError("others is not a list of files", path)
    for name in (graph, *others):
        existing(name, path)
    defaults: dict[str, Any] = {"tp": None, "rank": None, "world": None, "plan": None}
    lists = ("groups", "tokens", "layouts", "assumptions", "rules", "trust")
    known = {**defaults, **{name: () for name in lists}}
    if set(program) - set(known):
        raise InputError(f"unknown options {', '.join(sorted(set(program) - set(known)))}", path)
    ranks = record.get("ranks")
    options = _stated({**known, **program}, ranks if isinstance(ranks, int) else None)
    analysis = _analysis(graph, options, others)
    found = replay(
        analysis, example, rank_graphs(analysis, [_load(other, options["rules"]) for other in others])
    )
    if found is None:
        click.echo("does not differ any more")
        return 0
    click.echo(f"differs: {found}")
    return 1


@click.command("verify")
@click.argument("graph", metavar="GRAPH")
@click.option("--ranks", type=click.IntRange(1, 64), metavar="P", help="The number of ranks to run on.")
@click.option("--extent", type=click.IntRange(1, 4096), metavar="N", help="The value of symbolic sizes.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the random inputs.")
@click.option("--save", metavar="FILE", help="Write a counter-example to a file, for replay.")
@click.option(
    "--backend",
    metavar="NAME",
    help="Run the ranks as processes, too: gloo, or nccl or hccl with a device a rank.",
)
@click.option(
    "--time-limit",
    type=click.FloatRange(1, 86400),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="For the processes.",
)
@program_options
def verify_command(**options: Any) -> int:
    """Run a graph on simulated ranks, and compare every tensor with the same program on one device.

    With --backend the ranks also run as processes that torch.distributed connects; in the environment of torchrun,
    this process is one of them.

    Exit code: 0 equal, 1 something differs, 2 bad input.
    """
    return run_verify(**options)


@click.command("replay")
@click.argument("finding", metavar="FINDING.json")
def replay_command(finding: str) -> int:
    """Run counter-examples again: one that verify has saved, or those of a report in JSON or of a finding in it.

    Exit code: 1 if it still differs, 0 if not, 2 bad input.
    """
    return run_replay(finding)
