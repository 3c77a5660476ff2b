"""Why a conversion stands where it stands, and what the alternatives cost."""

from __future__ import annotations

import attrs

from layoutcheck.errors import InputError
from layoutcheck.placement.counts import MOVES
from layoutcheck.placement.emit import Inserted
from layoutcheck.placement.place import Placed
from layoutcheck.placement.pricing import UNIT
from layoutcheck.placement.problem import FULL, LOCAL, NAMES, PARTIAL, Infeasible, Problem
from layoutcheck.placement.solve import solve


def explain(placed: Placed, node: str) -> str:
    """What stands at a node: `node` is a conversion's node, the value that it converts, or any other call.

    Raises:
        InputError: there is no such node.
    """
    p = placed.base.analysis.program
    found = [
        i
        for i in placed.inserted
        if node in i.nodes or node == p.name_of(i.value) or node == p.nodes[p.value_call[i.value]].name
    ]
    if found:
        return "\n\n".join(_conversion(placed, i) for i in found)
    k = p.node_call.get(node)
    if k is None and node in p.by_name:
        k = p.value_call[p.by_name[node]]
    if k is None:
        raise InputError(f"there is no node {node!r}", "--explain-placement")
    return _call(placed, k)


def _conversion(placed: Placed, i: Inserted) -> str:
    p = placed.base.analysis.program
    name = p.name_of(i.value)
    times = placed.problem.times(p.value_call[i.value])
    readers = ", ".join(dict.fromkeys(p.nodes[k].name for k in i.readers))
    lines = [
        f"{i.kind} of {name} ({', '.join(i.nodes)})",
        f"  for      {readers}" + (f", {times} times" if times > 1 else ""),
        f"  why      {placed.reason(i)}",
        f"  price    {_seconds(_paid(placed, i))}, of {_seconds(placed.placement.price)} in all"
        f" (prices: {placed.pricing.prices.name}; {placed.placement.certificate.method},"
        f" nothing is cheaper than {_seconds(placed.placement.certificate.bound)})",
        f"  instead  {_without(placed, i)}",
    ]
    return "\n".join(lines)


def _paid(placed: Placed, i: Inserted) -> int:
    value = placed.problem.problem.values[i.value]
    return {
        "slice": value.slice,
        "all_gather": value.gather,
        "reduce_scatter": value.scatter,
        "all_reduce": value.reduce,
    }[i.kind] or 0


def _without(placed: Placed, i: Inserted) -> str:
    """The cheapest placement without this conversion."""
    problem = placed.problem.problem
    move = MOVES[i.kind]
    ops = []
    for op in problem.ops:
        slots = [slot for slot, v in enumerate(op.reads) if v == i.value]
        extra = {(slot, *move) for slot in slots}
        if move[0] == PARTIAL:
            extra |= {(slot, PARTIAL, state) for slot in slots for state in (LOCAL, FULL)}
        ops.append(attrs.evolve(op, barred=op.barred | extra) if extra else op)
    try:
        other = solve(Problem(tuple(ops), problem.values))
    except Infeasible:
        return "nothing: without it the contract can't be held"
    more = other.price - placed.placement.price
    changed = [
        placed.base.analysis.program.nodes[placed.problem.calls[o][0]].name
        for o, (a, b) in enumerate(zip(placed.placement.modes, other.modes))
        if a != b
    ]
    where = (
        f", with {', '.join(changed[:4])}{' ..' if len(changed) > 4 else ''} in another state"
        if changed
        else ""
    )
    return f"the cheapest placement without it costs {_seconds(more)} more{where}"


def _call(placed: Placed, k: int) -> str:
    p = placed.base.analysis.program
    way = placed.chosen.get(k)
    lines = [p.nodes[k].name]
    if way is None:
        return f"{lines[0]}: a conversion of the graph as it was, left out"
    for slot, state in enumerate(way.needs):
        if state is not None:
            lines.append(
                f"  operand {slot}  {p.name_of(placed.base.root(p.inputs[k][slot]))}: {NAMES[state]}"
            )
    for j, state in enumerate(way.gives):
        if state is not None:
            lines.append(f"  result {j}   {NAMES[state]}")
    ways = placed.ways.done.get(k, ())
    others = [w for w in ways if (w.needs, w.gives) != (way.needs, way.gives)]
    shown = "; ".join(
        " ".join(NAMES[s] for s in w.needs if s is not None)
        + " to "
        + " ".join(NAMES[s] for s in w.gives if s is not None)
        for w in others
    )
    lines.append(f"  it could also run {shown}" if others else "  its rule takes nothing else")
    return "\n".join(lines)


def _seconds(price: int) -> str:
    seconds = price * UNIT
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= size:
            return f"{seconds / size:.4g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
