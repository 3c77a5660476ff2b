"""Random faults in clean graphs are reported, each of them."""

from __future__ import annotations

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
    for mutation in mutations(graph, seed, limit):
        report = engine.check(mutation.graph)
        if not engine.errors(report):
            silent.append(f"{mutation.kind} at {mutation.node}")
    return silent


@pytest.mark.parametrize(("name", "dialect", "size"), BUILT)
def test_built_program_is_clean(name: str, dialect: str, size: Size) -> None:
    report = engine.check(build(name, dialect, size))
    assert not engine.errors(report), engine.describe(report)


@pytest.mark.parametrize(("name", "dialect", "size"), BUILT)
def test_faults_in_built_program_are_reported(name: str, dialect: str, size: Size) -> None:
    assert not missed(build(name, dialect, size), seed=1, limit=10)


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
