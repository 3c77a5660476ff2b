"""What ``layoutcheck memory`` does with its options."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from layoutcheck.cli.run_memory_graph import add_graph, is_graph
from layoutcheck.errors import InputError
from layoutcheck.memory.build import quantisation_of, weight_ledger
from layoutcheck.memory.cache import Cache, add_cache
from layoutcheck.memory.graph_verdict import largest_step
from layoutcheck.memory.ledger import Ledger
from layoutcheck.memory.parallel import Parallel
from layoutcheck.memory.plan import Plan
from layoutcheck.memory.quantisation import Description, Quantisation, load_quantisation
from layoutcheck.memory.render import bars, table, verdict_text
from layoutcheck.memory.verdict import usable, verdict
from layoutcheck.models import ModelConfig, load_model
from layoutcheck.units import human, parse_size

DESCRIPTION_FILE = "quant_model_description.json"


_OF_GRAPHS = ("at", "groups", "tokens", "layouts", "assumptions", "rules")
_OF_MODELS = (
    *("etp", "engine", "modes", "quant", "overrides", "mtp", "embedding", "distribute", "gather", "whole", "divided"),
    *("companions", "no_derived", "max_tokens", "context", "sequences", "block", "cache_dtype", "index_dtype"),
    *("cache_ranks", "explain_total", "within", "given", "graph", "ranks", "config"),
)  # fmt: skip


def _refuse(given: Mapping[str, str], names: Iterable[str], why: str) -> None:
    """Raise InputError for the first of these options that the user wrote."""
    for name in names:
        if name in given:
            raise InputError(why, given[name])


def plan_of(options: Mapping[str, Any]) -> Plan:
    """Return the plan that the options describe."""
    return Plan(
        parallel=Parallel(options["tp"], options["dp"], options["ep"], options["etp"]),
        engine=options["engine"],
        modes=tuple(options["modes"]),
        rank=options["rank"],
        mtp=options["mtp"],
        embedding=options["embedding"],
        distribute=tuple(options["distribute"]),
        gather=tuple(options["gather"]),
        whole=tuple(options["whole"]),
        divided=tuple(options["divided"]),
        derived=not options["no_derived"],
        companions=options["companions"],
        max_tokens=options["max_tokens"],
    )


def quantisation_from(options: Mapping[str, Any], config: ModelConfig) -> tuple[str, Quantisation]:
    """Return the quantisation asked for, else the folder's description file, else the config's own."""
    overrides = {}
    for text in options["overrides"]:
        pattern, sign, name = text.partition("=")
        if not sign:
            raise InputError(f"--scheme {text}: write PATTERN=NAME")
        overrides[pattern] = name
    if options["quant"]:
        return options["quant"], load_quantisation(options["quant"], overrides)
    described = Path(options["model"]) / DESCRIPTION_FILE
    if described.is_file():
        return DESCRIPTION_FILE, load_quantisation(str(described))
    if overrides:
        raise InputError("--scheme needs --quant NAME")
    own = config.quantization
    return (str(own.get("quant_method")) if own else "FLOAT"), quantisation_of(config)


def _ledger(
    options: Mapping[str, Any], config: ModelConfig, plan: Plan, quantisation: Quantisation
) -> Ledger:
    path = Path(options["model"])
    is_checkpoint = path.name.endswith((".safetensors", ".index.json")) or (
        path.is_dir() and any(path.glob("*.safetensors*"))
    )
    if not is_checkpoint:
        return weight_ledger(config, plan, quantisation)
    from layoutcheck.memory.checkpoint import checkpoint_ledger
    from layoutcheck.memory.safetensors import read_tensors

    described = isinstance(quantisation, Description)
    return checkpoint_ledger(read_tensors(path), config, plan, quantisation if described else None)


def _config(options: Mapping[str, Any]) -> ModelConfig:
    path = Path(options["model"])
    if options["config"]:
        return load_model(options["config"])
    if path.name.endswith((".safetensors", ".index.json")):
        return load_model(path.resolve().parent)
    return load_model(options["model"])


def run(options: Mapping[str, Any], given: Mapping[str, str]) -> int:
    """Run the command and return its exit code.

    Args:
        options: all of them, by name.
        given: those that the user wrote, with their spelling.

    Raises:
        InputError: an option is malformed, or says nothing of what is asked about.
    """
    options = {**options, **_graph_options(options)}
    if is_graph(options["model"]):
        _refuse(given, _OF_MODELS, "is for models; a graph is what it is")
        return _of_graph(options)
    if not options["graph"]:
        _refuse(given, _OF_GRAPHS, "is for graphs: a model has them with --graph GRAPH")
    config = _config(options)
    name, quantisation = quantisation_from(options, config)
    if options["explain_total"]:
        return _explain(options, config, name, quantisation)
    plan = plan_of(options)
    if options["ranks"]:
        return _ranks(options, config, plan, quantisation)
    ledger = _ledger(options, config, plan, quantisation)
    cache = None
    if options["context"]:
        cache = Cache(
            options["context"],
            options["sequences"],
            options["block"],
            options["cache_dtype"],
            options["index_dtype"],
            options["cache_ranks"],
        )
        add_cache(ledger, config, plan, cache)
    graph = add_graph(ledger, options) if options["graph"] else None
    judged = None
    memory, bandwidth = _device(options, plan.parallel.tp)
    if memory:
        capacity = usable(memory, options["utilisation"], parse_size(options["reserve"])[0])
        judged = verdict(ledger, config, plan, capacity, cache, quantisation)
        if graph is not None:
            symbol, most = largest_step(graph, ledger, capacity)
            judged = replace(judged, step_symbol=symbol, most_step=most)
        if options["device"] and any(option.plan for option in judged.options):
            from layoutcheck.cost.hardware import load_hardware
            from layoutcheck.cost.option_times import timed

            more, note = timed(judged.options, config, plan, ledger, load_hardware(options["device"]))
            judged = replace(judged, options=more)
            ledger.notes.append(note)
    if options["picture"]:
        from layoutcheck.memory.picture import draw

        draw(ledger, options["picture"], judged.capacity if judged else None)
    if options["form"] == "json":
        record = ledger.record()
        if judged is not None:
            record["verdict"] = {
                "fits": judged.fits,
                "capacity_bytes": judged.capacity,
                "slack_bytes": judged.slack,
                "loading_slack_bytes": judged.loading_slack,
                "most_cached_tokens": judged.most_tokens,
                "most_sequences": judged.most_sequences,
                "step_symbol": judged.step_symbol,
                "most_step_tokens": judged.most_step,
                "options": [option.record() for option in judged.options],
            }
        click.echo(json.dumps(record, indent=1))
    else:
        if options["form"] == "bars":
            click.echo(bars(ledger, judged.capacity if judged else None))
        else:
            click.echo(table(ledger, options["all_lines"]))
        if judged is not None:
            click.echo("\n" + verdict_text(judged, bandwidth))
    return 1 if judged is not None and not judged.fits else 0


def _graph_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options about graphs, read."""
    from layoutcheck.cli.options import group_sizes, pairs, token_axes

    at = {}
    for name, text in pairs(options["at"], "--at", "NAME=NUMBER").items():
        if not (text.isascii() and text.isdecimal() and len(text) < 16):
            raise InputError(f"{text!r} is not a number", where=f"--at {name}")
        at[name] = int(text)
    return {
        "at": at,
        "groups": group_sizes(None, options["groups"]),
        "tokens": token_axes(options["tokens"]),
        "layouts": pairs(options["layouts"], "--layout", "NAME=TEXT"),
    }


def _of_graph(options: Mapping[str, Any]) -> int:
    from layoutcheck.cli.run_memory_graph import run_graph

    memory, bandwidth = _device(options, options["tp"])
    capacity = None
    if memory:
        capacity = usable(memory, options["utilisation"], parse_size(options["reserve"])[0])
    return run_graph(options, capacity, bandwidth)


def _device(options: Mapping[str, Any], tp: int) -> tuple[int, float | None]:
    """Return memory in bytes (0: not given) and the links' bandwidth; an option wins over the profile."""
    memory = parse_size(options["memory"])[0] if options["memory"] else 0
    bandwidth = options["bandwidth"] * 1e9 if options["bandwidth"] else None
    if options["device"]:
        from layoutcheck.cost.hardware import load_hardware

        hardware = load_hardware(options["device"])
        memory = memory or hardware.memory_bytes
        if bandwidth is None and tp > 1:
            # the profile counts in bytes a microsecond
            bandwidth = hardware.tier_of(tp).bandwidth * 1e6
    return memory, bandwidth


def _ranks(options: Mapping[str, Any], config: ModelConfig, plan: Plan, quantisation: Quantisation) -> int:
    """Print which ranks hold the same, and in which lines the others differ."""
    by_lines: dict[tuple[tuple[str, int], ...], list[int]] = {}
    for rank in range(plan.parallel.world):
        ledger = _ledger(options, config, plan.but(rank=rank), quantisation)
        key = tuple((line.name, line.bytes) for line in ledger.lines if line.state == "resident")
        by_lines.setdefault(key, []).append(rank)
    reference = dict(next(iter(by_lines)))
    for key, ranks in by_lines.items():
        total = sum(size for _, size in key)
        listed = ", ".join(map(str, ranks))
        click.echo(f"{human(total)}  ranks {listed}")
        here = dict(key)
        for name in {**reference, **here}:
            if off := here.get(name, 0) - reference.get(name, 0):
                click.echo(f"    {'+' if off > 0 else '-'}{human(abs(off))}  {name}")
    return 0


def _explain(options: Mapping[str, Any], config: ModelConfig, name: str, quantisation: Quantisation) -> int:
    from layoutcheck.memory.explain import explain_total, parallels
    from layoutcheck.memory.quantisation import ByName

    given = set(options["given"])
    if unknown := given - {"tp", "ep", "engine"}:
        raise InputError(f"--given {sorted(unknown)[0]}: tp, ep or engine")
    target, tolerance = parse_size(options["explain_total"])
    if options["within"]:
        tolerance = int(target * options["within"] / 100)
    candidates: list[tuple[str, Quantisation]] = [(name, quantisation)]
    if not options["quant"] and name == "FLOAT":
        candidates += [(other, ByName(other)) for other in ("W8A8", "W8A8_DYNAMIC", "W4A8_DYNAMIC")]
        if config.experts is not None:
            experts = {"*.experts.*": "W8A8_DYNAMIC", "*.shared_experts.*": "W8A8_DYNAMIC"}
            candidates.append(("W8A8 with W8A8_DYNAMIC experts", ByName("W8A8", experts)))
    found, others = explain_total(
        config,
        candidates,
        target,
        tolerance,
        parallels(
            options["world"],
            options["tp"] if "tp" in given else None,
            options["ep"] if "ep" in given else None,
        ),
        [options["engine"]] if "engine" in given else (),
    )
    if options["form"] == "json":
        rows = [
            {"deployment": str(e), "bytes": e.bytes, "off": e.off, "fits": e in found} for e in found + others
        ]
        click.echo(json.dumps({"target": target, "tolerance": tolerance, "deployments": rows}, indent=1))
        return 0
    click.echo(f"{human(target)} within {tolerance} bytes: {len(found)} deployments")
    for one in found:
        click.echo(f"  {human(one.bytes)}  {one}")
    click.echo("nearest others:" if others else "no others")
    for one in others:
        click.echo(f"  {human(one.bytes)}  {one}")
    return 0
