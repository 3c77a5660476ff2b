"""Time of evaluating compiled formulas at a million random points, and a check of some points against exact integers.

    python benchmarks/sweep_speed.py [--points 1000000] [--check 200]

The formula is the time of a decoder layer's kernels on one hardware in tokens, tensor-parallel size, expert-parallel size
and context, all four drawn at random for every point.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import numpy as np
import sympy

from layoutcheck.cost.collectives import time_us as collective_us
from layoutcheck.cost.compiled import compile_formulas
from layoutcheck.cost.hardware import load_hardware
from layoutcheck.cost.kernels import gemm, grouped_gemm, indexer, sparse_attention

HIDDEN, HEADS = 6144, 64
Q_RANK, LATENT, ROPE = 2048, 512, 64
EXPERTS, WIDTH, TOPK = 256, 2048, 8


def layer(hardware_name: str) -> dict[str, Any]:
    """Return flops, bytes and microseconds of one sparse-attention layer by symbol."""
    hardware = load_hardware(hardware_name)
    tokens, context = sympy.symbols("T C", integer=True, nonnegative=True)
    tp, ep = sympy.symbols("tp ep", integer=True, positive=True)
    local = sympy.ceiling(tokens / tp)
    dtype = "int8" if "int8" in hardware.peaks and hardware.vendor == "Huawei" else "bfloat16"
    products = {
        "q_a": (local, Q_RANK, HIDDEN),
        "kv_a": (local, LATENT + ROPE, HIDDEN),
        "q_b": (local, HEADS * 256, Q_RANK),
        "o": (local, HIDDEN, HEADS * 256),
        "gate_up": (local, 2 * WIDTH, HIDDEN),
        "down": (local, HIDDEN, WIDTH),
    }
    formulas: dict[str, Any] = {}
    for name, (m, n, k) in products.items():
        formulas[f"{name}_us"] = gemm.time_us(hardware, m, n, k, dtype)
    formulas["flops"] = sum(gemm.work(*size).flops for size in products.values())
    formulas["bytes"] = sum(gemm.work(*size).traffic for size in products.values())
    formulas["sparse_us"] = sparse_attention.time_us(hardware, 1, local, context, HEADS)
    formulas["scores_us"] = indexer.scores_us(hardware, 1, local, context, dtype=dtype)
    formulas["experts_us"] = grouped_gemm.time_us(
        hardware, tokens, HIDDEN, WIDTH, TOPK, EXPERTS, ep, 1, dtype
    )
    formulas["gather_us"] = collective_us(hardware, "all_gather", tokens * HIDDEN * 2, 8)
    formulas["total_us"] = sum(v for k, v in formulas.items() if k.endswith("_us"))
    return formulas


def main(arguments: list[str]) -> int:
    """Compile, evaluate, compare, print."""
    parser = argparse.ArgumentParser(description="Speed of compiled formulas.")
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--check", type=int, default=200)
    options = parser.parse_args(arguments)
    rng = np.random.default_rng(0)
    count = options.points
    sizes = {
        "T": rng.integers(1, 65536, count),
        "C": rng.integers(0, 131072, count),
        "tp": 2 ** rng.integers(0, 5, count),
        "ep": 2 ** rng.integers(0, 6, count),
    }
    for hardware in ("ascend-a3", "h100"):
        formulas = layer(hardware)
        for title, picked in (
            ("counts: flops and bytes", {k: formulas[k] for k in ("flops", "bytes")}),
            ("time: ten kernels and their sum", {"total_us": formulas["total_us"]}),
        ):
            started = time.perf_counter()
            program = compile_formulas(picked)
            compiled = time.perf_counter()
            values = program(**{n: sizes[n] for n in program.inputs})
            done = time.perf_counter()
            wrong = compare(
                program, sizes, values, rng.choice(count, min(options.check, count), replace=False)
            )
            print(
                f"{hardware:<10} {title:<32} {len(program.ops):>4} operations, compiled in "
                f"{compiled - started:.3f} s, {count:,} points in {done - compiled:.3f} s, {wrong} wrong"
            )
    return 0


def compare(program: Any, sizes: dict[str, Any], values: dict[str, Any], points: Any) -> int:
    """Return how many of the points differ from the exact evaluation: at all for integers, by 1e-12 for times."""
    wrong = 0
    for i in points:
        exact = program.at(**{n: int(sizes[n][i]) for n in program.inputs})
        for name, value in exact.items():
            found = values[name][i]
            same = int(found) == value if isinstance(value, int) else abs(found / float(value) - 1) < 1e-12
            wrong += not same
    return wrong


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
