"""A whole model's time by role at a million points of tokens and context, checked against exact integers and single points.

python benchmarks/cost_sweep_speed.py [--points 1000000] [--check 200]

The points are drawn at random (``random``: up to 131,072 tokens and as many of context), a grid (``grid``: a thousand token counts by a
thousand contexts), or without any token count twice (``distinct``). Seconds are those of the clock and of the processor (all threads).
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from layoutcheck.cost.evaluate import time_graph
from layoutcheck.cost.hardware import load_hardware
from layoutcheck.cost.model_cost import model_cost
from layoutcheck.cost.time_formulas import TOTAL, compile_times
from layoutcheck.models import load_model
from layoutcheck.models.step import step_for

CASES = (
    ("glm-5.1", "ascend-a3", 16, "dsa-cp-prefill", "int8"),
    ("glm-5.1", "h200", 16, "dsa-cp-query-local", "fp8"),
    ("deepseek-v3", "ascend-a3", 16, "sequence-parallel", "int8"),
    ("qwen3-8b", "h100", 8, "sequence-parallel", "none"),
)


def points(count: int) -> dict[str, tuple[Any, Any]]:
    """Tokens and contexts by how they are drawn."""
    random = np.random.default_rng(0)
    side = max(1, int(count**0.5))
    grid = np.repeat(np.arange(1, side + 1) * 16, side), np.tile(np.arange(side) * 100, side)
    return {
        "random": (random.integers(1, 131_072, count), random.integers(0, 131_072, count)),
        "grid": grid,
        "distinct": (random.permutation(count) + 1, random.integers(0, 131_072, count)),
    }


def main() -> None:
    """Print a line a case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--check", type=int, default=200)
    options = parser.parse_args()
    random = np.random.default_rng(0)
    for name, hardware_name, tp, contract, quant in CASES:
        config, hardware = load_model(name), load_hardware(hardware_name)
        started = time.perf_counter()
        cost = model_cost(config, step_for(config, tp=tp, contract=contract, quant=quant))
        lifted = time.perf_counter()
        fixed = {n: v for n, v in cost.values.items() if n != "context"}
        program = compile_times(cost, hardware, fixed)
        compiled = time.perf_counter()
        print(
            f"{name} {contract} {hardware_name}: written and lifted {lifted - started:.2f} s, compiled {compiled - lifted:.2f} s "
            f"({len(program.ops)} operations, {len(program.outputs) - 1} roles)"
        )
        for how, (tokens, context) in points(options.points).items():
            clock, work = time.perf_counter(), time.process_time()
            found = program(T=tokens, context=context)
            clock, work = time.perf_counter() - clock, time.process_time() - work
            worst = 0.0
            for i in random.integers(0, len(tokens), options.check).tolist():
                at = {"T": int(tokens[i]), "context": int(context[i])}
                exact = program.at(**at)
                worst = max(worst, *(abs(found[r][i] / float(v) - 1) for r, v in exact.items() if v))
                single = time_graph(cost, hardware, at).total_us
                worst = max(worst, abs(found[TOTAL][i] / single - 1))
            print(
                f"  {how:<9} {len(tokens)} points in {clock:.2f} s ({work:.2f} s of processors); "
                f"worst of {options.check} against exact integers and single points {worst:.1e}"
            )


if __name__ == "__main__":
    main()
