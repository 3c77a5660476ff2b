"""Gated activations that take one half of an axis to gate the other: torch's glu."""

from __future__ import annotations

from typing import Any

from layoutcheck.infer.calls.call import Call, Result, dim_of
from layoutcheck.layouts import replace
from layoutcheck.symbols import Size, divide_exact
from layoutcheck.transforms.rank_shares import resized
from layoutcheck.transforms.reduce import check_pending, need_whole
from layoutcheck.transforms.registry import register
from layoutcheck.transforms.views import Sources, self_of


def _back_glu(call: Call, outs: Any, output: int, axis: int, inner: Size) -> Sources | None:
    slot, of = self_of(call)
    return [(slot, axis, of.shape[axis] if axis == dim_of(call, "dim", of.rank, -1) else inner)]


@register("glu", back=_back_glu)
def glu(call: Call) -> Result:
    """`a * sigmoid(b)` of the halves a, b of an axis; as of any fused axis, each half of features is sharded by itself."""
    slot, of = self_of(call)
    dim = dim_of(call, "dim", of.rank, -1)
    half = divide_exact(of.shape[dim], 2) if dim >= 0 else None
    check_pending(call, slot, of, call.name("self"))
    if half is None:
        return call.result(of)
    if not all(f.domain.is_feature for f in of.axes[dim]):
        need_whole(call, slot, of, dim, "takes halves of")
    axis, bound = resized(of, dim, half)
    axes = (*of.axes[:dim], axis, *of.axes[dim + 1 :])
    return call.result(replace(of, axes=axes, bound=bound, value=None))
