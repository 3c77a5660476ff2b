"""CPU time of each stage on a graph, of the whole command, and per node as the graph grows.

    python benchmarks/infer_speed.py [GRAPH ...]             stages, best of five
    python benchmarks/infer_speed.py --scale 10000 1000000   a repeated layer, written out; time and memory a node
    python benchmarks/infer_speed.py --command GRAPH         the whole command in a fresh process

The reference in the same run is one bare walk over the nodes that reads every argument, the least that any checker does.
"""

from __future__ import annotations

import argparse
import gc
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from layoutcheck.check import check
from layoutcheck.graph import Graph, Node, Ref, TensorMeta
from layoutcheck.readers import load


def walk(graph: Graph) -> float:
    """CPU seconds of reading every node's references once."""
    started = time.process_time()
    for node in graph.nodes:
        for _ in node.refs():
            pass
    return time.process_time() - started


def stages(path: Path) -> None:
    """Print the stages of checking one graph, best of five."""
    started = time.process_time()
    graph = load(path)
    read = time.process_time() - started
    best: dict[str, float] = {}
    for _ in range(5):
        report = check(graph)
        for name, seconds in report.statistics.seconds.items():
            best[name] = min(best.get(name, 1e9), seconds)
    shown = "  ".join(f"{name} {1000 * seconds:.0f} ms" for name, seconds in best.items() if name != "read")
    print(
        f"{path.name}: {len(graph.nodes)} nodes, read {1000 * read:.0f} ms  {shown}  (walk {1000 * walk(graph):.0f} ms)"
    )


def layered(nodes: int) -> Graph:
    """A tensor-parallel decoder of about this many nodes, written out layer by layer."""
    width, inner, tokens = 512, 256, 1024
    ranks = tuple(range(8))
    out: list[Node] = []

    def add(name: str, target: str, *args: Any, shape: tuple[int, ...], dtype: str = "float16") -> Ref:
        out.append(Node(name, "call_function", target, tuple(args), {}, TensorMeta(shape, dtype)))
        return Ref(name)

    def given(name: str, shape: tuple[int, ...], dtype: str = "float16") -> Ref:
        out.append(Node(name, "placeholder", name, (), {}, TensorMeta(shape, dtype)))
        return Ref(name)

    ids = given("ids", (tokens,), "int64")
    table = given("table", (1000, width))
    norm = given("norm", (width,))
    layers = max(1, (nodes - 5) // 15)
    weights = [
        (
            given(f"gate{i}", (inner, width)),
            given(f"up{i}", (inner, width)),
            given(f"down{i}", (width, inner)),
        )
        for i in range(layers)
    ]
    x = add("embedding", "aten.embedding.default", table, ids, shape=(tokens, width))
    for i, (gate, up, down) in enumerate(weights):
        n = add(f"n{i}", "tensor_cast.rms_norm.default", x, norm, 1e-6, shape=(tokens, width))
        gt = add(f"gt{i}", "aten.permute.default", gate, (1, 0), shape=(width, inner))
        ut = add(f"ut{i}", "aten.permute.default", up, (1, 0), shape=(width, inner))
        dt = add(f"dt{i}", "aten.permute.default", down, (1, 0), shape=(inner, width))
        g = add(f"g{i}", "aten.mm.default", n, gt, shape=(tokens, inner))
        u = add(f"u{i}", "aten.mm.default", n, ut, shape=(tokens, inner))
        s = add(f"s{i}", "aten.silu.default", g, shape=(tokens, inner))
        m = add(f"m{i}", "aten.mul.Tensor", s, u, shape=(tokens, inner))
        v = add(f"v{i}", "aten.view.default", m, (tokens, inner), shape=(tokens, inner))
        d = add(f"d{i}", "aten.mm.default", v, dt, shape=(tokens, width))
        r = add(f"r{i}", "tensor_cast.all_reduce.default", d, 0, ranks, shape=(tokens, width))
        x = add(f"x{i}", "aten.add.Tensor", x, r, shape=(tokens, width))
    out.append(Node("output", "output", "output", (x,), {}))
    return Graph(nodes=out, source="layered", rank=0, config={"tp_size": 8, "world_size": 8})


def scale(sizes: list[int]) -> None:
    """Print seconds and microseconds a node for graphs of growing size, and the memory at the end."""
    first = 0.0
    for size in sizes:
        graph = layered(size)
        gc.collect()
        started = time.process_time()
        report = check(graph)
        seconds = time.process_time() - started
        each = 1e6 * seconds / len(graph.nodes)
        first = first or each
        assert not report.errors, report.errors[:3]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{len(graph.nodes):>9} nodes  {seconds:7.2f} s  {each:5.2f} us a node ({each / first:.2f} x)  "
            f"walk {walk(graph):.2f} s  peak {peak:.0f} MiB"
        )
        del graph, report


def command(path: Path) -> None:
    """Print wall seconds of `layoutcheck check` in a fresh process, best of three."""
    best = 1e9
    for _ in range(3):
        started = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "layoutcheck", "check", str(path)], check=False, stdout=subprocess.DEVNULL
        )
        best = min(best, time.perf_counter() - started)
    print(f"{path.name}: whole command {best:.2f} s")


def main() -> None:
    """Run what the arguments ask for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("graphs", nargs="*", type=Path)
    parser.add_argument("--scale", nargs="+", type=int)
    parser.add_argument("--command", nargs="+", type=Path)
    args = parser.parse_args()
    for path in args.graphs:
        stages(path)
    if args.scale:
        scale(args.scale)
    for path in args.command or ():
        command(path)


if __name__ == "__main__":
    main()
