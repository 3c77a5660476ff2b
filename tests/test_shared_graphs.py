"""The reference graphs yield exactly the root causes that were found in them by hand."""

from __future__ import annotations

import pytest
from support import engine, shared

pytestmark = pytest.mark.shared


def roots(name: str, **options: object) -> list[tuple[str, str]]:
    report = engine.check(shared.load(name), **options)
    return sorted((engine.code(f), f.node) for f in engine.error_roots(report))


@pytest.mark.parametrize("name", sorted(n for n in shared.ALL_ROOTS if n != "tp_llama_sp_dynamic.json.gz"))
def test_roots(name: str) -> None:
    assert roots(name) == sorted(shared.ALL_ROOTS[name])


@pytest.mark.parametrize("name", shared.CLEAN)
def test_clean_graph_has_no_error_at_all(name: str) -> None:
    """Not even one that follows from another, and no op is unknown."""
    report = engine.check(shared.load(name))
    assert not engine.errors(report), engine.describe(report)
    assert not [f for f in report.findings if engine.code(f) == "LC901"], engine.describe(report)


@pytest.mark.parametrize("name", sorted(shared.ALL_ROOTS))
def test_warnings_are_of_known_kinds(name: str) -> None:
    """Stale shapes and wasteful collectives are warnings; nothing else is said of these graphs."""
    report = engine.check(shared.load(name))
    kinds = {engine.code(f) for f in report.findings if engine.severity(f) == "warning"}
    padded = {"LC402"} if name.startswith("tp_llama_sp_dynamic") else set()
    assert kinds <= {"LC902", "LC601", "LC602"} | padded


def test_uneven_tokens_of_a_dynamic_graph() -> None:
    """The gathered tokens are never cut back: right only where the ranks divide the tokens."""
    found = roots("tp_llama_sp_dynamic.json.gz")
    assert {code for code, _ in found} == {"LC401"}


def test_even_tokens_of_a_dynamic_graph() -> None:
    assert roots("tp_llama_sp_dynamic.json.gz", assumptions=["s96 % 4 == 0"]) == []


def test_unknown_op_is_named() -> None:
    """One op of another library's namespace: one finding, at that op, and the rest is typed."""
    report = engine.check(shared.load("custom_ns.pt2"))
    assert [engine.code(f) for f in engine.errors(report)] == ["LC901"], engine.describe(report)


def test_every_reference_graph_is_in_the_table() -> None:
    if not shared.FOLDER.is_dir():
        pytest.skip(f"the reference graphs are not there: {shared.FOLDER}")
    files = {p.name for p in shared.FOLDER.iterdir() if p.name.endswith((".json.gz", ".pt2"))}
    assert files == {*shared.ALL_ROOTS, "custom_ns.pt2"}
