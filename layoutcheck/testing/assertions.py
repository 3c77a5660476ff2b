"""Assertions about graphs, for anybody's tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from layoutcheck.equivalence.alike import Alike
from layoutcheck.graph import Graph
from layoutcheck.infer.solver.analysis import Analysis, analyse
from layoutcheck.layouts import Layout, render
from layoutcheck.regions.expand import Origins, expand
from layoutcheck.regions.markers import find_markers, find_regions
from layoutcheck.rules.rulebook import RuleBook


def assert_equivalent(a: Graph | str | Path, b: Graph | str | Path, **options: Any) -> None:
    """Fail with the first divergence where two graphs are not the same program; options as in `layoutcheck.diff`."""
    from layoutcheck.equivalence import diff

    found = diff(a, b, **options)
    if not found:
        raise AssertionError(f"the graphs are not the same program\n{found}")


def assert_well_typed(graph: Graph | str | Path, *, strict: bool = False, **options: Any) -> None:
    """Fail with all findings where a graph has errors (with `strict`, warnings too); options as in `layoutcheck.check`."""
    from layoutcheck.contracts.report import report_of
    from layoutcheck.findings import Severity

    _, report = report_of(graph, **options)
    bad = (Severity.ERROR, Severity.WARNING) if strict else (Severity.ERROR,)
    lines = [f"{f.code} {f.node}: {f.message}" for f in report.findings if f.severity in bad]
    if lines:
        raise AssertionError("the graph is not well typed\n" + "\n".join(lines))


def assert_same_typing(
    graph: Graph,
    *,
    expanded: Graph | None = None,
    rules: Sequence[str | Path] = (),
    layouts: bool = True,
    **options: Any,
) -> None:
    """Fail where typing a graph with regions and typing it written out differ.

    Compared are the layouts of all nodes outside of regions, of the written bodies with the first repeats, of every copy marker
    with the end of its repeat, and whether there are errors.

    Args:
        graph: a graph with regions.
        expanded: what to compare with; `expand(graph)` by default. It must use `expand`'s names.
        rules: folders of rules that the graph with regions is typed by; expansion and its typing use the shipped ones.
        layouts: False compares only whether there are errors.
    """
    origins = Origins()
    other = expand(graph, origins=origins)
    one = analyse(graph, rules=rules, **options)
    two = analyse(expanded or other, **options)
    errors = (_errors(one), _errors(two))
    if bool(errors[0]) != bool(errors[1]):
        raise AssertionError(
            "with regions and written out differ in being right: "
            f"{sorted(errors[0]) or 'clean'} with regions, {sorted(errors[1]) or 'clean'} written out"
        )
    if not layouts:
        return
    alike = Alike(one.mesh, two.mesh)
    for mine, yours in _pairs(graph, origins):
        a, b = _layouts(one, mine), _layouts(two, yours)
        if a is None or b is None:
            continue
        if len(a) != len(b) or not all(alike.layouts(x, y) for x, y in zip(a, b)):
            raise AssertionError(
                f"{mine} with regions is {_text(one, a)}, {yours} written out is {_text(two, b)}"
            )


def _pairs(graph: Graph, origins: Origins) -> Iterator[tuple[str, str]]:
    """Nodes of a graph with regions, and those of its expansion that they have to agree with."""
    book = RuleBook.load()
    markers = find_markers(graph, book)
    regions = find_regions(graph, book, markers)
    made = {(origin, where): name for name, (origin, where) in origins.of.items()}
    nodes = graph.nodes
    at_end: dict[str, str] = {}
    for region in regions:
        if region.parent is not None:
            continue
        for number, round_ in enumerate(region.copies, 1):
            for end, copy in zip(region.ends, round_):
                source = markers[end].value
                name = made.get((source, ((region.id, number),)))
                if name is not None:
                    at_end[nodes[copy].name] = name
    for i, node in enumerate(nodes):
        if node.op == "output":
            continue
        if i not in markers:
            yield node.name, node.name
        elif node.name in at_end:
            yield node.name, at_end[node.name]


def _layouts(analysis: Analysis, name: str) -> tuple[Any, ...] | None:
    p = analysis.program
    value = p.by_name.get(name)
    if value is None:
        return None
    k = p.node_call.get(name)
    types = analysis.solution.typing.types
    if k is None:
        return (types[value],)
    return tuple(types[p.first[k] : p.first[k] + p.outs[k]])


def _errors(analysis: Analysis) -> set[str]:
    """Codes of the errors of an analysis."""
    from layoutcheck.infer.issues.boundary import boundary_issues
    from layoutcheck.infer.issues.entries import is_error

    solution = analysis.solution
    entries = [*solution.issues, *solution.repeated, *boundary_issues(analysis, solution.typing)]
    return {issue.code for _k, _key, issue in entries if is_error(issue)}


def _text(analysis: Analysis, found: tuple[Any, ...]) -> str:
    names = analysis.mesh.names()
    return ", ".join(render(of, names) if isinstance(of, Layout) else str(of) for of in found)
