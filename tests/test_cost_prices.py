"""Prices of single ops and conversions: the same as a whole graph's terms, and bytes over rates."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layoutcheck.cost.collectives import time_us
from layoutcheck.cost.evaluate import time_graph
from layoutcheck.cost.hardware import load_hardware
from layoutcheck.cost.lift import lift
from layoutcheck.cost.model_cost import analysed_step
from layoutcheck.cost.prices import KINDS, ByteRates, HardwarePrices, Prices
from layoutcheck.errors import InputError
from layoutcheck.models.read import load_model
from layoutcheck.models.step import step_for
from layoutcheck.program import CALL

SIZES = st.integers(1, 2**32)
RANKS = st.sampled_from([2, 4, 8, 16])


@pytest.mark.parametrize(
    ("model", "contract"), [("llama-3.1-8b", "sequence-parallel"), ("glm-5.1", "dsa-cp-query-local")]
)
@pytest.mark.parametrize("hardware", ["h200", "ascend-a3"])
def test_ops_cost_what_a_graphs_terms_cost(model: str, contract: str, hardware: str) -> None:
    config = load_model(model)
    step = step_for(config, contract=contract, tp=4, dp=1, decode=False, sequences=1)
    analysis = analysed_step(config, step)
    program, types = analysis.program, analysis.solution.typing.types
    cost = lift(analysis, indexer_queries="full")
    values = {"T": step.tokens, "context": 0}
    machine = load_hardware(hardware)
    by_call: dict[int, float] = defaultdict(float)
    for timed in time_graph(cost, machine, values).timed:
        by_call[timed.term.call] += timed.entry.us / 1e6
    prices: Prices = HardwarePrices(machine, mesh=analysis.mesh, values=values)
    priced = 0
    for k, kind in enumerate(program.kind):
        if kind == CALL and k in by_call:
            inputs = [types[v] for v in program.inputs[k]]
            outputs = [types[v] for v in range(program.first[k], program.first[k] + program.outs[k])]
            found = prices.op(program.instances[program.op[k]], inputs, outputs)
            assert found == pytest.approx(by_call[k], rel=1e-12), program.nodes[k].name
            priced += 1
    assert priced > 20


@given(SIZES, RANKS)
def test_bytes_over_a_rate(held: int, ranks: int) -> None:
    rates = ByteRates(link=1e9, memory=4e9)
    price = {kind: rates.collective(kind, held, ranks) * 1e9 for kind in KINDS}
    assert price["all_gather"] == pytest.approx(held * (ranks - 1))
    assert price["reduce_scatter"] == price["all_to_all"] == pytest.approx(held * (ranks - 1) / ranks)
    assert price["all_reduce"] == pytest.approx(2 * price["reduce_scatter"])
    assert price["pad"] == pytest.approx(held / 2)
    assert price["slice"] == price["unpad"] == 0


@given(SIZES, RANKS, st.sampled_from(["ascend-a3", "h200", "mi300x"]))
def test_hardware_takes_whole_buffers(held: int, ranks: int, name: str) -> None:
    machine = load_hardware(name)
    prices = HardwarePrices(machine)
    nodes = machine.node.ranks
    if ranks > nodes and ranks % nodes:
        return
    assert prices.collective("all_gather", held, ranks) * 1e6 == pytest.approx(
        time_us(machine, "all_gather", held * ranks, ranks)
    )
    both = sum(
        prices.collective(kind, size, ranks)
        for kind, size in (("reduce_scatter", held * ranks), ("all_gather", held))
    )
    assert prices.collective("all_reduce", held * ranks, ranks) <= both * (1 + 1e-12)


@pytest.mark.parametrize("prices", [ByteRates(), HardwarePrices(load_hardware("h100"))])
def test_one_rank_costs_nothing_and_other_words_are_refused(prices: Prices) -> None:
    assert all(prices.collective(kind, 10**9, 1) == 0 for kind in KINDS)
    with pytest.raises(InputError, match="no conversion is called 'scatter'; there are all_gather,"):
        prices.collective("scatter", 1, 2)
