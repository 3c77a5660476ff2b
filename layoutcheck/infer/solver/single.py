"""Splits of which one piece is read: `x.chunk(p)[rank]` is a slice, and may be this rank's share."""

from __future__ import annotations

from typing import Any

import attrs

from layoutcheck.infer.calls.call import ONLY, PIECE, STACKED
from layoutcheck.infer.solver.one_call import transform_of
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


_PASSES = frozenset(("wait", "same"))
_COPIES = frozenset(("copy", "wait", "same"))
_ELSEWHERE = "elsewhere"
_TURNS = frozenset(("permute", "movedim", "transpose"))


def mark_stacked(p: Program, uses: dict[int, list[tuple[int, int]]]) -> None:
    """Mark gathers along axis 0 of which the pieces are then joined, or moved, along another axis: that axis, where it is known."""
    made: dict[tuple[int, int | str], int] = {}
    for k, kind in enumerate(p.kind):
        if kind != CALL or _name(p, k) != "all_gather":
            continue
        to = _moved_to(p, uses, k)
        if to is not None:
            index = p.op[k]
            if (index, to) not in made:
                made[index, to] = len(p.instances)
                instance = p.instances[index]
                p.instances.append(attrs.evolve(instance, params={**instance.params, STACKED: to}))
            p.op[k] = made[index, to]


def _moved_to(p: Program, uses: dict[int, list[tuple[int, int]]], k: int) -> int | str | None:
    """The axis that pieces of a gather are joined along; a word where they are moved in another way, None where they stay."""
    readers = _readers(p, uses, k)
    while len(readers) == 1 and _name(p, readers[0]) in _PASSES:
        readers = _readers(p, uses, readers[0])
    pieces = [r for r in readers if _in_pieces(p, r) or _is_slice(p, r)]
    if pieces and len(pieces) == len(readers):
        joins = {j for r in pieces for j in _kept_by(p, uses, r)}
        along = {_argument(p, j, "dim") if _name(p, j) == "cat" else None for j in joins}
        if not along or along & {0, None}:
            return None
        first = along.pop()
        return first if isinstance(first, int) and not along else _ELSEWHERE
    if len(readers) == 1 and _name(p, readers[0]) in ("view", "unflatten"):
        behind = _readers(p, uses, readers[0])
        return _ELSEWHERE if len(behind) == 1 and _name(p, behind[0]) in _TURNS else None
    return None


def _kept_by(p: Program, uses: dict[int, list[tuple[int, int]]], k: int) -> set[int]:
    """What reads a call's results, copies aside (a piece is copied into the list that an eager gather fills)."""
    found: set[int] = set()
    for reader in _readers(p, uses, k):
        found |= _kept_by(p, uses, reader) if _name(p, reader) in _COPIES else {reader}
    return found


def _readers(p: Program, uses: dict[int, list[tuple[int, int]]], k: int) -> list[int]:
    first = p.first[k]
    return sorted({r for v in range(first, first + p.outs[k]) for r, _ in uses.get(v, ())})


def _name(p: Program, k: int) -> str:
    transform = transform_of(p.instances[p.op[k]]) if p.kind[k] == CALL else None
    return transform.name if transform is not None else ""


def _in_pieces(p: Program, k: int) -> bool:
    transform = transform_of(p.instances[p.op[k]]) if p.kind[k] == CALL else None
    return transform is not None and transform.in_pieces


def _argument(p: Program, k: int, name: str) -> Any:
    instance = p.instances[p.op[k]]
    return instance.params.get(instance.rule.options.get(name, name)) if instance.rule is not None else None


def _is_slice(p: Program, k: int) -> bool:
    if p.kind[k] != CALL:
        return False
    transform = transform_of(p.instances[p.op[k]])
    return transform is not None and transform.name in _SLICES


def mark_single(p: Program, uses: dict[int, list[tuple[int, int]]]) -> None:
    """Give splits with one reader's piece an op instance of their own that names the piece.

    Where a value is split once for each piece, the same way every time, all pieces are read.
    """
    made: dict[tuple[int, int], int] = {}
    single: dict[int, int] = {}
    named: dict[int, int] = {}
    pieces: dict[tuple[str, str, tuple[int, ...]], set[int]] = {}
    for k, kind in enumerate(p.kind):
        if kind != CALL or p.outs[k] < 2:
            continue
        transform = transform_of(p.instances[p.op[k]])
        if transform is None or not transform.in_pieces:
            continue
        first = p.first[k]
        read = [j for j in range(p.outs[k]) if uses.get(first + j)]
        pieces.setdefault(_split_of(p, k), set()).update(read)
        if len(read) == 1:
            single[k] = read[0]
    for k, piece in single.items():
        key = (p.op[k], piece)
        if len(pieces[_split_of(p, k)]) > 1:
            continue
        if key not in made:
            made[key] = len(p.instances)
            instance: OpInstance = p.instances[p.op[k]]
            p.instances.append(attrs.evolve(instance, params={**instance.params, ONLY: piece}))
        named[k] = made[key]
    for k, index in named.items():
        p.op[k] = index


def _split_of(p: Program, k: int) -> tuple[str, str, tuple[int, ...]]:
    """What a split splits, and how: the same for calls that differ only in the pieces that are read."""
    instance = p.instances[p.op[k]]
    return instance.target, str(instance.params), tuple(p.inputs[k])
