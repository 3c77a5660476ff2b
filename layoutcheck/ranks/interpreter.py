"""Runs graphs on p ranks in lockstep, in one process.

Every rank is a coroutine over its graph's nodes; it stops where it communicates and goes on once all ranks
of the group have come to the same exchange. Graphs of two ranks need not be isomorphic (one pads, the other
does not).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import attrs
import torch

from layoutcheck.graph import DictArg, DtypeArg, Graph, Node, Other, Ref
from layoutcheck.program import _WRAPPERS as WRAPPERS
from layoutcheck.program import _unwrap
from layoutcheck.ranks.reference.collectives import exchange
from layoutcheck.ranks.reference.registry import Exchange, find, memory_format, real_dtype
from layoutcheck.symbols import Expr, evaluate, free_symbols

Members = Callable[[int, Any], Sequence[int]]
Watch = Callable[[int, Node, Any], None]
Talk = Generator[Exchange, Any, Any]


FAILURES = (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError, AssertionError)
"""What ops raise where their operands do not fit."""


class RankError(RuntimeError):
    """A rank cannot go on: shapes do not fit, an op has no definition, or ranks wait for each other. `node` is
    where.
    """

    def __init__(self, message: str, node: str = "", rank: int | None = None) -> None:
        super().__init__(message)
        self.node, self.rank = node, rank

    def __str__(self) -> str:
        where = f"{self.node} on rank {self.rank}: " if self.node else ""
        return where + super().__str__()


@attrs.define
class Run:
    """One rank's values by node name, and its outputs."""

    values: dict[str, Any]
    outputs: list[Any]


def missing(graph: Graph) -> list[str]:
    """Targets of a graph that cannot be run."""
    calls = [n for n in graph.nodes if n.op == "call_function"]
    return sorted({t for t in (unwrapped(n)[0] for n in calls) if find(t) is None})


def unwrapped(node: Node) -> tuple[str, tuple[Any, ...], dict[str, Any], list[Any]]:
    """Target, arguments and written bases of a call; a functionalised wrapper's are those of the op in it."""
    if node.target in WRAPPERS:
        target, kwargs, bases = _unwrap(node)
        return target, (), kwargs, bases
    return node.target, node.args, dict(node.kwargs), []


def perform(
    node: Node, values: Mapping[str, Any], symbols: Mapping[str, int]
) -> Generator[Exchange, Any, Any]:
    """Run one call on one rank; a wrapper works on copies of what it writes, and gives them behind its own results."""
    target, given, named, bases = unwrapped(node)
    function = find(target)
    if function is None:
        raise RankError(f"{target} has no definition")
    if bases:
        copies = {b.name: values[b.name].clone() for b in bases if isinstance(b, Ref)}
        values = {**values, **copies}
    args = argument(given, values, symbols)
    kwargs = {k: argument(v, values, symbols) for k, v in named.items()}
    result = function(*args, **kwargs)
    if isinstance(result, Generator):
        result = yield from result
    if not bases:
        return result
    own = list(result) if isinstance(result, (tuple, list)) else [result]
    return [*own, *[values[b.name] for b in bases if isinstance(b, Ref)]]


def argument(arg: Any, values: Mapping[str, Any], symbols: Mapping[str, int]) -> Any:
    """An argument with values in the place of references, sizes as ints and torch's dtypes and memory formats."""
    if isinstance(arg, Ref):
        return values[arg.name]
    if isinstance(arg, Expr):
        if free_symbols(arg) - set(symbols):
            raise RankError(f"the size {arg} has no value")
        return evaluate(arg, symbols)
    if isinstance(arg, (tuple, list)):
        return [argument(a, values, symbols) for a in arg]
    if isinstance(arg, DtypeArg):
        return real_dtype(arg.name)
    if isinstance(arg, DictArg):
        return {k: argument(v, values, symbols) for k, v in arg.items}
    if isinstance(arg, Other):
        return memory_format(arg.text)
    return arg


def rank_program(
    graph: Graph,
    inputs: Mapping[str, Any],
    symbols: Mapping[str, int],
    rank: int,
    watch: Watch | None = None,
    before: Callable[[Node], None] | None = None,
    instead: Mapping[str, Mapping[int | None, Any]] | None = None,
) -> Generator[Exchange, Any, Run]:
    """One rank as a coroutine, which yields its part of each exchange and is sent the result. `watch` is called
    after every call, `before` in front of it; `instead` are values that take the place of what calls give, by node and
    output (None: the only one).
    """
    values: dict[str, Any] = {}
    outputs: list[Any] = []
    for node in graph.nodes:
        if before is not None:
            before(node)
        if node.op in ("placeholder", "get_attr"):
            if node.name not in inputs:
                raise RankError("the input has no value", node.name, rank)
            values[node.name] = inputs[node.name]
        elif node.op == "output":
            given = argument(node.args, values, symbols)
            flat = given[0] if len(given) == 1 and isinstance(given[0], list) else given
            outputs = list(flat)
        else:
            try:
                result = yield from perform(node, values, symbols)
            except RankError as error:
                error.node, error.rank = node.name, rank
                raise
            except FAILURES as error:
                raise RankError(str(error).split("\n")[0], node.name, rank) from error
            if instead and node.name in instead:
                result = _replaced(result, instead[node.name])
            values[node.name] = result
            if watch is not None:
                watch(rank, node, result)
    return Run(values, outputs)


def _replaced(result: Any, by: Mapping[int | None, Any]) -> Any:
    if None in by:
        return by[None]
    return [by.get(j, x) for j, x in enumerate(result)]


def run(
    graphs: Sequence[Graph],
    inputs: Sequence[Mapping[str, Any]],
    members: Members,
    *,
    symbols: Mapping[str, int] | None = None,
    watch: Watch | None = None,
    instead: Sequence[Mapping[str, Mapping[int | None, Any]]] | None = None,
) -> list[Run]:
    """Run graph r on rank r.

    Args:
        inputs: per rank, values of placeholders and constants by node name.
        members: `members(rank, group)` are the ranks of a group that a call names (a list of ranks or a
            name), in order.
        symbols: values of symbolic sizes.
        watch: called with each rank, node and result.
        instead: per rank, values that take the place of what calls give (see `rank_program`).

    Raises:
        RankError: shapes do not fit, an op has no definition, or an exchange is not met by all ranks of its
            group.
    """
    with torch.no_grad():
        programs = [
            rank_program(g, x, symbols or {}, r, watch, instead=instead[r] if instead else None)
            for r, (g, x) in enumerate(zip(graphs, inputs))
        ]
        return _lockstep(programs, members)


def _lockstep(ranks: Sequence[Talk], members: Members) -> list[Any]:
    """Advance coroutines to their exchanges, meet these, until all have ended; their results."""
    done: dict[int, Any] = {}
    waiting: dict[int, tuple[Exchange, list[int]]] = {}
    ready: dict[int, Any] = dict.fromkeys(range(len(ranks)))
    while len(done) < len(ranks):
        for r, sent in list(ready.items()):
            try:
                asked = ranks[r].send(sent)
                waiting[r] = (asked, list(members(r, asked.group)))
            except StopIteration as end:
                done[r] = end.value
        ready = _meet(waiting)
        for r in ready:
            del waiting[r]
        if not ready and len(done) < len(ranks):
            raise RankError(f"ranks {sorted(waiting)} wait for exchanges that others do not join")
    return [done[r] for r in range(len(ranks))]


def _meet(waiting: Mapping[int, tuple[Exchange, list[int]]]) -> dict[int, Any]:
    """Results for all ranks whose whole group has come to one exchange."""
    out: dict[int, Any] = {}
    for r, (asked, group) in waiting.items():
        if r in out:
            continue
        if r not in group:
            raise RankError(f"rank {r} takes part in a group {group} that it is not in")
        if not all(
            q in waiting and waiting[q][1] == group and waiting[q][0].kind == asked.kind for q in group
        ):
            continue
        requests = [waiting[q][0] for q in group]
        for me, q in enumerate(group):
            try:
                out[q] = exchange(requests, me)
            except RuntimeError as error:
                raise RankError(str(error).split("\n")[0]) from error
    return out


@attrs.frozen
class Groups:
    """The groups of a program as data: per name, and per sorted list of ranks, the group that each rank is in.

    A list that holds the rank is itself, any other stands for the group of its kind that the rank is in. A name
    that is not known stands for all ranks where no name is known.
    """

    world: int
    names: dict[str, list[list[int]]]
    lists: dict[tuple[int, ...], list[list[int]]] = attrs.field(factory=dict)
    complete: bool = True

    def __call__(self, rank: int, group: Any) -> Sequence[int]:
        """The ranks of the group that `rank` is in, in order.

        Raises:
            RankError: there is no such group.
        """
        if isinstance(group, (list, tuple)):
            ranks = [int(r) for r in group]
            if rank in ranks and all(0 <= r < self.world for r in ranks):
                return ranks
            known = self.lists.get(tuple(sorted(ranks)))
        else:
            known = self.names.get(str(group))
            if known is None and not self.names and not self.complete:
                return range(self.world)
        if known is None:
            raise RankError(f"the group {group} is not known")
        return known[rank]


def named_groups(graphs: Sequence[Graph]) -> Groups:
    """Groups as the graphs themselves give them: rank lists in calls, names in `config["groups"]`."""
    names: dict[str, list[list[int]]] = {}
    for name in {n for g in graphs for n in g.config.get("groups", {})}:
        names[name] = [list(g.config.get("groups", {}).get(name, ())) for g in graphs]
    return Groups(len(graphs), names, complete=False)


def run_call(target: str, args: Sequence[Mapping[str, Any]], members: Members) -> list[Any]:
    """Run one op on every rank with its own arguments by name.

    Raises:
        RankError: as `run`.
    """
    function = find(target)
    if function is None:
        raise RankError(f"{target} has no definition")

    def talk(mine: Mapping[str, Any]) -> Generator[Exchange, Any, Any]:
        try:
            result = function(**mine)
            if isinstance(result, Generator):
                result = yield from result
        except FAILURES as error:
            raise RankError(str(error).split("\n")[0], target) from error
        return result

    return _lockstep([talk(a) for a in args], members)


def perform_all(
    nodes: Sequence[Node],
    values: Sequence[Mapping[str, Any]],
    symbols: Mapping[str, int],
    members: Members,
) -> list[Any]:
    """Run one call on every rank, with operands by name.

    Raises:
        RankError: as `run`.
    """

    def talk(node: Node, mine: Mapping[str, Any]) -> Talk:
        try:
            return (yield from perform(node, mine, symbols))
        except FAILURES as error:
            message = error.args[0] if isinstance(error, RankError) else str(error).split("\n")[0]
            raise RankError(str(message), node.name) from error

    with torch.no_grad():
        return _lockstep([talk(n, v) for n, v in zip(nodes, values)], members)


def run_node(node: Node, values: Mapping[str, Any], symbols: Mapping[str, int]) -> Any:
    """Run one call on one device, which is a group of its own.

    Raises:
        RankError: as `run`.
    """

    return perform_all([node], [values], symbols, lambda r, g: [0])[0]
