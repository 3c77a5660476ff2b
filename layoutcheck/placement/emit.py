"""Writing a placement down: the program with its sizes, and the conversions behind the values that they convert."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from layoutcheck.graph import DictArg, Graph, Node, Ref, TensorMeta
from layoutcheck.layouts import Layout, render
from layoutcheck.placement.base import MOVES
from layoutcheck.placement.convert import Converter, meta_of
from layoutcheck.placement.modes import Ways
from layoutcheck.placement.problem import FULL, LOCAL, PARTIAL, Value
from layoutcheck.placement.resize import replaced, resized, size_param, written
from layoutcheck.placement.way import Way
from layoutcheck.program import CALL, PLACEHOLDER, REGION_BEGIN, REGION_COPY, REGION_END

GETITEM = "operator.getitem"


@attrs.frozen
class Inserted:
    """A conversion that was written: its kind, the value, the nodes, and the calls that read it so."""

    kind: str
    value: int
    nodes: tuple[str, ...]
    readers: tuple[int, ...]


@attrs.define
class Emitter:
    """Writes one program. `chosen` is the way of each call, `born` the state in which a value comes to be; `declared` are inputs of
    which the graph is to say what they hold, although that is what it was.
    """

    ways: Ways
    chosen: dict[int, Way]
    born: dict[int, int | None]
    needed: dict[int, dict[int, list[int]]]
    prices: Callable[[int], Value]
    converter: Converter
    declared: frozenset[int] = frozenset()
    names: dict[tuple[int, int | None], str] = attrs.field(factory=dict)
    nodes: list[Node] = attrs.field(factory=list)
    inserted: list[Inserted] = attrs.field(factory=list)

    def write(self) -> Graph:
        """The graph of the placement."""
        base = self.ways.base
        p = base.analysis.program
        graph = base.analysis.graph
        kept = set(base.kept)
        late: list[tuple[int, Node]] = []
        for node in graph.nodes:
            if late and node.op not in ("placeholder", "get_attr"):
                for value, given in late:
                    self._convert(value, given)
                late = []
            k = p.node_call.get(node.name)
            if k is None:
                source = node.args[0]
                assert isinstance(source, Ref)
                if p.node_call.get(source.name) in kept:
                    self._item(node)
                continue
            if k not in kept:
                continue
            new = self._call(k, node)
            self.nodes.append(new)
            if p.outs[k] == 1 or (p.outs[k] and p.by_name.get(node.name) == p.first[k]):
                value = p.first[k]
                if p.outs[k] == 1 and value not in p.value_names:
                    self._named(value, new.name)
                    if node.op in ("placeholder", "get_attr"):
                        late.append((value, new))
                    else:
                        self._convert(value, new)
        nodes = self._alive()
        out = attrs.evolve(graph, nodes=nodes, path=None)
        return out

    def _item(self, node: Node) -> None:
        value = self.ways.base.analysis.program.by_name[node.name]
        of = self._layout(value)
        was = self.ways.base.analysis.solution.typing.types[value]
        kept = of is None or (of is was and not _is_stale(node.meta, of))
        new = node if kept else attrs.evolve(node, meta=meta_of(of))
        self.nodes.append(new)
        first = (value, self.born.get(value)) not in self.names
        if first:
            self._named(value, new.name)
            self._convert(value, new)

    def _named(self, value: int, name: str) -> None:
        self.names[(value, self.born.get(value))] = name

    def _layout(self, value: int) -> Any:
        state = self.born.get(value)
        base = self.ways.base
        if value in base.own:
            return base.full[value]
        return self.ways.layout(value, state)

    # ---- one call

    def _call(self, k: int, node: Node) -> Node:
        base = self.ways.base
        p = base.analysis.program
        way = self.chosen.get(k)
        needs = way.needs if way is not None else (None,) * len(p.inputs[k])
        new = self._renamed(k, node, needs)
        if p.kind[k] in (REGION_BEGIN, REGION_END, REGION_COPY):
            return attrs.evolve(new, meta=self._meta(k, node))
        if p.kind[k] == PLACEHOLDER:
            return attrs.evolve(new, meta=self._input_meta(k, node))
        if p.kind[k] != CALL:
            return new
        instance = base.instance(k)
        wanted = self._layout(p.first[k]) if p.outs[k] else None
        if isinstance(wanted, Layout):
            again = resized(instance, base.analysis.solution.typing.types[p.first[k]], wanted)
            name = size_param(instance)
            if again is not None and name is not None and instance.rule is not None:
                new = written(new, instance.rule, name, again[1])
        if k in base.params and instance.rule is not None:
            new = replaced(new, instance.rule, base.params[k])
        return attrs.evolve(new, meta=self._meta(k, node))

    def _input_meta(self, k: int, node: Node) -> Any:
        """What is recorded of an input; the layout too where it was cut."""
        value = self.ways.base.analysis.program.first[k]
        of = self._layout(value)
        same = of is self.ways.base.analysis.solution.typing.types[value] and value not in self.declared
        if not isinstance(of, Layout) or same:
            return node.meta
        text = render(of, self.ways.base.analysis.mesh.names())
        return TensorMeta(of.shape, of.dtype, text[text.index("[") :])

    def _meta(self, k: int, node: Node) -> Any:
        """What is recorded of a call's results; kept where they are what they were."""
        p = self.ways.base.analysis.program
        types = self.ways.base.analysis.solution.typing.types
        outs = range(p.first[k], p.first[k] + p.outs[k])
        layouts = [self._layout(v) for v in outs]
        metas = node.meta if isinstance(node.meta, tuple) else (node.meta,)
        stale = any(_is_stale(m, of) for m, of in zip(metas, layouts))
        if not stale and all(of is types[v] or not isinstance(of, Layout) for v, of in zip(outs, layouts)):
            return node.meta
        if isinstance(node.meta, tuple):
            return tuple(
                meta_of(layouts[j]) if j < len(layouts) and isinstance(m, TensorMeta) else m
                for j, m in enumerate(node.meta)
            )
        return meta_of(layouts[0]) if layouts else None

    def _renamed(self, k: int, node: Node, needs: tuple[int | None, ...]) -> Node:
        base = self.ways.base
        p = base.analysis.program
        if base.instance(k).bases if p.op[k] >= 0 else ():
            states: dict[int, int | None] = {}
            for v, s in zip(p.inputs[k], needs):
                states.setdefault(base.root(v), s)

            def by_name(name: str) -> str:
                root = base.root(p.by_name[name])
                return self._read(root, states.get(root))

            return attrs.evolve(
                node,
                args=tuple(_mapped(a, by_name) for a in node.args),
                kwargs={n: _mapped(a, by_name) for n, a in node.kwargs.items()},
            )
        slots = iter(zip(p.inputs[k], needs))

        def in_order(name: str) -> str:
            value, state = next(slots)
            del name
            return self._read(base.root(value), state)

        return attrs.evolve(
            node,
            args=tuple(_mapped(a, in_order) for a in node.args),
            kwargs={n: _mapped(a, in_order) for n, a in node.kwargs.items()},
        )

    def _read(self, value: int, state: int | None) -> str:
        """The node to read a value from in a state."""
        found = self.names.get((value, state))
        if found is None:
            found = self.names.get((value, self.born.get(value)))
        if found is None:
            p = self.ways.base.analysis.program
            found = p.nodes[p.value_call[value]].name
        return found

    # ---- conversions

    def _convert(self, value: int, source: Node) -> None:
        born = self.born.get(value)
        needed = self.needed.get(value, {})
        if born is None or not set(needed) - {born, None}:
            return
        for kind, state, start in steps(born, set(needed), self.prices(value)):
            origin = self.names[(value, start)]
            given = (
                source if origin == source.name else next(n for n in reversed(self.nodes) if n.name == origin)
            )
            full = self.ways.base.full[value]
            nodes = self.converter.write(kind, given, full, self.ways.local(value))
            nodes[-1].meta = meta_of(self.ways.layout(value, state))
            self.nodes.extend(nodes)
            self.names[(value, state)] = nodes[-1].name
            self.inserted.append(
                Inserted(kind, value, tuple(n.name for n in nodes), tuple(needed.get(state, ())))
            )

    def _alive(self) -> list[Node]:
        """The nodes without movements that nothing reads any more."""
        base = self.ways.base
        p = base.analysis.program
        used: set[str] = set()
        out: list[Node] = []
        for node in reversed(self.nodes):
            k = p.node_call.get(node.name)
            if node.name not in used and node.op == "call_function":
                if k is None and node.target == GETITEM and isinstance(node.args[0], Ref):
                    k = p.node_call.get(node.args[0].name)
                rule = p.instances[p.op[k]].rule if k is not None and p.op[k] >= 0 else None
                if rule is not None and rule.kind == "code" and rule.code in MOVES and not rule.mutates:
                    read_before = (
                        any(True for _ in base.analysis.uses.get(p.first[k], ())) if k is not None else False
                    )
                    if read_before:
                        continue
            used.update(node.refs())
            out.append(node)
        return out[::-1]


def _is_stale(meta: Any, of: Any) -> bool:
    """Whether a recorded shape is another than the value's, extents of one aside."""
    if not isinstance(meta, TensorMeta) or not isinstance(of, Layout):
        return False
    return [n for n in meta.shape if n != 1] != [n for n in of.shape if n != 1]


def steps(born: int, needed: set[int | None], price: Value) -> list[tuple[str, int, int]]:
    """Conversions `(kind, to, from)` that bring a value to all states in which it is needed, the cheapest ones."""
    wanted = {s for s in needed if s is not None and s != born}
    out: list[tuple[str, int, int]] = []
    if born == PARTIAL:
        ways: list[tuple[int | None, list[tuple[str, int, int]]]] = []
        scatter, reduce = ("reduce_scatter", LOCAL, PARTIAL), ("all_reduce", FULL, PARTIAL)
        if wanted == {FULL}:
            ways.append((price.reduce, [reduce]))
        if FULL in wanted:
            both = None if price.scatter is None or price.gather is None else price.scatter + price.gather
            ways.append((both, [scatter, ("all_gather", FULL, LOCAL)]))
        else:
            ways.append((price.scatter, [scatter]))
        if LOCAL in wanted:
            cut = None if price.reduce is None or price.slice is None else price.reduce + price.slice
            ways.append((cut, [reduce, ("slice", LOCAL, FULL)]))
        if wanted == {LOCAL, FULL}:
            apart = None if price.scatter is None or price.reduce is None else price.scatter + price.reduce
            ways.append((apart, [scatter, reduce]))
        # Of ways that cost the same the one that stands first.
        known = [(paid, way) for paid, way in ways if paid is not None]
        out = min(known, key=lambda entry: entry[0])[1] if known else []
    elif born == LOCAL and FULL in wanted:
        out.append(("all_gather", FULL, LOCAL))
    elif born == FULL and LOCAL in wanted:
        out.append(("slice", LOCAL, FULL))
    return out


def _mapped(arg: Any, rename: Callable[[str], str]) -> Any:
    if type(arg) is Ref:
        return Ref(rename(arg.name))
    if type(arg) is tuple:
        return tuple(_mapped(a, rename) for a in arg)
    if type(arg) is DictArg:
        return DictArg(tuple((k, _mapped(v, rename)) for k, v in arg.items))
    return arg
