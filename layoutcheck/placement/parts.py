"""Parts of the group: mesh axes of it, over which weights are cut that have fewer pieces than the group has ranks.

With two key heads and four ranks, ranks 0 and 1 hold the first head and ranks 2 and 3 the second: the head is cut over the part of
the group whose ranks are two apart.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise
from string import ascii_lowercase

import attrs

from layoutcheck.graph import Graph
from layoutcheck.placement.base import Base


def with_parts(base: Base, counts: Collection[int]) -> Graph | None:
    """The graph with its group in parts, so that something may be cut into each of these numbers of pieces; None where that can't be.

    Parts are called after the group, the one whose ranks are farthest apart first (`tp_a`, `tp_b`).
    """
    group, mesh = base.tokens.group, base.analysis.mesh
    size = group.size
    if not isinstance(size, int) or len(group.axes) != 1:
        return None
    cuts = [1]
    for n in sorted(counts):
        if n > 1 and size % n == 0 and n % cuts[-1] == 0 and n < size:
            cuts.append(n)
    ranks = next((r for r, of in mesh.by_ranks.items() if of.axes == group.axes), None)
    if len(cuts) == 1 or (ranks is None and mesh.by_ranks):
        return None
    ranks = tuple(range(size)) if ranks is None else ranks
    graph = base.analysis.graph
    given = graph.config.get("groups")
    listed = {**(given if isinstance(given, dict) else {}), group.name: list(ranks)}
    for letter, (few, many) in zip(ascii_lowercase, pairwise((*cuts, size))):
        name = f"{group.name}_{letter}"
        if name in listed or name in mesh.groups:
            return None
        step = size // many
        listed[name] = [ranks[i * step] for i in range(many // few)]
    return attrs.evolve(graph, config={**graph.config, "groups": listed})
