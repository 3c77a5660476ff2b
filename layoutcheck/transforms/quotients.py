"""Positions divided by a number of rows."""

from __future__ import annotations

from typing import Any

from layoutcheck.infer.calls.call import Call, Result
from layoutcheck.infer.calls.elementwise import elementwise
from layoutcheck.infer.calls.regroup import regroup
from layoutcheck.layouts import Axis, Layout, extent_of, replace
from layoutcheck.symbols import Expr, Size, divide_exact
from layoutcheck.transforms.registry import register
from layoutcheck.transforms.views import Sources


def _back_pointwise(call: Call, outs: Any, output: int, axis: int, inner: Size) -> Sources | None:
    out: Layout = outs[output]
    sources: Sources = []
    for _, slot, of in call.tensors():
        at = axis - (out.rank - of.rank)
        if at >= 0 and of.axes[at]:
            sources.append((slot, at, inner))
    return sources or None


@register("floor_divide", back=_back_pointwise)
def floor_divide(call: Call) -> Result:
    """Whole quotients. Positions in `tokens * k` divided by k are positions in the tokens."""
    result = elementwise(call)
    of, n = call.tensor("self"), call.get("other")
    value = of.value if of is not None else None
    if value is None or value[0] != "into" or not isinstance(n, (int, Expr)) or isinstance(n, bool):
        return result
    pieces = _leading(value[1], n)
    if pieces is None or not isinstance(result.outs[0], Layout):
        return result
    return call.result(replace(result.outs[0], value=("into", pieces)))


def _leading(axis: Axis, n: Size) -> Axis | None:
    """The factors of an axis without its last n elements' digits."""
    rest = divide_exact(extent_of(axis), n)
    if rest is None:
        return None
    pieces = regroup(axis, [rest, n], {})
    return pieces[0] if pieces is not None else None
