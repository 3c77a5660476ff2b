"""What ``layoutcheck memory GRAPH`` does: the ledger of an exported graph."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from layoutcheck.errors import InputError
from layoutcheck.layouts import Layout, render
from layoutcheck.memory.graph_ledger import GraphMemory, graph_memory
from layoutcheck.memory.graph_verdict import GraphVerdict, graph_verdict
from layoutcheck.memory.ledger import Ledger, add_activations
from layoutcheck.memory.render import bars, options_text, table
from layoutcheck.memory.sizes_text import formula_of
from layoutcheck.units import GIB, human

_SHOWN = 12
_HEAD = 4096


def is_graph(path: str) -> bool:
    """Say whether a file is a graph: an archive, gzip, or JSON that says so in its first kilobytes."""
    file = Path(path)
    if not file.is_file():
        return False
    with file.open("rb") as stream:
        head = stream.read(_HEAD)
    return (
        head[:4] in (b"PK\x03\x04", b"PK\x05\x06") or head[:2] == b"\x1f\x8b" or b"layoutcheck-graph/" in head
    )


def memory_of(options: Mapping[str, Any], path: str) -> GraphMemory:
    """Type a graph with what the options say of it, and return its memory.

    Raises:
        InputError: the graph or an option is malformed.
    """
    from layoutcheck.infer.solver.analysis import analyse

    groups: dict[str, Any] = {name: options[name] for name in ("tp", "dp", "ep") if options[name] > 1}
    analysis = analyse(
        path,
        groups={**groups, **options["groups"]},
        rank=options["rank"] or None,
        world=options["world"],
        tokens=options["tokens"],
        layouts=dict(options["layouts"]),
        assumptions=options["assumptions"],
        rules=options["rules"],
    )
    return graph_memory(analysis, options["at"])


def run_graph(options: Mapping[str, Any], capacity: int | None, bandwidth: float | None) -> int:
    """Print a graph's ledger and return the exit code."""
    memory = memory_of(options, options["model"])
    judged = graph_verdict(memory, capacity) if capacity is not None else None
    if judged is not None and options["device"] and judged.options:
        from layoutcheck.cost.hardware import load_hardware
        from layoutcheck.cost.option_times import timed_steps

        hardware = load_hardware(options["device"])
        more, note = timed_steps(judged.options, memory.analysis, memory.symbols, hardware)
        judged = replace(judged, options=more)
        memory.ledger.notes.append(note)
    if options["picture"]:
        from layoutcheck.memory.picture import draw

        draw(memory.ledger, options["picture"], capacity)
    if options["form"] == "json":
        click.echo(json.dumps(record(memory, judged), indent=1))
    elif options["form"] == "bars":
        click.echo(bars(memory.ledger, capacity))
    else:
        click.echo(table(memory.ledger, options["all_lines"]))
        click.echo("\n" + peak_text(memory))
    if judged is not None and options["form"] != "json":
        click.echo("\n" + verdict_text(judged, bandwidth))
    return 1 if judged is not None and not judged.fits else 0


def add_graph(ledger: Ledger, options: Mapping[str, Any]) -> GraphMemory:
    """Add the activation peak of ``--graph`` to a ledger from a model's figures."""
    memory = memory_of(options, options["graph"])
    for name, value in memory.symbols.items():
        if ledger.symbols.setdefault(name, value) != value:
            raise InputError(
                f"{name} is {ledger.symbols[name]} in the ledger and {value} in the graph", "--graph"
            )
    add_activations(ledger, memory.peak, formula_of(memory.formula), f"{memory.place} of {options['graph']}")
    return memory


def _layout(memory: GraphMemory, name: str) -> str:
    value = memory.activations.values.get(name)
    of = memory.analysis.solution.typing.types[value] if value is not None else None
    return render(of, memory.analysis.mesh.names()) if isinstance(of, Layout) else ""


def _size(size: int) -> str:
    return f"{size / GIB:10.4f} GiB" if size >= GIB // 1000 else f"{size:10} B  "


def peak_text(memory: GraphMemory) -> str:
    """Return where the peak is, its formula, what is alive there, and where it lies for other token counts."""
    peak = memory.peak
    at = ", ".join(f"{name} = {value}" for name, value in memory.symbols.items())
    rows = [
        f"peak of activations: {_size(peak.bytes).strip()} at {memory.place or 'no node'}",
        f"  = {memory.formula}" + (f"  with {at}" if at else ""),
    ]
    for name, size in peak.live[:_SHOWN]:
        kind = "  (written by a collective)" if memory.activations.is_collective(name) else ""
        rows.append(f"  {_size(size)}  {name}  {_layout(memory, name)}{kind}")
    if rest := peak.live[_SHOWN:]:
        rows.append(f"  {_size(sum(size for _, size in rest))}  {len(rest)} more")
    others = [
        (s, p) for s, p in memory.envelope.candidates if s is not memory.formula and not isinstance(s, int)
    ]
    if others:
        rows.append("for other counts the largest of this and:")
        ranked = sorted(others, key=lambda c: -memory_at(memory, c[0]))
        rows += [f"  {size} at {memory.activations.node_at(path)}" for size, path in ranked[:4]]
        if len(ranked) > 4:
            rows.append(f"  and {len(ranked) - 4} more (--format json)")
    return "\n".join(rows)


def memory_at(memory: GraphMemory, size: Any) -> int:
    """Return a size's value for the counts of a ledger."""
    from layoutcheck.symbols import evaluate

    return evaluate(size, memory.symbols)


def verdict_text(verdict: GraphVerdict, bandwidth: float | None) -> str:
    """Return the verdict as text; with a bandwidth (bytes a second), options carry their time a step."""
    state = "fits" if verdict.fits else "does not fit"
    rows = [
        f"{state}: {human(verdict.used)} of {human(verdict.capacity)}, "
        f"{human(abs(verdict.slack))} {'free' if verdict.slack >= 0 else 'too much'}"
    ]
    if verdict.symbol is not None:
        rows.append(f"largest {verdict.symbol} that fits: {verdict.most_tokens}")
    return "\n".join([*rows, *options_text(verdict.options, bandwidth)])


def record(memory: GraphMemory, verdict: GraphVerdict | None) -> dict[str, Any]:
    """Return ledger, peak and verdict as plain data, ready for JSON."""
    found = memory.ledger.record()
    acts = memory.activations
    found["peak"] = {
        "bytes": memory.peak.bytes,
        "formula": formula_of(memory.formula),
        "node": memory.place,
        "symbols": memory.symbols,
        "live": [
            {"name": n, "bytes": size, "layout": _layout(memory, n), "collective": acts.is_collective(n)}
            for n, size in memory.peak.live
        ],
        "candidates": [
            {"formula": formula_of(size), "node": acts.node_at(path)}
            for size, path in memory.envelope.candidates
        ],
    }
    if verdict is not None:
        found["verdict"] = {
            "fits": verdict.fits,
            "capacity_bytes": verdict.capacity,
            "slack_bytes": verdict.slack,
            "symbol": verdict.symbol,
            "most_tokens": verdict.most_tokens,
            "options": [option.record() for option in verdict.options],
        }
    return found
