"""Writing folded graphs: markers around bodies, and fused ops put together again."""

from __future__ import annotations

from typing import Any

from layoutcheck.graph import DictArg, Graph, Node, Ref
from layoutcheck.regions.arguments import copied, rebuilt
from layoutcheck.regions.flat import OUTS
from layoutcheck.regions.fusion import Split
from layoutcheck.regions.layers import LAYERS, ODD, numbering
from layoutcheck.regions.markers import MarkerOps
from layoutcheck.regions.names import Names
from layoutcheck.regions.own import RECORD
from layoutcheck.regions.stretch import Place, Sequence_, Stretch
from layoutcheck.rules.rulebook import RuleBook


def write(graph: Graph, sequence: Sequence_, stretches: list[Stretch], ops: MarkerOps) -> Graph:
    """The graph with these stretches written once each."""
    return _Writer(graph, sequence, stretches, ops).run()


class _Writer:
    def __init__(self, graph: Graph, sequence: Sequence_, stretches: list[Stretch], ops: MarkerOps) -> None:
        self.graph, self.s, self.stretches, self.ops = graph, sequence, stretches, ops
        self.names = Names(n.name for n in graph.nodes)
        self.moved: dict[str, str] = {}
        self.body: list[Node] = [sequence.flat.nodes[call] for call in sequence.sizes]
        self.dropped: set[str] = set()
        # Values that leave a region and are shown of every repeat: the output's first read of them is the showing one.
        self.shown: set[str] = set()
        record = graph.config.get(RECORD)
        self.record: dict[str, Any] = dict(record) if isinstance(record, dict) else {}
        self.next_id = self._free_id()

    def _free_id(self) -> int:
        """An id above all integers among the arguments of marker ops."""
        ops = (self.ops.begin, self.ops.end, self.ops.copy)
        used = [a for n in self.graph.nodes if n.target in ops for a in n.args if type(a) is int]
        return max([*used, -1]) + 1

    def run(self) -> Graph:
        calls = self.s.calls
        at = 0
        for stretch in self.stretches:
            for place in range(at, stretch.start):
                self._plain(calls[place])
            self._stretch(stretch)
            at = stretch.stop
        for place in range(at, len(calls)):
            self._plain(calls[place])
        inputs = [n for n in self.graph.nodes if n.op in ("placeholder", "get_attr")]
        kept = [n for n in inputs if n.name not in self.dropped]
        self._drop_sizes()
        output = [self._output(n) for n in self.graph.nodes if n.op == "output"]
        specs = {k: v for k, v in self.graph.inputs.items() if k not in self.dropped}
        config = dict(self.graph.config)
        for entry in self.record.values():
            entry["own"] = [name for name in entry["own"] if name not in self.dropped]
        config[RECORD] = self.record
        return rebuilt([*kept, *self.body, *output], self.graph, inputs=specs, config=config)

    def _drop_sizes(self) -> None:
        """Forget size arithmetic that only dropped repeats read."""
        flat = self.s.flat
        sizes = {flat.nodes[call].name: call for call in self.s.sizes}
        output = [node for node in self.graph.nodes if node.op == "output"]
        read = {name for node in [*self.body, *output] if node.name not in sizes for name in node.refs()}
        for name, call in reversed(sizes.items()):
            if name in read or not self.s.readers.get(call * OUTS):
                read.update(flat.nodes[call].refs())
            else:
                self.dropped.add(name)
        self.body = [n for n in self.body if n.name not in sizes or n.name not in self.dropped]

    def _plain(self, call: int) -> None:
        node = self.s.flat.nodes[call]
        self.body.append(copied(node, node.name, self._name) if self.moved else node)
        self.body.extend(self.s.flat.items.get(call, ()))

    def _name(self, name: str) -> str:
        return self.moved.get(name, name)

    def _stretch(self, stretch: Stretch) -> None:
        s, flat = self.s, self.s.flat
        region = self.next_id
        self.next_id += 1
        carried = list(dict.fromkeys(stretch.reads[slot] for slot in sorted(stretch.reads)))
        begins: dict[Place, str] = {}
        for place in carried:
            entry = stretch.entries[place]
            begins[place] = self._marker(
                self.ops.begin, "region_begin", self._name(flat.name(entry)), region, self._meta(entry)
            )
        for q in range(stretch.period):
            call = s.calls[stretch.start + q]
            node = flat.nodes[call]
            replaced = {
                j: begins[stretch.reads[(q, j)]]
                for j in range(len(flat.refs[call]))
                if (q, j) in stretch.reads
            }
            self.body.append(_reading(node, replaced, self._name))
            self.body.extend(flat.items.get(call, ()))
        ends = {}
        for place in carried:
            value = s.calls[stretch.start + place[0]] * OUTS + place[1]
            ends[place] = self._marker(
                self.ops.end, "region_end", flat.name(value), region, self._meta(value)
            )
        for _ in range(stretch.repeats - 1):
            ends = {
                place: self._marker(
                    self.ops.copy,
                    "region_copy",
                    name,
                    region,
                    self._meta(s.calls[stretch.start + place[0]] * OUTS + place[1]),
                )
                for place, name in ends.items()
            }
        last = stretch.start + (stretch.repeats - 1) * stretch.period
        for (q, out), name in ends.items():
            call = s.calls[last + q]
            for other in [flat.nodes[call], *flat.items.get(call, ())]:
                if flat.values[other.name] == call * OUTS + out:
                    self.moved[other.name] = name
        self._drop(stretch)
        for q, out in stretch.shown & stretch.entries.keys():
            self.shown.add(flat.name(s.calls[last + q] * OUTS + out))
        own = [flat.nodes[v // OUTS].name for v in stretch.own[0]]
        found = numbering(self._paths(stretch))
        self.record[str(region)] = {"own": own, LAYERS: dict(found.steps)}
        names = [*(flat.nodes[s.calls[stretch.start + q]].name for q in range(stretch.period)), *own]
        for (number, place_), path in found.odd.items():
            odd = self.record[str(region)].setdefault(ODD, {})
            odd.setdefault(names[place_], {})[str(number)] = path

    def _paths(self, stretch: Stretch) -> list[list[str | None]]:
        """The module paths of each repeat and the names of its own inputs, in one order."""
        s, nodes = self.s, self.s.flat.nodes
        specs = self.graph.inputs
        found: list[list[str | None]] = []
        for number in range(stretch.repeats):
            start = stretch.start + number * stretch.period
            own = [specs.get(nodes[v // OUTS].name) for v in stretch.own[number]]
            paths = [nodes[s.calls[start + q]].module for q in range(stretch.period)]
            found.append([*paths, *[spec.fqn if spec is not None else None for spec in own]])
        return found

    def _drop(self, stretch: Stretch) -> None:
        """Forget the inputs of further repeats, and what the output reads of them."""
        flat, calls = self.s.flat, self.s.calls
        for own in stretch.own[1:]:
            self.dropped.update(flat.nodes[v // OUTS].name for v in own)
        for at in range(stretch.start + stretch.period, stretch.stop):
            call = calls[at]
            self.dropped.add(flat.nodes[call].name)
            self.dropped.update(item.name for item in flat.items.get(call, ()))

    def _is_dropped(self, item: Any) -> bool:
        """Whether the output need not read this any more. Asked once an item, in order."""
        if not isinstance(item, Ref) or item.name not in self.dropped:
            return False
        if item.name in self.shown:
            self.shown.discard(item.name)
            return True
        return item.name not in self.moved

    def _meta(self, value: int) -> Any:
        call, out = divmod(value, OUTS)
        meta = self.s.flat.nodes[call].meta
        if out == 0:
            return meta
        return meta[out - 1] if isinstance(meta, tuple) and out <= len(meta) else None

    def _marker(self, target: str, name: str, value: str, region: int, meta: Any) -> str:
        new = self.names.fresh(name)
        self.body.append(Node(new, "call_function", target, (Ref(value), region), {}, meta))
        return new

    def _output(self, node: Node) -> Node:
        """The output without what further repeats show."""
        args = node.args
        meta = node.meta
        if len(args) == 1 and isinstance(args[0], tuple):
            items = args[0]
            keep = [i for i, item in enumerate(items) if not self._is_dropped(item)]
            if len(keep) < len(items):
                args = (tuple([items[i] for i in keep]),)
                if isinstance(meta, tuple) and len(meta) == len(items):
                    meta = tuple([meta[i] for i in keep])
        kept = Node(node.name, node.op, node.target, args, dict(node.kwargs), meta, node.location)
        return copied(kept, node.name, self._name)


def _reading(node: Node, replaced: dict[int, str], rename: Any) -> Node:
    """A copy of a node whose `j`-th read is of another name."""
    count = [0]

    def walk(arg: Any) -> Any:
        kind = type(arg)
        if kind is Ref:
            j = count[0]
            count[0] += 1
            name = replaced.get(j)
            return Ref(name if name is not None else rename(arg.name))
        if kind is tuple:
            return tuple([walk(a) for a in arg])
        if kind is DictArg:
            return DictArg(tuple([(key, walk(a)) for key, a in arg.items]))
        return arg

    new = copied(node, node.name, lambda name: name)
    new.args = tuple([walk(a) for a in node.args])
    new.kwargs = {key: walk(a) for key, a in node.kwargs.items()}
    return new


def refuse(graph: Graph, splits: dict[str, Split], book: RuleBook) -> Graph:
    """The graph with the parts of a fused op put together again where all of them stand side by side."""
    place = {node.name: i for i, node in enumerate(graph.nodes)}
    starts: dict[int, Split] = {}
    for split in splits.values():
        at = [place.get(name, -1) for name in split.parts]
        if at[0] >= 0 and at == list(range(at[0], at[0] + len(at))):
            starts[at[0]] = split
    out: list[Node] = []
    at_ = 0
    while at_ < len(graph.nodes):
        found = starts.get(at_)
        if found is None:
            out.append(graph.nodes[at_])
            at_ += 1
            continue
        out.append(_fused(found, {n.name: n for n in graph.nodes[at_ : at_ + len(found.parts)]}, book))
        out.extend(found.items)
        at_ += len(found.parts)
    return rebuilt(out, graph)


def _fused(split: Split, parts: dict[str, Node], book: RuleBook) -> Node:
    """The fused node, reading what its parts read by now."""
    class_ = split.class_
    now: dict[str, Any] = {}
    calls = iter(
        [parts[name] for name in split.parts if parts[name].target in {p.target for p in class_.parts}]
    )
    for part in class_.parts:
        node = next(calls)
        for label, arg in zip(part.args, node.args):
            if label in class_.params:
                now[label] = arg
    rule = book.lookup(split.fused.target)
    assert rule is not None
    names = rule.param_names
    old = split.fused
    new = copied(old, old.name, lambda name: name)
    new.args = tuple(
        [now.get(names[i], arg) if isinstance(arg, Ref) else arg for i, arg in enumerate(old.args)]
    )
    new.kwargs = {k: now.get(k, arg) if isinstance(arg, Ref) else arg for k, arg in old.kwargs.items()}
    return new
