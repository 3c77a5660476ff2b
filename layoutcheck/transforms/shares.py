"""A rank's share taken by one op (vLLM's chunks for sequence parallelism), and collectives on lists of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from layoutcheck.arguments import Hole
from layoutcheck.infer.calls.call import Call, Result
from layoutcheck.layouts import Layout, bound_on_axis, extent_of, replace
from layoutcheck.mesh import Group
from layoutcheck.symbols import Size, cdiv
from layoutcheck.transforms.exchanges import data_of, exchanged_of
from layoutcheck.transforms.rank_shares import axis_digit, known_le, take_share
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
    found = exchanged_of(call)
    if found is None:
        return call.result(data_of(call)[1])
    slot, of, group, dim = found
    like = call.tensor("like")
    if like is not None:
        shares = {m for m, _ in bound_on_axis(of, dim)} & set(group.axes)
        if shares - {m for m, _ in bound_on_axis(like, dim)}:
            call.issue(
                "LC101",
                f"{{0}} is this rank's share over {call.ctx.group(tuple(shares))}, and {{1}} has all rows",
                slot,
                call.slot("like"),
            )
            return call.result(of)
    if like is not None and known_le(of.shape[0], like.shape[0], call.ctx.bounds):
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
    """A collective on a tensor or a list of tensors: one result a tensor, also written where the op has an `out`."""

    def applied(call: Call) -> Result:
        names = [call.name(meaning) for meaning in ("x", "inputs", "tensors")]
        param = next((n for n in names if isinstance(call.params.get(n), (list, tuple))), None)
        if param is None:
            return _written(call, collective(call), call.raw("out"))
        outs: list[Any] = []
        mutated: dict[int, Layout] = {}
        into = call.raw("out")
        for i, hole in enumerate(call.params[param]):
            if not isinstance(hole, Hole):
                continue
            one = Call(call.ctx, call.rule, {**call.params, param: hole}, call.slots)
            one.issues, one.wants = call.issues, call.wants
            target = into[i] if isinstance(into, (list, tuple)) and i < len(into) else None
            answer = _written(one, collective(one), target)
            outs.extend(answer.outs[:1])
            mutated.update(answer.mutated)
        return call.result(*outs, mutated=mutated)

    return applied


def _written(call: Call, result: Result, into: Any) -> Result:
    """The result, which is what the buffer `into` holds afterwards."""
    out = result.outs[0] if result.outs else None
    if call.rule.mutates and isinstance(into, Hole) and isinstance(out, Layout):
        buffer = call.slots[into.slot]
        sizes = [*buffer.shape, *out.shape] if isinstance(buffer, Layout) else []
        if buffer.shape != out.shape and all(isinstance(n, int) for n in sizes) and not call.issues:
            call.issue("LC903", f"gives {list(out.shape)}, which {{0}} has no room for", into.slot)
        return call.result(*result.outs, mutated={**result.mutated, into.slot: out})
    return result
