"""Plans of weight layouts: patterns on module names decide how weights are cut, and mistakes are said word for word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import engine
from support.builder import GraphBuilder, Json
from support.indices import coordinates, held, mesh_of, number

import layoutcheck
from layoutcheck.cli import main
from layoutcheck.errors import InputError
from layoutcheck.graph import TensorMeta
from layoutcheck.infer.solver.weight_plan import planned_layout, read_plan
from layoutcheck.layouts import Layout, render
from layoutcheck.symbols import sym

MESH = mesh_of(tp=4)
NAMES = {0: "tp"}


def planned(weights: dict[str, str], name: str, shape: tuple[Any, ...], group: str = "tp") -> Layout | None:
    plan = {"group": group, "weights": weights, "where": "plan.json"}
    return planned_layout(plan, name, TensorMeta(shape, "bfloat16"), MESH, {})


@given(
    st.sampled_from(["column", "row", "replicated"]),
    st.lists(st.sampled_from([3, 5, 7]), min_size=1, max_size=3),
)
def test_words_cut_the_axis_that_they_mean(word: str, shape: list[int]) -> None:
    """torch keeps linears as [out, in]: `column` gives each rank its block of axis 0, `row` of axis 1 (a bias stays whole)."""
    of = planned({"*": word}, "m.weight", tuple(shape))
    assert of is not None and tuple(map(number, of.shape)) == tuple(shape)
    axis = {"column": 0, "row": 1 if len(shape) > 1 else None, "replicated": None}[word]
    if axis is None:
        assert not of.bound and not of.partial
        return
    rows = [np.unique(held(of, at)[of.axes[axis][0].domain]).tolist() for at in coordinates(MESH)]
    each = shape[axis]
    assert rows == [list(range(r * each, (r + 1) * each)) for r in range(4)]


def test_other_words_are_layouts() -> None:
    of = planned({"lm_head.weight": "[128/4@tp, 64]"}, "lm_head.weight", (32, 64))
    assert of is not None and render(of, NAMES) == "bf16[128/4@tp, 64]"
    assert planned({"e": "[8, 4] {experts/4@tp}"}, "e", (8, 4)) is not None


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ({"*.weight": "column"}, "bf16[32/4@tp, 8]"),
        ({"*.weight": "column", "layers.*.down.weight": "row"}, "bf16[8, 32/4@tp]"),
        ({"layers.*.down.weight": "row", "*.weight": "column"}, "bf16[32/4@tp, 8]"),
        ({"*.weight": "column", "layers.1.*": "replicated"}, "bf16[8, 8]"),
        ({"layers.[01].down.weight": "row"}, "bf16[8, 32/4@tp]"),
        ({"LAYERS.*": "row"}, None),
        ({"down.weight": "row"}, None),
        ({}, None),
    ],
)
def test_the_last_pattern_that_fits_wins(weights: dict[str, str], expected: str | None) -> None:
    """Patterns are shell patterns on whole names, and tell upper from lower case."""
    of = planned(weights, "layers.1.down.weight", (8, 8))
    assert (None if of is None else render(of, NAMES)) == expected


@pytest.mark.parametrize(
    ("weights", "group", "message"),
    [
        ({"*": "column"}, "dp", "plan.json: w: there is no group `dp`"),
        ({"*": "diagonal"}, "tp", "plan.json: w: `diagonal` is no layout; write one as [T/4@tp, 64]"),
        ({"*": "[8]"}, "tp", "plan.json: w: `[8]` has 1 axes, the tensor has 2"),
        ({"*": "[16, 8]"}, "tp", "plan.json: w: `16` does not fit an axis of 8"),
        ({"*": "[32/4@cp, 8]"}, "tp",
         "plan.json: w: there is no group `cp` (known: tp); name it with --group cp=SIZE"),
    ],
)  # fmt: skip
def test_errors_name_the_file_and_the_weight(weights: dict[str, str], group: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        planned(weights, "w", (8, 8), group)
    assert str(caught.value) == message


def test_words_need_numbers() -> None:
    with pytest.raises(InputError) as caught:
        planned({"*": "column"}, "w", (sym("n"), 8))
    assert str(caught.value) == "plan.json: w: a plan needs the sizes of groups as numbers"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "this is no JSON, so not a plan: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ("[" * 100_000, None),
        ("[]", "this holds no JSON object, so it is not a plan"),
        ('{"weights": []}', 'a plan is {"group": NAME, "weights": {PATTERN: "column" | "row" | "replicated" | "vocabulary"'
         ' | "vocabulary-sharded" | "expert" | LAYOUT}}'),
        ('{"weights": {"*.weight": 1}}', "the layout of `*.weight` is no text"),
        ('{"weights": {}, "group": 4}', "the plan's group is no name"),
    ],
)  # fmt: skip
def test_files_that_are_no_plan(text: str, message: str | None, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_plan(path)
    assert caught.value.where == str(path)
    if message is not None:
        assert caught.value.message == message


def test_a_plan_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such file"):
        read_plan(tmp_path / "none.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(InputError, match="this is no text, so not a plan"):
        read_plan(tmp_path / "bytes.json")
    (tmp_path / "large.json").write_bytes(b" " * ((16 << 20) + 1))
    with pytest.raises(InputError) as caught:
        read_plan(tmp_path / "large.json")
    assert caught.value.message == "the file has 16777217 bytes, more than the 16777216 that are read"


def test_the_group_is_tp_unless_named(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text('{"weights": {"a": "row"}}', encoding="utf-8")
    assert read_plan(path) == {"group": "tp", "weights": {"a": "row"}, "where": str(path)}


def mlp(reduce: bool) -> Json:
    """A gated MLP on full tokens whose weights have names; its end reduced or not."""
    b = GraphBuilder()
    x = b.input("x", (16, 8), layout="[T, 8]")
    out = b.mlp(x, 4)
    b.output([b.all_reduce(out) if reduce else out])
    graph = b.graph()
    weights = [n for n in graph["nodes"] if n["op"] == "placeholder" and n["name"] != "x"]
    graph["inputs"] = {
        n["name"]: {"kind": "parameter", "fqn": f"mlp.{part}.weight"}
        for n, part in zip(weights, ("up", "gate", "down"))
    }
    return graph


PLAN = {"weights": {"mlp.*": "column", "*.down.weight": "row"}}


@pytest.mark.parametrize("reduce", [True, False])
def test_a_plan_decides_what_a_program_means(reduce: bool, tmp_path: Path) -> None:
    """The same graph, planned or not: sharded weights leave a sum that has to be reduced, replicated ones do not."""
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(PLAN), encoding="utf-8")
    report = engine.check(mlp(reduce), plan=path)
    assert [(f.code, f.node) for f in report.findings] == ([] if reduce else [("LC201", "output")])
    assert report.layout_text("mlp.down.weight") == "bf16[8, 16/4@tp]"
    assert report.layout_text("mlp.up.weight") == "bf16[16/4@tp, 8]"
    assert report.statistics.declared == 4 and not report.inferred
    whole = tmp_path / "whole.json"
    whole.write_text(json.dumps({"weights": {"*": "replicated"}}), encoding="utf-8")
    report = engine.check(mlp(reduce), plan=whole)
    assert [(f.code, f.node) for f in report.findings] == ([("LC202", "all_reduce")] if reduce else [])


def test_what_is_said_last_wins(tmp_path: Path) -> None:
    """A plan overrides what the graph says of its weights, and an option overrides the plan."""
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(PLAN), encoding="utf-8")
    graph = mlp(True)
    for node in graph["nodes"]:
        if node["name"] in graph["inputs"]:
            node["meta"]["layout"] = "[{}, {}]".format(*node["meta"]["shape"])
    assert [(f.code, f.node) for f in engine.check(graph).findings] == [("LC202", "all_reduce")]
    assert not engine.check(graph, plan=path).findings
    down = next(name for name, of in graph["inputs"].items() if of["fqn"] == "mlp.down.weight")
    report = engine.check(graph, plan=path, layouts={down: "[8, 4]"})
    assert report.layout_text(down) == "bf16[8, 4]"
    assert [f.code for f in report.findings][:1] == ["LC205"]


def test_a_pattern_that_fits_no_weight_is_told(
    repo_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exports = repo_root / "examples" / "exports"
    right, other = str(exports / "shared_expert_right.pt2"), str(exports / "glm5_two_layers.pt2")
    plan = tmp_path / "plan.json"
    plan.write_text(
        json.dumps({"weights": {"*.sharde.up_proj.weight": "replicated", "*.q_proj.weight": "replicated"}})
    )
    said = f"warning: {plan}: no weight is called '*.sharde.up_proj.weight'; did you mean shared.up_proj.weight?\n"
    assert main(["check", right, "--plan", str(plan)]) == 0
    assert capsys.readouterr().err == said
    assert main(["check", right, "--plan", str(plan), "--strict"]) == 1
    for command in ("show", "verify"):
        assert main([command, right, "--plan", str(plan)]) == 0
    assert capsys.readouterr().err == 3 * said
    # of several graphs, a pattern is of use if one of them has such a weight
    plan.write_text(json.dumps({"weights": {"*.q_a_proj.weight": "replicated"}}))
    assert main(["check", right, other, "--plan", str(plan)]) == 0
    assert capsys.readouterr().err == ""
    report = layoutcheck.check(right, plan=plan)
    assert report.unused == (("*.q_a_proj.weight", ("q_proj.weight",)),)
    assert "the plan's pattern '*.q_a_proj.weight' fits no weight" in report.statistics.notes
