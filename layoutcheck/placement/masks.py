"""Masks of what is another rank's: ids and numbers of experts outside of a rank's stretch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from layoutcheck.graph import Ref, TensorMeta

Add = Callable[[str, str, tuple[Any, ...], "TensorMeta | None"], Ref]
"""Appends a node: what it is, its target, its arguments, what it gives."""


def of_others(add: Add, source: Any, low: Any, share: Any, shape: tuple[Any, ...]) -> Ref:
    """Which numbers of a tensor of this shape do not lie in low .. low + share."""
    flag = TensorMeta(shape, "bool")
    before = add("before", "aten.lt.Scalar", (source, low), flag)
    behind = add("behind", "aten.ge.Scalar", (source, low + share), flag)
    return add("others", "aten.logical_or.default", (before, behind), flag)


def as_column(add: Add, others: Ref, shape: tuple[Any, ...]) -> Ref:
    """A mask of this shape with an axis of one behind, to be spread over rows."""
    return add("mask", "aten.unsqueeze.default", (others, -1), TensorMeta((*shape, 1), "bool"))
