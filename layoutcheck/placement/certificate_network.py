"""Whether a network says of a part no more than is true, so that a flow through it bounds every placement.

A placement is a cut: a threshold `(o, j)` lies on the source's side where op o runs in mode j or a later one, `("v", v, step)` where
some reader needs value v at least so full, `("w", v)` where all do need it Full. Shown here is, edge by edge, that no placement cuts an
edge without capacity, and value by value and op by op that what is cut costs no more than the placement.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, combinations
from typing import Any

from layoutcheck.placement.mincut import SINK, SOURCE
from layoutcheck.placement.problem import FULL, LOCAL, PARTIAL, Op, Problem, Solved, Value

Converted = Callable[[Value, int | None, frozenset[int]], int | None]


class NetworkCheck:
    """Holds a part's network against its problem. `converted` prices the conversions of a value."""

    def __init__(self, solved: Solved, converted: Converted) -> None:
        self.solved, self.converted = solved, converted
        self.problem: Problem = solved.problem
        self.made = {v: (o, j) for o, op in enumerate(self.problem.ops) for j, v in enumerate(op.writes)}
        self.uses: dict[int, list[tuple[int, int]]] = {}
        for o, op in enumerate(self.problem.ops):
            for slot, v in enumerate(op.reads):
                self.uses.setdefault(v, []).append((o, slot))

    def wrong(self) -> str | None:
        """The first edge or price that is not true, None where there is none."""
        costs: dict[tuple[Any, Any], int] = {}
        for x, y, capacity in self.solved.network:
            if capacity is not None:
                if capacity < 0:
                    return f"the edge from {x} to {y} has a capacity below 0"
                costs[(x, y)] = costs.get((x, y), 0) + capacity
            elif not self._follows(x, y):
                return f"the edge from {x} to {y} does not follow"
        least = 0
        for o, op in enumerate(self.problem.ops):
            if len(op.modes) > 1:
                least += self._least(o, op, costs)
        if self.solved.constant > least:
            return f"the constant is {self.solved.constant}, and no more than {least} is always paid"
        for v in self.made:
            if not self._value(v, costs):
                return f"the edges of value {v} cost more than its conversions"
        if costs:
            x, y = next(iter(costs))
            return f"the edge from {x} to {y} stands for nothing"
        return None

    # ---- edges without capacity

    def _follows(self, x: Any, y: Any) -> bool:
        if y == SOURCE or x == SINK:
            return True
        if _is(y, "v"):
            return any(
                v == y[1] and all(need is not None and need >= y[2] for need in needs)
                for v, needs in self._needs(x, True)
            )
        if _is(x, "w"):
            return any(
                v == x[1] and all(need is not None and need < FULL for need in needs)
                for v, needs in self._needs(y, False)
            )
        if not _is_mode(x) or not _is_mode(y) or (x == SOURCE and y == SINK):
            return False
        if x != SOURCE and y != SINK:
            if x[0] == y[0]:
                return bool(x[1] >= y[1])
            return all(j >= y[1] for i, j in self._pairs(x[0], y[0]) if i >= x[1])
        o = y[0] if x == SOURCE else x[0]
        for other in self._around(o):
            mine = {i for i, _ in self._pairs(o, other)}
            if all(i >= y[1] for i in mine) if x == SOURCE else all(i < x[1] for i in mine):
                return True
        return False

    def _needs(self, node: Any, from_here: bool) -> list[tuple[int, list[int | None]]]:
        """Per operand what is needed in the modes from a threshold on, or in those before it; any op's all modes at an end."""
        ops = self.problem.ops
        if node in (SOURCE, SINK):
            return [(v, [m.needs[s] for m in op.modes]) for op in ops for s, v in enumerate(op.reads)]
        if not _is_mode(node):
            return []
        op = ops[node[0]]
        modes = op.modes[node[1] :] if from_here else op.modes[: node[1]]
        return [(v, [m.needs[s] for m in modes]) for s, v in enumerate(op.reads)]

    def _around(self, o: int) -> set[int]:
        op = self.problem.ops[o]
        found = {r for v in op.writes for r, _ in self.uses.get(v, ())}
        return found | {self.made[v][0] for v in op.reads if v in self.made}

    def _pairs(self, a: int, b: int) -> set[tuple[int, int]]:
        """Pairs of modes of two ops that go together, as far as the values between them tell; empty sets prove nothing."""
        ops = self.problem.ops
        pairs = {
            (i, j) for i in range(len(ops[a].modes)) for j in range(len(ops[b].modes)) if a != b or i == j
        }
        for maker, reader, turn in ((a, b, False), (b, a, True)):
            for slot, v in enumerate(ops[reader].reads):
                if v in self.made and self.made[v][0] == maker:
                    place = self.made[v][1]
                    pairs = {
                        (i, j)
                        for i, j in pairs
                        if self._goes(reader, slot, place, *((j, i) if turn else (i, j)), maker)
                    }
        return pairs

    def _goes(self, reader: int, slot: int, place: int, i: int, j: int, maker: int) -> bool:
        op = self.problem.ops[reader]
        born, need = self.problem.ops[maker].modes[i].gives[place], op.modes[j].needs[slot]
        if need is None:
            return True
        if born is None or (slot, born, need) in op.barred:
            return False
        return self.converted(self.problem.values[op.reads[slot]], born, frozenset((need,))) is not None

    # ---- prices

    def _least(self, o: int, op: Op, costs: dict[tuple[Any, Any], int]) -> int:
        """What an op costs beside the edges of its thresholds, at least; takes these edges out of `costs`."""
        over = [costs.pop(((o, j), SINK), 0) for j in range(1, len(op.modes))]
        under = [costs.pop((SOURCE, (o, j)), 0) for j in range(1, len(op.modes))]
        return min(m.price - sum(over[:i]) - sum(under[i:]) for i, m in enumerate(op.modes))

    def _value(self, v: int, costs: dict[tuple[Any, Any], int]) -> bool:
        """Whether the edges of a value cost no more than its conversions; takes them out of `costs`."""
        maker, place = self.made[v]
        mine = [e for e in costs if _is(e[0], "v") and e[0][1] == v] + [
            e for e in costs if _is(e[1], "w") and e[1][1] == v
        ]
        edges = [(x, y, costs.pop((x, y))) for x, y in mine]
        states = (PARTIAL, LOCAL, FULL)
        for i, mode in enumerate(self.problem.ops[maker].modes):
            for needs in chain.from_iterable(combinations(states, n) for n in (1, 2, 3)):
                paid = self.converted(self.problem.values[v], mode.gives[place], frozenset(needs))
                if paid is None:
                    continue
                cut = 0
                for x, y, capacity in edges:
                    if _is(x, "v"):
                        at = y
                        is_cut = max(needs) >= x[2]
                        wrong_side = y == SINK or (_is_mode(y) and y[0] == maker and i < y[1])
                    else:
                        at = x
                        is_cut = min(needs) < FULL
                        wrong_side = x == SOURCE or (_is_mode(x) and x[0] == maker and i >= x[1])
                    if not (at in (SOURCE, SINK) or (_is_mode(at) and at[0] == maker)):
                        return False
                    cut += capacity if is_cut and wrong_side else 0
                if cut > paid:
                    return False
        return True


def _is(node: Any, kind: str) -> bool:
    return isinstance(node, tuple) and node[0] == kind


def _is_mode(node: Any) -> bool:
    return node in (SOURCE, SINK) or (isinstance(node, tuple) and isinstance(node[0], int))
