"""all_to_all: a cut moves from one axis to another, or rows go to the ranks that asked for them."""

from __future__ import annotations

from typing import Any

from layoutcheck.domains import feature, received, unpicked
from layoutcheck.infer.calls.call import Call, Issue, Result, dim_of
from layoutcheck.layouts import Layout, extent_of, layout
from layoutcheck.mesh import Group
from layoutcheck.symbols import Size, divide_exact
from layoutcheck.transforms.collectives import scatter_share
from layoutcheck.transforms.exchanges import GROUPED, data_of, group_of
from layoutcheck.transforms.gathers import gather_onto
from layoutcheck.transforms.rank_shares import axis_digit, take_share
from layoutcheck.transforms.registry import register
from layoutcheck.transforms.shares import each


@register("all_to_all")
@each
def all_to_all(call: Call) -> Result:
    """Piece j of a rank's leading axis goes to rank j: the selected digit and the leading digit change places."""
    slot, of = data_of(call)
    group = group_of(call)
    if of is None or group is None or not group.axes or of.rank == 0:
        return call.result(of)
    sent, got = call.get("input_split_sizes"), call.get("output_split_sizes")
    pending = [m for m in group.axes if m in of.partial]
    if pending:
        call.issue(
            "LC201", f"{{0}} is a pending sum over {group.name} and is exchanged before it is reduced", slot
        )
    if call.has("gather_dim") and call.has("shard_dim"):
        return call.result(_between(call, slot, of, group))
    axis = of.axes[0]
    total = extent_of(axis)
    extent = _total(got, total)
    digit = axis_digit(axis)
    kind = digit.domain.kind if digit is not None else ""
    tail = of.axes[1:]
    base = unpicked(axis[0].domain)[0] if axis else None
    if base is not None and base.kind == "received":
        if len(axis) != 1 or not axis[0].is_whole or axis[0].domain is not base:
            call.issue("LC105", "rows go back to their ranks in another order than they came: {0}", slot)
        back_to, _, before = base.args
        bound = {m: fs for m, fs in of.bound if m not in group.axes}
        for m, fs in before:
            bound[m] = fs
        return call.result(layout(of.dtype, ((back_to.whole,), *tail), bound, of.partial))
    if digit is not None and digit.is_whole and kind in GROUPED:
        replicated = [m for m in group.axes if m not in of.bound_map]
        if replicated:
            call.issue(
                "LC602",
                f"every rank of {call.ctx.group(tuple(replicated))} dispatches the same tokens {{0}}: "
                f"the experts do the work {call.ctx.ways(tuple(replicated))} times",
                slot,
            )
        before = tuple((m, fs) for m, fs in of.bound if m in group.axes)
        domain = received(digit.domain, group.axes, before, extent)
        bound = {m: fs for m, fs in of.bound if m not in group.axes}
        experts = feature(group.size).whole
        for m in group.axes:
            bound[m] = (experts,)
        return call.result(layout(of.dtype, ((domain.whole,), *tail), bound, of.partial))
    del sent
    return call.result(_swap(call, slot, of, group))


def _between(call: Call, slot: int, of: Layout, group: Group) -> Layout:
    """From a shard of one axis to a shard of another."""
    gather, shard = dim_of(call, "gather_dim", of.rank), dim_of(call, "shard_dim", of.rank)
    if gather < 0 or shard < 0 or any(len(of.bound_map.get(m, ())) != 1 for m in group.axes):
        call.issue("LC103", f"exchanged over {group.name}, but {{0}} is not a shard over it", slot)
        return of
    out, problem = gather_onto(of, gather, group)
    if problem:
        call.issue("LC104", f"over {group.name} {{0}} is not sharded along axis {gather}", slot)
    return scatter_share(call, slot, out, shard, group)


def _total(sizes: Any, fallback: Size) -> Size:
    if isinstance(sizes, list) and sizes and not any(isinstance(s, Layout) or s is None for s in sizes):
        total: Size = 0
        for s in sizes:
            total = total + s
        return total
    return fallback


def _swap(call: Call, slot: int, of: Layout, group: Group) -> Layout:
    """Tokens against features: the digit that ranks select comes to the front of axis 0, the front goes to the ranks."""
    held = []
    for m in group.axes:
        fs = of.bound_map.get(m, ())
        if len(fs) != 1:
            text = f"exchanged over {group.name}, but {{0}} is not a shard over it"
            if fs:
                call.issue("LC203", text, slot)
            else:
                call.want("shard", slot, Issue("LC103", text, (slot,)), mesh_axes=group.axes)
            return of
        held.append(fs[0])
    sizes = [call.ctx.mesh.size(m) for m in group.axes]
    axis = of.axes[0]
    lead = axis[0] if axis else None
    ways = divide_exact(lead.extent, group.size) if lead is not None else None
    if lead is None or ways is None:
        call.issue(
            "LC401", f"axis 0 of {{0}} does not divide among the {group.size} ranks of {group.name}", slot
        )
        return of
    if lead.domain.is_feature:
        lead = feature(lead.extent).whole
    cut = take_share(lead, group, ways, sizes)
    if cut is None:
        return of
    minor, parts = cut
    bound = dict(of.bound_map)
    for m, b in parts.items():
        bound[m] = (b,)
    rest = (minor, *axis[1:]) if minor.extent != 1 else axis[1:]
    return layout(of.dtype, ((*held, *rest), *of.axes[1:]), bound, of.partial)
