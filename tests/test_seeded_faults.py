"""Random faults in clean graphs are reported, each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from support import engine, shared
from support.builder import DIALECTS, Json
from support.faults import Size
from support.mutate import COLLECTIVE_KINDS, mutations
from support.programs import PROGRAMS, build
from support.slices import SLICE_KINDS

BUILT = [
    pytest.param(name, dialect, size, id=f"{name}-{dialect}-{size.label}")
    for name, (_, sizes) in PROGRAMS.items()
    for dialect in DIALECTS
    for size in sizes
]
FAST = (
    "qwen3_8b_bf16_prefill_expanded4.after.json.gz",
    "qwen3_8b_bf16_prefill_expanded4.before.json.gz",
    "dsv3_bf16_prefill_repeated.before.json.gz",
    "tp_hf_llama_ws4.json.gz",
    "mega_sp_ws4_r0.pt2",
)


def missed(graph: Json, seed: int, limit: int) -> list[str]:
    """Mutations of the graph that the checker says nothing about."""
    silent = []
    clean = {(engine.code(f), f.node) for f in engine.errors(engine.check(graph))}
    for mutation in mutations(graph, seed, limit):
        report = engine.check(mutation.graph)
        if {(engine.code(f), f.node) for f in engine.errors(report)} <= clean:
            silent.append(f"{mutation.kind} at {mutation.node}")
    return silent


@pytest.mark.parametrize("declare", [False, True], ids=["anonymous", "declared"])
@pytest.mark.parametrize(("name", "dialect", "size"), BUILT)
def test_built_program_is_clean(name: str, dialect: str, size: Size, declare: bool) -> None:
    report = engine.check(build(name, dialect, size, declare))
    assert not engine.errors(report), engine.describe(report)


@pytest.mark.parametrize(("name", "dialect", "size"), BUILT)
def test_faults_in_built_program_are_reported(name: str, dialect: str, size: Size) -> None:
    assert not missed(build(name, dialect, size, declare=True), seed=1, limit=10)


@pytest.mark.shared
@pytest.mark.parametrize("name", FAST)
def test_faults_in_reference_graph_are_reported(name: str) -> None:
    assert not missed(shared.load(name), seed=1, limit=6)


@pytest.mark.shared
@pytest.mark.nightly
@pytest.mark.parametrize("name", [n for n in shared.PARALLEL_CLEAN if n not in shared.LARGE])
def test_twenty_faults_in_reference_graph_are_reported(name: str) -> None:
    assert not missed(shared.load(name), seed=2, limit=20)


def test_every_kind_of_fault_is_made() -> None:
    """The programs between them offer sites of each kind."""
    kinds = set()
    for name, (_, sizes) in PROGRAMS.items():
        for dialect in DIALECTS:
            for size in sizes:
                kinds |= {m.kind for m in mutations(build(name, dialect, size), 0, 10_000)}
    assert kinds == {*COLLECTIVE_KINDS, *SLICE_KINDS}


REPLICATED: dict[str, Callable[[list[int]], bool]] = {
    "tensor_parallel": lambda shape: False,
    "sequence_parallel": lambda shape: False,
    "entry_slice": lambda shape: shape == [64, 64],  # attention's weights, with all heads
    "batched": lambda shape: False,
    "expert_parallel": lambda shape: shape == [4, 64],  # the router
}


@pytest.mark.parametrize("size", [Size(), Size("uneven", T=15)], ids=["even", "uneven"])
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_mutations_change_what_is_computed(name: str, dialect: str, size: Size) -> None:
    """Run on four ranks: the clean program agrees on all of them, and no mutation computes the same."""
    pytest.importorskip("torch")
    if name == "batched" and size.pad:
        pytest.skip("a batch is scattered without padding")
    from support import lockstep

    graphs = [build(name, dialect, replace(size, rank=rank)) for rank in range(size.p)]
    clean = lockstep.run(graphs, REPLICATED[name])
    assert all(lockstep.same([clean[0]], [other]) for other in clean)
    ranks = [{(m.kind, m.node): m.graph for m in mutations(g, 0, 10_000, strip=False)} for g in graphs]
    for kind, node in ranks[0]:
        mutated = [mutations_of[kind, node] for mutations_of in ranks if (kind, node) in mutations_of]
        if len(mutated) < size.p:
            continue
        try:
            result = lockstep.run(mutated, REPLICATED[name])
        except (RuntimeError, IndexError, ValueError):
            continue  # shapes that do not fit
        # a whole that is gathered again and then cut back to its first rows is only wasteful: still LC103
        wasteful = kind == "collective-doubled" and "all_gather" in node and size.pad
        assert wasteful or not lockstep.same(clean, result), f"{kind} at {node}"


@pytest.mark.parametrize(("name", "dialect", "size"), BUILT)
def test_mutated_graph_is_another_and_well_formed(name: str, dialect: str, size: Size) -> None:
    graph = build(name, dialect, size)
    for mutation in mutations(graph, 3, 30):
        assert [(n["target"], n["args"]) for n in mutation.graph["nodes"]] != [
            (n["target"], n["args"]) for n in graph["nodes"]
        ]
        seen: set[str] = set()
        for n in mutation.graph["nodes"]:
            assert n["name"] not in seen
            assert set(engine.refs(n)) <= seen
            seen.add(n["name"])
