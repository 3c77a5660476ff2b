"""The ledger of a typed graph: its weights, caches and inputs by their layouts, and the peak of its activations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from layoutcheck.domains import Domain, Factor
from layoutcheck.errors import InputError
from layoutcheck.infer.calls.call import slots_in
from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.layouts import Layout, bound_on_axis, partner_axis, symbols_of
from layoutcheck.memory.activations import Activations, activations_of
from layoutcheck.memory.envelope import Envelope
from layoutcheck.memory.extents import Extents
from layoutcheck.memory.formula import product
from layoutcheck.memory.ledger import Ledger, add_activations
from layoutcheck.memory.liveness import Peak
from layoutcheck.memory.sizes_text import formula_of
from layoutcheck.program import CALL, OUTPUT, PLACEHOLDER
from layoutcheck.symbols import Size, free_symbols
from layoutcheck.units import DTYPE_BYTES

_NUMBER = re.compile(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])")


@dataclass(frozen=True)
class GraphMemory:
    """A graph's ledger with what it was made from.

    Attributes:
        ledger: weights, caches, inputs and the peak of activations.
        sizes: bytes of weights, caches and inputs by category, as sizes over the token symbols.
        symbols: the token counts that it was evaluated for.
        peak: the peak, with what is alive there.
        formula: the peak as a size over the token symbols; right for all counts for which its place stays.
        place: the node where it occurs.
        envelope: the peak for any counts.
    """

    analysis: Analysis
    activations: Activations
    extents: Extents
    ledger: Ledger
    sizes: Mapping[str, Size]
    symbols: dict[str, int]
    peak: Peak
    formula: Size
    place: str
    envelope: Envelope

    def __repr__(self) -> str:
        return f"<GraphMemory {self.ledger!r}, peak {self.peak.bytes} bytes at {self.place or 'no node'}>"


def graph_memory(analysis: Analysis, at: Mapping[str, int] | None = None) -> GraphMemory:
    """Return the memory of a typed graph on the rank it was exported from.

    Args:
        analysis: the typed graph.
        at: values of token symbols; those that a static export recorded are the defaults.

    Raises:
        InputError: a symbol has no value, or there is no such symbol.
    """
    extents = Extents(analysis.mesh, symbols_of(analysis.solution.typing.types))
    activations = activations_of(analysis, extents)
    lines = list(_lines(analysis, activations, extents))
    needed = dict.fromkeys(extents.values)
    for interval in activations.intervals:
        if not isinstance(interval.bytes, str):
            needed.update(dict.fromkeys(sorted(free_symbols(interval.bytes))))
    for _, _, size, _ in lines:
        needed.update(dict.fromkeys(sorted(free_symbols(size))))
    symbols = _values(dict(extents.values), needed, at or {})
    ledger = Ledger(
        f"{Path(analysis.path).name or analysis.graph.source}, {_mesh_text(analysis)}", 0, dict(symbols)
    )
    ledger.rank = analysis.mesh.rank or 0
    for axis in analysis.mesh.axes:
        if axis.name.isidentifier() and isinstance(axis.size, int):
            ledger.symbols.setdefault(axis.name, axis.size)
    sizes: dict[str, Size] = {}
    for category, name, size, more in lines:
        sizes[category] = sizes.get(category, 0) + size * more["count"]
        formula = more.pop("formula", None) or formula_of(size)
        count = more["count"]
        ledger.add(category, name, product(count, formula), **more)
    found = activations.envelope()
    peak = activations.peak(symbols)
    _, formula, path = found.at(symbols)
    place = activations.node_at(path)
    add_activations(ledger, peak, formula_of(formula), place)
    _add_notes(analysis, ledger)
    return GraphMemory(analysis, activations, extents, ledger, sizes, symbols, peak, formula, place, found)


def _values(known: dict[str, int], needed: Mapping[str, object], given: Mapping[str, int]) -> dict[str, int]:
    for name, value in given.items():
        if name not in needed:
            raise InputError(f"no size depends on {name}; there is {', '.join(needed) or 'none'}", "--at")
        if value < 1:
            raise InputError(f"{name} is {value}", "--at")
    symbols = {**known, **given}
    if missing := [name for name in needed if name not in symbols]:
        raise InputError(f"{missing[0]} has no value in the graph: give --at {missing[0]}=4096")
    return symbols


def _mesh_text(analysis: Analysis) -> str:
    return " ".join(f"{axis.name} {axis.size}" for axis in analysis.mesh.axes) or "one device"


@dataclass
class _Group:
    """Inputs that are alike: one line."""

    size: Size
    formula: str
    dtype: str
    shape: str
    split: str
    note: str
    count: int = 0
    names: list[str] = field(default_factory=list)


_Entry = tuple[str, str, Size, dict[str, Any]]


def _lines(analysis: Analysis, activations: Activations, extents: Extents) -> Iterator[_Entry]:
    """Lines of all inputs: category, name, size, and the line's other columns."""
    p = analysis.program
    readers = _Readers(analysis, activations)
    groups: dict[tuple[str, ...], _Group] = {}
    for k, kind in enumerate(p.kind):
        value = p.first[k] if kind == PLACEHOLDER else -1
        of = analysis.solution.typing.types[value] if value >= 0 else None
        if not isinstance(of, Layout):
            continue
        role = analysis.plan.roles.get(value, "activation")
        size = extents.bytes_of(of)
        formula, split = _formula(analysis, of, size)
        category, note = readers.category(value, role, of)
        label = readers.label(value, p.nodes[k].name)
        if category == "expert-parallel" and split == "replicated":
            split = "own experts"
        times = readers.repeats(value) if role in ("weight", "cache") else 1
        key = (category, label, formula, of.dtype, split, note)
        group = groups.get(key)
        if group is None:
            group = groups[key] = _Group(size, formula, of.dtype, _shape(of, extents), split, note)
        group.count += times
        group.names.append(p.nodes[k].name)
    for (category, label, *_), group in groups.items():
        yield (
            category,
            label,
            group.size,
            {
                "formula": group.formula,
                "tensors": tuple(group.names),
                "dtype": group.dtype,
                "shape": group.shape,
                "count": group.count,
                "split": group.split,
                "note": group.note,
            },
        )


def _shape(of: Layout, extents: Extents) -> str:
    return f"[{', '.join(str(extents.axis(axis)) for axis in of.axes)}]"


def _formula(analysis: Analysis, of: Layout, size: Size) -> tuple[str, str]:
    """Bytes with each division written out, and the division as text: ``154880/tp*6144*2`` and ``1/16 (tp)``."""
    mesh = analysis.mesh
    parts: list[str] = []
    for i, axis in enumerate(of.axes):
        cuts = bound_on_axis(of, i)
        for f in axis:
            parts.append(_cut_text(f, [(m, b) for m, b in cuts if b.domain is f.domain], mesh.names()))
    names = {m: mesh.axes[m].name for m, factors in of.bound if any(b.domain.is_feature for b in factors)}
    split = ", ".join(f"1/{mesh.size(m)} ({name})" for m, name in names.items()) or "replicated"
    text = product(*parts, DTYPE_BYTES[of.dtype])
    # where tokens are on an axis, the lifted size says more than the layout's numbers
    return (text if isinstance(size, int) else formula_of(size)), split


def _cut_text(f: Factor, cuts: list[tuple[int, Factor]], names: Mapping[int, str]) -> str:
    ways: Size = 1
    for _, b in cuts:
        ways = ways * b.extent
    if not cuts or f.extent * ways != f.domain.extent:
        return formula_of(f.extent)
    over = "/".join(names[m] if names[m].isidentifier() else str(b.extent) for m, b in cuts)
    return f"{formula_of(f.domain.extent)}/{over}"


class _Readers:
    """What reads an input, through views of it."""

    def __init__(self, analysis: Analysis, activations: Activations) -> None:
        self.analysis = analysis
        self.program = p = analysis.program
        self.types = analysis.solution.typing.types
        self.bodies = activations.bodies
        roots = activations.roots
        self.reads: dict[int, list[tuple[int, int]]] = {}
        for value, places in analysis.uses.items():
            root = roots[value]
            for k, slot in places:
                if p.kind[k] == CALL and (p.outs[k] == 0 or roots[p.first[k]] != root):
                    self.reads.setdefault(root, []).append((k, slot))
        self.calls: dict[int, list[int]] = {}
        for value, places in analysis.uses.items():
            self.calls.setdefault(roots[value], []).extend(k for k, _ in places if p.kind[k] != OUTPUT)

    def _parameter(self, k: int, slot: int) -> str:
        params = self.program.instances[self.program.op[k]].params
        return next((name for name, value in params.items() if slot in slots_in(value)), "")

    def label(self, value: int, node: str) -> str:
        """The module path with its numbers left open; of an anonymous input, the op and parameter that it feeds."""
        spec = self.analysis.graph.inputs.get(node)
        if spec is not None and spec.fqn:
            return _NUMBER.sub("{n}", spec.fqn)
        for k, slot in self.reads.get(value, ()):
            target = self.program.instances[self.program.op[k]].target
            return f"{target.split('.', 1)[-1].removesuffix('.default')}({self._parameter(k, slot)})"
        return "not read" if not self.calls.get(value) else node

    def category(self, value: int, role: str, of: Layout) -> tuple[str, str]:
        """The category of an input, and why where that is not plain."""
        if role == "cache":
            indexed = any(self._gives_indices(k) for k, _ in self.reads.get(value, ()))
            return ("indexer-cache" if indexed else "kv-cache"), ""
        if role != "weight":
            return "inputs", ""
        for k, slot in self.reads.get(value, ()):
            rule = self.program.instances[self.program.op[k]].rule
            if rule is not None and self._parameter(k, slot) in rule.scales:
                return "companions", ""
        bound = [b for _, factors in of.bound for b in factors]
        if any(b.domain.is_feature and partner_axis(of, b) is None for b in bound):
            return "expert-parallel", "of this rank's experts"
        ways = self._exchanged(value)
        if ways:
            return "expert-parallel", f"of this rank's experts, one of {ways} ranks"
        return ("tensor-parallel" if any(b.domain.is_feature for b in bound) else "replicated"), ""

    def _gives_indices(self, k: int) -> bool:
        p = self.program
        outs = [self.types[v] for v in range(p.first[k], p.first[k] + p.outs[k])]
        return any(isinstance(of, Layout) and of.dtype.startswith("int") for of in outs)

    def _exchanged(self, value: int) -> Size:
        """The ranks among which rows were exchanged that a weight is applied to; 0 where none were."""
        for k, slot in self.reads.get(value, ()):
            for other, source in enumerate(self.program.inputs[k]):
                of = self.types[source]
                if other != slot and isinstance(of, Layout):
                    for domain in of.domains_on_axes():
                        found = _received_axes(domain)
                        if found:
                            ways: Size = 1
                            for m in found:
                                ways = ways * self.analysis.mesh.size(m)
                            return ways
        return 0

    def repeats(self, value: int) -> int:
        """How often a layer that alone reads this input stands in the model."""
        calls = self.calls.get(value, ())
        times = 1
        for body in self.bodies:
            if calls and all(body.holds(k) for k in calls):
                times *= body.runs
        return times


def _received_axes(domain: Domain) -> tuple[int, ...]:
    while domain.args:
        if domain.kind == "received":
            axes: tuple[int, ...] = domain.args[1]
            return axes
        first = domain.args[0]
        if isinstance(first, tuple) and first:
            first = first[0]
        if isinstance(first, Factor):
            first = first.domain
        if not isinstance(first, Domain):
            break
        domain = first
    return ()


def _add_notes(analysis: Analysis, ledger: Ledger) -> None:
    p = analysis.program
    unknown = sorted(
        {p.instances[p.op[k]].target for k, _, i in analysis.solution.issues if i.code == "LC901"}
    )
    if unknown:
        ledger.notes.append(f"no rule for {', '.join(unknown[:4])}: their results have the recorded sizes")
    if any(i.code != "LC901" for _, _, i in analysis.solution.issues):
        ledger.notes.append("the graph has findings (layoutcheck check): sizes are as its ops leave them")
    ledger.notes.append("activations of one pass, without the ops' own workspace")
