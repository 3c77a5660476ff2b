"""How many conversions a contract allows in a layer, honoured by solving again.

A cut knows prices, not counts. Where the cheapest placement has more conversions of a kind in a layer than the contract counts, those
that no boundary asks for are barred, and it is solved again.
"""

from __future__ import annotations

import attrs

from layoutcheck.contracts.model import Contract
from layoutcheck.contracts.sites import is_meant
from layoutcheck.placement.base import Base
from layoutcheck.placement.emit import steps
from layoutcheck.placement.problem import FULL, LOCAL, PARTIAL, Infeasible, Op, Placement, Problem
from layoutcheck.placement.program_problem import ProgramProblem
from layoutcheck.placement.solve import solve
from layoutcheck.program import Program
from layoutcheck.roles import Roles

MOVES = {
    "slice": (FULL, LOCAL),
    "all_gather": (LOCAL, FULL),
    "reduce_scatter": (PARTIAL, LOCAL),
    "all_reduce": (PARTIAL, FULL),
}
MAX_ROUNDS = 4


def conversions(problem: ProgramProblem, modes: tuple[int, ...]) -> dict[int, list[str]]:
    """The kinds of conversions of each value under a placement."""
    born: dict[int, int] = {}
    needed: dict[int, set[int | None]] = {}
    for op, m in zip(problem.problem.ops, modes):
        for v, state in zip(op.writes, op.modes[m].gives):
            if state is not None:
                born[v] = state
        for v, state in zip(op.reads, op.modes[m].needs):
            if state is not None:
                needed.setdefault(v, set()).add(state)
    out = {}
    for v, states in needed.items():
        if v in born and states - {born[v]}:
            out[v] = [kind for kind, _, _ in steps(born[v], states, problem.problem.values[v])]
    return out


def with_fewer(
    problem: ProgramProblem,
    modes: tuple[int, ...],
    contract: Contract,
    roles: Roles,
    base: Base,
    asked: set[int],
) -> tuple[Problem, Placement] | None:
    """The problem with conversions barred of which a layer has too many, and its placement; None where there are none too many,
    or nothing fits without them.

    Args:
        modes: the placement so far.
        asked: values that a boundary's demand is on.
    """
    barred = too_many(problem, modes, contract, roles, base, asked)
    made = conversions(problem, modes)
    # Without any of the layer's other ones what a boundary asks for may be out of reach (codes whose scale is gathered beside
    # them, where their values could be): then only those that were made are barred.
    for chosen in (barred, [(v, kind) for v, kind in barred if kind in made.get(v, ())]):
        if not chosen:
            return None
        fewer = without(problem.problem, chosen)
        try:
            return fewer, solve(fewer)
        except Infeasible:
            continue
    return None


def too_many(
    problem: ProgramProblem,
    modes: tuple[int, ...],
    contract: Contract,
    roles: Roles,
    base: Base,
    asked: set[int],
) -> list[tuple[int, str]]:
    """Conversions `(value, kind)` to bar: of all values of a layer that has more of a kind than it counts, but those that a
    boundary asks for.

    Args:
        asked: values that a boundary's demand is on.
    """
    limits = [b for b in contract.boundaries if b.role == "layer" and b.count]
    if not limits:
        return []
    made = conversions(problem, modes)
    program = base.analysis.program
    out: list[tuple[int, str]] = []
    for layer in roles.layers:
        inside = [
            (v, kind)
            for v, kinds in made.items()
            for kind in kinds
            if layer.begin <= program.value_call[v] <= layer.end
            and roles.of(program.value_call[v]) != "moe.routed"
        ]
        for b in limits:
            if not any(is_meant(base.analysis, roles, b, block, base.tokens.group) for block in layer.blocks):
                continue
            for kind, _, high in b.count:
                mine = [v for v, found in inside if found == kind]
                if len(mine) > high:
                    # all values of the layer: else the conversion moves to the next view of what it converted
                    out.extend((v, kind) for v in _made_in(program, layer.begin, layer.end) if v not in asked)
    return list(dict.fromkeys(out))


def _made_in(program: Program, begin: int, end: int) -> range:
    return range(program.first[begin], program.first[end] + program.outs[end])


def without(problem: Problem, barred: list[tuple[int, str]]) -> Problem:
    """The problem with conversions of values barred."""
    moves: dict[int, set[tuple[int, int]]] = {}
    for v, kind in barred:
        moves.setdefault(v, set()).add(MOVES[kind])
    ops: list[Op] = []
    for op in problem.ops:
        more = {(slot, *move) for slot, v in enumerate(op.reads) for move in moves.get(v, ())}
        ops.append(attrs.evolve(op, barred=op.barred | more) if more else op)
    return Problem(tuple(ops), problem.values)
