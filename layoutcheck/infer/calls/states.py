"""Joining states: what the operands' bound factors and pending sums make of the output's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from layoutcheck.domains import Factor, is_token_like
from layoutcheck.infer.calls.call import Call, Issue
from layoutcheck.layouts import Layout, bound_on_axis, partner_axis

Operand = tuple[str, int, Layout]


def join_bound(call: Call, operands: Sequence[Operand]) -> dict[int, tuple[Factor, ...]]:
    """Union of the operands' bound factors, with an issue where one operand's shard meets another's whole."""
    if not any(of.bound for _, _, of in operands):
        return {}
    held: dict[int, list[Factor]] = {}
    for _, _, of in operands:
        for m, fs in of.bound:
            mine = held.setdefault(m, [])
            for f in fs:
                if f not in mine:
                    mine.append(f)
    if len(held) > 1:
        _check_groups(call, operands, held)
    for m, found in held.items():
        _check_overlap(call, operands, m, found)
        if len(found) > 1:
            held[m] = _settle(call, operands, m, found)
    return {m: tuple(fs) for m, fs in held.items()}


def _check_groups(call: Call, operands: Sequence[Operand], held: dict[int, list[Factor]]) -> None:
    """One digit of a domain may be selected by one group only: rank (i, j) would hold block i of one and block j of another."""
    owners: dict[Factor, int] = {}
    for m, fs in held.items():
        for b in fs:
            other = owners.setdefault(b, m)
            if other == m or b.domain.is_feature:
                continue
            one = next((slot for _, slot, of in operands if b in of.bound_map.get(other, ())), -1)
            two = next((slot for _, slot, of in operands if b in of.bound_map.get(m, ())), -1)
            if one != two:
                ctx = call.ctx
                call.issue(
                    "LC301",
                    f"{{0}} is cut over {ctx.group((other,))}, {{1}} over {ctx.group((m,))}: they hold different tokens",
                    one,
                    two,
                )
                return


def _check_overlap(call: Call, operands: Sequence[Operand], m: int, fs: list[Factor]) -> None:
    """A shard's companion (a scale, a statistic) may not meet the whole of what it was taken from."""
    for b in fs:
        if b.domain.is_feature:
            continue
        holders = [(slot, of) for _, slot, of in operands if b in of.bound_map.get(m, ())]
        if any(partner_axis(of, b) is not None for _, of in holders):
            continue
        for _, slot, of in operands:
            if m in of.bound_map:
                continue
            if any(f.domain is b.domain and f.is_whole for axis in of.axes for f in axis):
                call.issue(
                    "LC101",
                    f"{{0}} belongs to one rank's share over {call.ctx.group((m,))}, {{1}} holds all of it",
                    holders[0][0],
                    slot,
                )


def _settle(call: Call, operands: Sequence[Operand], m: int, fs: list[Factor]) -> list[Factor]:
    """Two factors on one mesh axis: a legal Mixed when weights meet tokens, an issue where two branches merge."""
    domains = {f.domain for f in fs}
    if len(domains) == 1:
        return fs[:1]
    tokens = [f for f in fs if is_token_like(f.domain)]
    carrying = [(slot, of) for _, slot, of in operands if m in of.bound_map]
    mixed = [(slot, of) for slot, of in carrying if len(of.bound_map[m]) > 1]
    plain = [(slot, of) for slot, of in carrying if len(of.bound_map[m]) == 1]
    if mixed and plain and tokens:
        merging = [
            (slot, of)
            for slot, of in plain
            if is_token_like(of.bound_map[m][0].domain) and partner_axis(of, of.bound_map[m][0]) is not None
        ]
        if merging:
            call.issue(
                "LC203",
                f"over {call.ctx.group((m,))} {{0}} is sharded by tokens and by features at once; it meets {{1}}",
                mixed[0][0],
                merging[0][0],
            )
            return tokens[:1]
    return fs


def check_diagonal(call: Call, out: Layout, axes: Sequence[int], slots: Sequence[int]) -> None:
    """One shard on two axes of a result: the rank holds a block on the diagonal, which is no share of the whole."""
    if not out.bound:
        return
    seen: dict[tuple[int, Factor], int] = {}
    for axis in axes:
        for m, b in bound_on_axis(out, axis):
            if (m, b) in seen:
                call.issue(
                    "LC203",
                    f"over {call.ctx.group((m,))} axes {seen[m, b]} and {axis} of the result are both sharded, "
                    "so that a rank holds only the block where its own shards meet: gather {0} or {1}",
                    *slots[:2],
                )
                return
            seen[m, b] = axis


def join_partial(
    call: Call,
    operands: Sequence[Operand],
    linear: Iterable[str],
    additive: Iterable[str],
    bound: dict[int, tuple[Factor, ...]],
    addends: Iterable[str] = (),
    summed: tuple[int, ...] = (),
) -> tuple[int, ...]:
    """The output's pending sums, with an issue where a pending sum goes through what is not linear in it.

    `addends` are added to what the other operands give, which is pending over `summed` besides what they bring along.
    """
    pending = sorted({m for _, _, of in operands for m in of.partial})
    addends = set(addends)
    if addends:
        added = [(p, slot, of) for p, slot, of in operands if p in addends]
        operands = [o for o in operands if o[0] not in addends]
        before = {*summed, *[m for _, _, of in operands for m in of.partial]}
        for _, slot, of in added:
            for m in sorted(before | set(of.partial)):
                group, ways = call.ctx.group((m,)), call.ctx.ways((m,))
                if m in of.partial and m not in before:
                    call.issue(
                        "LC201",
                        f"{{0}} is a pending sum over {group} and is added to a complete product",
                        slot,
                    )
                elif (
                    m not in of.partial and m in before and not is_zero(of) and not _is_part(call, of, before)
                ):
                    call.issue(
                        "LC204",
                        f"{{0}} is added on every rank of {group} to a product that is a pending sum, so it counts {ways} times: "
                        "add it after the reduction",
                        slot,
                    )
    if not pending:
        return ()
    linear, additive = set(linear), set(additive)
    kept: list[int] = []
    for m in pending:
        having = [(p, slot, of) for p, slot, of in operands if m in of.partial]
        others = [(p, slot, of) for p, slot, of in operands if m not in of.partial]
        kept.append(m)
        group, ways = call.ctx.group((m,)), call.ctx.ways((m,))
        mixed = next(((slot, of) for _, slot, of in having if of.is_mixed(m)), None)
        if all(p in additive for p, _, _ in having):
            over = {x for _, _, of in having for x in of.partial}
            tensors = [
                (p, slot, of)
                for p, slot, of in others
                if p in additive and not is_zero(of) and not _is_part(call, of, over)
            ]
            numbers = [p for p in additive if _adds_number(call, p)]
            if not tensors and not numbers:
                continue
            if mixed is not None:
                _mixed_issue(call, mixed[0], m, tensors[0][1] if tensors else -1)
                if bound.get(m):
                    kept.pop()
            elif not tensors:
                call.issue(
                    "LC204",
                    f"a number is added to {{0}} on every rank of {group}, so it counts {ways} times: add it after the reduction",
                    having[0][1],
                )
            elif _bias_like(having[0][2], tensors[0][2]):
                call.issue(
                    "LC204",
                    f"{{0}} is given in parts that add up over {group} (on one rank only), "
                    "{1} is complete on each: most ranks miss it",
                    having[0][1],
                    tensors[0][1],
                )
            elif _bias_like(tensors[0][2], having[0][2]):
                call.issue(
                    "LC204",
                    f"{{1}} is added to the pending sum {{0}} on every rank of {group}, so it counts {ways} times: "
                    "add it after the reduction",
                    having[0][1],
                    tensors[0][1],
                )
            else:
                call.issue(
                    "LC201",
                    f"{{0}} is a pending sum over {group}, {{1}} is not: reduce it before they are added",
                    having[0][1],
                    tensors[0][1],
                )
            continue
        if len(having) == 1 and having[0][0] in linear:
            # A factor that differs by rank does not come out of the sum.
            rank_dependent = [
                (slot, of)
                for _, slot, of in others
                if m in of.bound_map and of.bound_map[m] != having[0][2].bound_map.get(m)
            ]
            if rank_dependent:
                call.issue(
                    "LC201",
                    f"{{0}} is a pending sum over {group} and is multiplied by {{1}}, which differs by rank",
                    having[0][1],
                    rank_dependent[0][0],
                )
            continue
        if mixed is not None:
            _mixed_issue(call, mixed[0], m, -1)
            kept.pop()
        elif len(having) > 1 and all(p in linear for p, _, _ in having):
            call.issue(
                "LC201",
                f"{{0}} and {{1}} are both pending sums over {group}; their product is not one",
                having[0][1],
                having[1][1],
            )
        else:
            call.issue(
                "LC201",
                f"{{0}} is a pending sum over {group} and goes into an op that is not linear in it",
                having[0][1],
            )
    return tuple(kept)


def _mixed_issue(call: Call, slot: int, m: int, other: int) -> None:
    text = f"over {call.ctx.group((m,))} {{0}} adds up different tokens: its rows and its weights are sharded over the same group"
    call.issue("LC203", text, slot, other)


def _is_part(call: Call, of: Layout, over: Iterable[int]) -> bool:
    """Whether a complete value is the p-th part of what p ranks add up, or a vector that rank 0 alone scales by 1."""
    if of.value is None or of.value[0] != "part":
        return False
    if of.value[1] == 1:
        vector = len([axis for axis in of.axes if axis]) <= 1
        return vector and all(call.ctx.mesh.coordinate(m) in (0, None) for m in over)
    return bool(of.value[1] == call.ctx.ways(tuple(sorted(over))))


def is_zero(of: Layout) -> bool:
    """Whether the tensor is a constant 0, which is the neutral pending sum."""
    return of.value is not None and of.value[0] == "fill" and of.value[1] == 0


def _adds_number(call: Call, param: str) -> bool:
    value = call.fill(call.params.get(param))
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value != 0


def _bias_like(of: Layout, beside: Layout) -> bool:
    """A vector (or a broadcast of one) over features only."""
    return len([a for a in of.axes if a]) <= 1 < max(len([a for a in beside.axes if a]), 2) and all(
        f.domain.is_feature for axis in of.axes for f in axis
    )


def leaks(call: Call, slot: int, of: Layout, issue_code: str = "LC201") -> Issue | None:
    """The issue for a pending sum that leaves through a boundary; None where nothing is pending."""
    for m in of.partial:
        group = call.ctx.group((m,))
        if of.is_mixed(m):
            return call.issue("LC203", f"{{0}} leaves with different tokens added up over {group}", slot)
        return call.issue(issue_code, f"{{0}} leaves as a pending sum over {group}", slot)
    return None
