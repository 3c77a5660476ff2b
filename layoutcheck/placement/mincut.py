"""The cheapest placement as a minimum cut, where modes and states lie on chains.

Every op has a threshold per mode but the first ("at least this mode"), every value one per step of the chain ("needed at
least so full"). A threshold that holds is on the source's side. What one threshold implies is an edge without a capacity; a
conversion is an edge from "needed so full" to "born so full". The cut's capacity is the price, and the flow that fills it is
the proof that nothing is cheaper.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import networkx as nx
from networkx.algorithms.flow import boykov_kolmogorov

from layoutcheck.placement.problem import FULL, LOCAL, Infeasible, Label, Op, Problem, Value

SOURCE, SINK = "source", "sink"
Edge = tuple[Any, Any, int | None]
Pair = tuple[int, int]


def ordered(op: Op) -> Op | None:
    """The op with its modes in an order in which every state grows; None where there is none."""
    if len(op.modes) == 1:
        return op
    modes = sorted(op.modes, key=lambda m: (_key(m.gives), _key(m.needs)))
    for less, more in pairwise(modes):
        for a, b in zip((*less.needs, *less.gives), (*more.needs, *more.gives)):
            if (a is None) != (b is None) or (a is not None and b is not None and a > b):
                return None
    return Op(op.reads, op.writes, tuple(modes), op.barred)


def _key(states: tuple[int | None, ...]) -> tuple[int, ...]:
    return tuple(-1 if s is None else s for s in states)


def is_lattice(allowed: set[Pair]) -> bool:
    """Whether pairs of modes are closed under taking the smaller and the larger of each: then implications express them."""
    return all(
        (min(a, c), min(b, d)) in allowed and (max(a, c), max(b, d)) in allowed
        for a, b in allowed
        for c, d in allowed
    )


class Network:
    """The network of one part of a problem, whose ops have their modes in order."""

    def __init__(self) -> None:
        self.edges: dict[tuple[Any, Any], int | None] = {}
        self.constant = 0

    def imply(self, x: Any, y: Any) -> None:
        """Where x holds, y holds."""
        self.edges[(x, y)] = None

    def cost(self, x: Any, y: Any, price: int) -> None:
        """A price to pay where x holds and y does not."""
        known = self.edges.get((x, y), 0)
        if known is not None and price:
            self.edges[(x, y)] = known + price

    def op(self, name: int, op: Op) -> None:
        """Thresholds and prices of an op."""
        self.constant += op.modes[0].price
        for j in range(1, len(op.modes)):
            node = (name, j)
            if j > 1:
                self.imply(node, (name, j - 1))
            more = op.modes[j].price - op.modes[j - 1].price
            if more > 0:
                self.cost(node, SINK, more)
            elif more < 0:
                self.constant += more
                self.cost(SOURCE, node, -more)

    def at_least(self, name: int, states: Sequence[int | None], state: int) -> Any:
        """The threshold from which on an op's states are at least this: SOURCE where they always are, SINK where never."""
        for j, s in enumerate(states):
            if s is not None and s >= state:
                return SOURCE if j == 0 else (name, j)
        return SINK

    def pairs(self, a: int, n: int, b: int, m: int, allowed: set[Pair]) -> None:
        """Only these pairs of modes of two ops with n and m modes, which are a lattice."""
        if not allowed:
            raise Infeasible(a)
        for i in range(1, n + 1):
            rest = [q for p, q in allowed if p >= i]
            self._bound(_node(a, i, n), b, m, min(rest) if rest else m)
        for j in range(1, m + 1):
            rest = [p for p, q in allowed if q >= j]
            self._bound(_node(b, j, m), a, n, min(rest) if rest else n)
        # the least of all
        self._bound(SOURCE, a, n, min(p for p, _ in allowed))
        self._bound(SOURCE, b, m, min(q for _, q in allowed))

    def _bound(self, x: Any, name: int, n: int, least: int) -> None:
        if x is not SINK and least > 0:
            self.imply(x, _node(name, least, n))

    def listed(self) -> tuple[Edge, ...]:
        """All edges."""
        return tuple((x, y, c) for (x, y), c in self.edges.items() if x != y and x != SINK and y != SOURCE)


def _node(name: int, j: int, n: int) -> Any:
    return SINK if j >= n else (name, j)


def build(problem: Problem) -> Network:
    """The network of a part. Its ops have their modes in order; those with one mode are fixed, and what they cost is left out."""
    net = Network()
    writer = problem.writer()
    readers = problem.readers()
    for o, op in enumerate(problem.ops):
        if len(op.modes) > 1:
            net.op(o, op)
    for v, (maker, place) in writer.items():
        gives = [m.gives[place] for m in problem.ops[maker].modes]
        if gives[0] is None:
            continue
        read = readers.get(v, [])
        prices = problem.values[v].steps({g for g in gives if g is not None})
        assert prices is not None
        for step, price in ((LOCAL, prices[0]), (FULL, prices[1])):
            born = net.at_least(maker, gives, step)
            for reader, slot in read:
                states = [m.needs[slot] for m in problem.ops[reader].modes]
                need = net.at_least(reader, states, step)
                if need is not SINK:
                    net.imply(need, ("v", v, step))
            net.cost(("v", v, step), born, price)
        _slice(net, problem, v, read, net.at_least(maker, gives, FULL))
        for reader, slot in read:
            if len(gives) > 1 or len(problem.ops[reader].modes) > 1:
                allowed = allowed_pairs(problem, maker, place, reader, slot)
                net.pairs(maker, len(gives), reader, len(problem.ops[reader].modes), allowed)
    return net


def _slice(net: Network, problem: Problem, v: int, readers: Sequence[tuple[int, int]], full: Any) -> None:
    """A slice is paid once where the value is born Full and some reader wants less."""
    price = problem.values[v].slice
    if not price or full is SINK:
        return
    for reader, slot in readers:
        states = [m.needs[slot] for m in problem.ops[reader].modes]
        if states[0] is None:
            continue
        need = net.at_least(reader, states, FULL)
        if need is not SOURCE:
            net.imply(("w", v), need)
    net.cost(full, ("w", v), price)


def allowed_pairs(problem: Problem, maker: int, place: int, reader: int, slot: int) -> set[Pair]:
    """Pairs of modes of a value's maker and of a reader between which there is a conversion that is not barred."""
    read = problem.ops[reader]
    value = problem.values[read.reads[slot]]
    needs = [m.needs[slot] for m in read.modes]
    return {
        (i, j)
        for i, made in enumerate(problem.ops[maker].modes)
        for j, need in enumerate(needs)
        if fits(value, made.gives[place], need, read.barred, slot)
    }


def fits(value: Value, born: Label, need: Label, barred: frozenset[tuple[int, int, int]], slot: int) -> bool:
    """Whether a value that is born in one state can be had in another at an operand."""
    if need is None:
        return True
    return born is not None and (slot, born, need) not in barred and (born == need or value.can(born, need))


def cut(edges: Sequence[Edge]) -> tuple[int, dict[tuple[Any, Any], int], frozenset[Any]]:
    """A minimum cut: its capacity, a flow that fills it, the nodes on the source's side. Raises Infeasible."""
    graph = nx.DiGraph()
    graph.add_node(SOURCE)
    graph.add_node(SINK)
    for x, y, capacity in edges:
        if capacity is None:
            graph.add_edge(x, y)
        else:
            graph.add_edge(x, y, capacity=capacity)
    try:
        value, flows = nx.maximum_flow(graph, SOURCE, SINK, flow_func=boykov_kolmogorov)
    except nx.NetworkXUnbounded:
        raise Infeasible from None
    flow = {(x, y): f for x, out in flows.items() for y, f in out.items() if f}
    return int(value), flow, _source_side(edges, flow)


def _source_side(edges: Sequence[Edge], flow: dict[tuple[Any, Any], int]) -> frozenset[Any]:
    """What the source still reaches in the residual network."""
    ways: dict[Any, list[Any]] = {}
    for x, y, capacity in edges:
        used = flow.get((x, y), 0)
        if capacity is None or used < capacity:
            ways.setdefault(x, []).append(y)
        if used > 0:
            ways.setdefault(y, []).append(x)
    seen = {SOURCE}
    todo = deque([SOURCE])
    while todo:
        for y in ways.get(todo.popleft(), ()):
            if y not in seen:
                seen.add(y)
                todo.append(y)
    return frozenset(seen)
