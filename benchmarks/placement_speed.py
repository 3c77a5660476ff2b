"""How long placing takes, by part: a graph with every layer against the same graph with repeated bodies.

    python benchmarks/placement_speed.py [GRAPH... --contract NAME]

Without graphs it makes two of its own, of 3 sparse and 75 reusing layers. Times are processor seconds, the best of a few runs, on a
program that is typed already: finding the roles, taking conversions out, the ways of each call, the contract's demands, the problem,
solving it (with repeats at the ends written out too), writing the result.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import layoutcheck
from layoutcheck.contracts import load_contract
from layoutcheck.graph import Graph
from layoutcheck.infer.solver.analysis import Analysis, analyse
from layoutcheck.placement import place as module
from layoutcheck.testing import Decoder, Layers

PARTS = {
    "roles": "find_roles",
    "strip": "_base",
    "demands": "demands_of",
    "weights": "cut_blocks",
    "ways": "_ways",
    "problem": "build_problem",
    "solve": "solve",
    "ends": "ends_apart",
    "write": "_written",
}


def analysed(graph: Graph) -> Analysis:
    """The graph typed, as `annotate` does it."""
    nothing: dict[str, Any] = {"groups": {}, "layouts": {}, "trust": {}}
    none = dict.fromkeys(("rank", "world", "plan"))
    lists: dict[str, Any] = {name: [] for name in ("tokens", "assumptions", "rules", "others")}
    return analyse(graph, **nothing, **none, **lists)


def timed(analysis: Analysis, contract: Any) -> tuple[float, dict[str, float]]:
    """Seconds of one placement, and of its parts."""
    spent = dict.fromkeys(PARTS, 0.0)
    plain = {name: getattr(module, name) for name in PARTS.values()}

    def clocked(part: str, task: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            start = time.process_time()
            try:
                return task(*args, **kwargs)
            finally:
                spent[part] += time.process_time() - start

        return run

    for part, name in PARTS.items():
        setattr(module, name, clocked(part, plain[name]))
    start = time.process_time()
    try:
        module.place(analysis, contract, again=analysed)
    finally:
        whole = time.process_time() - start
        for name, task in plain.items():
            setattr(module, name, task)
    return whole, spent


def row(name: str, graph: Graph, contract: Any, runs: int) -> None:
    """Place a graph a few times and print the fastest run."""
    analysis = analysed(graph)
    whole, parts = min((timed(analysis, contract) for _ in range(runs)), key=lambda entry: entry[0])
    listed = "  ".join(f"{part} {seconds * 1000:.1f}" for part, seconds in parts.items())
    print(f"{name[-44:]:44} {len(graph.nodes):7} nodes {whole:8.3f} s   ms: {listed}", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("graphs", nargs="*")
    parser.add_argument("--contract", default="dsa-cp-prefill")
    parser.add_argument("--runs", type=int, default=4)
    options = parser.parse_args()
    contract = load_contract(options.contract)
    graphs = {name: layoutcheck.load(name) for name in options.graphs}
    if not graphs:
        decoder = Decoder((Layers("dsa", 3), Layers("reuse", 25, period=3)), style="tp")
        graphs = {f"78 layers, {form}": decoder.build(form) for form in ("expanded", "repeated")}
    for name, graph in graphs.items():
        row(name, graph, contract, options.runs)


if __name__ == "__main__":
    main()
