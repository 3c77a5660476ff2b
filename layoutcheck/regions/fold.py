"""Finding repeated layers in an expanded graph and writing each body once, between markers.

Layers are found by their calls and how these are wired; names, ids and weights do not matter. Fused ops that straddle two layers
(a residual addition with the next layer's norm) are written as their parts first; those that lie inside of a body stay fused.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from pathlib import Path

from layoutcheck.graph import Graph
from layoutcheck.regions.flat import Keys, flatten
from layoutcheck.regions.fusion import Split, unfuse
from layoutcheck.regions.fusion_rules import FusionBook
from layoutcheck.regions.markers import find_markers, find_regions, marker_ops
from layoutcheck.regions.periods import find_runs
from layoutcheck.regions.stretch import Sequence_, Stretch
from layoutcheck.regions.writing import refuse, write
from layoutcheck.rules.rulebook import RuleBook

MAX_DEPTH = 8
MIN_SAVED = 2
MAX_OTHERS = 32


def fold(
    graph: Graph,
    *,
    fusion: bool = True,
    nested: bool = False,
    rules: Sequence[str | Path] = (),
    book: RuleBook | None = None,
) -> Graph:
    """The same program with repeated layers written once.

    Args:
        graph: an expanded graph; regions that it has already stay as they are.
        fusion: find layers up to fusion classes.
        nested: fold what repeats inside of bodies too.
        rules: folders of further op rules.
        book: the rule book, where it is loaded already.

    Returns:
        The folded graph; the graph itself where nothing repeats. `config["regions"]` names the inputs that each repeat of a
        region has for itself, which `expand` reads.

    Raises:
        InputError: the graph has markers that do not pair up.
    """
    book = RuleBook.load([Path(r) for r in rules]) if book is None else book
    collecting = gc.isenabled()
    # Hundreds of thousands of small objects and no cycle: the collector would walk them again and again.
    gc.disable()
    try:
        return _fold(graph, book, FusionBook.load(rules), fusion, nested)
    finally:
        if collecting:
            gc.enable()


def _fold(graph: Graph, book: RuleBook, classes: FusionBook, fusion: bool, nested: bool) -> Graph:
    splits: dict[str, Split] = {}
    plain = unfuse(graph, book=book, fusion=classes, splits=splits) if fusion else graph
    found = _fold_once(plain, book, classes, inside=False)
    if nested:
        for _ in range(MAX_DEPTH):
            deeper = _fold_once(found, book, classes, inside=True)
            if deeper is found:
                break
            found = deeper
    if found is plain:
        return graph
    return refuse(found, splits, book) if splits else found


def _fold_once(graph: Graph, book: RuleBook, classes: FusionBook, inside: bool) -> Graph:
    """Fold the stretches outside of regions, or those inside of them."""
    keys = Keys(book, classes)
    sequence = Sequence_(flatten(graph, keys), keys)
    stretches: list[Stretch] = []
    for low, high in _segments(graph, sequence, book, inside):
        stretches.extend(_search(sequence, low, high))
    if not stretches:
        return graph
    return write(graph, sequence, sorted(stretches, key=lambda s: s.start), marker_ops(book))


def _segments(graph: Graph, sequence: Sequence_, book: RuleBook, inside: bool) -> Iterator[tuple[int, int]]:
    """Stretches of calls without markers."""
    markers = find_markers(graph, book)
    if not markers:
        if not inside:
            yield 0, len(sequence.calls)
        return
    regions = find_regions(graph, book, markers)
    place = {node.name: i for i, node in enumerate(graph.nodes)}
    start = 0
    for at, call in enumerate([*sequence.calls, -1]):
        index = place[sequence.flat.nodes[call].name] if call >= 0 else -1
        if call >= 0 and index not in markers:
            continue
        if at > start:
            first = place[sequence.flat.nodes[sequence.calls[start]].name]
            if any(r.spans(first) for r in regions) == inside:
                yield start, at
        start = at + 1


def _search(sequence: Sequence_, low: int, high: int) -> Iterator[Stretch]:
    """The stretch that saves most between two places, then those before and behind it."""
    todo = [(low, high)]
    while todo:
        low, high = todo.pop()
        runs = find_runs(sequence.keys, low, high)
        for run in runs:
            if run.saved < MIN_SAVED:
                break
            found = sequence.stretch(run, low, high, runs[:MAX_OTHERS])
            if found is not None and found.repeats >= 2 and found.entries:
                yield found
                todo.append((low, found.start))
                todo.append((found.stop, high))
                break
