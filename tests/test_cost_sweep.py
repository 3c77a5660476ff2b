"""Sweeps: every point is what `cost` says, compiled or not, and what is written is all of it."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutcheck.cli import main
from layoutcheck.cli.run_sweep import integers
from layoutcheck.cost import sweep as sweeping
from layoutcheck.cost.compiled import compile_formulas
from layoutcheck.cost.evaluate import time_graph
from layoutcheck.cost.hardware import load_hardware
from layoutcheck.cost.model_cost import analysed_step, model_cost
from layoutcheck.cost.step_memory import step_memory
from layoutcheck.cost.sweep import Grid, pareto, sweep
from layoutcheck.cost.time_formulas import TOTAL, compile_times, time_formulas
from layoutcheck.errors import InputError
from layoutcheck.memory.build import symbols_of
from layoutcheck.memory.cache import Cache, bytes_per_token
from layoutcheck.memory.graph_ledger import graph_memory
from layoutcheck.memory.parallel import Parallel
from layoutcheck.memory.plan import Plan
from layoutcheck.models import load_model
from layoutcheck.models.step import step_for
from layoutcheck.symbols import substitute, to_sympy

CASES = [
    ("glm-5.1", "ascend-a3", {"tp": 16, "contract": "dsa-cp-query-local", "quant": "int8"}),
    ("deepseek-v3", "h200", {"tp": 8, "quant": "fp8"}),
    ("qwen3-8b", "b200", {"tp": 4, "decode": True}),
]


@pytest.mark.parametrize(("name", "hardware", "step"), CASES)
def test_compiled_times_are_those_of_single_points(name: str, hardware: str, step: dict[str, Any]) -> None:
    config = load_model(name)
    cost, part = model_cost(config, step_for(config, **step)), load_hardware(hardware)
    fixed = {n: v for n, v in cost.values.items() if n != "context"}
    program = compile_times(cost, part, fixed)
    assert program.inexact_ceilings == 0
    random = np.random.default_rng(0)
    tokens, context = random.integers(1, 100_000, 40), random.integers(0, 60_000, 40)
    found = program(T=tokens, context=context)
    for i, (t, c) in enumerate(zip(tokens.tolist(), context.tolist())):
        report = time_graph(cost, part, {"T": t, "context": c})
        roles = {r.name: r.us for r in report.rows("role")}
        for role, us in {**roles, TOTAL: report.total_us}.items():
            assert found[role][i] == pytest.approx(us, rel=1e-11)
        exact = program.at(T=t, context=c)
        assert float(exact[TOTAL]) == pytest.approx(found[TOTAL][i], rel=1e-12)


@pytest.mark.parametrize(("name", "hardware", "step"), CASES)
def test_a_sweep_of_many_points_is_exact_at_each(name: str, hardware: str, step: dict[str, Any]) -> None:
    """So many points that token counts repeat and are computed once each: work to the last integer, times to 1e-12."""
    config = load_model(name)
    cost, part = model_cost(config, step_for(config, **step)), load_hardware(hardware)
    fixed = {n: v for n, v in cost.values.items() if n != "context"}
    work: dict[str, Any] = defaultdict(lambda: sympy.Integer(0))
    for term in cost.terms:
        sizes = {n: to_sympy(substitute(s, fixed)) for n, s in term.sizes.items()}
        one = term.work(sizes)
        for what in ("flops", "read", "write", "wire"):
            work[what] += term.count * getattr(one, what)
    program = compile_formulas({**work, TOTAL: time_formulas(cost, part, fixed)[TOTAL]})
    random = np.random.default_rng(1)
    tokens, context = random.integers(1, 4000, 30_000), random.integers(0, 60_000, 30_000)
    found = program(T=tokens, context=context)
    for i in random.integers(0, 30_000, 60).tolist():
        at = {"T": int(tokens[i]), "context": int(context[i])}
        exact = program.at(**at)
        for what, value in exact.items():
            if isinstance(value, int):
                assert int(found[what][i]) == value
            assert found[what][i] == pytest.approx(float(value), rel=1e-12)
        values = {**cost.values, **at}
        for what in work:
            by_hand = sum(t.count * getattr(t.work(t.numbers(values)), what) for t in cost.terms)
            assert float(exact[what]) == pytest.approx(float(by_hand), rel=1e-15)


def test_a_block_is_the_same_compiled_and_point_by_point(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_model("qwen3-8b")
    grid = Grid(("h100", "ascend-a3"), tp=(1, 2), tokens=(1, 100, 4097), context=(0, 1000))
    plain = list(sweep(config, grid).rows())
    monkeypatch.setattr(sweeping, "COMPILE_FROM", 1)
    compiled = list(sweep(config, grid).rows())
    assert len(plain) == len(compiled) == grid.points
    for a, b in zip(plain, compiled):
        assert a.keys() == b.keys()
        for name, value in a.items():
            assert b[name] == (pytest.approx(value, rel=1e-11) if isinstance(value, float) else value)


def test_weights_are_those_of_the_parameters() -> None:
    """8.19 billion parameters of two bytes, a quarter a rank, but for the norms."""
    config = load_model("qwen3-8b")
    (row,) = sweep(config, Grid(("h100",), tp=(4,))).rows()
    h, kv, q, inner = 4096, 1024, 4096, 12288
    layer = h * (2 * q + 2 * kv + 3 * inner)
    norms = 36 * (2 * h + 2 * 128) + h
    tables = 2 * 40960 * 128  # of the rotary embedding
    wanted = 2 * ((36 * layer + 2 * 151936 * h) // 4 + norms + tables)
    assert row["weights_gib"] * 2**30 == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("name", ["glm-5.1", "glm-5.2", "deepseek-v3", "qwen3-8b", "qwen3-30b-a3b"])
@pytest.mark.parametrize("decode", [False, True])
def test_caches_are_those_of_the_figures(name: str, decode: bool) -> None:
    """A cached token takes what the ledger of the figures says, in whole blocks of each sequence."""
    config, tp = load_model(name), 4
    step = step_for(config, tp=tp, decode=decode, sequences=1 if decode else 3)
    memory = step_memory(step, analysed_step(config, step))
    plan = Plan(Parallel(tp, 1, step.ep), mtp=False)
    row = bytes_per_token(config, plan, Cache(0), symbols_of(config, plan))
    assert memory.row == row
    for tokens, context in ((300, 0), (384, 128), (390, 1000)):
        sequences, held = (tokens, context + 1) if decode else (3, context + tokens // 3)
        assert memory.at(tokens, context)["cache"] == row * sequences * (-(-held // 128) * 128)


@pytest.mark.parametrize(("name", "hardware", "options"), CASES)
def test_memory_is_that_of_the_steps_graph(name: str, hardware: str, options: dict[str, Any]) -> None:
    config = load_model(name)
    step = step_for(config, **options)
    analysis = analysed_step(config, step)
    memory = step_memory(step, analysis)
    for tokens in (1, 100, 4096, 100_001):
        ledger = graph_memory(analysis, {"T": tokens}).ledger.by_category()
        found = memory.at(tokens, 0)
        assert found["activations"] == ledger["activations"] + ledger["inputs"]
        caches = [n for n in ledger if n.endswith("-cache") or n in ("activations", "inputs")]
        assert found["weights"] == sum(ledger.values()) - sum(ledger[n] for n in caches)
    tokens_, context = np.arange(1, 3000, 7), np.arange(1, 3000, 7)[::-1]
    columns = compile_formulas(memory.formulas())(T=tokens_, context=context)
    for i in range(0, len(tokens_), 20):
        at = memory.at(int(tokens_[i]), int(context[i]))
        assert {n: int(np.broadcast_to(v, tokens_.shape)[i]) for n, v in columns.items()} == at


def test_points_that_do_not_fit_are_marked() -> None:
    rows = list(sweep(load_model("qwen3-8b"), Grid(("h100",), tp=(1,), context=(0, 10**6))).rows())
    assert [row["fits"] for row in rows] == ["yes", "no"]
    for row in rows:
        parts = ("weights_gib", "cache_gib", "activations_gib")
        assert row["memory_gib"] == pytest.approx(sum(row[p] for p in parts))


def test_combinations_that_do_not_fit_are_left_out_with_the_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["sweep", "qwen3-8b", "--hardware", "h100", "--tp", "4,5", "--tokens", "64"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3:] == [
        "1 points",
        "memory_gib: a rank's weights, caches in blocks of 128 tokens, inputs and peak of activations, without its ops' own workspace",
        "left out: tp 5, dp 1: intermediate_size 12288 does not divide by tp 5",
    ]


def test_the_csv_holds_every_point_and_roles_add_up(tmp_path: Path) -> None:
    out = tmp_path / "s.csv"
    words = [
        "--hardware",
        "h100,a100",
        "--tp",
        "1,2",
        "--tokens",
        "64:256:64",
        "--context",
        "0,512",
        "--csv",
        str(out),
    ]
    assert main(["sweep", "qwen3-8b", *words]) == 0
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 2 * 4 * 2
    for row in rows:
        parts = sum(float(v) for n, v in row.items() if n.endswith("_ms"))
        assert parts == pytest.approx(float(row["ms"]), rel=1e-9)
        assert float(row["tokens_per_s"]) == pytest.approx(1e3 * float(row["tokens"]) / float(row["ms"]))


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=30),
)
def test_what_no_other_beats(points: list[tuple[int, int]]) -> None:
    rows = [{"x": x, "y": y} for x, y in points]
    front = pareto(rows, "x", "y")
    for row in rows:
        beaten = any(
            o["x"] <= row["x"] and o["y"] <= row["y"] and (o["x"], o["y"]) != (row["x"], row["y"])
            for o in rows
        )
        assert (row in front) == (not beaten)


@settings(max_examples=50)
@given(st.integers(1, 50), st.integers(0, 300), st.integers(1, 40))
def test_ranges_hold_their_ends(low: int, more: int, step: int) -> None:
    assert integers(f"{low}:{low + more}:{step}", "--x") == tuple(range(low, low + more + 1, step))
    assert integers(f"{low},{low}", "--x") == (low,)


def test_ranges_by_factors() -> None:
    assert integers("256:4096:x4,7", "--x") == (256, 1024, 4096, 7)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tokens", "a"], "--tokens: expected N, FROM:TO:STEP or FROM:TO:xFACTOR, got 'a'"),
        (["--tokens", "5:1:1"], "--tokens: '5:1:1' is an empty or endless range"),
        (["--tokens", "1:9:x1"], "--tokens: '1:9:x1' is an empty or endless range"),
        (["--tokens", "0"], "--tokens: 0 is below 1"),
        (["--tp", "5"], "intermediate_size 12288 does not divide by tp 5"),
        (["--tokens", "1:999999999999:1"], "--tokens: '1:999999999999:1' has too many numbers"),
        (["--tokens", "1:40000000:1"], "--tokens: '1:40000000:1' has too many numbers"),
        (["--tokens", "1:4000:1", "--context", "1:4000:1"], "16000000 points are more than 10000000"),
        (["--hardware", ","], "--hardware: names nothing"),
        (
            ["--contract", "none"],
            "no decoder can be written for 'none'; there are tensor-parallel, mc2-decode, sequence-parallel, "
            "dsa-cp-prefill, dsa-cp-query-local, dsa-cp-entry-slice",
        ),
        (["--csv", "none/s.csv"], "--csv: cannot write none/s.csv: No such file or directory"),
        (["--plot", "s.txt"], "--plot: a picture is one of .png, .svg, .pdf, not s.txt"),
        (["--plot", "none/s.png"], "--plot: no such folder: none"),
    ],
)
def test_bad_input_is_one_clear_line(
    words: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", "qwen3-8b", "--hardware", "h100", *words]) == 2
    assert capsys.readouterr() == ("", f"error: {message}\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["time", "breakdown", "pareto"])
def test_pictures_are_drawn_where_matplotlib_is(kind: str, tmp_path: Path) -> None:
    out = tmp_path / "s.svg"
    words = ["--hardware", "h100", "--tp", "1,2", "--tokens", "64,128", "--plot", str(out), "--kind", kind]
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        assert main(["sweep", "qwen3-8b", *words]) == 2
        assert not out.exists()
        return
    assert main(["sweep", "qwen3-8b", *words]) == 0
    assert "<svg" in out.read_text()[:2000]


def test_too_many_points_for_no_numpy_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins

    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "numpy":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match="so many points need numpy: pip install 'layoutcheck\\[fit\\]'"):
        sweep(load_model("qwen3-8b"), Grid(("h100",), tokens=tuple(range(1, 500))))
