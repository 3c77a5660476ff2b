"""Packed features: an axis that an op takes apart into pieces (gate and up, or queries, keys and values, of one product) is cut in
each of its pieces, so that each rank's own pieces are shares of the whole ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import attrs

from layoutcheck.infer.solver.one_call import transform_of
from layoutcheck.layouts import Layout
from layoutcheck.placement.base import Base
from layoutcheck.program import CALL, OpInstance

PIECES = frozenset(("slice", "narrow", "select", "split", "chunk", "tensor_split", "unbind"))


@attrs.frozen
class Pieces:
    """Extents of an axis' pieces, in order, and the op's arguments that name them, as they are for one share of each."""

    sizes: tuple[int, ...]
    params: dict[str, Any]


@attrs.define
class Packing:
    """How the weights are packed from which values come.

    origins: per value the cut inputs whose order of features it has; none where it is a piece of them.
    pieces: per cut input the extents of its pieces.
    """

    origins: dict[int, frozenset[int]] = attrs.field(factory=dict)
    pieces: dict[int, tuple[int, ...]] = attrs.field(factory=dict)
    together: set[tuple[frozenset[int], ...]] = attrs.field(factory=set)

    def join(self, reads: Sequence[int], outs: Sequence[int]) -> None:
        """What an op gives of values that are cut: features in the order that all of them have."""
        found = tuple(self.origins.get(v, frozenset()) for v in reads)
        self.together.add(found)
        for v in outs:
            self.origins[v] = frozenset().union(*found)

    def plain(self, outs: Sequence[int]) -> None:
        """Pieces are no packed axis any more."""
        for v in outs:
            self.origins[v] = frozenset()

    def pack(self, source: int, sizes: tuple[int, ...]) -> bool:
        """Say how an input is packed; False where it was said otherwise."""
        return self.pieces.setdefault(source, sizes) == sizes

    def agrees(self) -> bool:
        """Whether no op puts features of one order beside those of another."""
        for sets in self.together:
            orders = {self.pieces.get(s, ()) for found in sets for s in found}
            orders |= {() for found in sets if not found}
            if len({_shape(o) for o in orders}) > 1:
                return False
        return True


def _shape(pieces: tuple[int, ...]) -> tuple[float, ...]:
    """Pieces as fractions of their axis, which is longer in one input than in another."""
    return tuple(n / sum(pieces) for n in pieces) if len(pieces) > 1 else ()


def pieces_of(base: Base, k: int, whole: Any, cut: Any, ways: Any) -> Pieces | bool:
    """The pieces into which a call takes an axis that is cut.

    Args:
        whole, cut: the layout of its operand on one device, and of a share.
        ways: ranks of the group.

    Returns:
        True where it takes no cut axis apart; False where its pieces are no shares.
    """
    instance = base.instance(k)
    transform = transform_of(instance)
    if transform is None or transform.name not in PIECES or not isinstance(cut, Layout) or cut is whole:
        return True
    if not isinstance(whole, Layout) or whole.rank != cut.rank or not isinstance(ways, int):
        return False
    dim = instance.params.get("dim", 0)
    if not isinstance(dim, int):
        return False
    dim %= whole.rank
    total = whole.shape[dim]
    if total == cut.shape[dim]:
        return True
    if not isinstance(total, int) or not isinstance(cut.shape[dim], int):
        return False
    ways = total // cut.shape[dim]
    found = _pieces(base, k, instance, transform.name, total, dim, ways)
    if found is None or any(n % ways for n in found.sizes) or sum(found.sizes) != total:
        return False
    return found


def joins(base: Base, k: int, cut: Sequence[Any]) -> bool:
    """Whether a call puts values one after another along an axis that is cut in one of them: a rank's features are then in an order
    that no weight behind it has.
    """
    p = base.analysis.program
    instance = base.instance(k)
    transform = transform_of(instance)
    if transform is None or transform.name != "cat" or len(cut) < 2:
        return False
    dim = instance.params.get("dim", 0)
    for v, of in zip(p.inputs[k], cut):
        whole = base.full[base.root(v)]
        if (
            isinstance(of, Layout)
            and isinstance(whole, Layout)
            and isinstance(dim, int)
            and of.rank == whole.rank
            and of.rank
        ):
            at = dim % of.rank
            if of.shape[at] != whole.shape[at]:
                return True
    return False


def _pieces(
    base: Base, k: int, instance: OpInstance, name: str, total: int, dim: int, ways: int
) -> Pieces | None:
    given = instance.params
    if name == "chunk":
        count = given.get("chunks")
        return (
            Pieces((total // count,) * count, {}) if isinstance(count, int) and total % count == 0 else None
        )
    if name == "split":
        key = "split_sizes" if "split_sizes" in given else "split_size"
        sizes = given.get(key)
        if isinstance(sizes, int):
            if total % sizes or sizes % ways:
                return None
            return Pieces((sizes,) * (total // sizes), {key: sizes // ways})
        if isinstance(sizes, (list, tuple)) and all(isinstance(n, int) and n > 0 for n in sizes):
            return Pieces(tuple(sizes), {key: type(sizes)(n // ways for n in sizes)})
        return None
    if name in ("slice", "narrow"):
        return _sliced(base, k, instance, total, dim, ways)
    return None


def _sliced(base: Base, k: int, instance: OpInstance, total: int, dim: int, ways: int) -> Pieces | None:
    """All slices of a value together say where its pieces begin."""
    own = _range(instance, total)
    if own is None:
        return None
    begins = {0, total}
    for other in slices_beside(base, k):
        beside = base.instance(other)
        given = beside.params.get("dim", 0)
        rank = getattr(base.full[base.root(base.analysis.program.inputs[other][0])], "rank", 0)
        if not isinstance(given, int) or not rank or given % rank != dim:
            continue
        found = _range(beside, total)
        if found is None:
            return None
        begins.update(found)
    ordered = sorted(begins)
    sizes = tuple(b - a for a, b in pairwise(ordered))
    low, high = own
    # A slice over several pieces would have to keep them apart: a rank's shares of them do not lie side by side.
    if low % ways or high % ways or ordered.index(high) != ordered.index(low) + 1:
        return None
    if "length" in instance.params:
        return Pieces(sizes, {"start": low // ways, "length": (high - low) // ways})
    return Pieces(sizes, {"start": low // ways, "end": high // ways})


def slices_beside(base: Base, k: int) -> Sequence[int]:
    """The slices of the value that a slice reads, this one among them."""
    p = base.analysis.program
    value = base.root(p.inputs[k][0])
    found = []
    for other in base.kept:
        if p.kind[other] == CALL and p.inputs[other] and base.root(p.inputs[other][0]) == value:
            transform = transform_of(base.instance(other))
            if transform is not None and transform.name in ("slice", "narrow"):
                found.append(other)
    return found


def _range(instance: OpInstance, total: int) -> tuple[int, int] | None:
    """What a slice takes, as `(begin, end)`; None where that is not known or it leaves elements out."""
    given = instance.params
    if given.get("step", 1) != 1:
        return None
    low = given.get("start", 0)
    low = 0 if low is None else low
    length = given.get("length")
    high = given.get("end", total) if length is None else None
    high = total if high is None and length is None else high
    if not isinstance(low, int) or (length is None and not isinstance(high, int)):
        return None
    low = low + total if low < 0 else low
    if length is not None:
        if not isinstance(length, int):
            return None
        high = low + length
    assert isinstance(high, int)
    high = high + total if high < 0 else min(high, total)
    return (low, high) if 0 <= low < high <= total else None
