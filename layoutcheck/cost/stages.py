"""Where each operation is evaluated: at all points, or once for each value of the one size that it depends on.

A million points hold far fewer token counts, and fewer still of a rank's shares of them. What depends on nothing else (most of a
model's products) is computed for the distinct values and looked up at the points. A *key* is such a size: an input with few
distinct values, or a quotient, which has fewer than what it was cut from. Every operation belongs to the smallest key through
which all its inputs pass; keys form a tree under the points, since what dominates a node of a graph is a chain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import define, frozen

from layoutcheck.cost.lowering import Ref

_QUOTIENTS = frozenset(("ceil_div", "floor_div"))
_FEWER = 4
"""A key has to have so many times fewer values than what it hangs under."""
_LEAST_STEPS = 16
"""A key with fewer operations is not worth its look-ups."""

Key = Ref | None
"""An operation whose values are evaluated once each; None: the points."""


@frozen
class Step:
    """An operation that depends on an array: its name, what it reads that is no single number, and whether it is an exact integer."""

    name: str
    reads: tuple[Ref, ...]
    exact: bool


@define
class Stages:
    """The tree of keys.

    Attributes:
        of: the key under which each operation is evaluated.
        children: keys under a key, in the order of their operations.
        exports: by key, the values that are handed to the key above.
    """

    of: dict[Ref, Key]
    children: dict[Key, list[Ref]]
    exports: dict[Key, list[Ref]]

    def steps(self, key: Key, wanted: Sequence[Ref], steps: Mapping[Ref, Step], have: set[Ref]) -> list[Ref]:
        """The operations under ``key`` that ``wanted`` values need, in order, beside those that are there."""
        found: set[Ref] = set()
        open_ = list(wanted)
        while open_:
            ref = open_.pop()
            if ref in found or ref in have or ref not in steps:
                continue
            found.add(ref)
            open_.extend(steps[ref].reads)
        return sorted(found)


def plan_stages(
    steps: Mapping[Ref, Step],
    inputs: Mapping[Ref, int],
    bounds: Sequence[int],
    count: int,
    outputs: Sequence[Ref],
) -> Stages:
    """Decide where operations are evaluated.

    Args:
        steps: operations that depend on arrays, in order.
        inputs: the arrays, with how many distinct values each has.
        bounds: the largest that an exact operation can become.
        count: how many points there are.
        outputs: what is asked for.
    """
    barred: set[Ref] = set()
    while True:
        of, keys = _assigned(steps, inputs, bounds, count, barred)
        used: dict[Key, int] = {}
        for key in of.values():
            used[key] = used.get(key, 0) + 1
        idle = {k for k in keys if used.get(k, 0) < _LEAST_STEPS}
        if not idle:
            break
        barred |= idle
    children: dict[Key, list[Ref]] = {}
    for key in sorted(keys):
        children.setdefault(of.get(key), []).append(key)
    stages = Stages(of, children, {})
    _export(stages, steps, None, list(dict.fromkeys(outputs)))
    return stages


def _assigned(
    steps: Mapping[Ref, Step], inputs: Mapping[Ref, int], bounds: Sequence[int], count: int, barred: set[Ref]
) -> tuple[dict[Ref, Key], set[Ref]]:
    """The key of each operation, and all keys."""
    sizes: dict[Ref, int] = {}
    through: dict[Ref, frozenset[Ref]] = {}
    for ref, distinct in inputs.items():
        own = distinct * _FEWER <= count and ref not in barred
        through[ref] = frozenset((ref,) if own else ())
        if own:
            sizes[ref] = distinct
    of: dict[Ref, Key] = {}
    for ref, step in steps.items():
        shared = frozenset.intersection(*(through[a] for a in step.reads))
        above = min((sizes[k] for k in shared), default=count)
        of[ref] = min(shared, key=sizes.__getitem__, default=None)
        if (
            step.exact
            and step.name in _QUOTIENTS
            and ref not in barred
            and (bounds[ref] + 1) * _FEWER <= above
        ):
            sizes[ref] = bounds[ref] + 1
            shared |= {ref}
        through[ref] = shared
    return of, set(sizes)


def _export(stages: Stages, steps: Mapping[Ref, Step], key: Key, wanted: list[Ref]) -> None:
    """Note what every key hands up so that ``wanted`` can be had under ``key``."""
    stages.exports[key] = wanted
    below = stages.children.get(key, [])
    asked: dict[Ref, list[Ref]] = {child: [] for child in below}
    for ref in [*wanted, *(a for r, k in stages.of.items() if k == key for a in steps[r].reads)]:
        at = stages.of.get(ref)
        while at is not None and at != key and stages.of.get(at) != key:
            at = stages.of.get(at)
        if at is not None and at != key and ref not in asked[at]:
            asked[at].append(ref)
    for child in below:
        _export(stages, steps, child, asked[child])
