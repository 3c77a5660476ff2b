"""How long it takes to start: ``python benchmarks/startup.py``. Exit code 1 if a budget is not met.

Each command runs in a fresh interpreter, ten times; the median wall-clock time counts.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

BUDGETS = {
    "import layoutcheck": ([sys.executable, "-c", "import layoutcheck"], 0.5),
    "layoutcheck --version": ([sys.executable, "-m", "layoutcheck", "--version"], 0.3),
}
RUNS = 10


def seconds(command: list[str]) -> float:
    """Return the median wall-clock time of a command in seconds."""
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> int:
    """Print each command's time and budget; return 1 if one is over it."""
    late = False
    for name, (command, budget) in BUDGETS.items():
        taken = seconds(command)
        late |= taken > budget
        print(f"{name:24} {taken:.3f} s, budget {budget} s")
    return int(late)


if __name__ == "__main__":
    sys.exit(main())
