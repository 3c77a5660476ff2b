"""One graph under several contracts: what each layer, and all of it, sends, computes and holds, as formulas and as numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from layoutcheck.contracts import load_contract
from layoutcheck.contracts.model import Contract
from layoutcheck.cost.formula_text import readable, work_formulas
from layoutcheck.cost.lift import lift
from layoutcheck.cost.terms import GraphCost, Term
from layoutcheck.errors import InputError
from layoutcheck.graph import Graph
from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.memory.graph_ledger import graph_memory
from layoutcheck.placement.annotated import AnnotatedGraph, annotate
from layoutcheck.placement.pricing import NOMINAL
from layoutcheck.readers import load
from layoutcheck.symbols import free_symbols

ATTENTION = ("attention.input", "attention.indexer", "attention.core")
TOTAL = "total"
OUTSIDE = "outside"


@frozen
class Part:
    """One layer (`count` layers are alike), what stands outside of layers, or the total; of one rank.

    collectives: how many run, by kind. received: bytes that arrive from other ranks. flops, attention: operations, and those
    of attention before o_proj. All but counts are sympy expressions over token counts and group sizes.
    """

    name: str
    count: int
    collectives: Mapping[str, int]
    received: Any
    flops: Any
    attention: Any

    def at(self, values: Mapping[str, int]) -> dict[str, int]:
        """The figures at these sizes."""
        named = {"received": self.received, "flops": self.flops, "attention": self.attention}
        return {name: int(_number(expression, values)) for name, expression in named.items()}


def _number(expression: Any, values: Mapping[str, int]) -> Any:
    import sympy

    found = sympy.sympify(expression)
    return found.subs({s: values[s.name] for s in found.free_symbols if s.name in values})


@frozen
class Comparison:
    """What one contract makes of a graph. `live`: the most bytes of activations that a rank holds at once, at `values`."""

    contract: str
    annotated: AnnotatedGraph
    parts: tuple[Part, ...]
    live: int
    live_formula: str
    values: Mapping[str, int]

    @property
    def total(self) -> Part:
        """All of the graph."""
        return self.parts[-1]


@frozen
class Refused:
    """A contract that a graph can't hold, or that does not speak of it, and why."""

    contract: str
    reason: str


def compare(
    graph: Any, contracts: Sequence[Any], *, at: Mapping[str, int] | None = None, **options: Any
) -> list[Comparison | Refused]:
    """Annotate a graph under several contracts, and say what each costs, or why a contract can't be had.

    Args:
        graph: a graph or a path, as for `annotate`.
        contracts: names or files.
        at: numbers for symbolic sizes.
        options: those of `annotate`.

    Raises:
        InputError: a contract is malformed, or none of them can be had: then as `annotate` raises it for the first.
    """
    agreed = [c if isinstance(c, Contract) else load_contract(c) for c in contracts]
    if not isinstance(graph, Graph):
        graph = load(graph)
    out: list[Comparison | Refused] = []
    errors: list[InputError] = []
    for contract in agreed:
        try:
            out.append(_compared(graph, contract, at or {}, options))
        except InputError as error:
            errors.append(error)
            out.append(Refused(contract.name, error.message))
    if errors and len(errors) == len(agreed):
        raise errors[0]
    return out


def _compared(
    graph: Graph, contract: Contract, at: Mapping[str, int], options: Mapping[str, Any]
) -> Comparison:
    """One contract's figures. Raises InputError as `annotate`."""
    found = annotate(graph, contract, sizes=at, **options)
    analysis = found.analyse()
    cost = lift(analysis)
    given = {n: v for n, v in at.items() if n in cost.symbols()}
    lacking = [n for n in cost.symbols() if n not in cost.values and n not in given]
    values = cost.at({**dict.fromkeys(lacking, NOMINAL), **given})
    memory = graph_memory(analysis, _known(analysis, values))
    parts = tuple(_parts(cost))
    return Comparison(found.contract, found, parts, memory.peak.bytes, str(memory.formula), values)


def _known(analysis: Analysis, values: Mapping[str, int]) -> dict[str, int]:
    """Values for the symbols of the graph's own sizes."""
    names: set[str] = set()
    for of in analysis.solution.typing.types:
        for size in getattr(of, "shape", ()):
            names |= free_symbols(size)
    return {n: v for n, v in values.items() if n in names}


def _parts(cost: GraphCost) -> list[Part]:
    """The total behind the layers, of which like ones are one part."""
    import sympy

    by_layer: dict[str, list[Term]] = defaultdict(list)
    for term in cost.terms:
        by_layer[term.layer or OUTSIDE].append(term)
    work = work_formulas(cost, lambda t: f"{t.layer or OUTSIDE}|{'a' if t.role in ATTENTION else ''}")
    zero = sympy.Integer(0)
    found: list[Part] = []
    for layer, terms in by_layer.items():
        runs = _layers(layer)
        mine = [work[key] for key in (f"{layer}|a", f"{layer}|") if key in work]
        attention = (
            sum((f for f in work[f"{layer}|a"].flops.values()), zero) if f"{layer}|a" in work else zero
        )
        flops = sum((f for part in mine for f in part.flops.values()), zero)
        wire = sum((part.wire for part in mine), zero)
        kinds: dict[str, int] = defaultdict(int)
        for term in terms:
            if term.kernel == "collective":
                kinds[str(term.options["op"])] += term.count
        found.append(
            Part(
                layer,
                runs,
                {k: n // runs if n % runs == 0 else n for k, n in kinds.items()},
                wire / runs,
                flops / runs,
                attention / runs,
            )
        )
    total: dict[str, int] = defaultdict(int)
    for part in found:
        for kind, n in part.collectives.items():
            total[kind] += n * part.count
    every = [
        sum((getattr(part, name) * part.count for part in found), zero)
        for name in ("received", "flops", "attention")
    ]
    merged = _merged([p for p in found if p.name != OUTSIDE])
    outside = [p for p in found if p.name == OUTSIDE]
    return [*merged, *outside, Part(TOTAL, 1, dict(total), *every)]


def _layers(label: str) -> int:
    """How many layers a label such as ``3-77`` stands for."""
    first, dash, last = label.partition("-")
    return int(last) - int(first) + 1 if dash and first.isdigit() and last.isdigit() else 1


def _merged(parts: list[Part]) -> list[Part]:
    """Neighbouring layers that are alike as one part."""
    out: list[Part] = []
    for part in parts:
        last = out[-1] if out else None
        if last is not None and (last.collectives, last.received, last.flops, last.attention) == (
            part.collectives,
            part.received,
            part.flops,
            part.attention,
        ):
            name = f"{last.name.partition('-')[0]}-{part.name.rpartition('-')[2]}"
            out[-1] = Part(
                name, last.count + part.count, last.collectives, last.received, last.flops, last.attention
            )
        else:
            out.append(part)
    return out


def formula(expression: Any) -> str:
    """A sympy expression as text."""
    return readable(expression)
