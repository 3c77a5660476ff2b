"""What ``layoutcheck sweep`` does with its options: a table, a CSV, a picture."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import click

from layoutcheck.cli.run_cost import write
from layoutcheck.cost.sweep import FIXED, Grid, Sweep, pareto, sweep
from layoutcheck.errors import InputError
from layoutcheck.models.writer import BLOCK

_SHOWN = 60
_MOST_NUMBERS = 2_000_000
_MOST_DRAWN = 200_000


def run(options: Mapping[str, Any]) -> int:
    """Print the times of all points and return the exit code."""
    from layoutcheck.models import load_model

    grid = grid_of(options)
    config = load_model(options["model"])
    if options["plot"]:
        from layoutcheck.cost.pictures import check_name

        check_name(options["plot"])
        if grid.points > _MOST_DRAWN:
            raise InputError(f"{grid.points} points are too many to draw", where="--plot")
    found = sweep(
        config,
        grid,
        decode=options["decode"],
        sequences=options["sequences"],
        quant=options["quant"],
        mtp=options["mtp"],
        routing=options["routing"],
        progress=_progress,
    )
    if options["csv"]:
        write(options["csv"], csv_text(found), "--csv")
    if options["plot"]:
        from layoutcheck.cost.pictures import draw

        draw(list(found.rows()), options["kind"], options["plot"], config.name)
    click.echo(table(found, options["best"]))
    return 0


def grid_of(options: Mapping[str, Any]) -> Grid:
    """The grid that the options describe.

    Raises:
        InputError: a list or a range is malformed.
    """
    ep = integers(options["ep"], "--ep") if options["ep"] else (None,)
    return Grid(
        hardware=_words(options["hardware"], "--hardware"),
        contracts=_words(options["contract"], "--contract") if options["contract"] else (None,),
        tp=integers(options["tp"], "--tp"),
        dp=integers(options["dp"], "--dp"),
        ep=ep,
        tokens=integers(options["tokens"], "--tokens"),
        context=integers(options["context"], "--context", least=0),
    )


def _words(text: str, option: str) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(w.strip() for w in text.split(",") if w.strip()))
    if not words:
        raise InputError("names nothing", where=option)
    return words


def integers(text: str, option: str, least: int = 1) -> tuple[int, ...]:
    """Numbers of ``1,2,4``, ``256:4096:256`` (with its end) or ``256:8192:x2``, in any mixture, without repeats.

    Raises:
        InputError: something is none of these, or there are too many.
    """
    found: dict[int, None] = {}
    for word in text.split(","):
        for number in _range(word.strip(), option):
            if number < least:
                raise InputError(f"{number} is below {least}", where=option)
            found[number] = None
    return tuple(found)


def _range(word: str, option: str) -> Sequence[int]:
    parts = word.split(":")
    factor = parts[-1].startswith("x") and len(parts) == 3
    numbers = [p[1:] if factor and i == 2 else p for i, p in enumerate(parts)]
    if len(parts) not in (1, 3) or not all(p.isascii() and p.isdecimal() and len(p) <= 12 for p in numbers):
        raise InputError(f"expected N, FROM:TO:STEP or FROM:TO:xFACTOR, got {word!r}", where=option)
    values = [int(p) for p in numbers]
    if len(values) == 1:
        return values
    low, high, step = values
    if step < (2 if factor else 1) or (low < 1 and factor) or high < low:
        raise InputError(f"{word!r} is an empty or endless range", where=option)
    if not factor:
        if (high - low) // step >= _MOST_NUMBERS:
            raise InputError(f"{word!r} has too many numbers", where=option)
        return range(low, high + 1, step)
    out = []
    while low <= high:
        out.append(low)
        low *= step
    return out


def csv_text(found: Sweep) -> str:
    """All points as CSV, with the milliseconds of every role; 0 for roles that a combination has not."""
    names = list(dict.fromkeys(n for block in found.blocks for n in next(block.columns())))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    for block in found.blocks:
        for columns in block.columns():
            none = [0] * len(columns["ms"])
            writer.writerows(zip(*(columns.get(n, none) for n in names)))
    return out.getvalue()


def table(found: Sweep, best: bool) -> str:
    """The points as text; with ``best`` only those that no other beats in time and ranks for the same tokens."""
    count = sum(len(block.tokens) for block in found.blocks)
    rows: list[Any]
    if best:
        groups: dict[tuple[int, int], list[Any]] = {}
        for row in found.rows():
            ranks = row["tp"] * row["dp"]
            groups.setdefault((row["tokens"], row["context"]), []).append({**row, "ranks": ranks})
        rows = [r for group in groups.values() for r in pareto(group, "ranks", "ms")]
        left = len(rows)
    else:
        rows, left = list(islice(found.rows(), _SHOWN)), count
    names = [*FIXED, "ms", "memory_gib", "fits", "tokens_per_s"]
    shown = [[_cell(r[n]) for n in names] for r in rows[:_SHOWN]]
    widths = [max(len(n), *(len(r[i]) for r in shown)) for i, n in enumerate(names)]
    lines = ["  ".join(n.rjust(w) for n, w in zip(names, widths))]
    lines += ["  ".join(c.rjust(w) for c, w in zip(r, widths)) for r in shown]
    if left > _SHOWN:
        lines.append(f"... {left - _SHOWN} more (--csv FILE writes all)")
    lines.append(f"{count} points" + (f", {left} that no other beats in time and ranks" if best else ""))
    lines.append(
        "memory_gib: a rank's weights, caches in blocks of "
        f"{BLOCK} tokens, inputs and peak of activations, without its ops' own workspace"
    )
    lines += [f"left out: {what}: {why}" for what, why in found.skipped.items()]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _progress(done: int, of: int) -> None:
    """Progress on stderr, where someone looks at it."""
    if of > 1 and sys.stderr.isatty():
        print(f"\r{done} of {of} combinations", end="\n" if done == of else "", file=sys.stderr, flush=True)
