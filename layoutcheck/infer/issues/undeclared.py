"""Inputs of which nothing says what they hold: taken whole, and named."""

from __future__ import annotations

from layoutcheck.domains import Domain, base_of
from layoutcheck.infer.calls.call import Issue
from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.infer.solver.run import Key, Typing
from layoutcheck.layouts import Layout
from layoutcheck.program import PLACEHOLDER

Entry = tuple[int, Key, Issue]


def whole_by_default(analysis: Analysis, typing: Typing) -> list[int]:
    """Calls of inputs that are taken whole although nothing shows it.

    On one device everything is whole. An activation is shown to be whole where a rank's share of it is cut.
    """
    mesh, plan, solution = analysis.mesh, analysis.plan, analysis.solution
    if all(m in mesh.quotient for m in range(len(mesh.axes))):
        return []
    cut = _cut_domains(typing)
    out = []
    p = analysis.program
    for k, kind in enumerate(p.kind):
        if kind != PLACEHOLDER:
            continue
        value = p.first[k]
        of = typing.types[value]
        if (
            not analysis.uses.get(value)
            or value in plan.declared
            or solution.cuts.get(value)
            or not isinstance(of, Layout)
            or not of.rank
        ):
            continue
        if plan.roles.get(value) in ("weight", "cache"):
            out.append(k)
            continue
        free = [f.domain for axis in of.axes for f in axis if f.domain.kind == "variable"]
        if free and not any(d in cut for d in free):
            out.append(k)
    return out


def undeclared_activations(analysis: Analysis, typing: Typing) -> list[Entry]:
    """A note on each activation that is taken whole by default."""
    p, plan = analysis.program, analysis.plan
    out: list[Entry] = []
    for k in whole_by_default(analysis, typing):
        value = p.first[k]
        if plan.roles.get(value) != "activation":
            continue
        name = p.nodes[k].name
        layout = analysis.solution.runner.ctx.show(typing.types[value])
        text = (
            f"nothing in the graph says whether {layout} holds all tokens or this rank's share; taken as all of them: "
            f"say which with --layout {name}=... or --tokens {name}:AXIS"
        )
        out.append((k, (p.op[k], typing.types[value]), Issue("LC107", text, (), ("note",))))
    return out


def _cut_domains(typing: Typing) -> set[Domain]:
    """Domains of which some value holds a rank's share."""
    layouts = {id(of): of for of in typing.types if isinstance(of, Layout) and of.bound}
    return {base_of(b.domain) for of in layouts.values() for _, fs in of.bound for b in fs}
