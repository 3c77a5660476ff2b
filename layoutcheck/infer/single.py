"""Splits of which one piece is read: `x.chunk(p)[rank]` is a slice, and may be this rank's share."""

from __future__ import annotations

import attrs

from layoutcheck.infer.call import ONLY, PIECE
from layoutcheck.infer.run import transform_of
from layoutcheck.program import CALL, OpInstance, Program


_SLICES = frozenset(("slice", "narrow"))


def mark_pieces(p: Program, uses: dict[int, list[tuple[int, int]]]) -> None:
    """Mark slices of a value that is sliced in other places, too, or (from 0 on) read as a whole beside it.

    Halves of a rotary embedding, gate and up, a latent and its positional part: on rank 0 of two, the first half of an
    axis of features looks like that rank's share.
    """
    made: dict[int, int] = {}
    for readers in uses.values():
        if len(readers) < 2:
            continue
        slices = [k for k, slot in readers if slot == 0 and _is_slice(p, k)]
        different = len({p.op[k] for k in slices}) > 1
        for k in slices:
            index = p.op[k]
            instance = p.instances[index]
            start = (
                instance.params.get(instance.rule.options.get("start", "start")) if instance.rule else None
            )
            if not different and start not in (0, None):
                continue
            if index not in made:
                made[index] = len(p.instances)
                p.instances.append(attrs.evolve(instance, params={**instance.params, PIECE: True}))
            p.op[k] = made[index]


def _is_slice(p: Program, k: int) -> bool:
    if p.kind[k] != CALL:
        return False
    transform = transform_of(p.instances[p.op[k]])
    return transform is not None and transform.name in _SLICES


def mark_single(p: Program, uses: dict[int, list[tuple[int, int]]]) -> None:
    """Give splits with one reader's piece an op instance of their own that names the piece."""
    made: dict[tuple[int, int], int] = {}
    for k, kind in enumerate(p.kind):
        if kind != CALL or p.outs[k] < 2:
            continue
        instance: OpInstance = p.instances[p.op[k]]
        transform = transform_of(instance)
        if transform is None or not transform.in_pieces:
            continue
        first = p.first[k]
        read = [j for j in range(p.outs[k]) if uses.get(first + j)]
        if len(read) != 1:
            continue
        key = (p.op[k], read[0])
        if key not in made:
            made[key] = len(p.instances)
            p.instances.append(attrs.evolve(instance, params={**instance.params, ONLY: read[0]}))
        p.op[k] = made[key]
