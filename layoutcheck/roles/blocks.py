"""What a branch of the residual stream is: attention, a mixture of experts, a dense MLP; and the roles inside it."""

from __future__ import annotations

import attrs

from layoutcheck.roles.flow import Flow, sum_of
from layoutcheck.roles.mixing import mixtures
from layoutcheck.roles.model import Block, Norm
from layoutcheck.roles.stream import Branch

Calls = set[int]


def classify(flow: Flow, branch: Branch, norms: dict[int, list[Norm]], roles: dict[int, str]) -> Block:
    """The block of a branch; the roles of its calls are put into `roles`. `norms` are those of each value, also of its mixtures."""
    calls = {flow.maker[v] for v in branch.values if v >= flow.program.n_values or flow.layout(v) is not None}
    norm = next(
        (n for n in norms.get(branch.root, ()) if n.output in branch.values or n.calls[-1] in calls), None
    )
    around: Calls = set()
    if norm is not None:
        calls -= set(norm.calls)
        if flow.root(norm.source) != branch.root:
            branch, around = _inside(flow, branch, norm, calls)
            calls -= around
    entry = norm.outputs if norm is not None else (branch.root,)
    block = Block(
        "dense", branch.root, norm, entry, frozenset(calls), branch.join, branch.end, frozenset(around)
    )
    data = {v for v in flow.back((branch.end,), data=True, stop=(branch.root,)) if v in branch.values}
    core = _core(flow, branch, {flow.maker[v] for v in data} & calls)
    if core:
        block.kind, block.core = "attention", tuple(sorted(core))
        _attention(flow, branch, block, {flow.maker[v] for v in data} & calls, roles)
    else:
        picks = [c for c in sorted(calls) if _picks(flow, c)] or _tabled(flow, branch, calls)
        if picks:
            block.kind, block.picks = "moe", tuple(picks)
            _experts(flow, branch, block, roles)
        else:
            _dense(flow, block, roles)
    if norm is not None:
        role = "norm.input" if block.kind == "attention" else "norm.post_attention"
        for c in norm.calls:
            # Of blocks side by side behind one norm, the first says what it is.
            roles.setdefault(c, role)
    return block


def _inside(flow: Flow, branch: Branch, norm: Norm, calls: Calls) -> tuple[Branch, Calls]:
    """Of a branch that reads a mixture of streams: what lies between its norm and the spreading, and the calls around it."""
    end = branch.join.branch
    for read, _ in mixtures(flow, end):
        if read not in branch.values:
            break
        end = read
    behind = flow.back((end,), above=flow.maker[branch.root]) & branch.values
    inside = flow.ahead(norm.outputs, behind) | (set(norm.outputs) & behind)
    if end not in inside:
        return branch, set()
    inner = attrs.evolve(branch, values=frozenset(inside), end=end)
    return inner, calls - {flow.maker[v] for v in inside}


def _picks(flow: Flow, call: int) -> bool:
    """Whether a call chooses: positions or experts by a score, given as integers that something reads."""
    fact = flow.fact(call)
    if fact is None or not fact.chooses or not flow.data_inputs(call):
        return False
    return any(flow.readers.get(v) for v in _picked(flow, call))


def _picked(flow: Flow, call: int) -> list[int]:
    p = flow.program
    outs = range(p.first[call], p.first[call] + p.outs[call])
    return [v for v in outs if flow.is_index(v)]


def _core(flow: Flow, branch: Branch, data_calls: Calls) -> Calls:
    """The calls from the first to the last that brings tokens together: fused attention, or products of activations."""
    heart = {c for c in data_calls if _attends(flow, c) or flow.is_product_of_activations(c)}
    if len(heart) < 2:
        return heart
    values = [v for v in branch.values if flow.maker[v] in heart]
    last = max(heart)
    behind = flow.back([v for v in values if flow.maker[v] == last], above=min(heart) - 1, data=True)
    ahead = flow.ahead([v for v in values if flow.maker[v] in heart], set(branch.values))
    between = {flow.maker[v] for v in behind & ahead if flow.maker[v] in data_calls}
    return heart | between


def _attends(flow: Flow, call: int) -> bool:
    fact = flow.fact(call)
    if fact is None or fact.indexer:
        return False
    if fact.attention:
        return True
    p = flow.program
    first = p.first[call]
    return (
        bool(fact.whole) and p.outs[call] > 0 and flow.layout(first) is not None and not flow.is_index(first)
    )


def _attention(flow: Flow, branch: Branch, block: Block, data_calls: Calls, roles: dict[int, str]) -> None:
    p = flow.program
    last = block.core[-1]
    ends = range(p.first[last], p.first[last] + p.outs[last])
    after = {flow.maker[v] for v in flow.ahead(ends, set(branch.values))} & data_calls
    products = [c for c in sorted(after) if flow.is_weight_product(c)]
    roots = {flow.root(v) for v in block.entry}
    for c in sorted(block.calls):
        if flow.is_weight_product(c) and c not in after and _reads(flow, c, roots):
            roles[c] = "attention.input"
    for c in sorted(block.calls):
        if _picks(flow, c) or _is_indexer(flow, c):
            behind = flow.back(p.inputs[c], above=flow.maker[branch.root], stop=(branch.root, *block.entry))
            scoring = {flow.maker[v] for v in behind if v in branch.values} & block.calls
            if not _is_indexer(flow, c) and not any(_scores(flow, s) for s in scoring):
                continue
            reached = {flow.maker[v] for v in flow.ahead(_picked(flow, c), set(branch.values))}
            if not reached & set(block.core):
                continue
            block.sparse = True
            block.picks = (*block.picks, c)
            for s in scoring - data_calls:
                if not _passes(flow, s):
                    roles[s] = "attention.indexer"
            roles[c] = "attention.indexer"
    for c in block.core:
        roles[c] = "attention.core"
    if products:
        roles[products[-1]] = "o_proj"


def inherit(flow: Flow, blocks: list[Block]) -> None:
    """Attention that reads positions which an earlier layer picked is sparse, too."""
    picked: set[int] = set()
    for block in blocks:
        if block.kind != "attention":
            continue
        if not block.sparse and picked:
            todo = [v for c in block.core for v in flow.program.inputs[c]]
            seen: set[int] = set()
            while todo:
                value = todo.pop()
                if value not in seen and flow.kinds[value] != "A":
                    seen.add(value)
                    todo.extend(flow.parents[value])
            block.sparse = bool(seen & picked)
        picked.update(v for c in block.picks for v in _picked(flow, c))


def _is_indexer(flow: Flow, call: int) -> bool:
    fact = flow.fact(call)
    return fact is not None and fact.indexer


def _scores(flow: Flow, call: int) -> bool:
    """Whether a call is a product of queries with keys."""
    return flow.is_product_of_activations(call) or _is_indexer(flow, call)


def _passes(flow: Flow, call: int) -> bool:
    fact = flow.fact(call)
    return fact is None or fact.carries


def _reads(flow: Flow, call: int, roots: set[int]) -> bool:
    return any(flow.root(v) in roots for v in flow.data_inputs(call) if flow.kinds[v] == "A")


def _tabled(flow: Flow, branch: Branch, calls: Calls) -> list[int]:
    """Choices by a table: lookups of integers by the ids of the input, whose result calls of the branch read."""
    todo = [v for c in sorted(calls) for v in flow.program.inputs[c] if v not in branch.values]
    found: Calls = set()
    seen: set[int] = set()
    while todo:
        v = todo.pop()
        if v in seen or flow.kinds[v] != "C" or not flow.is_index(v):
            continue
        seen.add(v)
        call = flow.maker[v]
        if flow.is_choice_by_table(call):
            found.add(call)
        else:
            todo.extend(flow.program.inputs[call])
    return sorted(found)


def _experts(flow: Flow, branch: Branch, block: Block, roles: dict[int, str]) -> None:
    p = flow.program
    values = set(branch.values)
    outputs = [v for c in block.picks for v in range(p.first[c], p.first[c] + p.outs[c])]
    tabled = [c for c in block.picks if c not in block.calls]
    if tabled:
        # What orders tokens and picks weights by a table's choice depends on no hidden state.
        beside = flow.ahead(outputs, flow.back((branch.end,), above=min(tabled) - 1))
        block.calls |= {flow.maker[v] for v in beside - values} | set(tabled)
        values |= beside
    chosen = flow.ahead(outputs, values)
    scored = flow.back([v for c in block.picks for v in p.inputs[c]], above=flow.maker[branch.root] - 1)
    gating = {flow.maker[v] for v in scored & values} & block.calls
    rest = values - chosen - scored - set(outputs)
    products = {v for v in rest if flow.is_weight_product(flow.maker[v])}
    shared = (flow.ahead(products, rest) | products) if products else set()
    block.merge = _merge(flow, block, chosen, shared)
    late = set()
    if block.merge is not None:
        ends = range(p.first[block.merge], p.first[block.merge] + p.outs[block.merge])
        late = {flow.maker[v] for v in flow.ahead(ends, values)} | {block.merge}
    if tabled:
        # Scores only weigh what the table chose, and lead to no sum of their own.
        added = sum_of(flow, block.merge) if block.merge is not None else None
        behind = flow.back([v for v in added[:2] if v in shared]) if added is not None else set()
        scored |= shared - behind
        gating |= {flow.maker[v] for v in shared - behind} & block.calls
        shared &= behind
    gates = [c for c in sorted(gating) if flow.is_weight_product(c)]
    if gates:
        after = {
            flow.maker[v] for v in flow.ahead([v for v in scored if flow.maker[v] in gates], scored & values)
        }
        for c in (after & gating) | set(gates):
            if c not in block.picks and (c in gates or not _passes(flow, c)):
                roles[c] = "moe.gate"
    handed_on = _handed_on(flow, block, chosen)
    for c in {flow.maker[v] for v in chosen} & block.calls - late - gating - handed_on:
        roles[c] = "moe.routed"
    for c in {flow.maker[v] for v in shared} & block.calls - late:
        roles[c] = "moe.shared"
    for c in block.picks:
        roles[c] = "moe.topk"


def _merge(flow: Flow, block: Block, chosen: set[int], shared: set[int]) -> int | None:
    """The sum of the routed and the shared branch."""
    for c in sorted(block.calls):
        summed = sum_of(flow, c)
        if summed is not None and c != block.join.call:
            a, b, _ = summed
            if (a in chosen and b in shared) or (b in chosen and a in shared):
                return c
    return None


def _handed_on(flow: Flow, block: Block, chosen: set[int]) -> Calls:
    """Calls behind the last of the routed branch's own: what it gives in another form, up to where it is added.

    An exchange among experts is the branch's own, whatever form it leaves the result in.
    """
    summed = sum_of(flow, block.merge) if block.merge is not None else None
    ends = summed[:2] if summed is not None else (block.end,)
    found: Calls = set()
    for end in ends:
        at: int | None = end if end in chosen else None
        while at is not None and (before := flow.carried(at)) is not None:
            call = flow.maker[at]
            fact = flow.fact(call)
            if fact is not None and fact.code == "all_to_all":
                break
            found.add(call)
            at = before
    return found


def _dense(flow: Flow, block: Block, roles: dict[int, str]) -> None:
    products = [c for c in sorted(block.calls) if flow.is_weight_product(c)]
    for c in sorted(block.calls):
        if products and products[0] <= c <= products[-1] and (c in products or not _passes(flow, c)):
            roles[c] = "mlp.dense"
