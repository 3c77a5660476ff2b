"""What a whole program shows and no single call does: a group that nothing else runs over."""

from __future__ import annotations

from collections import Counter

from layoutcheck.infer.calls.call import Issue
from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.infer.solver.collectives import collectives_of
from layoutcheck.infer.solver.run import Key, Typing
from layoutcheck.mesh import Group
from layoutcheck.rules.kinds import GOING_UP


def _collectives(analysis: Analysis, typing: Typing) -> list[tuple[int, Key, Group]]:
    p, ctx = analysis.program, analysis.solution.runner.ctx
    found = collectives_of(p, typing.types, ctx, GOING_UP)
    return [(c.call, (p.op[c.call], *c.slots), c.group) for c in found]


def odd_groups(analysis: Analysis, typing: Typing) -> list[tuple[int, Key, Issue]]:
    """LC301 for a collective over part of the ranks over which everything like it runs.

    With sizes known (declared, or in the graph's configuration) a group of another size is odd; without, or where the size is that of
    a group of which the configuration lists the ranks, one that is used once or twice, inside a larger one that is used at least three
    times as often.
    """
    found = _collectives(analysis, typing)
    if not found:
        return []
    counts: Counter[tuple[int, ...]] = Counter(group.axes for _, _, group in found)
    if len(counts) < 2:
        return []
    sizes = _known_sizes(analysis)
    listed = _listed_sizes(analysis)
    out = _more_than_the_world(analysis, found, counts)
    for k, key, group in found:
        larger = [axes for axes in counts if set(axes) > set(group.axes)]
        if not larger:
            continue
        usual = max(larger, key=lambda axes: counts[axes])
        by_size = bool(sizes) and isinstance(group.size, int) and group.size not in sizes | listed
        by_use = (
            group.size not in sizes and counts[group.axes] <= 2 and counts[usual] >= 3 * counts[group.axes]
        )
        if by_size or by_use:
            ways = analysis.solution.runner.ctx.ways(usual)
            text = (
                f"runs over {group.size} of the {ways} ranks over which the other collectives run: "
                "the rest of the shards is left out"
            )
            out.append((k, key, Issue("LC301", text, (0,))))
    return out


def _more_than_the_world(
    analysis: Analysis, found: list[tuple[int, Key, Group]], counts: Counter[tuple[int, ...]]
) -> list[tuple[int, Key, Issue]]:
    """Groups known by name alone that can't be independent of each other: together they would need more ranks than there are."""
    world = analysis.graph.config.get("world_size")
    if not isinstance(world, int) or any(axis.stride > 1 for axis in analysis.mesh.axes):
        return []
    ranks = 1
    for axis in analysis.mesh.axes:
        if not isinstance(axis.size, int):
            return []
        ranks *= axis.size
    if ranks <= world:
        return []
    usual, most = counts.most_common(1)[0]
    out = []
    for k, key, group in found:
        if group.axes != usual and counts[group.axes] < most:
            text = f"runs over another group than the {most} collectives around it; there are no {ranks} ranks for both, only {world}"
            out.append((k, key, Issue("LC301", text, (0,))))
    return out


def _known_sizes(analysis: Analysis) -> set[int]:
    sizes = {g.size for g in analysis.declared_groups if isinstance(g.size, int)}
    for key, value in analysis.graph.config.items():
        if key.endswith("_size") and isinstance(value, int) and not isinstance(value, bool) and value > 1:
            sizes.add(value)
    return sizes


def _listed_sizes(analysis: Analysis) -> set[int]:
    """Sizes of groups of which the configuration lists the ranks: that they exist says nothing of which one a call should use."""
    groups = analysis.graph.config.get("groups")
    lists = groups.values() if isinstance(groups, dict) else ()
    return {len(ranks) for ranks in lists if isinstance(ranks, (list, tuple))}
