"""Experts written one by one, read as one grouped product.

Between a dispatch of rows to experts and their combination every local expert has products of its own. How many there are
depends on the ranks, so the graph's calls hold at one size of the group only; together they are one grouped product over
``experts / ep``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

from attrs import define, field

from layoutcheck.layouts import Layout
from layoutcheck.program import CALL
from layoutcheck.roles.facts import Facts
from layoutcheck.roles.flow import Flow


@define
class Experts:
    """One dispatch and what runs up to the weighted sum of its rows.

    Attributes:
        first: the dispatch; ``rows`` and ``ids`` are its operands' values.
        calls: all calls that the grouped product stands for, exchanges included.
        exchanges: the calls that move rows between ranks.
        local: experts on this rank.
        inner: the (value, axis) whose extent is one expert's inner width.
        gated: whether a gate and an up projection stand in front of the last product.
    """

    first: int
    rows: int
    ids: int
    calls: set[int] = field(factory=set)
    exchanges: list[int] = field(factory=list)
    local: int = 0
    inner: tuple[int, int] = (0, 0)
    gated: bool = False
    dtype: str = "bfloat16"


def find_experts(flow: Flow, facts: Sequence[Facts]) -> list[Experts]:
    """All dispatches whose rows reach products and are combined again."""
    p = flow.program
    found = []
    for k, kind in enumerate(p.kind):
        fact = flow.fact(k)
        if kind != CALL or fact is None or fact.code != "dispatch" or len(p.inputs[k]) < 2:
            continue
        experts = _follow(flow, facts, k)
        if experts is not None:
            found.append(experts)
    return found


def _follow(flow: Flow, facts: Sequence[Facts], k: int) -> Experts | None:
    p = flow.program
    routed = set(range(p.first[k], p.first[k] + p.outs[k]))
    made: dict[int, int] = {}  # value -> 1 where a product lies behind it
    experts = Experts(k, p.inputs[k][0], p.inputs[k][1], {k})
    products: list[tuple[int, bool]] = []
    combined: set[int] = set()
    shape: tuple[object, ...] = ()
    waiting = [c for v in routed for c in flow.readers.get(v, ())]
    heapify(waiting)
    seen: set[int] = set()
    while waiting:
        c = heappop(waiting)
        if c in seen or p.kind[c] != CALL:
            continue
        seen.add(c)
        fact = facts[p.op[c]]
        outs = range(p.first[c], p.first[c] + p.outs[c])
        if any(v in combined for v in p.inputs[c]):
            of = flow.layout(p.first[c])
            if of is not None and of.shape == shape and (fact.pointwise or fact.aliases):
                experts.calls.add(c)
                combined.update(outs)
                _wait(flow, waiting, outs)
            elif fact.reduces:
                experts.calls.add(c)
            continue
        if not any(v in routed for v in p.inputs[c]):
            continue
        experts.calls.add(c)
        _wait(flow, waiting, outs)
        if fact.code == "combine":
            combined.update(outs)
            of = flow.layout(p.first[c])
            shape = of.shape if of is not None else ()
            continue
        routed.update(outs)
        behind = any(made.get(v) for v in p.inputs[c])
        if fact.code == "all_to_all":
            experts.exchanges.append(c)
        elif flow.is_weight_product(c):
            products.append((c, behind))
            behind = True
        for v in outs:
            made[v] = int(behind)
    return experts if combined and _measure(flow, experts, products) else None


def _wait(flow: Flow, waiting: list[int], values: Iterable[int]) -> None:
    for v in values:
        for c in flow.readers.get(v, ()):
            heappush(waiting, c)


def _measure(flow: Flow, experts: Experts, products: list[tuple[int, bool]]) -> bool:
    """Fill in what the products say; False where they are no feed-forward networks of one size."""
    p = flow.program
    downs = [c for c, behind in products if behind]
    ups = [c for c, behind in products if not behind]
    if not downs or not ups or len(ups) % len(downs):
        return False
    last, first = downs[0], ups[0]
    weight = next((v for v in p.inputs[last] if flow.kinds[v] == "W" and _is_matrix(flow, v)), None)
    if weight is None:
        return False
    data = flow.data_inputs(last)
    rows = next((v for v in data if flow.kinds[v] == "A"), None)
    of, up = (flow.layout(rows) if rows is not None else None), flow.layout(p.first[first])
    if of is None or up is None or rows is None:
        return False
    experts.local = len(downs)
    experts.inner = (rows, -1)
    width = sum(_columns(flow, c) for c in ups[: len(ups) // len(downs)])
    experts.gated = width == 2 * _width(of)
    weight_of = flow.layout(weight)
    experts.dtype = weight_of.dtype if weight_of is not None else experts.dtype
    return True


def _is_matrix(flow: Flow, value: int) -> bool:
    of = flow.layout(value)
    return of is not None and of.rank >= 2


def _width(of: Layout) -> int:
    width = of.shape[-1]
    return width if isinstance(width, int) else 0


def _columns(flow: Flow, call: int) -> int:
    of = flow.layout(flow.program.first[call])
    return _width(of) if of is not None else 0
