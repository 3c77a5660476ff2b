"""Conversions as repairs write them, conditions, and what passes between pipeline stages."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import torch
from torch import Tensor

from layoutcheck.ranks.reference.registry import Exchange, reference

Talk = Generator[Exchange, Any, Any]


def _filled(x: Tensor, dim: int, n: int) -> Tensor:
    """Zeros behind the last row, up to a multiple of n."""
    more = list(x.shape)
    more[dim] = -x.shape[dim] % n
    return torch.cat([x, x.new_zeros(more)], dim)


@reference("layoutcheck.all_gather")
def all_gather(
    x: Tensor, dim: int, group: Any, size: int, rank: Any, ranks: Any, unpad: bool = False
) -> Talk:
    """The shares one after another. How many rows are padding is not among the arguments: with `unpad` there must be none."""
    return (yield Exchange("all_gather", x, ranks or group, dim))


@reference("layoutcheck.reduce_scatter")
def reduce_scatter(x: Tensor, dim: int, group: Any, size: int, rank: Any, ranks: Any) -> Talk:
    """This rank's rows of the sum, filled up to a multiple of the ranks."""
    return (yield Exchange("reduce_scatter", _filled(x, dim, size), ranks or group, dim))


@reference("layoutcheck.all_reduce")
def all_reduce(x: Tensor, dim: Any, group: Any, size: int, rank: Any, ranks: Any) -> Talk:
    """The sum."""
    return (yield Exchange("all_reduce", x, ranks or group))


@reference("layoutcheck.slice")
def share(x: Tensor, dim: int, group: Any, size: int, rank: Any, ranks: Any) -> Talk:
    """This rank's rows, filled up to a multiple of the ranks."""
    return (yield Exchange("share", _filled(x, dim, size), ranks or group, dim))


@reference("layoutcheck.branch")
def branch(a: Tensor, b: Tensor) -> Tensor:
    """The result of the branch that is taken: the first one. Both are run, and compared each by itself."""
    return a


@reference("_c10d_functional.isend")
def isend(tensor: Tensor, dst: int, tag: int, group_name: str) -> Tensor:
    """What is sent. Stages are run as one program: what one sends is what the next one gets."""
    return tensor


@reference("_c10d_functional.irecv")
def irecv(tensor: Tensor, src: int, tag: int, group_name: str) -> Tensor:
    """What comes, which is laid out as the buffer for it."""
    return tensor


@reference("_c10d_functional.batch_p2p_ops")
def batch_p2p_ops(op_list: Any, peer_list: Any, tag_list: Any, tensors: list[Tensor], group_name: str) -> Any:
    """Several of both."""
    return list(tensors)


@reference("tensor_cast.pipeline_send_recv")
def pipeline_send_recv(
    x: Tensor, source_rank: int, target_rank: int, source_stage_id: int, target_stage_id: int
) -> Tensor:
    """The value on the next stage."""
    return x


@reference("vllm.maybe_all_reduce_tensor_model_parallel")
def maybe_all_reduce(final_hidden_states: Tensor) -> Talk:
    """The sum over the group, in the context in which no kernel has reduced before."""
    return (yield Exchange("all_reduce", final_hidden_states, "tp"))


@reference("vllm.maybe_all_gather_and_maybe_unpad")
def maybe_all_gather(x: Tensor, label: bool, is_ep_comm: bool = False, do_comm: bool = True) -> Talk:
    """The shares one after another where `label` says so, in a context without padding."""
    if not label:
        return x
    return (yield Exchange("all_gather", x, "tp"))
