"""Where the processes of real ranks come from: started here, or by torchrun, in whose environment this is one of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from layoutcheck.errors import InputError
from layoutcheck.graph import Graph, Node
from layoutcheck.ranks.distributed import (
    Lost,
    Talker,
    check_backend,
    device_of,
    join_group,
    run_rank,
)
from layoutcheck.ranks.interpreter import Groups, RankError
from layoutcheck.ranks.processes import RankRun, run_processes
from layoutcheck.ranks.worker import kept

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
ERROR = "layoutcheck/error"


def in_group() -> bool:
    """Whether torchrun, or whoever sets its variables, has started this process as one of several ranks."""
    return all(os.environ.get(name) for name in VARIABLES)


def group_rank() -> int:
    """This process' rank in the environment of torchrun; 0 outside of it."""
    return _number("RANK") if in_group() else 0


def _number(name: str, default: int | None = None) -> int:
    text = os.environ.get(name, "")
    if not text and default is not None:
        return default
    if not text.isdecimal():
        raise InputError(f"expected a number, got {text!r}", name)
    return int(text)


class Elsewhere(Exception):
    """This process has done its part, and another one reports: `code` is the exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def _first(text: str) -> bool:
    """Whether no other rank has reported an error before; one report is enough."""
    try:
        store = dist.distributed_c10d._get_default_store()
        return bool(store.compare_set(ERROR, "", text).decode() == text)
    except RuntimeError:
        return False  # the rank that held the store has reported and ended


def spawned(backend: str, limit: float) -> Any:
    """Runs ranks as processes of this machine, started and ended here."""

    def run(
        graphs: Sequence[Graph],
        inputs: Sequence[Mapping[str, Any]],
        groups: Groups,
        symbols: Mapping[str, int],
    ) -> Sequence[RankRun]:
        return run_processes(graphs, inputs, groups, backend=backend, symbols=symbols, limit=limit)

    return run


def grouped(backend: str, limit: float) -> Any:
    """Runs the rank that this process is, and brings all ranks' values to rank 0; on all others it ends with
    `Elsewhere`.
    """
    rank, world = _number("RANK"), _number("WORLD_SIZE")
    local = _number("LOCAL_RANK", rank)

    def run(
        graphs: Sequence[Graph],
        inputs: Sequence[Mapping[str, Any]],
        groups: Groups,
        symbols: Mapping[str, int],
    ) -> Sequence[RankRun]:
        if world != len(graphs):
            raise InputError(f"the graph has {len(graphs)} ranks", f"WORLD_SIZE={world}")
        check_backend(backend, local + 1)
        join_group(backend, "env://", rank, world, limit)
        try:
            mine = _own(rank, local, graphs[rank], dict(inputs[rank]), groups, symbols)
            every: list[Any] = [None] * world
            # a group of its own: the others may still be in the exchanges of the program
            apart = dist.new_group(backend="gloo", timeout=timedelta(seconds=limit))
            dist.gather_object(mine, every if rank == 0 else None, dst=0, group=apart)
        except RuntimeError as error:
            problem = (
                error
                if isinstance(error, RankError)
                else Lost(f"another rank is gone: {str(error).splitlines()[0]}")
            )
            if not _first(f"rank {rank}: {problem}"):
                raise Elsewhere(1) from None
            raise problem from None
        finally:
            dist.destroy_process_group()
        if rank != 0:
            raise Elsewhere(0)
        return [RankRun(values, given) for values, given in every]

    def _own(
        rank: int,
        local: int,
        graph: Graph,
        given: dict[str, Any],
        groups: Groups,
        symbols: Mapping[str, int],
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        values: dict[str, Any] = {}

        def keep(_: int, node: Node, result: Any) -> None:
            values[node.name] = kept(result)

        torch.set_num_threads(1)
        run_rank(graph, given, groups, Talker(rank, device_of(backend, local)), symbols=symbols, watch=keep)
        return values, given

    return run
