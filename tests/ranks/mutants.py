"""Broken rules and broken transforms. Each must be caught by running rules or programs on ranks: it shows that
these tests can fail.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import attrs
import pytest

from layoutcheck.infer.calls import elementwise, factor_rule, states
from layoutcheck.layouts import replace
from layoutcheck.rules.rulebook import RuleBook
from layoutcheck.rules.types import Axis, Label, OperandPattern, OutputPattern, Pattern, Rule
from layoutcheck.transforms import collectives, gathers, index, joinery, pieces, reduce, registry, views

Patch = Callable[[pytest.MonkeyPatch, RuleBook], None]


@dataclass(frozen=True)
class Mutant:
    """A break, and the ops whose samples should show it; no ops: random programs should."""

    name: str
    patch: Patch
    ops: tuple[str, ...] = ()


MUTANTS: list[Mutant] = []


def mutant(*ops: str) -> Callable[[Patch], Patch]:
    """Enter a break under its function's name."""

    def enter(patch: Patch) -> Patch:
        MUTANTS.append(Mutant(patch.__name__, patch, ops))
        return patch

    return enter


def _rule(monkeypatch: pytest.MonkeyPatch, book: RuleBook, target: str, **changes: Any) -> None:
    found = book.lookup(target)
    assert found is not None
    changed: Rule = attrs.evolve(found, **changes)
    monkeypatch.setitem(book.rules, found.target, changed)
    book._found.clear()


def _softened(pattern: Pattern) -> Pattern:
    """A pattern without its marks `!`."""
    axes = [
        Axis(tuple(Label(x.name, False) for x in axis.labels)) if isinstance(axis, Axis) else axis
        for axis in pattern.axes
    ]
    return Pattern(tuple(axes))


def _without_marks(operands: tuple[OperandPattern, ...]) -> tuple[OperandPattern, ...]:
    return tuple(attrs.evolve(o, pattern=_softened(o.pattern)) for o in operands)


def _transform(monkeypatch: pytest.MonkeyPatch, name: str, forward: Callable[..., Any]) -> None:
    found = registry.find(name)
    assert found is not None
    monkeypatch.setitem(registry._table, name, attrs.evolve(found, forward=forward))


# ---- rules


@mutant("aten.sigmoid.default")
def activation_is_linear(mp: pytest.MonkeyPatch, book: RuleBook) -> None:
    _rule(mp, book, "aten.sigmoid.default", linear=frozenset(("self",)))


@mutant("aten.mul.Tensor")
def product_is_additive(mp: pytest.MonkeyPatch, book: RuleBook) -> None:
    _rule(mp, book, "aten.mul.Tensor", linear=frozenset(), additive=frozenset(("self", "other")))


@mutant("aten.add.Tensor")
def sum_is_linear_in_each(mp: pytest.MonkeyPatch, book: RuleBook) -> None:
    _rule(mp, book, "aten.add.Tensor", linear=frozenset(("self", "other")), additive=frozenset())


@mutant("aten.linear.default")
def bias_is_linear(mp: pytest.MonkeyPatch, book: RuleBook) -> None:
    _rule(mp, book, "aten.linear.default", linear=frozenset(("input", "weight", "bias")), addends=frozenset())


@mutant("aten.div.Tensor")
def quotient_is_linear_in_the_divisor(mp: pytest.MonkeyPatch, book: RuleBook) -> None:
    _rule(mp, book, "aten.div.Tensor", linear=frozenset(("self", "other")))


@mutant("tensor_cast.rms_norm.default")
def norm_of_shards(mp: pytest.MonkeyPatch, book: RuleBook) -> None:
    found = book.lookup("tensor_cast.rms_norm.default")
    assert found is not None
    _rule(mp, book, "tensor_cast.rms_norm.default", operands=_without_marks(found.operands))


@mutant("aten.scaled_dot_product_attention.default")
def attention_on_a_share_of_keys(mp: pytest.MonkeyPatch, book: RuleBook) -> None:
    found = book.lookup("aten.scaled_dot_product_attention.default")
    assert found is not None
    _rule(mp, book, "aten.scaled_dot_product_attention.default", operands=_without_marks(found.operands))


@mutant("aten.bmm.default")
def product_transposes(mp: pytest.MonkeyPatch, book: RuleBook) -> None:
    found = book.lookup("aten.bmm.default")
    assert found is not None
    (out,) = found.outputs
    assert out.pattern is not None
    b, t, n = out.pattern.axes
    _rule(mp, book, "aten.bmm.default", outputs=(OutputPattern("tensor", Pattern((b, n, t))),))


@mutant("tensor_cast.moe_gating_top_k_softmax.default")
def top_experts_of_a_shard(mp: pytest.MonkeyPatch, book: RuleBook) -> None:
    found = book.lookup("tensor_cast.moe_gating_top_k_softmax.default")
    assert found is not None
    _rule(mp, book, "tensor_cast.moe_gating_top_k_softmax.default", operands=_without_marks(found.operands))


@mutant("tensor_cast.static_quant_linear_all_reduce.default")
def fused_linear_without_its_reduction(mp: pytest.MonkeyPatch, book: RuleBook) -> None:
    _rule(mp, book, "tensor_cast.static_quant_linear_all_reduce.default", then=())


@mutant("aten.mean.dim")
def mean_of_shards_adds_up(mp: pytest.MonkeyPatch, book: RuleBook) -> None:
    _rule(mp, book, "aten.mean.dim", options={"kind": "sum"})


@mutant("aten.amax.default")
def maximum_of_shards_adds_up(mp: pytest.MonkeyPatch, book: RuleBook) -> None:
    _rule(mp, book, "aten.amax.default", options={"kind": "sum"})


@mutant("aten.cumprod.default")
def running_product_is_linear(mp: pytest.MonkeyPatch, book: RuleBook) -> None:
    _rule(mp, book, "aten.cumprod.default", linear=frozenset(("self",)))


# ---- joins


@mutant("aten.mul.Tensor", "aten.linear.default")
def sums_pass_everywhere(mp: pytest.MonkeyPatch, book: RuleBook) -> None:
    def join_partial(call: Any, operands: Any, *rest: Any) -> tuple[int, ...]:
        return tuple(sorted({m for _, _, of in operands for m in of.partial}))

    for module in (states, elementwise, factor_rule):
        mp.setattr(module, "join_partial", join_partial)


@mutant("aten.add.Tensor")
def full_fits_local(mp: pytest.MonkeyPatch, book: RuleBook) -> None:
    for module in (elementwise, factor_rule):
        mp.setattr(module, "compare_axes", lambda *a, **k: None)


@mutant("aten.sigmoid.default")
def pointwise_forgets_shards(mp: pytest.MonkeyPatch, book: RuleBook) -> None:
    original = elementwise.elementwise

    def whole(call: Any) -> Any:
        result = original(call)
        return attrs.evolve(result, outs=tuple(replace(o, bound={}) for o in result.outs))

    from layoutcheck.infer.solver import one_call

    mp.setattr(one_call, "elementwise", whole)


# ---- transforms


@mutant("aten.softmax.int", "aten.amax.default")
def shards_are_whole_enough(mp: pytest.MonkeyPatch, book: RuleBook) -> None:
    mp.setattr(reduce, "need_whole", lambda *a: True)


@mutant("aten.topk.default")
def sums_pass_through_reductions(mp: pytest.MonkeyPatch, book: RuleBook) -> None:
    mp.setattr(reduce, "check_pending", lambda *a: None)


@mutant("aten.index.Tensor")
def positions_fit_any_share(mp: pytest.MonkeyPatch, book: RuleBook) -> None:
    mp.setattr(index, "check_positions", lambda *a: None)


@mutant("tensor_cast.all_reduce.default")
def reductions_of_what_is_complete(mp: pytest.MonkeyPatch, book: RuleBook) -> None:
    mp.setattr(collectives, "told_complete", lambda *a: None)


@mutant()
def any_constant_slice_is_a_share(mp: pytest.MonkeyPatch, book: RuleBook) -> None:
    original = pieces.rank_share

    def share(call: Any, of: Any, dim: int, start: Any, length: Any) -> Any:
        return original(call, of, dim, 0 if call.ctx.mesh.rank == 0 else call.ctx.mesh.rank * length, length)

    mp.setattr(pieces, "rank_share", share)


@mutant("aten.permute.default")
def permutation_stays(mp: pytest.MonkeyPatch, book: RuleBook) -> None:
    _transform(mp, "permute", lambda call: call.result(call.tensor("self")))


@mutant("aten.cat.default")
def parts_need_not_agree(mp: pytest.MonkeyPatch, book: RuleBook) -> None:
    mp.setattr(joinery, "compare_axes", lambda *a, **k: None)
    mp.setattr(joinery, "join_partial", lambda call, parts, *a: parts[0][2].partial)


@mutant("aten.view.default")
def view_lets_go_of_shards(mp: pytest.MonkeyPatch, book: RuleBook) -> None:
    original = views.view_to
    mp.setattr(views, "view_to", lambda *a: replace(original(*a), bound={}))


@mutant("aten.constant_pad_nd.default")
def padding_with_one_is_linear(mp: pytest.MonkeyPatch, book: RuleBook) -> None:
    original = joinery.pad

    def pad(call: Any) -> Any:
        return attrs.evolve(original(call), issues=())

    _transform(mp, "pad", pad)


def _outs(name: str, change: Callable[[Any], Any]) -> Patch:
    """A transform whose results' layouts are changed and whose issues are dropped."""
    found = registry.find(name)
    assert found is not None

    def forward(call: Any) -> Any:
        result = found.forward(call)
        return attrs.evolve(result, issues=(), wants=(), outs=tuple(change(o) for o in result.outs))

    return lambda mp, book: _transform(mp, name, forward)


@mutant("aten.linear.default")
def contraction_forgets_its_sum(mp: pytest.MonkeyPatch, book: RuleBook) -> None:
    from layoutcheck.infer.solver import one_call

    def complete(call: Any, **options: Any) -> Any:
        result = factor_rule.apply_factors(call, **options)
        return attrs.evolve(result, outs=tuple(replace(o, partial=()) for o in result.outs))

    mp.setattr(one_call, "apply_factors", complete)


@mutant("aten.sum.dim_IntList")
def padding_is_summed(mp: pytest.MonkeyPatch, book: RuleBook) -> None:
    mp.setattr(reduce, "check_padding", lambda *a: None)


@mutant("tensor_cast.all_gather.default")
def gathered_digits_stand_behind(mp: pytest.MonkeyPatch, book: RuleBook) -> None:
    original = gathers.gather_onto

    def gather(of: Any, dim: int, group: Any, stacked: bool = False) -> Any:
        axis = of.axes[dim]
        digits = tuple(of.bound_map[m][0] for m in group.axes)
        bound = {m: fs for m, fs in of.bound if m not in group.axes}
        axes = (*of.axes[:dim], (*axis, *digits), *of.axes[dim + 1 :])
        return replace(of, axes=axes, bound=bound), original(of, dim, group, stacked)[1]

    mp.setattr(gathers, "gather_onto", gather)


@mutant("tensor_cast.all_reduce.default")
def reduction_leaves_its_sum(mp: pytest.MonkeyPatch, book: RuleBook) -> None:
    _outs("all_reduce", lambda o: replace(o, partial=(0,), bound={}))(mp, book)


@mutant("tensor_cast.reduce_scatter.default")
def scattered_shares_are_whole(mp: pytest.MonkeyPatch, book: RuleBook) -> None:
    _outs("reduce_scatter", lambda o: replace(o, bound={}))(mp, book)


@mutant("aten.where.self")
def selection_passes_sums(mp: pytest.MonkeyPatch, book: RuleBook) -> None:
    found = registry.find("where")
    assert found is not None

    def forward(call: Any) -> Any:
        result = found.forward(call)
        pending = tuple(sorted({m for _, _, of in call.tensors() for m in of.partial}))
        return attrs.evolve(result, issues=(), outs=tuple(replace(o, partial=pending) for o in result.outs))

    _transform(mp, "where", forward)


@mutant("aten.embedding.default")
def lookup_forgets_whose_tokens(mp: pytest.MonkeyPatch, book: RuleBook) -> None:
    _outs("embedding", lambda o: replace(o, bound={}))(mp, book)


@mutant()
def positions_run_on_any_share(mp: pytest.MonkeyPatch, book: RuleBook) -> None:
    _outs("scan", lambda o: o)(mp, book)
