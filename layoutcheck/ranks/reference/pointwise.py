"""Activations, markers and arithmetic on sizes."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from layoutcheck.ranks.reference.registry import reference


@reference("tensor_cast.silu")
def silu(x: Tensor) -> Tensor:
    """x sigmoid(x)."""
    return x * torch.sigmoid(x)


@reference("tensor_cast.gelu")
def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """x times the normal distribution function of x."""
    return torch.nn.functional.gelu(x, approximate=approximate)


@reference("tensor_cast.swiglu")
def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) up."""
    return silu(gate) * up


@reference("tensor_cast.v4_clamped_swiglu")
def clamped_swiglu(gate: Tensor, up: Tensor, swiglu_limit: float) -> Tensor:
    """silu(gate) up with the gate cut off above and up on both sides."""
    return silu(gate.clamp(max=swiglu_limit)) * up.clamp(-swiglu_limit, swiglu_limit)


@reference("tensor_cast.m3_swiglu")
def offset_swiglu(gate: Tensor, up: Tensor, alpha: float, limit: float) -> Tensor:
    """gate sigmoid(alpha gate) (up + 1), both clamped."""
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (up + 1)


@reference("tensor_cast.gated_residual_add")
def gated_residual_add(residual: Tensor, update: Tensor, gate: Tensor) -> Tensor:
    """residual + gate update."""
    return residual + gate * update


@reference("tensor_cast.static_false_mask")
def static_false_mask(mask: Tensor) -> Tensor:
    """A mask of the same shape that holds nowhere."""
    return torch.zeros_like(mask)


@reference("tensor_cast.cat")
def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Concatenation."""
    return torch.cat(list(tensors), dim)


@reference(
    "tensor_cast._internal_mark_region_begin",
    "tensor_cast._internal_mark_region_end",
)
def region_mark(x: Tensor, id: int) -> Tensor:
    """The value itself."""
    return x


@reference("tensor_cast._internal_wait_and_bind")
def wait_and_bind(x: Tensor, stream_id: Any, deps: Any) -> Tensor:
    """The value itself."""
    return x


@reference("tensor_cast._internal_order_barrier")
def order_barrier(x: Tensor, dep: Any) -> Tensor:
    """The value itself."""
    return x


@reference("tensor_cast._internal_record")
def record(x: Tensor, stream_id: Any) -> Tensor:
    """A scheduler's token."""
    return torch.zeros((), dtype=torch.int64)


@reference("aten.sym_size")
def sym_size(self: Tensor, dim: int = 0) -> int:
    """An extent."""
    return int(self.shape[dim])


@reference("aten.sym_numel")
def sym_numel(self: Tensor) -> int:
    """The number of elements."""
    return int(self.numel())


@reference(
    "aten._assert_scalar",
    "aten._assert_async",
    "aten.sym_constrain_range",
    "aten._assert_tensor_metadata",
    "aten.sym_constrain_range_for_size",
)
def nothing(*args: Any, **kwargs: Any) -> None:
    """An assertion; the checker reads it, nobody needs to run it."""


@reference("aten.item", "aten._local_scalar_dense")
def item(self: Tensor) -> Any:
    """The number in a tensor of one element."""
    return self.item()


@reference("torch.sym_max")
def sym_max(a: Any, b: Any) -> Any:
    """The greater size."""
    return max(a, b)


@reference("torch.sym_min")
def sym_min(a: Any, b: Any) -> Any:
    """The lesser size."""
    return min(a, b)


@reference("torch.sym_sum")
def sym_sum(*args: Any) -> Any:
    """A sum of sizes, given as a list or one by one."""
    return sum(args[0]) if len(args) == 1 and isinstance(args[0], (list, tuple)) else sum(args)


def _plain(function: Any) -> Any:
    """A builtin under whatever names an export gives its arguments."""

    def run(*args: Any, **kwargs: Any) -> Any:
        return function(*args, *kwargs.values())

    return run


_OPERATORS = "add sub mul floordiv mod neg pos abs truediv eq ne lt le gt ge pow and_ or_ xor lshift rshift not_ index getitem"
for _name in _OPERATORS.split():
    reference(f"operator.{_name}")(_plain(getattr(operator, _name)))
for _name in ("ceil", "floor", "trunc"):
    reference(f"math.{_name}")(_plain(getattr(math, _name)))
for _name in ("not", "float", "int", "sqrt", "ite"):
    reference(f"torch.sym_{_name}")(_plain(getattr(torch, f"sym_{_name}")))
