"""Changes that leave a program what it is, and so must leave its findings: names, recorded shapes, origins.

Each takes a graph in the JSON form and returns another; `rename` also returns the new names.
"""

from __future__ import annotations

import copy
import random
from typing import Any

from .builder import Json

KEPT = ("name", "op", "target", "args", "kwargs", "meta")


def strip_shapes(graph: Json) -> Json:
    """Remove all that is recorded of computed values; inputs and constants keep theirs."""
    graph = copy.deepcopy(graph)
    for node in graph["nodes"]:
        if node["op"] == "call_function":
            node["meta"] = None
    return graph


def anonymise(graph: Json) -> Json:
    """Remove where values come from: the model's names of weights, module paths, source lines."""
    graph = copy.deepcopy(graph)
    for node in graph["nodes"]:
        for key in set(node) - set(KEPT):
            del node[key]
    for spec in graph.get("inputs", {}).values():
        if isinstance(spec, dict):
            spec.pop("fqn", None)
    graph["source"] = ""
    return graph


def rename(graph: Json, seed: int = 0) -> tuple[Json, dict[str, str]]:
    """Give every node another name, without order or meaning."""
    rng = random.Random(seed)
    graph = copy.deepcopy(graph)
    bodies = set(graph.get("subgraphs", {}))
    names: dict[str, str] = {}
    taken: set[str] = set()
    for node in graph["nodes"]:
        new = f"v{rng.randrange(16**8):08x}"
        while new in taken:
            new = f"v{rng.randrange(16**8):08x}"
        taken.add(new)
        names[node["name"]] = new

    def walk(arg: Any) -> Any:
        if isinstance(arg, dict):
            if set(arg) == {"node"}:
                return {"node": names[arg["node"]]}
            return {key: walk(item) for key, item in arg.items()}
        return [walk(item) for item in arg] if isinstance(arg, list) else arg

    for node in graph["nodes"]:
        old = node["name"]
        node["name"] = names[old]
        if node["op"] in ("placeholder", "output") or (
            node["op"] == "get_attr" and node["target"] not in bodies
        ):
            node["target"] = node["name"]
        node["args"] = walk(node["args"])
        if node.get("kwargs"):
            node["kwargs"] = walk(node["kwargs"])
    if "inputs" in graph:
        graph["inputs"] = {names[name]: spec for name, spec in graph["inputs"].items()}
    return graph, names
