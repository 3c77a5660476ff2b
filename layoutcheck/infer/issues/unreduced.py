"""A branch that is added without a reduction, over weights of which nothing says that they are whole.

With smaller whole weights the very same graph is right; with shards the branch is a pending sum. The graph does not tell which, so it
is said, not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from layoutcheck.infer.calls.call import Issue
from layoutcheck.infer.issues.entries import Entry
from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.infer.solver.collectives import collectives_of
from layoutcheck.infer.solver.one_call import make_call, transform_of
from layoutcheck.infer.solver.repeats import body_runs
from layoutcheck.infer.solver.run import Typing
from layoutcheck.infer.solver.trace import Cut, Tracer, summed
from layoutcheck.layouts import Layout
from layoutcheck.program import CALL, PLACEHOLDER
from layoutcheck.rules.kinds import SUMMING

_FAR = 12
_NAMED = 3


def unreduced_branches(analysis: Analysis, typing: Typing) -> list[Entry]:
    """A note on the one branch that is a pending sum if its weights are shards over a group that others are reduced over."""
    groups = _candidates(analysis, typing)
    if not groups:
        return []
    p = analysis.program
    first: tuple[int, int, tuple[int, ...]] | None = None
    weights: list[int] = []
    places: set[int] = set()
    bodies = body_runs(analysis.solution.runner.repeats, typing.regions)
    for k, slot, value in _summands(analysis):
        product = _product(analysis, typing, value)
        if product is None or product in places:
            continue
        for axes in groups:
            found = _undecided_weights(analysis, typing, product, value, axes)
            if found:
                places.add(product)
                weights += [v for v in found if v not in weights]
                first = first or (k, slot, axes)
                break
        if len(places) > 1 or any(low < at < high and n > 1 for at in places for low, high, n in bodies):
            # several such branches are a way of working (whole output projections); one alone looks forgotten
            return []
    if first is None:
        return []
    k, slot, axes = first
    names = ", ".join(p.name_of(v) for v in weights[:_NAMED])
    more = f" and {len(weights) - _NAMED} more" if len(weights) > _NAMED else ""
    text = (
        f"nothing in the graph says whether {names}{more} are whole: as shards over {analysis.solution.runner.ctx.group(axes)} they "
        f"make {{0}} a pending sum, which is added here without a reduction; say what they are with --plan or --layout"
    )
    key = (p.op[k], *[typing.types[v] for v in p.inputs[k]])
    return [(k, key, Issue("LC201", text, (slot,), ("note",)))]


def _undecided_weights(
    analysis: Analysis, typing: Typing, product: int, value: int, axes: tuple[int, ...]
) -> list[int]:
    """The matrices that would have to be shards for a product to be a pending sum; none where something says that it is not."""
    solution, of = analysis.solution, typing.types[value]
    if not isinstance(of, Layout) or any(m in of.bound_map or m in of.partial for m in axes):
        return []
    # what a rank holds of its own tokens needs whole weights
    if any(m in other.bound_map for other in _operands(analysis, typing, product) for m in axes):
        return []
    cuts = Tracer(solution.runner, typing, _undecided(analysis)).pending(value, axes) or []
    if any(solution.cuts.get(c.value) for c in cuts):
        return []
    return sorted({c.value for c in cuts if _is_matrix(analysis, c)})


def _candidates(analysis: Analysis, typing: Typing) -> list[tuple[int, ...]]:
    """Groups over which the program reduces something: where it reduces nothing, whole weights are as likely as a forgotten sum."""
    ctx = analysis.solution.runner.ctx
    found = {c.group.axes for c in collectives_of(analysis.program, typing.types, ctx, SUMMING)}
    return sorted(axes for axes in found if not set(axes) & ctx.mesh.quotient)


def _summands(analysis: Analysis) -> Iterator[tuple[int, int, int]]:
    """Operands of calls that add tensors up (a norm that adds a residual first is one): call, slot, value."""
    p = analysis.program
    adding: dict[int, list[int]] = {}
    for i, one in enumerate(p.instances):
        if one.rule is None:
            continue
        names = [*one.rule.part[1:]] if one.rule.part[:1] == ("norm",) else [*one.rule.additive]
        slots = [getattr(one.params.get(name), "slot", -1) for name in names]
        if len(slots) > 1 and all(s >= 0 for s in slots):
            adding[i] = slots
    for k, op in enumerate(p.op):
        if p.kind[k] == CALL and op in adding:
            yield from ((k, slot, p.inputs[k][slot]) for slot in adding[op])


def _product(analysis: Analysis, typing: Typing, value: int) -> int | None:
    """The product with a weight that a value is, views and casts aside."""
    p = analysis.program
    for _ in range(_FAR):
        k = p.value_call[value]
        if p.kind[k] != CALL:
            return None
        transform = transform_of(p.instances[p.op[k]])
        if transform is not None and transform.is_view and len(p.inputs[k]) == 1:
            value = p.inputs[k][0]
            continue
        rule = p.instances[p.op[k]].rule
        if rule is None or not any(_is_weight(analysis, v) for v in p.inputs[k]):
            return None
        slots = tuple(typing.types[v] for v in p.inputs[k])
        call = make_call(analysis.solution.runner.ctx, p.instances[p.op[k]], slots)
        return k if any(len(group) > 1 for group in summed(call)) else None
    return None


def _operands(analysis: Analysis, typing: Typing, k: int) -> list[Layout]:
    found = [typing.types[v] for v in analysis.program.inputs[k]]
    return [of for of in found if isinstance(of, Layout)]


def _is_weight(analysis: Analysis, value: int) -> bool:
    p = analysis.program
    for _ in range(_FAR):
        k = p.value_call[value]
        if p.kind[k] == PLACEHOLDER:
            return analysis.plan.roles.get(value) == "weight"
        transform = transform_of(p.instances[p.op[k]]) if p.kind[k] == CALL else None
        if transform is None or not transform.is_view or len(p.inputs[k]) != 1:
            return False
        value = p.inputs[k][0]
    return False


def _undecided(analysis: Analysis) -> Callable[[int, int, Layout, bool], bool]:
    """Whether an input is a weight of which nothing says that it is whole."""

    def adaptable(value: int, axis: int, of: Layout, weights_only: bool) -> bool:
        return analysis.plan.roles.get(value) == "weight" and value not in analysis.plan.declared

    return adaptable


def _is_matrix(analysis: Analysis, cut: Cut) -> bool:
    return len(analysis.plan.metas[cut.value].shape) > 1
