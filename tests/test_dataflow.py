"""The annotated graph that a library call returns: a networkx graph that agrees with the graph and the layouts."""

from __future__ import annotations

import networkx as nx
import pytest
from support import shared
from support.engine import check, refs

from layoutcheck.findings import Report

GRAPHS = (
    "mega_sp_ws4_r0.pt2",
    "qwen3_8b_prefill_expanded4.after.json.gz",
    "glm5_prefill_repeated.before.json.gz",
)


@pytest.mark.parametrize("name", GRAPHS)
def test_it_has_every_node_use_and_layout(name: str) -> None:
    graph = shared.load(name)
    report = check(graph)
    found = report.dataflow()
    assert nx.is_directed_acyclic_graph(found)
    at = {node["name"]: node for node in graph["nodes"]}
    folded = set(at) - set(found)
    # what only takes an output apart stands in the maker's layouts
    assert all("getitem" in str(at[n]["target"]) for n in folded)
    for node, data in found.nodes(data=True):
        wanted = {r for r in refs(at[node]) if r not in folded}
        assert wanted <= set(found.predecessors(node)), node
        if len(data["layouts"]) == 1 and data["layouts"][0] is not None:
            assert data["layouts"][0] == report.layout_text(node)
    for maker, _, use in found.edges(data=True):
        assert use["layout"] == found.nodes[maker]["layouts"][use["output"]]


def test_a_repeated_body_says_how_often_it_runs() -> None:
    graph = shared.load("glm5_prefill_repeated.before.json.gz")
    copies = [n for n in graph["nodes"] if "copy_region" in str(n.get("target"))]
    found = check(graph).dataflow()
    times = {data["times"] for _, data in found.nodes(data=True)}
    assert copies and max(times) > 1 and sum(t - 1 for t in times) <= len(copies)


def test_paths_between_collectives_are_found_with_networkx() -> None:
    found = check(shared.load("mega_sp_ws4_r0.pt2")).dataflow()
    scatters = [n for n, d in found.nodes(data=True) if "reduce_scatter" in d["op"]]
    gathers = [n for n, d in found.nodes(data=True) if "all_gather" in d["op"]]
    assert scatters and any(nx.has_path(found, s, g) for s in scatters for g in gathers)


def test_a_report_without_a_graph_says_so() -> None:
    with pytest.raises(ValueError, match="this report carries no graph"):
        Report().dataflow()
