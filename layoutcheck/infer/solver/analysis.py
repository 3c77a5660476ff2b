"""From a graph and options to a solved typing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from layoutcheck.errors import InputError
from layoutcheck.graph import Graph
from layoutcheck.infer.calls.call import Context
from layoutcheck.infer.solver.assume import (
    assume,
    check_static,
    symbols_in,
    with_known_symbols,
    with_tokens_named,
)
from layoutcheck.infer.solver.groups import find_mesh
from layoutcheck.infer.solver.inputs import InputPlan, _uses, plan_inputs
from layoutcheck.infer.solver.meeting import Entry, Rank, differences
from layoutcheck.infer.solver.merged import mark_merged
from layoutcheck.infer.solver.readings import settled
from layoutcheck.infer.solver.single import mark_pieces, mark_single, mark_stacked
from layoutcheck.infer.solver.solve import Solution, Solver
from layoutcheck.infer.solver.together import constant_slices, mark_constant
from layoutcheck.infer.solver.weight_plan import read_plan
from layoutcheck.infer.solver.which_group import prefer_gathered, prefer_seen
from layoutcheck.layouts import Layout
from layoutcheck.list_collectives import written_out
from layoutcheck.mesh import Group, Mesh
from layoutcheck.program import Program, build_program
from layoutcheck.rules.rulebook import RuleBook
from layoutcheck.symbols import Assumptions, Bounds


@attrs.define
class Analysis:
    """A solved program with what it was solved from and the seconds that each stage took.

    `trusted` are calls whose shape-only reading is accepted: a mixed sum there is a warning. `apart` is where other ranks'
    programs do not meet this one; `together` says that there were any. `again` solves another form of the graph
    under the same options, without other ranks;
    the inputs of those names have these layouts.
    """

    graph: Graph
    program: Program
    mesh: Mesh
    plan: InputPlan
    solver: Solver
    solution: Solution
    stages: dict[str, float]
    trust: dict[str, str]
    path: str
    uses: dict[int, list[tuple[int, int]]]
    declared_groups: list[Group]
    trusted: frozenset[int] = frozenset()
    apart: list[Entry] = attrs.field(factory=list)
    together: bool = False
    again: Callable[[Graph, Mapping[str, Layout]], Analysis] | None = attrs.field(
        default=None, repr=False, eq=False
    )

    def __repr__(self) -> str:
        groups = ", ".join(f"{axis.name} {axis.size}" for axis in self.mesh.axes) or "one device"
        return f"<Analysis of {self.graph!r}, {groups}>"


def analyse(
    graph: Graph | str | Path,
    *,
    groups: Mapping[str, Any] | None = None,
    rank: int | None = None,
    world: int | None = None,
    tokens: Sequence[tuple[str, int]] = (),
    layouts: Mapping[str, str] | None = None,
    assumptions: Sequence[str] = (),
    rules: Sequence[str | Path] = (),
    plan: str | Path | None = None,
    trust: Mapping[str, str] | None = None,
    others: Sequence[Graph] = (),
) -> Analysis:
    """Read, flatten and solve a graph; options as in `layoutcheck.check`. Raises InputError where it or an option is malformed."""
    groups = dict(groups or {})
    stages: dict[str, float] = {}

    def lap(name: str, since: float) -> float:
        now = time.process_time()
        stages[name] = stages.get(name, 0.0) + now - since
        return now

    at = time.process_time()
    path = ""
    if not isinstance(graph, Graph):
        from layoutcheck.readers import load

        path = str(graph)
        graph = load(graph)
    at = lap("read", at)
    book = RuleBook.load([Path(r) for r in rules])
    at = lap("rules", at)
    graph, export_name = with_tokens_named(graph, groups)
    static = bool(assumptions) and not symbols_in(graph)
    stated = with_known_symbols(list(assumptions), graph, groups, export_name)
    assumed = Assumptions(stated, graph.ranges)
    if assumptions:
        graph = assume(graph, assumed)
    graph, gone = written_out(graph, book)
    program = build_program(graph, book)
    for name, now in gone.items():
        if now in program.by_name:
            program.by_name.setdefault(name, program.by_name[now])
    at = lap("build", at)
    weights = read_plan(plan) if plan is not None else None
    given = (groups, world, list(tokens), dict(layouts or {}), weights)
    solver, uses = _solver_of(program, assumed.bounds, rank, *given)
    mesh = solver.ctx.mesh
    solution = settled(solver)
    if static:
        check_static(stated, solution.typing.types, mesh)
    apart: list[Entry] = []
    if others:
        ranked = [
            _solved(with_tokens_named(other, groups)[0], book, assumed if assumptions else None, *given)
            for other in others
        ]
        mine = Rank(program, solution.typing.types, mesh.rank, solver)
        _check_distinct([mine, *ranked])
        theirs = [(other.program, other.types, other.solver.ctx.mesh) for other in ranked]
        constant = mark_constant(program, constant_slices((program, solution.typing.types, mesh), theirs))
        seen = [(other.program, other.types, other.solver.ctx) for other in ranked]
        if prefer_seen(program, solution.typing.types, solver.ctx, seen) or constant:
            solver.memo.clear()
            solution = solver.solve()
        apart = differences(mine._replace(types=solution.typing.types), ranked)
    lap("infer", at)

    def again(other: Graph, inputs: Mapping[str, Layout]) -> Analysis:
        program = build_program(other, book)
        solver, uses = _solver_of(program, assumed.bounds, rank, *given, mesh=mesh)
        solver.given = {program.by_name[n]: of for n, of in inputs.items() if n in program.by_name}
        return made(other, program, solver, solver.solve(), uses, [])

    def made(
        graph: Graph,
        program: Program,
        solver: Solver,
        solution: Solution,
        uses: dict[int, list[tuple[int, int]]],
        apart: list[Entry],
    ) -> Analysis:
        mesh = solver.ctx.mesh
        declared = _declared(groups, mesh)
        fixed = (stages, dict(trust or {}), path, uses, declared)
        return Analysis(
            graph,
            program,
            mesh,
            solver.plan,
            solver,
            solution,
            *fixed,
            apart=apart,
            together=bool(others),
            again=again,
        )

    return made(graph, program, solver, solution, uses, apart)


def _check_distinct(ranks: list[Rank]) -> None:
    """Raise InputError where two exports say that they are the same rank's."""
    seen: set[int] = set()
    for one in ranks:
        if one.rank is not None and one.rank in seen:
            raise InputError(
                f"two of the exports say that they are rank {one.rank}'s; give one a rank", "--together"
            )
        if one.rank is not None:
            seen.add(one.rank)


def _solver_of(
    program: Program,
    bounds: Bounds,
    rank: int | None,
    groups: dict[str, Any],
    world: int | None,
    tokens: list[tuple[str, int]],
    layouts: dict[str, str],
    weights: dict[str, Any] | None,
    mesh: Mesh | None = None,
) -> tuple[Solver, dict[int, list[tuple[int, int]]]]:
    """The solver of a program, and its uses: groups found (or given), slices and gathers marked, inputs planned."""
    if mesh is None:
        mesh = find_mesh(program, groups, rank, world)
    uses = _uses(program)
    mark_single(program, uses)
    mark_pieces(program, uses)
    mark_stacked(program, uses)
    mark_merged(program, uses)
    context = Context(mesh, bounds, _group_finder(mesh))
    prefer_gathered(program, uses, context)
    plan = plan_inputs(program, mesh, tokens, layouts, uses, weights)
    return Solver(program, context, plan), uses


def _solved(graph: Graph, book: RuleBook, assumed: Assumptions | None, *given: Any) -> Rank:
    """Another rank's export, typed by itself."""
    if assumed is None:
        assumed = Assumptions([], graph.ranges)
    else:
        graph = assume(graph, assumed)
    graph, _ = written_out(graph, book)
    program = build_program(graph, book)
    solver, _ = _solver_of(program, assumed.bounds, None, *given)
    return Rank(program, settled(solver).typing.types, solver.ctx.mesh.rank, solver)


def _declared(groups: dict[str, Any], mesh: Mesh) -> list[Group]:
    return [mesh.groups[name] for name in groups if name in mesh.groups]


def _group_finder(mesh: Mesh) -> Any:
    def group_of(low: Any, length: Any) -> Group | None:
        """The group whose rank selects a chunk `low .. low + length` of a vocabulary."""
        for group in sorted({*mesh.groups.values(), *mesh.by_ranks.values()}, key=lambda g: len(g.axes)):
            if not group.axes or set(group.axes) & mesh.quotient:
                continue
            number = mesh.rank_in(group)
            if number is None or (
                isinstance(low, int) and isinstance(length, int) and low == number * length
            ):
                return group
        return None

    return group_of
