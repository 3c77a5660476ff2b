"""The command `cost`: what it prints, what it writes, and how it refuses."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from layoutcheck.cli import main
from layoutcheck.json_form import graph_to_json
from layoutcheck.models.builder import Builder
from layoutcheck.resources import rules_dir
from layoutcheck.testing.decoder import Decoder, Layers


@pytest.fixture
def graph(tmp_path: Path) -> str:
    """A decoder of two repeated layers on 4 ranks."""
    path = tmp_path / "decoder.json"
    decoder = Decoder((Layers("dense", repeats=3), Layers("moe", repeats=2)), style="sp", tokens=64)
    path.write_text(json.dumps(graph_to_json(decoder.build("repeated"))))
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    axis = ["--token-axis", "hidden_states:0"] if words and words[0].endswith("decoder.json") else []
    code = main(["cost", *words, *axis])
    out, err = capsys.readouterr()
    return code, out, err


def data(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    code, out, err = run(capsys, *words, "--format", "json")
    assert (code, err) == (0, "")
    found: dict[str, object] = json.loads(out)
    return found


def test_the_lines_of_every_breakdown_add_up_to_the_total(
    graph: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for by in ("role", "op", "layer", "kernel", "node"):
        found = data(capsys, graph, "--hardware", "h100", "--by", by)
        rows, total = found["rows"], found["total"]
        assert isinstance(rows, list) and isinstance(total, dict)
        for what in ("us", "flops", "bytes", "wire", "calls"):
            assert sum(r[what] for r in rows) == pytest.approx(total[what], rel=1e-12)
    assert [r["name"] for r in data(capsys, graph, "--hardware", "h100", "--by", "layer")["rows"]][:2] == [  # type: ignore[attr-defined]
        "0-2",
        "3-4",
    ]


MOVING = (
    "glm-5.1",
    "--hardware",
    "ascend-a3",
    "--tp",
    "16",
    "--contract",
    "dsa-cp-query-local",
    "--tokens",
    "4096",
)


def test_an_engine_says_which_weights_move_beside_kernels(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = (*MOVING, "--distribute", "q_b_proj", "--gather", "o_proj")
    profile = json.loads((rules_dir() / "engines" / "vllm-ascend.json").read_text())
    profile["gathered"]["overlap"] = False
    own = tmp_path / "own.json"
    own.write_text(json.dumps(profile))
    totals = {}
    for name, more in (
        ("alone", ()),
        ("both", ("--overlap",)),
        ("vllm-ascend", ("--engine", "vllm-ascend")),
        ("own", ("--engine", str(own))),
    ):
        found = data(capsys, *words, *more)
        notes = [n for n in found["notes"] if "of weights runs" in n]  # type: ignore[attr-defined]
        totals[name] = found["total"]["us"]  # type: ignore[index]
        if name in ("vllm-ascend", "own"):
            assert notes == [
                f"{name}: broadcast of weights runs beside the kernels of their layers",
                f"{name}: all_gather of weights runs "
                + ("on its own" if name == "own" else "beside the kernels of their layers"),
            ]
        else:
            assert notes == []
    assert totals["both"] == totals["vllm-ascend"] < totals["own"] < totals["alone"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--engine", "none"), "no engine profile 'none'; known are parameters-only, vllm, vllm-ascend"),
        (("--engine", "vllm", "--overlap"), "--overlap: the engine's profile says what overlaps"),
        (
            ("--engine", "vllm", "--distribute", "q_b_proj"),
            "--distribute: vllm distributes no weights over layers",
        ),
        (("--engine", "vllm", "--gather", "o_proj"), "--gather: vllm gathers no whole weights"),
    ],
)
def test_what_an_engine_does_not_do_is_refused(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, *MOVING, *words) == (2, "", f"error: {message}\n")


def test_a_graph_without_a_token_count_asks_for_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    program = Builder(1, 7)
    x = program.input("x", (7, 8))
    product = program.call("aten.mm.default", x, program.weight(8, 8), shape=(7, 8))
    data_ = graph_to_json(program.graph(product))
    text = json.dumps(data_).replace('"shape": [7, 8]', '"shape": ["s0", 8]')
    path = tmp_path / "dynamic.json"
    path.write_text(text)
    code, _, err = run(capsys, str(path), "--hardware", "h100", "--token-axis", "x:0")
    assert (code, err) == (2, "error: T has no value in the graph: give --tokens N\n")
    assert run(capsys, str(path), "--hardware", "h100", "--token-axis", "x:0", "--tokens", "9")[0] == 0


def test_text_names_counts_shares_and_evidence(graph: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, graph, "--hardware", "a100", "--tokens", "256", "--tp", "2", "--top", "2")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == f"{graph} on NVIDIA A100 SXM 80 GB"
    assert "T = 256" in lines[1] and "tp = 2" in lines[1] and lines[1].endswith("; one rank")
    assert any(line.startswith("total ") and " 100.0 % " in line for line in lines)
    assert any("by formulas fitted on other hardware" in line for line in lines)
    assert "nothing was measured on NVIDIA A100 SXM 80 GB" in lines


def test_formulas_give_the_numbers_back(graph: str, capsys: pytest.CaptureFixture[str]) -> None:
    import sympy

    found = data(capsys, graph, "--hardware", "h100", "--formula", "text")
    values, rows, formulas = found["values"], found["rows"], found["formulas"]
    assert isinstance(values, dict) and isinstance(rows, list) and isinstance(formulas, list)
    names = {**{n: sympy.Integer(v) for n, v in values.items()}, "ceil": sympy.ceiling}
    by_name = {f["name"]: f for f in formulas}
    assert set(by_name) == {r["name"] for r in rows} | {"total"}
    for row in rows:
        formula = by_name[row["name"]]
        for what in ("read", "written", "wire"):
            assert sympy.sympify(formula[what], names) == pytest.approx(row[what])
        assert row["read"] + row["written"] == pytest.approx(row["bytes"])
        flops = {d: float(sympy.sympify(f, names)) for d, f in formula["flops"].items()}
        assert flops == pytest.approx(row["flops_by_dtype"])
        assert sum(flops.values()) == pytest.approx(row["flops"])
    latex = data(capsys, graph, "--hardware", "h100", "--formula", "latex")["formulas"]
    assert isinstance(latex, list)
    assert any(r"\left\lceil{\frac{T}{tp}}\right\rceil" in f["read"] for f in latex)


def test_a_timeline_ends_with_the_total(
    graph: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "trace.json"
    found = data(capsys, graph, "--hardware", "b200", "--trace", str(out))
    events = [e for e in json.loads(out.read_text())["traceEvents"] if e["ph"] == "X"]
    total = found["total"]
    assert isinstance(total, dict)
    assert len(events) == total["calls"]
    assert events[-1]["ts"] + events[-1]["dur"] == pytest.approx(total["us"], rel=1e-4)
    assert {e["tid"] for e in events} == {1, 2}


def test_a_users_table_wins_and_is_named(
    graph: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "mine.csv").write_text("m,n,k,us\n64,16,32,1000\n")
    mapping = {
        "format": "layoutcheck-tables/1",
        "tables": [
            {
                "file": "mine.csv",
                "kernel": "gemm",
                "exact": {"n": "n", "k": "k"},
                "along": {"m": "m"},
                "time": "us",
            }
        ],
    }
    (tmp_path / "mine.json").write_text(json.dumps(mapping))
    found = data(capsys, graph, "--hardware", "h100", "--table", str(tmp_path / "mine.csv"))
    evidence, tables = found["evidence_us"], found["tables"]
    assert isinstance(evidence, dict) and isinstance(tables, dict)
    # three products of 3 layers of attention have these sizes, and those of 2 layers
    assert evidence["table"] == 1000.0 * 15
    assert tables["mine.csv:gemm/bfloat16"] == pytest.approx(
        15000 / found["total"]["us"]  # type: ignore[index]
    )
    assert found["unused_tables"] == []
    mapping["tables"][0]["kernel"] = "gemn"  # type: ignore[index]
    (tmp_path / "mine.json").write_text(json.dumps(mapping))
    code, out, _ = run(capsys, graph, "--hardware", "h100", "--table", str(tmp_path / "mine.csv"))
    said = "no time from mine.csv:gemn/bfloat16: no kernel here is of its class and inside its sizes"
    assert (code, out.splitlines().count(said)) == (0, 1)


def test_hardware_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--list-hardware")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[::2]] == [
        *("a100", "ascend-a2", "ascend-a3", "b200", "gb200", "h100", "h20", "h200", "mi300x"),
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give a graph, a config.json or a model's name (or --list-hardware)"),
        (
            ["G"],
            "give --hardware; known are a100, ascend-a2, ascend-a3, b200, gb200, h100, h20, h200, mi300x, or a .json",
        ),
        (
            ["G", "--hardware", "x"],
            "unknown hardware 'x'; known are a100, ascend-a2, ascend-a3, b200, gb200, h100, h20, h200, mi300x, or give a .json",
        ),
        (["G", "--hardware", "h100", "--at", "S=3"], "no size depends on S; there is T, tp"),
        (["G", "--hardware", "h100", "--at", "T=x"], "--at: T is 'x', not a number"),
        (["G", "--hardware", "h100", "--at", "T=0"], "T is 0"),
        (["G", "--hardware", "h100", "--group", "tp=p"], "--group: the size of tp is not a number"),
        (["G", "--hardware", "h100", "--group", "tp=2", "--tp", "4"], "--group: tp is given twice: 2 and 4"),
        (
            ["G", "--hardware", "h100", "--group", "foo=2"],
            "--group: no size depends on the group foo; there is tp, T",
        ),
        (["G", "--hardware", "h100", "--mtp"], "--mtp: is for models; a graph is what it is"),
        (["G", "--hardware", "h100", "--table", "none.csv"], "--table: no such file: none.csv"),
        (["G", "--hardware", "h100", "--kernels", "none"], "--kernels: no such folder: none"),
        (
            ["G", "--hardware", "h100", "--trace", "none/t.json"],
            "--trace: cannot write none/t.json: No such file or directory",
        ),
    ],
)
def test_bad_input_is_one_clear_line(
    words: list[str],
    message: str,
    graph: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    code, out, err = run(capsys, *(graph if w == "G" else w for w in words))
    assert (code, out, err) == (2, "", f"error: {message}\n")
    assert sorted(tmp_path.iterdir()) == before


def test_a_table_without_a_mapping_is_refused(
    graph: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    table = tmp_path / "t.csv"
    table.write_text("m,us\n1,1\n")
    code, _, err = run(capsys, graph, "--hardware", "h100", "--table", str(table))
    assert (code, err) == (2, f"error: {table}: a table needs a mapping of its columns: t.json beside it\n")


def test_a_command_takes_less_than_two_seconds(graph: str, capsys: pytest.CaptureFixture[str]) -> None:
    start = time.process_time()
    run(capsys, graph, "--hardware", "ascend-a3", "--formula", "text")
    assert time.process_time() - start < 2
