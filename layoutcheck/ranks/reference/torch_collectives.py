"""The other spellings of torch's collectives: coalesced, with rank lists, eager, and vLLM's with padding."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import torch
from torch import Tensor

from layoutcheck.ranks.reference.registry import Exchange, reference

Talk = Generator[Exchange, Any, Any]


def _each(kind: str) -> Callable[..., Talk]:
    def many(inputs: Sequence[Tensor], group: Any) -> Talk:
        out = []
        for x in inputs:
            out.append((yield Exchange(kind, x, group)))
        return out

    return many


_reduce_each, _gather_each, _scatter_each = _each("all_reduce"), _each("all_gather"), _each("reduce_scatter")


@reference("_c10d_functional.all_reduce_coalesced")
def all_reduce_coalesced(inputs: Sequence[Tensor], reduce_op: str, group_name: str) -> Talk:
    """The sums of several values."""
    return (yield from _reduce_each(inputs, group_name))


@reference("_c10d_functional.all_gather_into_tensor_coalesced")
def all_gather_coalesced(inputs: Sequence[Tensor], group_size: int, group_name: str) -> Talk:
    """Several values, each gathered along dimension 0."""
    return (yield from _gather_each(inputs, group_name))


@reference("_c10d_functional.reduce_scatter_tensor_coalesced")
def reduce_scatter_coalesced(
    inputs: Sequence[Tensor], reduce_op: str, group_size: int, group_name: str
) -> Talk:
    """Several sums, each scattered along dimension 0."""
    return (yield from _scatter_each(inputs, group_name))


@reference("_c10d_functional.all_gather_into_tensor_out")
def all_gather_out(input: Tensor, group_size: int, group_name: str, *, out: Tensor) -> Talk:
    """The group's values along dimension 0, written into `out`."""
    return out.copy_((yield Exchange("all_gather", input, group_name)))


@reference("c10d_functional.all_reduce")
def old_all_reduce(self: Tensor, reduceOp: str, tag: str, ranks: Sequence[int], group_size: int) -> Talk:
    """The sum over a list of ranks."""
    return (yield Exchange("all_reduce", self, ranks))


@reference("c10d_functional.all_gather_into_tensor")
def old_all_gather(shard: Tensor, tag: str, ranks: Sequence[int], group_size: int) -> Talk:
    """The values of a list of ranks along dimension 0."""
    return (yield Exchange("all_gather", shard, ranks))


@reference("c10d_functional.reduce_scatter_tensor")
def old_reduce_scatter(input: Tensor, reduceOp: str, tag: str, ranks: Sequence[int], group_size: int) -> Talk:
    """The sum over a list of ranks, scattered along dimension 0."""
    return (yield Exchange("reduce_scatter", input, ranks))


@reference("c10d_functional.all_to_all_single")
def old_all_to_all(
    input: Tensor,
    output_split_sizes: Any,
    input_split_sizes: Any,
    tag: str,
    ranks: Sequence[int],
    group_size: int,
) -> Talk:
    """Piece j of dimension 0 goes to rank j of a list."""
    return (yield Exchange("all_to_all", input, ranks, 0, input_split_sizes))


@reference("c10d_functional.broadcast")
def old_broadcast(self: Tensor, src: int, tag: str, ranks: Sequence[int], group_size: int) -> Talk:
    """Rank `src`'s value."""
    return (yield Exchange("broadcast", self, ranks, root=src))


@reference("c10d.allreduce_coalesced_")
def allreduce_coalesced_(
    tensors: Sequence[Tensor], process_group: Any, reduce_op: Any, async_op: bool = True, timeout: int = -1
) -> Talk:
    """Sums, written into the arguments."""
    for tensor in tensors:
        tensor.copy_((yield Exchange("all_reduce", tensor.clone(), process_group)))


@reference("c10d.broadcast_")
def broadcast_(
    tensors: Sequence[Tensor],
    process_group: Any,
    root_rank: int,
    root_tensor: int,
    async_op: bool = True,
    timeout: int = -1,
) -> Talk:
    """The root's values, written into the arguments."""
    for tensor in tensors:
        tensor.copy_((yield Exchange("broadcast", tensor.clone(), process_group, root=root_rank)))
    return list(tensors), None


@reference("c10d.alltoall_base_")
def alltoall_base_(
    output: Tensor,
    input: Tensor,
    process_group: Any,
    output_split_sizes: Any,
    input_split_sizes: Any,
    async_op: bool = True,
    timeout: int = -1,
) -> Talk:
    """Piece j of `input` goes to rank j; what comes is written into `output`."""
    output.copy_((yield Exchange("all_to_all", input, process_group, 0, input_split_sizes or None)))


@reference("vllm.sequence_parallel_chunk_impl")
def sequence_parallel_chunk(x: Tensor) -> Talk:
    """The rank's rows of x, padded to a multiple of the group."""
    return (yield Exchange("padded_share", x, "tp"))


@reference("vllm.maybe_chunk_residual")
def maybe_chunk_residual(x: Tensor, residual: Tensor) -> Talk:
    """The rank's rows of the residual where x has fewer rows than it."""
    if x.shape[0] == residual.shape[0]:
        return residual
    return (yield Exchange("padded_share", residual, "tp"))


@reference("vllm.maybe_pad_and_reduce")
def maybe_pad_and_reduce(x: Tensor, is_ep_comm: bool = False, do_comm: bool = True) -> Talk:
    """The rank's rows of the sum, padded to a multiple of the group."""
    total = yield Exchange("all_reduce", x, "tp")
    return (yield Exchange("padded_share", total, "tp"))


def padded_share(x: Tensor, n: int, me: int) -> Tensor:
    """Rows `me` of n equal shares, zeros behind the last row."""
    rows = -(-x.shape[0] // n)
    more = x.new_zeros(rows * n - x.shape[0], *x.shape[1:])
    return torch.cat([x, more])[me * rows : (me + 1) * rows].clone()


@reference("c10d.allgather_")
def allgather_(
    output_tensors: Sequence[Sequence[Tensor]],
    input_tensors: Sequence[Tensor],
    process_group: Any,
    async_op: bool = True,
    timeout: int = -1,
) -> Talk:
    """Every rank's value, one a tensor of the written lists."""
    for pieces, x in zip(output_tensors, input_tensors):
        got = yield Exchange("all_gather", x.unsqueeze(0), process_group)
        for piece, part in zip(pieces, got):
            piece.copy_(part)
    return output_tensors, None


@reference("c10d.reduce_scatter_")
def reduce_scatter_(
    output_tensors: Sequence[Tensor],
    input_tensors: Sequence[Sequence[Tensor]],
    process_group: Any,
    reduce_op: Any,
    async_op: bool = True,
    timeout: int = -1,
) -> Talk:
    """The sum of one tensor of each rank's list, that of the rank's own place."""
    for out, pieces in zip(output_tensors, input_tensors):
        got = yield Exchange("reduce_scatter", torch.stack(list(pieces)), process_group)
        out.copy_(got[0])
    return list(output_tensors), None


@reference("c10d.alltoall_")
def alltoall_(
    output_tensors: Sequence[Tensor],
    input_tensors: Sequence[Tensor],
    process_group: Any,
    async_op: bool = True,
    timeout: int = -1,
) -> Talk:
    """Tensor j of a rank's list goes to rank j."""
    got = yield Exchange("all_to_all", torch.stack(list(input_tensors)), process_group)
    for out, part in zip(output_tensors, got):
        out.copy_(part)
    return list(output_tensors), None


@reference("c10d.allgather_into_tensor_coalesced_")
def allgather_into_tensor_coalesced_(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], process_group: Any, async_op: bool = True
) -> Talk:
    """Several values, each gathered along dimension 0 into its output."""
    for out, x in zip(outputs, inputs):
        out.copy_((yield Exchange("all_gather", x, process_group)))
    return list(outputs)


@reference("c10d.reduce_scatter_tensor_coalesced_")
def reduce_scatter_tensor_coalesced_(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    process_group: Any,
    reduce_op: Any,
    async_op: bool = True,
    timeout: int = -1,
) -> Talk:
    """Several sums, each scattered along dimension 0 into its output."""
    for out, x in zip(outputs, inputs):
        out.copy_((yield Exchange("reduce_scatter", x, process_group)))
    return list(outputs)


@reference("vllm.patched_fused_scaled_matmul_reduce_scatter")
def scaled_matmul_reduce_scatter(
    A: Tensor,
    B: Tensor,
    A_scale: Tensor,
    B_scale: Tensor,
    reduce_op: str,
    orig_scatter_dim: int,
    scatter_dim_after_maybe_reshape: int,
    group_name: str,
    output_shape: Any,
    bias: Tensor | None = None,
    result_scale: Tensor | None = None,
    out_dtype: Any = None,
    use_fast_accum: bool = False,
) -> Talk:
    """The sum over the group of a product of codes, scattered."""
    y = (A.to(torch.float64) * A_scale) @ (B.to(torch.float64) * B_scale)
    y = y if bias is None else y + bias
    y = y if result_scale is None else y * result_scale
    return (yield Exchange("reduce_scatter", y, group_name, orig_scatter_dim))
