"""Fused ops around conversions: taken apart where one has to stand between their parts, put together again where none does.

A norm that quantises with a scale over all its rows gives, on a rank's share, codes with a scale of their own. Such codes can't be
gathered; the norm's result can, if it is quantised behind the gather.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from layoutcheck.graph import Graph, Node, Ref
from layoutcheck.placement.modes import Ways
from layoutcheck.regions.fusion import GETITEM, Split, unfuse
from layoutcheck.regions.fusion_rules import FusionBook, FusionClass
from layoutcheck.regions.names import Names


def bound_targets(ways: Ways, book: FusionBook) -> set[str]:
    """Targets of fused ops of which some result, on shares, can't be gathered."""
    p = ways.base.analysis.program
    return {
        p.nodes[p.value_call[v]].target for v in ways.odd if p.nodes[p.value_call[v]].target in book.classes
    }


def taken_apart(graph: Graph, targets: Iterable[str], book: FusionBook) -> tuple[Graph, dict[str, Split]]:
    """The graph with these ops written as their parts, and what was taken apart."""
    splits: dict[str, Split] = {}
    chosen = {t: book.classes[t] for t in targets}
    return unfuse(graph, fusion=FusionBook(chosen, book.commutative), splits=splits), splits


def put_together(apart: Graph, placed: Graph, splits: dict[str, Split], book: FusionBook) -> Graph:
    """The placed graph with fused ops again: whole ones where nothing came between their parts, else as many parts as another
    fused op stands for.

    Args:
        apart: the graph as it was taken apart, before conversions.
        placed: the same with conversions.
    """
    before = {n.name: n for n in apart.nodes}
    now = {n.name: n for n in placed.nodes}
    readers: dict[str, set[str]] = {}
    for n in placed.nodes:
        for r in n.refs():
            readers.setdefault(r, set()).add(n.name)
    names = Names(now)
    instead: dict[str, list[Node]] = {}
    gone: set[str] = set()
    for split in splits.values():
        for class_ in (split.class_, *_shorter(split.class_, book)):
            found = _joined(split, class_, before, now, readers, names)
            if found is None:
                continue
            nodes, parts = found
            instead[max(parts, key=list(now).index)] = nodes
            gone.update(parts)
            break
    if not instead:
        return placed
    out: list[Node] = []
    for n in placed.nodes:
        if n.name in instead:
            out.extend(instead[n.name])
        elif n.name not in gone:
            out.append(n)
    return attrs.evolve(placed, nodes=out)


def _shorter(class_: FusionClass, book: FusionBook) -> list[FusionClass]:
    """Fused ops that stand for the first parts of this one, the longest first."""
    found = [
        other
        for other in book.classes.values()
        if len(other.parts) < len(class_.parts)
        and [p.target for p in other.parts] == [p.target for p in class_.parts[: len(other.parts)]]
        and [p.args for p in other.parts] == [p.args for p in class_.parts[: len(other.parts)]]
        and set(other.outputs) == {r for p in other.parts for r in p.results}
    ]
    return sorted(found, key=lambda c: -len(c.parts))


def _joined(
    split: Split,
    class_: FusionClass,
    before: dict[str, Node],
    now: dict[str, Node],
    readers: dict[str, set[str]],
    names: Names,
) -> tuple[list[Node], set[str]] | None:
    """The fused node with its getitems, and the nodes that it stands for; None where something came between the parts."""
    parts = _part_nodes(split, len(class_.parts), before)
    if parts is None or any(n not in now for group in parts for n in group):
        return None
    inside = {n for group in parts for n in group}
    results: dict[str, str] = {}
    given: dict[str, Any] = {}
    moved: dict[str, str] = {}
    for part, group in zip(class_.parts, parts):
        head_before, head_now = before[group[0]], now[group[0]]
        for old, new, label in zip(head_before.args, head_now.args, part.args):
            if label in results:
                if not isinstance(new, Ref) or new.name != results[label]:
                    return None
                continue
            if label in given and given[label] != new:
                return None
            given[label] = new
            if isinstance(old, Ref) and isinstance(new, Ref):
                moved[old.name] = new.name
        items = [n for n in group[1:]] if len(part.results) > 1 else group
        for label, name in zip(part.results, items):
            results[label] = name
    outside = {label for label, name in results.items() if readers.get(name, set()) - inside}
    if not outside <= set(class_.outputs):
        return None
    whole = class_.target == split.class_.target
    if len(class_.outputs) == 1:
        name = results[class_.outputs[0]]
        return [_node(split, class_, name, given, now[name].meta)], inside
    name = (
        split.fused.name if whole and split.fused.name not in now else names.fresh(f"{split.fused.name}_norm")
    )
    metas = tuple(now[results[label]].meta for label in class_.outputs)
    nodes = [_node(split, class_, name, given, metas)]
    for i, label in enumerate(class_.outputs):
        if readers.get(results[label]):
            like = now[results[label]]
            nodes.append(attrs.evolve(like, target=GETITEM, args=(Ref(name), i), kwargs={}))
    return nodes, inside


def _part_nodes(split: Split, count: int, before: dict[str, Node]) -> list[list[str]] | None:
    """Names of the first parts' nodes: of each its call, then the getitems that read its results."""
    out: list[list[str]] = []
    for name in split.parts:
        node = before.get(name)
        if node is None:
            return None
        if node.target == GETITEM and out and node.args[0] == Ref(out[-1][0]):
            out[-1].append(name)
        else:
            out.append([name])
    return out[:count] if len(out) >= count else None


def _node(split: Split, class_: FusionClass, name: str, given: dict[str, Any], meta: Any) -> Node:
    args = tuple(given.get(p) for p in class_.params)
    like = split.fused
    return Node(
        name, "call_function", class_.target, args, {}, meta, like.location, like.module, like.module_type
    )
