"""Ranks as processes on this machine, met by torch.distributed, and watched until all have ended."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch

from layoutcheck.errors import InputError
from layoutcheck.graph import Graph
from layoutcheck.json_form import graph_to_json
from layoutcheck.ranks.distributed import check_backend
from layoutcheck.ranks.interpreter import Groups, RankError
from layoutcheck.ranks.worker import read_notes

LIMIT = 300.0
WORKER = ("-m", "layoutcheck.ranks.worker")
POLL, GRACE = 0.02, 5.0
"""Seconds between two looks at the processes, and how long a rank may wait for one that has ended."""


@attrs.define
class RankRun:
    """What a rank computed: values by node name, its inputs as they are afterwards."""

    values: dict[str, Any]
    inputs: dict[str, Any]


@attrs.define
class _Watched:
    """The processes of a run."""

    folder: Path
    backend: str
    limit: float
    processes: list[subprocess.Popen[bytes]]
    started: float

    def results(self) -> list[dict[str, Any]]:
        """Wait for all results. Raises as `run_processes`."""
        found: dict[int, dict[str, Any]] = {}
        stuck: dict[int, float] = {}
        while len(found) < len(self.processes):
            time.sleep(POLL)
            for r, process in enumerate(self.processes):
                if r in found:
                    continue
                ended = process.poll()  # before the look at its result, which it may just have written
                if (self.folder / f"{r}.out").exists():
                    found[r] = torch.load(self.folder / f"{r}.out", weights_only=True)
                    _refuse(found[r], r)
                elif ended is not None:
                    raise self._died(r, ended)
            self._waiting(found, stuck)
            if time.monotonic() - self.started > self.limit:
                raise InputError(
                    f"the ranks did not end within {self.limit:g} s: {self._places(found)}", "--time-limit"
                )
        for r, out in found.items():
            if "error" in out:
                raise RankError(out["error"], out["node"], r)
        return [found[r] for r in range(len(self.processes))]

    def _waiting(self, found: Mapping[int, dict[str, Any]], stuck: dict[int, float]) -> None:
        """Ranks that wait for one that has come to its end wait for ever."""
        for r in range(len(self.processes)):
            node, waits = read_notes(self.folder / f"{r}.at") if r not in found else ("", [])
            if not set(waits) & set(found):
                stuck.pop(r, None)
            elif time.monotonic() - stuck.setdefault(r, time.monotonic()) > GRACE:
                raise RankError(
                    f"waits for an exchange that ranks {sorted(set(waits) & set(found))} do not join", node, r
                )

    def _places(self, found: Mapping[int, Any]) -> str:
        words = []
        for r in range(len(self.processes)):
            node, waits = read_notes(self.folder / f"{r}.at")
            others = [q for q in waits if q != r]
            place = f"is at {node}" if node else "has not begun"
            words.append(
                f"rank {r} "
                + ("has ended" if r in found else f"waits at {node} for ranks {others}" if others else place)
            )
        return ", ".join(words)

    def _died(self, rank: int, code: int) -> InputError:
        node, _ = read_notes(self.folder / f"{rank}.at")
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        said = (self.folder / f"{rank}.err").read_text(errors="replace").strip().splitlines()
        last = f": {said[-1]}" if said and code > 0 else ""
        where = f" at {node}" if node else ""
        return InputError(f"rank {rank} ended{where} {how}{last}", f"--backend {self.backend}")

    def end(self) -> None:
        """End all processes, whatever state they are in."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
            if process.stdin is not None:
                process.stdin.close()


def _refuse(out: Mapping[str, Any], rank: int) -> None:
    if "refused" in out:
        raise InputError(out["refused"])
    if "error" in out and not out["lost"]:
        raise RankError(out["error"], out["node"], rank)


def run_processes(
    graphs: Sequence[Graph],
    inputs: Sequence[Mapping[str, Any]],
    groups: Groups,
    *,
    backend: str,
    symbols: Mapping[str, int] | None = None,
    limit: float = LIMIT,
) -> list[RankRun]:
    """Run graph r on rank r, each in a process of its own. When this returns or raises, none is left.

    Args:
        inputs: as in `interpreter.run`.
        backend: `gloo`, or by name `nccl` or `hccl`, through which every rank needs a device of its own.
        limit: seconds within which all ranks have to end.

    Raises:
        InputError: the backend is not there, a process died, or the time is up.
        RankError: as `interpreter.run`.
    """
    world = len(graphs)
    check_backend(backend, world)
    with tempfile.TemporaryDirectory(prefix="layoutcheck-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        job = {
            "backend": backend,
            "world": world,
            "limit": limit,
            "symbols": dict(symbols or {}),
            "names": groups.names,
            "lists": [[list(k), v] for k, v in groups.lists.items()],
            "complete": groups.complete,
            "graphs": [graph_to_json(g) for g in graphs],
        }
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        for r, mine in enumerate(inputs):
            torch.save(dict(mine), folder / f"{r}.in")
        watched = _Watched(folder, backend, limit, [], time.monotonic())
        try:
            for r in range(world):
                with open(folder / f"{r}.err", "wb") as said:
                    command = [sys.executable, *WORKER, str(folder), str(r)]
                    watched.processes.append(
                        subprocess.Popen(
                            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said
                        )
                    )
            found = watched.results()
        finally:
            watched.end()
    return [RankRun(out["values"], out["inputs"]) for out in found]
