"""A checked graph, run on ranks against its single-device twin."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import attrs
import torch

from layoutcheck.errors import InputError
from layoutcheck.graph import Graph, Node
from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.layouts import Layout, symbols_of
from layoutcheck.list_collectives import written_out
from layoutcheck.program import PLACEHOLDER
from layoutcheck.ranks.denote import (
    Ranks,
    Undenoted,
    close,
    extents,
    join,
    number,
    placement,
    share,
    summands,
)
from layoutcheck.ranks.interpreter import Groups, RankError, missing, run
from layoutcheck.ranks.reference.registry import FLOATS
from layoutcheck.ranks.specialise import all_ranks
from layoutcheck.ranks.twin import Twin, TwinRunner
from layoutcheck.rules.rulebook import RuleBook

MAX_WORLD = 64
MAX_ELEMENTS = 1 << 26
Backend = Callable[
    [Sequence[Graph], Sequence[Mapping[str, Any]], Groups, Mapping[str, int]], Sequence["Held"]
]
"""Runs one graph a rank on its inputs elsewhere than in this process. Raises RankError."""


class Held(Protocol):
    """What a rank computed: values by node name, its inputs as they are afterwards."""

    values: dict[str, Any]
    inputs: dict[str, Any]


@attrs.frozen
class Verdict:
    """Whether the ranks agree with one device: `first` is the first value that differs and how, `error` what
    did not run.

    `runs` is False where what did not run does not run on one device either: then it is the input that is wrong, not the
    layout. `compared` values were computed on one device and compared; `taken` were taken over from the ranks.
    """

    world: int
    compared: int
    taken: tuple[str, ...]
    first: tuple[str, str] | None = None
    error: str | None = None
    place: str = ""
    twin: Twin | None = attrs.field(default=None, eq=False, repr=False)
    runs: bool = True

    @property
    def equal(self) -> bool:
        """Whether nothing differs and everything ran."""
        return self.first is None and self.error is None


def ranks_of(analysis: Analysis, symbols: Mapping[str, int]) -> Ranks:
    """The ranks of a graph's mesh. Raises InputError where there are more than 64, or a size has no value."""
    try:
        sizes = tuple(number(a.size, dict(symbols)) for a in analysis.mesh.axes)
    except Undenoted as error:
        raise InputError(str(error), "--group") from None
    ranks = Ranks(sizes, dict(symbols))
    if ranks.world > MAX_WORLD:
        raise InputError(
            f"{ranks.world} ranks are more than the {MAX_WORLD} that run in one process", "ranks"
        )
    return ranks


def values_of(analysis: Analysis, tokens: int) -> dict[str, int]:
    """A value for every symbol of a graph's sizes: the number of tokens."""
    names = symbols_of(analysis.solution.typing.types) | analysis.graph.ranges.keys()
    return dict.fromkeys(sorted(names), tokens)


def members_of(analysis: Analysis, ranks: Ranks) -> Groups:
    """The groups of a graph's mesh."""
    mesh = analysis.mesh
    every = range(ranks.world)
    return Groups(
        ranks.world,
        {name: [ranks.members(r, g.axes) for r in every] for name, g in mesh.groups.items()},
        {listed: [ranks.members(r, g.axes) for r in every] for listed, g in mesh.by_ranks.items()},
    )


def draw(analysis: Analysis, ranks: Ranks, seed: int) -> dict[int, torch.Tensor]:
    """A random whole for every input: floats around 1 / sqrt(last axis), positions and ids below what they
    point into.

    Raises:
        InputError: an input is too large, or its layout denotes nothing.
    """
    p = analysis.program
    types: Mapping[int, Any] = analysis.solution.runner.inputs
    generator = torch.Generator().manual_seed(seed)
    limits = _limits(analysis, ranks)
    out: dict[int, torch.Tensor] = {}
    total = 0
    for k, kind in enumerate(p.kind):
        if kind != PLACEHOLDER:
            continue
        value = p.first[k]
        of = types[value]
        if not isinstance(of, Layout):
            out[value] = torch.tensor(number(of, ranks.symbols) if of is not None else 0)
            continue
        try:
            shape = extents(of, ranks)
        except Undenoted as error:
            raise InputError(f"the input denotes no tensor: {error}", p.nodes[k].name) from None
        total += _product(shape)
        if total > MAX_ELEMENTS:
            raise InputError(
                f"more than {MAX_ELEMENTS} elements of inputs are too many to run", p.nodes[k].name
            )
        spec = analysis.graph.inputs.get(p.nodes[k].name)
        if not shape and (p.nodes[k].op == "get_attr" or (spec is not None and spec.kind != "user_input")):
            # exports do not hold a lifted constant's value; where one is written or looked up, it is a 0
            out[value] = torch.zeros((), dtype=torch.float64 if of.dtype in FLOATS else torch.int64)
        elif of.dtype in FLOATS:
            scale = max(shape[-1], 1) ** -0.5 if len(shape) > 1 else 1.0
            out[value] = torch.randn(shape, generator=generator, dtype=torch.float64) * scale
        elif of.dtype == "bool":
            out[value] = torch.randint(0, 2, shape, generator=generator).bool()
        else:
            out[value] = torch.randint(0, limits.get(value, 7), shape, generator=generator)
    return out


def _product(shape: Sequence[int]) -> int:
    total = 1
    for n in shape:
        total *= n
    return total


def _limits(analysis: Analysis, ranks: Ranks) -> dict[int, int]:
    """Extents of what integer inputs index, followed through views and arithmetic to the first lookup."""
    p = analysis.program
    types = analysis.solution.typing.types
    out: dict[int, int] = {}
    for k, kind in enumerate(p.kind):
        if kind != PLACEHOLDER or not isinstance(types[p.first[k]], Layout):
            continue
        todo, seen = [p.first[k]], set()
        while todo:
            value = todo.pop()
            if value in seen:
                continue
            seen.add(value)
            for call, slot in analysis.uses.get(value, ()):
                rule = p.instances[p.op[call]].rule if p.op[call] >= 0 else None
                if rule is None:
                    continue
                table = types[p.inputs[call][0]]
                if (
                    rule.code in ("embedding", "index", "index_select", "gather")
                    and slot > 0
                    and isinstance(table, Layout)
                ):
                    try:
                        dim = 0 if rule.code != "gather" else -1
                        out[p.first[k]] = min(out.get(p.first[k], 1 << 30), extents(table, ranks)[dim])
                    except Undenoted:
                        pass
                elif isinstance(types[value], Layout) and types[value].dtype.startswith(("int", "bool")):
                    todo.extend(p.first[call] + j for j in range(p.outs[call]))
    return out


def shares(
    analysis: Analysis, ranks: Ranks, wholes: Mapping[int, torch.Tensor], seed: int
) -> list[dict[str, Any]]:
    """Each rank's inputs by node name."""
    p = analysis.program
    types: Mapping[int, Any] = analysis.solution.runner.inputs
    out: list[dict[str, Any]] = [{} for _ in range(ranks.world)]
    generator = torch.Generator().manual_seed(seed + 1)
    for value, whole in wholes.items():
        name = p.nodes[p.value_call[value]].name
        of = types[value]
        if not isinstance(of, Layout):
            for mine in out:
                mine[name] = int(whole)
            continue
        n = 1
        for m in of.partial:
            n *= ranks.sizes[m]
        parts = summands(whole, n, generator) if of.partial else None
        off = placement(of, ranks).off
        others: dict[tuple[int, ...], torch.Tensor] = {}
        for r, (mine, x) in enumerate(zip(out, share(whole, of, ranks, parts))):
            if (
                off
            ):  # a part of something that is on no axis, such as one of the experts: each has its own numbers
                at = ranks.coordinates(r)
                key = tuple(at[d.mesh] for d in off if d.mesh is not None)
                x = others.setdefault(key, _other(x, others, generator))
            mine[name] = x
    return out


def _other(x: torch.Tensor, others: Mapping[Any, Any], generator: torch.Generator) -> torch.Tensor:
    """Another tensor of the same kind: the first one is x itself."""
    if not others or not x.is_floating_point():
        return x
    return torch.randn(x.shape, generator=generator, dtype=x.dtype) * x.std()


def own_inputs(analysis: Analysis, ranks: Ranks, given: Sequence[Mapping[str, Any]]) -> dict[int, list[Any]]:
    """Inputs of which each rank holds its own, by value number."""
    p = analysis.program
    out: dict[int, list[Any]] = {}
    for k, kind in enumerate(p.kind):
        of = analysis.solution.runner.inputs[p.first[k]] if kind == PLACEHOLDER else None
        if not isinstance(of, Layout):
            continue
        try:
            if placement(of, ranks).off:
                out[p.first[k]] = [mine[p.nodes[k].name] for mine in given]
        except Undenoted:
            continue
    return out


def verify(
    analysis: Analysis,
    *,
    tokens: int = 5,
    seed: int = 0,
    graphs: Sequence[Graph] | None = None,
    backend: Backend | None = None,
) -> Verdict:
    """Run a typed graph on the ranks of its mesh and on one device, on random inputs.

    Args:
        tokens: the value of symbolic sizes.
        graphs: the graph of every rank; without it they are made from the one.
        backend: runs the ranks as processes; what they compute is compared with the simulated ranks, too.

    Raises:
        InputError: an op has no reference implementation, or the graph is too large to run.
    """
    ranks, programs, wholes = prepare(analysis, tokens=tokens, seed=seed, graphs=graphs)
    try:
        return compare(analysis, ranks, programs, wholes, seed, backend)
    except Undenoted as error:
        raise _misfit(tokens, error) from None


def prepare(
    analysis: Analysis, *, tokens: int, seed: int, graphs: Sequence[Graph] | None = None
) -> tuple[Ranks, list[Graph], dict[int, torch.Tensor]]:
    """The ranks of a graph, the graph of each, and the whole inputs by value number.

    Raises:
        InputError: as `verify`.
    """
    lacking = missing(analysis.graph)
    if lacking:
        raise InputError(f"no reference implementation of {', '.join(lacking[:5])}", "verify")
    symbols = values_of(analysis, tokens)
    ranks = ranks_of(analysis, symbols)
    wholes = draw(analysis, ranks, seed)
    try:
        if graphs is None:
            return ranks, all_ranks(analysis, ranks), wholes
        book = RuleBook.load()
        return ranks, [written_out(g, book)[0] for g in graphs], wholes
    except Undenoted as error:
        raise _misfit(tokens, error) from None


def _misfit(tokens: int, error: Undenoted) -> InputError:
    return InputError(f"{tokens} tokens do not fit the graph: {error}", "verify")


def compare(
    analysis: Analysis,
    ranks: Ranks,
    programs: Sequence[Graph],
    wholes: Mapping[int, torch.Tensor],
    seed: int,
    backend: Backend | None = None,
    instead: Sequence[Mapping[str, Any]] | None = None,
    known: frozenset[tuple[int, int]] = frozenset(),
) -> Verdict:
    """Run programs on given inputs and compare with one device.

    Args:
        instead: values that take the place of what calls give, as in `interpreter.run`.
        known: outputs, as call and slot, whose difference is known.
    """
    names: list[dict[str, Node]] = [{n.name: n for n in g.nodes} for g in programs]
    held: list[dict[str, Any]] = [{} for _ in programs]

    def keep(rank: int, node: Node, result: Any) -> None:
        held[rank][node.name] = _kept(result)

    error: str | None = None
    where = ""
    given: Sequence[Mapping[str, Any]] = shares(analysis, ranks, wholes, seed)
    groups = members_of(analysis, ranks)
    try:
        if backend is not None:
            there = backend(programs, shares(analysis, ranks, wholes, seed), groups, ranks.symbols)
        run(programs, given, groups, symbols=ranks.symbols, watch=keep, instead=instead)
        if backend is not None:
            apart = _apart(programs, held, there)
            if apart is not None:
                return Verdict(ranks.world, 0, (), apart)
            held, given = [r.values for r in there], [r.inputs for r in there]
    except RankError as raised:
        error, where = str(raised.args[0]), raised.node
        if raised.rank is not None:
            error = f"rank {raised.rank}: {error}"
    own = own_inputs(analysis, ranks, shares(analysis, ranks, wholes, seed))
    twin = TwinRunner(
        analysis, ranks, dict(wholes), held, names, groups, own, known, stopped=error is not None
    ).walk()
    first = twin.first or ((where, error) if error is not None else None) or _buffers(analysis, ranks, given)
    return Verdict(
        ranks.world,
        twin.compared,
        tuple(twin.taken),
        first,
        error if twin.first is None else None,
        twin.place,
        twin,
        not where or where not in twin.failed,
    )


def _apart(
    programs: Sequence[Graph], simulated: Sequence[Mapping[str, Any]], there: Sequence[Held]
) -> tuple[str, str] | None:
    """The first value in which processes differ from simulated ranks, and on which rank."""
    for r, graph in enumerate(programs):
        for node in graph.nodes:
            one, other = simulated[r].get(node.name), there[r].values.get(node.name)
            if node.name in simulated[r] and not _same(one, other):
                return node.name, f"rank {r}'s process holds another value than the simulated rank"
    return None


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return close(a, b)
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b))
    return b is None or bool(a == b)


def _buffers(analysis: Analysis, ranks: Ranks, given: Sequence[Mapping[str, Any]]) -> tuple[str, str] | None:
    """An input that the ranks have written into must still denote a tensor under its layout."""
    p = analysis.program
    for k, kind in enumerate(p.kind):
        of = analysis.solution.runner.inputs.get(p.first[k]) if kind == PLACEHOLDER else None
        if isinstance(of, Layout):
            try:
                join([mine[p.nodes[k].name] for mine in given], of, ranks)
            except Undenoted as error:
                return p.nodes[k].name, f"after what was written into it: {error}"
    return None


def _kept(x: Any) -> Any:
    """A copy, since later calls may write into it."""
    if isinstance(x, torch.Tensor):
        return x.clone()
    return [_kept(y) for y in x] if isinstance(x, (tuple, list)) else x
