"""Regrouping factors into axes of other sizes: what a view does to digits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from layoutcheck.domains import Factor, factor, feature, flat, merge, split
from layoutcheck.layouts import Axis
from layoutcheck.symbols import Size, divide_exact

Cuts = dict[int, list[Factor]]


def _bound_of(f: Factor, cuts: Cuts) -> list[int]:
    if f.is_whole:
        return []
    return [m for m, fs in cuts.items() if any(b.domain is f.domain for b in fs)]


def split_digit(f: Factor, minor: Size, cuts: Cuts) -> tuple[Factor, Factor] | None:
    """Major and minor digit of a factor. A sharded feature's shard goes to the major one; `cuts` is updated in place."""
    if not f.domain.is_feature:
        return split(f, minor)
    major = divide_exact(f.extent, minor)
    if major is None:
        return None
    sharded = _bound_of(f, cuts)
    if not sharded:
        return feature(major).whole, feature(minor).whole
    total: Size = major
    for m in sharded:
        for b in cuts[m]:
            if b.domain is f.domain:
                total = total * b.extent
    wide = feature(total)
    for m in sharded:
        cuts[m] = [
            factor(wide, _exact(b.stride, minor), b.extent) if b.domain is f.domain else b for b in cuts[m]
        ]
    return factor(wide, 1, major), feature(minor).whole


def _exact(stride: Size, minor: Size) -> Size:
    found = divide_exact(stride, minor)
    return stride if found is None else found


def regroup(
    factors: Sequence[Factor], sizes: Sequence[Size], cuts: Cuts, placed: Mapping[int, Axis] | None = None
) -> list[Axis] | None:
    """Distribute a stream of factors over axes of these sizes, splitting digits where needed; None if they don't fit.

    `cuts` holds the bound factors per mesh axis and is updated where a sharded feature is split; `placed` has what is known
    to be on axes of extent one.
    """
    placed = placed or {}
    stream = list(reversed(factors))
    out: list[Axis] = []
    for i, size in enumerate(sizes):
        axis: list[Factor] = list(placed.get(i, ()))
        if size == 1:
            following_unit = i + 1 < len(sizes) and sizes[i + 1] == 1
            if stream and not following_unit and not axis:
                head = stream[-1]
                if head.extent == 1:
                    # where another axis of one is known to be here, this one belongs to what is to its right
                    if i not in placed:
                        axis.append(stream.pop())
                elif head.domain.is_feature and _bound_of(head, cuts) and i + 1 < len(sizes) and any(out):
                    # A unit axis before a shard is its head axis: the shard counts heads.
                    parts = split_digit(head, head.extent, cuts)
                    if parts is not None:
                        stream[-1:] = [parts[1], parts[0]]
                        axis.append(stream.pop())
            out.append(tuple(axis))
            continue
        need: Size = size
        while need != 1:
            if not stream:
                return None
            f = stream.pop()
            if f.extent == need:
                axis.append(f)
                need = 1
                continue
            if f.extent == 1:
                axis.append(f)
                continue
            left = divide_exact(need, f.extent)
            if left is not None:
                axis.append(f)
                need = left
                continue
            minor = divide_exact(f.extent, need)
            if minor is not None:
                parts = split_digit(f, minor, cuts)
                if parts is None:
                    return None
                axis.append(parts[0])
                stream.append(parts[1])
                need = 1
                continue
            # Neither divides: take the next factor along and cut their product.
            if not stream:
                return None
            nxt = stream.pop()
            joined = merge(f, nxt)
            if joined is not None and joined.is_whole and joined.domain.kind == "flat":
                stream.extend(reversed(joined.domain.args))
            else:
                stream.append(joined if joined is not None else flat((f, nxt)).whole)
        out.append(tuple(axis))
    rest = list(reversed(stream))
    if any(f.extent != 1 for f in rest):
        return None
    if rest and out:
        out[-1] = out[-1] + tuple(rest)
    return out
