"""Values that are each rank's own: masks with its limits, pieces of its shard, rows on their way between experts.

One device has no such value. What a rank should hold follows from the single device's values all the same: its share
of each operand, through the rank's own call. Shares are taken of the single device's values and not of what the
ranks hold, so that what went wrong before is not taken over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from layoutcheck.graph import Node
from layoutcheck.layouts import Layout
from layoutcheck.ranks.denote import Ranks, Undenoted, close, share, valid
from layoutcheck.ranks.interpreter import Members, RankError, perform_all

Held = Callable[[int], "list[Any] | None"]


class OwnValues:
    """Values by number, one a rank. `held` gives what the ranks really hold of a value."""

    def __init__(self, ranks: Ranks, members: Members, held: Held) -> None:
        self.ranks, self.members, self.held = ranks, members, held
        self.values: dict[int, list[Any]] = {}
        self._shares: dict[int, list[Any]] = {}

    def run(
        self,
        call: Node,
        nodes: Sequence[Mapping[str, Node]],
        operands: Sequence[tuple[int, Any, Any]],
    ) -> list[list[Any]] | None:
        """A call on every rank, on its share of the operands (number, layout, whole); results by output and rank.

        Ranks may have literals of their own in it, but it is the same op on the same values. None where an
        operand has no shares, or the call does not run on them.
        """
        names = list(call.refs())
        calls = []
        for mine in nodes:
            there = mine.get(call.name, call)
            alike = there.target == call.target and list(there.refs()) == names
            calls.append(there if alike else call)
        given = [self._of(*operand) for operand in operands]
        if any(g is None for g in given):
            return None
        values = [{n: g[r] for n, g in zip(names, given) if g is not None} for r in range(self.ranks.world)]
        try:
            results = perform_all(
                [c for c in calls if c is not None], values, self.ranks.symbols, self.members
            )
        except RankError:
            return None
        listed = [list(x) if isinstance(x, (tuple, list)) else [x] for x in results]
        return [list(column) for column in zip(*listed)]

    def _of(self, value: int, of: Any, whole: Any) -> list[Any] | None:
        """What each rank should hold of an operand."""
        if value in self.values:
            return self.values[value]
        if value not in self._shares:
            found = self._shared(value, of, whole)
            if found is None:
                return None
            self._shares[value] = found
        return self._shares[value]

    def _shared(self, value: int, of: Any, whole: Any) -> list[Any] | None:
        held = self.held(value)
        if not isinstance(of, Layout) or not isinstance(whole, torch.Tensor):
            return held if whole is not None else None
        if of.partial:
            return held  # any summands will do, and their sum was compared
        try:
            parts: list[Any] = share(whole, of, self.ranks)
            mask = valid(of, self.ranks)
            if mask is None or held is None:
                return parts
            # rows of padding are whatever the rank has there
            inside = share(mask.expand(whole.shape), of, self.ranks)
            return [torch.where(m, a, b.to(a.dtype)) for m, a, b in zip(inside, parts, held)]
        except (Undenoted, RuntimeError):
            return None


def apart(held: Sequence[Any], wanted: Sequence[Any]) -> tuple[int, str] | None:
    """The first rank that holds something else than it should, and what; None where all agree."""
    for r, (got, want) in enumerate(zip(held, wanted)):
        if isinstance(got, Tensor) and isinstance(want, Tensor) and not _equal(got, want):
            return r, f"holds another value than its share of one device's values gives: {_first(got, want)}"
    return None


def _equal(got: Tensor, want: Tensor) -> bool:
    return close(got.to(want.dtype) if got.dtype == torch.bool else got, want)


def _first(got: Tensor, want: Tensor) -> str:
    if got.shape != want.shape:
        return f"{tuple(got.shape)}, not {tuple(want.shape)}"
    at = (got != want).nonzero()
    if not len(at):
        return "undefined elements"
    index = tuple(at[0].tolist())
    return f"element {list(index)}: {got[index].item()}, not {want[index].item()}"
