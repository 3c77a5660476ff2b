"""The table of transforms by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from layoutcheck.infer.calls.call import Call, Result
from layoutcheck.symbols import Size

Back = Callable[[Call, Any, int, int, Size], "list[tuple[int, int, Size]] | None"]
Summed = Callable[[Call], "list[list[tuple[int, int, Size]]]"]


@attrs.frozen
class Transform:
    """A transform: `forward` types a call; `back` says which operand axes an output axis comes from.

    `back(call, outs, output, axis, inner)` answers (slot, axis, inner) for the operands that would all have to be cut
    for the output's axis to be cut `inner` elements from its right end; None where that can't be. `summed(call)` lists
    the groups of operand axes that the call sums over. `in_pieces`: the outputs are pieces of one operand, in order.
    """

    name: str
    forward: Callable[[Call], Result]
    back: Back | None = None
    summed: Summed | None = None
    is_view: bool = False
    in_pieces: bool = False


_table: dict[str, Transform] = {}
_loaded: list[bool] = []


def register(
    name: str,
    back: Back | None = None,
    summed: Summed | None = None,
    is_view: bool = False,
    in_pieces: bool = False,
) -> Callable[[Callable[[Call], Result]], Callable[[Call], Result]]:
    """Decorator: enter a forward function under a name."""

    def enter(forward: Callable[[Call], Result]) -> Callable[[Call], Result]:
        _table[name] = Transform(name, forward, back, summed, is_view, in_pieces)
        return forward

    return enter


def find(name: str) -> Transform | None:
    """The transform of this name."""
    found = _table.get(name)
    if found is None and not _loaded:
        _load()
        found = _table.get(name)
    return found


def _load() -> None:
    _loaded.append(True)
    from layoutcheck.transforms import (  # noqa: F401
        all_to_all,
        axis_order,
        collectives,
        contract,
        convolution,
        create,
        gathers,
        group_norm,
        grouped,
        halves,
        index,
        joinery,
        loss,
        masks,
        pieces,
        quotients,
        reduce,
        routing,
        scalars,
        shares,
        splitting,
        views,
        writes,
    )
