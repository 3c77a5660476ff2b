"""Undoing fusion: each fused op as the ops that it stands for, so that graphs compare up to fusion classes."""

from __future__ import annotations

from typing import Any

import attrs

from layoutcheck.errors import InputError
from layoutcheck.graph import Graph, Node, Ref
from layoutcheck.regions.arguments import copied, rebuilt, renamed
from layoutcheck.regions.fusion_rules import FusionBook, FusionClass
from layoutcheck.regions.names import Names
from layoutcheck.rules.rulebook import RuleBook

GETITEM = "operator.getitem"


@attrs.define
class Split:
    """What a fused node was split into: the node itself, the nodes that read its outputs, the parts' names in order."""

    fused: Node
    items: list[Node]
    parts: list[str]
    class_: FusionClass


def unfuse(
    graph: Graph,
    *,
    book: RuleBook | None = None,
    fusion: FusionBook | None = None,
    splits: dict[str, Split] | None = None,
) -> Graph:
    """The graph with every fused op that has a class written as its parts.

    Args:
        graph: the graph; returned as it is where nothing is fused.
        book: the rule book, which binds the fused ops' arguments.
        fusion: the classes; the shipped ones by default.
        splits: filled with what was split, by the fused node's name.

    A fused op whose arguments do not fit its rule stays as it is.
    """
    fusion = FusionBook.load() if fusion is None else fusion
    classes = fusion.classes
    fused = {n.name for n in graph.nodes if n.target in classes and n.op == "call_function"}
    if not fused:
        return graph
    book = RuleBook.load() if book is None else book
    items: dict[str, list[Node]] = {}
    for node in graph.nodes:
        if node.target == GETITEM and len(node.args) == 2 and type(node.args[0]) is Ref:
            source = node.args[0].name
            if source in fused:
                items.setdefault(source, []).append(node)
    for node in graph.nodes:
        # What reads a tuple of outputs as a whole would have nothing to read.
        if node.target != GETITEM:
            fused.difference_update(r for r in node.refs() if r in fused and _several(graph, r, classes))
    names = Names(n.name for n in graph.nodes)
    moved: dict[str, str] = {}
    gone: set[str] = set()
    out: list[Node] = []

    def rename(name: str) -> str:
        return moved.get(name, name)

    for node in graph.nodes:
        name = node.name
        if name in gone:
            continue
        if name in fused:
            found = _split(node, items.get(name, []), classes[node.target], book, names, rename)
            if found is not None:
                parts, renames, split = found
                out.extend(parts)
                moved.update(renames)
                gone.update(item.name for item in split.items)
                if splits is not None:
                    splits[name] = split
                continue
        out.append(copied(node, name, rename) if moved else node)
    return rebuilt(out, graph)


def _several(graph: Graph, name: str, classes: dict[str, FusionClass]) -> bool:
    return len(classes[graph.node(name).target].outputs) > 1


def _split(
    node: Node, items: list[Node], class_: FusionClass, book: RuleBook, names: Names, rename: Any
) -> tuple[list[Node], dict[str, str], Split] | None:
    rule = book.lookup(node.target)
    try:
        bound = rule.bind(node.args, node.kwargs) if rule is not None else None
    except InputError:
        return None
    if bound is None or any(p not in bound for p in class_.params):
        return None
    values: dict[str, Any] = {p: renamed(bound[p], rename) for p in class_.params}
    outputs = class_.outputs
    metas = node.meta if isinstance(node.meta, tuple) and len(node.meta) == len(outputs) else None
    meta_of = dict(zip(outputs, metas)) if metas is not None else {}
    if metas is None and len(outputs) == 1:
        meta_of = {outputs[0]: node.meta}
    wanted: dict[str, Node] = {}
    extra: list[tuple[Node, str]] = []
    for item in items:
        index = item.args[1]
        if type(index) is not int or not -len(outputs) <= index < len(outputs) or len(outputs) == 1:
            return None
        label = outputs[index]
        if label in wanted:
            extra.append((item, label))
        else:
            wanted[label] = item
    moved: dict[str, str] = {}
    nodes: list[Node] = []
    parts: list[str] = []
    for number, part in enumerate(class_.parts):
        args = tuple([values[a] for a in part.args])
        if len(part.results) == 1:
            label = part.results[0]
            reader = wanted.get(label)
            own = reader.name if reader is not None else None
            if own is None:
                own = (
                    node.name
                    if outputs == (label,)
                    else names.fresh(f"{node.name}_{label}" if number else f"{node.name}_part")
                )
            new = Node(own, "call_function", part.target, args, {}, meta_of.get(label))
            nodes.append(_placed(new, node))
            values[label] = Ref(own)
            parts.append(own)
            continue
        whole = names.fresh(f"{node.name}_part{number}")
        meta = tuple([meta_of.get(label) for label in part.results])
        meta_ = meta if any(m is not None for m in meta) else None
        nodes.append(_placed(Node(whole, "call_function", part.target, args, {}, meta_), node))
        parts.append(whole)
        for j, label in enumerate(part.results):
            reader = wanted.get(label)
            own = reader.name if reader is not None else names.fresh(f"{node.name}_{label}")
            nodes.append(
                _placed(Node(own, "call_function", GETITEM, (Ref(whole), j), {}, meta_of.get(label)), node)
            )
            values[label] = Ref(own)
            parts.append(own)
    for item, label in extra:
        moved[item.name] = values[label].name
    if len(outputs) == 1:
        moved[node.name] = values[outputs[0]].name
    return nodes, moved, Split(node, items, parts, class_)


def _placed(new: Node, like: Node) -> Node:
    new.location, new.module, new.module_type = like.location, like.module, like.module_type
    return new
