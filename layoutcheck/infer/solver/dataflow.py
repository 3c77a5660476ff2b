"""The annotated graph as a networkx graph: one node a call, one edge a use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.infer.solver.repeats import body_runs
from layoutcheck.layouts import Layout, render

if TYPE_CHECKING:
    from networkx import MultiDiGraph


def dataflow(analysis: Analysis) -> MultiDiGraph:
    """The graph with a layout on every value.

    Nodes are graph nodes by name, with `op` (the target), `module`, and `layouts`: one printed layout an output, None for
    what is no tensor. Edges run from maker to reader and carry `operand` (the slot), `output` (which of the maker's) and
    `layout`. A repeated region's body stands once; `times` on its nodes says how often it runs.
    """
    import networkx as nx

    p, types, names = analysis.program, analysis.solution.typing.types, analysis.mesh.names()
    spans = body_runs(analysis.solution.runner.repeats, analysis.solution.typing.regions)
    texts: dict[int, str] = {}

    def text(value: int) -> str | None:
        of = types[value]
        if not isinstance(of, Layout):
            return None
        found = texts.get(id(of))
        if found is None:
            found = texts[id(of)] = render(of, names)
        return found

    graph = nx.MultiDiGraph(path=analysis.path)
    for k, node in enumerate(p.nodes):
        first, count = p.first[k], p.outs[k]
        times = 1
        for low, high, n in spans:
            if low <= k <= high:
                times *= n
        graph.add_node(
            node.name,
            op=p.instances[p.op[k]].target if p.op[k] >= 0 else node.op,
            module=node.module or "",
            layouts=tuple(text(v) for v in range(first, first + count)),
            times=times,
        )
        for slot, value in enumerate(p.inputs[k]):
            maker = p.value_call[value]
            graph.add_edge(
                p.nodes[maker].name,
                node.name,
                operand=slot,
                output=value - p.first[maker],
                layout=text(value),
            )
    return graph
