"""Editing a graph in its JSON form: uses, insertion, collectives as units, removal of recorded shapes."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .builder import Json
from .engine import refs

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
NAMESPACES = ("tensor_cast.", "_c10d_functional.")


@dataclass(frozen=True)
class Unit:
    """A collective: its node, the node that readers name (its wait_tensor), operand, kind and group."""

    name: str
    out: str
    operand: str
    kind: str
    functional: bool
    size: int
    group: str


def _writes_in_place(target: str) -> bool:
    parts = target.split(".")
    return len(parts) >= 3 and parts[-2].endswith("_")


class Editor:
    """A graph with an index of its nodes, edited in place; every change is remembered in `touched`."""

    def __init__(self, graph: Json) -> None:
        self.graph = graph
        self.nodes: list[Json] = graph["nodes"]
        self.index = {n["name"]: n for n in self.nodes}
        self.rank: int = graph.get("rank") or 0
        if "RANK" in graph["config"]:  # an exporter's own note, where it forgot the field
            self.rank = graph["config"]["RANK"]
        self.touched: set[str] = set()
        for n in self.nodes:
            self._positional(n)

    @staticmethod
    def _positional(node: Json) -> None:
        """Some exports name all arguments, in the schema's order; the edits here count them."""
        edited = ("aten.slice.Tensor", "aten.narrow.default")
        if not node["args"] and (node["target"] in edited or node["target"].startswith(NAMESPACES[1])):
            node["args"] = list(node.pop("kwargs", {}).values())

    def node(self, name: str) -> Json:
        node: Json = self.index[name]
        return node

    def operands(self, node: Json) -> Iterator[str]:
        return refs(node)

    def readers(self, name: str) -> list[Json]:
        return [n for n in self.nodes if name in set(refs(n))]

    def shape(self, name: str) -> list[int | str] | None:
        """The recorded shape, where there is one."""
        meta = self.node(name).get("meta")
        return meta.get("shape") if isinstance(meta, dict) else None

    def live(self) -> set[str]:
        """Nodes that the output or an in-place write depends on."""
        todo = [n["name"] for n in self.nodes if n["op"] == "output" or _writes_in_place(n["target"])]
        seen: set[str] = set()
        while todo:
            name = todo.pop()
            if name not in seen:
                seen.add(name)
                todo += refs(self.node(name))
        return seen

    # ---- collectives

    def collectives(self) -> list[str]:
        """Live collectives over more than one rank."""
        live = self.live()
        names = []
        for n in self.nodes:
            if n["op"] == "call_function" and n["target"].startswith(NAMESPACES) and n["name"] in live:
                op = n["target"].split(".")[1]
                if op.startswith(KINDS) and self.unit(n["name"]).size != 1:
                    names.append(n["name"])
        return names

    def unit(self, name: str) -> Unit:
        """The collective at a node. Size 0 where the graph does not tell."""
        n = self.node(name)
        op = n["target"].split(".")[1]
        kind = next(k for k in KINDS if op.startswith(k))
        operand = next(iter(refs(n)))
        if not n["target"].startswith("_c10d"):
            return Unit(name, name, operand, kind, False, len(n["args"][-1]), "")
        group = str(n["args"][-1])
        waits = [r["name"] for r in self.readers(name) if "wait_tensor" in r["target"]]
        return Unit(name, waits[0] if waits else name, operand, kind, True, self.group_size(group), group)

    def group_size(self, group: str) -> int:
        """The size of a named group: from the config, or from a collective that carries it."""
        ranks = self.graph["config"].get("groups", {}).get(group)
        if ranks is not None:
            return len(ranks)
        for n in self.nodes:
            if n["target"].startswith("_c10d") and n["args"][-1:] == [group]:
                sizes = [a for a in n["args"][1:-1] if isinstance(a, int)]
                if sizes:
                    return sizes[0]
        return int(self.graph["config"].get("world_size", 0))

    # ---- edits

    def before(self, name: str) -> str:
        """The node that stands in front of one."""
        return str(self.nodes[self.nodes.index(self.node(name)) - 1]["name"])

    def insert(self, node: Json, after: str) -> str:
        self.nodes.insert(self.nodes.index(self.node(after)) + 1, node)
        self.index[node["name"]] = node
        self.touched.add(node["name"])
        return str(node["name"])

    def fresh(self, base: str) -> str:
        name, count = base, 0
        while name in self.index:
            count += 1
            name = f"{base}_{count}"
        return name

    def call(self, target: str, args: list[Any], after: str, base: str) -> str:
        """Insert a call without recorded shape."""
        node = {"name": self.fresh(base), "op": "call_function", "target": target, "args": args, "meta": None}
        return self.insert(node, after)

    def copy_unit(self, unit: Unit, operand: str, after: str) -> str:
        """The same collective on another operand; returns the name that readers use."""
        original = self.node(unit.name)
        args = copy.deepcopy(original["args"])
        args[0] = {"node": operand}
        made = self.call(original["target"], args, after, f"{unit.name}_again")
        if unit.out == unit.name:
            return made
        return self.call(self.node(unit.out)["target"], [{"node": made}], made, f"{unit.out}_again")

    def chunk_cat(self, name: str, p: int, chunk_dim: int, cat_dim: int) -> str:
        """Cut a value in p parts along one dimension and join them along another."""
        at = self.call("aten.chunk.default", [{"node": name}, p, chunk_dim], name, "chunk_fault")
        whole, parts = at, []
        for i in range(p):
            at = self.call("operator.getitem", [{"node": whole}, i], at, "part_fault")
            parts.append({"node": at})
        return self.call("aten.cat.default", [parts, cat_dim], at, "cat_fault")

    def replace_uses(self, old: str, new: str, only: list[str] | None = None, first: bool = False) -> None:
        """Readers of `old` read `new`: all of them, or those named; `first`: only their first mention."""
        state = {"left": 1 if first else -1}

        def walk(arg: Any) -> Any:
            if isinstance(arg, dict):
                if arg == {"node": old} and state["left"] != 0:
                    state["left"] -= 1
                    return {"node": new}
                return {k: walk(v) for k, v in arg.items()} if set(arg) != {"node"} else arg
            return [walk(item) for item in arg] if isinstance(arg, list) else arg

        for n in self.nodes:
            if n["name"] != new and (only is None or n["name"] in only) and old in set(refs(n)):
                n["args"] = walk(n["args"])
                if n.get("kwargs"):
                    n["kwargs"] = walk(n["kwargs"])
                self.touched.add(n["name"])

    def remove(self, name: str) -> None:
        self.nodes.remove(self.index.pop(name))
        self.touched.discard(name)

    def strip_below(self) -> None:
        """Remove what is recorded on every call that depends on a change."""
        tainted = set(self.touched)
        for n in self.nodes:
            if n["name"] in tainted or tainted & set(refs(n)):
                tainted.add(n["name"])
                if n["op"] == "call_function":
                    n["meta"] = None
