"""`annotate`: a graph with every layout and every conversion that its contract demands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from layoutcheck.contracts import load_contract
from layoutcheck.contracts.model import Contract
from layoutcheck.contracts.report import report_of
from layoutcheck.cost.prices import Prices
from layoutcheck.errors import InputError
from layoutcheck.findings import Report
from layoutcheck.graph import Graph, TensorMeta
from layoutcheck.infer.diagnosis.diagnose import diagnose
from layoutcheck.infer.solver.analysis import Analysis, analyse
from layoutcheck.infer.solver.together import mark_constant, slice_calls
from layoutcheck.layouts import Layout, bound_on_axis, render
from layoutcheck.placement.base import Base
from layoutcheck.placement.mend import mended, outputs_as_before
from layoutcheck.placement.place import Placed, place
from layoutcheck.placement.provenance import original_of, recorded
from layoutcheck.placement.shard import Cut
from layoutcheck.program import OUTPUT
from layoutcheck.readers import load
from layoutcheck.rules.kinds import COMMUNICATING
from layoutcheck.symbols import Size, divide_exact

if TYPE_CHECKING:
    from torch.fx import GraphModule

    from layoutcheck.cost.terms import GraphCost

# What is mended may bring other faults to light, of inputs that were taken for something else behind the first ones.
MAX_MENDED = 4


@attrs.frozen
class Shard:
    """How an input of the single-device program is cut: along `axis` in `ways` equal shares, of each of its packed pieces.

    `pieces` are the extents of what is packed in it (queries, keys and values; gate and up), none where it is one. `copies` ranks in
    a row hold the same share (of fewer key heads than ranks): rank r has share `r // copies`. `padding` rows of zeros are added at the
    end before it is cut.
    """

    axis: int
    ways: Any
    pieces: tuple[int, ...] = ()
    copies: Any = 1
    padding: int = 0


@attrs.frozen
class Insertion:
    """A conversion that was written: its kind, its nodes in order, the value that it converts, who reads it so, and how often it
    runs (more than once in a repeated body).
    """

    kind: str
    nodes: tuple[str, ...]
    source: str
    readers: tuple[str, ...]
    times: int
    reason: str


@attrs.define(repr=False)
class AnnotatedGraph:
    """A graph that holds its contract.

    Attributes:
        graph: the per-rank program with its conversions and local sizes.
        contract: the contract's name.
        layouts: the layout of every value, as text, by node name.
        roles: the role of nodes, by name.
        insertions: the conversions, with reasons.
        shards: inputs that are cut over the group, where the graph held them whole.
        method: how the placement was found (`forced`, `min-cut` or `milp`); `bound`: no placement is cheaper.
        price: what the placement costs in the unit of `prices`, femtoseconds.
    """

    graph: Graph
    contract: str
    layouts: dict[str, str]
    roles: dict[str, str]
    insertions: tuple[Insertion, ...]
    shards: dict[str, Shard]
    prices: str
    price: int
    bound: int
    method: str
    group: str
    notes: tuple[str, ...]
    _placed: Placed
    _options: dict[str, Any]

    def __repr__(self) -> str:
        counts = ", ".join(f"{n} {kind}" for kind, n in sorted(self.counts().items()))
        return (
            f"<AnnotatedGraph {self.contract}, {len(self.graph.nodes)} nodes: {counts or 'no conversions'}>"
        )

    def counts(self, *, executed: bool = True) -> dict[str, int]:
        """How many conversions of each kind run (`executed`), or stand in the graph: a repeated body counts as often as it runs."""
        out: Counter[str] = Counter()
        for entry in self.insertions:
            out[entry.kind] += entry.times if executed else 1
        return dict(out)

    def check(self) -> Report:
        """What checking the graph against its contract says."""
        options = {
            k: v
            for k, v in self._options.items()
            if k in ("groups", "rules", "world", "rank", "assumptions", "trust", "layouts")
        }
        return report_of(self.graph, contract=self._options.get("contract", self.contract), **options)[1]

    def analyse(self) -> Analysis:
        """The graph solved again."""
        options = {k: v for k, v in self._options.items() if k in ("rank", "world")}
        return analyse(
            self.graph,
            groups=self._options.get("groups") or {},
            assumptions=list(self._options.get("assumptions") or ()),
            rules=list(self._options.get("rules") or ()),
            **options,
        )

    def explain(self, node: str) -> str:
        """Why the conversions of a value stand where they stand, and what else could be done. Raises InputError."""
        from layoutcheck.placement.explain import explain

        return explain(self._placed, node)

    def cost(self) -> GraphCost:
        """What the graph runs on a rank, as formulas over token counts and group sizes (see `layoutcheck.cost`)."""
        from layoutcheck.cost.lift import lift

        return lift(self.analyse())

    def certificate(self) -> dict[str, Any]:
        """Why nothing is cheaper: the cut of each part that was free, and the flow that fills it."""
        from layoutcheck.placement.proof import proof

        return proof(self._placed)

    def to_fx(self, groups: dict[str, str] | None = None) -> GraphModule:
        """A GraphModule that torch runs, with functional collectives; parameters are inputs, as in the graph. Needs torch.

        Args:
            groups: names under which torch.distributed knows the graph's groups, `{"tp": dist.group.WORLD.group_name}`.

        Raises:
            InputError: torch is not installed, an op is not registered, or a size counts what no input has.
        """
        from layoutcheck.placement.to_fx import to_fx

        return to_fx(self.graph, groups)


def annotate(
    graph: Graph | str | Path,
    contract: str | Path | Contract,
    *,
    groups: dict[str, Any] | None = None,
    rank: int | None = None,
    world: int | None = None,
    tokens: Sequence[tuple[str, int]] = (),
    layouts: dict[str, str] | None = None,
    assumptions: Sequence[str] = (),
    rules: Sequence[str | Path] = (),
    plan: str | Path | None = None,
    trust: dict[str, str] | None = None,
    others: Sequence[Graph] = (),
    prices: Prices | None = None,
    sizes: Mapping[str, int] | None = None,
) -> AnnotatedGraph:
    """The per-rank program of a graph under a contract, at the lowest price.

    Args:
        graph: a graph, or the path of one: of one device, or of a rank, with conversions or without.
        contract: a contract, the name of a shipped one, or a file.
        groups: sizes of groups by name, as in `{"tp": 16}`; a graph of one device needs the contract's group here.
        rank: the rank whose program it is; that of the graph, or 0.
        world, tokens, layouts, assumptions, rules, trust, others: as for `check`.
        plan: a file of weight layouts by name pattern; what it does not name is cut as structure and contract allow.
        prices: what conversions and ops cost; bytes over default bandwidths where not given.
        sizes: numbers for symbolic sizes, at which prices are compared (4096 where none is given).

    Returns:
        The annotated graph. Checking it against the contract finds nothing.

    Raises:
        InputError: the graph or an option is malformed; the contract does not apply; or no placement holds it, with the
            boundary that can't be had.
    """
    agreed = contract if isinstance(contract, Contract) else load_contract(contract)
    accepted = {**agreed.trusts(), **(trust or {})}

    def solved(of: Graph | str | Path, single: bool = False) -> Analysis:
        found = analyse(
            of,
            groups=groups or {},
            rank=rank,
            world=world,
            tokens=tokens,
            layouts=layouts or {},
            assumptions=assumptions,
            rules=rules,
            trust=accepted,
            others=others,
        )
        if single or not _has_collectives(found):
            # On one device a slice is a slice of features or tokens, and no rank's share of them.
            slices = {k for k, _ in slice_calls(found.program, found.solution.typing.types).values()}
            if mark_constant(found.program, slices):
                found.solver.memo.clear()
                found.solver.cuts.clear()
                found.solution = found.solver.solve()
        return found

    if not isinstance(graph, Graph):
        graph = load(graph)
    graph = _with_groups(original_of(graph), dict(groups or {}))
    first = solved(graph)
    again = partial(solved, single=not _has_collectives(first))
    try:
        placed = place(
            _without_faults(first, agreed, solved),
            agreed,
            prices=prices,
            values=sizes,
            again=again,
            plan=plan,
            rules=rules,
        )
        _no_repairs_left(placed.graph, graph)
    except InputError as error:
        raise _with_fault(error, first) from None
    options = {
        "groups": groups,
        "rank": rank,
        "world": world,
        "assumptions": assumptions,
        "rules": rules,
        "trust": accepted,
        "contract": agreed if isinstance(contract, Contract) else contract,
    }
    return _result(placed, agreed, solved, options, graph)


def _without_faults(analysis: Analysis, contract: Contract, solved: Callable[[Graph], Analysis]) -> Analysis:
    """The program with wrong conversions over the contract's group mended, as far as that goes."""
    first = analysis
    for _ in range(MAX_MENDED):
        group = analysis.mesh.groups.get(contract.group)
        graph = mended(analysis, group) if group is not None else None
        if graph is None:
            break
        analysis = solved(graph)
    group = analysis.mesh.groups.get(contract.group)
    if analysis is not first and group is not None:
        graph = outputs_as_before(first, analysis, group)
        analysis = analysis if graph is None else solved(graph)
    return analysis


def _no_repairs_left(placed: Graph, original: Graph) -> None:
    """Raise InputError where a repair is no conversion of tokens, which placing takes out: nothing is placed for it."""
    known = {(n.name, n.target) for n in original.nodes}
    for node in placed.nodes:
        if (
            node.op == "call_function"
            and node.target.startswith("layoutcheck.")
            and (node.name, node.target) not in known
        ):
            read = next(iter(node.refs()), node.name)
            raise InputError(f"{read} has to be converted, and it is no conversion of the layers' tokens")


def _with_fault(error: InputError, analysis: Analysis) -> InputError:
    """The error, with the fault that the graph came with: behind it layouts are not what they would be."""
    wrong = [f for f in diagnose(analysis, 0.0).errors if f.code.startswith(("LC1", "LC2"))]
    if not wrong:
        return error
    where = ", ".join(f"{f.code} at {f.node}" for f in wrong[:3])
    text = (
        f"{error.message}; the graph's own conversions are wrong ({where}): repair them as `layoutcheck check` says,"
        " or annotate the graph as it was without them"
    )
    return InputError(text, error.where)


def _with_groups(graph: Graph, given: Mapping[str, Any]) -> Graph:
    """The graph without recorded ranks of groups whose size is given anew."""
    listed = graph.config.get("groups")
    if not isinstance(listed, dict) or not any(
        name in listed and size != len(listed[name])
        for name, size in given.items()
        if isinstance(listed.get(name), list)
    ):
        return graph
    kept = {name: ranks for name, ranks in listed.items() if name not in given}
    return attrs.evolve(graph, config={**graph.config, "groups": kept})


_COLLECTIVES = COMMUNICATING | {"shard"}


def _has_collectives(analysis: Analysis) -> bool:
    """Whether ranks talk to each other anywhere in a program."""
    rules = [i.rule for i in analysis.program.instances if i.rule is not None]
    return any(r.code in _COLLECTIVES or any(name in _COLLECTIVES for name, _ in r.then) for r in rules)


def _result(
    placed: Placed, contract: Contract, solved: Any, options: dict[str, Any], original: Graph
) -> AnnotatedGraph:
    p = placed.base.analysis.program
    again = solved(placed.graph)
    names = again.mesh.names()
    q, types = again.program, again.solution.typing.types
    layouts = {q.name_of(v): render(of, names) for v, of in enumerate(types) if isinstance(of, Layout)}
    _record(placed.graph, layouts)
    apart = _scores_apart(again, layouts) if placed.weights.apart else {}
    options = {**options, "layouts": apart}
    group = placed.base.tokens.group
    if (
        isinstance(group.size, int)
        and group.name not in again.mesh.by_ranks
        and not placed.base.analysis.mesh.by_ranks
    ):
        # So that the file can be read without being told the group's size.
        listed = placed.graph.config.get("groups")
        known = {**(listed if isinstance(listed, dict) else {}), group.name: list(range(group.size))}
        placed.graph = attrs.evolve(placed.graph, config={**placed.graph.config, "groups": known})
    placed.graph = recorded(original, placed.graph, contract.name)
    roles = {p.nodes[k].name: role for k, role in placed.roles.calls.items()}
    insertions = tuple(
        Insertion(
            i.kind,
            i.nodes,
            p.name_of(i.value),
            tuple(dict.fromkeys(p.nodes[k].name for k in i.readers)),
            placed.problem.times(p.value_call[i.value]),
            placed.reason(i),
        )
        for i in placed.inserted
    )
    shards = {p.nodes[p.value_call[v]].name: _shard(c, placed.base) for v, c in placed.weights.cuts.items()}
    certificate = placed.placement.certificate
    return AnnotatedGraph(
        placed.graph,
        contract.name,
        layouts,
        roles,
        insertions,
        shards,
        placed.pricing.prices.name,
        placed.placement.price,
        certificate.bound,
        certificate.method,
        placed.base.tokens.group.name,
        (
            *placed.notes(),
            *(
                f"scores stay with the ranks: the output is {name}={text}, which --layout says"
                for name, text in apart.items()
            ),
        ),
        placed,
        options,
    )


def _scores_apart(analysis: Analysis, layouts: Mapping[str, str]) -> dict[str, str]:
    """Outputs whose last axis is a rank's share of a feature, which a plan asked for: layouts as text, by name."""
    p, types = analysis.program, analysis.solution.typing.types
    out: dict[str, str] = {}
    for k, kind in enumerate(p.kind):
        for value in p.inputs[k] if kind == OUTPUT else ():
            of, name = types[value], p.name_of(value)
            if isinstance(of, Layout) and of.rank and bound_on_axis(of, of.rank - 1):
                out[name] = layouts[name][layouts[name].index("[") :]
    return out


def _shard(cut: Cut, base: Base) -> Shard:
    group, mesh = base.tokens.group, base.tokens.mesh
    ways: Size = 1
    for m in group.axes if cut.over is None else cut.over:
        ways = ways * mesh.size(m)
    copies = divide_exact(group.size, ways)
    assert copies is not None
    return Shard(cut.axis, ways, cut.pieces, copies, cut.padding)


def _record(graph: Graph, layouts: dict[str, str]) -> None:
    """Write what each value holds to the graph; inputs keep what was declared of them."""
    for i, node in enumerate(graph.nodes):
        text = layouts.get(node.name)
        if text is None or node.op != "call_function" or not isinstance(node.meta, TensorMeta):
            continue
        graph.nodes[i] = attrs.evolve(node, meta=attrs.evolve(node.meta, layout=text[text.index("[") :]))
