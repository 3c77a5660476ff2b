"""Times of the memory ledger: one ledger, a sweep behind a logged total, a liveness peak.

    python benchmarks/memory.py [GRAPH...]

Prints a line a measurement; the goals are at most 1 s for a ledger of 78 layers and for the peak of 17,723
intervals. Of each graph: nodes, seconds of the ledger with its peak once the graph is typed, and the peak.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from typing import Any

from layoutcheck.memory.build import weight_ledger
from layoutcheck.memory.explain import explain_total, parallels
from layoutcheck.memory.liveness import Interval, Region, liveness_peak
from layoutcheck.memory.parallel import Parallel
from layoutcheck.memory.plan import Plan
from layoutcheck.memory.quantisation import ByName, Description
from layoutcheck.models import load_model
from layoutcheck.units import parse_size

INTERVALS = 17_723


def best(run: Callable[[], object], times: int = 3) -> float:
    """Return the shortest of several runs, in seconds."""
    found = []
    for _ in range(times):
        begin = time.perf_counter()
        run()
        found.append(time.perf_counter() - begin)
    return min(found)


def show(what: str, seconds: float) -> None:
    """Print a line."""
    print(f"{what:34}{seconds:8.3f} s")


def description() -> Description:
    """A description file of a model with 78 layers and 256 experts: one entry a tensor."""
    names = [f"self_attn.{m}" for m in ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")]
    names += [f"self_attn.indexer.{m}" for m in ("wq_b", "wk", "weights_proj")] + ["eh_proj", "mlp.gate"]
    matrices = ("gate_proj", "up_proj", "down_proj")
    values = {"lm_head.weight": "FLOAT"}
    for layer in range(79):
        experts = [f"experts.{e}." for e in range(256)] + ["shared_experts."] if layer >= 3 else [""]
        paths = names + [f"mlp.{place}{matrix}" for place in experts for matrix in matrices]
        values |= {f"model.layers.{layer}.{path}.weight": "W8A8_DYNAMIC" for path in paths}
    return Description(values)


def intervals(count: int) -> list[Interval]:
    """Values of a long program, a third of them views of the one before."""
    rng = random.Random(0)
    found = []
    for n in range(count):
        base = f"v{n - 1}" if n % 3 == 0 and n else None
        found.append(Interval(f"v{n}", "T*6144*2", n, min(count - 1, n + rng.randrange(40)), base))
    return found


def main() -> None:
    """Print the times."""
    config = load_model("glm-5.1")
    plan = Plan(Parallel(16, 2, 32), modes=("dsa-cp",), distribute=("q_b_proj",))
    scheme, described = ByName("W8A8"), description()
    show("ledger, scheme by name", best(lambda: weight_ledger(config, plan, scheme)))
    many = best(lambda: weight_ledger(config, plan, described))
    show(f"ledger, {len(described.types)} described tensors", many)
    target, tolerance = parse_size("28.452GiB")
    groups = parallels(None)
    explain = best(lambda: explain_total(config, [("W8A8", scheme)], target, tolerance, groups), 1)
    show("deployments behind a total", explain)
    values = intervals(INTERVALS)
    symbols = {"T": 4096}
    straight = liveness_peak(values, symbols=symbols)
    show(f"peak of {INTERVALS} intervals", best(lambda: liveness_peak(values, symbols=symbols)))
    body = intervals(INTERVALS // 78)
    repeated = Region(at=0, repeats=78, steps=len(body), intervals=body)
    folded = liveness_peak([], [repeated], symbols)
    show("peak of one body of 78", best(lambda: liveness_peak([], [repeated], symbols)))
    print(f"peaks: {straight.bytes} bytes expanded, {folded.bytes} bytes in one body")


def graphs(paths: list[str]) -> None:
    """Print the time of the ledger of typed graphs."""
    from layoutcheck.infer.solver.analysis import analyse
    from layoutcheck.memory.graph_ledger import graph_memory

    nothing: dict[str, Any] = {"groups": {}, "rank": None, "world": None, "tokens": [], "layouts": {}}
    nothing |= {"assumptions": [], "rules": [], "plan": None, "trust": {}, "others": []}
    for path in paths:
        typed = analyse(path, **nothing)
        begin = time.perf_counter()
        memory = graph_memory(typed)
        seconds = time.perf_counter() - begin
        show(f"{len(typed.graph.nodes)} nodes", seconds)
        print(f"  peak {memory.peak.bytes} = {memory.formula} at {memory.place}")


if __name__ == "__main__":
    main()
    graphs(sys.argv[1:])
