"""Which weights are cut: what a plan says, and what follows from the decoder's structure and a contract.

In an attention block the products nearest to the core are column-parallel and o_proj is row-parallel, in a dense one all but the last
product and the last. Experts, routed and shared, are cut in the same way where the contract wants all tokens in front of them. A
block is cut as a whole or not at all: where heads do not divide, or where the contract wants the last product born complete, it
stays replicated.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from layoutcheck.errors import InputError
from layoutcheck.infer.calls.call import slots_in
from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.infer.solver.weight_plan import read_plan
from layoutcheck.layouts import Layout
from layoutcheck.placement.addends import addend_of
from layoutcheck.placement.base import Base
from layoutcheck.placement.demands import Demands
from layoutcheck.placement.experts import ExpertsCut
from layoutcheck.placement.problem import FULL, PARTIAL
from layoutcheck.placement.shard import Cut, Sharder
from layoutcheck.placement.vocabulary import VocabularyCut
from layoutcheck.program import CALL
from layoutcheck.roles import Roles
from layoutcheck.roles.model import Block
from layoutcheck.rules.kinds import CONVERTING

EXPERTS = ("moe.routed", "moe.shared")


@attrs.define
class WeightPlan:
    """Inputs that are cut, and blocks that were to be cut and could not be, with the reason.

    whole: the last products of those blocks. biased: row-parallel products that add a bias, to be taken off them first.
    finer: numbers of ranks over which something could be cut that does not divide among all of the group.
    apart: whether scores of the vocabulary stay with the ranks.
    """

    cuts: dict[int, Cut] = attrs.field(factory=dict)
    left: list[tuple[int, str]] = attrs.field(factory=list)
    whole: set[int] = attrs.field(factory=set)
    biased: set[int] = attrs.field(factory=set)
    finer: set[int] = attrs.field(factory=set)
    apart: bool = False

    def leave(self, number: int, lasts: Collection[int], why: str) -> None:
        """Say that a block stays whole."""
        self.left.append((number, why))
        self.whole.update(lasts)


@attrs.define
class Said:
    """What a plan says of inputs by value: the axis that is cut, None where it stays whole; which are cut along the vocabulary
    (`apart`: and their scores are not gathered), and which are experts to be spread.
    """

    axes: dict[int, int | None] = attrs.field(factory=dict)
    vocabulary: set[int] = attrs.field(factory=set)
    experts: set[int] = attrs.field(factory=set)
    apart: set[int] = attrs.field(factory=set)


def planned(analysis: Analysis, path: str | Path | None) -> Said:
    """What a plan says of a program's inputs.

    Raises:
        InputError: the plan is malformed, no pattern of it names a weight, or a layout in it is more than one cut axis.
    """
    if path is None:
        return Said()
    said = read_plan(path)
    p = analysis.program
    out: dict[int, int | None] = {}
    words: set[int] = set()
    experts: set[int] = set()
    apart: set[int] = set()
    used: set[str] = set()
    for value, role in analysis.plan.roles.items():
        if role != "weight":
            continue
        node = p.nodes[p.value_call[value]].name
        spec = p.graph.inputs.get(node)
        name = spec.fqn if spec is not None and spec.fqn else node
        for pattern, word in said["weights"].items():
            if not fnmatch.fnmatchcase(name, pattern):
                continue
            used.add(pattern)
            words.discard(value)
            experts.discard(value)
            apart.discard(value)
            out.pop(value, None)
            if word in ("vocabulary", "vocabulary-sharded"):
                words.add(value)
                if word == "vocabulary-sharded":
                    apart.add(value)
            elif word == "expert":
                experts.add(value)
            elif word in ("column", "row", "replicated"):
                out[value] = {"column": 0, "row": 1, "replicated": None}[word]
            elif not word.strip().startswith("["):
                raise InputError(
                    f"`{word}` is no layout of {name}: column, row, replicated, vocabulary, vocabulary-sharded, expert, or one"
                    " such as [128/4@tp, 64]",
                    said["where"],
                )
            else:
                cut = [i for i, part in enumerate(word.strip("[] ").split(",")) if "@" in part]
                if len(cut) > 1:
                    raise InputError(f"`{word}` cuts more than one axis of {name}", said["where"])
                out[value] = cut[0] if cut else None
    unused = [pattern for pattern in said["weights"] if pattern not in used]
    if unused:
        raise InputError(f"the pattern `{unused[0]}` names no weight of the graph", said["where"])
    return Said(out, words, experts, apart)


def cut_blocks(
    base: Base,
    roles: Roles,
    demands: Demands,
    plan_says: Said | None = None,
    vocabulary: Mapping[str, VocabularyCut] | None = None,
    experts: ExpertsCut | None = None,
) -> WeightPlan:
    """Cut the weights of blocks that hold whole ones, where structure and contract allow it. Changes `base.full`.

    Args:
        plan_says: what a plan says of inputs.
        vocabulary: weights that were cut along the vocabulary before.
        experts: weights that were cut by experts before, and those that could not be.
    """
    plan = WeightPlan(apart=plan_says is not None and bool(plan_says.apart))
    said = plan_says.axes if plan_says is not None else {}
    kept_whole = {value for value, axis in said.items() if axis is None}
    p = base.analysis.program
    for name, found in (vocabulary or {}).items():
        value = p.by_name[name]
        plan.cuts[value] = Cut(value, 0, padding=found.padding)
    spread = {p.by_name[name] for name in experts.cut} if experts is not None else set()
    uneven_experts = (
        {p.by_name[name]: why for name, why in experts.uneven.items()} if experts is not None else {}
    )
    plan.cuts.update((value, Cut(value, 0)) for value in sorted(spread))
    if _is_cut(base, plan.cuts.keys()):
        return plan
    for number, block in enumerate(roles.blocks):
        _check_spread(base, roles, demands, block, spread)
        products = _products(base, roles, block, spread)
        if products is None:
            continue
        columns, lasts = products
        reasons = {
            why
            for k in (*columns, *lasts)
            for value, why in uneven_experts.items()
            if value in _inputs_behind(base, k)
        }
        if reasons:
            plan.leave(number, lasts, min(reasons))
            continue
        if not all(_may(demands, last) for last in lasts):
            continue
        if block.kind == "moe" and not _on_all_tokens(base, roles, demands, block):
            continue
        plan.biased.update(k for k in lasts if addend_of(base.instance(k)) is not None)
        sharder = Sharder(base, min(block.calls), block.join.call)
        weights = [_weight(base, roles, sharder, k) for k in columns]
        uneven = f"its heads or weights do not divide among {base.tokens.group.name}, or an op in it takes no share of them"
        if not columns or any(w is None for w in weights):
            plan.leave(number, lasts, uneven)
            continue
        if any(w is not None and w[0] in kept_whole for w in weights):
            plan.leave(number, lasts, "the plan wants them so")
            continue
        for entry in weights:
            assert entry is not None
            sharder.cuts[entry[0]] = Cut(*entry)
        overlay = sharder.settle(partial(_all_sum, base, lasts))
        if overlay is None or kept_whole & sharder.cuts.keys():
            where = f" ({p.nodes[sharder.stopped].name})" if sharder.stopped >= 0 else ""
            plan.leave(number, lasts, uneven + where)
            plan.finer |= sharder.finer
            continue
        for value, of in overlay.items():
            base.full[value] = of
        plan.cuts.update(sharder.cuts)
        base.broad |= sharder.broad
        base.params.update(sharder.params)
    lost = [v for v, axis in said.items() if axis is not None and plan.cuts.get(v, Cut(v, -1)).axis != axis]
    if lost:
        raise InputError(
            f"the plan cuts {p.name_of(lost[0])} along axis {said[lost[0]]},"
            " and the rest of its block can't follow, or the contract does not let it"
        )
    return plan


def _is_cut(base: Base, besides: Collection[int]) -> bool:
    """Whether some weight besides these is cut over the group, or values are converted over it: then the graph has its plan."""
    group = set(base.tokens.group.axes)
    p = base.analysis.program
    if any(
        root != value and _is_collective(base, p.value_call[value]) for value, root in enumerate(base.alias)
    ):
        return True
    return any(
        isinstance(of := base.analysis.solution.typing.types[p.first[k]], Layout)
        and group & of.bound_map.keys()
        for k in base.kept
        if not p.inputs[k] and p.outs[k] and p.first[k] not in besides
    )


def _is_collective(base: Base, k: int) -> bool:
    rule = base.instance(k).rule if base.analysis.program.op[k] >= 0 else None
    return rule is not None and rule.code in CONVERTING


def _products(
    base: Base, roles: Roles, block: Block, spread: Collection[int]
) -> tuple[list[int], list[int]] | None:
    """The column-parallel products of a block and its row-parallel ones; None where it has no such pair. Those of experts that
    are spread are none of them.
    """
    mine = [
        k
        for k in sorted(block.calls)
        if roles.flow.is_weight_product(k) and not (spread and _inputs_behind(base, k) & set(spread))
    ]
    if block.kind == "attention" and block.core:
        last = [k for k in mine if roles.of(k) == "o_proj"]
        if not last:
            return None
        beside = _beside_attention(roles, block, mine)
        return sorted((*_nearest(base, roles, block, mine), *beside[:-1])), [*last[-1:], *beside[-1:]]
    if block.kind == "dense" and len(mine) >= 2:
        return mine[:-1], mine[-1:]
    if block.kind == "moe":
        return _of_experts(base, roles, block, [k for k in mine if roles.of(k) in EXPERTS])
    return None


def _inputs_behind(base: Base, k: int) -> set[int]:
    """The inputs that a call reads, also through ops that read nothing else."""
    p = base.analysis.program
    found = set()
    for v in p.inputs[k]:
        value = base.root(v)
        while p.kind[call := p.value_call[value]] == CALL and len(p.inputs[call]) == 1:
            value = base.root(p.inputs[call][0])
        found.add(value)
    return found


def _beside_attention(roles: Roles, block: Block, mine: list[int]) -> list[int]:
    """The products of a dense MLP whose result is added to that of the attention: none where there are not two of them."""
    flow, p = roles.flow, roles.flow.program
    ends = [v for k in block.core for v in range(p.first[k], p.first[k] + p.outs[k])]
    behind = {flow.maker[v] for v in flow.back(ends, above=min(block.calls) - 1)}
    inside = {v for k in block.calls for v in range(p.first[k], p.first[k] + p.outs[k])}
    ahead = {flow.maker[v] for v in flow.ahead(ends, inside)}
    found = [k for k in mine if k not in behind and k not in ahead]
    return found if len(found) > 1 else []


def _of_experts(
    base: Base, roles: Roles, block: Block, mine: list[int]
) -> tuple[list[int], list[int]] | None:
    """The first and the second products of routed and shared experts: row-parallel is what no other product reads."""
    p, flow = base.analysis.program, roles.flow
    products = set(mine)
    above: dict[int, set[int]] = {}
    for k in mine:
        seen: set[int] = set()
        todo = list(flow.data_inputs(k))
        while todo:
            call = flow.maker[v] if (v := todo.pop()) < len(flow.maker) else -1
            if call < 0 or p.kind[call] != CALL or call not in block.calls or call in seen:
                continue
            seen.add(call)
            if call not in products:
                todo.extend(flow.data_inputs(call))
        above[k] = seen & products
    columns = {c for found in above.values() for c in found}
    lasts = [k for k in mine if k not in columns and above[k]]
    # Two products in a row, and no third one: what is between others has the features of neither end.
    if not lasts or any(above[c] for c in columns):
        return None
    return sorted(columns), lasts


def _on_all_tokens(base: Base, roles: Roles, demands: Demands, block: Block) -> bool:
    """Whether the contract wants what the block reads to be Full, and lets its experts have it so."""
    p = base.analysis.program
    if not _may_have_all_tokens(roles, demands, block):
        return False
    for value in block.entry:
        root = base.root(value)
        maker = p.value_call[root]
        demand = demands.results.get((maker, root - p.first[maker]))
        if demand is None or demand.states != {FULL}:
            return False
    return bool(block.entry)


def _check_spread(base: Base, roles: Roles, demands: Demands, block: Block, spread: Collection[int]) -> None:
    """Raise InputError where experts are spread and the contract gives a rank its own tokens only."""
    if not spread or _may_have_all_tokens(roles, demands, block):
        return
    for k in sorted(block.calls):
        if roles.flow.is_weight_product(k) and _inputs_behind(base, k) & set(spread):
            raise InputError(
                "the plan spreads these experts, and the contract gives them a rank's own tokens: a token would have to be sent to"
                " its experts' ranks, and the graph has no dispatch",
                base.analysis.program.nodes[k].name,
            )


def _may_have_all_tokens(roles: Roles, demands: Demands, block: Block) -> bool:
    """Whether the contract lets the experts of a block be on all tokens."""
    experts = {k for k in block.calls if roles.of(k) in EXPERTS}
    said = (*demands.operands.items(), *demands.results.items())
    return not any(k in experts and FULL not in of.states for (k, _), of in said)


def _nearest(base: Base, roles: Roles, block: Block, mine: list[int]) -> list[int]:
    """Products whose results reach the core as data through no other product of theirs."""
    flow = roles.flow
    p = base.analysis.program
    products = set(mine)
    found: set[int] = set()
    behind: set[int] = set()

    def walk(value: int, above: int | None, seen: set[int]) -> None:
        todo = [(value, above)]
        while todo:
            v, product = todo.pop()
            call = flow.maker[v] if v < len(flow.maker) else -1
            if call < 0 or p.kind[call] != CALL or call not in block.calls or (call, product) in visited:
                continue
            visited.add((call, product))
            if call in products:
                (behind if product is not None else found).add(call)
                product = call
            todo.extend((u, product) for u in flow.data_inputs(call))

    visited: set[tuple[int, int | None]] = set()
    for k in block.core:
        for v in flow.data_inputs(k):
            walk(v, None, set())
    return sorted(found - behind)


def _may(demands: Demands, last: int) -> bool:
    """Whether the contract lets the last product be a pending sum, over all tokens."""
    demand = demands.results.get((last, 0))
    if demand is not None and PARTIAL not in demand.states:
        return False
    inputs = [d for (k, _), d in demands.operands.items() if k == last]
    return all(FULL in d.states for d in inputs)


def _weight(base: Base, roles: Roles, sharder: Sharder, k: int) -> tuple[int, int] | None:
    """The input behind a product's weight, and the axis of it that runs over the product's results."""
    flow = roles.flow
    p = base.analysis.program
    out = base.full[p.first[k]]
    if not isinstance(out, Layout):
        return None
    for v in flow.data_inputs(k):
        of = base.full[base.root(v)]
        if flow.kinds[v] != "W" or not isinstance(of, Layout) or of.rank < 2:
            continue
        for axis in range(of.rank):
            if of.shape[axis] == out.shape[-1]:
                source = sharder.source(base.root(v), axis)
                if source is not None and _gives_columns(base, sharder, k, v, axis):
                    return source
    return None


def _gives_columns(base: Base, sharder: Sharder, k: int, weight: int, axis: int) -> bool:
    """Whether the axis, cut, gives a product with its last axis cut (and is not the axis that is summed over)."""
    from layoutcheck.infer.solver.one_call import apply

    p = base.analysis.program
    shard = sharder.cut(base.full[base.root(weight)], axis)
    if shard is None:
        return False
    instance = base.instance(k)
    # A bias is cut with the columns that it is added to.
    biases = {
        slot
        for name in (instance.rule.addends if instance.rule else ())
        for slot in slots_in(instance.params.get(name))
    }
    ins = tuple(
        shard
        if v == weight
        else _last_cut(sharder, base.full[base.root(v)])
        if i in biases
        else base.full[base.root(v)]
        for i, v in enumerate(p.inputs[k])
    )
    result = apply(base.analysis.solver.ctx, instance, ins)
    out = result.outs[0] if result.outs else None
    wanted = sharder.cut(base.full[p.first[k]], base.full[p.first[k]].rank - 1)
    return (
        not result.issues
        and isinstance(out, Layout)
        and wanted is not None
        and out.axes == wanted.axes
        and out.bound == wanted.bound
    )


def _last_cut(sharder: Sharder, of: Any) -> Any:
    """A layout with its last axis cut, where it can be."""
    cut = sharder.cut(of, of.rank - 1) if isinstance(of, Layout) and of.rank else None
    return of if cut is None else cut


def _all_sum(base: Base, lasts: Collection[int], overlay: dict[int, Layout]) -> bool:
    """Whether the last products sum over cut features, so that the block ends in a pending sum and nothing else is cut."""
    p = base.analysis.program
    return all(any(base.root(v) in overlay for v in p.inputs[k]) and p.first[k] not in overlay for k in lasts)
