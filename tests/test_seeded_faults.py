"""Random faults in clean graphs are reported, each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from support import engine, shared
from support.builder import DIALECTS, GraphBuilder, Json
from support.faults import SIZES, Size
from support.messages import full
from support.mutate import COLLECTIVE_KINDS, mutations
from support.programs import PROGRAMS, build
from support.seeding import ERROR, MISSED, WARNING, WEIGHTS, examined, verdict, verdicts
from support.slices import SLICE_KINDS

BUILT = [
    pytest.param(name, dialect, size, id=f"{name}-{dialect}-{size.label}")
    for name, (_, sizes) in PROGRAMS.items()
    for dialect in DIALECTS
    for size in sizes
]
ANONYMOUS = [pytest.param(name, dialect, id=f"{name}-{dialect}") for name in PROGRAMS for dialect in DIALECTS]
REFERENCE = [name for name in shared.PARALLEL_CLEAN if name not in shared.LARGE]
# Only a dropped reduction leaves a program that is right for whole weights, and only what was dropped in front of an
# undeclared output may be right for its reader.
TOLD_BY_OTHERS = {
    ("collective-dropped", "all_reduce", WEIGHTS),
    ("collective-dropped", "all_gather", WARNING),
    ("slice-dropped", "slice", WARNING),
}


def no_errors(graph: Json, seed: int, limit: int) -> list[str]:
    """Faults that are no errors, but those of the named kinds that the one graph can't tell."""
    out = []
    for mutation, found in verdicts(graph, seed, limit):
        op = next((op for _, op, _ in TOLD_BY_OTHERS if mutation.node.startswith(op)), "")
        if found != ERROR and (mutation.kind, op, found) not in TOLD_BY_OTHERS:
            out.append(f"{found}: {mutation.kind} at {mutation.node}")
    return out


@pytest.mark.parametrize("declare", [False, True], ids=["anonymous", "declared"])
@pytest.mark.parametrize(("name", "dialect", "size"), BUILT)
def test_built_program_is_clean(name: str, dialect: str, size: Size, declare: bool) -> None:
    report = engine.check(build(name, dialect, size, declare))
    assert not engine.errors(report), engine.describe(report)


@pytest.mark.parametrize(("name", "dialect", "size"), BUILT)
def test_faults_in_built_program_are_errors(name: str, dialect: str, size: Size) -> None:
    """Where weights and output are declared, nothing is left to guess."""
    graph = build(name, dialect, size, declare=True)
    found = [(f"{m.kind} at {m.node}", what) for m, what in verdicts(graph, seed=1, limit=10)]
    assert {what for _, what in found} <= {ERROR}, found


@pytest.mark.parametrize(("name", "dialect"), ANONYMOUS)
def test_faults_in_anonymous_program_are_reported(name: str, dialect: str) -> None:
    assert not no_errors(build(name, dialect, SIZES[0]), seed=0, limit=60)


@pytest.mark.shared
@pytest.mark.parametrize("name", REFERENCE)
def test_faults_in_reference_graph_are_reported(name: str) -> None:
    assert not no_errors(shared.load(name), seed=0, limit=20)


@pytest.mark.shared
@pytest.mark.nightly
@pytest.mark.parametrize("name", REFERENCE)
def test_all_faults_in_reference_graph_are_reported(name: str) -> None:
    assert not no_errors(shared.load(name), seed=2, limit=100_000)


def test_declared_weights_tell_a_dropped_reduction() -> None:
    """One MLP, of whose weights nothing else tells that they are shards: silent as it stands, an error once they are declared."""
    b = GraphBuilder({"tp": 4})
    b.output([b.add(x := full(b), b.all_reduce(b.mlp(b.norm(x), 8, None)))])
    clean = examined(b.graph("one-mlp"))
    assert not clean.errors
    (dropped,) = [m for m in mutations(clean.graph, 0, 100) if m.kind == "collective-dropped"]
    assert verdict(clean, dropped) == WEIGHTS
    silent = verdict(replace(clean, inferred={}), dropped)
    assert silent == MISSED


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


def test_a_second_reading_that_is_no_better_leaves_no_trace() -> None:
    """Answers of the first reading are still there for the repairs of what it finds."""
    graph = build("entry_slice", "c10d", SIZES[0], declare=True)
    faults = [m for m in mutations(graph, 0, 20) if m.kind == "collective-wrong-dimension"]
    assert faults
    for fault in faults:
        (first, *_) = engine.errors(engine.check(fault.graph))
        assert first.node == fault.node
