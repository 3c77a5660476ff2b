"""What a report says of all layouts: how they came to be known, what was inferred, and their look-up by name."""

from __future__ import annotations

from typing import Any

from layoutcheck.findings import Evidence, Statistics
from layoutcheck.infer.issues.undeclared import whole_by_default
from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.layouts import Layout, render
from layoutcheck.program import UNKNOWN


def statistics(analysis: Analysis, stages: dict[str, float]) -> Statistics:
    p = analysis.program
    solution = analysis.solution
    declared = sum(1 for v in analysis.plan.declared)
    inferred = sum(1 for v, cuts in solution.cuts.items() if cuts)
    defaulted = len(whole_by_default(analysis, solution.typing))
    defaulted += sum(p.outs[k] for k, kind in enumerate(p.kind) if kind == UNKNOWN)
    values = p.n_values
    unused = [f"the plan's pattern {pattern!r} fits no weight" for pattern, _ in analysis.plan.unused]
    return Statistics(
        nodes=len(analysis.graph.nodes),
        values=values,
        derived=values - declared - inferred - defaulted,
        declared=declared,
        inferred=inferred,
        defaulted=defaulted,
        seconds=stages,
        notes=(f"{solution.passes} passes", f"{len(p.instances)} distinct calls of {len(p.nodes)}", *unused),
    )


def inferred_layouts(analysis: Analysis) -> tuple[tuple[str, str], ...]:
    names = analysis.mesh.names()
    out = []
    p = analysis.program
    for value in sorted(v for v, cuts in analysis.solution.cuts.items() if cuts):
        of = analysis.solution.typing.types[value]
        if isinstance(of, Layout):
            why = " (as in layers like it)" if value in analysis.solution.alike else ""
            node = p.nodes[p.value_call[value]].name
            spec = analysis.graph.inputs.get(node)
            out.append((spec.fqn if spec is not None and spec.fqn else node, render(of, names) + why))
    return tuple(out)


def lookup(analysis: Analysis) -> Any:
    p, types = analysis.program, analysis.solution.typing.types

    def layout_of(name: str) -> Any:
        value = p.by_name.get(name)
        if value is None:
            spec = next((n for n, s in analysis.graph.inputs.items() if s.fqn == name), None)
            value = p.by_name.get(spec) if spec is not None else None
        if value is None:
            raise KeyError(name)
        return types[value]

    return layout_of


def evidence_of(analysis: Analysis, value: int) -> Evidence:
    """How a value's layout came to be known."""
    if value in analysis.plan.declared:
        return Evidence.DECLARED
    if analysis.solution.cuts.get(value):
        return Evidence.INFERRED
    return Evidence.DERIVED
