"""Another number of repeats for the regions of a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from layoutcheck.errors import InputError
from layoutcheck.graph import Graph, InputSpec, Node, Ref
from layoutcheck.regions.arguments import copied, rebuilt, renamed
from layoutcheck.regions.layers import layer_steps, made_room, with_room, without_steps
from layoutcheck.regions.markers import Region, find_markers, find_regions
from layoutcheck.regions.names import Names
from layoutcheck.regions.own import RECORD, own_inputs
from layoutcheck.rules.rulebook import RuleBook

MAX_REPEATS = 1_000_000

Room = list[dict[str, tuple[int, int]]]


def set_repeats(
    graph: Graph, repeats: Sequence[int] | Mapping[int, int], *, book: RuleBook | None = None
) -> Graph:
    """The graph with other numbers of repeats (the written one included).

    Args:
        graph: a graph with regions.
        repeats: numbers for the regions of the outermost level in their order, or by id.
        book: the rule book, where it is loaded already.

    Raises:
        InputError: a number below 1 or above 1,000,000, an unknown id, more or fewer numbers than regions, or a region whose
            copies are not a plain chain, so that it is not clear what more of them would read.
    """
    book = RuleBook.load() if book is None else book
    markers = find_markers(graph, book)
    regions = find_regions(graph, book, markers)
    wanted = wanted_repeats(regions, repeats)
    nodes = graph.nodes
    names = Names(n.name for n in nodes)
    dropped: set[int] = set()
    changed: set[int] = set()
    moved: dict[str, str] = {}
    room: Room = []
    steps = layer_steps(graph, regions, own_inputs(graph, regions, book))
    added: dict[int, list[Node]] = {}
    for region in regions:
        number = wanted.get(region.id, region.repeats)
        if number == region.repeats:
            continue
        changed.add(region.id)
        if region.parent is None:
            room.append(made_room(graph, region, steps[region.id], number - region.repeats))
        before = [nodes[i].name for i in region.ends]
        for round_ in region.copies:
            if [markers[i].value for i in round_] != before:
                raise InputError(
                    f"the copies of region {region.id} are no plain chain: their number cannot be changed",
                    nodes[round_[0]].name,
                )
            before = [nodes[i].name for i in round_]
        kept = region.copies[: number - 1]
        last = [nodes[i].name for i in (kept[-1] if kept else region.ends)]
        for round_ in region.copies[number - 1 :]:
            dropped.update(round_)
            moved.update(zip((nodes[i].name for i in round_), last))
        if number > region.repeats:
            at = region.copies[-1][-1] if region.copies else region.ends[-1]
            new, ends = _more(graph, region, number - region.repeats, names, last, book)
            added[at] = new
            moved.update(zip(last, ends))
    if not changed:
        return graph
    out: list[Node] = []
    chained = {i for r in regions if r.id in changed for round_ in r.copies for i in round_}
    for i, node in enumerate(nodes):
        if i not in dropped:
            # Copy markers read the chain; what comes behind it reads its new end.
            out.append(node if i in chained else _moved(node, moved, room))
        out.extend(added.get(i, ()))
    inputs = {name: InputSpec(spec.kind, with_room(spec.fqn, room)) for name, spec in graph.inputs.items()}
    config = dict(graph.config)
    if RECORD in config:
        config[RECORD] = without_steps(config[RECORD], regions, changed)
    return rebuilt(out, graph, inputs=inputs, config=config)


def _moved(node: Node, moved: dict[str, str], room: Room) -> Node:
    return copied(node, node.name, lambda name: moved.get(name, name), with_room(node.module, room))


def _more(
    graph: Graph, region: Region, number: int, names: Names, last: list[str], book: RuleBook
) -> tuple[list[Node], list[str]]:
    """`number` more rounds of copy markers behind the last one; the nodes, and the names of the new last round."""
    from layoutcheck.regions.markers import marker_ops

    nodes = graph.nodes
    like = [nodes[i] for i in (region.copies[-1] if region.copies else region.ends)]
    read = [nodes[i].name for i in (region.copies[-2] if len(region.copies) > 1 else region.ends)]
    target = None if region.copies else marker_ops(book).copy
    out: list[Node] = []
    for _ in range(number):
        ends: list[str] = []
        for node, old, value in zip(like, read, last):
            name = names.fresh(node.name)
            if target is None:

                def chain(ref: str, old: str = old, value: str = value) -> str:
                    return value if ref == old else ref

                args: tuple[Any, ...] = tuple([renamed(a, chain) for a in node.args])
                kwargs = {k: renamed(a, chain) for k, a in node.kwargs.items()}
                new_target = node.target
            else:
                args, kwargs, new_target = (Ref(value), region.id), {}, target
            out.append(Node(name, "call_function", new_target, args, kwargs, node.meta))
            ends.append(name)
        last = ends
    return out, last


def wanted_repeats(regions: list[Region], repeats: Sequence[int] | Mapping[int, int]) -> dict[int, int]:
    """The numbers of repeats by region. Raises InputError as `set_repeats`."""
    outer = [r for r in regions if r.parent is None]
    if isinstance(repeats, Mapping):
        known = {r.id for r in regions}
        for key in repeats:
            if key not in known:
                raise InputError(f"there is no region {key} (there are {sorted(known)})")
        wanted = dict(repeats)
    else:
        if len(repeats) != len(outer):
            raise InputError(
                f"{len(repeats)} numbers of repeats are given, and there are {len(outer)} regions"
            )
        wanted = {r.id: number for r, number in zip(outer, repeats)}
    for key, number in wanted.items():
        if not 1 <= number <= MAX_REPEATS:
            raise InputError(f"region {key} cannot have {number} repeats (1 to {MAX_REPEATS})")
    return wanted
