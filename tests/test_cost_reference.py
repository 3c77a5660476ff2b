"""Rooflines beside a report: by kernel against hand counts, and op by op against the published reference of a shared graph."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from layoutcheck.cli import main
from layoutcheck.cost.evaluate import time_graph
from layoutcheck.cost.hardware import load_hardware
from layoutcheck.cost.lift import lift
from layoutcheck.cost.reference import FIXED, PLAIN, by_row, kernel_us, op_lines
from layoutcheck.infer.solver.analysis import Analysis, analyse

MODEL = ("cost", "qwen3-8b", "--tp", "4", "--tokens", "512", "--hardware", "h100")


def typed(path: Path) -> Analysis:
    none: Any = {}
    return analyse(
        str(path),
        groups=none,
        rank=None,
        world=None,
        tokens=[],
        layouts=none,
        assumptions=[],
        rules=[],
        plan=None,
        trust=none,
        others=[],
    )


def test_rooflines_stand_beside_every_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*MODEL, "--reference", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    for name in ("fixed", "plain"):
        beside = found["references_us"][name]
        assert {r["name"] for r in found["rows"]} == beside.keys() - {"total"}
        assert sum(us for row, us in beside.items() if row != "total") == pytest.approx(beside["total"])
    assert found["references_us"]["plain"]["total"] < found["references_us"]["fixed"]["total"]
    assert main([*MODEL, "--reference", "--top", "2"]) == 0
    text = capsys.readouterr().out.splitlines()
    head = next(line for line in text if line.startswith("role"))
    assert head.split()[-4:] == ["fixed", "ms", "plain", "ms"]
    total = next(line for line in text if line.startswith("total"))
    assert float(total.split()[-2]) == pytest.approx(found["references_us"]["fixed"]["total"] / 1e3, abs=1e-3)
    assert (
        "fixed: a roofline of every kernel, 0.7 of the peak and of links, 0.6 of the bandwidth, 5 us a kernel"
        in text
    )


def test_without_being_asked_for_there_are_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*MODEL, "--format", "json"]) == 0
    assert "references_us" not in json.loads(capsys.readouterr().out)


def test_a_kernel_is_its_flops_or_its_bytes_and_a_launch() -> None:
    from layoutcheck.cost.model_cost import model_cost
    from layoutcheck.models import load_model
    from layoutcheck.models.step import step_for

    hardware = load_hardware("h100")
    report = time_graph(
        model_cost(load_model("qwen3-8b"), step_for(load_model("qwen3-8b"), tp=4)), hardware, {"T": 2048}
    )
    seen = set()
    for timed in report.timed:
        w, kernel = timed.work, timed.term.kernel
        found = kernel_us(hardware, timed, FIXED)
        if kernel == "gemm":
            peak, moved = hardware.peak("bfloat16"), w.read + w.write
            assert found == pytest.approx(5 + max(w.flops / (0.7 * peak), moved / (0.6 * hardware.bandwidth)))
        elif kernel == "collective":
            tier = hardware.tier_of(4)
            assert found == pytest.approx(5 + tier.latency + w.wire / (0.7 * tier.bandwidth))
        seen.add(kernel)
    assert {"gemm", "collective"} <= seen
    assert by_row(report, "role", PLAIN)["total"] < by_row(report, "role", FIXED)["total"]


@pytest.mark.shared
def test_op_by_op_a_shared_graph_takes_what_the_published_reference_says(repo_root: Path) -> None:
    """803 ms in sparse attention, 1,136 ms in all, for all queries on every rank."""
    path = repo_root.parent / "shared" / "graphs" / "glm5_prefill_repeated.after.json.gz"
    if not path.is_file():
        pytest.skip(f"the reference graph is not there: {path}")
    analysis = typed(path)
    cost = lift(analysis, indexer_queries="full", unrolled=True)
    lines = op_lines(analysis, cost, load_hardware("ascend-a3"), evolve(FIXED, gather=0.92))
    sparse = next(line for line in lines if line.op == "tensor_cast.mla_sparse_attention")
    assert (sparse.runs, sparse.ms) == (78, pytest.approx(803, rel=0.002))
    assert sum(line.ms for line in lines) == pytest.approx(1136, rel=0.025)
    experts = next(line for line in lines if line.role == "moe.routed" and line.op.endswith("quant_linear"))
    assert experts.runs == 75 * 16 * 3  # one by one, three matrices each
    grouped = lift(analysis, indexer_queries="full")
    assert sum(t.kernel == "grouped_gemm" for t in grouped.terms) == 1
    assert not any(t.kernel == "grouped_gemm" for t in cost.terms)
