"""How long folding and expanding take, and typing with few and with many repeats.

    python benchmarks/regions.py [--layers N]

Prints a row a task: nodes in, nodes out, the best of three in processor seconds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

from layoutcheck.graph import Graph
from layoutcheck.infer.solver.analysis import analyse
from layoutcheck.regions import expand, fold
from layoutcheck.regions.repeats import set_repeats
from layoutcheck.testing import Decoder, Layers

OPTIONS: dict[str, Any] = {
    "groups": {},
    "rank": None,
    "world": None,
    "tokens": [],
    "layouts": {},
    "assumptions": [],
    "rules": [],
    "plan": None,
    "trust": {},
    "others": [],
}


def best(task: Callable[[], Any], times: int = 3) -> tuple[float, Any]:
    """The shortest of a few runs in processor seconds, and the last result."""
    seconds, result = [], None
    for _ in range(times):
        start = time.process_time()
        result = task()
        seconds.append(time.process_time() - start)
    return min(seconds), result


def row(name: str, before: Graph, task: Callable[[], Any], times: int = 3) -> None:
    """Run a task and print its row."""
    seconds, result = best(task, times)
    after = len(result.nodes) if isinstance(result, Graph) else len(before.nodes)
    print(f"{name:44} {len(before.nodes):8} -> {after:8} nodes  {seconds:8.3f} s", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=1750, help="layers of the graph to fold")
    layers = parser.parse_args().layers
    dense, moe = Layers("dense", 3), Layers("moe", 75)
    repeated = Decoder((dense, moe), style="sp").build("repeated")
    row("expand 3 + 75 layers", repeated, lambda: expand(repeated))
    large = Decoder((Layers("dense", layers // 4), Layers("moe", layers - layers // 4)), style="sp").build(
        "expanded"
    )
    row(f"fold {layers} layers", large, lambda: fold(large))
    fused = Decoder((Layers("moe", layers),), style="sp", carried="pair", fused=True).build("expanded")
    row(f"fold {layers} layers of fused norms", fused, lambda: fold(fused))
    for times in (10, 10_000):
        many = set_repeats(repeated, (3, times))
        row(f"type 3 + {times} layers with regions", many, lambda many=many: analyse(many, **OPTIONS))  # type: ignore[misc]


if __name__ == "__main__":
    main()
