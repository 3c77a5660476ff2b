"""Small modules with functional collectives, exported as one rank's program and checked.

The collectives name their group `tp` and need no process group: nothing is sent.
"""

from __future__ import annotations

from typing import Any

import torch

import layoutcheck

_C = torch.ops._c10d_functional


def all_reduce(x: Any, op: str = "sum") -> Any:
    """The reduction of all ranks' values, on every rank."""
    return _C.wait_tensor(_C.all_reduce(x, op, "tp"))


def all_gather(x: Any, p: int, dim: int = 0) -> Any:
    """All ranks' shares of an axis; torch gathers in front, so other axes are put together from pieces."""
    rows = _C.wait_tensor(_C.all_gather_into_tensor(x.contiguous(), p, "tp"))
    return rows if dim == 0 else torch.cat(torch.chunk(rows, p, 0), dim)


def reduce_scatter(x: Any, p: int) -> Any:
    """This rank's rows of the sum."""
    return _C.wait_tensor(_C.reduce_scatter_tensor(x.contiguous(), "sum", p, "tp"))


def all_to_all(x: Any, p: int) -> Any:
    """Equal shares of the first axis, exchanged."""
    splits = [x.shape[0] // p] * p
    return _C.wait_tensor(_C.all_to_all_single(x.contiguous(), splits, splits, "tp"))


def linear(inputs: int, outputs: int, bias: bool = False) -> Any:
    """A linear layer of these local sizes."""
    return torch.nn.Linear(inputs, outputs, bias=bias)


def rotated(x: Any) -> Any:
    """Halves of the last axis swapped, the first one negated."""
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


def found(module: Any, *args: Any, p: int = 2, dynamic: Any = None, **options: Any) -> list[tuple[str, str]]:
    """Code and node of every error that no other one explains."""
    program = torch.export.export(module.eval(), args, dynamic_shapes=dynamic, strict=False)
    report = layoutcheck.check(layoutcheck.from_fx(program), groups={"tp": p}, **options)
    return [(str(f.code), f.node) for f in report.errors if f.caused_by is None]
