"""Folding stacks whose layers are nearly alike: which layer is another one, and bodies of several layers whose calls are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from layoutcheck.graph import Graph
from layoutcheck.regions import expand, find_regions, fold
from layoutcheck.testing import Builder, Value, assert_equivalent, assert_same_typing

NORM = "tensor_cast.rms_norm.default"
Layer = Callable[[Builder, Value, int], Value]


def stack(layer: Layer, layers: int = 6) -> Graph:
    """Layers on rows of one rank, written out."""
    b = Builder(expanded=True)
    x = b.input("hidden_states", (16, 32))
    for number in range(layers):
        b.module = f"layers.{number}"
        x = layer(b, x, number)
    return b.graph(x)


def mlp(
    b: Builder, x: Value, inner: int = 8, eps: float = 1e-6, dtype: str | None = None, factor: Any = 1.0
) -> Value:
    """A residual block; `dtype` is that of its norm's weight, and its result is multiplied by `factor`."""
    rows = b.call(NORM, x, b.input("w", (32,), dtype), eps, shape=x.shape)
    out = b.all_reduce(b.linear(b.silu(b.linear(rows, inner)), 32))
    return b.add(x, b.call("aten.mul.Tensor", out, factor, shape=x.shape))


def repeats(graph: Graph) -> list[int]:
    """The regions of the folded graph, which is the same program, as is what it expands to."""
    folded = fold(graph)
    assert_equivalent(folded, graph)
    again = fold(expand(folded))
    assert [n.target for n in again.nodes] == [n.target for n in folded.nodes]
    if folded is not graph:
        assert_same_typing(folded)
    return [region.repeats for region in find_regions(folded)]


@pytest.mark.parametrize(
    "odd",
    [{"inner": 16}, {"eps": 1e-5}, {"dtype": "float32"}, {"factor": 2.0}, {"factor": 1}, {"factor": -1.0}],
    ids=str,
)
@pytest.mark.parametrize(
    ("at", "wanted"), [(0, [5]), (2, [2, 3]), (3, [3, 2]), (5, [5])], ids=["first", "third", "fourth", "last"]
)
def test_a_layer_that_is_not_like_the_others_is_left_out(
    odd: dict[str, Any], at: int, wanted: list[int]
) -> None:
    assert repeats(stack(lambda b, x, n: mlp(b, x, **(odd if n == at else {})))) == wanted


@pytest.mark.parametrize(("one", "other"), [(1, True), (0.0, -0.0), (1.0, 1)], ids=str)
def test_constants_that_compare_equal_are_not_the_same(one: Any, other: Any) -> None:
    assert repeats(stack(lambda b, x, n: mlp(b, x, factor=one if n < 3 else other))) == [3, 3]


@pytest.mark.parametrize("period", [2, 3, 6, 8])
def test_a_body_of_layers_that_differ_in_a_width(period: int) -> None:
    graph = stack(lambda b, x, n: mlp(b, x, 16 if n % period == period - 1 else 8), 3 * period)
    assert repeats(graph) == [3]


@pytest.mark.parametrize("period", [2, 6])
def test_a_body_of_layers_that_read_two_masks_in_turn(period: int) -> None:
    """Sliding and full attention: the calls are the same, and only what they read tells the layers apart."""
    masks: list[Value] = []

    def layer(b: Builder, x: Value, number: int) -> Value:
        if not masks:
            masks.extend(b.input(f"mask_{i}", (16, 32)) for i in range(2))
        return b.add(x, b.multiply(b.norm(x), masks[number % period == period - 1]))

    assert repeats(stack(layer, 4 * period)) == [4]


def test_tables_and_weights_that_all_layers_share() -> None:
    shared: list[Value] = []

    def layer(b: Builder, x: Value, number: int) -> Value:
        if not shared:
            shared.extend((b.input("table", (16, 32)), b.input("tied", (32,))))
        return b.add(x, b.multiply(b.call(NORM, x, shared[1], 1e-6, shape=x.shape), shared[0]))

    assert repeats(stack(layer)) == [6]


def test_a_weight_that_two_layers_share() -> None:
    """Layers 0 and 1 share one, 2 and 3 the next: a body of two layers."""
    weights: list[Value] = []

    def layer(b: Builder, x: Value, number: int) -> Value:
        if number % 2 == 0:
            weights.append(b.input("shared", (32,)))
        return b.add(x, b.silu(b.call(NORM, x, weights[-1], 1e-6, shape=x.shape)))

    assert repeats(stack(layer)) == [3]


def test_a_value_that_is_handed_on_unchanged() -> None:
    """Each layer reads what two layers before it gave: two layers hand on two values that they compute."""
    before: list[Value] = []

    def layer(b: Builder, x: Value, number: int) -> Value:
        before.append(x)
        return b.add(mlp(b, x), before[number - 1 if number else 0])

    assert repeats(stack(layer, 8)) in ([3], [4])


def test_values_that_change_places() -> None:
    b = Builder(expanded=True)
    x = b.input("hidden_states", (16, 32))
    y = b.silu(x)
    for _ in range(6):
        x, y = mlp(b, y), x
    assert repeats(b.graph(x, y)) == [3]


def test_a_layer_whose_value_is_read_from_behind_ends_a_region() -> None:
    b = Builder(expanded=True)
    x = b.input("hidden_states", (16, 32))
    seen = []
    for _ in range(6):
        x = mlp(b, x)
        seen.append(x)
    assert repeats(b.graph(x, b.silu(seen[2]))) == [3, 3]


def test_layers_whose_constants_count_them_are_not_alike() -> None:
    assert repeats(stack(lambda b, x, n: mlp(b, x, factor=float(n)))) == []


def test_weights_that_lie_across_two_layers_are_not_folded() -> None:
    weights: list[Value] = []

    def layer(b: Builder, x: Value, number: int) -> Value:
        weights.append(b.input("w", (32,)))
        read = [b.call(NORM, x, w, 1e-6, shape=x.shape) for w in (weights[max(number - 1, 0)], weights[-1])]
        return b.add(x, b.add(*read))

    assert repeats(stack(layer)) == []
