"""Writing every repeat of a region out.

The written body is the first repeat; each copy marker becomes one more copy of it, with the weights and caches of its own (new
inputs behind the written ones) and the shared inputs of all. Layers are numbered on, in module paths and names of weights. What the
graph's output reads inside of a body (written caches) it reads of every repeat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from layoutcheck.errors import InputError
from layoutcheck.graph import Graph, InputSpec, Node, Ref
from layoutcheck.regions.arguments import copied, rebuilt, renamed
from layoutcheck.regions.layers import LayerPaths, Where
from layoutcheck.regions.markers import BEGIN, COPY, Marker, Region, find_markers, find_regions
from layoutcheck.regions.names import Names
from layoutcheck.regions.own import RECORD, own_inputs
from layoutcheck.regions.repeats import set_repeats, wanted_repeats
from layoutcheck.rules.rulebook import RuleBook

MAX_NODES = 5_000_000


@attrs.define
class Origins:
    """Where the nodes of an expanded graph come from: per new name, the node that was copied and per region around it
    (outermost first) its id and the number of the repeat, from 0."""

    of: dict[str, tuple[str, Where]] = attrs.field(factory=dict)


def expand(
    graph: Graph,
    *,
    repeats: Sequence[int] | Mapping[int, int] | None = None,
    rules: Sequence[str | Path] = (),
    book: RuleBook | None = None,
    origins: Origins | None = None,
) -> Graph:
    """The same program without regions.

    Args:
        graph: the graph; one without regions is returned as it is.
        repeats: other numbers of repeats than the graph's own, for the regions of the outermost level in their order, or by id.
        rules: folders of further op rules.
        book: the rule book, where it is loaded already.
        origins: filled with where the nodes come from.

    Raises:
        InputError: markers that do not pair up, a body whose inner values are read from outside without a marker, a number
            of repeats below 1, or more than 5,000,000 nodes.
    """
    book = RuleBook.load([Path(r) for r in rules]) if book is None else book
    markers = find_markers(graph, book)
    if not markers:
        return graph
    regions = find_regions(graph, book, markers)
    _check_size(graph, regions, {} if repeats is None else wanted_repeats(regions, repeats))
    if repeats is not None:
        graph = set_repeats(graph, repeats, book=book)
        markers = find_markers(graph, book)
    return _Expansion(graph, book, markers, Origins() if origins is None else origins).run()


def expand_ends(graph: Graph, ends: Mapping[int, tuple[int, int]], *, book: RuleBook | None = None) -> Graph:
    """The same program with the first and the last repeats of regions written out; what is left of each stays a region.

    Args:
        graph: a graph with regions.
        ends: per region how many repeats to write out in front and behind. A region of which one repeat or none is left is
            written out as a whole; regions that are not named stay as they are.
        book: the rule book, where it is loaded already.

    Raises:
        InputError: as `expand`.
    """
    book = RuleBook.load() if book is None else book
    markers = find_markers(graph, book)
    return _Expansion(graph, book, markers, Origins(), ends).run()


def _check_size(graph: Graph, regions: list[Region], wanted: dict[int, int]) -> None:
    by_id = {r.id: r for r in regions}
    total = len(graph.nodes)
    for region in regions:
        times, at = 1, region
        while True:
            times *= wanted.get(at.id, at.repeats)
            if at.parent is None:
                break
            at = by_id[at.parent]
        total += times * (region.ends[-1] - region.begins[0])
    if total > MAX_NODES:
        raise InputError(f"expanded it would have more than {MAX_NODES} nodes", graph.path)


class Scope:
    """What names stand for in one instance of a body; what it does not define it has from the instance around it."""

    __slots__ = ("names", "parent")

    def __init__(self, parent: Scope | None = None) -> None:
        self.names: dict[str, str] = {}
        self.parent = parent

    def __call__(self, name: str) -> str:
        scope: Scope | None = self
        while scope is not None:
            found = scope.names.get(name)
            if found is not None:
                return found
            scope = scope.parent
        return name


class _Expansion:
    def __init__(
        self,
        graph: Graph,
        book: RuleBook,
        markers: dict[int, Marker],
        origins: Origins,
        apart: Mapping[int, tuple[int, int]] | None = None,
    ) -> None:
        self.graph, self.markers, self.origins = graph, markers, origins
        self.regions = find_regions(graph, book, markers)
        self.by_id = {r.id: r for r in self.regions}
        self.rounds = {i: (n, r) for g in self.regions for n, r in enumerate(g.copies, 1) for i in r}
        self.own = own_inputs(graph, self.regions, book)
        self.paths = LayerPaths(graph, self.regions, self.own)
        self.names = Names(n.name for n in graph.nodes)
        self.node = {n.name: n for n in graph.nodes}
        self.out: list[Node] = []
        self.inputs: dict[str, list[Node]] = {}
        self.specs = dict(graph.inputs)
        self.home = self._homes()
        self.instances: dict[str, list[str]] = {name: [] for name in self.home}
        # Per region the first and the last repeats that are written out; None: all of all regions.
        self.apart = apart
        self.numbers: dict[int, int] = {}
        self.used: set[int] = set()
        self.record: dict[str, dict[str, list[str]]] = {}

    def run(self) -> Graph:
        """Emit all nodes, then put the new inputs behind those that they are copies of."""
        self._span(0, len(self.graph.nodes), Scope(), ())
        nodes: list[Node] = []
        for node in self.out:
            nodes.append(node)
            nodes.extend(self.inputs.get(node.name, ()))
        config = {k: v for k, v in self.graph.config.items() if k != RECORD}
        if self.record:
            config[RECORD] = self.record
        return rebuilt(nodes, self.graph, inputs=self.specs, config=config)

    def _homes(self) -> dict[str, int]:
        """The innermost region of the values inside of bodies that the output reads."""
        nodes = self.graph.nodes
        place = {n.name: i for i, n in enumerate(nodes)}
        home: dict[str, int] = {}
        crossing: list[tuple[Node, str, Region]] = []
        bodies = sorted(self.regions, key=lambda r: r.ends[-1] - r.begins[0])
        inside: list[Region | None] = [None] * len(nodes)
        for region in reversed(bodies):
            inside[region.begins[0] + 1 : region.ends[-1]] = [region] * (
                region.ends[-1] - region.begins[0] - 1
            )
        for i, node in enumerate(nodes):
            for name in node.refs():
                at = place.get(name, -1)
                around = inside[at] if at >= 0 else None
                if around is None or at in self.markers or nodes[at].op in ("placeholder", "get_attr"):
                    continue
                if around.spans(i):
                    continue
                if node.op == "output":
                    home[name] = around.id
                else:
                    crossing.append((node, name, around))
        for node, name, region in crossing:
            if name in self._varying(region):
                raise InputError(
                    f"it reads {name} inside of region {region.id}; a value leaves a region through an end marker",
                    node.name,
                )
        return home

    def _varying(self, region: Region) -> set[str]:
        """Names in a body whose values differ from repeat to repeat."""
        varying = set(self.own[region.id])
        nodes = self.graph.nodes
        varying.update(nodes[i].name for i in region.begins)
        for i in range(region.begins[0] + 1, region.ends[-1]):
            if any(name in varying for name in nodes[i].refs()):
                varying.add(nodes[i].name)
        return varying

    def _kept(self, region: Region) -> range:
        """The repeats that stay a region, by number; empty where all are written out."""
        if self.apart is None:
            return range(0)
        first, last = self.apart.get(region.id, (0, 0))
        kept = range(first, region.repeats - last)
        return kept if len(kept) > 1 or (region.repeats == 1 and region.id not in self.apart) else range(0)

    def _span(self, low: int, high: int, env: Scope, where: Where) -> None:
        """Emit the nodes `low .. high`. `env` renames: it holds what this instance of the body has defined."""
        nodes, markers = self.graph.nodes, self.markers
        done: set[int] = set()
        for i in range(low, high):
            marker = markers.get(i)
            if marker is None:
                self._emit(nodes[i], env, where)
                continue
            region = self.by_id[marker.region]
            if marker.kind != COPY:
                # A further repeat has its begin markers' values already.
                if nodes[i].name not in env.names:
                    number = next((n for r, n in reversed(where) if r == region.id), 0)
                    env.names[nodes[i].name] = self._marked(i, i, env, env, number, where)
                if marker.kind == BEGIN:
                    where = (*where, (marker.region, 0)) if i == region.begins[0] else where
                elif i == region.ends[-1]:
                    where = where[:-1]
            elif i not in done:
                done.update(self._repeat(i, env, where))

    def _marked(self, at: int, copy: int, env: Scope, inside: Scope, number: int, where: Where) -> str:
        """What a marker of repeat `number` gives: a marker where the repeat stays part of a region, else the value it reads.

        Args:
            at: the marker of the written body.
            copy: the one that is read from: `at`, or the copy that stands for this repeat.
            env: the names around the region; `inside`: those of the repeat, in which an end marker reads.
        """
        marker = self.markers[at]
        region = self.by_id[marker.region]
        kept = self._kept(region)
        value = env(self.markers[copy].value) if marker.kind == BEGIN else inside(marker.value)
        if number not in kept or number > kept[0]:
            return value
        if marker.kind == BEGIN and at == region.begins[0]:
            self._number(region, inside)
        return self._marker(self.graph.nodes[at], value, region, number, where)

    def _number(self, region: Region, inside: Scope) -> None:
        """Number a region that is written: its own number first, then new ones."""
        mine = region.id
        if mine in self.used:
            mine = max([*self.used, *self.by_id]) + 1
        self.used.add(mine)
        self.numbers[region.id] = mine
        own = sorted(inside(name) for name in self.own[region.id])
        if RECORD in self.graph.config:
            self.record[str(mine)] = {"own": own}

    def _marker(self, like: Node, value: str, region: Region, number: int, where: Where) -> str:
        """Write a marker that reads this value, and return its name."""
        old = next(r for r in like.refs())
        first = number == 0 and all(n == 0 for _, n in where)
        name = like.name if first else self.names.repeat(like.name, number)
        node = copied(like, name, lambda ref: value if ref == old else ref)
        mine = self.numbers[region.id]
        node.args = tuple(mine if type(a) is int and a == region.id else a for a in node.args)
        node.kwargs = {k: mine if type(a) is int and a == region.id else a for k, a in node.kwargs.items()}
        self.out.append(node)
        return name

    def _repeat(self, index: int, env: Scope, where: Where) -> list[int]:
        """Write one more repeat out, or the markers that stand for it, and return the copy markers that it is for."""
        nodes, markers = self.graph.nodes, self.markers
        region = self.by_id[markers[index].region]
        number, round_ = self.rounds[index]
        kept = self._kept(region)
        if number in kept and number > kept[0]:
            for copy in round_:
                value = env(markers[copy].value)
                env.names[nodes[copy].name] = self._marker(nodes[copy], value, region, 0, where)
            return round_
        body = Scope(env)
        for name in self.own[region.id]:
            body.names[name] = self._own(name, env(name), number, (*where, (region.id, number)))
        for at, copy in zip(region.begins, round_):
            body.names[nodes[at].name] = self._marked(at, copy, env, body, number, where)
        self._span(region.begins[0] + 1, region.ends[-1], body, (*where, (region.id, number)))
        for at, copy in zip(region.ends, round_):
            end = nodes[at].name
            if end not in body.names:
                body.names[end] = self._marked(at, copy, env, body, number, where)
            env.names[nodes[copy].name] = body.names[end]
        return round_

    def _own(self, name: str, like: str, number: int, where: Where) -> str:
        """One more input for a repeat, like the one that the written body reads."""
        node = self.node[name]
        new = self.names.repeat(like, number)
        self.inputs.setdefault(name, []).append(
            copied(node, new, _same, self.paths.moved(name, node.module, where))
        )
        spec = self.graph.inputs.get(name)
        if spec is not None:
            self.specs[new] = InputSpec(spec.kind, self.paths.moved(name, spec.fqn, where))
        self.origins.of[new] = (name, ())
        return new

    def _emit(self, node: Node, env: Scope, where: Where) -> None:
        name = node.name
        first = not where or all(number == 0 for _, number in where)
        if node.op in ("placeholder", "get_attr"):
            if first:
                self.out.append(node)
            return
        if node.op == "output":
            self.out.append(self._output(node, env))
            return
        if first:
            # Only what marker nodes gave has another name by now.
            new = name
        else:
            new = env.names[name] = self.names.repeat(name, where[-1][1])
        if where:
            self.origins.of[new] = (name, where)
            if name in self.instances:
                self.instances[name].append(new)
        self.out.append(copied(node, new, env, self.paths.moved(name, node.module, where)))

    def _output(self, node: Node, env: Scope) -> Node:
        """The output reads values inside of a body once a repeat: runs of them, repeat by repeat."""
        args = node.args
        layouts = node.meta if isinstance(node.meta, tuple) else None
        if len(args) == 1 and isinstance(args[0], tuple):
            items, metas = self._spread(args[0], layouts, env)
            args = (items,)
            layouts = metas
        else:
            args = tuple([renamed(a, env) for a in args])
        meta = layouts if isinstance(node.meta, tuple) else node.meta
        return Node(
            node.name,
            node.op,
            node.target,
            args,
            dict(node.kwargs),
            meta,
            node.location,
            node.module,
            node.module_type,
        )

    def _spread(
        self, items: tuple[Any, ...], metas: tuple[Any, ...] | None, env: Scope
    ) -> tuple[tuple[Any, ...], tuple[Any, ...] | None]:
        if metas is not None and len(metas) != len(items):
            metas = None
        out: list[Any] = []
        new_metas: list[Any] = []
        at = 0
        while at < len(items):
            region = self._region_of(items[at])
            stop = at + 1
            if region is None:
                out.append(renamed(items[at], env))
                new_metas.append(metas[at] if metas else None)
                at = stop
                continue
            while stop < len(items) and self._region_of(items[stop]) == region:
                stop += 1
            run = [self.instances[item.name] for item in items[at:stop]]
            for number in range(len(run[0])):
                for offset, names in enumerate(run):
                    out.append(Ref(names[number]))
                    new_metas.append(metas[at + offset] if metas else None)
            at = stop
        return tuple(out), tuple(new_metas) if metas is not None else None

    def _region_of(self, item: Any) -> int | None:
        return self.home.get(item.name) if isinstance(item, Ref) else None


def _same(name: str) -> str:
    return name
