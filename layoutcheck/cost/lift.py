"""From a typed graph to terms: what every call runs, with sizes that hold at other token counts and group sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from layoutcheck.cost.call_lines import Filled, filled_lines
from layoutcheck.cost.call_view import CallView, Missing
from layoutcheck.cost.collectives import COLLECTIVES
from layoutcheck.cost.experts import Experts, find_experts
from layoutcheck.cost.kernel_map import KernelMap, load_kernel_map
from layoutcheck.cost.lift_sizes import LiftedSizes
from layoutcheck.cost.places import Places
from layoutcheck.cost.terms import BALANCED, GraphCost, Term, Uncovered
from layoutcheck.errors import InputError
from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.layouts import Layout, symbols_of
from layoutcheck.memory.aliases import aliases_of
from layoutcheck.models.figures import Figures
from layoutcheck.program import CALL, UNKNOWN
from layoutcheck.roles.facts import facts_of
from layoutcheck.symbols import Expr, Size, sym

QUERIES = ("auto", "local", "full")


def lift(
    analysis: Analysis,
    *,
    kernels: Sequence[str | Path] = (),
    indexer_queries: str = "auto",
    figures: Figures | None = None,
    unrolled: bool = False,
) -> GraphCost:
    """What a typed graph costs on the rank that it was exported from.

    Args:
        analysis: the typed graph.
        kernels: folders with ``*.kernels`` files of one's own.
        indexer_queries: the tokens that an indexer's query side runs on. ``local``: the rank's share, where its operand was
            gathered from shares; ``full``: all that the op is given; ``auto`` is ``local``, with a note.
        figures: whose names stand in sizes for the numbers of the model that the graph was written from.
        unrolled: experts that are written one by one stay so, and are not read as one product.

    Raises:
        InputError: a kernel file is malformed, or an option is unknown.
    """
    if indexer_queries not in QUERIES:
        raise InputError(f"{indexer_queries!r} is none of {', '.join(QUERIES)}", where="--indexer-queries")
    return _Lifting(analysis, load_kernel_map(kernels), indexer_queries, figures).run(unrolled)


class _Lifting:
    def __init__(self, analysis: Analysis, kernels: KernelMap, queries: str, figures: Figures | None) -> None:
        self.analysis, self.kernels, self.queries = analysis, kernels, queries
        self.program = p = analysis.program
        self.types = analysis.solution.typing.types
        config = analysis.graph.config
        self.sizes = LiftedSizes(analysis.mesh, symbols_of(self.types), config, figures)
        self.facts = facts_of(p)
        self.roots = aliases_of(p, self.types)
        self.places = Places(analysis)
        self.flow = self.places.roles.flow
        self.notes: dict[str, None] = {}
        context = config.get("context_length")
        self.sizes.values["context"] = context if isinstance(context, int) and context >= 0 else 0
        self.symbols: dict[str, Size] = {"context": sym("context")}
        self.terms: list[Term] = []
        self.uncovered: list[Uncovered] = []
        self.known: dict[tuple[Any, ...], list[Filled] | str] = {}

    def run(self, unrolled: bool) -> GraphCost:
        p = self.program
        experts = [] if unrolled else find_experts(self.flow, self.facts)
        inside = {k: e for e in experts for k in e.calls}
        for k, kind in enumerate(p.kind):
            if k in inside:
                found = inside[k]
                if k == found.first:
                    self._experts(found)
                continue
            if kind == UNKNOWN:
                self._unknown(k, "no rule")
            elif kind == CALL:
                self._call(k)
        if any(issue.code != "LC901" for _, _, issue in self.analysis.solution.issues):
            self.notes.setdefault(
                "the graph has findings (layoutcheck check): the cost is that of its ops as they stand"
            )
        if any(t.kernel == "grouped_gemm" for t in self.terms):
            self.notes.setdefault(BALANCED)
        shares = tuple(sorted(self.sizes.shares, key=str))
        source = analysis_name(self.analysis)
        return GraphCost(
            tuple(self.terms),
            tuple(self.uncovered),
            dict(self.sizes.values),
            shares,
            tuple(self.notes),
            source,
        )

    # ---- one call

    def _call(self, k: int) -> None:
        p = self.program
        instance = p.instances[p.op[k]]
        rule = instance.rule
        assert rule is not None
        outs = range(p.first[k], p.first[k] + p.outs[k])
        aliased = all(self.roots[v] != v for v in outs)
        if aliased and not rule.mutates and not instance.bases and rule.code not in COLLECTIVES:
            return
        operands = tuple(self._operand(k, v) for v in p.inputs[k])
        outputs = tuple(self._output(k, v) for v in outs)
        rows = self._ungathered(k) if rule.part and rule.part[0] == "indexer" else None
        key: tuple[Any, ...] = (p.op[k], operands, outputs, rows)
        try:
            found = self.known.get(key)
        except TypeError:
            key, found = (k,), None
        if found is None:
            view = CallView(instance, list(operands), list(outputs), self.sizes, self.symbols)
            found = self.known[key] = filled_lines(self.kernels, view, rule, self.facts[p.op[k]], rows)
        if isinstance(found, str):
            self._unknown(k, found)
            return
        for line, sizes, options in found:
            self._add(line.kernel, line.label, k, sizes, options)

    def _operand(self, k: int, value: int) -> Any:
        return self._filled(value, self.types[value], k)

    def _output(self, k: int, value: int) -> Any:
        of = self.types[value]
        if isinstance(of, Layout) and any(f.domain.kind == "any" for axis in of.axes for f in axis):
            reader = next((use for use, _ in self.analysis.uses.get(value, ())), None)
            if reader is not None:
                return self._filled(value, of, reader)
        return of

    def _filled(self, value: int, of: Any, reader: int) -> Any:
        """A constant fill takes the layout of what it meets, where that has its shape."""
        if not isinstance(of, Layout) or not any(f.domain.kind == "any" for axis in of.axes for f in axis):
            return of
        p = self.program
        for v in (*range(p.first[reader], p.first[reader] + p.outs[reader]), *p.inputs[reader]):
            other = self.types[v]
            if isinstance(other, Layout) and other.shape == of.shape and v != value:
                from layoutcheck.layouts import replace

                return replace(other, dtype=of.dtype, value=None, partial=())
        return of

    def _ungathered(self, k: int) -> Size | None:
        """The rows that this rank had of an indexer's hidden states before they were gathered; all rows where they were not."""
        p, value = self.program, self.program.inputs[k][0]
        of = self.types[value]
        if not isinstance(of, Layout) or of.rank < 2:
            return None
        rows = self.sizes.axes(of)[-2]
        if self.queries == "full":
            return rows
        seen = 0
        while seen < 8:
            seen += 1
            call = p.value_call[value]
            rule = p.instances[p.op[call]].rule if p.op[call] >= 0 else None
            if rule is None or not p.inputs[call]:
                return rows
            value = p.inputs[call][0]
            source = self.types[value]
            if rule.code == "all_gather":
                if isinstance(source, Layout) and source.rank >= 2 and source.shape[-1] == of.shape[-1]:
                    self.notes.setdefault(
                        "an indexer's query side runs on the rank's own tokens (--indexer-queries full: on all)"
                    )
                    return self.sizes.axes(source)[-2]
                return rows
            if not self.facts[p.op[call]].aliases:
                return rows
        return rows

    def _unknown(self, k: int, reason: str) -> None:
        p = self.program
        instance = p.instances[p.op[k]]
        view = CallView(instance, [self.types[v] for v in p.inputs[k]], [], self.sizes, self.symbols)
        outs = [self.types[v] for v in range(p.first[k], p.first[k] + p.outs[k])]
        moved = view.bytes(view.operands) + view.bytes(outs)
        self.uncovered.append(
            Uncovered(instance.target, p.nodes[k].name, self.places.count(k), moved, reason)
        )

    def _add(
        self, kernel: str, label: str, k: int, sizes: Mapping[str, Size], options: Mapping[str, Any]
    ) -> None:
        p = self.program
        collective = kernel == "collective"
        if collective and sizes["ranks"] == 1:
            return
        if collective and p.inputs[k] and self.flow.kinds[p.inputs[k][0]] == "W":
            options = {**options, "weights": 1}
        roles = {"communication": self.places.count(k)} if collective else self.places.role_counts(k)
        node, op = p.nodes[k].name, p.instances[p.op[k]].target
        layer, regions = self.places.layer(k), self.places.regions(k)
        for i, (role, count) in enumerate(roles.items()):
            again = i > 0
            self.terms.append(
                Term(kernel, label, k, node, op, role, layer, count, sizes, options, regions, again)
            )

    # ---- unrolled experts

    def _experts(self, found: Experts) -> None:
        """The experts of one dispatch as a single grouped product, and what is exchanged for it."""
        p = self.program
        x, ids = self.types[found.rows], self.types[found.ids]
        rows, topk = self.sizes.axes(x), self.sizes.axes(ids)[-1]
        ranks: Size = 1
        for k in found.exchanges:
            ranks = self._exchange_ranks(k)
        number = _recorded(self.sizes, ranks)
        inter = self._extent(found.inner)
        tokens = _rows_of(rows) * ranks
        sizes: dict[str, Size] = {
            "tokens": tokens,
            "hidden": rows[-1],
            "inter": inter,
            "topk": topk,
            "experts": found.local * number,
            "ep": ranks,
            "tp": 1,
        }
        options = {"dtype": found.dtype, "gated": int(found.gated)}
        self._add("grouped_gemm", "", found.first, sizes, options)
        for k in found.exchanges:
            view = CallView(p.instances[p.op[k]], [], [], self.sizes, self.symbols)
            sent = self.types[p.inputs[k][0]]
            size = view.bytes(sent)
            if isinstance(size, int):
                size = _rows_of(rows) * topk * rows[-1] * (view.bytes(sent) // max(_elements(sent), 1))
            self._add("collective", "", k, {"size": size, "ranks": ranks}, {"op": "all_to_all"})

    def _extent(self, at: tuple[int, int]) -> Size:
        value, axis = at
        return self.sizes.axes(self.types[value])[axis]

    def _exchange_ranks(self, k: int) -> Size:
        p = self.program
        instance = p.instances[p.op[k]]
        view = CallView(instance, [self.types[v] for v in p.inputs[k]], [], self.sizes, self.symbols)
        for word in ("ranks", "group"):
            try:
                return view.ranks(view.tensor(word), exchange=True)
            except Missing:
                continue
        return 1


def _recorded(sizes: LiftedSizes, size: Size) -> int:
    from layoutcheck.symbols import evaluate

    return evaluate(size, sizes.values) if isinstance(size, Expr) else size


def _rows_of(axes: tuple[Size, ...]) -> Size:
    total: Size = 1
    for size in axes[:-1]:
        total = total * size
    return total


def _elements(of: Any) -> int:
    total: Any = 1
    for size in of.shape:
        total = total * size
    return int(total) if isinstance(total, int) else 0


def analysis_name(analysis: Analysis) -> str:
    """What a graph is called in reports."""
    return analysis.path or analysis.graph.source
