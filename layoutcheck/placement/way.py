"""A mode of a call before it has a price."""

from __future__ import annotations

from typing import Any

import attrs

Ins = tuple[Any, ...]


@attrs.frozen
class Way:
    """A mode before it has a price: states of operands and results, and the layouts in them."""

    needs: tuple[int | None, ...]
    gives: tuple[int | None, ...]
    ins: Ins
    outs: tuple[Any, ...]
