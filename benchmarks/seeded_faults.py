"""Seed random faults in every clean reference graph and count how many are reported.

    python benchmarks/seeded_faults.py [--per-graph 20] [--seed 0] [--large] [GRAPH ...]

Prints a line per graph and lists the faults that were missed, with kind and node. Exit code 1 where any was.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support import engine, shared  # noqa: E402
from support.builder import DIALECTS, Json  # noqa: E402
from support.faults import SIZES  # noqa: E402
from support.mutate import mutations  # noqa: E402
from support.programs import PROGRAMS, build  # noqa: E402


def clean_graphs(large: bool) -> dict[str, Json]:
    """Built programs, and the clean reference graphs where the folder is there."""
    graphs = {
        f"{name} ({dialect}, {kind})": build(name, dialect, SIZES[0], declare=kind == "declared")
        for name in PROGRAMS
        for dialect in DIALECTS
        for kind in ("declared", "anonymous")
    }
    if shared.FOLDER.is_dir():
        wanted = (n for n in shared.PARALLEL_CLEAN if large or n not in shared.LARGE)
        graphs.update({name: shared.load(name) for name in wanted})
    return graphs


def errors(graph: Json) -> set[tuple[str, str]]:
    """Code and node of each error."""
    return {(engine.code(f), f.node) for f in engine.errors(engine.check(graph))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("graphs", nargs="*", help="only graphs whose name contains one of these")
    parser.add_argument("--per-graph", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--large", action="store_true", help="also the graph of 17,723 nodes")
    options = parser.parse_args()
    total = reported = 0
    for name, graph in clean_graphs(options.large).items():
        if options.graphs and not any(part in name for part in options.graphs):
            continue
        start = time.process_time()
        missed, made = [], mutations(graph, options.seed, options.per_graph)
        before = errors(graph)
        for mutation in made:
            if errors(mutation.graph) <= before:
                missed.append(mutation)
        total, reported = total + len(made), reported + len(made) - len(missed)
        seconds = time.process_time() - start
        note = f"  NOT CLEAN: {len(before)} errors" if before else ""
        print(f"{name:50s} {len(made) - len(missed):3d} of {len(made):3d} reported  {seconds:6.1f} s{note}")
        for mutation in missed:
            print(f"    missed  {mutation.kind:28s} {mutation.node}")
    print(f"{reported} of {total} reported")
    return 0 if reported == total else 1


if __name__ == "__main__":
    sys.exit(main())
