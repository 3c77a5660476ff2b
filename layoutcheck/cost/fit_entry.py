"""What a hardware file may hold: figures, constants and structure that the formulas can be evaluated with."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

_SHARES = frozenset(("compute", "memory", "vector", "bandwidth", "pair"))
"""Constants that something is divided by."""
_OF_FORM: Mapping[str, tuple[str, ...]] = {
    "pipelined": (),
    "plain": (),
    "protocols": ("near", "node", "switch"),
    "direct": ("near", "node", "bandwidth", "pair"),
}
"""The constants that a form of a collective cannot do without."""


def check_entry(constants: Mapping[str, Any], structure: Mapping[str, Any]) -> None:
    """Raise a ValueError that names the first constant or structural number that no formula can use."""
    for name, value in constants.items():
        least = "above 0" if name in _SHARES else "of at least 0"
        if not _number(value) or value < 0 or (name in _SHARES and not value):
            raise ValueError(f"the constant {name} is {value!r}, not a number {least}")
    for name, value in structure.items():
        check = _STRUCTURE.get(name)
        if check is None:
            raise ValueError(f"no structure is called {name}; there are {', '.join(sorted(_STRUCTURE))}")
        holds, words = check
        if not holds(value):
            raise ValueError(f"the structure {name} is {value!r}, not {words}")
    for name in _OF_FORM.get(str(structure.get("form", "")), ()):
        if name not in constants:
            raise ValueError(f"the form {structure['form']} needs the constant {name}")


def figure(value: Any, name: str, *, whole: bool = False, zero: bool = False) -> float:
    """Return a figure of a hardware file; a ValueError names it where it is no number above 0 (or, with ``zero``, of at least 0)."""
    if not _number(value) or value < 0 or not (value or zero) or (whole and value != int(value)):
        words = (
            "an integer of at least 1" if whole else "a number of at least 0" if zero else "a number above 0"
        )
        raise ValueError(f"{name} is {value!r}, not {words}")
    return float(value)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _whole(least: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= least


def _tiles(value: Any) -> bool:
    return (
        bool(value)
        and isinstance(value, list)
        and all(
            isinstance(tile, list) and len(tile) == 2 and all(_whole(1)(side) for side in tile)
            for tile in value
        )
    )


_Check = tuple[Callable[[Any], bool], str]
_SHARE: _Check = (lambda v: _number(v) and v > 0, "a number above 0")
_AMOUNT: _Check = (lambda v: _number(v) and v >= 0, "a number of at least 0")
_COUNT: _Check = (_whole(1), "an integer of at least 1")
_SWITCH: _Check = (lambda v: isinstance(v, bool), "true or false")

_STRUCTURE: Mapping[str, _Check] = {
    "knee": (lambda v: _whole(1)(v) and v in (1, 2, 4), "1, 2 or 4"),
    "rows": (
        lambda v: bool(v) and isinstance(v, list) and all(map(_whole(1), v)),
        "a list of integers of at least 1",
    ),
    "tiles": (_tiles, "a list of pairs of integers of at least 1"),
    "columns": _COUNT,
    "full": (_whole(0), "an integer of at least 0"),
    "form": (lambda v: isinstance(v, str) and v in _OF_FORM, f"one of {', '.join(_OF_FORM)}"),
    "near": (_whole(2), "an integer of at least 2"),
    "node": (_whole(2), "an integer of at least 2"),
    "ranks": (_whole(2), "an integer of at least 2"),
    "jump": _AMOUNT,
    "links": _SHARE,
    "pair": _SHARE,
    "own": _AMOUNT,
    "exponent": _SHARE,
    "streams": (lambda v: v in ("all", "weights"), "all or weights"),
    "cache": _AMOUNT,
    "splits": _COUNT,
    "split_cost": _AMOUNT,
    "prologue": _AMOUNT,
    "store": _AMOUNT,
    "drift": (lambda v: _number(v) and 0 <= v <= 1, "a number from 0 to 1"),
    "ramp": _AMOUNT,
    "row_overhead": (_whole(0), "an integer of at least 0"),
    "requantise": _SWITCH,
    "packs_heads": _SWITCH,
}
