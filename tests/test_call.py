"""A rule applied to one call: arguments as rules see them, and random einsums against numpy on every rank."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.indices import call, coordinates, mesh_of, number

from layoutcheck.arguments import Hole
from layoutcheck.domains import Domain, factor, feature, token
from layoutcheck.graph import DtypeArg
from layoutcheck.infer.calls.call import (
    Call,
    Context,
    Issue,
    Result,
    dim_of,
    slots_in,
)
from layoutcheck.layouts import Layout, layout, state_of, whole
from layoutcheck.rules.parser import parse
from layoutcheck.rules.types import Rule
from layoutcheck.symbols import sym

MESH = mesh_of(tp=2, cp=2)
DOMAINS: dict[str, Domain] = {
    "t": token("t", 8),
    "s": token("s", 4),
    "h": feature(12),
    "k": feature(20),
    "n": feature(28),
}


def rule(text: str) -> Rule:
    (found,) = parse(text, "test.rules")
    return found


def axis_layout(
    labels: str, cuts: dict[int, str], partial: tuple[int, ...] = (), dtype: str = "float32"
) -> Layout:
    """A tensor with these axes; `cuts` says which label's axis a mesh axis cuts (into two)."""
    axes, bound = [], {}
    for label in labels:
        domain = DOMAINS[label]
        stride = number(domain.extent)
        for m in (0, 1):
            if cuts.get(m) == label:
                stride //= 2
                bound[m] = (factor(domain, stride, 2),)
        axes.append((factor(domain, 1, stride),))
    return layout(dtype, tuple(axes), bound, partial)


def block(value: Any, labels: str, cuts: dict[int, str], at: dict[int, int]) -> Any:
    """This rank's block of a whole array: mesh axis 0 cuts first."""
    for m in (0, 1):
        if cuts.get(m) in tuple(labels):
            axis = labels.index(cuts[m])
            value = np.split(value, 2, axis)[at[m]]
    return value


def cuts_of(of: Layout, labels: str) -> dict[int, str]:
    """Which label each mesh axis cuts, by what a layout claims."""
    found = {}
    for m, fs in of.bound:
        (b,) = fs
        found[m] = next(label for label in labels if DOMAINS[label] is b.domain)
    return found


@st.composite
def einsums(draw: st.DrawFn) -> tuple[str, str, str]:
    """Labels of two operands and of the result, each at most once a tensor."""
    x = "".join(draw(st.permutations("tshkn"))[: draw(st.integers(1, 3))])
    y = "".join(draw(st.permutations("tshkn"))[: draw(st.integers(1, 3))])
    both = sorted(set(x + y))
    out = "".join(draw(st.permutations(both))[: draw(st.integers(1, len(both)))])
    return x, y, out


def einsum(x: str, y: str, out: str) -> Rule:
    spaced = (" ".join(labels) for labels in (x, y, out))
    return rule("my.op(x, y)\n    x: {}, y: {} -> {}\n    linear x y\n".format(*spaced))


def values(x: str, y: str, seed: int) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    return tuple(random.integers(-4, 5, [number(DOMAINS[c].extent) for c in labels]) for labels in (x, y))  # type: ignore[return-value]


def parts(value: Any, partial: tuple[int, ...], at: dict[int, int], seed: int) -> Any:
    """This rank's summand of a pending sum over mesh axes: random ones, the last makes up the rest."""
    for m in partial:
        noise = np.random.default_rng(seed + m).integers(-9, 10, value.shape)
        value = noise if at[m] == 0 else value - noise
    return value


@settings(max_examples=150)
@given(einsums(), st.tuples(*[st.sampled_from([None, "t", "s", "h", "k", "n"])] * 2), st.integers(0, 9))
def test_one_label_a_group_gives_the_states_that_algebra_gives(
    labels: tuple[str, str, str], over: tuple[str | None, str | None], seed: int
) -> None:
    """Each mesh axis cuts one label wherever that stands: a kept label stays cut, a summed one leaves a pending sum."""
    x, y, out = labels
    cuts = {m: label for m, label in enumerate(over) if label is not None and label in x + y}
    result = call(MESH, einsum(*labels), axis_layout(x, cuts), axis_layout(y, cuts))
    assert not result.issues and not [w for w in result.wants if w.issue is not None]
    pending = tuple(m for m, label in cuts.items() if label not in out)
    kept = {m: label for m, label in cuts.items() if label in out}
    assert result.outs == (axis_layout(out, kept, pending),)
    check_denotes(labels, (cuts, ()), (cuts, ()), result.outs[0], seed)


STATES = st.tuples(*[st.sampled_from(["full", "partial", "t", "s", "h", "k", "n"])] * 2)


@settings(max_examples=300)
@given(einsums(), STATES, STATES, st.integers(0, 9))
def test_what_passes_denotes_the_result(
    labels: tuple[str, str, str], left: tuple[str, str], right: tuple[str, str], seed: int
) -> None:
    """Operands in any two states: where nothing is wrong the ranks' results make up the whole one, as claimed."""
    x, y, _ = labels
    states = []
    for own, words in ((x, left), (y, right)):
        cuts = {m: word for m, word in enumerate(words) if word in tuple(own)}
        states.append((cuts, tuple(m for m, word in enumerate(words) if word == "partial")))
    result = call(MESH, einsum(*labels), axis_layout(x, *states[0]), axis_layout(y, *states[1]))
    if result.issues or any(w.issue is not None for w in result.wants):
        return
    (claim,) = result.outs
    if any(state_of(claim, m) == "Mixed" for m in (0, 1)) or two_sums(labels, states):
        return
    check_denotes(labels, states[0], states[1], claim, seed)


def two_sums(labels: tuple[str, str, str], states: list[Any]) -> bool:
    """Whether each operand is summed over an axis of its own that is cut over the same group (see the next test)."""
    out = labels[2]
    (left, _), (right, _) = states
    both = set(left) & set(right)
    return any(left[m] != right[m] and left[m] not in out and right[m] not in out for m in both)


def test_two_sums_of_one_group() -> None:
    """sum_t x * sum_s y with t and s cut over tp: the ranks' products do not add up to the product of the sums."""
    result = call(MESH, einsum("th", "s", "h"), axis_layout("th", {0: "t"}), axis_layout("s", {0: "s"}))
    assert result.issues


def check_denotes(labels: tuple[str, str, str], left: Any, right: Any, claim: Layout, seed: int) -> None:
    x, y, out = labels
    formula = f"{x},{y}->{out}"
    whole_x, whole_y = values(x, y, seed)
    expected = np.einsum(formula, whole_x, whole_y)
    cuts = cuts_of(claim, out)
    total: dict[tuple[int, ...], Any] = {}
    for at in coordinates(MESH):
        mine = [
            parts(block(value, own, state[0], at), state[1], at, seed)
            for value, own, state in ((whole_x, x, left), (whole_y, y, right))
        ]
        got = np.einsum(formula, *mine)
        place = tuple(c if m not in claim.partial else -1 for m, c in at.items())
        total[place] = total.get(place, 0) + got
    for place, got in total.items():
        at = {m: max(c, 0) for m, c in enumerate(place)}
        assert np.array_equal(got, block(expected, out, cuts, at)), (labels, left, right, claim)


MANY = rule(
    "my.op(x, w, b=None, dims=[0, 1], flag=False, dtype=None)\n    code slice self=x amount=3 on=true name=tail\n"
    "    outdtype dtype\n"
)


def bound_call(*slots: Any, **literals: Any) -> Call:
    params = MANY.bind([Hole(i) for i in range(len(slots))], literals)
    return Call(Context(MESH, None), MANY, params, slots)


X, W = axis_layout("th", {0: "t"}), whole("float32", (4,))


def test_arguments_as_a_rule_sees_them() -> None:
    of = bound_call(X, 7, flag=True)
    assert of.name("self") == "x" and of.name("w") == "w"
    assert of.has("self") and of.has("b") and of.has("amount") and not of.has("other")
    assert of.raw("self") == Hole(0) and of.raw("other") is None
    assert of.get("self") is X and of.get("w") == 7 and of.get("b", 5) == 5 and of.get("flag") is True
    assert of.get("amount") == 3 and of.get("on") is True and of.get("name") == "tail"
    assert of.slot("self") == 0 and of.slot("b") == -1 and of.slot("flag") == -1
    assert of.tensor("self") is X and of.tensor("w") is None and of.tensor("b") is None


def test_lists_of_arguments_are_filled_and_walked() -> None:
    params = MANY.bind([Hole(0), Hole(2)], {"dims": (Hole(1), 3, (Hole(0),))})
    of = Call(Context(MESH, None), MANY, params, (X, sym("T"), W))
    assert of.get("dims") == [sym("T"), 3, [X]]
    assert list(of.tensors()) == [("x", 0, X), ("w", 2, W), ("dims", 0, X)]
    assert list(slots_in(params["dims"])) == [1, 0]


def test_issues_and_wants_are_in_the_answer() -> None:
    of = bound_call(X, W)
    assert of.result(W) == Result((W,)) and of.result(W).quiet
    issue = of.issue("LC101", "{0} and {1}", 0, -1, 1, hints=("drop",))
    assert issue.operands == (0, 1) and issue.hints == ("drop",)
    of.want("cut", 1, Issue("LC205", "differs"), axis=1, mesh_axes=(0,))
    result = of.result(X, W, mutated={0: X})
    assert result.outs == (X, W) and result.issues == (issue,) and result.mutated == {0: X}
    (want,) = result.wants
    assert (want.kind, want.slot, want.axis, want.mesh_axes, want.inner) == ("cut", 1, 1, (0,), 1)
    assert not result.quiet


def test_the_dtype_of_an_output() -> None:
    assert bound_call(X, W).dtype("float32") == "float32"
    assert bound_call(X, W, dtype=DtypeArg("int8")).dtype("float32") == "int8"
    assert bound_call(X, W, dtype=DtypeArg("int8")).dtype("float32", 1) == "float32"
    fixed = rule("my.op(x)\n    x: t.. -> t.., t..\n    outdtype x int64\n")
    of = Call(Context(MESH, None), fixed, {"x": Hole(0)}, (axis_layout("t", {}, dtype="int8"),))
    assert (of.dtype("bfloat16"), of.dtype("bfloat16", 1)) == ("int8", "int64")


@given(st.integers(-6, 6), st.integers(0, 4))
def test_dimensions_count_from_either_end(value: int, rank: int) -> None:
    of = bound_call(X, value)
    expected = list(range(rank))[value] if -rank <= value < rank else -1
    assert dim_of(of, "w", rank) == expected
    # without axes there is none to be out of range of
    assert [i.code for i in of.issues] == (["LC903"] if expected < 0 and rank else [])


@pytest.mark.parametrize("value", [None, True, X, "t"])
def test_what_is_no_dimension(value: Any) -> None:
    assert dim_of(bound_call(X, value), "w", 2) == -1
    assert dim_of(bound_call(X, None), "w", 2, default=-1) == 1


def test_the_context_names_groups() -> None:
    ctx = Context(MESH, None)
    assert (ctx.group((0,)), ctx.group((1,)), ctx.ways((0, 1)), ctx.ways(())) == ("tp", "cp", 4, 1)
    assert ctx.show(X) == "f32[t/2@tp, 12]"
    assert prod(map(number, X.shape)) == 4 * 12


def test_axes_that_do_not_matter_neither_hide_the_others_nor_hand_their_shards_on() -> None:
    """`*` on an operand: the other labels bind, and heads over which a sum is taken inside may be sharded."""
    scores = rule("my.pick(q, w, n)\n    q: t * d!, w: t * -> t k=n\n    outdtype int64\n")
    for cuts, shape in (({0: "t"}, (4, 3)), ({0: "h"}, (8, 3)), ({0: "t", 1: "h"}, (4, 3))):
        result = call(MESH, scores, axis_layout("thk", cuts), axis_layout("th", cuts), 3)
        assert not result.issues and not result.wants, cuts
        (out,) = result.outs
        assert isinstance(out, Layout) and out.shape == shape and out.dtype == "int64"
        assert [state_of(out, m) for m in (0, 1)] == [
            "Local" if cuts.get(m) == "t" else "Full" for m in (0, 1)
        ]
