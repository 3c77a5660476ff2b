"""Roles of a whole program: stream, branches, layers, and what stands before and behind them."""

from __future__ import annotations

from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.infer.solver.repeats import body_runs
from layoutcheck.layouts import Layout
from layoutcheck.program import OUTPUT
from layoutcheck.roles.blocks import classify, inherit
from layoutcheck.roles.flow import Flow, build_flow
from layoutcheck.roles.mixing import mixtures
from layoutcheck.roles.model import Block, Layer, Norm, Roles
from layoutcheck.roles.norms import find_norms
from layoutcheck.roles.stream import find_branches, later_joins


def find_roles(analysis: Analysis) -> Roles:
    """The decoder's structure, found from dataflow and from what rules say of ops; names play no part.

    A graph without a residual stream has no layers and hardly any roles; that is no error.
    """
    flow = build_flow(analysis)
    norms = find_norms(flow)
    by_source: dict[int, list[Norm]] = {}
    for norm in norms:
        by_source.setdefault(flow.root(norm.source), []).append(norm)
    for norm in norms:
        for _, source in mixtures(flow, norm.source):
            by_source.setdefault(source, []).append(norm)
    roles: dict[int, str] = {}
    values: dict[int, str] = {}
    blocks: list[Block] = []
    fused = {c for norm in norms for c in norm.calls if norm.addends}
    branches = find_branches(flow)
    for branch in branches:
        block = classify(flow, branch, by_source, roles)
        blocks.append(block)
        values[block.join.total] = "residual"
        if block.join.call not in fused:
            roles[block.join.call] = "residual"
    inherit(flow, blocks)
    totals = {block.join.total for block in blocks}
    starts = tuple(dict.fromkeys(block.root for block in blocks if block.root not in totals))
    inside = {c for block in blocks for c in block.calls}
    final, heads = _ends(flow, norms, totals, inside, set(starts), blocks)
    if final is not None:
        for c in final.calls:
            roles[c] = "norm.final"
    for c in heads:
        roles[c] = "lm_head"
    embeddings = _embeddings(flow, starts, totals, inside)
    for c in embeddings:
        roles.setdefault(c, "embedding")
    layers = _layers(analysis, blocks)
    later = later_joins(flow, branches) - roles.keys()
    return Roles(roles, values, layers, tuple(norms), final, heads, embeddings, starts, later, flow)


def _layers(analysis: Analysis, blocks: list[Block]) -> tuple[Layer, ...]:
    """A layer begins with each attention block; blocks before the first one are a layer of their own."""
    groups: list[list[Block]] = []
    for block in blocks:
        if block.kind == "attention" or not groups:
            groups.append([])
        groups[-1].append(block)
    layers = []
    repeats = body_runs(analysis.solution.runner.repeats, analysis.solution.typing.regions)
    for i, group in enumerate(groups):
        firsts = [min(b.around | set(b.norm.calls if b.norm is not None else b.calls)) for b in group]
        begin, end = min(firsts), max(b.join.call for b in group)
        times = next((n for low, high, n in repeats if low <= begin <= high), 1)
        layers.append(Layer(i, begin, end, tuple(group), times))
    return tuple(layers)


def _ends(
    flow: Flow,
    norms: list[Norm],
    totals: set[int],
    inside: set[int],
    starts: set[int],
    blocks: list[Block],
) -> tuple[Norm | None, tuple[int, ...]]:
    """The last norm and the products behind it that give logits.

    A product that starts a stream of its own (a later block's input) is none of them.
    """
    p = flow.program
    used = {block.norm.calls for block in blocks if block.norm is not None}
    left = [n for n in norms if n.calls not in used and _ends_stream(flow, n, totals)]
    left = [n for n in left if not set(n.calls) & inside]
    sources = {block.root for block in blocks}
    open_ends = totals - sources
    normed = {n.output: n for n in left}
    final: Norm | None = None
    heads = []
    for k in range(len(p.kind)):
        if k in inside or not flow.is_weight_product(k) or p.first[k] in starts:
            continue
        for v in flow.data_inputs(k):
            root = _row_root(flow, v)
            if root in normed:
                final = normed[root]
                heads.append(k)
            elif root in open_ends:
                heads.append(k)
    if final is not None:
        # What weighs the streams for the last norm reads the open end as well.
        before = {flow.maker[v] for v in flow.back(final.outputs, stop=totals)}
        heads = [k for k in heads if k not in before]
    else:
        outputs = {flow.root(v) for k, kind in enumerate(p.kind) if kind == OUTPUT for v in p.inputs[k]}
        final = next((n for n in reversed(left) if n.output in outputs), None)
    return final, tuple(heads)


def _ends_stream(flow: Flow, norm: Norm, totals: set[int]) -> bool:
    """Whether a norm reads a sum of the stream, or a mixture of it."""
    sources = [flow.root(norm.source), *(source for _, source in mixtures(flow, norm.source))]
    return any(source in totals for source in sources)


def _row_root(flow: Flow, value: int) -> int:
    """The root of a value, also back over picking rows of it."""
    while True:
        root = flow.root(value)
        if root >= flow.program.n_values:
            return root
        call = flow.maker[root]
        fact = flow.fact(call)
        if fact is None or not fact.picks_rows:
            return root
        data = [v for v in flow.data_inputs(call) if flow.kinds[v] == "A"]
        if len(data) != 1:
            return root
        value = data[0]


def _embeddings(flow: Flow, starts: tuple[int, ...], totals: set[int], inside: set[int]) -> tuple[int, ...]:
    """Lookups of a table by ids that the stream starts from."""
    found = []
    behind = flow.back(starts, data=True, stop=totals)
    for call in sorted({flow.maker[v] for v in behind}):
        fact = flow.fact(call)
        if fact is None or not fact.looks_up or call in inside:
            continue
        kinds = {flow.kinds[v] for v in flow.program.inputs[call]}
        of = flow.layout(flow.program.first[call])
        if "W" in kinds and "I" in kinds and isinstance(of, Layout):
            found.append(call)
    return tuple(found)
