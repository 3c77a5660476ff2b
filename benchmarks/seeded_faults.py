"""Seed random faults in every clean reference graph and count how many are reported.

    python benchmarks/seeded_faults.py [--per-graph 20] [--seed 0] [--large] [GRAPH ...]

Prints a line per graph and lists the faults that are not errors, with kind, node and verdict; what the verdicts mean stands at the
end. Exit code 1 where a fault was missed that the graph tells.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.mutate import mutations  # noqa: E402
from support.seeding import ERROR, MISSED, REASONS, clean_graphs, examined, verdict  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("graphs", nargs="*", help="only graphs whose name contains one of these")
    parser.add_argument("--per-graph", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--large", action="store_true", help="also the graph of 17,723 nodes")
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    for name, graph in clean_graphs(options.large).items():
        if options.graphs and not any(part in name for part in options.graphs):
            continue
        start = time.process_time()
        clean, mine = examined(graph), []
        for mutation in mutations(graph, options.seed, options.per_graph):
            mine.append((mutation, verdict(clean, mutation)))
        counts.update(found for _, found in mine)
        errors = sum(found == ERROR for _, found in mine)
        seconds = time.process_time() - start
        note = f"  NOT CLEAN: {len(clean.errors)} errors" if clean.errors else ""
        print(f"{name:50s} {errors:3d} of {len(mine):3d} errors  {seconds:6.1f} s{note}")
        for mutation, found in mine:
            if found != ERROR:
                print(f"    {found:8s} {mutation.kind:28s} {mutation.node}")
    print(f"{counts[ERROR]} of {counts.total()} reported as errors")
    for found, reason in REASONS.items():
        if counts[found]:
            print(f"{counts[found]} {found}: {reason}")
    return 1 if counts[MISSED] else 0


if __name__ == "__main__":
    sys.exit(main())
