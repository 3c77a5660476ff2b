"""One rank's exchanges as torch.distributed calls: the same program as the simulated ranks', a process a rank.

Everything is computed on the CPU in float64, as on simulated ranks; with nccl or hccl only what is exchanged goes
through the device. In front of every exchange the ranks of its group tell each other what they came for, so that
ranks that do not meet are an error and not a wait.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from layoutcheck.errors import InputError
from layoutcheck.graph import Graph, Node
from layoutcheck.ranks.interpreter import Members, RankError, Run, Watch, rank_program
from layoutcheck.ranks.reference.collectives import exchange
from layoutcheck.ranks.reference.registry import Exchange

BACKENDS = ("gloo", "nccl", "hccl")
DEVICES = {"gloo": "cpu", "nccl": "cuda", "hccl": "npu"}
LOCAL = ("share", "padded_share")
"""Exchanges that move nothing: the rank takes its part of what it holds."""


class Lost(RankError):
    """An exchange that broke off: another rank of the group is gone, or did not come in time."""


def check_backend(backend: str, local_ranks: int) -> None:
    """Say what is missing for a backend.

    Raises:
        InputError: this torch does not have it, or there are fewer devices than ranks on this machine.
    """
    where = f"--backend {backend}"
    if backend not in BACKENDS:
        raise InputError(f"there is no such backend; there are {', '.join(BACKENDS)}", where)
    if not dist.is_available():
        raise InputError("this torch was built without torch.distributed", where)
    if backend == "hccl":
        try:
            importlib.import_module("torch_npu")
        except ImportError:
            raise InputError("hccl needs torch_npu, which is not installed", where) from None
    if not dist.is_backend_available(backend):
        here = [name for name in BACKENDS if dist.is_backend_available(name)]
        raise InputError(f"this torch does not have it; it has {', '.join(here) or 'none'}", where)
    kind = DEVICES[backend]
    if kind != "cpu":
        devices = getattr(torch, kind).device_count()
        if devices < local_ranks:
            raise InputError(f"{local_ranks} ranks need a device each, and there are {devices}", where)


def device_of(backend: str, local_rank: int) -> torch.device:
    """The device through which a rank exchanges."""
    kind = DEVICES[backend]
    if kind == "cpu":
        return torch.device("cpu")
    getattr(torch, kind).set_device(local_rank)
    return torch.device(kind, local_rank)


def join_group(backend: str, method: str, rank: int, world: int, limit: float) -> None:
    """Enter the group of all ranks; `method` is a URL of torch.distributed.

    Raises:
        InputError: the ranks do not find each other within `limit` seconds, or the port is taken.
    """
    try:
        dist.init_process_group(
            backend, init_method=method, rank=rank, world_size=world, timeout=timedelta(seconds=limit)
        )
    except (RuntimeError, ValueError, OSError) as error:
        text = str(error).split("\n")[0]
        port = os.environ.get("MASTER_PORT", "")
        if "EADDRINUSE" in str(error) or "address already in use" in str(error):
            raise InputError("the port is taken by another program", f"MASTER_PORT={port}") from None
        raise InputError(f"the ranks do not find each other: {text}", f"--backend {backend}") from None


class Talker:
    """The exchanges of this process' rank. `waits` is called with the ranks that are waited for, and with none
    afterwards.
    """

    def __init__(
        self, rank: int, device: torch.device, waits: Callable[[Sequence[int]], None] | None = None
    ) -> None:
        self.rank, self.device = rank, device
        self.waits = waits or (lambda _: None)
        self.groups: dict[tuple[int, ...], Any] = {}

    def exchange(self, asked: Exchange, ranks: Sequence[int]) -> Tensor:
        """What this rank gets.

        Raises:
            RankError: shapes or exchanges of the ranks do not fit each other.
            Lost: a rank of the group is gone.
        """
        if self.rank not in ranks:
            raise RankError(f"rank {self.rank} takes part in a group {list(ranks)} that it is not in")
        me = list(ranks).index(self.rank)
        if asked.kind in LOCAL:
            return exchange([asked] * len(ranks), me)
        if len(ranks) == 1:
            return exchange([asked], 0)
        self.waits(ranks)
        try:
            return self._together(asked, ranks, me)
        except RankError:
            raise
        except RuntimeError as error:
            raise Lost(f"the exchange broke off: {str(error).splitlines()[0]}") from error
        finally:
            self.waits(())

    def _group(self, ranks: Sequence[int]) -> Any:
        """torch's group of these ranks, which it keeps in ascending order."""
        key = tuple(sorted(ranks))
        if key not in self.groups:
            whole = len(key) == dist.get_world_size()
            self.groups[key] = (
                dist.group.WORLD if whole else dist.new_group(list(key), use_local_synchronization=True)
            )
        return self.groups[key]

    def _together(self, asked: Exchange, ranks: Sequence[int], me: int) -> Tensor:
        group = self._group(ranks)
        splits = None if asked.splits is None else tuple(int(n) for n in asked.splits)
        mine = (asked.kind, tuple(asked.x.shape), asked.dim, splits, asked.root, tuple(ranks))
        told: list[Any] = [None] * len(ranks)
        dist.all_gather_object(told, mine, group=group)
        place = {r: told[i] for i, r in enumerate(sorted(ranks))}
        partners = [place[r] for r in ranks]
        if any(p[0] != asked.kind or p[5] != tuple(ranks) for p in partners):
            each = ", ".join(f"rank {r} to {p[0]}" for r, p in zip(ranks, partners))
            raise RankError(f"ranks {list(ranks)} come to different exchanges: {each}")
        act = getattr(self, f"_{asked.kind}", None)
        if act is None:
            raise RankError(f"unknown exchange {asked.kind}")
        out: Tensor = act(asked, list(ranks), me, partners, group)
        return out

    def _out(self, x: Tensor) -> Tensor:
        """A copy on the device, of a dtype that backends exchange."""
        wide = torch.int32 if x.dtype in (torch.int16, torch.uint16) else x.dtype
        return x.detach().to(self.device, wide, copy=True).contiguous()

    def _all_reduce(
        self, asked: Exchange, ranks: list[int], me: int, partners: list[Any], group: Any
    ) -> Tensor:
        _same_shapes(partners)
        y = self._out(asked.x)
        dist.all_reduce(y, group=group)
        return y.to("cpu", asked.x.dtype)

    def _all_gather(
        self, asked: Exchange, ranks: list[int], me: int, partners: list[Any], group: Any
    ) -> Tensor:
        dim = asked.dim % asked.x.dim()
        rows = [p[1][dim] for p in partners]
        _same_shapes([(None, (*p[1][:dim], *p[1][dim + 1 :])) for p in partners])
        y = self._out(asked.x.movedim(dim, 0))
        most = max(rows)
        y = torch.cat([y, y.new_zeros(most - y.shape[0], *y.shape[1:])])
        parts = [torch.empty_like(y) for _ in ranks]
        dist.all_gather(parts, y, group=group)
        at = {r: part for r, part in zip(sorted(ranks), parts)}
        whole = torch.cat([at[r][:n] for r, n in zip(ranks, rows)]).movedim(0, dim)
        return whole.to("cpu", asked.x.dtype)

    def _reduce_scatter(
        self, asked: Exchange, ranks: list[int], me: int, partners: list[Any], group: Any
    ) -> Tensor:
        _same_shapes(partners)
        n, dim = len(ranks), asked.dim % asked.x.dim()
        if asked.x.shape[dim] % n:
            raise RankError(f"{asked.x.shape[dim]} rows do not divide by {n} ranks")
        pieces = asked.x.chunk(n, dim)
        # torch hands out shares in ascending order of ranks
        ordered = [pieces[ranks.index(r)] for r in sorted(ranks)]
        y = self._out(torch.cat([p.movedim(dim, 0) for p in ordered]))
        out = y.new_empty(y.shape[0] // n, *y.shape[1:])
        scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        scatter(out, y, group=group)
        return out.movedim(0, dim).to("cpu", asked.x.dtype)

    def _all_to_all(
        self, asked: Exchange, ranks: list[int], me: int, partners: list[Any], group: Any
    ) -> Tensor:
        n = len(ranks)
        _same_shapes([(None, p[1][1:]) for p in partners])
        sizes = [list(p[3]) if p[3] is not None else [p[1][0] // n] * n for p in partners]
        for p, sent in zip(partners, sizes):
            if sum(sent) != p[1][0]:
                raise RankError(f"splits {sent} of {p[1][0]} rows")
        order = [ranks.index(r) for r in sorted(ranks)]
        pieces = asked.x.split(sizes[me], 0)
        y = self._out(torch.cat([pieces[i] for i in order]))
        got = [sizes[i][me] for i in order]
        out = y.new_empty(sum(got), *y.shape[1:])
        dist.all_to_all_single(out, y, got, [sizes[me][i] for i in order], group=group)
        back = {i: part for i, part in zip(order, out.split(got, 0))}
        return torch.cat([back[i] for i in range(n)]).to("cpu", asked.x.dtype)

    def _broadcast(
        self, asked: Exchange, ranks: list[int], me: int, partners: list[Any], group: Any
    ) -> Tensor:
        root = asked.root % len(ranks)
        y = self._out(asked.x if me == root else asked.x.new_empty(partners[root][1]))
        dist.broadcast(y, src=ranks[root], group=group)
        return y.to("cpu", asked.x.dtype)


def _same_shapes(partners: Sequence[Any]) -> None:
    shapes = [p[1] for p in partners]
    if any(s != shapes[0] for s in shapes):
        raise RankError(f"the ranks' shapes do not fit each other: {', '.join(map(str, shapes))}")


def run_rank(
    graph: Graph,
    inputs: Mapping[str, Any],
    members: Members,
    talker: Talker,
    *,
    symbols: Mapping[str, int],
    watch: Watch | None = None,
    before: Callable[[Node], None] | None = None,
) -> Run:
    """Run this process' rank of a program; the group of all ranks has to be there.

    Raises:
        RankError: as `interpreter.run`; `Lost` where another rank is gone.
    """
    here: list[Node] = []

    def enter(node: Node) -> None:
        here[:] = [node]
        if before is not None:
            before(node)

    program = rank_program(graph, inputs, symbols, talker.rank, watch, enter)
    sent: Any = None
    with torch.no_grad():
        while True:
            try:
                asked = program.send(sent)
                sent = talker.exchange(asked, members(talker.rank, asked.group))
            except StopIteration as end:
                result: Run = end.value
                return result
            except RankError as error:
                if not error.node and here:
                    error.node, error.rank = here[0].name, talker.rank
                raise
