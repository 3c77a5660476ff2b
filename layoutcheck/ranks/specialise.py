"""The graphs of all ranks from the graph of one.

An export holds the literals of its own rank: the start of its share of the tokens, of its rows of a
vocabulary, its number in a group. Which literals these are is read from the types: a slice whose result is
bound to a group starts at the rank's share, and comparisons that mask ids for a lookup in a sharded table
hold the table's first and last row.
"""

from __future__ import annotations

from typing import Any

import attrs

from layoutcheck.graph import Graph, Node, Ref
from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.layouts import Layout, bound_on_axis
from layoutcheck.program import CALL
from layoutcheck.ranks.denote import Ranks, number
from layoutcheck.symbols import Expr

DEPTH = 16


def own_rank(analysis: Analysis, ranks: Ranks) -> int:
    """The exporting rank in the numbering of `ranks`; 0 where it is not known."""
    mesh = analysis.mesh
    return ranks.rank([int(mesh.coordinate(a.index) or 0) for a in mesh.axes])


def all_ranks(analysis: Analysis, ranks: Ranks) -> list[Graph]:
    """One graph a rank; the exporting rank's own is the graph itself."""
    own = own_rank(analysis, ranks)
    edits = [_edits(analysis, ranks, r) for r in range(ranks.world)]
    out = []
    for r, changed in enumerate(edits):
        if r == own:
            out.append(analysis.graph)
            continue
        nodes: list[Node] = []
        for n in analysis.graph.nodes:
            nodes.extend(_completed(changed.get(n.name, n), analysis, ranks))
        out.append(attrs.evolve(analysis.graph, nodes=nodes, rank=r))
    return out


def _completed(node: Node, analysis: Analysis, ranks: Ranks) -> list[Node]:
    """A share that lacks rows (the last ranks' of a ceil split) gets them as padding, as those ranks' own
    exports have it.
    """
    p = analysis.program
    call = p.node_call.get(node.name)
    if call is None or node is p.nodes[call] or p.kind[call] != CALL:
        return [node]
    rule = p.instances[p.op[call]].rule
    source = analysis.solution.typing.types[p.inputs[call][0]] if p.inputs[call] else None
    if rule is None or rule.code != "slice" or not isinstance(source, Layout):
        return [node]
    bound = rule.bind(node.args, node.kwargs)
    dim, start, end = bound["dim"], bound["start"], bound["end"]
    if not all(isinstance(x, int) for x in (dim, start, end)):
        return [node]
    total = number(source.shape[dim], ranks.symbols)
    short = (end - start) - max(0, min(end, total) - min(start, total))
    if short <= 0:
        return [node]
    part = attrs.evolve(node, name=f"{node.name}_short")
    pad = (*[0, 0] * (source.rank - 1 - dim % source.rank), 0, short)
    full = attrs.evolve(
        node, target="aten.constant_pad_nd.default", args=(Ref(part.name), pad, 0.0), kwargs={}
    )
    return [part, full]


def _edits(analysis: Analysis, ranks: Ranks, rank: int) -> dict[str, Node]:
    p = analysis.program
    types = analysis.solution.typing.types
    out: dict[str, Node] = {}
    for k, kind in enumerate(p.kind):
        if kind != CALL:
            continue
        node = out.get(p.nodes[k].name, p.nodes[k])
        rule = p.instances[p.op[k]].rule
        if rule is None:
            continue
        of = types[p.first[k]] if p.outs[k] else None
        source = types[p.inputs[k][0]] if p.inputs[k] else None
        if rule.code in ("slice", "narrow") and isinstance(of, Layout) and isinstance(source, Layout):
            new = [m for m in of.bound_map if of.bound_map[m] != source.bound_map.get(m)]
            if new:
                out[node.name] = _moved(node, rule, of, new, analysis, ranks, rank)
        elif rule.code == "embedding":
            _vocabulary(analysis, k, ranks, rank, out)
        named = {options.get("rank") for options in (rule.options, *[o for _, o in rule.then])} - {None}
        for name in named:
            out[node.name] = _replaced(out.get(node.name, node), rule, str(name), rank)
    return out


def one_device(analysis: Analysis, ranks: Ranks) -> dict[str, Node]:
    """Calls of the program on one device whose literals are not a rank's: lookups in the whole of a sharded table
    are masked by its first and last row, and an exchange with nobody else sends all rows to itself.
    """
    p = analysis.program
    out: dict[str, Node] = {}
    for k, kind in enumerate(p.kind):
        rule = p.instances[p.op[k]].rule if kind == CALL else None
        if rule is not None and rule.code == "embedding":
            _vocabulary(analysis, k, ranks, None, out)
        elif rule is not None and rule.code == "all_to_all":
            node = p.nodes[k]
            for name in ("input_split_sizes", "output_split_sizes"):
                node = _replaced(node, rule, name, None)
            out[node.name] = node
    return out


def _coordinate(of: Layout, axes: list[int], ranks: Ranks, rank: int) -> int:
    """The rank's number over these mesh axes, in the order in which their digits stand."""
    at = ranks.coordinates(rank)
    digits = sorted(((number(of.bound_map[m][-1].stride, ranks.symbols), m) for m in axes), reverse=True)
    total = 0
    for _, m in digits:
        total = total * ranks.sizes[m] + at[m]
    return total


def _moved(
    node: Node, rule: Any, of: Layout, axes: list[int], analysis: Analysis, ranks: Ranks, rank: int
) -> Node:
    """A slice at another rank's share."""
    bound = rule.bind(node.args, node.kwargs)
    dim = bound.get("dim", 0)
    dim = dim if isinstance(dim, int) else 0
    length = number(of.shape[dim], ranks.symbols)
    start = _coordinate(of, axes, ranks, rank) * length
    node = _replaced(node, rule, "start", start)
    return _replaced(node, rule, "end", start + length) if "end" in bound else node


def _replaced(node: Node, rule: Any, name: str, value: Any) -> Node:
    """A node with one argument changed."""
    names = list(rule.param_names)
    if name not in names:
        return node
    at = names.index(name)
    if at < len(node.args):
        return attrs.evolve(node, args=(*node.args[:at], value, *node.args[at + 1 :]))
    return attrs.evolve(node, kwargs={**node.kwargs, name: value})


def _vocabulary(analysis: Analysis, k: int, ranks: Ranks, rank: int | None, out: dict[str, Node]) -> None:
    """Shift the first and last row in the comparisons that lead to a lookup in a sharded table: to another rank's,
    or to those of the whole table (None).
    """
    p = analysis.program
    types = analysis.solution.typing.types
    table = types[p.inputs[k][0]]
    if not isinstance(table, Layout) or not table.axes:
        return
    axes = [m for m, _ in bound_on_axis(table, 0)]
    if not axes:
        return
    rows = number(table.shape[0], ranks.symbols)
    mine = _coordinate(table, axes, ranks, own_rank(analysis, ranks)) * rows
    if rank is None:
        ways = 1
        for m in axes:
            ways *= ranks.sizes[m]
        shifts = {mine: 0, mine + rows: ways * rows}
    else:
        theirs = _coordinate(table, axes, ranks, rank) * rows
        shifts = {mine: theirs, mine + rows: theirs + rows}
    todo = list(p.inputs[k][1:])
    seen: set[int] = set()
    while todo and len(seen) < DEPTH * 4:
        value = todo.pop()
        call = p.value_call[value]
        if call in seen or p.kind[call] != CALL:
            continue
        seen.add(call)
        rule = p.instances[p.op[call]].rule
        node = out.get(p.nodes[call].name, p.nodes[call])
        if rule is not None and rule.kind == "elementwise" and len(rule.params) > 1:
            name = rule.params[1].name
            literal = rule.bind(node.args, node.kwargs).get(name)
            if isinstance(literal, int) and not isinstance(literal, bool) and literal in shifts:
                out[node.name] = _replaced(node, rule, name, shifts[literal])
        todo.extend(p.inputs[call])


def has_symbols(graph: Graph) -> bool:
    """Whether any literal of a graph is symbolic."""
    return any(isinstance(a, Expr) for n in graph.nodes for a in n.args if not isinstance(a, Ref))
