"""The table of reference implementations and how an op's target finds one.

A reference is a Python function whose parameters have the names and the order of the op's schema. One that
communicates is a generator: it yields an `Exchange` and is sent the result. Values are computed in float64
whatever the graph's dtype is, so that a difference is never rounding; integers stay integers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

Group = Any


@attrs.frozen
class Exchange:
    """One rank's part in a collective.

    `kind` is `all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all` or `broadcast`; `group` a list of
    ranks or a group's name; `dim` the axis of a gather or scatter; `splits` the rows sent to each rank of
    the group (None: equal shares).
    """

    kind: str
    x: Tensor
    group: Group
    dim: int = 0
    splits: Sequence[int] | None = None
    root: int = 0


_table: dict[str, Callable[..., Any]] = {}

FLOATS = frozenset(
    [
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "float8_e4m3fn",
        "float8_e5m2",
        "float8_e4m3fnuz",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
    ]
)


def reference(*targets: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: enter a function as the definition of these ops (`namespace.op`)."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        for target in targets:
            if target in _table:
                raise ValueError(f"{target} has a reference already")
            _table[target] = function
        return function

    return enter


def real_dtype(name: str) -> torch.dtype:
    """The dtype in which values of a graph's dtype are computed: float64 for floats, int8 for four-bit codes."""
    if name in FLOATS:
        return torch.float64
    if name.startswith("complex"):
        return torch.complex128
    if name in ("int4", "uint4", "int1", "int2"):
        return torch.int8
    found = getattr(torch, name, None)
    return found if isinstance(found, torch.dtype) else torch.float64


def find(target: str) -> Callable[..., Any] | None:
    """The function that runs a target (`namespace.op.overload`), or None where there is no definition of it."""
    _load()
    namespace, _, rest = target.partition(".")
    op, _, overload = rest.partition(".")
    own = _table.get(target) or _table.get(f"{namespace}.{op}")
    if own is not None:
        return own
    if namespace in ("aten", "prims"):
        return _torch_op(namespace, op, overload or "default")
    base = _table.get(f"{namespace}.{op[:-1]}") if op.endswith("_") else None
    return _in_place(base) if base is not None else None


def _in_place(function: Callable[..., Any]) -> Callable[..., Any]:
    """The op that writes its result into its first argument, or an item of a list into each of its first argument."""
    first = next(iter(inspect.signature(function).parameters))

    def run(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        into = args[0] if args else kwargs[first]
        made = function(*args, **kwargs)
        if inspect.isgenerator(made):
            made = yield from made
        for old, new in zip(into, made) if isinstance(into, (list, tuple)) else ((into, made),):
            old.copy_(new)
        return into

    return run


_torch_ops: dict[str, Callable[..., Any] | None] = {}
_DROPPED = ("device", "layout", "pin_memory", "generator", "requires_grad")
_MEMORY_FORMATS = {
    str(form): form
    for form in (torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d)
}


def memory_format(text: str) -> torch.memory_format | None:
    """torch's memory format of this name; None for what is none (a device, a layout)."""
    return _MEMORY_FORMATS.get(text)


def _torch_op(namespace: str, op: str, overload: str) -> Callable[..., Any] | None:
    key = f"{namespace}.{op}.{overload}"
    if key not in _torch_ops:
        packet = getattr(getattr(torch.ops, namespace), op, None)
        found = getattr(packet, overload, None) if packet is not None else None
        _torch_ops[key] = None if found is None else _adapted(found)
    return _torch_ops[key]


def _adapted(op: Any) -> Callable[..., Any]:
    """A torch op without arguments that only place values (devices), and in float64 by default.

    A memory format stays: a view behind a copy may need the strides that it asks for.
    """
    arguments = op._schema.arguments
    names = [a.name for a in arguments]
    empty = "empty" in op._schema.name
    needed = {"device": "cpu", "requires_grad": False}
    placed = {a.name: needed[a.name] for a in arguments if a.name in needed and not a.has_default_value()}
    makes = "dtype" in names and not any("Tensor" in str(a.type) for a in arguments)

    def run(*args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(names, args)), **kwargs}
        kept = {
            k: v for k, v in given.items() if k not in _DROPPED and (v is not None or k != "memory_format")
        }
        kept.update(placed)
        if makes and kept.get("dtype") is None and op._schema.name not in ("aten::arange", "aten::randperm"):
            kept["dtype"] = torch.float64
        ordered = []
        for argument in arguments:
            if argument.kwarg_only or argument.name not in kept:
                break
            ordered.append(kept.pop(argument.name))
        made = op(*ordered, **kept)
        # what is in fresh memory nobody may read; zeros make runs repeatable
        return made.zero_() if empty else made

    return run


def is_exchange(function: Callable[..., Any]) -> bool:
    """Whether a reference communicates."""
    return inspect.isgeneratorfunction(function)


_loaded: list[bool] = []


def _load() -> None:
    if not _loaded:
        _loaded.append(True)
        from layoutcheck.ranks.reference import (  # noqa: F401
            assumed,
            attention,
            collectives,
            conversions,
            experts,
            indexers,
            kernels,
            linears,
            mlapo,
            moe,
            norms,
            pointwise,
            quantise,
            rotary,
            streams,
            torch_collectives,
        )


def known_targets() -> list[str]:
    """All targets that have a definition of their own."""
    _load()
    return sorted(_table)
