"""One name for a graph's sizes in every command, and assumptions held against sizes that are numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import layoutcheck
from layoutcheck.cli import main
from layoutcheck.cost.lift import lift
from layoutcheck.errors import InputError
from layoutcheck.infer.solver.analysis import analyse
from layoutcheck.infer.solver.assume import symbols_in, with_tokens_named
from layoutcheck.layouts import symbols_of
from layoutcheck.memory.graph_ledger import graph_memory


def document(*shape: int | str, ranges: dict[str, list[int | None]] | None = None) -> dict[str, Any]:
    """A relu of ids' embedding; ids have this shape."""
    x = {"name": "ids", "op": "placeholder", "target": "ids", "meta": {"shape": [*shape], "dtype": "int64"}}
    w = {"name": "w", "op": "placeholder", "target": "w", "meta": {"shape": [96, 8], "dtype": "float32"}}
    args = [{"node": "w"}, {"node": "ids"}]
    y = {"name": "y", "op": "call_function", "target": "aten.embedding.default", "args": args, "meta": None}
    out = {"name": "out", "op": "output", "target": "output", "args": [[{"node": "y"}]], "meta": None}
    return {
        "format": "layoutcheck-graph/1",
        "source": "hand",
        "nodes": [x, w, y, out],
        **({"ranges": ranges} if ranges else {}),
    }


def write(path: Path, *shape: int | str, **more: Any) -> str:
    path.write_text(json.dumps(document(*shape, **more)))
    return str(path)


def test_all_commands_call_a_size_the_same(repo_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(repo_root / "examples" / "exports" / "shared_expert_right.pt2")
    assert symbols_in(layoutcheck.load(path)) == {"s47"}
    analysis = analyse(path)
    assert symbols_of(analysis.solution.typing.types) == {"T"}
    assert analysis.graph.ranges == {"T": (5, None)}
    assert "T" in lift(analysis).symbols() and graph_memory(analysis, {"T": 64}).symbols == {"T": 64}
    for words in (
        ["check"],
        ["show"],
        ["memory", "--at", "T=64"],
        ["cost", "--hardware", "h100", "--tokens", "64"],
    ):
        assert main([words[0], path, *words[1:]]) == 0
        assert "s47" not in capsys.readouterr().out


def test_either_name_is_taken_by_assumptions(repo_root: Path) -> None:
    path = str(repo_root / "examples" / "exports" / "shared_expert_right.pt2")
    for name in ("T", "s47"):
        report = layoutcheck.check(path, assumptions=[f"{name} % 4 == 0"], groups={"tp": 4})
        assert report.layout_text("narrow") == "f32[T/4@tp, 64]"
    assert layoutcheck.check(path, assumptions=["T % tp == 0"], groups={"tp": 4}).findings == ()
    with pytest.raises(InputError, match=r"is about S; the sizes of this graph are T$"):
        layoutcheck.check(path, assumptions=["S % 4 == 0"])


def test_several_symbols_keep_their_names(tmp_path: Path) -> None:
    graph = layoutcheck.load(write(tmp_path / "g.json", "s0", "s1"))
    assert with_tokens_named(graph, {}) == (graph, None)
    one = layoutcheck.load(write(tmp_path / "h.json", "s0"))
    assert with_tokens_named(one, {"tp": "T"}) == (one, None)
    named, was = with_tokens_named(one, {})
    assert (symbols_in(named), was) == ({"T"}, "s0")
    assert symbols_in(one) == {"s0"}


def test_a_symbol_and_tokens_that_are_a_number_are_two_sizes(tmp_path: Path) -> None:
    """A dynamic batch is the graph's only symbol; its 32 tokens, known by their ids, get another name."""
    analysis = analyse(write(tmp_path / "g.json", "s0", 32))
    cost = lift(analysis)
    assert cost.values["T_"] == 32 and "T" not in cost.values
    memory = graph_memory(analysis, {"T": 3})
    assert memory.peak.bytes == 3 * 32 * 8 * 4
    assert graph_memory(analysis, {"T": 3, "T_": 64}).peak.bytes == 3 * 64 * 8 * 4


@pytest.mark.parametrize(
    ("fact", "message"),
    [
        ("T == 64", None),
        ("T % 16 == 0", None),
        ("T >= 64", None),
        ("T == 128", "the assumption 'T == 128' contradicts the graph, where T is 64"),
        ("T % 3 == 0", "the assumption 'T % 3 == 0' contradicts the graph, where T is 64"),
        ("T < 64", "the assumption 'T < 64' contradicts the graph, where T is 64"),
        ("T % tp == 0", None),
        ("tp == 8", "the assumption 'tp == 8' contradicts the graph, where tp is 4"),
        ("S == 64", "the assumption 'S == 64' is about S; the sizes of this graph are B, T, tp"),
    ],
)
def test_assumptions_on_a_graph_of_numbers(fact: str, message: str | None, tmp_path: Path) -> None:
    path = write(tmp_path / "g.json", 2, 64)
    options: dict[str, Any] = {"assumptions": [fact], "groups": {"tp": 4}, "world": 4}
    if message is None:
        assert layoutcheck.check(path, **options).findings == ()
        return
    with pytest.raises(InputError) as caught:
        layoutcheck.check(path, **options)
    assert str(caught.value) == f"--assume: {message}"


def test_subgraphs_are_renamed_and_assumed_too(tmp_path: Path) -> None:
    body = document("s0")
    outer = {**document("s0"), "subgraphs": {"body": body}}
    path = tmp_path / "g.json"
    path.write_text(json.dumps(outer))
    named, _ = with_tokens_named(layoutcheck.load(path), {})
    assert symbols_in(named.subgraphs["body"]) == {"T"}
