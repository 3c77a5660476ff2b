"""Which inputs each repeat has for itself: weights and caches, unless the graph says otherwise.

`config["regions"]`, which `fold` writes, names a region's own inputs. Without it the roles of the inputs tell: weights and caches
that nothing outside of the region reads are its own; positions, slots, masks and tables are everybody's.
"""

from __future__ import annotations

from layoutcheck.graph import Graph
from layoutcheck.regions.markers import Region
from layoutcheck.rules.rulebook import RuleBook

RECORD = "regions"
_OWN_ROLES = frozenset(("weight", "cache"))


def readers_of_inputs(graph: Graph) -> dict[str, list[int]]:
    """Indices of the nodes that read each input or constant."""
    readers: dict[str, list[int]] = {n.name: [] for n in graph.nodes if n.op in ("placeholder", "get_attr")}
    for i, node in enumerate(graph.nodes):
        for name in node.refs():
            found = readers.get(name)
            if found is not None:
                found.append(i)
    return readers


def own_inputs(graph: Graph, regions: list[Region], book: RuleBook) -> dict[int, set[str]]:
    """Per region, the inputs of which every repeat has its own."""
    record = graph.config.get(RECORD)
    record = record if isinstance(record, dict) else {}
    readers = readers_of_inputs(graph)
    own: dict[int, set[str]] = {}
    open_ones: list[Region] = []
    for region in regions:
        entry = record.get(str(region.id))
        names = entry.get("own") if isinstance(entry, dict) else None
        if isinstance(names, list):
            own[region.id] = {n for n in names if isinstance(n, str) and n in readers}
        else:
            open_ones.append(region)
    if not open_ones:
        return own
    roles = _roles(graph, book)
    for region in open_ones:
        own[region.id] = {
            name
            for name, at in readers.items()
            if at and roles.get(name) in _OWN_ROLES and all(_inside(region, i) for i in at)
        }
    return own


def _inside(region: Region, index: int) -> bool:
    """Inside the body and no begin marker: what a begin marker reads comes from outside."""
    return region.spans(index) and index not in region.begins


def _roles(graph: Graph, book: RuleBook) -> dict[str, str]:
    from layoutcheck.infer.solver.inputs import classify_inputs
    from layoutcheck.program import build_program

    program = build_program(graph, book)
    return {program.name_of(value): role for value, role in classify_inputs(program).items()}
