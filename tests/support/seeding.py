"""Which seeded faults the checker reports, and why those that it does not report can't be told from the graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from . import engine, shared
from .builder import DIALECTS, Json
from .faults import SIZES
from .mutate import Mutation, mutations
from .programs import PROGRAMS, build

ERROR, WARNING, WEIGHTS, MISSED = "error", "warning", "weights", "missed"
# why a fault is not an error, for each verdict but ERROR
REASONS = {
    WARNING: "a warning: whether it is wrong only the reader of the output knows, which no declaration says",
    WEIGHTS: (
        "can't be told from the one graph: with smaller weights, whole on every rank, the very same graph is right; "
        "it is an error once the weights' layouts are declared as they are in the clean graph"
    ),
    MISSED: "missed",
}
# recorded shapes that do not fit, ops without rules, and waste: none says that the program is wrong
_NO_FAULT = ("LC9", "LC6")


def clean_graphs(large: bool = False) -> dict[str, Json]:
    """Built programs, and the clean reference graphs where the folder is there."""
    graphs = {
        f"{name} ({dialect}, {kind})": build(name, dialect, SIZES[0], declare=kind == "declared")
        for name in PROGRAMS
        for dialect in DIALECTS
        for kind in ("declared", "anonymous")
    }
    if shared.FOLDER.is_dir():
        wanted = (n for n in shared.PARALLEL_CLEAN if large or n not in shared.LARGE)
        graphs.update({name: shared.load(name) for name in wanted})
    return graphs


@dataclass(frozen=True)
class Clean:
    """A clean graph, what is found in it, and the layouts that are inferred for its inputs."""

    graph: Json
    errors: frozenset[tuple[str, str]]
    warnings: frozenset[tuple[str, str]]
    inferred: dict[str, str]


def examined(graph: Json) -> Clean:
    """A clean graph, checked."""
    report = engine.check(graph)
    inferred = {name: report.layout_text(name) for name, _ in report.inferred}
    return Clean(graph, _marks(report, "error"), _marks(report, "warning"), inferred)


def _marks(report: object, severity: str) -> frozenset[tuple[str, str]]:
    found = [f for f in report.findings if engine.severity(f) == severity]  # type: ignore[attr-defined]
    return frozenset((engine.code(f), f.node) for f in found if not engine.code(f).startswith(_NO_FAULT))


def verdict(clean: Clean, mutation: Mutation) -> str:
    """How a fault is reported: as an error, as a warning, or not at all; then whether declared weights tell it."""
    report = engine.check(mutation.graph)
    if _marks(report, "error") - clean.errors:
        return ERROR
    if _marks(report, "warning") - clean.warnings:
        return WARNING
    declared = engine.check(mutation.graph, layouts=clean.inferred)
    return WEIGHTS if _marks(declared, "error") - clean.errors else MISSED


def verdicts(graph: Json, seed: int, limit: int) -> Iterator[tuple[Mutation, str]]:
    """Up to `limit` random faults in a clean graph, each with its verdict."""
    clean = examined(graph)
    for mutation in mutations(graph, seed, limit):
        yield mutation, verdict(clean, mutation)
