"""The process of one rank: ``python -m layoutcheck.ranks.worker FOLDER RANK``, started by `processes`.

Reads `FOLDER/job.json` and `FOLDER/RANK.in`, runs the rank, and writes `FOLDER/RANK.out`. Where it is stands in
`FOLDER/RANK.at`. It ends when its standard input does, so that it does not outlive what started it, and takes the folder with
it.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from layoutcheck.errors import InputError
from layoutcheck.graph import Node
from layoutcheck.json_form import graph_from_json
from layoutcheck.ranks.distributed import Lost, Talker, device_of, join_group, run_rank
from layoutcheck.ranks.interpreter import Groups, RankError

RECORD = 1024
ATTEMPTS, PAUSE = 20, 0.1


class Notes:
    """A rank's place in its program, for whoever watches: the node, and the ranks that it waits for."""

    def __init__(self, path: Path) -> None:
        self.file = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
        self.node = ""

    def at(self, node: Node) -> None:
        """It has come to a node."""
        self.node = node.name
        self._write(())

    def waits(self, ranks: Sequence[int]) -> None:
        """It waits for these ranks."""
        self._write(ranks)

    def _write(self, ranks: Sequence[int]) -> None:
        text = json.dumps({"node": self.node[:400], "waits": list(ranks)[:64]}).encode()
        os.pwrite(self.file, text.ljust(RECORD), 0)


def read_notes(path: Path) -> tuple[str, list[int]]:
    """The node that a rank is at, and the ranks that it waits for; nothing where it has not begun."""
    try:
        data = json.loads(path.read_bytes())
        return str(data["node"]), [int(r) for r in data["waits"]]
    except (OSError, ValueError, KeyError):
        return "", []


def kept(x: Any) -> Any:
    """A copy of a value, since later calls may write into it; what is no number becomes nothing."""
    if isinstance(x, torch.Tensor):
        return x.clone()
    if isinstance(x, (tuple, list)):
        return [kept(y) for y in x]
    return x if isinstance(x, (int, float, bool, str)) else None


def _work(folder: Path, rank: int) -> dict[str, Any]:
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    mine = torch.load(folder / f"{rank}.in", weights_only=True)
    torch.set_num_threads(1)
    join_group(job["backend"], (folder / "meet").resolve().as_uri(), rank, job["world"], job["limit"])
    notes = Notes(folder / f"{rank}.at")
    talker = Talker(rank, device_of(job["backend"], rank), notes.waits)
    lists = {tuple(k): v for k, v in job["lists"]}
    groups = Groups(job["world"], job["names"], lists, job["complete"])
    values: dict[str, Any] = {}

    def keep(_: int, node: Node, result: Any) -> None:
        values[node.name] = kept(result)

    graph = graph_from_json(job["graphs"][rank])
    out: dict[str, Any] = {"values": values, "inputs": mine}
    try:
        run_rank(graph, mine, groups, talker, symbols=job["symbols"], watch=keep, before=notes.at)
    except RankError as error:
        out |= {"error": str(error.args[0]), "node": error.node, "lost": isinstance(error, Lost)}
    return out


def _end_with_parent(folder: Path) -> None:
    """Whoever started this is gone without a word, and what is in the folder is for nobody."""
    sys.stdin.buffer.read()
    for _ in range(ATTEMPTS):  # other ranks may still be writing into it
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            break
        time.sleep(PAUSE)
    os._exit(1)


def main(folder: Path, rank: int) -> int:
    """Run one rank. The result is there only when it is complete."""
    threading.Thread(target=_end_with_parent, args=(folder,), daemon=True).start()
    try:
        out = _work(folder, rank)
    except InputError as error:
        out = {"refused": str(error)}
    draft = folder / f"{rank}.draft"
    torch.save(out, draft)
    draft.replace(folder / f"{rank}.out")
    threading.Event().wait()  # others may still be reading what it sent
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
