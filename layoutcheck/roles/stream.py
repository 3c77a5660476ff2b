"""The residual stream: where branches leave it and where they are added back.

A join adds two values of which one, up to views, casts and collectives, is an ancestor of the other, with a product with
a weight in between. Nothing else in a decoder looks so: rotary embedding, gates and biases have no common root or no
weight on the way. With hyper-connections the stream is several values a token: a join adds a mixture of them to what is
spread over all of them. The search for a branch never goes beyond an earlier join, so a mask that all layers read joins nothing.
"""

from __future__ import annotations

import attrs

from layoutcheck.infer.solver.repeats import find_repeats
from layoutcheck.roles.flow import Flow, sum_of
from layoutcheck.roles.mixing import mixtures
from layoutcheck.roles.model import Join


@attrs.frozen
class Branch:
    """What lies between the stream's value `root` and the branch's `end`: values that depend on one and lead to the other."""

    root: int
    values: frozenset[int]
    join: Join
    end: int


def find_branches(flow: Flow) -> list[Branch]:
    """All branches of the residual stream, in order of their joins."""
    p = flow.program
    found: list[Branch] = []
    origin: dict[int, int] = {}
    for k in range(len(p.kind)):
        summed = sum_of(flow, k)
        if summed is None:
            continue
        a, b, total = summed
        branch = (
            _branch(flow, k, a, b, total, origin)
            or _branch(flow, k, b, a, total, origin)
            or _parallel(flow, k, a, b, total, origin)
            or _parallel(flow, k, b, a, total, origin)
            or _mixed(flow, k, a, b, total, origin)
            or _mixed(flow, k, b, a, total, origin)
        )
        if branch is not None:
            found.append(branch)
            origin[total] = branch.root
    return found


def later_joins(flow: Flow, branches: list[Branch]) -> frozenset[int]:
    """Calls of repeated bodies that join a branch of the repeat before, and none in the first repeat.

    A body that hands on an update beside the stream adds it where the next repeat begins; what the first repeat is given may be
    no branch.
    """
    p = flow.program
    handed: dict[int, int] = {}
    for region in find_repeats(p).values():
        if region.copies and len(region.ends) == len(region.begins):
            for begin, end in zip(region.begins, region.ends, strict=True):
                handed[p.first[begin]] = p.inputs[end][0]
    origin = {branch.join.total: branch.root for branch in branches}
    joins = {branch.join.call for branch in branches}
    found: set[int] = set()
    for k in range(len(p.kind)):
        summed = None if k in joins or not handed else sum_of(flow, k)
        if summed is None:
            continue
        a, b = (handed.get(_begun(flow, v, handed), v) for v in summed[:2])
        if (a, b) != summed[:2] and any(
            _branch(flow, k, x, y, summed[2], origin) or _parallel(flow, k, x, y, summed[2], origin)
            for x, y in ((a, b), (b, a))
        ):
            found.add(k)
    return frozenset(found)


def _begun(flow: Flow, value: int, handed: dict[int, int]) -> int:
    """The value that a body begins with of which this one is another form; the value itself where it is none."""
    at: int | None = value
    while at is not None and at not in handed:
        at = flow.carried(at)
    return value if at is None else at


def _branch(
    flow: Flow, k: int, stream: int, end: int, total: int, origin: dict[int, int], root: int | None = None
) -> Branch | None:
    source = flow.root(stream) if root is None else root
    start = flow.maker[source]
    if flow.maker[flow.root(end)] <= start or flow.kinds[source] != "A":
        return None
    walls = [s for s in origin if s != source]
    behind = flow.back((end,), above=start - 1, stop=walls)
    if source not in behind:
        return None
    values = flow.ahead((source,), behind)
    if end not in values:
        return None
    calls = {flow.maker[v] for v in values}
    if not any(flow.is_weight_product(c) for c in calls):
        return None
    return Branch(source, frozenset(values), Join(k, stream, end, total), end)


def _parallel(flow: Flow, k: int, stream: int, end: int, total: int, origin: dict[int, int]) -> Branch | None:
    """A branch that leaves the stream before an earlier branch was added (attention and MLP side by side)."""
    source = flow.root(stream)
    if source not in origin:
        return None
    return _branch(flow, k, stream, end, total, origin, origin[source])


def _mixed(flow: Flow, k: int, stream: int, end: int, total: int, origin: dict[int, int]) -> Branch | None:
    """A branch that is added to a mixture of the streams that it leaves."""
    for read, source in mixtures(flow, stream):
        if _was_shaped_like(flow, read, total):
            branch = _branch(flow, k, stream, end, total, origin, source)
            if branch is not None:
                return branch
    return None


def _was_shaped_like(flow: Flow, value: int, other: int) -> bool:
    """Whether a value, or what it is a view of, has the shape of another one."""
    wanted = flow.layout(other)
    at: int | None = value
    while at is not None and wanted is not None:
        of = flow.layout(at)
        if of is not None and of.shape == wanted.shape:
            return True
        at = flow.carried(at)
    return False
