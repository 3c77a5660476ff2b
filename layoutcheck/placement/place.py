"""Placing conversions: from a solved program and a contract to the graph that has them."""

from __future__ import annotations

import gc
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import attrs

from layoutcheck.contracts.applies import NO_LAYER, missing_group, other_kind
from layoutcheck.contracts.model import Contract
from layoutcheck.contracts.sites import sites_of
from layoutcheck.cost.prices import ByteRates, HardwarePrices, Prices
from layoutcheck.errors import InputError
from layoutcheck.graph import Graph
from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.mesh import Group
from layoutcheck.placement.addends import addends_apart
from layoutcheck.placement.base import Base, strip
from layoutcheck.placement.convert import Converter
from layoutcheck.placement.counts import MAX_ROUNDS, with_fewer
from layoutcheck.placement.demands import Demands, demands_of
from layoutcheck.placement.dialect import dialect_of
from layoutcheck.placement.emit import Emitter, Inserted
from layoutcheck.placement.experts import ExpertsCut, experts_cut
from layoutcheck.placement.fused import bound_targets, put_together, taken_apart
from layoutcheck.placement.modes import Ways
from layoutcheck.placement.parts import with_parts
from layoutcheck.placement.plan import WeightPlan, cut_blocks, planned
from layoutcheck.placement.pricing import NOMINAL, Pricing
from layoutcheck.placement.problem import FULL, LOCAL, NAMES, Infeasible, Placement
from layoutcheck.placement.program_problem import ProgramProblem, build_problem
from layoutcheck.placement.repeats import ends_apart
from layoutcheck.placement.solve import solve
from layoutcheck.placement.stuck import stuck
from layoutcheck.placement.tokens import Tokens, packed_domain, stream_domain
from layoutcheck.placement.vocabulary import VocabularyCut, vocabulary_cut
from layoutcheck.placement.way import Way
from layoutcheck.program import CALL, OUTPUT
from layoutcheck.regions.expand import expand_ends
from layoutcheck.regions.fusion_rules import FusionBook
from layoutcheck.regions.names import Names
from layoutcheck.roles import Roles, find_roles
from layoutcheck.rules.rulebook import RuleBook
from layoutcheck.symbols import free_symbols


@attrs.define
class Placed:
    """A placement with all that it was made from. `chosen` is the way of each call, `born` the state of each value."""

    base: Base
    ways: Ways
    demands: Demands
    weights: WeightPlan
    pricing: Pricing
    problem: ProgramProblem
    placement: Placement
    chosen: dict[int, Way]
    born: dict[int, int | None]
    needed: dict[int, dict[int, list[int]]]
    roles: Roles
    graph: Graph
    inserted: list[Inserted]
    aliases: dict[int, list[int]] = attrs.field(factory=dict)

    def reason(self, i: Inserted) -> str:
        """Why a conversion is needed: the contract's boundary, or what its readers' rules ask for."""
        p = self.base.analysis.program
        target = {"slice": LOCAL, "all_gather": FULL, "reduce_scatter": LOCAL, "all_reduce": FULL}[i.kind]
        titles: dict[str, None] = {}
        for k in i.readers:
            way = self.chosen.get(k)
            for slot, v in enumerate(p.inputs[k]):
                if self.base.root(v) != i.value or way is None or way.needs[slot] != target:
                    continue
                demand = self.demands.operands.get((k, slot))
                titles.update(dict.fromkeys(b.title for b in (demand.why if demand else ())))
                for place in range(p.outs[k]):
                    given = self.demands.results.get((k, place))
                    titles.update(dict.fromkeys(b.title for b in (given.why if given else ())))
        if titles:
            return f"the contract wants {NAMES[target]} at {', '.join(titles)}"
        names = ", ".join(dict.fromkeys(p.nodes[k].name for k in i.readers))
        behind = self._wanted_behind(i.readers, target)
        if behind is not None:
            return f"{names} lead{'s' if len(i.readers) == 1 else ''} to {behind}, which the contract wants {NAMES[target]}"
        only = all(
            all(any(s == target for s in w.needs) for w in self.ways.done.get(k, ()))
            for k in i.readers
            if p.kind[k] == CALL
        )
        if only:
            return f"{names} can be run on {NAMES[target]} tokens only"
        verb = "is" if len(i.readers) == 1 else "are"
        return f"{names} on {NAMES[target]} tokens {verb} the cheapest that what follows allows"

    def _wanted_behind(self, readers: Sequence[int], target: int) -> str | None:
        """The first boundary behind these calls that the contract wants in this state."""
        p = self.base.analysis.program
        uses = self.base.analysis.uses
        todo, seen = deque(readers), set(readers)
        while todo and len(seen) < 60:
            k = todo.popleft()
            way = self.chosen.get(k)
            if way is None or p.kind[k] == OUTPUT:
                continue
            for place, state in enumerate(way.gives):
                demand = self.demands.results.get((k, place))
                if state != target:
                    continue
                if demand is not None and demand.states == {target}:
                    return demand.why[0].title
                value = p.first[k] + place
                for reader, slot in self._readers(uses, value):
                    found = self.demands.operands.get((reader, slot))
                    if found is not None and found.states == {target}:
                        return found.why[0].title
                    if reader not in seen:
                        seen.add(reader)
                        todo.append(reader)
        return None

    def _readers(self, uses: dict[int, list[tuple[int, int]]], value: int) -> list[tuple[int, int]]:
        """Calls that read a value, also behind conversions that the graph had."""
        out = list(uses.get(value, ()))
        out += [u for v in self.aliases.get(value, ()) for u in uses.get(v, ())]
        return out

    def notes(self) -> tuple[str, ...]:
        """What was decided without being asked for."""
        return tuple(
            f"{self.roles.blocks[number].kind} block {number} keeps its weights whole: {why}"
            for number, why in self.weights.left
        )


def place(
    analysis: Analysis,
    contract: Contract,
    *,
    prices: Prices | None = None,
    values: Mapping[str, int] | None = None,
    again: Callable[[Graph], Analysis] | None = None,
    plan: str | Path | None = None,
    rules: Sequence[str | Path] = (),
) -> Placed:
    """The cheapest program that holds a contract, from one that may hold other conversions or none.

    Args:
        analysis: the solved program.
        contract: which layout each boundary has.
        prices: what conversions and ops cost; bytes over default bandwidths where not given.
        values: numbers for symbolic sizes, at which prices are compared.
        again: solves a graph as `analysis` was; with it, fused ops are taken apart where a conversion has to stand between
            their parts, and the first and last repeats of a body are written out where they are placed otherwise than the rest.
        plan: a file of weight layouts by name pattern.
        rules: folders of further op rules.

    Raises:
        InputError: the program has no decoder layer, no group of the contract's name, or can't be run as the contract demands.
    """
    collecting = gc.isenabled()
    # Nothing that is made here is garbage before the end, and looking for it takes as long as placing.
    gc.disable()
    try:
        return _Placing(contract, prices, dict(values or {}), again, plan, rules).place(analysis)
    finally:
        if collecting:
            gc.enable()


@attrs.frozen
class Stage:
    """What was done to a program before it is placed.

    whole: fused ops may be taken apart; tied: repeats are not written out; biased: products keep the biases that they have;
    refined: the group is as fine as it may become; vocabulary: weights that were cut along the vocabulary, by name;
    experts: weights that were cut by experts, None before that.
    """

    whole: bool = True
    tied: bool = False
    biased: bool = False
    refined: bool = False
    vocabulary: Mapping[str, VocabularyCut] = attrs.field(factory=dict)
    experts: ExpertsCut | None = None


@attrs.frozen
class _Placing:
    """The options of `place`."""

    contract: Contract
    prices: Prices | None
    values: dict[str, int]
    again: Callable[[Graph], Analysis] | None
    plan: str | Path | None
    rules: Sequence[str | Path]

    def place(self, analysis: Analysis, stage: Stage = Stage()) -> Placed:
        """Place one program."""
        _known_sizes(analysis, self.values)
        roles = find_roles(analysis)
        group = group_for(analysis, self.contract, roles)
        base = _base(analysis, roles, group, self.contract)
        said = planned(analysis, self.plan)
        if said.vocabulary and not stage.vocabulary and self.again is not None:
            graph, cuts = vocabulary_cut(base, roles, said.vocabulary, _converter(base), said.apart)
            return self.place(self.again(graph), attrs.evolve(stage, vocabulary=cuts))
        if said.experts and stage.experts is None and self.again is not None:
            graph, spread = experts_cut(base, said.experts, _converter(base))
            return self.place(self.again(graph), attrs.evolve(stage, experts=spread))
        demands = demands_of(base, roles, self.contract)
        weights = cut_blocks(base, roles, demands, said, stage.vocabulary, stage.experts)
        if weights.finer and self.again is not None and not stage.refined:
            finer = self._refined(base, weights, stage)
            if finer is not None:
                return finer
        if weights.biased and self.again is not None and not stage.biased:
            return self._without_biases(base, weights.biased, attrs.evolve(stage, biased=True))
        ways = _ways(base)
        if self.again is not None and stage.whole:
            book = FusionBook.load()
            targets = bound_targets(ways, book)
            if targets:
                apart, splits = taken_apart(analysis.graph, targets, book)
                placed = self.place(self.again(apart), attrs.evolve(stage, whole=False))
                placed.graph = put_together(apart, placed.graph, splits, book)
                return placed
        numbers = dict(self.values)
        for symbol in free_symbols(base.tokens.domain.extent):
            numbers.setdefault(symbol, NOMINAL)
        prices = self.prices
        if prices is None:
            prices = ByteRates()
        if isinstance(prices, (ByteRates, HardwarePrices)):
            known = {**_numbers(analysis, numbers), **prices.values}
            prices = attrs.evolve(prices, mesh=analysis.mesh, values=known)
        pricing = Pricing(ways, prices, numbers, roles.flow)
        problem = build_problem(base, ways, demands, pricing)
        try:
            placement = solve(problem.problem)
        except Infeasible as error:
            other = None if stage.tied else self._apart(analysis, problem, None, stage)
            if other is None:
                raise InputError(stuck(base, roles, demands, problem, error.op, self.contract)) from None
            return other
        asked = {base.root(analysis.program.inputs[k][slot]) for k, slot in demands.operands}
        for _ in range(MAX_ROUNDS):
            fewer = with_fewer(problem, placement.modes, self.contract, roles, base, asked)
            if fewer is None:
                break
            problem.problem, placement = fewer
        if not stage.tied:
            other = self._apart(analysis, problem, placement.price, stage)
            if other is not None:
                return other
        found = Placed(
            base, ways, demands, weights, pricing, problem, placement, {}, {}, {}, roles, analysis.graph, []
        )
        return _written(found)

    def _refined(self, base: Base, weights: WeightPlan, stage: Stage) -> Placed | None:
        """The placement over a group in parts, so that weights may be cut over some of them; None where no more of them are."""
        assert self.again is not None
        graph = with_parts(base, weights.finer)
        if graph is None:
            return None
        placed = self.place(self.again(graph), attrs.evolve(stage, refined=True))
        return placed if len(placed.weights.left) < len(weights.left) else None

    def _without_biases(self, base: Base, calls: set[int], stage: Stage) -> Placed:
        """The placement with the biases of row-parallel products added behind their reduction."""
        assert self.again is not None
        graph, products = addends_apart(base, calls)
        placed = self.place(self.again(graph), stage)
        now = placed.base.analysis.program
        whole = {now.nodes[k].name for k in placed.weights.whole}
        # A product that is not cut after all keeps its bias.
        kept = {k for k in calls if products[k] not in whole}
        if kept == calls:
            return placed
        again = self.again(addends_apart(base, kept)[0]) if kept else base.analysis
        return self.place(again, stage)

    def _apart(
        self, analysis: Analysis, problem: ProgramProblem, price: int | None, stage: Stage
    ) -> Placed | None:
        """The placement with repeats at the ends written out; None where that is not cheaper than the price with all alike."""
        if self.again is None or not problem.regions:
            return None
        try:
            ends = ends_apart(problem.problem, problem.regions, price)
            if not ends:
                return None
            written = expand_ends(analysis.graph, ends, book=RuleBook.load([Path(r) for r in self.rules]))
            found = self.place(self.again(written), attrs.evolve(stage, whole=False, tied=True, refined=True))
        except Infeasible:
            return None
        return found if price is None or found.placement.price < price else None


def _base(analysis: Analysis, roles: Roles, group: Group, contract: Contract) -> Base:
    """The program below its conversions. Raises InputError where the residual stream has no token axis."""
    types = list(analysis.solution.typing.types)
    local = [b for b in contract.boundaries if b.require == ("Local",)]
    domain = None
    if not any(b.role == "residual" for b in local):
        sites = [site for b in local for site in sites_of(analysis, roles, b, group)]
        domain = packed_domain(types[s.value] for s in sites if s.value < len(types))
    domain = domain or stream_domain(roles, types)
    if domain is None:
        raise InputError("the residual stream counts no tokens: name them with --tokens INPUT:DIM")
    return strip(analysis, Tokens(analysis.mesh, group, domain), _trusted(analysis, roles))


def _trusted(analysis: Analysis, roles: Roles) -> frozenset[int]:
    """The calls of branches in which tokens are mixed and which are trusted to be right in shape only."""
    named = {role for role, level in analysis.trust.items() if level == "shape-only"}
    if not named:
        return frozenset()
    mixed = {k for k, _, issue in analysis.solution.issues if issue.code == "LC203"}
    blocks = [b for b in roles.blocks if any(min(b.calls) <= k <= b.join.call for k in mixed)]
    return frozenset(k for b in blocks for k in b.calls if roles.of(k) in named)


def _ways(base: Base) -> Ways:
    """What each call of a program can run on, in order, so that what may be a pending sum is known to its readers."""
    ways = Ways(base)
    p = base.analysis.program
    for k in base.kept:
        if p.kind[k] == CALL:
            ways.of(k)
    return ways


def group_for(analysis: Analysis, contract: Contract, roles: Roles) -> Group:
    """The contract's group. Raises InputError where there is none, or no decoder layer."""
    if not roles.layers:
        raise InputError(NO_LAYER)
    missing = missing_group(analysis, contract)
    if missing is not None:
        raise InputError(f"{missing}; name it with --group {contract.group}=SIZE")
    other = other_kind(contract, roles)
    if other is not None:
        raise InputError(f"{contract.name} is {other}")
    return analysis.mesh.groups[contract.group]


def _known_sizes(analysis: Analysis, given: Mapping[str, int]) -> None:
    """Raise InputError where a number is given for a size that the program does not have."""
    if not given:
        return
    known = {
        name
        for of in analysis.solution.typing.types
        for size in getattr(of, "shape", ())
        for name in free_symbols(size)
    }
    known |= {name for axis in analysis.mesh.axes for name in free_symbols(axis.size)}
    for name in given:
        if name not in known:
            there = f"there is {', '.join(sorted(known))}" if known else "all of its sizes are numbers"
            raise InputError(f"the graph has no symbolic size {name}: {there}", "--at")


def _numbers(analysis: Analysis, given: Mapping[str, int]) -> dict[str, int]:
    """A number for every symbol of a program's sizes."""
    out = dict(given)
    for of in analysis.solution.typing.types:
        for size in getattr(of, "shape", ()):
            for name in free_symbols(size):
                out.setdefault(name, NOMINAL)
    return out


def _name_in_graph(analysis: Analysis, group: Group) -> str:
    """The name by which the graph's own collectives call a group; the group's where they name none."""
    groups = analysis.mesh.groups
    found = Counter(
        arg
        for node in analysis.graph.nodes
        if node.op == "call_function"
        for arg in (*node.args, *node.kwargs.values())
        if isinstance(arg, str) and arg in groups and groups[arg].axes == group.axes
    )
    return found.most_common(1)[0][0] if found else group.name


def _converter(base: Base) -> Converter:
    """What writes conversions over the group into a program."""
    analysis, tokens = base.analysis, base.tokens
    mesh = analysis.mesh
    rank = mesh.rank_in(tokens.group) or 0
    ranks = next((r for r, g in mesh.by_ranks.items() if g.axes == tokens.group.axes), None)
    size = tokens.group.size
    if ranks is None:
        ranks = tuple(range(size)) if isinstance(size, int) else ()
    return Converter(
        tokens,
        dialect_of(analysis.graph),
        Names(n.name for n in analysis.graph.nodes),
        rank,
        ranks,
        _name_in_graph(analysis, tokens.group),
    )


def _written(placed: Placed) -> Placed:
    for value, root in enumerate(placed.base.alias):
        if root != value:
            placed.aliases.setdefault(root, []).append(value)
    problem, analysis, tokens = placed.problem, placed.base.analysis, placed.base.tokens
    for op, calls, ways, mode in zip(
        problem.problem.ops, problem.calls, problem.ways, placed.placement.modes
    ):
        way = ways[mode]
        for value, state in zip(op.writes, way.gives):
            placed.born[value] = state
        for value, state in zip(op.reads, way.needs):
            if state is not None:
                placed.needed.setdefault(value, {}).setdefault(state, []).append(calls[0])
        if len(calls) == 1:
            placed.chosen[calls[0]] = way
        else:
            for k in calls:
                placed.chosen[k] = Way(way.needs[:1], way.gives[:1], way.ins[:1], ())
    converter = _converter(placed.base)
    emitter = Emitter(
        placed.ways,
        placed.chosen,
        placed.born,
        placed.needed,
        lambda v: problem.problem.values[v],
        converter,
        # Beside weights that are cut the others are whole, which nobody is to guess.
        frozenset(v for v, role in analysis.plan.roles.items() if role == "weight" and placed.weights.cuts),
    )
    placed.graph = emitter.write()
    placed.inserted = emitter.inserted
    if tokens.domain.extent == 1 and any(i.kind != "all_reduce" for i in placed.inserted):
        i = next(i for i in placed.inserted if i.kind != "all_reduce")
        raise InputError(
            f"a single token can't be shared among the {tokens.group.size} ranks of {tokens.group.name}: no size tells a share"
            f" of it from all of it ({placed.reason(i)}); export the graph with a symbolic number of tokens, or with more of them"
        )
    return placed
