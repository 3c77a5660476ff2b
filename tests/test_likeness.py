"""Places of weights: those of a body's weight are those of the same weight in each repeat, written out."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given, settings

import layoutcheck
from layoutcheck.graph import Graph
from layoutcheck.infer.solver.analysis import Analysis, analyse
from layoutcheck.infer.solver.likeness import places_of
from layoutcheck.regions import expand
from layoutcheck.regions.expand import Origins
from layoutcheck.testing import Decoder, Layers, assert_same_typing, decoders, op_chains
from layoutcheck.testing.chains import Chain


def places(analysis: Analysis) -> dict[str, set[Any]]:
    """Places by name of the weight, ops by their targets instead of their numbers."""
    p, plan = analysis.program, analysis.plan
    weights = {v: meta for v, meta in plan.metas.items() if plan.roles[v] == "weight"}
    found: dict[str, set[Any]] = {}
    for value, (shape, dtype, path, *rest) in places_of(p, analysis.solution.typing.types, weights):
        ops = tuple((p.instances[op].target, slot) for op, slot in path)
        found.setdefault(p.name_of(value), set()).add((shape, dtype, ops, *rest))
    return found


def hold(graph: Graph) -> None:
    origins = Origins()
    expanded = places(analyse(expand(graph, origins=origins)))
    wanted: dict[str, set[Any]] = {}
    for name, found in expanded.items():
        origin = origins.of[name][0] if name in origins.of else name
        wanted.setdefault(origin, set()).update(found)
    assert places(analyse(graph)) == wanted


@settings(max_examples=150, deadline=None)
@given(op_chains(streams=2, max_repeats=9))
def test_places_in_chains(chain: Chain) -> None:
    hold(chain.build("repeated"))


@settings(max_examples=30, deadline=None)
@given(decoders(max_repeats=8))
def test_places_in_decoders(decoder: Decoder) -> None:
    hold(decoder.build("repeated"))


def test_places_in_nested_bodies() -> None:
    stack = (Layers("dense", 2), Layers("reuse", 3, period=4, nested=True))
    hold(Decoder(stack, carried="state", mtp=True).build("repeated"))


STEPS = ("silu", "linear", "columns", "all_reduce", "columns", "reduce_scatter", "linear", "all_gather")
FROM_LOCAL = (
    *("all_gather", "columns", "all_reduce", "silu", "columns", "reduce_scatter"),
    *("all_gather", "columns", "reduce_scatter"),
)


@pytest.mark.parametrize("repeats", [2, 3, 9])
@pytest.mark.parametrize(
    "chain",
    [Chain(STEPS, drop=3, residual=False), Chain(FROM_LOCAL, drop=2, local=True, residual=False)],
    ids=["full", "local"],
)
def test_a_dropped_reduction_that_only_later_repeats_show(chain: Chain, repeats: int) -> None:
    """What lies before the first repeat is not what lies before the others, where the weights stand as cut ones do."""
    graph = attrs.evolve(chain, repeats=repeats).build("repeated")
    assert_same_typing(graph, layouts=False)
    assert "LC201" in {f.code for f in layoutcheck.check(graph).findings}
