"""A whole model's time at a million points of tokens and context, and a check of some points against exact integers.

python benchmarks/cost_sweep_speed.py [--points 1000000] [--check 200]
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from layoutcheck.cost.compiled import compile_formulas
from layoutcheck.cost.evaluate import time_graph
from layoutcheck.cost.hardware import load_hardware
from layoutcheck.cost.model_cost import model_cost
from layoutcheck.cost.time_formulas import TOTAL, time_formulas
from layoutcheck.models import load_model
from layoutcheck.models.step import step_for

CASES = (
    ("glm-5.1", "ascend-a3", 16, "dsa-cp-prefill", "int8"),
    ("glm-5.1", "h200", 16, "dsa-cp-query-local", "fp8"),
    ("deepseek-v3", "ascend-a3", 16, "sequence-parallel", "int8"),
    ("qwen3-8b", "h100", 8, "sequence-parallel", "none"),
)


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
        program = compile_formulas({TOTAL: time_formulas(cost, hardware, fixed)[TOTAL]})
        compiled = time.perf_counter()
        tokens = random.integers(1, 131_072, options.points)
        context = random.integers(0, 131_072, options.points)
        found = program(T=tokens, context=context)[TOTAL]
        done = time.perf_counter()
        worst = 0.0
        for i in random.integers(0, options.points, options.check).tolist():
            at = {"T": int(tokens[i]), "context": int(context[i])}
            exact = float(program.at(**at)[TOTAL])
            single = time_graph(cost, hardware, at).total_us
            worst = max(worst, abs(found[i] / exact - 1), abs(found[i] / single - 1))
        print(
            f"{name} {contract} {hardware_name}: written and lifted {lifted - started:.2f} s, compiled {compiled - lifted:.2f} s "
            f"({len(program.ops)} operations), {options.points} points {done - compiled:.2f} s; worst of {options.check} against "
            f"exact integers and single points {worst:.1e}"
        )


if __name__ == "__main__":
    main()
