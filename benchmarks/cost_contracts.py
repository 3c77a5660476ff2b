"""Two contracts side by side, term by term, beside two references on the same terms.

    python benchmarks/cost_contracts.py [--model glm-5.1] [--hardware ascend-a3] [--tp 16] [--tokens 4096] [--quant int8]

*plain* is the roofline of peak and bandwidth, *fixed* the one with 0.7 of the peak, 0.6 of the bandwidth and 5 us a kernel;
collectives are latency and wire bytes over the link (of which *fixed* takes 0.7).
"""

from __future__ import annotations

import argparse
from collections import defaultdict

from layoutcheck.cost.evaluate import CostReport, Timed, time_graph
from layoutcheck.cost.hardware import Hardware, load_hardware
from layoutcheck.cost.model_cost import model_cost
from layoutcheck.models import load_model
from layoutcheck.models.step import step_for


def roofline(hardware: Hardware, timed: Timed, peak: float, share: float, launch: float) -> float:
    """Microseconds of one run by flops, bytes and wire bytes alone."""
    work, ranks = timed.work, timed.sizes.get("ranks", 1)
    if timed.term.kernel == "collective":
        tier = hardware.tier_of(int(ranks))
        return float(tier.latency + work.wire / (tier.bandwidth * peak) + launch)
    rate = (
        hardware.vector
        if work.dtype == "float32" and timed.term.kernel != "gemm"
        else hardware.peak(work.dtype)
    )
    return launch + max(float(work.flops) / (rate * peak), float(work.traffic) / (hardware.bandwidth * share))


def by_role(report: CostReport) -> dict[str, list[float]]:
    """Milliseconds by role: here, fixed, plain."""
    found: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for timed in report.timed:
        line, n = found[timed.term.role], timed.term.count / 1e3
        line[0] += timed.us / 1e3
        line[1] += n * roofline(report.hardware, timed, 0.7, 0.6, 5.0)
        line[2] += n * roofline(report.hardware, timed, 1.0, 1.0, 0.0)
    return found


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
