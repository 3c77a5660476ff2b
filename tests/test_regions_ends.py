"""Repeats at the ends of a region, written out."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import layoutcheck
from layoutcheck.regions import find_regions
from layoutcheck.regions.expand import expand_ends
from layoutcheck.regions.repeats import set_repeats
from layoutcheck.testing import Builder, Decoder, Layers, Value, assert_same_typing, decoders, op_chains
from layoutcheck.testing.chains import Chain

ends = st.tuples(st.integers(0, 3), st.integers(0, 3))


def check(graph: layoutcheck.Graph, wanted: dict[int, tuple[int, int]]) -> layoutcheck.Graph:
    """The graph with these ends written out: one program with the graph, and as many repeats are left as were not taken."""
    before = {r.id: r for r in find_regions(graph)}
    written = expand_ends(graph, wanted)
    assert layoutcheck.equivalent(graph, written)
    assert layoutcheck.equivalent(layoutcheck.expand(graph), written)
    names = [n.name for n in written.nodes]
    assert len(set(names)) == len(names)
    left = {r.id: r.repeats for r in find_regions(written)}
    for number, region in before.items():
        first, last = wanted.get(number, (0, 0))
        kept = region.repeats - first - last
        if region.parent is None:
            assert left.get(number, 1) == (kept if kept > 1 else 1)
    return written


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(op_chains(streams=3, max_repeats=6), ends)
def test_ends_of_random_bodies(chain: Chain, wanted: tuple[int, int]) -> None:
    graph = chain.build("repeated")
    assert_same_typing(check(graph, {r.id: wanted for r in find_regions(graph)}))


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(decoders(max_repeats=5), st.lists(ends, min_size=4, max_size=4))
def test_ends_of_random_decoders(decoder: Decoder, wanted: list[tuple[int, int]]) -> None:
    """Nested regions too, caches that the output reads, several stacks."""
    graph = decoder.build("repeated")
    check(graph, {r.id: wanted[i % 4] for i, r in enumerate(find_regions(graph))})


def test_what_is_left_of_a_folded_region_keeps_its_inputs() -> None:
    graph = layoutcheck.fold(Decoder((Layers("dense", 5),)).build("expanded"))
    (region,) = find_regions(graph)
    written = expand_ends(graph, {region.id: (1, 1)})
    own = written.config["regions"][str(region.id)]["own"]
    assert len(own) == len(graph.config["regions"][str(region.id)]["own"])
    assert set(own) <= {n.name for n in written.nodes}
    assert layoutcheck.equivalent(layoutcheck.fold(layoutcheck.expand(written)), graph)


def test_a_region_of_many_repeats() -> None:
    graph = set_repeats(Decoder((Layers("dense", 2),)).build("repeated"), (1000,))
    written = expand_ends(graph, {0: (2, 1)})
    assert [r.repeats for r in find_regions(written)] == [997]


@pytest.mark.parametrize("carried", [1, 2])
def test_a_nested_region_is_numbered_anew_in_each_repeat(carried: int) -> None:
    def inner(b: Builder, values: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple(b.add(values[-1], b.silu(v)) for v in values)

    def outer(b: Builder, values: tuple[Value, ...]) -> tuple[Value, ...]:
        return b.repeat(inner, tuple(b.silu(v) for v in values), 4)

    b = Builder()
    x = b.input("hidden_states", (b.tokens, 32), layout="[T, 32]")
    graph = b.graph(*b.repeat(outer, tuple([b.silu(x)] * carried), 5))
    first = find_regions(graph)[0]
    written = expand_ends(graph, {first.id: (1, 1)})
    assert sorted(r.repeats for r in find_regions(written)) == [3, 4, 4, 4]
    assert layoutcheck.equivalent(graph, written)
    check(graph, {first.id: (1, 0), find_regions(graph)[1].id: (0, 2)})
