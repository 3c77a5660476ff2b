"""How conversions are written in a graph: `rules/placement/dialects.json`."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import attrs

from layoutcheck.graph import Graph
from layoutcheck.resources import rules_dir

Step = tuple[str, tuple[str, ...]]


@attrs.frozen
class Dialect:
    """Steps of each collective, a target with its arguments. `any_dim`: they take a dimension; else they work along the first."""

    name: str
    prefixes: tuple[str, ...]
    any_dim: bool
    steps: dict[str, tuple[Step, ...]]


@lru_cache(maxsize=1)
def dialects() -> tuple[Dialect, ...]:
    """All dialects, in order."""
    text = (rules_dir() / "placement" / "dialects.json").read_text(encoding="utf-8")
    return tuple(
        Dialect(
            entry["name"],
            tuple(entry["prefixes"]),
            bool(entry["any_dim"]),
            {
                kind: tuple((target, tuple(args)) for target, args in entry[kind])
                for kind in ("all_gather", "reduce_scatter", "all_reduce")
            },
        )
        for entry in json.loads(text)["dialects"]
    )


def dialect_of(graph: Graph) -> Dialect:
    """The dialect in which a graph's conversions are written."""
    for found in dialects():
        if any(n.target.startswith(found.prefixes) for n in graph.nodes if n.op == "call_function"):
            return found
    return dialects()[-1]


def filled(args: tuple[str, ...], given: dict[str, Any]) -> tuple[Any, ...]:
    """A step's arguments with what `$names` stand for."""
    return tuple(given[a[1:]] if a.startswith("$") else a for a in args)
