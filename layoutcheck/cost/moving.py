"""Weights that come from other ranks before they are used: what an engine's profile says of how they move."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from layoutcheck.cost.terms import GraphCost
from layoutcheck.errors import InputError
from layoutcheck.memory.engines import Engine, load_engine

MOVERS = {"distributed": "broadcast", "gathered": "all_gather"}
"""By key of an engine profile, the collective that moves a weight."""

_OPTIONS = {"distributed": "distribute", "gathered": "gather"}
_WORDS = {"distributed": "distributes no weights over layers", "gathered": "gathers no whole weights"}


def overlapped(engine: Engine) -> frozenset[str]:
    """The collectives of weights that the engine runs beside the kernels of their layers."""
    return frozenset(op for key, op in MOVERS.items() if engine.values.get(key, {}).get("overlap", False))


def overlap_of(options: Mapping[str, Any], cost: GraphCost) -> tuple[frozenset[str], list[str]]:
    """The collectives of weights that run beside kernels, as ``--engine`` or ``--overlap`` say, and sentences on it.

    Raises:
        InputError: both are given, there is no such profile, or the engine does not move weights so.
    """
    if not options["engine"]:
        return (frozenset(MOVERS.values()) if options["overlap"] else frozenset()), []
    if options["overlap"]:
        raise InputError("the engine's profile says what overlaps", where="--overlap")
    engine = load_engine(options["engine"])
    for key, option in _OPTIONS.items():
        if options[option] and key not in engine.values:
            raise InputError(f"{engine.name} {_WORDS[key]}", where=f"--{option}")
    found = overlapped(engine)
    notes = []
    for op in dict.fromkeys(str(t.options["op"]) for t in cost.terms if t.prefetched):
        beside = "beside the kernels of their layers" if op in found else "on its own"
        notes.append(f"{engine.name}: {op} of weights runs {beside}")
    return found, notes
