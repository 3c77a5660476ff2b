"""Sums of times know what stands behind each term."""

from __future__ import annotations

import pytest

from layoutcheck.cost.collectives import time_us
from layoutcheck.cost.estimate import Estimate
from layoutcheck.cost.hardware import load_hardware
from layoutcheck.cost.kernels import attention, gemm, sparse_attention
from layoutcheck.cost.tables import Measured, Table


def build() -> Estimate:
    machine = load_hardware("ascend-a3")
    table = Table("mine", "norm", "bfloat16", (), ("rows",), {(): {(1.0,): 3.0, (4096.0,): 30.0}})
    estimate = Estimate(machine, Measured([table]))
    estimate.kernel("gemm", "int8", {"m": 64}, lambda: gemm.time_us(machine, 64, 4096, 4096, "int8"), count=4)
    estimate.kernel("norm", "bfloat16", {"rows": 4096}, lambda: 1e9, count=2)
    estimate.kernel(
        "sparse_attention", "bfloat16", {}, lambda: sparse_attention.time_us(machine, 1, 256, 4096, 64)
    )
    estimate.collective("all_gather", 2**20, 16, lambda: time_us(machine, "all_gather", 2**20, 16))
    return estimate


def test_every_term_says_what_stands_behind_it() -> None:
    found = {e.name: e.trust for e in build().entries}
    assert found == {
        "gemm/int8": "fitted",
        "norm/bfloat16": "table",
        "sparse_attention/bfloat16": "assumed",
        "collective/all_gather": "fitted",
    }
    borrowed = Estimate(load_hardware("ascend-a2"))
    borrowed.kernel("gemm", "int8", {}, lambda: 5.0)
    assert borrowed.entries[0].trust == "borrowed"
    assert borrowed.expected_error() is None
    assert borrowed.caveats() == [
        "gemm/int8: 100 % of the time, borrowed from ascend-a3, no measurement on this hardware"
    ]


def test_sums_count_repeats() -> None:
    estimate = build()
    parts = estimate.by_name()
    assert (
        estimate.total
        == pytest.approx(sum(parts.values()))
        == pytest.approx(sum(estimate.by_trust().values()))
    )
    assert parts["norm/bfloat16"] == 60.0
    assert list(parts.values()) == sorted(parts.values(), reverse=True)
    assert estimate.by_trust()["table"] == 60.0
    assert estimate.caveats()[0].startswith("sparse_attention/bfloat16: ")
    assert "assumed: 0.7 of peak" in estimate.caveats()[0]
    assert len(estimate.caveats()) == 1


def test_the_expected_error_is_weighted_by_time() -> None:
    estimate = build()
    machine = estimate.hardware
    parts = estimate.by_name()
    errors = {
        "gemm/int8": machine.fit("gemm", "int8").held_out,
        "collective/all_gather": machine.collectives["all_gather"].held_out,
    }
    want = sum(parts[k] * (v or 0) for k, v in errors.items()) / sum(parts[k] for k in errors)
    assert estimate.expected_error() == pytest.approx(want)


def test_latent_prefill_has_constants_of_its_own() -> None:
    machine = load_hardware("b200")
    shape = (machine, 2, 4096, 0, 16, 16, 192, 128)
    latent = attention.prefill_us(*shape, latent=True)
    assert latent == attention.prefill_us(*shape, fit=machine.fit("prefill_latent_attention"))
    assert latent != attention.prefill_us(*shape)
