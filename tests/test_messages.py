"""Every finding says, word for word, what is wrong at which node, and carries the same in every form of report."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support import (
    engine,
    messages_boundary,
    messages_graphs,
    messages_padding,
    messages_sums,
    messages_tokens,
)
from support.messages import CASES, Case

from layoutcheck.codes import CODES
from layoutcheck.findings import Finding, Report
from layoutcheck.reports import FORMATS, render
from layoutcheck.reports.wording import path_line, price

FILES = (messages_boundary, messages_graphs, messages_padding, messages_sums, messages_tokens)
each = pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.code}-{c.name}")

# Contracts have tests of their own.
ELSEWHERE = {code for code in CODES if code.startswith("LC5")}


def block(report: Report) -> str:
    """The text report without its closing line."""
    return render([report], "text").rsplit("\n", 2)[0].strip()


def only(report: Report) -> Finding:
    (finding,) = report.findings
    return finding


def test_every_code_has_a_case() -> None:
    assert FILES and {case.code for case in CASES} >= set(CODES) - ELSEWHERE


@each
def test_the_finding_is_the_only_one_and_reads_so(case: Case) -> None:
    report = engine.check(case.build().graph())
    assert [(f.code, f.node) for f in report.findings] == [(case.code, case.node)], engine.describe(report)
    assert block(report) == case.text


@each
def test_the_source_line_and_the_module_are_named(case: Case) -> None:
    """Where the export says so, the block begins with the module path and the line of the source."""
    graph = case.build().graph()
    node = next(n for n in graph["nodes"] if n["name"] == case.node)
    node["location"] = {"file": "decoder/block.py", "line": 46, "function": "forward"}
    node["module"] = "layers.3.mlp"
    first, *rest = case.text.splitlines()
    first = first.replace(f"  {case.node}", f"  layers.3.mlp.{case.node}", 1)
    expected = "\n".join([first, "  at  decoder/block.py:46", *rest])
    assert block(engine.check(graph)) == expected


def renamed(value: Any, names: dict[str, str]) -> Any:
    """JSON data with node names replaced."""
    if isinstance(value, dict):
        return {k: names.get(v, v) if k in ("node", "name") else renamed(v, names) for k, v in value.items()}
    return [renamed(v, names) for v in value] if isinstance(value, list) else value


@each
def test_names_mean_nothing(case: Case) -> None:
    """With all calls renamed to words of the same length, the report is the same with these words."""
    graph = case.build().graph()
    calls = [n["name"] for n in graph["nodes"] if n["op"] == "call_function"]
    names = {name: f"{chr(97 + i)}{'q' * len(name)}"[: len(name)] for i, name in enumerate(calls)}
    back = {new: name for name, new in names.items()}
    assert len(back) == len(names)
    said = block(engine.check(renamed(graph, names)))
    words = "|".join(map(re.escape, back))
    assert re.sub(rf"\b({words})\b", lambda m: back[m.group(0)], said) == case.text
    assert said != case.text or case.node not in names


@each
def test_json_carries_the_same(case: Case) -> None:
    report = engine.check(case.build().graph())
    finding = only(report)
    (graph,) = json.loads(render([report], "json"))["graphs"]
    (data,) = graph["findings"]
    assert (data["code"], data["node"], data["name"]) == (case.code, case.node, CODES[case.code].name)
    assert data["severity"] == ("warning" if "(warning)" in case.text.splitlines()[0] else "error")
    lines = [line.strip() for line in case.text.splitlines()]
    assert data["message"] in lines
    rows = [" ".join(line.split()) for line in lines if line.startswith("operand ")]
    told = [f"operand {o['index']} {o['name']} {o['layout']}" for o in data["operands"]]
    assert [row[: len(said)] for row, said in zip(rows, told)] == told
    path = " -> ".join(f"{step['node']} {step['text']}" for step in data["path"])
    assert path in case.text and bool(path) == bool(finding.path)
    fixes = [line.split("  ", 1)[1].split("  ")[0] for line in lines if line.startswith("fix ")]
    assert [fix["text"].splitlines()[0] for fix in data["fixes"]] == fixes
    follow = [f"{c['code']} {c['node']}" for c in data["consequences"]]
    assert ("counted under it  " + ", ".join(follow) in lines) == bool(follow)


@each
def test_annotations_carry_the_same(case: Case) -> None:
    report = engine.check(case.build().graph())
    finding = only(report)
    sarif = json.loads(render([report], "sarif"))["runs"][0]
    (result,) = sarif["results"]
    assert result["ruleId"] == case.code
    assert result["level"] == finding.severity.value
    github = render([report], "github")
    title = f"title={case.code} {CODES[case.code].name}::"
    assert github.startswith(f"::{finding.severity.value} ") and title in github
    unescaped = github.replace("%0A", "\n").replace("%25", "%")
    for text in (result["message"]["text"], unescaped):
        assert finding.message in text and case.node in text
        for operand in finding.operands:
            assert operand.layout in text
        for fix in finding.fixes:
            assert fix.text.rstrip() in text and price(fix) in text
    if finding.path:
        assert path_line(finding) in result["message"]["text"]


@each
def test_the_message_is_a_sentence_about_layouts(case: Case) -> None:
    """It has no holes left, no name of a Python class, and names a group or a size, an op, or what is wrong with the order."""
    finding = only(engine.check(case.build().graph()))
    assert not re.search(
        r"\{\d\}|None|Layout\(|Factor\(|<[a-z]+ object", block(engine.check(case.build().graph()))
    )
    assert finding.message == finding.message.strip() and not finding.message.endswith(".")
    assert len(finding.message) < 200


def test_the_command_prints_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`layoutcheck check FILE --format ...`, for one case in each form."""
    from layoutcheck.cli import main

    case = next(c for c in CASES if c.name == "share_meets_all")
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(case.build().graph()), encoding="utf-8")
    said = {}
    for form in FORMATS:
        assert main(["check", str(path), "--format", form]) == 1
        said[form] = capsys.readouterr().out
    assert said["text"].rsplit("\n", 2)[0].strip() == case.text
    (graph,) = json.loads(said["json"])["graphs"]
    message = graph["findings"][0]["message"]
    assert message in json.loads(said["sarif"])["runs"][0]["results"][0]["message"]["text"]
    assert message in said["github"]


def test_a_pasted_rule_answers_the_finding(tmp_path: Path) -> None:
    """LC901 prints a stanza; with it in a folder of rules the op is known."""
    for case in (c for c in CASES if c.code == "LC901"):
        graph = case.build().graph()
        text = only(engine.check(graph)).fixes[0].text
        (tmp_path / "own.rules").write_text(text.split("\n", 1)[1], encoding="utf-8")
        report = engine.check(graph, rules=[tmp_path])
        assert not [f for f in report.findings if f.code == "LC901"], engine.describe(report)
