"""The command line: what reaches the checker, what is printed, and the exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import layoutcheck
from layoutcheck.cli import main
from layoutcheck.cli.options import code_prefixes, group_sizes, pairs, token_axes, trust_levels, wants_color
from layoutcheck.errors import InputError
from layoutcheck.findings import Finding, Report, Statistics

GRAPH = {
    "format": "layoutcheck-graph/1",
    "source": "hand",
    "nodes": [
        {"name": "x", "op": "placeholder", "target": "x", "meta": {"shape": [8, 4], "dtype": "float32"}},
        {
            "name": "y",
            "module": "act",
            "op": "call_function",
            "target": "aten.relu.default",
            "args": [{"node": "x"}],
            "meta": None,
        },
        {"name": "out", "op": "output", "target": "output", "args": [[{"node": "y"}]], "meta": None},
    ],
}
ERROR = Finding(code="LC203", node="all_reduce", message="adds different tokens")
WARNING = Finding(code="LC902", node="view", message="stale")


class Engine:
    """Stands in for the checker: gives a fixed report and keeps what it was asked."""

    def __init__(self, *findings: Finding) -> None:
        self.findings = findings
        self.calls: list[dict[str, Any]] = []

    def __call__(self, graph: Any, **options: Any) -> Report:
        self.calls.append({"graph": graph, **options})
        return Report(self.findings, Statistics(nodes=3, values=2, derived=2, seconds={"infer": 0.5}))


@pytest.fixture
def graph(tmp_path: Path) -> str:
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(GRAPH))
    return str(path)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    fake = Engine(ERROR, WARNING)
    monkeypatch.setitem(vars(layoutcheck), "check", fake)
    return fake


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "layoutcheck", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )


def test_version_and_help() -> None:
    assert run("--version").stdout == f"layoutcheck {layoutcheck.__version__}\n"
    assert run().returncode == run("rules").returncode == 2
    for command in ("check", "show", "explain", "rules", "convert"):
        assert run(command, "--help").returncode == 0


def test_exit_codes(graph: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for findings, plain, strict in (((), 0, 0), ((WARNING,), 0, 1), ((ERROR,), 1, 1)):
        monkeypatch.setitem(vars(layoutcheck), "check", Engine(*findings))
        assert main(["check", graph]) == plain
        assert main(["check", graph, "--strict"]) == strict
    assert "LC203 mixed-tokens  all_reduce" in capsys.readouterr().out


def test_options_reach_the_checker(graph: str, engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('{"weights": {}}')
    assert main([
        "check", graph, "--tp", "4", "--group", "ep=E", "--group", "dp = 2", "--rank", "3", "--world", "8",
        "--tokens", "input_ids:1", "--tokens", "a:b:-1", "--layout", "w=bf16[h/4@tp, k]",
        "--assume", "T % 4 == 0", "--rules", str(tmp_path), "--plan", str(tmp_path / "plan.json"),
        "--trust", "moe.shared=shape-only",
    ]) == 1  # fmt: skip
    (call,) = engine.calls
    del call["graph"]
    assert call == {
        "groups": {"tp": 4, "ep": "E", "dp": 2},
        "rank": 3,
        "world": 8,
        "tokens": [("input_ids", 1), ("a:b", -1)],
        "layouts": {"w": "bf16[h/4@tp, k]"},
        "assumptions": ["T % 4 == 0"],
        "rules": [tmp_path],
        "plan": tmp_path / "plan.json",
        "trust": {"moe.shared": "shape-only"},
        "others": [],
    }


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--tp", "0"], "--group tp: the size of a group is a number from 1 or a symbol, not '0'"),
        (["--tp", "1" * 5000], "--group tp: the size of a group is a number from 1 or a symbol"),
        (["--tp", "4", "--group", "tp=8"], "tp is given twice: 4 and 8"),
        (["--group", "tp"], "--group: expected NAME=SIZE, got 'tp'"),
        (["--tokens", "ids"], "--tokens: expected NAME:DIM, such as input_ids:1, got 'ids'"),
        (["--tokens", ":1"], "--tokens: expected NAME:DIM"),
        (["--rank", "-1"], "-1 is not in the range x>=0"),
        (["--layout", "w"], "--layout: expected NAME=TEXT, got 'w'"),
        (["--trust", "moe.shared=all"], "--trust: unknown level 'all' for moe.shared; there is shape-only"),
        (["--rules", "no/such"], "--rules: no such folder: no/such"),
        (["--plan", "no/such"], "--plan: no such file: no/such"),
        (["--select", "LC7"], "--select: no finding code begins with 'LC7'"),
        (["--ignore", "LC1,"], "--ignore: no finding code begins with ''"),
        (["--format", "xml"], "'xml' is not one of"),
        (["--nonsense"], "No such option"),
    ],
)
def test_bad_options_are_one_line_and_exit_2(
    graph: str, engine: Engine, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", graph, *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ") and err.count("\n") == 1
    assert said in err
    assert engine.calls == []


@given(st.lists(st.text(max_size=8) | st.from_regex(r"\w+[=:]\S*", fullmatch=True), max_size=3))
def test_any_option_text_is_taken_or_refused(texts: list[str]) -> None:
    for read in (
        token_axes,
        trust_levels,
        partial(group_sizes, texts[0] if texts else None),
        partial(pairs, option="--layout"),
        partial(code_prefixes, option="--select"),
    ):
        with suppress(InputError):
            read(texts)


@pytest.mark.parametrize("content", [None, b"", b"no graph", b"{}", b"PK\x03\x04 cut", b"\x1f\x8b cut"])
def test_bad_files_are_one_line_and_exit_2(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "g.json"
    if content is not None:
        path.write_bytes(content)
    done = run("check", str(path))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert str(path) in done.stderr


def test_a_bad_file_does_not_hide_the_others(
    graph: str, tmp_path: Path, engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(tmp_path / "none.json"), graph]) == 2
    out, err = capsys.readouterr()
    assert "LC203" in out and "none.json" in err


@pytest.mark.parametrize("form", ["text", "json", "sarif", "github"])
def test_every_form_says_that_a_graph_is_missing(
    graph: str, form: str, tmp_path: Path, engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    none = str(tmp_path / "none.json")
    reason = f"{none}: there is no such file"
    assert main(["check", none, graph, "--format", form]) == 2
    out, err = capsys.readouterr()
    assert err == f"error: {reason}\n"
    if form == "text":
        assert out.endswith("Found 1 error, 1 warning. 3 nodes checked. 1 graph could not be checked.\n")
    elif form == "json":
        document = json.loads(out)
        assert document["unchecked"] == [{"graph": none, "error": reason}]
        assert [entry["graph"] for entry in document["graphs"]] == [graph]
    elif form == "sarif":
        (invocation,) = json.loads(out)["runs"][0]["invocations"]
        (notification,) = invocation["toolExecutionNotifications"]
        assert invocation["executionSuccessful"] is False
        assert notification["message"] == {"text": reason} and notification["level"] == "error"
    else:
        assert f"title=not checked::{reason}\n" in out
    target = tmp_path / "report"
    assert main(["check", none, graph, "--format", form, "-o", str(target)]) == 2
    assert "1 graph could not be checked" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["json", "sarif"])
def test_a_document_of_unreadable_graphs_alone_is_valid(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(tmp_path / "a.pt2"), str(tmp_path / "b.pt2"), "--format", form]) == 2
    document = json.loads(capsys.readouterr().out)
    if form == "json":
        assert (document["graphs"], len(document["unchecked"])) == ([], 2)
    else:
        (run,) = document["runs"]
        assert run["results"] == [] and len(run["invocations"][0]["toolExecutionNotifications"]) == 2


def test_a_complete_document_lacks_nothing(
    graph: str, engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["check", graph, "--format", "json"])
    assert "unchecked" not in json.loads(capsys.readouterr().out)
    main(["check", graph, "--format", "sarif"])
    assert json.loads(capsys.readouterr().out)["runs"][0]["invocations"] == [{"executionSuccessful": True}]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--contract", "{}/no.json"], "{}/no.json: there is no such file"),
        (["--plan", "{}/bad.json"], "{}/bad.json: this holds no JSON object, so it is not a plan"),
        (["--rules", "{}"], "{}/bad.rules:1"),
        (["--trust", "moe.sharde=shape-only"], "there is no role 'moe.sharde'; did you mean moe.shared?"),
        (["--assume", "T %% 4"], "the assumption 'T %% 4' compares nothing"),
    ],
)
def test_what_is_wrong_with_options_is_said_once(
    graph: str, options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.json").write_text("[]")
    (tmp_path / "bad.rules").write_text("no rule (\n")
    words = [word.replace("{}", str(tmp_path)) for word in options]
    assert main(["check", graph, graph, graph, *words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("error: ")
    assert said.replace("{}", str(tmp_path)) in err


def test_together_gives_the_other_ranks_graphs(graph: str, engine: Engine) -> None:
    main(["check", graph, graph])
    assert [len(call["others"]) for call in engine.calls] == [0, 0]
    engine.calls.clear()
    main(["check", graph, graph, graph, "--together"])
    assert [len(call["others"]) for call in engine.calls] == [2]


def test_select_and_ignore_decide_the_exit_code(
    graph: str, engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", graph, "--select", "LC9"]) == 0
    assert main(["check", graph, "--ignore", "mixed-tokens"]) == 0
    assert "LC203" not in capsys.readouterr().out
    assert main(["check", graph, "--select", "LC2,LC9"]) == 1


@pytest.mark.parametrize("form", ["text", "json", "sarif", "github"])
def test_output_goes_to_a_file(
    graph: str, engine: Engine, form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "report"
    assert main(["check", graph, "--format", form, "-o", str(target), "--color", "always"]) == 1
    out, err = capsys.readouterr()
    assert (out, err) == ("", "Found 1 error, 1 warning.\n")
    assert "LC203" in target.read_text() and "\x1b" not in target.read_text()
    assert main(["check", graph, "-o", str(tmp_path / "no" / "folder")]) == 2


def test_stats_have_the_stages(graph: str, engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", graph, "--stats"])
    out = capsys.readouterr().out
    assert "derived 2 (100.0 %)" in out and "infer 0.500" in out and "read 0." in out and "total 0." in out


def test_an_error_of_the_checker_about_input_names_the_graph(
    graph: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check(*_: Any, **__: Any) -> Report:
        raise InputError("no input is named ids", where="--tokens")

    monkeypatch.setitem(vars(layoutcheck), "check", check)
    assert main(["check", graph]) == 2
    assert capsys.readouterr().err == f"error: {graph}: --tokens: no input is named ids\n"


def test_a_bug_is_told_apart_from_bad_input(
    graph: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check(*_: Any, **__: Any) -> Report:
        raise ZeroDivisionError("oops\n\x1b[2J")

    monkeypatch.delenv("LAYOUTCHECK_DEBUG", raising=False)
    monkeypatch.setitem(vars(layoutcheck), "check", check)
    assert main(["check", graph]) == 70
    err = capsys.readouterr().err
    assert err.startswith("error: internal error: ZeroDivisionError: oops") and err.count("\n") == 1
    assert "\x1b" not in err
    monkeypatch.setenv("LAYOUTCHECK_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main(["check", graph])


@pytest.mark.parametrize(
    ("choice", "environment", "terminal", "wanted"),
    [
        ("always", {"NO_COLOR": "1"}, False, True),
        ("never", {"FORCE_COLOR": "1"}, True, False),
        ("auto", {}, True, True),
        ("auto", {}, False, False),
        ("auto", {"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, False),
        ("auto", {"NO_COLOR": ""}, True, True),
        ("auto", {"FORCE_COLOR": "1"}, False, True),
        ("auto", {"FORCE_COLOR": "0"}, False, False),
        ("auto", {"TERM": "dumb"}, True, False),
    ],
)
def test_colour(
    choice: str, environment: dict[str, str], terminal: bool, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert wants_color(choice, terminal) is wanted


def test_colour_option_decides_what_is_printed(
    graph: str, engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["check", graph, "--color", "always"])
    assert "\x1b[1;31mLC203" in capsys.readouterr().out
    main(["check", graph, "--color", "never"])
    assert "\x1b" not in capsys.readouterr().out


def test_a_closed_pipe_is_quiet() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "layoutcheck", "explain"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
def test_a_full_disk_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "layoutcheck", "explain"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "error: cannot write the output: No space left on device\n")


def test_an_ascii_terminal_gets_every_message(graph: str) -> None:
    done = run("explain", "mixed-tökens", PYTHONIOENCODING="ascii")
    assert done.returncode == 2
    assert "m\\xf6" not in done.stdout and "mixed-t" in done.stderr


def test_explain() -> None:
    page = run("explain", "LC203")
    assert page.returncode == 0 and page.stdout.startswith("# LC203 mixed-tokens\n")
    unknown = run("explain", "LC230")
    assert unknown.returncode == 2 and "did you mean LC203" in unknown.stderr
    both = run("explain", "LC204", "mixed-tokens", "lc204")
    assert both.stdout == run("explain", "LC204").stdout + "\n" + page.stdout
    assert run("explain", "LC203", "LC230").stdout == ""
    table = run("explain").stdout.splitlines()
    assert len(table) == len(layoutcheck.CODES) and table[0].startswith("LC101 layout-mismatch")


def test_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "list", "aten.mm"]) == 0
    assert "aten.mm" in capsys.readouterr().out
    assert main(["rules", "list", "torch.ops.aten.mm"]) == 0
    assert capsys.readouterr().out.startswith("aten.mm")
    assert main(["rules", "list", "atne.mm"]) == 2
    err = capsys.readouterr().err
    assert err == "error: rules list: no op that has a rule begins with 'atne.mm'; did you mean aten.mm?\n"
    assert main(["rules", "list", "zzz"]) == 2
    assert "they begin with _c10d_functional, " in capsys.readouterr().err
    assert main(["rules", "show", "torch.ops.aten.mm.default"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("# ") and "aten.mm(self, mat2)" in shown and "->" in shown
    assert main(["rules", "show", "aten.mmm"]) == 2
    assert "no rule for aten.mmm; did you mean aten." in capsys.readouterr().err
    (tmp_path / "own.rules").write_text("my.op(x)\n    elementwise\n")
    assert main(["rules", "show", "my.op", "--rules", str(tmp_path)]) == 0
    assert "my.op(x)\n    elementwise" in capsys.readouterr().out
    (tmp_path / "own.rules").write_text("my.op(x)\n    x: t.. -> \n")
    assert main(["rules", "list", "--rules", str(tmp_path)]) == 2
    assert "own.rules" in capsys.readouterr().err


def test_convert(graph: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("copy.json", "copy.json.gz"):
        assert main(["convert", graph, "-o", str(tmp_path / name)]) == 0
        copy = layoutcheck.load(tmp_path / name)
        assert [node.name for node in copy.nodes] == ["x", "y", "out"]
    assert main(["convert", graph, "-o", str(tmp_path / "copy.pt2")]) == 2
    assert main(["convert", graph, "-o", str(tmp_path / "no" / "copy.json")]) == 2
    assert "error: " in capsys.readouterr().err


def test_show(graph: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    layouts = {"x": "f32[T, 4]", "y": "f32[T/4@tp, 4]"}
    monkeypatch.setitem(
        vars(layoutcheck), "check", lambda *_, **__: Report(layout_lookup=layouts.__getitem__)
    )
    assert main(["show", graph, "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["format"] == "layoutcheck-typed/1"
    assert [node["layout"] for node in data["nodes"]] == ["f32[T, 4]", "f32[T/4@tp, 4]", None]
    assert data["nodes"][1]["target"] == "aten.relu.default"
    assert main(["show", graph]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "(no module)",
        "  x  placeholder  f32[T, 4]",
        "act",
        "  y  aten.relu.default  f32[T/4@tp, 4]",
        "(no module)",
        "  out  output",
    ]
    assert main(["show", graph, "--color", "always"]) == 0
    assert "\x1b[1mact\x1b[0m" in capsys.readouterr().out


def test_show_of_a_shipped_export(repo_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = repo_root / "examples" / "exports" / "shared_expert_right.pt2"
    assert main(["show", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    gate = lines[lines.index("layers.0.mlp.gate") + 1]
    assert "aten.linear.default" in gate and "/4@" in gate and gate.endswith(", 8]")
