"""What ``layoutcheck cost`` does with its options."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from attrs import evolve

from layoutcheck.cost.evaluate import KEYS, CostReport, time_graph
from layoutcheck.cost.hardware import hardware_names, load_hardware
from layoutcheck.cost.moving import overlap_of
from layoutcheck.cost.reference import FIXED, PLAIN
from layoutcheck.cost.tables import Measured, load_tables
from layoutcheck.cost.terms import GraphCost
from layoutcheck.errors import InputError

if TYPE_CHECKING:
    from layoutcheck.models.config import ModelConfig
    from layoutcheck.models.step import Step

_GRAPH_ONLY = {
    "groups": "group",
    "token_axes": "token-axis",
    "layouts": "layout",
    "assumptions": "assume",
}
_MODEL_ONLY = ("contract", "decode", "sequences", "quant", "mtp", "distribute", "gather")


def run(options: Mapping[str, Any]) -> int:
    """Print the cost of a graph or a model and return the exit code.

    Args:
        options: those of the command; lists of texts (groups, layouts, token axes, counts) are read already.
    """
    if options["list_hardware"]:
        click.echo(hardware_list())
        return 0
    if not options["source"]:
        raise InputError("give a graph, a config.json or a model's name (or --list-hardware)")
    if not options["hardware"]:
        raise InputError(f"give --hardware; known are {', '.join(hardware_names())}, or a .json")
    report = report_of(options)
    lines: list[Any] = []
    figures: Mapping[str, int] = {}
    if options["figures"] and not options["formula"]:
        raise InputError("names the figures of formulas: give --formula", where="--figures")
    if options["formula"]:
        from layoutcheck.cost.formula_text import formulas

        named = _named(options, report.cost)
        figures = named.figures
        lines = formulas(named, KEYS[options["by"]], options["formula"])
    if options["trace"]:
        from layoutcheck.cost.trace import trace

        write(options["trace"], json.dumps(trace(report)), "--trace")
    references = (FIXED, PLAIN) if options["reference"] else ()
    if options["form"] == "json":
        from layoutcheck.cost.render import record

        click.echo(json.dumps(record(report, options["by"], lines, figures, references), indent=1))
    else:
        from layoutcheck.cost.render import text

        click.echo(text(report, options["by"], options["top"], lines, figures, references))
    return 0


def report_of(options: Mapping[str, Any]) -> CostReport:
    """Read, lift and time what the options name.

    Raises:
        InputError: whatever is wrong with them or with the graph.
    """
    hardware = load_hardware(options["hardware"])
    tables = _tables(options["tables"])
    cost, given = _lifted(options)
    overlap, notes = overlap_of(options, cost)
    cost = evolve(cost, notes=(*cost.notes, *notes))
    return time_graph(cost, hardware, given, tables=tables, routing=options["routing"], overlap=overlap)


def _lifted(options: Mapping[str, Any]) -> tuple[GraphCost, dict[str, int]]:
    """The lifted graph, and the counts that it is evaluated at."""
    from layoutcheck.cli.run_memory_graph import is_graph

    if is_graph(options["source"]):
        for name in _MODEL_ONLY:
            if options[name]:
                raise InputError("is for models; a graph is what it is", where="--" + name)
        return graph_cost(options)
    for name, word in _GRAPH_ONLY.items():
        if options[name]:
            raise InputError("is for graphs; for a model give --tp, --dp, --ep", where="--" + word)
    if options["figures"]:
        raise InputError("is for graphs; a model has figures of its own", where="--figures")
    return from_figures(options)


def _named(options: Mapping[str, Any], cost: GraphCost) -> GraphCost:
    """The terms with figures as symbols: a model's own, of an exported graph those of the model that it came from."""
    from layoutcheck.cli.run_memory_graph import is_graph
    from layoutcheck.cost.symbolic import with_figures, with_figures_of

    if is_graph(options["source"]):
        if not options["figures"]:
            return cost
        from layoutcheck.models import load_model

        return with_figures_of(cost, load_model(options["figures"]))
    config, step = _step_of(options)
    more = {n: options[n] for n in ("rules", "kernels", "indexer_queries")}
    return with_figures(cost, config, step, **more)


def _step_of(options: Mapping[str, Any]) -> tuple[ModelConfig, Step]:
    """The model and its step."""
    from layoutcheck.models import load_model
    from layoutcheck.models.step import step_for

    config = load_model(options["source"])
    step = step_for(
        config,
        tp=options["tp"] or 1,
        dp=options["dp"] or 1,
        ep=options["ep"],
        contract=options["contract"],
        decode=bool(options["decode"]),
        sequences=options["sequences"] or 1,
        quant=options["quant"] or "none",
        mtp=bool(options["mtp"]),
        distribute=tuple(options["distribute"]),
        gather=tuple(options["gather"]),
    )
    return config, step


def from_figures(options: Mapping[str, Any]) -> tuple[GraphCost, dict[str, int]]:
    """A model's step, lifted, and the counts that it is evaluated at."""
    from layoutcheck.cost.model_cost import model_cost

    tokens, sequences = options["tokens"], options["sequences"] or 1
    config, step = _step_of(options)
    if tokens is None:
        raise InputError("give --tokens: how many a step has, of one data-parallel group")
    if options["decode"] and sequences > 1:
        raise InputError("in decode --tokens says how many sequences there are", where="--sequences")
    if tokens % sequences:
        raise InputError(f"{tokens} tokens are not the same for {sequences} sequences", where="--sequences")
    cost = model_cost(
        config,
        step,
        rules=options["rules"],
        kernels=options["kernels"],
        indexer_queries=options["indexer_queries"],
    )
    return cost, counts(options, cost)


def graph_cost(options: Mapping[str, Any]) -> tuple[GraphCost, dict[str, int]]:
    """An exported graph, lifted; groups that its formulas hold are counts, others say what its groups are."""
    sizes: dict[str, Any] = dict(options["groups"])
    for name in ("tp", "ep", "dp"):
        size = options[name]
        if size and sizes.setdefault(name, size) != size:
            raise InputError(f"{name} is given twice: {sizes[name]} and {size}", where="--group")
    for name, size in sizes.items():
        if not isinstance(size, int):
            raise InputError(f"the size of {name} is not a number", where="--group")
    try:
        cost = _analysed(options, {})
        unknown = {n: s for n, s in sizes.items() if n not in cost.values and s > 1}
    except InputError as error:
        if error.where != "group" or not sizes:
            raise
        unknown = sizes
    if unknown:
        cost = _analysed(options, unknown)
        for name in unknown:
            if name not in cost.values:
                known = ", ".join(n for n in cost.values if n != "context") or "none"
                raise InputError(f"no size depends on the group {name}; there is {known}", where="--group")
    given = {n: s for n, s in sizes.items() if n in cost.values}
    return cost, {**given, **counts(options, cost)}


def counts(options: Mapping[str, Any], cost: GraphCost) -> dict[str, int]:
    """The values of symbols that the options give: ``--tokens``, ``--context``, ``--at``.

    Raises:
        InputError: a value is no number, or no size depends on the tokens.
    """
    given: dict[str, int] = {}
    if options["tokens"] is not None:
        if "T" not in cost.symbols():
            raise InputError(
                "no size depends on the tokens: say which axis counts them with --token-axis NAME:DIM",
                where="--tokens",
            )
        given["T"] = options["tokens"]
    if options["context"] is not None:
        given["context"] = options["context"]
    for name, value in options["at"].items():
        if not value.isascii() or not value.isdecimal() or len(value) > 15:
            raise InputError(f"{name} is {value!r}, not a number", where="--at")
        number = int(value)
        before = given.get(name, options.get(name) if name in ("tp", "dp", "ep") else None)
        if before is not None and before != number:
            raise InputError(f"{name} is given twice: {before} and {number}", where="--at")
        given[name] = number
    return given


def _analysed(options: Mapping[str, Any], groups: dict[str, Any]) -> GraphCost:
    from layoutcheck.cost.lift import lift
    from layoutcheck.infer.solver.analysis import analyse

    analysis = analyse(
        options["source"],
        groups=groups,
        tokens=options["token_axes"],
        layouts=dict(options["layouts"]),
        assumptions=options["assumptions"],
        rules=options["rules"],
    )
    return lift(analysis, kernels=options["kernels"], indexer_queries=options["indexer_queries"])


def _tables(paths: Sequence[Path]) -> Measured:
    """The tables of all mapping files; a table's own name stands for the mapping beside it."""
    tables: list[Any] = []
    for path in paths:
        if path.suffix != ".json":
            mapping = path.with_suffix(".json")
            if not mapping.is_file():
                raise InputError(
                    f"a table needs a mapping of its columns: {mapping.name} beside it", where=str(path)
                )
            path = mapping
        tables.extend(load_tables(path).tables)
    return Measured(tables)


def write(name: str, text: str, option: str) -> None:
    """Write a whole file or nothing.

    Raises:
        InputError: it cannot be written.
    """
    path = Path(name)
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise InputError(f"cannot write {name}: {error.strerror or error}", where=option) from error


def hardware_list() -> str:
    """All shipped hardware, a line each."""
    rows = []
    for name in hardware_names():
        h = load_hardware(name)
        said = "measured" if h.measured else "nothing measured, constants of others"
        peaks = ", ".join(f"{d} {p / 1e6:g}" for d, p in h.peaks.items())
        rows.append(
            f"{name:<10} {h.label}\n"
            f"{'':<10} {h.memory_bytes / 2**30:g} GiB, {h.bandwidth / 1e6:.2f} TB/s; TFLOP/s: {peaks}; {said}"
        )
    return "\n".join(rows)
