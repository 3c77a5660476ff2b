"""Kernel formulas: exact counts against brute force, and one meaning for integers, arrays and symbols."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutcheck.cost.algebra import ceil_div, smooth_max
from layoutcheck.cost.compiled import compile_formula
from layoutcheck.cost.hardware import Fit, Hardware, hardware_names, load_hardware
from layoutcheck.cost.kernels import (
    attention,
    elementwise,
    gemm,
    grouped_gemm,
    indexer,
    routing,
    sparse_attention,
)
from layoutcheck.cost.kernels.lengths import causal_keys, limited_keys, limited_pairs
from layoutcheck.errors import InputError

Formula = Callable[[Hardware, Any, Any], Any]

FORMULAS: dict[str, Formula] = {
    "gemm": lambda h, t, p: gemm.time_us(h, ceil_div(t, p), 4096, 7168),
    "gemm int8": lambda h, t, p: gemm.time_us(h, t, ceil_div(4096, p), 7168, "int8"),
    "gemm fp8": lambda h, t, p: gemm.time_us(h, t, 4096, 7168 * p, "float8_e4m3fn", variant="float8_block"),
    "grouped": lambda h, t, p: grouped_gemm.time_us(h, t, 7168, 2048, 8, 256, p),
    "grouped uniform": lambda h, t, p: grouped_gemm.time_us(h, t, 7168, 2048, 8, 256, p, routing="uniform"),
    "grouped skewed": lambda h, t, p: grouped_gemm.time_us(h, t, 7168, 2048, 8, 256, p, routing="skewed"),
    "sparse": lambda h, t, p: sparse_attention.time_us(h, 2, ceil_div(t, p), t, 64),
    "scores": lambda h, t, p: indexer.scores_us(h, p, t, 3 * t, dtype="int8"),
    "topk": lambda h, t, p: indexer.topk_us(h, p, t, 2000 + t),
    "prefill": lambda h, t, p: attention.prefill_us(h, 2, t, 128, 32 * p, 8, 128),
    "window": lambda h, t, p: attention.prefill_us(h, 2, t, 128, 32 * p, 8, 128, window=256),
    "decode": lambda h, t, p: attention.decode_us(h, p, t, 64, 8, 128),
    "latent": lambda h, t, p: attention.decode_us(h, p, t, 64, 1, 576, 512, latent=True),
    "norm": lambda h, t, p: elementwise.norm_us(h, ceil_div(t, p), 7168, residual=True),
    "quantise": lambda h, t, p: elementwise.quantise_us(h, ceil_div(t, p) * 7168),
}


@pytest.mark.parametrize("name", FORMULAS)
@settings(max_examples=12)
@given(
    st.lists(st.tuples(st.integers(1, 40_000), st.sampled_from([1, 2, 4, 8, 16])), min_size=1, max_size=4),
    st.sampled_from(["h100", "ascend-a3", "mi300x"]),
)
def test_integers_arrays_and_symbols_agree(name: str, points: list[tuple[int, int]], hardware: str) -> None:
    machine = load_hardware(hardware)
    formula = FORMULAS[name]
    tokens, ranks = (np.array(c) for c in zip(*points))
    t, p = sympy.symbols("T p", integer=True, positive=True)
    alone = [float(formula(machine, *point)) for point in points]
    together = np.broadcast_to(formula(machine, tokens, ranks), tokens.shape)
    compiled = compile_formula(formula(machine, t, p))
    assert compiled.inexact_ceilings == 0
    assert together == pytest.approx(alone, rel=1e-12)
    symbolic = np.broadcast_to(compiled(T=tokens, p=ranks)["value"], tokens.shape)
    assert symbolic == pytest.approx(alone, rel=1e-12)


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("hardware", hardware_names())
def test_times_are_positive_and_grow_by_a_factor_with_much_more_work(name: str, hardware: str) -> None:
    machine = load_hardware(hardware)
    small, large = (float(FORMULAS[name](machine, t, 1)) for t in (64, 64 * 1024))
    assert small > 0
    assert large > 2 * small


@given(st.integers(1, 60), st.integers(0, 80), st.integers(1, 90))
def test_pairs_are_those_that_a_loop_counts(new: int, cached: int, limit: int) -> None:
    pairs = sum(min(cached + i + 1, limit) for i in range(new))
    assert limited_pairs(new, cached, limit) == 2 * pairs
    assert limited_keys(new, cached, limit) == pytest.approx(pairs / new)
    assert causal_keys(new, cached) == sum(cached + i + 1 for i in range(new)) / new


def test_products_count_what_they_move() -> None:
    work = gemm.work(3, 5, 7)
    assert (work.flops, work.read, work.write) == (2 * 3 * 5 * 7, 2 * (3 * 7 + 5 * 7), 2 * 3 * 5)
    assert gemm.work(3, 5, 7, "int8").read == 3 * 7 + 5 * 7
    assert gemm.work(3, 5, 7, "int4").read == -(-21 // 2) + -(-35 // 2)
    with pytest.raises(InputError, match="no size is known for the data type 'int3'"):
        gemm.work(3, 5, 7, "int3")


def test_attention_counts_its_pairs_once() -> None:
    dense = attention.prefill_work(2, 8, 4, heads=3, kv_heads=1, dim=16)
    pairs = 2 * sum(4 + i + 1 for i in range(8))
    assert dense.flops == pairs * 3 * 2 * (16 + 16)
    windowed = attention.prefill_work(2, 8, 4, heads=3, kv_heads=1, dim=16, window=5)
    assert windowed.flops == 2 * sum(min(4 + i + 1, 5) for i in range(8)) * 3 * 64
    latent = attention.decode_work(2, 100, heads=16, kv_heads=1, dim=576, v_dim=512, latent=True)
    assert latent.read == 2 * 100 * 576 * 2 + 2 * 2 * 16 * 576
    sparse = sparse_attention.work(1, 4096, 0, heads=64)
    keys = sum(min(i + 1, 2048) for i in range(4096))
    assert sparse.flops == keys * 64 * 2 * (576 + 512)


def test_sparse_attention_does_not_see_the_context_beyond_its_top_k() -> None:
    machine = load_hardware("h100")
    times = {sparse_attention.time_us(machine, 1, 1024, c, 64) for c in (2048, 8192, 131072)}
    assert len(times) == 1
    assert sparse_attention.time_us(machine, 1, 1024, 2048, 4) in times  # few heads cost as much as 64
    local = sparse_attention.time_us(machine, 1, 1024 // 8, 2048, 64)
    assert local < times.pop() / 6


def test_scores_of_local_queries_are_cheaper_but_keys_are_all_read() -> None:
    machine = load_hardware("h200")
    full = indexer.scores_us(machine, 1, 4096, 0)
    local = indexer.scores_us(machine, 1, 256, 4096 - 256)
    assert local < full / 4
    side = indexer.query_side_us(machine, 1, 4096, 0, hidden=6144, q_rank=2048)
    assert set(side) == {"projection", "weights", "quantise", "scores", "topk"}
    assert side["scores"] == full
    cache = indexer.cache_side_us(machine, 4096, hidden=6144)
    assert sum(cache.values()) < side["scores"]


def test_no_top_k_where_every_key_is_kept() -> None:
    machine = load_hardware("h100")
    assert indexer.topk_us(machine, 4, 1024, 1024) == 0
    assert indexer.topk_us(machine, 4, 1024, 1025) > 0
    # only the second half of these queries has more than 2048 keys before it
    half = indexer.topk_us(machine, 4, 2048, 1024)
    assert half < indexer.topk_us(machine, 4, 2048, 2048)


def test_quantising_is_left_out_where_the_graph_has_it_as_an_op() -> None:
    machine = load_hardware("ascend-a3")
    both = gemm.time_us(machine, 4096, 4096, 4096, "int8")
    alone = gemm.time_us(machine, 4096, 4096, 4096, "int8", quantise=False)
    assert alone < both
    assert gemm.time_us(machine, 4096, 4096, 4096, quantise=False) == gemm.time_us(machine, 4096, 4096, 4096)


@given(st.integers(1, 300), st.integers(1, 8), st.sampled_from([8, 64, 256]), st.sampled_from([1, 2, 8]))
def test_balanced_routing_deals_round_robin(tokens: int, topk: int, experts: int, ep: int) -> None:
    load = routing.load(tokens, topk, experts, ep)
    dealt = [0] * experts
    for copy in range(tokens * topk):  # rank first, then expert
        dealt[(copy % ep) * (experts // ep) + (copy // ep) % (experts // ep)] += 1
    first = dealt[: experts // ep]
    assert load.rows == sum(first)
    assert load.experts == sum(count > 0 for count in first)


def test_uniform_routing_hits_as_many_experts_as_drawing_does() -> None:
    rng = np.random.default_rng(0)
    hit = np.mean([len(set(rng.integers(0, 32, 40))) for _ in range(4000)])
    found = routing.load(40, 1, 32, 1, "uniform")
    assert found.experts == pytest.approx(hit, rel=0.01)


def test_skewed_routing_loads_the_fullest_rank_more_and_hits_fewer() -> None:
    even = routing.load(512, 8, 256, 16)
    skewed = routing.load(512, 8, 256, 16, "skewed")
    assert skewed.rows > even.rows
    assert skewed.experts < even.experts
    assert routing.load(512, 8, 256, 1, "skewed").rows == 512 * 8
    with pytest.raises(InputError, match="no routing is called 'random'"):
        routing.load(1, 1, 8, 1, "random")


def test_experts_that_are_not_hit_are_not_read() -> None:
    few = grouped_gemm.work(1, 7168, 2048, 8, 256)
    all_of_them = grouped_gemm.work(4096, 7168, 2048, 8, 256)
    expert = 3 * 7168 * 2048 * 2
    assert few.read == 8 * expert + 8 * 7168 * 2
    assert all_of_them.read == 256 * expert + 4096 * 8 * 7168 * 2
    assert few.flops == 8 * 2 * 3 * 7168 * 2048


@pytest.mark.parametrize(("knee", "want"), [(1, 7.0), (2, 5.0), (4, (3**4 + 4**4) ** 0.25)])
def test_knees(knee: int, want: float) -> None:
    assert smooth_max(3.0, 4.0, knee) == pytest.approx(want)
    with pytest.raises(ValueError, match="a knee is 1, 2 or 4"):
        smooth_max(1, 1, 3)


STRUCTURES = [
    {},
    {"rows": [128], "knee": 4},
    {"rows": [16, 32, 48, 64], "full": 90},
    {"columns": 256, "full": 100},
]


@pytest.mark.parametrize("structure", STRUCTURES, ids=lambda s: "-".join(s) or "default")
@given(
    tokens=st.integers(1, 20_000),
    ep=st.sampled_from([1, 2, 8, 64, 256]),
    topk=st.integers(1, 16),
    routing=st.sampled_from(["balanced", "uniform", "skewed"]),
)
@settings(max_examples=20, deadline=None)
def test_grouped_products_by_tile_are_one_formula(
    structure: dict[str, Any], tokens: int, ep: int, topk: int, routing: str
) -> None:
    machine = load_hardware("h200")
    fit = Fit({"compute": 0.5, "prologue": 0.2, "sort": 0.3, "elsewhere": 4.0}, structure)

    def at(count: Any) -> Any:
        return grouped_gemm.time_us(
            machine, count, 7168, 2048, topk, 256, ep, fit=fit, routing=routing, gated=True
        )

    size = sympy.Symbol("T", integer=True, positive=True)
    assert at(np.array([tokens])) == pytest.approx([at(tokens)])
    assert float(compile_formula(at(size))(T=tokens)["value"]) == pytest.approx(at(tokens))


def test_a_tile_by_the_share_of_all_copies_is_mostly_padding_with_many_ranks() -> None:
    """4096 copies over 4 of 256 experts look like 1024 rows an expert, where 16 come."""
    machine = load_hardware("h200")
    constants = {"compute": 0.02, "memory": 1.0, "launch": 0.1, "prologue": 0.01}
    blind, free = (
        grouped_gemm.time_us(machine, 512, 7168, 2048, 8, 256, 64, fit=Fit(constants, structure))
        for structure in ({"full": 100}, {})
    )
    assert blind > 6 * free  # a tile of 128 rows for 16
    alone = [
        grouped_gemm.time_us(machine, 512, 7168, 2048, 8, 256, fit=Fit(constants, structure))
        for structure in ({"full": 100}, {})
    ]
    assert alone[0] == pytest.approx(alone[1])


def test_copies_of_other_ranks_cost_what_the_kernel_spends_on_them() -> None:
    machine = load_hardware("h200")
    without, spent = (
        grouped_gemm.time_us(machine, 512, 7168, 2048, 8, 256, 64, fit=Fit(constants))
        for constants in ({}, {"elsewhere": 4.0})
    )
    assert spent - without == pytest.approx(4.0 * (512 * 8 - 64) * 2048 / machine.bandwidth)
    at_one = [
        grouped_gemm.time_us(machine, 512, 7168, 2048, 8, 256, fit=Fit(c)) for c in ({}, {"elsewhere": 4.0})
    ]
    assert at_one[0] == at_one[1]
