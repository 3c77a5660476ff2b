"""Axes of extent one in a view: which of the axes before is which of those after.

A size of one says nothing of what stands there: a batch, one token, one head a rank. Axes of one between the same neighbours
keep their order from the front: `[1, 1, 8]` seen as `[1, 1, 1, 8]` gets a new one at the end, behind batch and token; a single one
gets the new ones in front. Where there are fewer after than before, a head goes with the features to its right; where tokens
are there, with the axes to its left.
"""

from __future__ import annotations

from collections.abc import Sequence

from layoutcheck.domains import Factor
from layoutcheck.layouts import Axis, Layout
from layoutcheck.symbols import Size, divide_exact


def _gaps(sizes: Sequence[Size]) -> dict[Size, list[int]]:
    """Axes of one by the number of elements to their right."""
    found: dict[Size, list[int]] = {}
    right: Size = 1
    for i in reversed(range(len(sizes))):
        if sizes[i] == 1:
            found.setdefault(right, []).insert(0, i)
        right = right * sizes[i]
    return found


def _moves(of: Layout, sizes: Sequence[Size]) -> dict[int, int | None]:
    """For each axis of one before a view the one after it that it becomes, None where it is merged into what is to its right."""
    after = _gaps(sizes)
    moves: dict[int, int | None] = {}
    for right, units in _gaps(of.shape).items():
        targets = after.get(right, [])
        for j, i in enumerate(units):
            if not targets:
                moves[i] = None
            elif len(units) == 1:
                moves[i] = targets[-1]
            elif j < len(targets):
                moves[i] = targets[j]
            else:
                moves[i] = targets[-1] if _tokens(of.axes[i]) or _tokens(_next(of, i)) else None
    return moves


def _tokens(axis: Axis) -> bool:
    """Whether tokens stand on an axis; copies, which a broadcast has made, may be copies of heads."""
    return any(not f.domain.is_feature and f.domain.kind != "any" for f in axis)


def _next(of: Layout, axis: int) -> Axis:
    """The first axis to the right on which something stands."""
    return next((a for a in of.axes[axis + 1 :] if a), ())


def place_units(of: Layout, sizes: Sequence[Size]) -> tuple[list[Factor], dict[int, Axis]]:
    """The factors that are left to regroup, and those of axes of one by the axis of one that they go to."""
    moves = _moves(of, sizes)
    left: list[Factor] = []
    placed: dict[int, Axis] = {}
    for i, axis in enumerate(of.axes):
        target = moves.get(i)
        if target is None:
            left.extend(axis)
        else:
            placed[target] = placed.get(target, ()) + axis
    return left, placed


def units_behind(of: Layout, sizes: Sequence[Size], axis: int, right: Size) -> list[int]:
    """The axes of one that a cut, with `right` elements to its right, of an axis after a view may be a cut of.

    Where that axis has more than one element, they are those that were merged into it: the heads', with tokens to their left.
    """
    moves = _moves(of, sizes)
    if sizes[axis] == 1:
        return [i for i, target in moves.items() if target == axis]
    merged = [i for i in _gaps(of.shape).get(right, []) if moves[i] is None and any(of.axes[:i])]
    behind = next((n for i in merged for n in of.shape[i + 1 :] if n != 1), None)
    # an axis that is a part of the next one before has nothing of what stands in front of that
    return merged[:1] if behind is None or divide_exact(sizes[axis], behind) is not None else []
