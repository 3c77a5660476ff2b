"""Collectives as factor moves.

all_gather puts the digits that a group's ranks select in front of an axis, reduce_scatter and a rank's slice take a digit off,
all_to_all swaps the selected digit with the leading digit of an axis, all_reduce ends a pending sum. Here are the reductions;
`gathers.py` and `all_to_all.py` have the others, `exchanges.py` what they share.
"""

from __future__ import annotations

from layoutcheck.domains import Factor, feature, is_token_like, padded
from layoutcheck.infer.calls.call import Call, Result
from layoutcheck.layouts import Layout, extent_of, layout, partner_axis, replace
from layoutcheck.mesh import Group
from layoutcheck.symbols import cdiv, divide_exact
from layoutcheck.transforms.exchanges import (
    check_masked,
    data_of,
    exchanged_of,
    group_of,
    is_sum,
    mixed_issue,
    moved,
    pending_over,
    told_complete,
    unmixed,
)
from layoutcheck.transforms.rank_shares import axis_digit, take_share
from layoutcheck.transforms.registry import register
from layoutcheck.transforms.shares import each, share_of
from layoutcheck.transforms.views import back_same


@register("wait", back=back_same, is_view=True)
def wait(call: Call) -> Result:
    """wait_tensor: an identity."""
    _slot, of = data_of(call)
    return call.result(of)


@register("pieces")
def pieces(call: Call) -> Result:
    """A collective on lists that do not hold a tensor a rank; those that do are written out before typing."""
    slot, of = data_of(call)
    call.issue(
        "LC903", "its lists do not hold one tensor a rank of the group", *([slot] if slot >= 0 else [])
    )
    return call.result(of)


@register("broadcast")
def broadcast(call: Call) -> Result:
    """One rank's value on every rank of the group."""
    slot, of = data_of(call)
    group = group_of(call)
    if of is None or group is None:
        return call.result(of)
    for m in group.axes:
        if m in of.partial:
            call.issue(
                "LC201",
                f"{{0}} is a pending sum over {call.ctx.group((m,))} and one rank's part is sent to all",
                slot,
            )
        elif of.bound_map.get(m):
            call.issue(
                "LC102",
                f"{{0}} is one rank's share over {call.ctx.group((m,))}, and the share of one rank is sent to all",
                slot,
            )
    return moved(call, slot, of)


@register("all_reduce", back=back_same)
@each
def all_reduce(call: Call) -> Result:
    """The sum over a group, on every rank of it."""
    slot, of = data_of(call)
    group = group_of(call)
    if of is None or group is None or not group.axes:
        return moved(call, slot, of) if of is not None else call.result(of)
    if not is_sum(call):
        return moved(call, slot, _compared(of, group))
    if mixed_issue(call, slot, of, group) is not None:
        return moved(call, slot, unmixed(of, group))
    pending = pending_over(of, group)
    check_masked(call, slot, of, group)
    if len(pending) < len(group.axes):
        told_complete(call, slot, of, group, "all_reduce")
        token_bound = {m: fs for m, fs in of.bound}
        out = replace(of, partial=tuple(m for m in of.partial if m not in group.axes), bound=token_bound)
        return moved(call, slot, out)
    bound = {
        m: tuple(b for b in fs if not (m in pending and b.domain.is_feature and partner_axis(of, b) is None))
        for m, fs in of.bound
    }
    return moved(
        call, slot, replace(of, partial=tuple(m for m in of.partial if m not in group.axes), bound=bound)
    )


def _compared(of: Layout, group: Group) -> Layout:
    """The greatest of what each rank has of its own shard is that of all."""
    bound = {
        m: tuple(b for b in fs if m not in group.axes or partner_axis(of, b) is not None)
        for m, fs in of.bound
    }
    return replace(of, bound=bound)


def scatter_share(call: Call, slot: int, of: Layout, dim: int, group: Group) -> Layout:
    """The rank's own share of an axis: its leading digit is selected by the rank."""
    axis = of.axes[dim]
    total = extent_of(axis)
    sizes = [call.ctx.mesh.size(m) for m in group.axes]
    share = divide_exact(total, group.size)
    if share is None:
        call.issue(
            "LC401",
            f"{total} rows of {{0}} do not divide by the {group.size} ranks of {group.name}: pad them first",
            slot,
            hints=("pad",),
        )
        share = cdiv(total, group.size)
    digit: Factor | None = axis_digit(axis)
    beside = {f.domain for i, a in enumerate(of.axes) if i != dim for f in a}
    parts: dict[int, Factor] | None = None
    minor: tuple[Factor, ...] = ()
    if axis and not all(f.domain.is_feature for f in axis):
        lead = axis[0]
        ways = divide_exact(lead.extent, group.size)
        # rows of a batch flattened with its tokens are cut as one axis, as a slice cuts them
        flattened = len(axis) > 1 and all(
            f.is_whole and is_token_like(f.domain) and f.domain not in beside for f in axis
        )
        if ways is not None and not flattened:
            cut = take_share(lead, group, ways, sizes)
            if cut is not None:
                minor, parts = (cut[0], *axis[1:]), cut[1]
        if parts is None and digit is not None:
            whole = (
                digit
                if digit.extent == share * group.size
                else padded(digit.domain, share * group.size).whole
            )
            cut = take_share(whole, group, share, sizes)
            if cut is not None:
                minor, parts = (cut[0],), cut[1]
    if parts is None:
        cut = take_share(feature(share * group.size).whole, group, share, sizes)
        assert cut is not None
        minor, parts = (cut[0],), cut[1]
    if minor and minor[0].extent == 1 and (minor[0].stride != 1 or minor[0].domain in beside):
        # The major digit alone stood on this axis (pieces stacked in front); its tokens are on another.
        minor = minor[1:]
    bound = dict(of.bound_map)
    for m, b in parts.items():
        bound[m] = (*bound.get(m, ()), b)
    return layout(of.dtype, (*of.axes[:dim], minor, *of.axes[dim + 1 :]), bound, of.partial)


@register("reduce_scatter")
@each
def reduce_scatter(call: Call) -> Result:
    """The sum over a group, each rank its share along an axis."""
    found = exchanged_of(call)
    if found is None:
        return call.result(data_of(call)[1])
    slot, of, group, dim = found
    if mixed_issue(call, slot, of, group) is not None:
        of = unmixed(of, group)
    else:
        pending = pending_over(of, group)
        check_masked(call, slot, of, group)
        if len(pending) < len(group.axes):
            told_complete(call, slot, of, group, "reduce_scatter")
        bound = {
            m: tuple(
                b for b in fs if not (m in pending and b.domain.is_feature and partner_axis(of, b) is None)
            )
            for m, fs in of.bound
        }
        of = replace(of, partial=tuple(m for m in of.partial if m not in group.axes), bound=bound)
    if any(m in of.bound_map for m in group.axes):
        return call.result(of)
    axis = of.axes[dim]
    if (
        axis
        and all(f.domain.is_feature for f in axis)
        and any(is_token_like(f.domain) for i, a in enumerate(of.axes) if i != dim for f in a)
    ):
        call.issue(
            "LC104",
            f"scatters axis {dim}, a feature of {{0}}; the tokens are on another axis: scatter that one",
            slot,
            hints=("redimension",),
        )
    if call.get("pad"):
        share = share_of(call, of, dim, group)
        if share is not None:
            return call.result(share)
    return call.result(scatter_share(call, slot, of, dim, group))
