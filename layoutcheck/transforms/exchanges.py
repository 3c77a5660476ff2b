"""What collectives share: their group and data, sums that are pending or mixed over it."""

from __future__ import annotations

from layoutcheck.domains import is_token_like
from layoutcheck.infer.calls.call import UNMASKED, Call, Issue, Result, dim_of
from layoutcheck.layouts import Layout, partner_axis, replace
from layoutcheck.mesh import Group

# Domains whose order or number data decides: rows sorted or chosen by expert.
GROUPED = frozenset(("routed", "permuted", "opaque"))


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


def exchanged_of(call: Call) -> tuple[int, Layout, Group, int] | None:
    """The operand that a collective works on, its layout, the group and the dimension.

    None where there is nothing to exchange: no layout, no ranks besides this one, no such dimension.
    """
    slot, of = data_of(call)
    group = group_of(call)
    if of is None or group is None or not group.axes:
        return None
    dim = dim_of(call, "dim", of.rank, 0)
    if dim < 0:
        return None
    return slot, of, group, dim


def moved(call: Call, slot: int, out: Layout) -> Result:
    if call.rule.mutates and slot >= 0:
        return call.result(out, mutated={slot: out})
    return call.result(out)


def mixed_issue(call: Call, slot: int, of: Layout, group: Group) -> Issue | None:
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


def unmixed(of: Layout, group: Group) -> Layout:
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


def check_masked(call: Call, slot: int, of: Layout, group: Group) -> None:
    """Rows of a vocabulary-parallel table are summed: those of ids that are other ranks' must be zero."""
    if of.value == UNMASKED and not of.partial:
        call.issue(
            "LC108",
            f"ids of the whole vocabulary were looked up in one rank's part of it over {group.name}, and {{0}} adds up rows that "
            "were not set to zero where the id is another rank's",
            slot,
        )


def told_complete(call: Call, slot: int, of: Layout, group: Group, what: str) -> None:
    """The value is no pending sum: either a weight behind it is a shard, or it is reduced twice."""
    missing = tuple(m for m in group.axes if m not in pending_over(of, group))
    text = (
        f"{{0}} is complete on every rank of {group.name}; {what} adds it up {call.ctx.ways(missing)} times"
    )
    if any(is_token_like(b.domain) for m in missing for b in of.bound_map.get(m, ())):
        text = f"{{0}} holds other tokens on every rank of {group.name}; {what} adds them up"
    call.want("partial", slot, Issue("LC202", text, (slot,), ("drop",)), mesh_axes=missing)


def is_sum(call: Call) -> bool:
    op = call.get("reduce_op", call.get("op"))
    return not isinstance(op, str) or op.lower() in ("sum", "avg", "add", "mean")
