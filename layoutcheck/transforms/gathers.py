"""all_gather: the ranks' shares put together along an axis, or beside each other."""

from __future__ import annotations

from layoutcheck.domains import feature, iota, is_token_like, repeated
from layoutcheck.infer.calls.call import STACKED, Call, Issue, Result
from layoutcheck.layouts import Layout, bound_on_axis, extent_of, layout, partner_axis, replace
from layoutcheck.mesh import Group
from layoutcheck.symbols import Size
from layoutcheck.transforms.exchanges import data_of, exchanged_of, mixed_issue, unmixed
from layoutcheck.transforms.rank_shares import axis_digit
from layoutcheck.transforms.registry import register
from layoutcheck.transforms.shares import each


def gather_onto(of: Layout, dim: int, group: Group, stacked: bool = False) -> tuple[Layout, str]:
    """An all_gather's result where every mesh axis of the group selects one digit; and what is wrong with the order, if anything."""
    digits = []
    bound = dict(of.bound_map)
    for m in group.axes:
        digits.append(bound.pop(m)[0])
    axis = of.axes[dim]
    problem = ""
    for k, b in enumerate(digits):
        if b.domain.is_feature and not is_token_like(b.domain):
            partner = partner_axis(of, b)
            if partner is not None and partner != dim and extent_of(axis) != 1 and not stacked:
                problem = "dimension"
            continue
        below = digits[k + 1 :]
        expected: Size = 1
        for d in below:
            if d.domain is b.domain:
                expected = expected * d.extent
        partner = partner_axis(of, b)
        if partner is None:
            continue
        if partner != dim:
            if extent_of(axis) != 1 and not stacked:
                problem = "dimension"
            continue
        first = axis[0] if axis else None
        if not stacked and (
            first is None
            or first.domain is not b.domain
            or b.stride != first.stride * first.extent * expected
        ):
            problem = "order"
    axes = (*of.axes[:dim], (*digits, *axis), *of.axes[dim + 1 :])
    return layout(of.dtype, axes, bound, of.partial), problem


@register("all_gather", back=None)
@each
def all_gather(call: Call) -> Result:
    """The ranks' values one after another along an axis."""
    found = exchanged_of(call)
    if found is None:
        return call.result(data_of(call)[1])
    slot, of, group, dim = found
    if mixed_issue(call, slot, of, group) is not None:
        of = unmixed(of, group)
    pending = [m for m in group.axes if m in of.partial]
    if pending:
        call.issue(
            "LC201",
            f"{{0}} is a pending sum over {group.name}; gathering its parts does not add them up",
            slot,
        )
        of = replace(of, partial=tuple(m for m in of.partial if m not in group.axes))
    counted = _own_positions(call, of, dim, group)
    if counted is not None:
        return call.result(counted)
    unbound = [m for m in group.axes if m not in of.bound_map]
    if unbound:
        return call.result(_gather_full(call, slot, of, dim, group, unbound))
    out, problem = gather_onto(of, dim, group, STACKED in call.params)
    if problem == "dimension" and call.raw("dim") is not None:
        call.issue(
            "LC104",
            f"gathers along axis {dim}, but over {group.name} {{0}} is sharded along another axis: gather along that one",
            slot,
            hints=("redimension",),
        )
    elif (put := _put_beside(call, of, group)) is not None:
        to, axis = put
        call.issue(
            "LC104",
            f"the ranks' pieces are put side by side along axis {to}, but over {group.name} {{0}} is sharded along axis {axis}: "
            "join them along that one",
            slot,
        )
    elif problem == "order":
        call.issue(
            "LC105",
            f"the shard over {group.name} is not the leading factor of axis {dim} of {{0}}; "
            "the ranks' tokens come out in the wrong order: gather before the axes are merged",
            slot,
        )
    return call.result(_unpadded(out, dim) if call.get("unpad") else out)


def _put_beside(call: Call, of: Layout, group: Group) -> tuple[int, int] | None:
    """The axis that the pieces of a gather in front are joined along, and the other one that holds their tokens."""
    to = call.params.get(STACKED)
    if not isinstance(to, int) or not -of.rank <= to < of.rank:
        return None
    to %= of.rank
    for m in group.axes:
        for b in of.bound_map[m]:
            partner = partner_axis(of, b) if is_token_like(b.domain) else None
            if partner is None or partner == to:
                continue
            if extent_of(of.axes[partner]) != 1 and extent_of(of.axes[to]) != 1:
                return to, partner
    return None


def _unpadded(of: Layout, dim: int) -> Layout:
    """The tokens without the padding that made their number a multiple of the group's size."""
    axis = of.axes[dim]
    if len(axis) == 1 and axis[0].is_whole and axis[0].domain.kind == "pad":
        return replace(of, axes=(*of.axes[:dim], (axis[0].domain.args[0].whole,), *of.axes[dim + 1 :]))
    return of


def _gather_full(call: Call, slot: int, of: Layout, dim: int, group: Group, unbound: list[int]) -> Layout:
    """A gather of what every rank holds in full: an inferred shard of a feature, or every token several times."""
    axis = of.axes[dim]
    ways = call.ctx.ways(tuple(unbound))
    total = extent_of(axis)
    others = tuple(m for m, _ in bound_on_axis(of, dim))
    issue = Issue(
        "LC103",
        f"every rank of {group.name} holds all of axis {dim} of {{0}}; "
        f"gathering repeats it {ways} times, {total} become {total * ways}",
        (slot,),
        ("drop",),
    )
    if others and not any(m in group.axes for m in others):
        issue = Issue(
            "LC301",
            f"gathers over {group.name}, but {{0}} is split over {call.ctx.group(others)} along axis {dim}: "
            f"every rank of {group.name} holds the same part",
            (slot,),
            ("regroup",),
        )
    kinds = {f.domain.kind for f in axis}
    rest = replace(of, bound={m: fs for m, fs in of.bound if m not in group.axes})
    if not axis:
        # torch gathers in front and moves the pieces later: the shard is some feature axis.
        call.want("shard", slot, issue, mesh_axes=tuple(unbound))
        return replace(rest, axes=(*of.axes[:dim], (feature(ways).whole,), *of.axes[dim + 1 :]))
    if (
        STACKED in call.params
        and axis
        and any(a and i != dim and all(f.domain.is_feature for f in a) for i, a in enumerate(of.axes))
    ):
        call.want("shard", slot, issue, mesh_axes=tuple(unbound))
        front = (feature(ways).whole, *axis)
        return replace(rest, axes=(*of.axes[:dim], front, *of.axes[dim + 1 :]))
    if all(f.domain.is_feature for f in axis) or kinds == {"variable"}:
        for m in unbound:
            call.want("cut", slot, issue, axis=dim, inner=total, mesh_axes=(m,))
        if kinds == {"variable"}:
            return replace(
                rest, axes=(*of.axes[:dim], (repeated(axis[0], ways, False).whole,), *of.axes[dim + 1 :])
            )
        return replace(rest, axes=(*of.axes[:dim], (feature(total * ways).whole,), *of.axes[dim + 1 :]))
    digit = axis_digit(axis)
    assert digit is not None
    base = digit.domain
    while base.kind in ("pad",):
        base = base.args[0]
    if base.kind == "range" or base.kind == "pick":
        call.issues.append(
            Issue(
                "LC102",
                f"every rank of {group.name} gathers the same rows {{0}}: they are a constant slice, not the rank's own",
                (slot,),
            )
        )
    else:
        call.issues.append(issue)
    return replace(rest, axes=(*of.axes[:dim], (repeated(digit, ways, False).whole,), *of.axes[dim + 1 :]))


def _own_positions(call: Call, of: Layout, dim: int, group: Group) -> Layout | None:
    """All positions, gathered from those that each rank has counted from its own offset on."""
    if of.rank != 1 or of.bound or of.value is None or of.value[0] not in ("iota", "range"):
        return None
    count = of.shape[0]
    start = of.value[1] if of.value[0] == "range" else 0
    number = call.ctx.mesh.rank_in(group)
    if start != (number or 0) * count or (start == 0 and number not in (0, None)):
        return None
    return layout(of.dtype, ((iota(count * group.size).whole,),), value=("iota",))
