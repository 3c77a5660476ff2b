"""A rank's share taken by one op (vLLM's chunks for sequence parallelism), and collectives on lists of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from layoutcheck.infer.call import Call, Hole, Result, dim_of
from layoutcheck.layouts import Layout, bound_on_axis, extent_of, replace
from layoutcheck.mesh import Group
from layoutcheck.symbols import Size, cdiv
from layoutcheck.transforms.pieces import axis_digit, known_le, take_share
from layoutcheck.transforms.registry import register


def share_of(call: Call, of: Layout, dim: int, group: Group) -> Layout | None:
    """This rank's share along an axis, padded to a multiple of the group's size; None where it is cut over the group already."""
    if any(m in of.bound_map for m in group.axes):
        return None
    digit = axis_digit(of.axes[dim])
    if digit is None:
        return None
    share: Size = cdiv(extent_of(of.axes[dim]), group.size)
    cut = take_share(digit, group, share, [call.ctx.mesh.size(m) for m in group.axes])
    if cut is None:
        return None
    minor, parts = cut
    bound = dict(of.bound_map)
    for m, b in parts.items():
        bound[m] = (*bound.get(m, ()), b)
    axes = (*of.axes[:dim], (minor,) if minor.extent != 1 or minor.stride == 1 else (), *of.axes[dim + 1 :])
    return replace(of, axes=axes, bound=bound, value=None)


@register("shard")
def shard(call: Call) -> Result:
    """Pads to a multiple of the group's size and keeps this rank's share; with `like`, only if that has fewer rows."""
    from layoutcheck.transforms.collectives import data_of, group_of

    slot, of = data_of(call)
    group = group_of(call)
    if of is None or group is None or not group.axes:
        return call.result(of)
    dim = dim_of(call, "dim", of.rank, 0)
    like = call.tensor("like")
    if dim < 0 or (like is not None and known_le(of.shape[0], like.shape[0], call.ctx.bounds)):
        return call.result(of)
    out = share_of(call, of, dim, group)
    if out is None:
        cuts = bound_on_axis(of, dim)
        over = call.ctx.group(tuple(m for m, _ in cuts)) if cuts else group.name
        call.issue(
            "LC403",
            f"{{0}} is this rank's share over {over} already: a share of it leaves tokens out",
            slot,
        )
        return call.result(of)
    return call.result(out)


def each(collective: Callable[[Call], Result]) -> Callable[[Call], Result]:
    """A collective on a list of tensors: one result a tensor."""

    def applied(call: Call) -> Result:
        names = [call.name(meaning) for meaning in ("x", "inputs", "tensors")]
        param = next((n for n in names if isinstance(call.params.get(n), (list, tuple))), None)
        if param is None or call.get("pieces"):
            return collective(call)
        outs: list[Any] = []
        mutated: dict[int, Layout] = {}
        for hole in call.params[param]:
            if not isinstance(hole, Hole):
                continue
            one = Call(call.ctx, call.rule, {**call.params, param: hole}, call.slots)
            one.issues, one.wants = call.issues, call.wants
            answer = collective(one)
            outs.extend(answer.outs[:1])
            mutated.update(answer.mutated)
        return call.result(*outs, mutated=mutated)

    return applied
