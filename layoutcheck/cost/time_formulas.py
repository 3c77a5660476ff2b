"""The time of a lifted graph as formulas in its tokens, compiled for arrays of counts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any

from layoutcheck.cost.collectives import exposed_us
from layoutcheck.cost.compiled import Compiled, compile_formulas
from layoutcheck.cost.hardware import Hardware
from layoutcheck.cost.terms import GraphCost
from layoutcheck.symbols import Expr, substitute, to_sympy

TOTAL = "total"


def time_formulas(
    cost: GraphCost,
    hardware: Hardware,
    given: Mapping[str, int],
    routing: str = "balanced",
    overlap: Collection[str] = (),
) -> dict[str, Any]:
    """Microseconds by role, and in all, as sympy expressions over the symbols that are not given.

    Args:
        cost: the lifted graph.
        hardware: whose constants are taken.
        given: values of all group sizes (a collective's formula needs its rank count as a number), and of what else is fixed.
        routing, overlap: see ``time_graph``.
    """
    import sympy

    known: dict[Any, Any] = {}
    roles: dict[str, list[Any]] = defaultdict(list)
    hiding: dict[Any, list[Any]] = defaultdict(list)
    moved: dict[Any, list[Any]] = {}
    mover: dict[Any, str] = {}
    for term in cost.terms:
        key = (term.kernel, tuple(term.sizes.items()), tuple(sorted(term.options.items())))
        if key not in known:
            sizes = {n: _filled(size, given) for n, size in term.sizes.items()}
            known[key] = term.table.time(hardware, sizes, {**term.options, "routing": routing})
        us = term.count * known[key]
        if term.hidden(overlap):
            moved.setdefault(term.regions, []).append(us)
            mover[term.regions] = term.role
            continue
        if term.kernel != "collective":
            hiding[term.regions].append(us)
        roles[term.role].append(us)
    for regions, times in moved.items():
        left = exposed_us(sympy.Add(*times), sympy.Add(*hiding[regions], evaluate=False), True)
        roles[mover[regions]].append(left)
    found = {role: sympy.Add(*terms, evaluate=False) for role, terms in roles.items()}
    every = [t for terms in roles.values() for t in terms]
    return {**found, TOTAL: sympy.Add(*every, evaluate=False)}


def compile_times(
    cost: GraphCost,
    hardware: Hardware,
    given: Mapping[str, int],
    routing: str = "balanced",
    overlap: Collection[str] = (),
) -> Compiled:
    """The formulas of :func:`time_formulas`, compiled."""
    return compile_formulas(time_formulas(cost, hardware, given, routing, overlap))


def _filled(size: Any, given: Mapping[str, int]) -> Any:
    """A size with the given symbols' values in it: a number where nothing is left open."""
    if not isinstance(size, Expr):
        return size
    left = substitute(size, given)
    return to_sympy(left) if isinstance(left, Expr) else left
