"""What is written into a cache has the cache's features: heads that a rank holds go into a cache of its own heads."""

from __future__ import annotations

from layoutcheck.domains import Factor, is_token_like
from layoutcheck.infer.call import Call, Issue
from layoutcheck.layouts import Layout, bound_on_axis
from layoutcheck.symbols import Size
from layoutcheck.transforms.reduce import need_whole

Held = tuple[int, Layout]


def check_features(call: Call, cache: Held, values: list[Held], slots: Layout | None) -> None:
    """Compare the axes behind the tokens of each value with the last ones of the cache; slots point into all others."""
    slot, into = cache
    tails = [_tail(of, into) for _, of in values]
    if not values or any(t is None for t in tails):
        for s, of in values:  # side by side in one row
            for dim in range(_token_axis(of) + 1, of.rank):
                need_whole(call, s, of, dim, "is put beside others into a row of a cache, with")
        for dim in range(into.rank):
            need_whole(call, slot, into, dim, "rows are written with")
        return
    first = min(into.rank - t for t in tails if t is not None)
    own = set(slots.bound_map) if slots is not None else set()
    for dim in range(first):
        if not {m for m, _ in bound_on_axis(into, dim)} <= own:
            need_whole(call, slot, into, dim, "slots point into")
    for (s, of), tail in zip(values, tails):
        assert tail is not None
        _agree(call, (s, of, _token_axis(of) + 1), (slot, into, into.rank - tail))


def _token_axis(of: Layout) -> int:
    """The last axis that counts tokens; the first axis where none is known to."""
    return max((i for i, a in enumerate(of.axes) if any(not f.domain.is_feature for f in a)), default=0)


def _tail(of: Layout, cache: Layout) -> int | None:
    """How many of a cache's last axes hold what a row of a value is; None where no number of them does."""
    row = _product(of.shape[_token_axis(of) + 1 :])
    for n in range(1, cache.rank + 1):
        here = _product(cache.shape[cache.rank - n :])
        if here == row or _wholes(cache, cache.rank - n) == _wholes(of, _token_axis(of) + 1):
            return n
    return None


def _product(sizes: tuple[Size, ...]) -> Size:
    total: Size = 1
    for n in sizes:
        total = total * n
    return total


def _wholes(of: Layout, start: int) -> Size:
    """The number of elements of the axes from `start` on over all ranks."""
    total = _product(of.shape[start:])
    for dim in range(start, of.rank):
        for _, b in bound_on_axis(of, dim):
            total = total * b.extent
    return total


def _agree(call: Call, value: tuple[int, Layout, int], cache: tuple[int, Layout, int]) -> None:
    """Both are cut alike; where only one is, the other's input may turn out to be."""
    mine, other = _cuts(value[1], value[2]), _cuts(cache[1], cache[2])
    regrouped = value[1].rank - value[2] != cache[1].rank - cache[2]
    for m in sorted({*mine, *other}):
        a, b = mine.get(m), other.get(m)
        if a is not None and b is not None:
            same = a[0] == b[0] and a[1].extent == b[1].extent and a[1].stride == b[1].stride
            if not (same or regrouped):
                call.issue("LC101", _TEXT.format(call.ctx.group((m,))), value[0], cache[0])
            continue
        slot, of, start = cache if b is None else value
        found = a if b is None else b
        assert found is not None
        dim = start + (0 if regrouped else found[0])
        issue = Issue("LC101", _TEXT.format(call.ctx.group((m,))), (value[0], cache[0]))
        call.want("cut", slot, issue, axis=dim, inner=of.shape[dim], mesh_axes=(m,))


_TEXT = "over {} the features of {{0}} and those of the cache {{1}} are not cut alike"


def _cuts(of: Layout, start: int) -> dict[int, tuple[int, Factor]]:
    """Per mesh axis the feature digit that it selects of the axes from `start` on, and how many axes behind it."""
    out = {}
    for dim in range(start, of.rank):
        for m, b in bound_on_axis(of, dim):
            if not is_token_like(b.domain):
                out[m] = (dim - start, b)
    return out
