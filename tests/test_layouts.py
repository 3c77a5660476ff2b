"""Layouts: interned and canonical; joining them is commutative, idempotent, monotone, and agrees with numpy's indices."""

from __future__ import annotations

from itertools import combinations, permutations
from math import prod
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.indices import call, coordinates, held, mesh_of, number, same

from layoutcheck.domains import Factor, anything, factor, feature, flat, iota, padded, ranged, token, variable
from layoutcheck.infer.calls.compare import strength
from layoutcheck.layouts import (
    Layout,
    bound_on_axis,
    extent_of,
    layout,
    partner_axis,
    render,
    replace,
    state_of,
    whole,
)

MESH = mesh_of(tp=2, cp=3)
SIZES = (2, 3)
NAMES = {0: "tp", 1: "cp"}
T, S = token("T", 12), token("S", 12)

Entry = tuple[Any, tuple[int, ...]]
"""What an axis is (a domain, or a feature's extent), and the mesh axes that cut it, major first."""


def build(entries: list[Entry], partial: tuple[int, ...] = (), dtype: str = "float32") -> Layout:
    """The layout of a tensor: each axis' domain cut evenly over mesh axes."""
    axes, bound = [], {}
    for domain, over in entries:
        stride = number(domain.extent)
        for m in over:
            stride //= SIZES[m]
            bound[m] = (factor(domain, stride, SIZES[m]),)
        axes.append((factor(domain, 1, stride),))
    return layout(dtype, tuple(axes), bound, partial)


@st.composite
def entries(draw: st.DrawFn, rank: int = 2) -> list[Entry]:
    """Axes of T, S or features, no mesh axis on two of them, no domain twice."""
    pool = draw(st.permutations([T, S, feature(12), feature(24)]))[:rank]
    free = draw(st.permutations([(0,), (1,), (), (), ()]))[:rank]
    both = draw(st.sampled_from([None, None, (0, 1)]))
    if both is not None:
        at = draw(st.integers(0, rank - 1))
        free = [both if i == at else () for i in range(rank)]
    return list(zip(pool, free))


@st.composite
def layouts(draw: st.DrawFn, rank: int = 2) -> Layout:
    found = draw(entries(rank))
    used = {m for _, over in found for m in over}
    pending = tuple(m for m in (0, 1) if m not in used and draw(st.booleans()))
    return build(found, pending)


def add(x: Layout, y: Layout) -> Any:
    return call(MESH, "aten.add.Tensor", x, y)


def codes(result: Any) -> list[str]:
    """Codes of what stands and of what stands unless an input is something else."""
    return sorted(
        [i.code for i in result.issues] + [w.issue.code for w in result.wants if w.issue is not None]
    )


def complete(of: Layout) -> Layout:
    return replace(of, partial=())


@given(entries(), st.sampled_from([(), (0,), (1,), (0, 1)]))
def test_equal_parts_are_one_object(found: list[Entry], partial: tuple[int, ...]) -> None:
    of = build(found, partial)
    assert build(list(found), tuple(reversed(partial)) * 2) is of
    assert replace(of) is of
    assert layout(of.dtype, of.axes, of.bound_map, of.partial, of.value) is of
    assert build(found, partial, "int64") is not of
    assert of.shape == tuple(extent_of(axis) for axis in of.axes)
    ways = prod(SIZES[m] for _, over in found for m in over)
    assert prod(map(number, of.shape)) * ways == prod(number(domain.extent) for domain, _ in found)


@given(layouts())
def test_a_state_is_what_the_ranks_hold(of: Layout) -> None:
    """Full: the same on all ranks of the mesh axis; Local, Sharded: parts that are disjoint and all of it."""
    for m in (0, 1):
        state = state_of(of, m)
        if m in of.partial:
            assert state == "Partial" and not of.is_full(m)
            continue
        for at in coordinates(MESH):
            if at[m]:
                continue
            ranks = [held(of, {**at, m: c}) for c in range(SIZES[m])]
            if state == "Full":
                assert of.is_full(m) and all(same(ranks[0], other) for other in ranks[1:])
                continue
            (b,) = of.bound_map[m]
            assert state == ("Sharded" if b.domain.is_feature else "Local")
            assert partner_axis(of, b) is not None
            parts = [set(rank[b.domain].reshape(-1).tolist()) for rank in ranks]
            assert all(not a & c for a, c in combinations(parts, 2))


@given(layouts())
def test_the_ranks_together_hold_everything_once(of: Layout) -> None:
    seen: dict[tuple[int, ...], int] = {}
    domains = sorted(of.domains_on_axes(), key=repr)
    for at in coordinates(MESH):
        if any(at[m] for m in (0, 1) if m not in of.bound_map):
            continue
        indices = held(of, at)
        for element in zip(*(indices[d].reshape(-1).tolist() for d in domains)):
            seen[element] = seen.get(element, 0) + 1
    assert len(seen) == prod(number(d.extent) for d in domains)
    assert set(seen.values()) == {1}


@given(layouts())
def test_cuts_of_an_axis_are_listed_major_first(of: Layout) -> None:
    for i in range(of.rank):
        strides = [number(b.stride) for _, b in bound_on_axis(of, i)]
        assert strides == sorted(strides, reverse=True)
        assert all(partner_axis(of, b) == i for _, b in bound_on_axis(of, i))
    assert sum(len(bound_on_axis(of, i)) for i in range(of.rank)) == len(of.bound)


@given(layouts(), layouts())
def test_join_is_commutative(x: Layout, y: Layout) -> None:
    one, other = add(x, y), add(y, x)
    assert codes(one) == codes(other)
    if not codes(one):
        assert one.outs == other.outs


@given(layouts())
def test_join_is_idempotent(x: Layout) -> None:
    result = add(x, x)
    assert result.outs == (x,) and not codes(result)


def weaker(x: Layout, ways: tuple[str, ...]) -> Layout:
    """`x` with some axes of a constant fill, or of extent one."""
    axes, bound = [], dict(x.bound_map)
    for i, (axis, way) in enumerate(zip(x.axes, ways)):
        if way != "same":
            for m, _ in bound_on_axis(x, i):
                del bound[m]
        axes.append({"same": axis, "fill": (anything(x.shape[i]).whole,), "unit": ()}[way])
    return layout(x.dtype, tuple(axes), bound)


WAYS = st.tuples(*[st.sampled_from(["same", "fill", "unit"])] * 2)


@given(layouts(), WAYS, WAYS, WAYS)
def test_join_is_associative_and_takes_what_is_known(
    x: Layout, a: tuple[str, ...], b: tuple[str, ...], c: tuple[str, ...]
) -> None:
    """Of operands that each know some axes of one layout, the join knows what any of them does, in any order."""
    best = tuple(min(ways, key=["same", "fill", "unit"].index) for ways in zip(a, b, c))
    parts = [weaker(x, ways) for ways in (a, b, c)]
    for one, two, three in permutations(parts):
        left = add(add(one, two).outs[0], three)
        right = add(one, add(two, three).outs[0])
        assert left.outs == right.outs == (weaker(x, best),)
        assert not codes(left) and not codes(right)


@given(entries(), st.data())
def test_join_is_clean_just_where_the_elements_are_the_same(found: list[Entry], data: st.DataObject) -> None:
    """Two complete tensors may be added if on every rank each element is the same element of the same domain."""
    over = data.draw(st.permutations([o for _, o in found]))
    x, y = build(found), build([(d, o) for (d, _), o in zip(found, over)])
    _agree(x, y)


@given(layouts(), layouts())
def test_join_of_any_two(x: Layout, y: Layout) -> None:
    _agree(complete(x), complete(y))


def _agree(x: Layout, y: Layout) -> None:
    result = add(x, y)
    equal = x.shape == y.shape and all(same(held(x, at), held(y, at)) for at in coordinates(MESH))
    assert bool(codes(result)) != equal, (x, y, codes(result), result.outs)
    if equal:
        assert result.outs == (x,)


def test_two_orders_of_one_cut() -> None:
    """T/2@tp/3@cp + T/3@cp/2@tp: the shares are as large, and on most ranks hold other tokens."""
    x, y = build([(T, (0, 1))]), build([(T, (1, 0))])
    assert not all(same(held(x, at), held(y, at)) for at in coordinates(MESH))
    assert codes(add(x, y))


SIX = {
    "T/2@tp": build([(T, (0,))]),
    "S/2@tp": build([(S, (0,))]),
    "U/3@cp": build([(token("U", 18), (1,))]),
    "12/2@tp": build([(feature(12), (0,))]),
    "18/3@cp": build([(feature(18), (1,))]),
    "6": build([(feature(6), ())]),
    "R": build([(token("R", 6), ())]),
    "prefix": layout("float32", ((ranged(T.whole, 0, 6).whole,),)),
    "range": layout("float32", ((ranged(T.whole, 6, 6).whole,),)),
    "major": layout("float32", ((factor(T, 2, 6),),)),
}


@pytest.mark.parametrize("one", SIX)
@pytest.mark.parametrize("other", SIX)
def test_an_equal_size_means_nothing(one: str, other: str) -> None:
    """Ten axes of six elements a rank, no two of which may be added."""
    x, y = SIX[one], SIX[other]
    assert x.shape == y.shape == (6,)
    result = add(x, y)
    assert bool(codes(result)) == (one != other), (codes(result), result.outs)


def test_one_digit_over_two_groups() -> None:
    """T/2@a + T/2@b: on most ranks other tokens meet."""
    mesh, half = mesh_of(a=2, b=2), factor(T, 1, 6)
    x, y = (layout("float32", ((half,),), {m: (factor(T, 6, 2),)}) for m in (0, 1))
    assert not all(same(held(x, at), held(y, at)) for at in coordinates(mesh))
    assert codes(call(mesh, "aten.add.Tensor", x, y)) == ["LC301"]


@given(layouts(), layouts())
def test_join_never_knows_less(x: Layout, y: Layout) -> None:
    """Each axis of a clean join says at least as much as either operand's."""
    axes = ((anything(x.shape[0]).whole,), (variable("x", 1, x.shape[1]).whole,))
    unknown = layout("float32", axes)
    for left, right in ((complete(x), unknown), (unknown, complete(x)), (complete(x), complete(y))):
        result = add(left, right)
        if not codes(result):
            for out, a, b in zip(result.outs[0].axes, left.axes, right.axes):
                assert strength(out) == max(strength(a), strength(b))


@given(layouts(), st.sampled_from([(), (0,), (1,), (0, 1)]))
def test_a_pending_sum_times_what_is_whole_is_pending(x: Layout, pending: tuple[int, ...]) -> None:
    """Multiplication keeps the states of the chain Full, Local, Partial; addition takes no two different ones."""
    assume(not set(pending) & set(x.bound_map))
    full, summed = complete(x), replace(x, partial=pending)
    product = call(MESH, "aten.mul.Tensor", summed, full)
    assert product.outs == (summed,) and not codes(product)
    total = add(summed, full)
    assert codes(total) == ["LC201"] * len(pending)
    square = call(MESH, "aten.mul.Tensor", summed, summed)
    assert codes(square) == ["LC201"] * len(pending)


def test_packed_tokens_come_back_from_padding() -> None:
    """A product of domains that was padded and cut off again is the product of its factors, as it was."""
    packed = layout("float32", ((T.whole, S.whole),))
    product = flat((T.whole, S.whole))
    assert layout("float32", ((product.whole,),)) is packed
    assert render(layout("float32", ((padded(product, 64).whole,),)), NAMES) == "f32[pad(T*S, 64)]"


def cut_over(domain: Any, *over: int) -> dict[int, tuple[Factor, ...]]:
    return build([(domain, over)]).bound_map


@pytest.mark.parametrize(
    ("of", "text"),
    [
        (whole("bfloat16", (4, 8)), "bf16[4, 8]"),
        (whole("float8_e4m3fn", ()), "f8e4m3[]"),
        (whole("complex64", (1, 8)), "complex64[1, 8]"),
        (build([(T, ()), (feature(8), ())]), "f32[T, 8]"),
        (build([(T, (0,))]), "f32[T/2@tp]"),
        (build([(T, (1, 0))]), "f32[T/3@cp/2@tp]"),
        (build([(T, (0, 1))]), "f32[T/2@tp/3@cp]"),
        (build([(T, (0,)), (feature(12), (1,))]), "f32[T/2@tp, 12/3@cp]"),
        (build([(T, ()), (feature(12), (0,))], (1,)), "f32[T, 12/2@tp] +cp"),
        (build([(T, ())], (1, 0)), "f32[T] +tp +cp"),
        (layout("bool", ((T.whole, S.whole),)), "b1[T*S]"),
        (layout("int64", ((iota(4).whole,), (anything(2).whole,))), "i64[0..4, 2]"),
        (layout("int8", ((variable("x", 0, 4).whole,),)), "i8[x.0]"),
        (layout("float16", ((padded(T, 16).whole,),)), "f16[pad(T, 16)]"),
        (layout("float64", ((ranged(T.whole, 2, 3).whole,),)), "f64[range(T, 2, 5)]"),
        (layout("float32", ((factor(T, 6, 2),),)), "f32[T[2x6]]"),
        (layout("float32", ((),), {0: (feature(2).whole,)}), "f32[1] {2/2@tp}"),
        (layout("float32", ((T.whole,),), cut_over(S, 1)), "f32[T] {S/3@cp}"),
        (
            layout("float32", ((factor(T, 1, 6),), (factor(feature(12), 1, 6),)),
                   {0: (factor(T, 6, 2), factor(feature(12), 6, 2))}),
            "f32[T/2@tp, 12/2@tp] mixed@tp",
        ),
        (layout("float32", ((factor(T, 1, 6),),), cut_over(T, 0), (0,)), "f32[T/2@tp] +tp mixed@tp"),
    ],
)  # fmt: skip
def test_layouts_say_what_they_are(of: Layout, text: str) -> None:
    assert render(of, NAMES) == text
    assert repr(of) == f"Layout({render(of)})"
    assert ("mixed" in text) == any(state_of(of, m) == "Mixed" for m in (0, 1))
