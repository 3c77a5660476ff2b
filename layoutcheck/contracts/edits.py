"""Edits of a program's graph: what a contract finding's repair does to it, so that the repaired graph can be checked.

Edits speak of the calls and values of the program that was checked. `edited` writes the graph anew with all of them at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from layoutcheck.graph import DictArg, Graph, Node, Ref
from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.mesh import Group
from layoutcheck.regions.names import Names
from layoutcheck.symbols import Size


@attrs.frozen
class Drop:
    """Leave a call out: what read it reads its operand `source`."""

    call: int
    source: int


@attrs.frozen
class Exchange:
    """Another conversion of the operand `source` in a call's place."""

    call: int
    source: int
    kind: str
    dim: int


@attrs.frozen
class Convert:
    """A conversion of a value for some of its readers; behind the call that makes it."""

    value: int
    kind: str
    dim: int
    unpad: bool
    readers: frozenset[int]


@attrs.frozen
class Reroute:
    """A reader reads another value, of the same content, instead of one."""

    reader: int
    value: int
    instead: int


@attrs.frozen
class Resize:
    """Sizes in an argument of a call, by their place in it."""

    call: int
    param: str
    sizes: tuple[tuple[int, Size], ...]


Edit = Drop | Exchange | Convert | Reroute | Resize


def edited(analysis: Analysis, group: Group, edits: list[Edit]) -> Graph:
    """The graph with all edits. Names of nodes stay; inserted ones have names of their own."""
    return _Writer(analysis, group, edits).write()


class _Writer:
    def __init__(self, analysis: Analysis, group: Group, edits: list[Edit]) -> None:
        self.p, self.graph, self.group = analysis.program, analysis.graph, group
        self.ranks = next((r for r, g in analysis.mesh.by_ranks.items() if g.axes == group.axes), None)
        rank = analysis.mesh.rank_in(group)
        self.rank = self.ranks[rank] if self.ranks is not None and rank is not None else None
        self.dropped = {e.call: e.source for e in edits if isinstance(e, Drop)}
        self.exchanged = {e.call: e for e in edits if isinstance(e, Exchange)}
        self.resized = {e.call: e for e in edits if isinstance(e, Resize)}
        self.rerouted = {(e.reader, e.value): e.instead for e in edits if isinstance(e, Reroute)}
        names = Names(node.name for node in self.graph.nodes)
        self.behind: dict[int, list[tuple[Convert, str]]] = {}
        self.converted: dict[tuple[int, int], str] = {}
        for edit in edits:
            if isinstance(edit, Convert):
                name = names.fresh(f"repaired_{edit.kind}")
                self.behind.setdefault(edit.value, []).append((edit, name))
                self.converted.update({(reader, edit.value): name for reader in edit.readers})

    def write(self) -> Graph:
        nodes: list[Node] = []
        late: list[int] = []
        for node in self.graph.nodes:
            if late and node.op not in ("placeholder", "get_attr"):
                nodes.extend(made for value in late for made in self._behind(value))
                late = []
            call = self.p.node_call.get(node.name)
            made = self.p.by_name.get(node.name)
            if call is None:
                nodes.append(node)
            elif call not in self.dropped:
                nodes.append(self._call(call, node))
            if made is None or (call is not None and self.p.outs[call] != 1):
                continue
            if call is None and self.p.value_names.get(made) != node.name:
                continue
            if node.op in ("placeholder", "get_attr"):
                late.append(made)
            else:
                nodes.extend(self._behind(made))
        return attrs.evolve(self.graph, nodes=nodes, path=None)

    def _behind(self, value: int) -> Iterator[Node]:
        for edit, name in self.behind.get(value, ()):
            like = self.p.nodes[self.p.value_call[value]]
            args = self._conversion(edit.kind, self._name(value, -1), edit.dim)
            kwargs: dict[str, Any] = {"unpad": True} if edit.unpad else {}
            target = f"layoutcheck.{edit.kind}"
            yield Node(name, "call_function", target, args, kwargs, None, None, like.module, like.module_type)

    def _conversion(self, kind: str, source: str, dim: int) -> tuple[Any, ...]:
        if self.ranks is not None:
            return (Ref(source), dim, None, None, self.rank, self.ranks)
        return (Ref(source), dim, self.group.name, self.group.size, None, None)

    def _call(self, call: int, node: Node) -> Node:
        exchange = self.exchanged.get(call)
        if exchange is not None:
            args = self._conversion(exchange.kind, self._name(exchange.source, call), exchange.dim)
            return attrs.evolve(node, target=f"layoutcheck.{exchange.kind}", args=args, kwargs={}, meta=None)
        new = attrs.evolve(
            node,
            args=tuple(self._argument(call, a) for a in node.args),
            kwargs={key: self._argument(call, a) for key, a in node.kwargs.items()},
        )
        resize = self.resized.get(call)
        return new if resize is None else _resized(new, self.p.instances[self.p.op[call]].rule, resize)

    def _argument(self, call: int, arg: Any) -> Any:
        if isinstance(arg, Ref):
            value = self.p.by_name.get(arg.name)
            if value is None:
                return arg
            name = self._name(value, call)
            return arg if name == self.p.name_of(value) else Ref(name)
        if isinstance(arg, tuple):
            return tuple(self._argument(call, a) for a in arg)
        if isinstance(arg, DictArg):
            return DictArg(tuple((key, self._argument(call, a)) for key, a in arg.items))
        return arg

    def _name(self, value: int, reader: int) -> str:
        """The node from which a reader gets a value."""
        value = self.rerouted.get((reader, value), value)
        while True:
            name = self.converted.get((reader, value))
            if name is not None:
                return name
            source = self.dropped.get(self.p.value_call[value])
            if source is None:
                return self.p.name_of(value)
            value = source


def _resized(node: Node, rule: Any, edit: Resize) -> Node:
    """The node with other sizes in one argument, by name or by its place."""

    def changed(given: Any) -> Any:
        sizes = dict(edit.sizes)
        return tuple(sizes.get(i, size) for i, size in enumerate(given))

    if edit.param in node.kwargs:
        return attrs.evolve(node, kwargs={**node.kwargs, edit.param: changed(node.kwargs[edit.param])})
    at = list(rule.param_names).index(edit.param)
    args = (*node.args[:at], changed(node.args[at]), *node.args[at + 1 :])
    return attrs.evolve(node, args=args)
