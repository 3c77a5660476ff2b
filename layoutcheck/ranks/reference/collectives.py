"""Collectives under the names of torch.distributed, vLLM and rank lists."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import torch
from torch import Tensor

from layoutcheck.ranks.reference.registry import Exchange, reference

Talk = Generator[Exchange, Any, Any]


def _sum(op: Any) -> None:
    if str(op).lower() not in ("sum", "0", "none"):
        raise NotImplementedError(f"a reduction by {op}")


@reference("tensor_cast.all_reduce")
def all_reduce(x: Tensor, rank: int, rank_group: Sequence[int]) -> Talk:
    """The sum over the group."""
    return (yield Exchange("all_reduce", x, rank_group))


@reference("tensor_cast.all_gather")
def all_gather(x: Tensor, dim: int, rank: int, rank_group: Sequence[int]) -> Talk:
    """The group's values one after another along `dim`."""
    return (yield Exchange("all_gather", x, rank_group, dim))


@reference("tensor_cast.reduce_scatter")
def reduce_scatter(x: Tensor, dim: int, rank: int, rank_group: Sequence[int]) -> Talk:
    """This rank's share along `dim` of the sum over the group."""
    return (yield Exchange("reduce_scatter", x, rank_group, dim))


@reference("tensor_cast.all_to_all")
def all_to_all(
    x: Tensor, output_split_sizes: Any, input_split_sizes: Any, rank: int, rank_group: Sequence[int]
) -> Talk:
    """Piece j of dimension 0 goes to rank j of the group."""
    return (yield Exchange("all_to_all", x, rank_group, 0, input_split_sizes))


@reference("_c10d_functional.all_reduce")
def c10d_all_reduce(input: Tensor, reduce_op: str, group_name: str) -> Talk:
    """The sum over the group."""
    _sum(reduce_op)
    return (yield Exchange("all_reduce", input, group_name))


@reference("_c10d_functional.all_gather_into_tensor", "_c10d_functional_autograd.all_gather_into_tensor")
def c10d_all_gather(input: Tensor, group_size: int, group_name: str) -> Talk:
    """The group's values along dimension 0."""
    return (yield Exchange("all_gather", input, group_name))


@reference("_c10d_functional.reduce_scatter_tensor", "_c10d_functional_autograd.reduce_scatter_tensor")
def c10d_reduce_scatter(input: Tensor, reduce_op: str, group_size: int, group_name: str) -> Talk:
    """This rank's share of the sum along dimension 0."""
    _sum(reduce_op)
    return (yield Exchange("reduce_scatter", input, group_name))


@reference("_c10d_functional.all_to_all_single", "_c10d_functional_autograd.all_to_all_single")
def c10d_all_to_all(input: Tensor, output_split_sizes: Any, input_split_sizes: Any, group_name: str) -> Talk:
    """Piece j of dimension 0 goes to rank j of the group."""
    return (yield Exchange("all_to_all", input, group_name, 0, input_split_sizes))


@reference("_c10d_functional.broadcast")
def c10d_broadcast(input: Tensor, src: int, group_name: str) -> Talk:
    """Rank `src`'s value on every rank."""
    return (yield Exchange("broadcast", input, group_name, root=src))


@reference("_c10d_functional.wait_tensor")
def wait_tensor(tensor: Tensor) -> Tensor:
    """A value is there as soon as it was exchanged."""
    return tensor


@reference("_c10d_functional._wrap_tensor_autograd")
def wrap_tensor(input: Tensor) -> Tensor:
    """The value itself."""
    return input


@reference("c10d_functional.wait_tensor")
def old_wait_tensor(self: Tensor) -> Tensor:
    """The value itself."""
    return self


@reference("c10d.allreduce_")
def allreduce_(
    tensors: Sequence[Tensor],
    process_group: Any,
    reduce_op: Any,
    sparse_indices: Any = None,
    async_op: bool = True,
    timeout: int = -1,
) -> Talk:
    """The sum over the group, written into the argument."""
    for tensor in tensors:
        tensor.copy_((yield Exchange("all_reduce", tensor.clone(), process_group)))
    return list(tensors), None


@reference("c10d._allgather_base_")
def allgather_base_(
    output_tensor: Tensor, input_tensor: Tensor, process_group: Any, async_op: bool = True, timeout: int = -1
) -> Talk:
    """The group's values along dimension 0, written into `output_tensor`."""
    output_tensor.copy_((yield Exchange("all_gather", input_tensor, process_group)))
    return output_tensor, None


@reference("c10d._reduce_scatter_base_")
def reduce_scatter_base_(
    output_tensor: Tensor,
    input_tensor: Tensor,
    process_group: Any,
    reduce_op: Any,
    async_op: bool = True,
    timeout: int = -1,
) -> Talk:
    """This rank's share of the sum, written into `output_tensor`."""
    output_tensor.copy_((yield Exchange("reduce_scatter", input_tensor, process_group)))
    return output_tensor, None


@reference("_dtensor.shard_dim_alltoall")
def shard_dim_alltoall(input: Tensor, gather_dim: int, shard_dim: int, group_name: str) -> Talk:
    """Gathers one dimension and scatters another."""
    whole = yield Exchange("all_gather", input, group_name, gather_dim)
    mine = yield Exchange("share", whole, group_name, shard_dim)
    return mine


@reference("vllm.all_reduce")
def vllm_all_reduce(tensor: Tensor, group_name: str) -> Talk:
    """The sum over the group."""
    return (yield Exchange("all_reduce", tensor, group_name))


@reference("vllm.all_gather")
def vllm_all_gather(tensor: Tensor, dim: int, world_size: int, group_name: str) -> Talk:
    """The group's values along `dim`."""
    return (yield Exchange("all_gather", tensor, group_name, dim))


@reference("vllm.reduce_scatter")
def vllm_reduce_scatter(tensor: Tensor, dim: int, world_size: int, group_name: str) -> Talk:
    """This rank's share of the sum along `dim`."""
    return (yield Exchange("reduce_scatter", tensor, group_name, dim))


@reference("symm_mem.fused_matmul_reduce_scatter")
def fused_matmul_reduce_scatter(
    A: Tensor, B: Tensor, reduce_op: str, scatter_dim: int, group_name: str
) -> Talk:
    """The product's sum over the group, scattered."""
    _sum(reduce_op)
    return (yield Exchange("reduce_scatter", A @ B, group_name, scatter_dim))


def exchange(requests: Sequence[Exchange], me: int) -> Tensor:
    """What the rank at position `me` of a group gets, from the requests of all its ranks in order.

    Raises:
        RuntimeError: the ranks' shapes do not fit each other.
    """
    first = requests[0]
    values = [r.x for r in requests]
    n = len(values)
    if first.kind == "all_reduce":
        return torch.stack(values).sum(0).to(values[0].dtype)
    if first.kind == "all_gather":
        return torch.cat(values, first.dim)
    if first.kind == "share":
        return _share(requests[me].x, n, me, first.dim)
    if first.kind == "padded_share":
        from layoutcheck.ranks.reference.torch_collectives import padded_share

        return padded_share(requests[me].x, n, me)
    if first.kind == "reduce_scatter":
        return _share(torch.stack(values).sum(0).to(values[0].dtype), n, me, first.dim)
    if first.kind == "broadcast":
        return values[first.root % n].clone()
    if first.kind == "all_to_all":
        pieces = []
        for request in requests:
            rows = request.x.shape[0]
            sizes = list(request.splits) if request.splits is not None else [rows // n] * n
            if sum(sizes) != rows:
                raise RuntimeError(f"splits {sizes} of {rows} rows")
            pieces.append(request.x.split(sizes, 0)[me])
        return torch.cat(pieces, 0)
    raise RuntimeError(f"unknown exchange {first.kind}")


def _share(x: Tensor, n: int, me: int, dim: int) -> Tensor:
    rows = x.shape[dim]
    if rows % n:
        raise RuntimeError(f"{rows} rows do not divide by {n} ranks")
    return x.narrow(dim, me * (rows // n), rows // n).clone()
