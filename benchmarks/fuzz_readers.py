"""Read damaged and hostile graphs and other documents by the ten thousand: nothing but InputError may come out.

    python benchmarks/fuzz_readers.py [COUNT=20000] [--seed N]

prints how many files of each kind were read, refused, or raised something else, the slowest one and the
largest resident memory; exits 1 on any failure: another exception, more than 2 s, an expression that ran.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import os
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from fuzz_files import damaged  # noqa: E402
from fuzz_inputs import mutations  # noqa: E402

from layoutcheck.errors import InputError  # noqa: E402
from layoutcheck.json_form import dumps  # noqa: E402
from layoutcheck.readers import load  # noqa: E402

LIMIT = 2.0
"""Seconds of CPU for one file."""


def write_again(path: Path) -> str:
    """Read a graph and write it as JSON."""
    return dumps(load(path))


def files(seed: int) -> Iterator[tuple[str, str, Callable[[Path], Any], bytes]]:
    """Three graphs, then another document, and so on: the kind, the name, what reads it, and the bytes."""
    others = damaged(seed)
    for number, (kind, name, data) in enumerate(mutations(seed), 1):
        yield kind, name, write_again, data
        if number % 3 == 0:
            yield next(others)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("count", type=int, nargs="?", default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    slowest, failures = (0.0, ""), 0
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        for index, (kind, name, read, data) in enumerate(
            itertools.islice(files(options.seed), options.count)
        ):
            path = Path(folder) / kind / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
            start = time.process_time()
            try:
                read(path)
                result = "ok"
            except InputError as error:
                result = "InputError"
                if read is write_again and not (error.where or "").startswith(str(path)):
                    result = "InputError without the path"
                    failures += 1
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                result = type(error).__name__
                failures += 1
                if failures <= 5:
                    traceback.print_exc()
                    kept = Path(tempfile.gettempdir()) / f"fuzz_failure_{options.seed}_{index}_{name}"
                    kept.write_bytes(data)
                    print(f"kept as {kept}")
            taken = time.process_time() - start
            if taken > LIMIT:
                failures += 1
                print(f"file {index} ({kind}, {name}) took {taken:.1f} s")
            slowest = max(slowest, (taken, f"file {index} ({kind}, {name})"))
            counts[kind, result] += 1
    if os.path.exists("/tmp/owned"):
        failures += 1
        print("an expression was executed")
    for (kind, result), number in sorted(counts.items()):
        print(f"{kind:8} {result:12} {number:7}")
    print(f"total {sum(counts.values())}, failures {failures}, {time.process_time() - began:.0f} s of CPU")
    print(f"slowest {slowest[0]:.2f} s: {slowest[1]}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak {peak:.0f} MB resident")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
