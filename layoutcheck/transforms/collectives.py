"""Collectives as factor moves.

all_gather puts the digits that a group's ranks select in front of an axis, reduce_scatter and a rank's slice take a digit off,
all_to_all swaps the selected digit with the leading digit of an axis, all_reduce ends a pending sum.
"""

from __future__ import annotations

from typing import Any

from layoutcheck.domains import Factor, feature, iota, is_token_like, padded, received, repeated, unpicked
from layoutcheck.infer.calls.call import STACKED, UNMASKED, Call, Issue, Result, dim_of
from layoutcheck.layouts import Layout, bound_on_axis, extent_of, layout, partner_axis, replace
from layoutcheck.mesh import Group
from layoutcheck.symbols import Size, cdiv, divide_exact
from layoutcheck.transforms.pieces import axis_digit, take_share
from layoutcheck.transforms.registry import register
from layoutcheck.transforms.shares import each, share_of
from layoutcheck.transforms.views import _back_same

# Domains whose order or number data decides: rows sorted or chosen by expert.
_GROUPED = frozenset(("routed", "permuted", "opaque"))


def data_of(call: Call) -> tuple[int, Layout | None]:
    """The tensor that a collective works on."""
    for meaning in ("x", "self", "input", "tensor", "inputs", "tensors"):
        of = call.tensor(meaning)
        if of is not None:
            return call.slot(meaning), of
    return next(((s, of) for _, s, of in call.tensors()), (-1, None))


def group_of(call: Call) -> Group | None:
    """The group that a call's arguments name: a rank list, or a name and a size."""
    mesh = call.ctx.mesh
    ranks = call.get("ranks") if "ranks" in call.rule.options else None
    if isinstance(ranks, list) and all(isinstance(r, int) for r in ranks):
        mine = call.get("rank") if "rank" in call.rule.options else None
        if isinstance(mine, int) and mine not in ranks and not any(i.code == "LC903" for i in call.issues):
            call.issue("LC903", f"rank {mine} is not one of the ranks {ranks} of its own group")
        if len(ranks) <= 1:
            return Group("self", (), 1)
        return mesh.by_ranks.get(tuple(sorted(ranks)))
    name = call.get("group")
    if isinstance(name, str) and name in mesh.groups:
        return mesh.groups[name]
    return None


def _result(call: Call, slot: int, out: Layout) -> Result:
    if call.rule.mutates and slot >= 0:
        return call.result(out, mutated={slot: out})
    return call.result(out)


@register("wait", back=_back_same, is_view=True)
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
    return _result(call, slot, of)


def _mixed(call: Call, slot: int, of: Layout, group: Group) -> Issue | None:
    for m in group.axes:
        if of.is_mixed(m):
            tokens = [b for b in of.bound_map.get(m, ()) if is_token_like(b.domain)]
            if m in of.partial and tokens:
                return call.issue(
                    "LC203",
                    f"over {group.name} every rank holds other tokens, and their parts are added up: "
                    "the weights are sharded over the group that shards the tokens ({0})",
                    slot,
                    hints=("mixed",),
                )
            shards = [b for b in of.bound_map.get(m, ()) if partner_axis(of, b) is not None]
            if m in of.partial and shards:
                return call.issue(
                    "LC203",
                    f"over {group.name} every rank holds other features, and a part of their sum: {{0}}",
                    slot,
                    hints=("mixed",),
                )
            if len(of.bound_map.get(m, ())) > 1:
                return call.issue(
                    "LC203",
                    f"over {group.name} {{0}} is sharded by tokens and by features at once",
                    slot,
                    hints=("mixed",),
                )
    return None


def _unmixed(of: Layout, group: Group) -> Layout:
    """After a Mixed was reported, typing goes on with the tokens' shard."""
    bound = {
        m: (tuple(b for b in fs if is_token_like(b.domain))[:1] or fs[:1]) if m in group.axes else fs
        for m, fs in of.bound
    }
    return replace(of, bound=bound, partial=tuple(m for m in of.partial if m not in group.axes))


def pending_over(of: Layout, group: Group) -> list[int]:
    """Mesh axes of the group over which the value is a pending sum, a factor on no axis included."""
    out = []
    for m in group.axes:
        if m in of.partial:
            out.append(m)
        else:
            off = [b for b in of.bound_map.get(m, ()) if b.domain.is_feature and partner_axis(of, b) is None]
            if off:
                out.append(m)
    return out


def _check_masked(call: Call, slot: int, of: Layout, group: Group) -> None:
    """Rows of a vocabulary-parallel table are summed: those of ids that are other ranks' must be zero."""
    if of.value == UNMASKED and not of.partial:
        call.issue(
            "LC108",
            f"ids of the whole vocabulary were looked up in one rank's part of it over {group.name}, and {{0}} adds up rows that "
            "were not set to zero where the id is another rank's",
            slot,
        )


def _complete(call: Call, slot: int, of: Layout, group: Group, what: str) -> None:
    """The value is no pending sum: either a weight behind it is a shard, or it is reduced twice."""
    missing = tuple(m for m in group.axes if m not in pending_over(of, group))
    text = (
        f"{{0}} is complete on every rank of {group.name}; {what} adds it up {call.ctx.ways(missing)} times"
    )
    if any(is_token_like(b.domain) for m in missing for b in of.bound_map.get(m, ())):
        text = f"{{0}} holds other tokens on every rank of {group.name}; {what} adds them up"
    call.want("partial", slot, Issue("LC202", text, (slot,), ("drop",)), mesh_axes=missing)


@register("all_reduce", back=_back_same)
@each
def all_reduce(call: Call) -> Result:
    """The sum over a group, on every rank of it."""
    slot, of = data_of(call)
    group = group_of(call)
    if of is None or group is None or not group.axes:
        return _result(call, slot, of) if of is not None else call.result(of)
    if not _is_sum(call):
        return _result(call, slot, _compared(of, group))
    if _mixed(call, slot, of, group) is not None:
        return _result(call, slot, _unmixed(of, group))
    pending = pending_over(of, group)
    _check_masked(call, slot, of, group)
    if len(pending) < len(group.axes):
        _complete(call, slot, of, group, "all_reduce")
        token_bound = {m: fs for m, fs in of.bound}
        out = replace(of, partial=tuple(m for m in of.partial if m not in group.axes), bound=token_bound)
        return _result(call, slot, out)
    bound = {
        m: tuple(b for b in fs if not (m in pending and b.domain.is_feature and partner_axis(of, b) is None))
        for m, fs in of.bound
    }
    return _result(
        call, slot, replace(of, partial=tuple(m for m in of.partial if m not in group.axes), bound=bound)
    )


def _compared(of: Layout, group: Group) -> Layout:
    """The greatest of what each rank has of its own shard is that of all."""
    bound = {
        m: tuple(b for b in fs if m not in group.axes or partner_axis(of, b) is not None)
        for m, fs in of.bound
    }
    return replace(of, bound=bound)


def _is_sum(call: Call) -> bool:
    op = call.get("reduce_op", call.get("op"))
    return not isinstance(op, str) or op.lower() in ("sum", "avg", "add", "mean")


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
    slot, of = data_of(call)
    group = group_of(call)
    if of is None or group is None or not group.axes:
        return call.result(of)
    dim = dim_of(call, "dim", of.rank, 0)
    if dim < 0:
        return call.result(of)
    if _mixed(call, slot, of, group) is not None:
        of = _unmixed(of, group)
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
    slot, of = data_of(call)
    group = group_of(call)
    if of is None or group is None or not group.axes:
        return call.result(of)
    dim = dim_of(call, "dim", of.rank, 0)
    if dim < 0:
        return call.result(of)
    if _mixed(call, slot, of, group) is not None:
        of = _unmixed(of, group)
    else:
        pending = pending_over(of, group)
        _check_masked(call, slot, of, group)
        if len(pending) < len(group.axes):
            _complete(call, slot, of, group, "reduce_scatter")
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
    if digit is not None and digit.is_whole and kind in _GROUPED:
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
