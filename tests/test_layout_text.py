"""Layouts as text: what is printed is read back as the same object, and what cannot be read is said word for word."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.indices import mesh_of, number

from layoutcheck.domains import factor, feature, padded, token
from layoutcheck.errors import InputError
from layoutcheck.layout_text import parse_layout
from layoutcheck.layouts import Layout, layout, render
from layoutcheck.mesh import build_mesh
from layoutcheck.symbols import Size, cdiv, evaluate, sym

MESH = mesh_of(tp=2, cp=3)
SIZES, NAMES = (2, 3), {0: "tp", 1: "cp"}


def read(
    text: str, shape: tuple[Size, ...], known: dict[str, Size] | None = None, dtype: str = "float32"
) -> Layout:
    return parse_layout(text, MESH, dtype, shape, "--layout x", known)


@st.composite
def written(draw: st.DrawFn) -> Layout:
    """A layout of token domains and features, each axis a product, cut evenly over groups; pending over what is left."""
    names = draw(st.permutations(["T", "B", "q.rows"]))
    features = draw(st.permutations([6, 12, 18]))  # features of one extent are one feature
    free = [0, 1]
    bound: dict[int, Any] = {}
    axes = []
    for _ in range(draw(st.integers(0, 3))):
        axis = []
        for kind in draw(
            st.sampled_from([["token"], ["feature"], ["token", "feature"], ["feature", "token"]])
        ):
            over = [m for m in list(free) if draw(st.booleans())]
            for m in over:
                free.remove(m)
            if kind == "token":
                domain = token(names.pop(), draw(st.sampled_from([6, 12, 18])))
            else:
                domain = feature(features.pop())
            extent = number(domain.extent)
            stride = extent
            for m in over:
                stride //= SIZES[m]
                bound[m] = (factor(domain, stride, SIZES[m]),)
            axis.append(factor(domain, 1, stride))
        axes.append(tuple(axis))
    pending = tuple(m for m in free if draw(st.booleans()))
    off = {m: (feature(SIZES[m]).whole,) for m in free if m not in pending and draw(st.booleans())}
    return layout(draw(st.sampled_from(["float32", "int64"])), tuple(axes), {**bound, **off}, pending)


@given(written())
def test_what_is_printed_is_read_back(of: Layout) -> None:
    known: dict[str, Size] = {
        f.domain.name: f.domain.extent for a in of.axes for f in a if not f.domain.is_feature
    }
    text = render(of, NAMES)
    assert read(text, of.shape, dict(known), of.dtype) is of
    bare = text[text.index("[") :]
    assert read(f"  {bare.replace(',', ' ,')}  ", of.shape, known, of.dtype) is of


@given(written())
def test_extents_come_from_the_shape(of: Layout) -> None:
    """Where an axis has at most one new domain, nothing need be known before; what is learned is right."""
    fresh = [[f.domain.name for f in axis if not f.domain.is_feature] for axis in of.axes]
    assert all(len(names) <= 1 for names in fresh)
    known: dict[str, Size] = {}
    assert read(render(of, NAMES), of.shape, known, of.dtype) is of
    assert known == {f.domain.name: f.domain.extent for a in of.axes for f in a if not f.domain.is_feature}


@given(st.integers(1, 40))
def test_an_uneven_share_is_a_share_of_padded_tokens(tokens: int) -> None:
    each = -(-tokens // 2)
    of = read("[T/2@tp]", (each,), {"T": tokens})
    domain = padded(token("T", tokens), 2 * each)
    assert of is layout("float32", ((factor(domain, 1, each),),), {0: (factor(domain, each, 2),)})
    assert (render(of, NAMES) == "f32[T/2@tp]") == (tokens % 2 == 0)


def test_what_denotes_nothing_can_be_said_too() -> None:
    """Tokens and features cut over one group."""
    of = read("[T/2@tp, 12/2@tp]", (3, 6))
    t, wide = token("T", 6), feature(12)
    assert of.bound_map == {0: (factor(t, 3, 2), factor(wide, 6, 2))} and of.is_mixed(0)
    assert render(of, NAMES) == "f32[T/2@tp, 12/2@tp] mixed@tp"


def test_symbols_are_sizes() -> None:
    t = sym("T")
    known: dict[str, Size] = {"T": 2 * t}
    of = read("[T/2@tp, 8]", (t, 8), known)
    assert render(of, NAMES) == "f32[T/2@tp, 8]" and of.shape == (t, 8)
    uneven = read("[S/2@tp]", (cdiv(t, 2),), {"S": t})
    extent = uneven.axes[0][0].domain.extent
    assert not isinstance(extent, int) and evaluate(extent, {"T": 5}) == 6


@pytest.mark.parametrize("star", ["*", "_"])
def test_a_star_is_a_feature_of_any_size(star: str) -> None:
    assert read(f"[{star}, 8]", (5, 8)) is layout("float32", ((feature(5).whole,), (feature(8).whole,)))


def test_a_group_of_several_axes_is_cut_major_first() -> None:
    mesh = build_mesh([(0, 1), (0, 1, 2, 3)], {}, aliases={"tp": 2, "ep": 4})
    of = parse_layout("[T/4@ep]", mesh, "float32", (3,), "x")
    domain = token("T", 12)
    inner, outer = (
        mesh.groups["tp"].axes[0],
        next(a for a in mesh.groups["ep"].axes if a not in mesh.groups["tp"].axes),
    )
    assert of.bound_map == {outer: (factor(domain, 6, 2),), inner: (factor(domain, 3, 2),)}
    assert parse_layout("[T] +ep", mesh, "float32", (3,), "x").partial == tuple(sorted((inner, outer)))


@pytest.mark.parametrize(
    ("text", "shape", "message"),
    [
        ("T, 8", (4, 8), "`T, 8` is no layout; write one as [T/4@tp, 64]"),
        ("", (4,), "`` is no layout; write one as [T/4@tp, 64]"),
        ("[T", (4,), "`[T` is no layout; write one as [T/4@tp, 64]"),
        ("[T]", (4, 8), "`[T]` has 1 axes, the tensor has 2"),
        ("[]", (4,), "`[]` has 0 axes, the tensor has 1"),
        ("[T/2@dp]", (4,), "there is no group `dp` (known: cp, tp); name it with --group dp=SIZE"),
        ("[T] +dp", (4,), "there is no group `dp` (known: cp, tp); name it with --group dp=SIZE"),
        ("[T] {e/2@dp}", (4,), "there is no group `dp` (known: cp, tp); name it with --group dp=SIZE"),
        ("[T] tp", (4,), "`tp` is no `+group` and no `{name/ways@group}`"),
        ("[T] +tp -cp", (4,), "`-cp` is no `+group` and no `{name/ways@group}`"),
        ("[T@tp]", (4,), "`T@tp` is no factor; write T, 64, T/4@tp or 256/4@tp"),
        ("[T/2]", (4,), "`T/2` is no factor; write T, 64, T/4@tp or 256/4@tp"),
        ("[-4]", (4,), "`-4` is no factor; write T, 64, T/4@tp or 256/4@tp"),
        ("[T*]", (4,), "`` is no factor; write T, 64, T/4@tp or 256/4@tp"),
        ("[8]", (4,), "`8` does not fit an axis of 4"),
        ("[16/2@tp]", (4,), "`16/2@tp` does not fit an axis of 4"),
        ("[T*3]", (4,), "`T*3` does not fit an axis of 4"),
        ("[T/3@tp]", (4,), "`T/3@tp` divides by 3, but tp has 2 ranks"),
        ("[T*8/2@cp]", (4,), "`T*8/2@cp` divides by 2, but cp has 3 ranks"),
        ("[T] {e/8@cp}", (4,), "`{e/8@cp}` divides by 8, but cp has 3 ranks"),
        ("[A*B]", (4,), "the extents of `A*B` are not known; declare one of its domains elsewhere first"),
        ("[" + "1, " * 2000 + "1]", (1,), "a layout of more than 4096 characters"),
    ],
)
def test_errors(text: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(InputError) as caught:
        read(text, shape)
    assert str(caught.value) == f"--layout x: {message}"


def test_no_group_at_all() -> None:
    with pytest.raises(InputError) as caught:
        parse_layout("[T/2@tp]", build_mesh([], {}), "float32", (4,), "x")
    assert str(caught.value) == "x: there is no group `tp` (known: none); name it with --group tp=SIZE"


@given(st.text(alphabet="[]T8/4@tp+{}*, _-\n", max_size=30), st.lists(st.integers(0, 8), max_size=3))
def test_any_text_is_read_or_refused(text: str, shape: list[int]) -> None:
    """Nothing but an InputError, and what is read has the tensor's shape."""
    try:
        of = read(text, tuple(shape))
    except InputError:
        return
    assert tuple(map(number, of.shape)) == tuple(shape)
