"""What running shows of findings: where the checker says that something is wrong, a run goes wrong there."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import jsonschema  # noqa: E402
from support.builder import DIALECTS, GraphBuilder  # noqa: E402
from support.faults import FAULTS, Fault, Size  # noqa: E402
from support.faults.base import cut, enter_full, finish, whole  # noqa: E402

import layoutcheck  # noqa: E402
from layoutcheck.cli import main  # noqa: E402
from layoutcheck.errors import InputError  # noqa: E402
from layoutcheck.findings import Finding  # noqa: E402
from layoutcheck.infer.solver.analysis import analyse  # noqa: E402
from layoutcheck.json_form import graph_from_json  # noqa: E402
from layoutcheck.ranks.counterexample import CounterExample  # noqa: E402
from layoutcheck.ranks.shown import replay  # noqa: E402

torch.set_num_threads(1)
SAME_NUMBERS = {("19", "T1"), ("19", "T1-rank1")}
"""One token: what the other ranks hold beside rank 0 is padding."""


def shown(document: Any) -> list[Finding]:
    report = layoutcheck.check(graph_from_json(document), counter_examples=True)
    return [f for f in report.findings if f.code.startswith(("LC1", "LC2"))]


def statuses(findings: list[Finding]) -> Counter[str]:
    return Counter(f.counter_example["status"] for f in findings if f.counter_example is not None)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.key)
def test_every_fault_has_one(fault: Fault, dialect: str) -> None:
    """Every LC1xx and LC2xx of the fault list differs on ranks, but for those that change no number."""
    for size in fault.sizes:
        found = shown(fault._build(dialect, size, True)[0])
        same = (fault.key, size.label) in SAME_NUMBERS
        assert set(statuses(found)) <= {"conservative" if same else "differs"}, [f.details for f in found]


def two_faults() -> Any:
    """Two shared experts one after the other, both with an all_reduce that mixes tokens."""
    s = Size()
    b = GraphBuilder({"tp": s.p}, rank=s.rank, T=s.T)
    x = enter_full(b, s)
    for _ in range(2):
        y = b.all_reduce(b.mlp(cut(b, s, b.norm(x)), s.inner, (s.up(), s.down())))
        x = b.add(x, whole(b, s, y))
    finish(b, s, x, local=False)
    return b.graph()


def test_the_second_fault_shows_by_itself() -> None:
    """What the first one does is put right before the second one is looked at; both can be replayed."""
    first, second = shown(two_faults())
    analysis = analyse(graph_from_json(two_faults()))
    for finding, after in ((first, 0), (second, 1)):
        example = CounterExample.from_dict(json.loads(json.dumps(finding.counter_example)))
        assert (example.node, example.world, len(example.after)) == (finding.node, 4, after)
        assert replay(analysis, example) == example


def test_one_that_no_run_shows() -> None:
    fault = next(f for f in FAULTS if f.key == "19")
    size = next(s for s in fault.sizes if s.label == "T1")
    found = shown(fault._build("tensor_cast", size, True)[0])
    assert [f.details[-1] for f in found] == ["conservative  no run differs here: p=4, T=1, 2 seeds"]


def test_one_that_cannot_be_run() -> None:
    graph = next(f for f in FAULTS if f.key == "1").faulty("tensor_cast")[0]
    for n in graph["nodes"]:
        n["target"] = n["target"].replace("tensor_cast.silu", "my.silu")
    book = "my.silu(x)\n    elementwise\n"
    found = checked(graph, book)
    assert [f.details[-1] for f in found] == [
        "not run  verify: no reference implementation of my.silu.default"
    ]


def checked(graph: Any, rules: str) -> list[Finding]:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "my.rules").write_text(rules)
        report = layoutcheck.check(graph_from_json(graph), rules=[folder], counter_examples=True)
    return [f for f in report.findings if f.code.startswith(("LC1", "LC2"))]


# ---- the commands


def written(graph: Any, folder: Path) -> str:
    path = folder / "graph.json"
    path.write_text(json.dumps(graph))
    return str(path)


def test_check_prints_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph, _, node = next(f for f in FAULTS if f.key == "1").faulty("tensor_cast")
    path = written(graph, tmp_path)
    assert main(["check", path, "--counter-examples"]) == 1
    line = next(x for x in capsys.readouterr().out.splitlines() if "counter-example" in x)
    assert line.startswith(
        f"  counter-example  p=4, T=16, seed 0: {node}: rank 0, rows 0..3 of 4; element [0, 0]: "
    )
    assert main(["check", path]) == 1
    assert "counter-example" not in capsys.readouterr().out
    assert main(["check", path, "--counter-examples", "--format", "sarif"]) == 1
    result = json.loads(capsys.readouterr().out)["runs"][0]["results"][0]
    assert "counter-example  p=4" in result["message"]["text"]
    assert result["properties"]["finding"]["counter_example"]["world"] == 4


def test_a_report_and_a_finding_are_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, report = written(two_faults(), tmp_path), tmp_path / "report.json"
    assert main(["check", path, "--counter-examples", "--format", "json", "-o", str(report)]) == 1
    document = json.loads(report.read_text())
    schema = Path(layoutcheck.__file__).parent / "reports" / "report-1.schema.json"
    jsonschema.validate(document, json.loads(schema.read_text()))
    capsys.readouterr()
    assert main(["replay", str(report)]) == 1
    lines = capsys.readouterr().out.splitlines()
    nodes = [f["node"] for f in document["graphs"][0]["findings"]]
    assert [x.split(": p=4")[0] for x in lines] == [f"LC203 {n}: differs" for n in nodes]
    one = tmp_path / "finding.json"
    one.write_text(json.dumps(document["graphs"][0]["findings"][1]))
    assert main(["replay", str(one)]) == 1
    assert capsys.readouterr().out == lines[1].split(": ", 1)[1] + "\n"
    Path(path).write_text(json.dumps(next(f for f in FAULTS if f.key == "1").repaired("tensor_cast")))
    assert main(["replay", str(report)]) == 0


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"graphs": []}, "it holds no counter-example"),
        ({"graphs": 3}, "it holds no counter-example"),
        (
            {"graphs": [{"findings": [{"counter_example": {"status": "conservative"}}]}]},
            "it holds no counter-example",
        ),
        ({"counter_example": {"status": "differs"}}, "not a layoutcheck-counterexample/1 file"),
        ([], "this holds no JSON object, so it is not a counter-example"),
    ],
)
def test_what_holds_none(
    document: Any, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.json"
    path.write_text(json.dumps(document))
    assert main(["replay", str(path)]) == 2
    assert said in capsys.readouterr().err


def test_replay_on_another_mesh() -> None:
    analysis = analyse(graph_from_json(two_faults()))
    with pytest.raises(InputError, match="the graph runs on 4 ranks, the counter-example on 2"):
        replay(analysis, CounterExample(2, 16, 0, "x", ""))
