"""The fit finds what made the times, sees only the rows it may, and the reference collections meet their goals."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from layoutcheck.cost.fit import Parameter, errors, fit_constants, split_by_site
from layoutcheck.cost.hardware import Fit, load_hardware
from layoutcheck.cost.kernels import gemm
from layoutcheck.errors import InputError

PARAMETERS = [
    Parameter("compute", 0.5, 0.1, 1.2),
    Parameter("memory", 0.5, 0.1, 1.2),
    Parameter("launch", 1.0, 0.1, 50.0),
    Parameter("prologue", 0.5, 0.05, 10.0),
]
STRUCTURE = {"knee": 4, "store": 0.5, "splits": 8}


def test_known_constants_are_found_from_half_of_the_sites() -> None:
    machine = load_hardware("h100")
    true = {"compute": 0.82, "memory": 0.71, "launch": 3.3, "prologue": 1.4}
    rng = np.random.default_rng(0)
    m, n, k = (2 ** rng.integers(4, 14, 400) for _ in range(3))
    noise = np.exp(rng.normal(0, 0.02, 400))
    measured = gemm.time_us(machine, m, n, k, fit=Fit(true, STRUCTURE)) * noise
    train = split_by_site(list(zip(n.tolist(), k.tolist())), seed=1)
    held_out_site = {(int(a), int(b)) for a, b in zip(n[~train], k[~train])}
    assert not held_out_site & {(int(a), int(b)) for a, b in zip(n[train], k[train])}

    def predict(constants: dict[str, float], rows: np.ndarray) -> np.ndarray:
        assert rows is train, "the fit looked at rows that are held out"
        return np.asarray(gemm.time_us(machine, m[rows], n[rows], k[rows], fit=Fit(constants, STRUCTURE)))

    found = fit_constants(predict, measured, train, PARAMETERS)
    assert found == pytest.approx(true, rel=0.05)
    every = gemm.time_us(machine, m, n, k, fit=Fit(found, STRUCTURE))
    assert errors(every[~train], measured[~train]).mean < 0.03


def test_a_constant_that_times_jump_at_is_chosen_and_ties_take_the_first() -> None:
    size = np.array([1.0, 2, 3, 4, 20, 30, 40, 50] * 4)
    measured = np.where(size <= 4, 3.0, 90.0) + size / 2.5

    def predict(constants: dict[str, float], rows: np.ndarray) -> np.ndarray:
        s = size[rows]
        return np.asarray(np.where(s <= constants["switch"], 3.0, 90.0) + s / constants["rate"])

    parameters = [
        Parameter("switch", 0, 0, 0, choices=(64.0, 16.0, 8.0, 4.0, 2.0)),
        Parameter("rate", 1.0, 0.1, 10.0),
    ]
    found = fit_constants(predict, measured, np.ones(len(size), bool), parameters)
    assert found == pytest.approx({"switch": 16.0, "rate": 2.5}, rel=0.01)
    assert list(found) == ["switch", "rate"]


def test_errors_count_rows_that_are_far_off() -> None:
    found = errors([1.0, 1.1, 3.0, 0.4], [1.0, 1.0, 1.0, 1.0])
    assert found.rows == 4
    assert found.mean == pytest.approx((0 + 0.1 + 2 + 0.6) / 4)
    assert found.median == pytest.approx(0.35)
    assert found.beyond_half == 2
    assert errors([], []).rows == 0


def test_a_split_is_half_of_the_sites_and_the_same_for_a_seed() -> None:
    sites = [(i % 40, 7) for i in range(1000)]
    first = split_by_site(sites, 3)
    assert len({s for s, t in zip(sites, first) if t}) == 20
    assert (first == split_by_site(sites, 3)).all()
    assert (first != split_by_site(sites, 4)).any()


def test_too_few_rows_are_refused() -> None:
    with pytest.raises(InputError, match="4 rows cannot fit 4 constants"):
        fit_constants(lambda c, s: np.ones(4), np.ones(4), np.ones(4, bool), PARAMETERS)


@pytest.mark.shared
def test_the_reference_collections_meet_their_goals(repo_root: Path) -> None:
    measured = repo_root.parent / "shared" / "measured"
    if not measured.is_dir():
        pytest.skip(f"the reference measurements are not there: {measured}")
    done = subprocess.run(
        [sys.executable, "benchmarks/fit_hardware.py", "--measured", str(measured)],
        cwd=repo_root,
        env=os.environ | {"PYTHONPATH": str(repo_root)},
        capture_output=True,
        text=True,
        check=True,
    )
    pooled = done.stdout.split("pooled\n")[1]
    goals = {
        "gemm bf16, m >= 256": 8,
        "gemm quantised": 12,
        "sparse attention": 12,
        "indexer scores": 20,
        "grouped gemm, balanced": 13,
        "grouped gemm, skewed": 20,
        "collectives, NVLink": 10,
        "collectives, HCCL": 14,
    }
    for name, goal in goals.items():
        line = next(x for x in pooled.splitlines() if x.startswith(name))
        _, mean, _, _, plain, fixed = (float(v) for v in re.findall(r"[\d.]+", line[len(name) :])[:6])
        assert mean <= goal, line
        assert mean < min(plain, fixed), line
