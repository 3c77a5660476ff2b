"""Ops that make tensors: their axes fit every domain of their extent, unless a size names one."""

from __future__ import annotations

from typing import Any

from layoutcheck.domains import anything, iota
from layoutcheck.infer.calls.call import Call, Result
from layoutcheck.layouts import Axis, Layout, layout
from layoutcheck.symbols import Expr, Size
from layoutcheck.transforms.registry import register
from layoutcheck.transforms.views import sizes_of


@register("create")
def create(call: Call) -> Result:
    """A constant fill of a size, or with the axes of another tensor."""
    like = call.tensor("like") if "like" in call.rule.options else None
    sizes = sizes_of(call.get("size")) if call.has("size") else None
    value = call.get("value")
    fill: tuple[Any, ...] | None = (
        ("fill", value) if isinstance(value, (int, float)) and not isinstance(value, bool) else ("fill", None)
    )
    if isinstance(value, (Layout, Expr)):
        fill = None  # some number, where a fill without one is memory that nobody has written
    dtype = call.dtype(like.dtype if like is not None else "float32")
    if sizes is None:
        if like is None:
            return call.result(layout(dtype, (), value=fill))
        if like.dtype == "int64" or call.rule.mutates:
            kept = layout(dtype, like.axes, like.bound_map, (), fill)
            if call.rule.mutates:
                return call.result(kept, mutated={call.slot("like"): kept})
            return call.result(kept)
        # Same shape: the axes follow the tensor's tokens, so that an empty copy stays in its domain.
        return call.result(layout(dtype, like.axes, like.bound_map, (), fill))
    axes: tuple[Axis, ...] = tuple(() if s == 1 else (anything(s).whole,) for s in sizes)
    return call.result(layout(dtype, axes, value=fill))


@register("arange")
def arange(call: Call) -> Result:
    """0, 1, 2, ...: positions in whatever has that many elements."""
    start, end, step = call.get("start", 0), call.get("end"), call.get("step", 1)
    dtype = call.dtype("int64")
    count: Size | None = call.get("length")
    if count is not None:
        pass
    elif isinstance(end, (int,)) or (end is not None and not isinstance(end, (float, Layout))):
        if isinstance(start, (float, Layout)) or isinstance(step, (float, Layout)):
            count = None
        elif step == 1:
            count = end - start
        elif isinstance(end, int) and isinstance(start, int) and isinstance(step, int):
            count = max(0, -(-(end - start) // step))
    if count is None:
        if isinstance(end, float):
            count = int(end)
        else:
            return call.result(layout(dtype, ((anything(1).whole,),)))
    if step == 1 and start == 0 and count != 1:
        return call.result(layout(dtype, ((iota(count).whole,),), value=("iota",)))
    value = ("range", start, count) if step == 1 and not isinstance(start, float) else None
    return call.result(layout(dtype, ((anything(count).whole,) if count != 1 else (),), value=value))


@register("scalar")
def scalar(call: Call) -> Result:
    """A tensor of no axes."""
    value = call.get("value")
    fill = ("fill", value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    return call.result(layout(call.dtype("float32"), (), value=fill))
