"""What an annotated graph was made from.

The record in `config` names the nodes that are as they were and holds the others as they were, with a digest of the annotated nodes.
While the digest fits, annotating again begins with the original, so that one contract after another gives what it gives of the
original; a graph that was changed since is taken as it is.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import attrs

from layoutcheck.errors import InputError
from layoutcheck.graph import Graph, Node, TensorMeta
from layoutcheck.json_form import graph_to_json
from layoutcheck.json_reading import FORMAT, graph_from_json

RECORD = "annotated_from"


def recorded(original: Graph, annotated: Graph, contract: str) -> Graph:
    """The annotated graph with the record of what it was made from."""
    now = {n.name: _bare(n) for n in annotated.nodes}
    entries: list[Any] = []
    for node in original.nodes:
        same = now.get(node.name) == node
        entries.append(node.name if same else _plain(node))
    record = {
        "contract": contract,
        "digest": digest(annotated),
        "nodes": entries,
        "inputs": graph_to_json(attrs.evolve(original, nodes=[], config={}, subgraphs={})).get("inputs", {}),
    }
    return attrs.evolve(annotated, config={**annotated.config, RECORD: record})


def original_of(graph: Graph) -> Graph:
    """The graph that an annotated one was made from; the graph itself where there is no record, or one that does not fit."""
    record = graph.config.get(RECORD)
    if not isinstance(record, dict):
        return graph
    config = {k: v for k, v in graph.config.items() if k != RECORD}
    entries = record.get("nodes")
    if record.get("digest") != digest(graph) or not isinstance(entries, list):
        return attrs.evolve(graph, config=config)
    known = {n.name: n for n in graph.nodes}
    plain: list[Any] = []
    for entry in entries:
        if isinstance(entry, str) and entry in known:
            plain.append(_plain(_bare(known[entry])))
        elif isinstance(entry, dict):
            plain.append(entry)
        else:
            return attrs.evolve(graph, config=config)
    document: dict[str, Any] = {
        "format": FORMAT,
        "source": graph.source,
        "rank": graph.rank,
        "config": {},
        "nodes": plain,
    }
    if isinstance(record.get("inputs"), dict):
        document["inputs"] = record["inputs"]
    try:
        found = graph_from_json(document)
    except InputError:
        return attrs.evolve(graph, config=config)
    return attrs.evolve(graph, nodes=found.nodes, inputs=found.inputs or graph.inputs, config=config)


def digest(graph: Graph) -> str:
    """A digest of a graph's nodes."""
    found = hashlib.sha256()
    for node in graph.nodes:
        found.update(json.dumps(_plain(node), sort_keys=True).encode())
    return found.hexdigest()


def _plain(node: Node) -> dict[str, Any]:
    entry: dict[str, Any] = graph_to_json(Graph([node]))["nodes"][0]
    return entry


def _bare(node: Node) -> Node:
    """A node without the layout that annotating wrote to it."""
    meta = node.meta
    if node.op == "call_function" and isinstance(meta, TensorMeta) and meta.layout is not None:
        return attrs.evolve(node, meta=attrs.evolve(meta, layout=None))
    return node
