"""Splits of which one piece is read: `x.chunk(p)[rank]` is a slice, and may be this rank's share."""

from __future__ import annotations

import attrs

from layoutcheck.infer.call import ONLY
from layoutcheck.infer.run import transform_of
from layoutcheck.program import CALL, OpInstance, Program


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
