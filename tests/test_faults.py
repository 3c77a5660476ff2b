"""Each production fault is reported where it happens, and its repaired twin is clean."""

from __future__ import annotations

import pytest
from support import engine
from support.builder import DIALECTS
from support.faults import FAULTS, Fault, Size

ROWS = range(1, 50, 2)
CASES = [
    pytest.param(fault, dialect, size, id=f"{fault.key}-{dialect}-{size.label}")
    for fault in FAULTS
    for dialect in DIALECTS
    for size in fault.sizes
]


def test_every_row_has_a_graph() -> None:
    rows = {int(fault.key.split("-")[0]) for fault in FAULTS}
    assert rows == set(ROWS)


@pytest.mark.parametrize(("fault", "dialect", "size"), CASES)
def test_graph_is_well_formed(fault: Fault, dialect: str, size: Size) -> None:
    """Names are unique, nodes are defined before use, and the marked node exists in the broken form."""
    for broken in (True, False):
        graph, node = fault._build(dialect, size, broken)
        seen: set[str] = set()
        for n in graph["nodes"]:
            assert n["name"] not in seen
            assert {r for r in engine.refs(n)} <= seen
            seen.add(n["name"])
        assert node in seen


@pytest.mark.parametrize(("fault", "dialect", "size"), CASES)
def test_fault_is_reported_at_its_node(fault: Fault, dialect: str, size: Size) -> None:
    graph, codes, node = fault.faulty(dialect, size)
    report = engine.check(graph)
    roots = [f for f in report.findings if f.caused_by is None and engine.severity(f) == fault.severity]
    assert [f for f in roots if f.node == node and engine.code(f) in codes], engine.describe(report)


@pytest.mark.parametrize(("fault", "dialect", "size"), CASES)
def test_fault_is_the_only_root(fault: Fault, dialect: str, size: Size) -> None:
    """One root cause gives one finding: what follows from it is counted under it."""
    graph, _, node = fault.faulty(dialect, size)
    report = engine.check(graph)
    expected = [node] if fault.severity == "error" else []
    assert [f.node for f in engine.error_roots(report)] == expected, engine.describe(report)


@pytest.mark.parametrize(("fault", "dialect", "size"), CASES)
def test_repaired_twin_is_clean(fault: Fault, dialect: str, size: Size) -> None:
    report = engine.check(fault.repaired(dialect, size))
    assert not engine.errors(report), engine.describe(report)
    if fault.severity == "warning":
        assert not [f for f in report.findings if engine.code(f) in fault.codes], engine.describe(report)
