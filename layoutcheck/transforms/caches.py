"""Which rows of a cache are written: by slots into all of its rows, each row as a whole."""

from __future__ import annotations

from layoutcheck.infer.calls.call import Call
from layoutcheck.layouts import Layout, bound_on_axis, whole_extent
from layoutcheck.symbols import Size
from layoutcheck.transforms.reduce import need_whole

Held = tuple[int, Layout]


def check_rows(call: Call, cache: Held, values: list[Held], slots: Layout | None) -> None:
    """Slots point into all leading axes of the cache; values that share a row are whole, and so is the row."""
    slot, into = cache
    tails = [_tail(of, into) for _, of in values]
    if not values or any(t is None for t in tails):
        for s, of in values:  # side by side in one row
            for dim in range(_token_axis(of) + 1, of.rank):
                need_whole(call, s, of, dim, "is put beside others into a row of a cache, with")
        for dim in range(into.rank):
            need_whole(call, slot, into, dim, "rows are written with")
        return
    own = set(slots.bound_map) if slots is not None else set()
    for dim in range(min(into.rank - t for t in tails if t is not None)):
        if not {m for m, _ in bound_on_axis(into, dim)} <= own:
            need_whole(call, slot, into, dim, "slots point into")


def _token_axis(of: Layout) -> int:
    """The last axis that counts tokens; the first axis where none is known to."""
    return max((i for i, a in enumerate(of.axes) if any(not f.domain.is_feature for f in a)), default=0)


def _tail(of: Layout, cache: Layout) -> int | None:
    """How many of a cache's last axes hold what a row of a value is, those of one head or row included; None where no
    number of them does.
    """
    start = _token_axis(of) + 1
    row, total = _product(of.shape[start:]), _wholes(of, start)
    fitting = [
        n
        for n in range(1, cache.rank + 1)
        if _product(cache.shape[cache.rank - n :]) == row or _wholes(cache, cache.rank - n) == total
    ]
    return max(fitting, default=None)


def _product(sizes: tuple[Size, ...]) -> Size:
    total: Size = 1
    for n in sizes:
        total = total * n
    return total


def _wholes(of: Layout, start: int) -> Size:
    """The number of elements of the axes from `start` on over all ranks."""
    return _product(tuple(whole_extent(of, dim) for dim in range(start, of.rank)))
