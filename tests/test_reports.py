"""Renderings of reports: every message is pinned, and the machine forms are checked against schemas."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layoutcheck.codes import CODES, Severity
from layoutcheck.findings import Evidence, Finding, Fix, Operand, Place, Report, Statistics, Step
from layoutcheck.reports import FORMATS, render
from layoutcheck.reports.github import escape_data, escape_property
from layoutcheck.reports.places import relative_path, uri
from layoutcheck.reports.wording import price, summary

SLICED = Finding(
    code="LC102",
    node="add_rms_norm2",
    module="layers.17.mlp",
    operand=1,
    location=Place("model/layers.py", 46, "forward"),
    message="same extent, different tokens: rank r needs tokens r*T/16 .. (r+1)*T/16",
    operands=(
        Operand("wait_34", 0, "bf16[T/16@tp, 6144]", "from reduce_scatter_34"),
        Operand("slice_81", 1, "bf16[T/16, 6144]", "prefix(t, 0, T/16), Full on tp"),
    ),
    path=(Step("embedding", "Full"), Step("region_begin", "0"), Step("slice_81", "[0 : T/16]")),
    fixes=(
        Fix("slice at rank(tp)*T/16", "0", 1, True),
        Fix("all_reduce instead of reduce_scatter", "2*(p-1)/p*T*6144*2", 78, False),
    ),
    details=("counter-example  p=2, T=4, rank 1: got tokens 0..1, want 2..3",),
    consequences=(("LC103", "all_gather_3"), ("LC903", "view_9")),
)
STALE = Finding(code="LC902", node="view_3", message="recorded [4096, 6144], computed [256, 6144]")
STATS = Statistics(nodes=421, values=600, derived=540, inferred=30, declared=20, defaulted=10)
REPORT = Report((SLICED, STALE), STATS, "graphs/a.json", (("w_0", "bf16[6144, 768@tp]"),))

BLOCK = """\
LC102 wrong-tokens  layers.17.mlp.add_rms_norm2, operand 1
  at  model/layers.py:46
  operand 0  wait_34   bf16[T/16@tp, 6144]  from reduce_scatter_34
  operand 1  slice_81  bf16[T/16, 6144]     prefix(t, 0, T/16), Full on tp
  same extent, different tokens: rank r needs tokens r*T/16 .. (r+1)*T/16
  path   embedding Full -> region_begin 0 -> slice_81 [0 : T/16]  <- first divergence
  fix 1  slice at rank(tp)*T/16  0 bytes
  fix 2  all_reduce instead of reduce_scatter  + 2*(p-1)/p*T*6144*2 bytes, x 78  (not checked)
  counter-example  p=2, T=4, rank 1: got tokens 0..1, want 2..3
  counted under it  LC103 all_gather_3, LC903 view_9

LC902 stale-shape (warning)  view_3
  recorded [4096, 6144], computed [256, 6144]

Found 1 error, 1 warning; 2 follow from them. 421 nodes checked.
"""

# What GitHub's documentation of code scanning asks of SARIF 2.1.0, as far as layoutcheck writes it.
SARIF_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["$schema", "version", "runs"],
    "additionalProperties": False,
    "properties": {
        "$schema": {"type": "string"},
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "minItems": 1,
            "maxItems": 20,
            "items": {
                "type": "object",
                "required": ["tool", "results"],
                "properties": {
                    "tool": {
                        "type": "object",
                        "required": ["driver"],
                        "properties": {
                            "driver": {
                                "type": "object",
                                "required": ["name", "rules", "semanticVersion"],
                                "properties": {
                                    "rules": {"type": "array", "items": {"$ref": "#/$defs/rule"}},
                                },
                            }
                        },
                    },
                    "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                    "results": {"type": "array", "items": {"$ref": "#/$defs/result"}},
                },
            },
        },
    },
    "$defs": {
        "text": {
            "type": "object",
            "required": ["text"],
            "properties": {"text": {"type": "string", "minLength": 1}},
        },
        "rule": {
            "type": "object",
            "required": ["id", "shortDescription", "fullDescription", "help", "defaultConfiguration"],
            "not": {"required": ["helpUri"]},
            "properties": {
                "id": {"type": "string", "maxLength": 255},
                "name": {"type": "string", "pattern": "^[A-Z][A-Za-z]*$", "maxLength": 255},
                "shortDescription": {"$ref": "#/$defs/text"},
                "fullDescription": {"$ref": "#/$defs/text"},
                "help": {"allOf": [{"$ref": "#/$defs/text"}, {"required": ["markdown"]}]},
                "defaultConfiguration": {"properties": {"level": {"enum": ["note", "warning", "error"]}}},
            },
        },
        "result": {
            "type": "object",
            "required": ["ruleId", "ruleIndex", "level", "message", "locations", "partialFingerprints"],
            "properties": {
                "level": {"enum": ["note", "warning", "error"]},
                "message": {"$ref": "#/$defs/text"},
                "locations": {
                    "type": "array",
                    "minItems": 1,
                    "items": {
                        "type": "object",
                        "required": ["physicalLocation", "logicalLocations"],
                        "properties": {
                            "physicalLocation": {
                                "type": "object",
                                "required": ["artifactLocation", "region"],
                                "properties": {
                                    "artifactLocation": {
                                        "type": "object",
                                        "required": ["uri"],
                                        "properties": {"uri": {"type": "string", "pattern": "^[!-~]+$"}},
                                    },
                                    "region": {
                                        "required": ["startLine"],
                                        "properties": {"startLine": {"type": "integer", "minimum": 1}},
                                    },
                                },
                            },
                            "logicalLocations": {
                                "type": "array",
                                "minItems": 1,
                                "items": {"required": ["fullyQualifiedName", "kind"]},
                            },
                        },
                    },
                },
                "partialFingerprints": {
                    "required": ["primaryLocationLineHash"],
                    "additionalProperties": {"type": "string", "minLength": 1},
                },
            },
        },
    },
}


def _sarif(*reports: Report) -> dict[str, Any]:
    log: dict[str, Any] = json.loads(render(reports, "sarif"))
    jsonschema.validate(log, SARIF_SCHEMA)
    return log["runs"][0]


def test_text_block_is_the_documented_one() -> None:
    assert render([REPORT], "text") == BLOCK


def test_colours_only_add_escapes() -> None:
    colored = render([REPORT], "text", color=True)
    assert "\x1b[1;31mLC102" in colored
    for escape in ("\x1b[1;31m", "\x1b[1;33m", "\x1b[1m", "\x1b[2m", "\x1b[32m", "\x1b[0m"):
        colored = colored.replace(escape, "")
    assert colored == BLOCK


@pytest.mark.parametrize(
    ("findings", "said"),
    [
        ((), "No findings."),
        ((STALE,), "Found 1 warning."),
        ((STALE, STALE), "Found 2 warnings."),
        ((SLICED,), "Found 1 error; 2 follow from it."),
        (
            (Finding(code="LC101", node="a", message="m", consequences=(("LC103", "b"),)),),
            "Found 1 error; 1 follows from it.",
        ),
        ((Finding(code="LC101", node="a", message="m", severity=Severity.NOTE),), "Found 1 note."),
    ],
)
def test_summary(findings: tuple[Finding, ...], said: str) -> None:
    assert summary(findings) == said


def test_statistics_are_printed_when_asked_for() -> None:
    text = render([REPORT], "text", stats=True)
    assert "statistics of graphs/a.json: 421 nodes, 600 values" in text
    assert (
        "layouts  derived 540 (90.0 %), declared 20 (3.3 %), inferred 30 (5.0 %), defaulted 10 (1.7 %)"
        in text
    )
    assert "inferred  bf16[6144, 768@tp]: w_0" in text
    assert "statistics" not in render([REPORT], "text")


def test_several_graphs_are_told_apart() -> None:
    other = Report((STALE,), graph_path="graphs/b.json")
    text = render([REPORT, other], "text")
    assert text.index("graphs/a.json") < text.index("LC102") < text.index("graphs/b.json")


def test_a_rule_to_paste_keeps_its_lines() -> None:
    fix = Fix("add a rule:\nmy.op(x)\n    elementwise\n", "0", 1, False)
    finding = Finding(
        code="LC901", node="n", message="m", operands=(Operand("x", 0, "f32[T]", "x"),), fixes=(fix,)
    )
    assert render([Report((finding,))], "text").splitlines()[1:6] == [
        "  operand 0  x  f32[T]",
        "  m",
        "  fix 1  add a rule:  0 bytes  (not checked)",
        "         my.op(x)",
        "             elementwise",
    ]


@pytest.mark.parametrize(
    ("fix", "said"),
    [
        (Fix("f"), "0 bytes"),
        (Fix("f", "2*T*h"), "+ 2*T*h bytes"),
        (Fix("f", "-2*T", 3), "- 2*T bytes, x 3"),
        (Fix("f", "0", 2), "0 bytes, x 2"),
    ],
)
def test_price(fix: Fix, said: str) -> None:
    assert price(fix) == said


def test_many_consequences_are_counted_by_code() -> None:
    many = tuple(("LC103", f"g{i}") for i in range(6)) + (("LC101", "x"),)
    text = render([Report((Finding(code="LC101", node="n", message="m", consequences=many),))], "text")
    assert "LC103 g3, and 1 more LC101, and 2 more LC103" in text


@pytest.mark.parametrize("form", FORMATS)
def test_control_characters_of_a_hostile_graph_do_not_reach_the_terminal(form: str) -> None:
    nasty = "n\x1b[2Jx\r::error::y"
    finding = Finding(
        code="LC101",
        node=nasty,
        message=f"m {nasty}",
        module=nasty,
        operands=(Operand(nasty, 0, nasty, nasty),),
    )
    text = render([Report((finding,), graph_path=f"{nasty}.json")], form)
    assert not any(ord(c) < 32 and c != "\n" for c in text)
    if form == "github":
        assert text.count("\n") == 1


ANY_TEXT = st.text(st.characters(), max_size=12)  # lone surrogates included: JSON files can hold them


@given(st.lists(ANY_TEXT, min_size=7, max_size=7), st.one_of(st.none(), st.integers(-2, 5)))
def test_any_text_renders_in_every_form(texts: list[str], line: int | None) -> None:
    node, module, message, layout, file, fix, path = texts
    finding = Finding(
        code="LC101",
        node=node,
        module=module,
        message=message or "m",
        location=Place(file, line),
        operands=(Operand(node, 0, layout, module),),
        path=(Step(node, message),),
        fixes=(Fix(fix, layout),),
        details=(message,),
        caused_by=node,
    )
    report = Report((finding,), graph_path=path, inferred=((node, layout),))
    for form in FORMATS:
        render([report], form, color=True, stats=True).encode("utf-8")
    assert render([report], "github").count("\n") == 1
    _sarif(report)


def test_json_fits_its_schema() -> None:
    data = json.loads(render([REPORT, Report()], "json"))
    schema = json.loads((files("layoutcheck.reports") / "report-1.schema.json").read_text())
    jsonschema.validate(data, schema)
    assert data["summary"] == {"errors": 1, "warnings": 1, "notes": 0, "consequences": 2}
    first = data["graphs"][0]["findings"][0]
    assert list(first) == [
        "code", "name", "severity", "node", "module", "location", "message",
        "operands", "path", "fixes", "caused_by", "consequences",
    ]  # fmt: skip
    assert first["location"] == {"file": "model/layers.py", "line": 46, "function": "forward"}
    assert first["fixes"][1] == {
        "text": "all_reduce instead of reduce_scatter", "bytes": "2*(p-1)/p*T*6144*2",
        "times": 78, "verified": False, "leaves": [],
    }  # fmt: skip


def test_sarif_is_what_github_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = _sarif(REPORT)
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == ["LC102", "LC902"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
    first, second = run["results"]
    assert (first["level"], second["level"]) == ("error", "warning")
    place = first["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "model/layers.py", "uriBaseId": "%SRCROOT%"}
    assert place["region"] == {"startLine": 46}
    # without a source line the graph file itself is the place
    assert second["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "graphs/a.json"
    assert first["locations"][0]["logicalLocations"][0]["fullyQualifiedName"] == "layers.17.mlp.add_rms_norm2"


def test_sarif_describes_every_code() -> None:
    findings = tuple(Finding(code=code, node="n", message="m") for code in CODES)
    run = _sarif(Report(findings, graph_path="g.json"))
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == list(CODES)


def test_fingerprints_tell_findings_apart_and_stay_when_lines_move() -> None:
    moved = Finding(
        code="LC102",
        node="add_rms_norm2",
        module="layers.17.mlp",
        message="x",
        location=Place("model/layers.py", 99),
    )
    prints = [r["partialFingerprints"]["primaryLocationLineHash"] for r in _sarif(REPORT)["results"]]
    again = [
        r["partialFingerprints"]["primaryLocationLineHash"] for r in _sarif(Report((moved, moved)))["results"]
    ]
    assert len(set(prints)) == 2
    assert again[0] == prints[0]
    assert again[1] != again[0]


def test_github_annotation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = render([REPORT], "github").splitlines()
    command, _, message = first[2:].partition("::")
    assert command == "error file=model/layers.py,line=46,title=LC102 wrong-tokens"
    assert message.startswith("layers.17.mlp.add_rms_norm2, operand 1: same extent, different tokens: ")
    assert "%0Afix: slice at rank(tp)*T/16 (0 bytes)%0A" in first
    assert second.startswith("::warning file=graphs/a.json,line=1,title=LC902 stale-shape::view_3: recorded")
    note = Finding(code="LC101", node="a", message="m", severity=Severity.NOTE)
    assert render([Report((note,), graph_path="g.json")], "github").startswith("::notice ")


@given(st.text())
def test_github_escapes_can_be_undone(text: str) -> None:
    def undo(escaped: str) -> str:
        for code, char in (("%3A", ":"), ("%2C", ","), ("%0D", "\r"), ("%0A", "\n"), ("%25", "%")):
            escaped = escaped.replace(code, char)
        return escaped

    assert undo(escape_data(text)) == text
    assert undo(escape_property(text)) == text
    assert not set("\r\n:,") & set(escape_property(text))


def test_paths_are_relative_to_the_working_directory(tmp_path: Path) -> None:
    assert relative_path(str(tmp_path / "a b" / "c.py"), tmp_path) == "a b/c.py"
    assert uri(str(tmp_path / "a b" / "c.py"), tmp_path) == "a%20b/c.py"
    assert relative_path("x/../y.py", tmp_path) == "y.py"
    assert relative_path("../y.py", tmp_path) is None
    assert uri("/elsewhere/ü.py", tmp_path) == "file:///elsewhere/%C3%BC.py"
    assert relative_path("src\\model.py", tmp_path) == "src/model.py"
    assert uri("C:\\src\\model.py", tmp_path).endswith("C%3A/src/model.py")


def test_selecting_codes_takes_the_longest_prefix() -> None:
    codes = ("LC101", "LC102", "LC203", "LC902")
    report = Report(tuple(Finding(code=code, node="n", message="m") for code in codes))

    def left(select: tuple[str, ...] = (), ignore: tuple[str, ...] = ()) -> list[str]:
        return [finding.code for finding in report.filtered(select, ignore).findings]

    assert left() == list(codes)
    assert left(("LC1",)) == ["LC101", "LC102"]
    assert left(("LC1",), ("LC102",)) == ["LC101"]
    assert left(("LC102",), ("LC1",)) == ["LC102"]
    assert left((), ("LC",)) == []
    assert left(("LC203",), ("LC203",)) == []


def test_exit_code_and_severities() -> None:
    assert (REPORT.exit_code(), Report((STALE,)).exit_code(), Report((STALE,)).exit_code(strict=True)) == (
        1,
        0,
        1,
    )
    assert Report().exit_code(strict=True) == 0
    assert (REPORT.errors, REPORT.warnings, REPORT.notes) == ((SLICED,), (STALE,), ())


def test_layouts_are_looked_up_by_name_or_node() -> None:
    report = Report(layout_lookup={"x": "bf16[T]"}.__getitem__)
    assert report.layout_of("x") == "bf16[T]"
    assert report.layout_of(Operand("x", 0, "")) == "bf16[T]"
    with pytest.raises(KeyError):
        report.layout_of("y")
    with pytest.raises(KeyError, match="no layouts"):
        Report().layout_of("x")


def test_a_finding_needs_a_known_code_and_takes_any_location() -> None:
    with pytest.raises(ValueError, match="LC999"):
        Finding(code="LC999", node="n", message="m")

    class Elsewhere:
        file, line, function = "a.py", 3, "forward"

    finding = Finding(code="LC101", node="n", message="m", location=Elsewhere(), module=None)
    assert finding.location == Place("a.py", 3, "forward")
    assert finding.module == ""


def test_shares_add_up() -> None:
    assert sum(STATS.share(evidence) for evidence in Evidence) == pytest.approx(1)
    assert Statistics().share(Evidence.DERIVED) == 0
