"""Two contracts side by side, term by term, beside two references on the same terms.

    python benchmarks/cost_contracts.py [--model glm-5.1] [--hardware ascend-a3] [--tp 16] [--tokens 4096] [--quant int8]

*plain* is the roofline of peak and bandwidth, *fixed* the one with 0.7 of the peak, 0.6 of the bandwidth and 5 us a kernel;
collectives are latency and wire bytes over the link (of which *fixed* takes 0.7).
"""

from __future__ import annotations

import argparse

from layoutcheck.cost.evaluate import CostReport, time_graph
from layoutcheck.cost.hardware import load_hardware
from layoutcheck.cost.model_cost import model_cost
from layoutcheck.cost.reference import FIXED, PLAIN, by_row
from layoutcheck.models import load_model
from layoutcheck.models.step import step_for


def by_role(report: CostReport) -> dict[str, list[float]]:
    """Milliseconds by role: here, fixed, plain."""
    fixed, plain = (by_row(report, "role", r) for r in (FIXED, PLAIN))
    return {r.name: [r.us / 1e3, fixed[r.name] / 1e3, plain[r.name] / 1e3] for r in report.rows("role")}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="glm-5.1")
    parser.add_argument("--hardware", default="ascend-a3")
    parser.add_argument("--contracts", default="dsa-cp-prefill,dsa-cp-query-local")
    parser.add_argument("--tp", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--quant", default="int8")
    options = parser.parse_args()
    config, hardware = load_model(options.model), load_hardware(options.hardware)
    tables = {}
    for contract in options.contracts.split(","):
        step = step_for(config, tp=options.tp, contract=contract, quant=options.quant)
        report = time_graph(model_cost(config, step), hardware, {"T": options.tokens})
        tables[contract] = by_role(report)
    roles = list(dict.fromkeys(r for t in tables.values() for r in t))
    roles.sort(key=lambda r: -sum(t[r][0] for t in tables.values()))
    print("| role | " + " | ".join(f"{c} | fixed | plain" for c in tables) + " |")
    print("| --- |" + " --- |" * (3 * len(tables)))
    for role in roles:
        cells = [f"{x:.2f}" for t in tables.values() for x in t[role]]
        print(f"| {role} | " + " | ".join(cells) + " |")
    sums = [f"**{sum(t[r][i] for r in t):.1f}**" for t in tables.values() for i in range(3)]
    print("| total | " + " | ".join(sums) + " |")


if __name__ == "__main__":
    main()
