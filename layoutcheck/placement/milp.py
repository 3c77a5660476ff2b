"""The cheapest placement as an integer program, where the chain argument fails (HiGHS, in scipy).

One variable per op and mode; per value and state one that says whether it is available so; per conversion one that says
whether it is made. Of placements of one price that is taken whose ops are on the lower states, so that equal repeats come out equal.
"""

from __future__ import annotations

from collections.abc import Sequence

from layoutcheck.errors import InputError
from layoutcheck.placement.mincut import allowed_pairs
from layoutcheck.placement.problem import FULL, LOCAL, PARTIAL, Infeasible, Op, Problem


class _Model:
    """Rows and columns of the program, sparse."""

    def __init__(self) -> None:
        self.prices: list[int] = []
        self.ranks: list[int] = []
        self.rows: list[tuple[dict[int, int], int, int]] = []

    def var(self, price: int, rank: int = 0) -> int:
        self.prices.append(price)
        self.ranks.append(rank)
        return len(self.prices) - 1

    def row(self, terms: dict[int, int], low: int, high: int) -> None:
        self.rows.append((terms, low, high))


def solve(problem: Problem) -> tuple[tuple[int, ...], float]:
    """Modes of the ops of a part and the solver's lower bound. Ops with one mode are fixed, and what they cost is left out.

    Raises:
        Infeasible: nothing fits.
        InputError: scipy is not installed.
    """
    try:
        import numpy as np
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import coo_matrix
    except ImportError as error:
        raise InputError(
            f"this placement needs an integer program, and {error.name} is not installed: pip install 'layoutcheck[fit]'"
        ) from error
    model = _Model()
    chosen: dict[tuple[int, int], int] = {}
    for o, op in enumerate(problem.ops):
        if len(op.modes) > 1:
            passes = _passes(op)
            for j, mode in enumerate(op.modes):
                rank = 0 if passes else sum(s for s in (*mode.needs, *mode.gives) if s)
                chosen[(o, j)] = model.var(mode.price, rank)
            model.row({chosen[(o, j)]: 1 for j in range(len(op.modes))}, 1, 1)
    readers = problem.readers()
    for v, writer in problem.writer().items():
        _value(model, problem, v, writer, readers.get(v, []), chosen)
    n = len(model.prices)
    at = [(i, j, c) for i, (terms, _, _) in enumerate(model.rows) for j, c in terms.items()]
    matrix = coo_matrix(
        ([c for _, _, c in at], ([i for i, _, _ in at], [j for _, j, _ in at])), shape=(len(model.rows), n)
    )
    unit = max([abs(p) for p in model.prices] or [1]) or 1
    scale = max(1.0, unit / 1e6)
    # All ranks together are less than the least difference between two prices.
    nudge = 0.25 / max(1, sum(model.ranks))
    found = milp(
        (np.array(model.prices, dtype=float) + nudge * np.array(model.ranks)) / scale,
        constraints=LinearConstraint(matrix.tocsr(), [r[1] for r in model.rows], [r[2] for r in model.rows]),
        integrality=np.ones(n),
        bounds=Bounds(0, 1),
        options={"mip_rel_gap": 0.0},
    )
    if found.x is None:
        raise Infeasible
    picked = {o: j for (o, j), x in chosen.items() if found.x[x] > 0.5}
    bound = getattr(found, "mip_dual_bound", None)
    modes = tuple(picked.get(o, 0) for o in range(len(problem.ops)))
    return modes, (found.fun if bound is None else bound) * scale - 0.25


def _passes(op: Op) -> bool:
    """Whether an op hands on what it gets, in every state and for nothing, as what ties a body to itself does."""
    return all(m.price == 0 and len({*m.needs, *m.gives}) == 1 for m in op.modes)


def _value(
    model: _Model,
    problem: Problem,
    v: int,
    writer: tuple[int, int],
    readers: Sequence[tuple[int, int]],
    chosen: dict[tuple[int, int], int],
) -> None:
    """Available states of a value: born so, or converted to from a state that is available."""
    maker, place = writer
    gives = [m.gives[place] for m in problem.ops[maker].modes]
    if gives[0] is None:
        return
    price = problem.values[v]
    have = [model.var(0) for _ in range(3)]
    terms: list[dict[int, int]] = [{have[s]: 1} for s in range(3)]
    fixed = [0, 0, 0]
    for i, born in enumerate(gives):
        assert born is not None
        if (maker, i) in chosen:
            terms[born][chosen[(maker, i)]] = -1
        else:
            fixed[born] = 1
    ways = (
        (PARTIAL, LOCAL, price.scatter),
        (LOCAL, FULL, price.gather),
        (PARTIAL, FULL, price.reduce),
        (FULL, LOCAL, price.slice),
    )
    made = {}
    for low, high, paid in ways:
        if paid is None:
            continue
        x = model.var(paid)
        made[(low, high)] = x
        terms[high][x] = -1
        model.row({x: 1, have[low]: -1}, -1, 0)
    # A value is not made Local from Full and Full from Local at once.
    pair = {made[k]: 1 for k in ((LOCAL, FULL), (FULL, LOCAL)) if k in made}
    model.row(pair, 0, 1)
    for s in range(3):
        model.row(terms[s], -5, fixed[s])
    for reader, slot in readers:
        modes = problem.ops[reader].modes
        for j, mode in enumerate(modes):
            need = mode.needs[slot]
            if need is not None:
                if (reader, j) in chosen:
                    model.row({have[need]: 1, chosen[(reader, j)]: -1}, 0, 1)
                else:
                    model.row({have[need]: 1}, 1, 1)
        allowed = allowed_pairs(problem, maker, place, reader, slot)
        for i in range(len(gives)):
            for j in range(len(modes)):
                if (i, j) in allowed:
                    continue
                both = {chosen[k]: 1 for k in ((maker, i), (reader, j)) if k in chosen}
                model.row(both, 0, len(both) - 1)
