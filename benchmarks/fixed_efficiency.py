"""An exported graph op by op, each op one roofline with fixed efficiencies, beside what layoutcheck's kernels take.

    python benchmarks/fixed_efficiency.py ../shared/graphs/glm5_prefill_repeated.after.json.gz [--hardware ascend-a3]

Three times for every role: ours, the fixed efficiencies on our kernels, and the fixed efficiencies on the graph's ops, where
a fused op is one roofline of its operands and every expert's product is an op of its own. ``--gather`` is the share of the
memory's rate at which the rows come that sparse attention picks.
"""

from __future__ import annotations

import argparse
from collections import defaultdict

from attrs import evolve

from layoutcheck.cost.evaluate import time_graph
from layoutcheck.cost.hardware import load_hardware
from layoutcheck.cost.lift import lift
from layoutcheck.cost.reference import FIXED, by_row, op_lines
from layoutcheck.infer.solver.analysis import analyse


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("graph")
    parser.add_argument("--hardware", default="ascend-a3")
    parser.add_argument("--gather", type=float, default=1.0)
    parser.add_argument("--top", type=int, default=12, help="ops of the second table")
    options = parser.parse_args()
    hardware = load_hardware(options.hardware)
    analysis = analyse(
        options.graph,
        groups={},
        rank=None,
        world=None,
        tokens=[],
        layouts={},
        assumptions=[],
        rules=[],
        plan=None,
        trust={},
        others=[],
    )
    report = time_graph(lift(analysis, indexer_queries="full"), hardware)
    ours = {r.name: r.us / 1e3 for r in report.rows("role")}
    kernels = by_row(report, "role", FIXED)
    unrolled = lift(analysis, indexer_queries="full", unrolled=True)
    lines = op_lines(analysis, unrolled, hardware, evolve(FIXED, gather=options.gather))
    ops: dict[str, float] = defaultdict(float)
    for line in lines:
        ops[line.role] += line.ms
    print("| role | here | fixed, by kernel | fixed, by op |\n| --- | --- | --- | --- |")
    for role in sorted(ops, key=lambda r: -ops[r]):
        print(f"| {role} | {ours.get(role, 0):.2f} | {kernels.get(role, 0) / 1e3:.2f} | {ops[role]:.2f} |")
    total = sum(ops.values())
    print(f"| total | **{sum(ours.values()):.1f}** | **{kernels['total'] / 1e3:.1f}** | **{total:.1f}** |")
    print(
        "\n| role | op | runs | ms | arithmetic alone | bytes alone |\n| --- | --- | --- | --- | --- | --- |"
    )
    for line in lines[: options.top]:
        cells = f"{line.runs} | {line.ms:.2f} | {line.compute:.2f} | {line.bytes:.2f}"
        print(f"| {line.role} | {line.op} | {cells} |")


if __name__ == "__main__":
    main()
