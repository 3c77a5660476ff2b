"""Collectives that take lists of tensors, a tensor a rank, written out as the flat collective between a join and a split.

`allgather_([[o0, o1]], [x])` is an all_gather of x whose halves are copied into o0 and o1; a reduce_scatter or an all_to_all
of a list is that of the list's tensors one after another. A rule says so with `code pieces`: `flat` names the collective
that does the same on one tensor. What does not hold one tensor a rank stays a call, which the rule refuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from layoutcheck.errors import InputError
from layoutcheck.graph import DictArg, Graph, Node, Ref, TensorMeta
from layoutcheck.inline import inline_subgraphs
from layoutcheck.rules.rulebook import RuleBook
from layoutcheck.rules.types import Rule

CODE = "pieces"
Names = dict[str, str]


def flatten_lists(graph: Graph, book: RuleBook) -> tuple[Graph, Names]:
    """The graph with list collectives written out, and the names of values that went, by the name of what they are now."""
    rules = {t: book.lookup(t) for t in {n.target for n in graph.nodes if n.op == "call_function"}}
    named = {t: r for t, r in rules.items() if r is not None and r.kind == "code" and r.code == CODE}
    if not named:
        return graph, {}
    writer = _Writer(graph, named, book)
    return attrs.evolve(graph, nodes=writer.write()), writer.gone


def written_out(graph: Graph, book: RuleBook) -> tuple[Graph, Names]:
    """The graph as it is typed: subgraphs and list collectives written out; names as of `flatten_lists`."""
    graph, inlined = inline_subgraphs(graph)
    graph, flattened = flatten_lists(graph, book)
    return graph, {**{name: flattened.get(now, now) for name, now in inlined.items()}, **flattened}


class _Writer:
    def __init__(self, graph: Graph, rules: Mapping[str, Rule], book: RuleBook) -> None:
        self.graph, self.rules, self.book = graph, rules, book
        self.metas = {n.name: n.meta for n in graph.nodes}
        self.taken = set(self.metas)
        self.nodes: list[Node] = []
        self.results: dict[
            str, Any
        ] = {}  # nested results of calls that were written out, by name of what reads them
        self.gone: Names = {}

    def write(self) -> list[Node]:
        """The nodes, in order."""
        for node in self.graph.nodes:
            if self._getitem(node):
                continue
            rule = self.rules.get(node.target) if node.op == "call_function" else None
            if rule is None or not self._written(node, rule):
                self.nodes.append(self._renamed(node))
        return self.nodes

    def _getitem(self, node: Node) -> bool:
        """Follow a read of a nested result; what it comes to at last is the tensor that was written."""
        if node.target != "operator.getitem" or len(node.args) != 2:
            return False
        source, index = node.args
        held = self.results.get(source.name) if isinstance(source, Ref) else None
        if not isinstance(held, tuple) or not isinstance(index, int) or not -len(held) <= index < len(held):
            return False
        self.results[node.name] = held[index]
        if isinstance(held[index], Ref):
            self.gone[node.name] = held[index].name
        return True

    def _renamed(self, node: Node) -> Node:
        if not self.gone or not any(name in self.gone for name in node.refs()):
            return node
        kwargs = {k: self._arg(v) for k, v in node.kwargs.items()}
        return attrs.evolve(node, args=tuple(self._arg(a) for a in node.args), kwargs=kwargs)

    def _arg(self, arg: Any) -> Any:
        if isinstance(arg, Ref):
            return Ref(self.gone.get(arg.name, arg.name))
        if isinstance(arg, tuple):
            return tuple(self._arg(a) for a in arg)
        if isinstance(arg, DictArg):
            return DictArg(tuple((k, self._arg(v)) for k, v in arg.items))
        return arg

    # ---- one call

    def _written(self, node: Node, rule: Rule) -> bool:
        flat = self.book.lookup(rule.options.get("flat", ""))
        try:
            given = rule.bind(self._renamed(node).args, node.kwargs)
        except InputError:
            return False
        inputs, outputs = given.get(rule.options.get("x", "")), given.get(rule.options.get("out", ""))
        if flat is None or self._read_otherwise(node) or not isinstance(inputs, (tuple, list)):
            return False
        if not isinstance(outputs, (tuple, list)):
            return False
        nested = any(isinstance(a, (tuple, list)) for a in (*inputs, *outputs))
        # a flat list of both is one exchange; else there is one an entry of the outer lists
        entries = list(zip(inputs, outputs, strict=False)) if nested else [(tuple(inputs), tuple(outputs))]
        if nested and len(inputs) != len(outputs):
            return False
        if not all(_refs(x) and _refs(y) and (_count(x), _count(y)) != (0, 0) for x, y in entries):
            return False
        for i, (read, written) in enumerate(entries):
            self._exchange(node, flat, rule, given, (read, written), "" if i == 0 else f".{i}")
        whole = tuple(tuple(w) if isinstance(w, (tuple, list)) else w for w in outputs)
        self.results[node.name] = (whole, None)
        return True

    def _read_otherwise(self, node: Node) -> bool:
        """Whether something but a getitem reads the call's result."""
        return any(
            n.target != "operator.getitem" for n in self.graph.nodes if any(r == node.name for r in n.refs())
        )

    def _exchange(
        self, node: Node, flat: Rule, rule: Rule, given: Mapping[str, Any], ends: tuple[Any, Any], suffix: str
    ) -> None:
        read, written = ends
        many = list(read) if isinstance(read, (tuple, list)) else [read]
        into = list(written) if isinstance(written, (tuple, list)) else [written]
        source = many[0]
        if isinstance(read, (tuple, list)):
            source = self._add(node, f"{suffix}.joined", "aten.cat.default", (tuple(many), 0))
        ranks = max(len(many), len(into))
        flat_args: dict[str, Any] = {}
        for meaning, param in flat.options.items():
            if meaning == "x":
                flat_args[param] = source
            elif meaning == "size":
                flat_args[param] = ranks
            elif meaning in rule.options and rule.options[meaning] in given:
                flat_args[param] = given[rule.options[meaning]]
        for own in flat.params:
            if own.name.endswith("_split_sizes"):
                flat_args[own.name] = self._sizes(many if own.name.startswith("input") else into)
        ordered = tuple(flat_args.get(p.name) for p in flat.params)
        whole = self._add(node, suffix, flat.target, ordered)
        if not isinstance(written, (tuple, list)):
            self._add(node, f"{suffix}.0", "aten.copy_.default", (into[0], whole))
            return
        sizes = self._sizes(into)
        if sizes is None:
            pieces = self._add(node, f"{suffix}.pieces", "aten.chunk.default", (whole, ranks, 0))
        else:
            pieces = self._add(node, f"{suffix}.pieces", "aten.split_with_sizes.default", (whole, sizes, 0))
        for j, target in enumerate(into):
            piece = self._add(node, f"{suffix}.piece{j}", "operator.getitem", (pieces, j))
            self._add(node, f"{suffix}.{j}", "aten.copy_.default", (target, piece))

    def _sizes(self, tensors: list[Any]) -> tuple[Any, ...] | None:
        """Recorded rows of tensors where they differ; None where they are alike, or not known."""
        metas = [self.metas.get(t.name) for t in tensors]
        rows = [m.shape[0] for m in metas if isinstance(m, TensorMeta) and m.shape]
        return tuple(rows) if len(rows) == len(tensors) and len(set(rows)) > 1 else None

    def _add(self, node: Node, suffix: str, target: str, args: tuple[Any, ...]) -> Ref:
        name = f"{node.name}{suffix}"
        while suffix and name in self.taken:
            name += "_"
        self.taken.add(name)
        self.nodes.append(attrs.evolve(node, name=name, target=target, args=args, kwargs={}, meta=None))
        return Ref(name)


def _refs(arg: Any) -> bool:
    return all(isinstance(a, Ref) for a in arg) if isinstance(arg, (tuple, list)) else isinstance(arg, Ref)


def _count(arg: Any) -> int:
    return len(arg) if isinstance(arg, (tuple, list)) else 0
