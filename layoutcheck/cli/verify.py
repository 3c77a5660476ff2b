"""``layoutcheck verify`` and ``layoutcheck replay``: run a checked graph on simulated ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from layoutcheck.cli import EXIT_INPUT
from layoutcheck.cli.options import existing, program_options
from layoutcheck.errors import InputError

TOKENS = 5


def _analysis(graph: str, options: dict[str, Any]) -> Any:
    from layoutcheck.infer.analysis import analyse

    return analyse(graph, **options, others=[])


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
    from layoutcheck.ranks.counterexample import CounterExample
    from layoutcheck.ranks.verify import verify

    stated = {**program}
    analysis = _analysis(graph, _stated(program, ranks))
    tokens, shown = TOKENS if extent is None else extent, ""
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
    if verdict.equal:
        click.echo(f"equal on {verdict.world} ranks ({counted}{note})")
        return 0
    node, detail = verdict.first or ("", verdict.error or "")
    click.echo(f"differs on {verdict.world} ranks, first at {node}: {verdict.place}{detail} ({counted})")
    if save is not None:
        example = CounterExample(verdict.world, tokens, seed, node, f"{verdict.place}{detail}")
        record = {
            **example.to_dict(),
            "graph": str(Path(graph).resolve()),
            "ranks": ranks,
            "program": _plain(stated),
        }
        try:
            Path(save).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise InputError(f"cannot write {save}: {error.strerror or error}", "--save") from None
    return 1


def _plain(program: dict[str, Any]) -> dict[str, Any]:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in program.items()}


def run_replay(finding: str) -> int:
    """Run a saved counter-example again; 1 if it still differs, 0 if not."""
    _need_torch()
    from layoutcheck.ranks.counterexample import CounterExample, replay

    path = existing(finding, "replay")
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise InputError(f"cannot be read as JSON: {error}", str(path)) from None
    example = CounterExample.from_dict(record)
    graph, program = record.get("graph"), record.get("program", {})
    if not isinstance(graph, str) or not isinstance(program, dict):
        raise InputError("it names no graph", str(path))
    existing(graph, str(path))
    defaults: dict[str, Any] = {"tp": None, "rank": None, "world": None, "plan": None}
    lists = ("groups", "tokens", "layouts", "assumptions", "rules", "trust")
    known = {**defaults, **{name: () for name in lists}}
    if set(program) - set(known):
        raise InputError(f"unknown options {', '.join(sorted(set(program) - set(known)))}", str(path))
    ranks = record.get("ranks")
    options = _stated({**known, **program}, ranks if isinstance(ranks, int) else None)
    found = replay(_analysis(graph, options), example)
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
    """Run a counter-example that verify has saved again.

    Exit code: 1 if it still differs, 0 if not, 2 bad input.
    """
    return run_replay(finding)
