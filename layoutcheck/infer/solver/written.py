"""What a buffer holds after a view of it was written."""

from __future__ import annotations

from layoutcheck.domains import is_token_like, padded
from layoutcheck.infer.calls.states import is_zero
from layoutcheck.layouts import Axis, Layout, extent_of, layout, replace


def is_blank_axis(axis: Axis) -> bool:
    """Whether nothing was written along an axis of a constant fill yet."""
    return bool(axis) and all(f.domain.kind == "any" for f in axis)


def written_back(base: Layout, view: Layout, front: int | None = None) -> Layout:
    """A buffer's layout after a view of it was written: axes that the view has in full follow what was written.

    `front`: the axis of which the view is the beginning; in a blank buffer the rest of it is padding behind the tokens.
    """
    if base.shape == view.shape:
        return replace(view, dtype=base.dtype)
    if is_zero(base) and view.rank == base.rank:
        part = _own_rows(base, view)
        if part is not None:
            return part
    axes = list(base.axes)
    bound = dict(base.bound_map)
    if view.rank == base.rank:
        pairs = [(i, i) for i in range(base.rank)]
    else:
        pairs, j = [], 0
        for i in range(base.rank):
            if j < view.rank and base.shape[i] == view.shape[j]:
                pairs.append((i, j))
                j += 1
    for i, j in pairs:
        own = base.axes[i]
        if base.shape[i] == view.shape[j] and (not own or all(f.domain.kind == "any" for f in own)):
            axes[i] = view.axes[j]
    if front is not None and view.rank == base.rank and is_blank_axis(base.axes[front]):
        written = view.axes[front]
        if len(written) == 1 and written[0].is_whole and is_token_like(written[0].domain):
            axes[front] = (padded(written[0].domain, base.shape[front]).whole,)
    for m, fs in view.bound:
        bound[m] = tuple(dict.fromkeys(bound.get(m, ()) + fs))
    partial = tuple(sorted({*base.partial, *view.partial}))
    return layout(base.dtype, tuple(axes), bound, partial)


def _own_rows(base: Layout, view: Layout) -> Layout | None:
    """Zeros after a rank wrote its share in its own place: that rank's part of a sum that gives all shares."""
    over = {
        m
        for m, fs in view.bound
        for b in fs
        if any(b.domain is f.domain and f.is_whole for axis in base.axes for f in axis)
    }
    if not over or base.bound or view.partial:
        return None
    wholes = {f.domain: f for axis in base.axes for f in axis}
    axes = tuple(
        base.axes[i] if any(f.domain in wholes and not f.is_whole for f in axis) else axis
        for i, axis in enumerate(view.axes)
    )
    if any(m not in over for m, _ in view.bound) or tuple(extent_of(a) for a in axes) != base.shape:
        return None
    return layout(base.dtype, axes, {}, tuple(sorted(over)))
