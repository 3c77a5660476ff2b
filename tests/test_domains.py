"""Digits of domains: cutting, joining and regrouping never change which element stands where."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.indices import cuts, nested, number, of_factors, same

from layoutcheck.domains import (
    Domain,
    Factor,
    anything,
    base_of,
    concatenated,
    describe,
    factor,
    feature,
    flat,
    iota,
    is_token_like,
    merge,
    opaque,
    padded,
    permuted,
    pick,
    ranged,
    received,
    repeated,
    routed,
    split,
    token,
    unpicked,
    variable,
)
from layoutcheck.infer.calls.regroup import regroup
from layoutcheck.layouts import layout
from layoutcheck.symbols import cdiv, sym

EXTENTS = st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16, 24, 30, 36])


def digits(domain: Domain, radix: list[int]) -> list[Factor]:
    """The digits of a domain in mixed radix, major first, by splitting the rest again and again."""
    out = []
    rest = domain.whole
    for i in range(len(radix) - 1):
        parts = split(rest, prod(radix[i + 1 :]))
        assert parts is not None
        out.append(parts[0])
        rest = parts[1]
    return [*out, rest]


@st.composite
def domains_in_digits(draw: st.DrawFn) -> tuple[Domain, list[Factor]]:
    n = draw(EXTENTS.filter(lambda n: n > 1))
    domain = token("t", n)
    return domain, digits(domain, draw(cuts(n)))


@given(EXTENTS, st.integers(1, 40))
def test_split_gives_two_digits_that_multiply_or_none(n: int, minor: int) -> None:
    whole = token("t", n).whole
    parts = split(whole, minor)
    assert (parts is None) == (n % minor != 0)
    if parts is not None:
        assert parts[0].extent * parts[1].extent == n
        assert np.array_equal(of_factors(parts)[whole.domain], np.arange(n))
        assert merge(*parts) is whole


@given(domains_in_digits())
def test_digits_read_in_order_are_the_domain(cut: tuple[Domain, list[Factor]]) -> None:
    domain, found = cut
    assert prod(f.extent for f in found) == domain.extent
    assert np.array_equal(of_factors(found)[domain], np.arange(domain.extent))


@given(domains_in_digits(), st.randoms(use_true_random=False))
def test_merge_joins_neighbours_only(cut: tuple[Domain, list[Factor]], random: object) -> None:
    """Two digits make one just where numpy finds the pair to count in equal steps."""
    _, found = cut
    for major in found:
        for minor in found:
            joined = merge(major, minor)
            if major is minor:
                assert joined is None or major.extent == 1
                continue
            pair = of_factors([major, minor])[major.domain]
            steps = set(np.diff(pair).tolist())
            assert (joined is not None) == (steps == {minor.stride})
            if joined is not None:
                assert np.array_equal(of_factors([joined])[major.domain], pair)


@given(domains_in_digits(), st.data())
def test_one_normal_form_for_one_order(cut: tuple[Domain, list[Factor]], data: st.DataObject) -> None:
    """An axis of shuffled digits, and the same axis with every digit cut again, are one layout; another order is another."""
    domain, found = cut
    order = data.draw(st.permutations(found))
    finer: list[Factor] = []
    for f in order:
        radix = data.draw(cuts(number(f.extent))) or [1]
        rest = f
        for i in range(len(radix) - 1):
            parts = split(rest, prod(radix[i + 1 :]))
            assert parts is not None
            finer.append(parts[0])
            rest = parts[1]
        finer.append(rest)
    assert layout("f", (tuple(finer),)) is layout("f", (tuple(order),))
    normal = layout("f", (tuple(finer),)).axes[0]
    assert np.array_equal(of_factors(normal)[domain], of_factors(order)[domain])
    other = data.draw(st.permutations(found))
    equal = np.array_equal(of_factors(other)[domain], of_factors(order)[domain])
    assert (layout("f", (tuple(other),)) is layout("f", (tuple(order),))) == equal


@given(st.lists(EXTENTS, min_size=1, max_size=3), st.data())
def test_regroup_moves_nothing(extents: list[int], data: st.DataObject) -> None:
    """Whatever sizes a view asks for: they are what comes out, and every element stays where it was."""
    stream = [token(f"d{i}", n).whole for i, n in enumerate(extents)]
    sizes = data.draw(cuts(prod(extents), 5)) or [1]
    at = data.draw(st.integers(0, len(sizes)))
    sizes = [*sizes[:at], 1, *sizes[at:]]
    axes = regroup(stream, sizes, {})
    assert axes is not None
    assert [prod(f.extent for f in axis) for axis in axes] == sizes
    moved = [f for axis in layout("f", tuple(axes)).axes for f in axis]
    before, after = of_factors(stream), of_factors(moved)
    for domain in before:
        # a domain of one element may have gone with its axis
        assert np.array_equal(before[domain], after.get(domain, np.zeros(prod(extents), int)))
    again = regroup(moved, extents, {})
    assert again is not None
    restored = of_factors([f for axis in again for f in axis])
    assert same(*({d: i for d, i in of.items() if d.extent != 1} for of in (restored, before)))
    if 1 not in extents and not any(nested(f.domain) for f in moved):
        # where a token domain of one element stands is a matter of taste; for products see the next test
        assert layout("f", tuple(again)) is layout("f", tuple((f,) for f in stream))


@pytest.mark.parametrize(("extents", "sizes"), [((3, 2), (2, 3)), ((2, 3, 8), (8, 2, 3)), ((6, 2), (4, 3))])
def test_sizes_that_cut_across_factors_and_back(extents: tuple[int, ...], sizes: tuple[int, ...]) -> None:
    """[A, B] seen in sizes that neither A nor B divides, and as [A, B] again, is what it was."""
    before = layout("f", tuple((token(f"d{i}", n).whole,) for i, n in enumerate(extents)))
    across = regroup([f for axis in before.axes for f in axis], sizes, {})
    assert across is not None
    back = regroup([f for axis in layout("f", tuple(across)).axes for f in axis], extents, {})
    assert back is not None and layout("f", tuple(back)) is before


@given(st.lists(EXTENTS, min_size=1, max_size=3), st.lists(EXTENTS, min_size=1, max_size=3))
def test_regroup_refuses_sizes_that_do_not_multiply(extents: list[int], sizes: list[int]) -> None:
    assume(prod(extents) != prod(sizes))
    assert regroup([token(f"d{i}", n).whole for i, n in enumerate(extents)], sizes, {}) is None


@given(st.sampled_from([2, 4]), st.sampled_from([1, 2, 3]), st.sampled_from([2, 4]), st.sampled_from([1, 3]))
def test_a_shard_of_features_follows_its_major_digit(p: int, heads: int, width: int, inner: int) -> None:
    """[heads/p * width] seen as [heads/p, width]: the shard counts heads, over all ranks as many as before."""
    total = heads * p * width * inner
    wide, t = feature(total), token("t", 5).whole
    shard, selected = factor(wide, 1, total // p), factor(wide, total // p, p)
    cut = {0: [selected]}
    axes = regroup([t, shard], [5, heads, width * inner], cut)
    assert axes is not None
    (b,) = cut[0]
    assert b.extent == p and b.domain.extent == heads * p
    of = layout("f", tuple(axes), {m: tuple(fs) for m, fs in cut.items()})
    assert of.shape == (5, heads, width * inner)
    back_cut = {m: list(fs) for m, fs in of.bound}
    back = regroup([f for axis in of.axes for f in axis], [5, heads * width * inner], back_cut)
    assert back is not None
    again = layout("f", tuple(back), {m: tuple(fs) for m, fs in back_cut.items()})
    assert again is layout("f", ((t,), (shard,)), {0: (selected,)})


@given(st.integers(1, 24), st.data())
def test_a_range_of_a_range_is_a_range(n: int, data: st.DataObject) -> None:
    t = token("t", n)
    a = data.draw(st.integers(0, n - 1))
    length = data.draw(st.integers(1, n - a))
    b = data.draw(st.integers(0, length - 1))
    rest = data.draw(st.integers(1, length - b))
    outer = ranged(t.whole, a, length)
    inner = ranged(outer.whole, b, rest)
    assert inner is ranged(t.whole, a + b, rest)
    kept = np.arange(n)[a : a + length][b : b + rest]
    start = 0 if inner is t else inner.args[1]
    assert (start, inner.extent) == (kept[0], len(kept))
    assert (inner is t) == (len(kept) == n)


@given(st.integers(1, 12), st.integers(0, 6), st.integers(0, 6))
def test_padding_twice_is_padding_once(n: int, more: int, most: int) -> None:
    t = token("t", n)
    assert padded(padded(t, n + more), n + most) is padded(t, n + most)
    assert (padded(t, n + more) is t) == (more == 0)


@given(st.data())
def test_picks_add_up(data: st.DataObject) -> None:
    t = token("t", 24)
    first, second = (12, 2, data.draw(st.integers(0, 1))), (1, 3, data.draw(st.integers(0, 2)))
    both = pick(pick(t, (first,)), (second,))
    assert both is pick(t, (second, first)) is pick(t, (first, second))
    assert both.extent == 24 // 6 and unpicked(both) == (t, tuple(sorted((first, second), key=str)))
    assert pick(t, ()) is t and unpicked(t) == (t, ())


def test_equal_extents_never_make_equal_domains() -> None:
    t, s = token("t", 8), token("s", 8)
    made = [
        t, s, feature(8), anything(8), variable("x", 0, 8), variable("x", 1, 8), iota(8),
        padded(token("t", 6), 8), padded(token("s", 6), 8), ranged(token("t", 9).whole, 0, 8),
        ranged(token("t", 9).whole, 1, 8), pick(token("t", 16), ((8, 2, 0),)), pick(token("t", 16), ((8, 2, 1),)),
        concatenated(((t.whole,),), 8), flat((token("t", 4).whole, token("s", 2).whole)),
        flat((token("s", 2).whole, token("t", 4).whole)), repeated(token("t", 4).whole, 2, False),
        repeated(token("t", 4).whole, 2, True), permuted((t.whole,), 8, "a"), permuted((t.whole,), 8, "b"),
        routed((t.whole,), (), 8, ""), received(t, (0,), (), 8), opaque("every", 8),
    ]  # fmt: skip
    assert len(set(made)) == len(made)
    assert {d.extent for d in made} == {8}


T = sym("T")


@pytest.mark.parametrize(
    ("domain", "text", "base"),
    [
        (token("t", T), "t", "token"),
        (feature(64), "64", "feature"),
        (anything(3), "3", "any"),
        (variable("x", 1, T), "x.1", "variable"),
        (iota(8), "0..8", "iota"),
        (padded(token("t", T), 4 * cdiv(T, 4)), "pad(t, 4*ceil(T/4))", "token"),
        (ranged(token("t", 16).whole, 0, 4), "prefix(t, 0, 4)", "token"),
        (ranged(token("t", 16).whole, 4, 4), "range(t, 4, 8)", "token"),
        (ranged(factor(token("t", 16), 1, 4), 1, 2), "range(t.minor4, 1, 3)", "token"),
        (ranged(factor(token("t", 16), 4, 4), 1, 2), "range(t.major4, 1, 3)", "token"),
        (pick(token("t", 16), ((4, 4, 3),)), "pick(t, 3 of 4)", "token"),
        (concatenated(((token("t", 3).whole,), ()), 4), "concat(t, 1)", "token"),
        (concatenated(((token("t", 1).whole,),) * 5, 5), "concat(t, t, t, t, ... 5 parts)", "token"),
        (flat((token("t", 3).whole, feature(2).whole)), "t*2", "token"),
        (repeated(token("t", 3).whole, 2, False), "repeat(t, 2)", "token"),
        (permuted((token("t", 3).whole,), 3, "x"), "permuted(t)", "token"),
        (routed((token("t", 3).whole, feature(2).whole), (), 6, ""), "routed(t*2)", "token"),
        (received(token("t", 3), (0,), (), 3), "received(t)", "token"),
        (opaque("every", 3), "every(3)", "opaque"),
    ],
)
def test_domains_say_what_they_are(domain: Domain, text: str, base: str) -> None:
    assert describe(domain) == repr(domain) == text
    assert base_of(domain).kind == base
    assert is_token_like(domain) == (base in ("token", "variable"))
