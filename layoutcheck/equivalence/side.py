"""One of two compared graphs: expanded, unfused, flattened and typed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs

from layoutcheck.equivalence.result import Shown
from layoutcheck.graph import Graph, Node, Ref
from layoutcheck.infer.solver.analysis import Analysis, analyse
from layoutcheck.layouts import Layout, render
from layoutcheck.regions.expand import Origins, expand
from layoutcheck.regions.flat import OUTS, Flat, Keys, flatten
from layoutcheck.regions.fusion import unfuse

if TYPE_CHECKING:
    from layoutcheck.roles.model import Layer, Roles


@attrs.define
class Side:
    """A program to compare."""

    given: Graph
    graph: Graph
    origins: Origins
    flat: Flat
    keys: Keys
    analysis: Analysis
    _roles: Roles | None = attrs.field(default=None, init=False)

    def layouts(self, call: int) -> tuple[Any, ...]:
        """The layouts of a call's outputs."""
        program = self.analysis.program
        k = program.node_call[self.flat.nodes[call].name]
        types = self.analysis.solution.typing.types
        return tuple(types[program.first[k] : program.first[k] + program.outs[k]])

    def layout_text(self, value: int) -> str:
        """The printed layout of a value."""
        call, out = divmod(value, OUTS)
        found = self.layouts(call)
        at = out - 1 if out else 0
        of = found[at] if at < len(found) else None
        if not isinstance(of, Layout):
            return "" if of is None else str(of)
        return render(of, self.analysis.mesh.names())

    def place(self, call: int) -> str:
        """Where in the decoder a call is, as text: its role, its layer or the layers between which it stands, its repeat."""
        where = self._where(call)
        repeats = self._repeats() if where else {}
        parts = [*self._role(call), *self._layer(call)]
        parts += [
            f"repeat {number + 1} of {repeats.get(region, '?')} of region {region}"
            for region, number in where
        ]
        return ", ".join(parts) or (self.flat.nodes[call].module or "")

    def _role(self, call: int) -> list[str]:
        """The role of a call, or that of what it reads."""
        program, roles = self.analysis.program, self.roles
        k = program.node_call[self.flat.nodes[call].name]
        own = roles.calls.get(k)
        if own:
            return [own]
        read = next((roles.values[v] for v in program.inputs[k] if roles.values.get(v)), None)
        return [f"reads {read}"] if read else []

    def _layer(self, call: int) -> list[str]:
        """The layer of a call; both layers where it is, or feeds, the end of one and another follows."""
        program, layers = self.analysis.program, self.roles.layers
        k = program.node_call[self.flat.nodes[call].name]
        at = next((i for i, layer in enumerate(layers) if layer.begin <= k <= layer.end), None)
        if at is None:
            return []
        mine = layers[at]
        ends = k == mine.end or any(
            program.node_call[self.flat.nodes[reader].name] == mine.end for reader in self._readers(call)
        )
        if ends and at + 1 < len(layers):
            return [f"between layers {_layer_text(mine)} and {_layer_text(layers[at + 1])}"]
        return [f"layer {_layer_text(mine)}"]

    @property
    def roles(self) -> Roles:
        """What the calls are in the decoder; found when first asked for."""
        if self._roles is None:
            from layoutcheck.roles import find_roles

            self._roles = find_roles(self.analysis)
        return self._roles

    def _repeats(self) -> dict[int, int]:
        counts: dict[int, int] = {}
        for _name, where in self.origins.of.values():
            for region, number in where:
                counts[region] = max(counts.get(region, 0), number + 1)
        return counts

    def _where(self, call: int) -> tuple[tuple[int, int], ...]:
        return self.origins.of.get(self.flat.nodes[call].name, ("", ()))[1]

    def _readers(self, call: int) -> list[int]:
        """Calls that read a call's outputs."""
        flat = self.flat
        return [
            reader
            for reader, refs in enumerate(flat.refs)
            if flat.keys[reader] >= 0 and any(v // OUTS == call for v in refs)
        ]

    def show(self, call: int | None) -> Shown:
        """A call as one side of a divergence."""
        if call is None:
            return Shown(None)
        node = self.flat.nodes[call]
        values = [call * OUTS]
        several = self.flat.items.get(call)
        if several:
            values = [self.flat.values[item.name] for item in several[:3]]
        texts = [t for t in (self.layout_text(v) for v in values) if t]
        return Shown(node.name, self.place(call), call_text(node), ", ".join(texts))


def prepare(graph: Graph, keys: Keys, options: dict[str, Any], repeats: Sequence[int] | None) -> Side:
    """Expand, unfuse, flatten and type a graph. Raises InputError where it is malformed."""
    origins = Origins()
    book = keys.book
    expanded = expand(graph, book=book, origins=origins, repeats=repeats)
    plain = unfuse(expanded, book=book, fusion=keys.fusion)
    flat = flatten(plain, keys)
    analysis = analyse(plain, **options)
    return Side(graph, plain, origins, flat, keys, analysis)


def _layer_text(layer: Layer) -> str:
    """A layer's number with what its blocks are, attention aside: `3 (moe)`."""
    kinds = [block.kind for block in layer.blocks if block.kind != "attention"] or ["attention"]
    return f"{layer.index} ({', '.join(kinds)})"


def call_text(node: Node) -> str:
    """A call in short: the op, what it reads, its short literals."""
    if node.op != "call_function":
        return node.op
    target = node.target
    short = target.split(".")[1] if target.count(".") else target
    parts = [_arg_text(a) for a in node.args]
    parts += [f"{k}={_arg_text(v)}" for k, v in node.kwargs.items()]
    shown = [p for p in parts if p]
    if len(shown) > 8:
        shown = [*shown[:7], "..."]
    return f"{short}({', '.join(shown)})"


def _arg_text(arg: Any) -> str:
    if isinstance(arg, Ref):
        return arg.name
    if isinstance(arg, tuple):
        items = [_arg_text(a) for a in arg[:4]]
        return f"[{', '.join(items)}{', ...' if len(arg) > 4 else ''}]"
    text = str(getattr(arg, "name", getattr(arg, "text", arg)))
    return text if len(text) <= 24 else f"{text[:21]}..."
