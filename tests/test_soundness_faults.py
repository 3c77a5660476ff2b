"""The checker and the runs agree: faults that change numbers differ on ranks, their repaired twins agree with
one device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support.builder import DIALECTS  # noqa: E402
from support.faults import FAULTS, Fault, Size  # noqa: E402
from support.programs import PROGRAMS, build  # noqa: E402

from layoutcheck.graph import Graph  # noqa: E402
from layoutcheck.infer.solver.analysis import analyse  # noqa: E402
from layoutcheck.json_form import graph_from_json  # noqa: E402
from layoutcheck.ranks.specialise import all_ranks  # noqa: E402
from layoutcheck.ranks.verify import ranks_of, values_of, verify  # noqa: E402

torch.set_num_threads(1)
SAME_NUMBERS = {
    "41": "every rank sends all tokens: the experts do the same work several times, and the numbers are right",
    "19-T1": "one token: what the other ranks hold beside rank 0 is padding",
    "19-T1-rank1": "one token: what the other ranks hold beside rank 0 is padding",
}


def cases() -> Iterator[Any]:
    for fault in FAULTS:
        for dialect in DIALECTS:
            for size in fault.sizes:
                if not size.symbol:
                    yield pytest.param(fault, dialect, size, id=f"{fault.key}-{dialect}-{size.label}")


def graphs_of(fault: Fault, dialect: str, size: Size, broken: bool) -> list[Graph]:
    """The graph of every rank, built as its own; where a fault has groups of groups, that of one rank."""
    ranks = [size.rank] if fault.groups else range(size.p)
    return [graph_from_json(fault._build(dialect, replace(size, rank=r), broken)[0]) for r in ranks]


def judge(fault: Fault, dialect: str, size: Size, broken: bool) -> Any:
    graphs = graphs_of(fault, dialect, size, broken)
    if fault.groups:
        return verify(analyse(graphs[0]))
    return verify(analyse(graphs[size.rank]), graphs=graphs)


@pytest.mark.parametrize(("fault", "dialect", "size"), list(cases()))
def test_fault_differs(fault: Fault, dialect: str, size: Size) -> None:
    if fault.key in SAME_NUMBERS or f"{fault.key}-{size.label}" in SAME_NUMBERS:
        pytest.skip(SAME_NUMBERS.get(fault.key) or SAME_NUMBERS[f"{fault.key}-{size.label}"])
    verdict = judge(fault, dialect, size, broken=True)
    assert not verdict.equal


@pytest.mark.parametrize(
    ("fault", "dialect", "size"), [c for c in cases() if c.values[0].severity == "warning"]
)
def test_what_is_only_warned_of_changes_no_number(fault: Fault, dialect: str, size: Size) -> None:
    verdict = judge(fault, dialect, size, broken=True)
    assert verdict.equal, verdict
    assert not verdict.taken


@pytest.mark.parametrize(("fault", "dialect", "size"), list(cases()))
def test_repaired_twin_agrees(fault: Fault, dialect: str, size: Size) -> None:
    verdict = judge(fault, dialect, size, broken=False)
    assert verdict.equal, verdict
    # the comparison is of something: most values are computed on one device, not taken over
    assert verdict.compared >= 4


BUILT = [
    pytest.param(name, dialect, size, id=f"{name}-{dialect}-{size.label}")
    for name, (_, sizes) in PROGRAMS.items()
    for dialect in DIALECTS
    for size in sizes
]


@pytest.mark.parametrize(("name", "dialect", "size"), BUILT)
def test_clean_program_agrees(name: str, dialect: str, size: Size) -> None:
    verdict = verify(analyse(graph_from_json(build(name, dialect, size))))
    assert verdict.equal, verdict
    assert not verdict.taken, "what is only taken over from the ranks is compared with nothing"


@pytest.mark.parametrize(("name", "dialect", "size"), BUILT)
def test_graphs_of_all_ranks_from_one(name: str, dialect: str, size: Size) -> None:
    """The graphs that are made for the other ranks are those that these ranks would have exported."""
    analysis = analyse(graph_from_json(build(name, dialect, size)))
    ranks = ranks_of(analysis, values_of(analysis, size.T))
    for r, made in enumerate(all_ranks(analysis, ranks)):
        theirs = graph_from_json(build(name, dialect, replace(size, rank=r)))
        assert [(n.target, n.args) for n in made.nodes] == [(n.target, n.args) for n in theirs.nodes]


@pytest.mark.parametrize("name", ["tensor_parallel", "sequence_parallel"])
def test_different_inputs_give_different_outputs(name: str) -> None:
    """The runs see their inputs: two seeds do not give one result."""
    from layoutcheck.ranks.interpreter import run
    from layoutcheck.ranks.verify import draw, members_of, shares

    analysis = analyse(graph_from_json(build(name, "tensor_cast", Size())))
    ranks = ranks_of(analysis, {})
    outs = []
    for seed in (0, 1):
        given = shares(analysis, ranks, draw(analysis, ranks, seed), seed)
        outs.append(run(all_ranks(analysis, ranks), given, members_of(analysis, ranks))[0].outputs[0])
    assert not torch.allclose(outs[0], outs[1])
