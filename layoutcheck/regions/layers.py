"""Numbers of layers in module paths and in the names of weights, which go on from one repeat of a body to the next.

A body is written with the paths of its first repeat, `model.layers.3.mlp`. A further repeat has them one layer on, or several where
a body is several layers long. By how much is said per prefix (`model.layers`): `fold` writes it down in `config["regions"]`, since
it has seen all repeats; where nothing is written the numbers in the body tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from layoutcheck.graph import Graph, Node
from layoutcheck.regions.markers import Region
from layoutcheck.regions.own import RECORD

LAYERS = "layers"
"""The key of a region's entry in the record."""

ODD = "odd"
"""The key of the paths that do not follow: by name of the node or input in the body, by number of the repeat."""
MOST_ODD = 4
"""Of the paths of one repeat one in so many need not follow."""

Steps = Mapping[str, int]
"""By how much the number behind a prefix grows from one repeat to the next."""
Where = tuple[tuple[int, int], ...]


def moved(path: str, shifts: Iterable[tuple[Steps, int]]) -> str:
    """A path of a written body in a further repeat.

    Args:
        path: the path in the written body.
        shifts: per region around it the steps, and the number of the repeat from 0.
    """
    parts = path.split(".")
    found: dict[int, int] = {}
    for steps, number in shifts:
        for prefix, step in steps.items():
            at = prefix.count(".") + 1 if prefix else 0
            if at < len(parts) and parts[at].isdecimal() and ".".join(parts[:at]) == prefix:
                found[at] = found.get(at, 0) + number * step
    for at, by in found.items():
        parts[at] = str(int(parts[at]) + by)
    return ".".join(parts)


class LayerPaths:
    """The paths of a graph's bodies in their repeats."""

    def __init__(self, graph: Graph, regions: Sequence[Region], own: Mapping[int, set[str]]) -> None:
        self._steps = layer_steps(graph, regions, own)
        self._odd = _odd_paths(graph, regions)
        self._known: dict[tuple[str, Where], str] = {}

    def moved(self, name: str, path: str | None, where: Where) -> str | None:
        """The path of a node or an input, written as `path`, in the repeats `where`.

        Args:
            name: its name in the written body.
            path: its path there.
            where: pairs of a region's id and the number of the repeat, outermost first.
        """
        for at in range(len(where) - 1, -1, -1) if name in self._odd else ():
            region, number = where[at]
            path = self._odd[name].get((region, number), path)
            if (region, number) in self._odd[name]:
                where = where[:at]
                break
        if not path:
            return path
        key = (path, where)
        found = self._known.get(key)
        if found is None:
            shifts = [(self._steps.get(region, {}), number) for region, number in where if number]
            found = self._known[key] = moved(path, shifts)
        return found


def _odd_paths(graph: Graph, regions: Sequence[Region]) -> dict[str, dict[tuple[int, int], str | None]]:
    """What is written down of paths that do not follow, by name."""
    record = graph.config.get(RECORD)
    found: dict[str, dict[tuple[int, int], str | None]] = {}
    if not isinstance(record, dict):
        return found
    for region in regions:
        entry = record.get(str(region.id))
        written = entry.get(ODD) if isinstance(entry, dict) else None
        for name, paths in written.items() if isinstance(written, dict) else ():
            for number, path in paths.items() if isinstance(paths, dict) else ():
                if str(number).isdecimal() and (path is None or isinstance(path, str)):
                    found.setdefault(name, {})[region.id, int(number)] = path
    return found


def layer_steps(graph: Graph, regions: Sequence[Region], own: Mapping[int, set[str]]) -> dict[int, Steps]:
    """The steps of each region: as written down, else from the numbers in its body."""
    record = graph.config.get(RECORD)
    record = record if isinstance(record, dict) else {}
    found: dict[int, Steps] = {}
    markers = {i for r in regions for i in (*r.begins, *r.ends, *(c for round_ in r.copies for c in round_))}
    # the inner ones first: a body is as many layers long as all of them together
    for region in sorted(regions, key=lambda r: r.ends[-1] - r.begins[0]):
        entry = record.get(str(region.id))
        written = entry.get(LAYERS) if isinstance(entry, dict) else None
        if isinstance(written, dict):
            found[region.id] = {
                p: n for p, n in written.items() if isinstance(p, str) and type(n) is int and abs(n) < 1 << 31
            }
        else:
            inner = [r for r in regions if r.parent == region.id]
            body = [graph.nodes[i] for i in range(region.begins[0], region.ends[-1]) if i not in markers]
            found[region.id] = _counted(graph, body, inner, own.get(region.id, set()), found)
    return found


def _counted(
    graph: Graph, body: list[Node], inner: list[Region], own: set[str], known: Mapping[int, Steps]
) -> Steps:
    """Steps by the layers that a written body has parts of; none where no path has a number."""
    modules = [node.module for node in body if node.module]
    names = [spec.fqn for name in own if (spec := graph.inputs.get(name)) is not None and spec.fqn]
    prefixes = Counter(found[0] for path in (modules or names) if (found := _numbered(path)) is not None)
    if not prefixes:
        return {}
    main = prefixes.most_common(1)[0][0]
    parts: dict[int, set[str]] = {}
    for path in modules or names:
        found = _numbered(path)
        if found is not None and found[0] == main:
            parts.setdefault(found[1], set()).add(found[2])
    first, last = parts[min(parts)] - {""}, parts[max(parts)] - {""}
    count = len(parts)
    if count > 1 and first and last and not first & last:
        count -= 1  # it begins in the middle of a layer and ends in the middle of another
    for one in inner:
        count += (one.repeats - 1) * known[one.id].get(main, 0)
    every = {found[0] for path in (*modules, *names) if (found := _numbered(path)) is not None}
    return dict.fromkeys(sorted(every), count)


def _numbered(path: str) -> tuple[str, int, str] | None:
    """What stands before the first number of a path, the number, and the part behind it."""
    parts = path.split(".")
    at = next((i for i, part in enumerate(parts) if part.isdecimal() and len(part) < 10), None)
    if at is None:
        return None
    return ".".join(parts[:at]), int(parts[at]), parts[at + 1] if at + 1 < len(parts) else ""


@attrs.frozen
class Numbering:
    """How the paths of repeats follow from those of the first one.

    Attributes:
        steps: by how much the number behind each prefix grows.
        odd: the paths that do not follow, by the number of the repeat and the place: what is read behind the last layer may be
            of no layer. There are few of them; where many would not follow there are no steps.
    """

    steps: Steps
    odd: Mapping[tuple[int, int], str | None]


def numbering(repeats: Sequence[Sequence[str | None]]) -> Numbering:
    """The numbering of repeats.

    Args:
        repeats: the paths of each repeat, in one order.
    """
    seen: dict[str, Counter[int]] = {}
    for prefix, by in differences(zip(repeats[0], repeats[1])):
        seen.setdefault(prefix, Counter())[by] += 1
    steps = {prefix: counts.most_common(1)[0][0] for prefix, counts in seen.items()}
    known: dict[tuple[str, int], str] = {}
    odd: dict[tuple[int, int], str | None] = {}
    for number, paths in enumerate(repeats):
        for at, (one, other) in enumerate(zip(repeats[0], paths)):
            wanted = one
            if one:
                key = (one, number)
                wanted = known.get(key)
                if wanted is None:
                    wanted = known[key] = moved(one, [(steps, number)])
            if wanted != other:
                odd[number, at] = other
                if len(odd) > len(repeats[0]) // MOST_ODD:
                    return Numbering({}, {})
    return Numbering(steps, odd)


def differences(pairs: Iterable[tuple[str | None, str | None]]) -> Iterator[tuple[str, int]]:
    """Per pair of paths that differ in one number, what stands before it and by how much it differs."""
    for one, other in dict.fromkeys(pairs):
        if not one or not other or one == other:
            continue
        a, b = one.split("."), other.split(".")
        at = [i for i, (x, y) in enumerate(zip(a, b)) if x != y]
        if len(a) == len(b) and len(at) == 1 and a[at[0]].isdecimal() and b[at[0]].isdecimal():
            yield ".".join(a[: at[0]]), int(b[at[0]]) - int(a[at[0]])


def made_room(graph: Graph, region: Region, steps: Steps, more: int) -> dict[str, tuple[int, int]]:
    """Which numbers move where a region gets `more` repeats (fewer where it is negative): per prefix the first one, and by how much.

    These are the layers behind it, where they are numbered on from it.
    """
    body = graph.nodes[region.begins[0] + 1 : region.ends[-1]]
    found: dict[str, tuple[int, int]] = {}
    for prefix, step in steps.items():
        numbers = [
            n[1]
            for node in body
            if node.module and (n := _numbered(node.module)) is not None and n[0] == prefix
        ]
        if numbers and step:
            found[prefix] = (min(numbers) + region.repeats * step, more * step)
    return found


def with_room(path: str | None, room: Sequence[Mapping[str, tuple[int, int]]]) -> str | None:
    """A path with its layer's number moved on, where it lies behind regions that have other numbers of repeats."""
    found = _numbered(path) if path else None
    if path is None or found is None:
        return path
    prefix, number, _ = found
    by = sum(shift[prefix][1] for shift in room if prefix in shift and number >= shift[prefix][0])
    return moved(path, [({prefix: by}, 1)]) if by else path


def without_steps(record: Any, regions: Sequence[Region], changed: Iterable[int]) -> Any:
    """The record without the steps of regions around those that have other numbers of repeats: they are longer or shorter now."""
    if not isinstance(record, dict):
        return record
    parents = {r.id: r.parent for r in regions}
    stale: set[int] = set()
    for region in changed:
        at = parents.get(region)
        while at is not None:
            stale.add(at)
            at = parents.get(at)
    return {
        key: {k: v for k, v in entry.items() if k not in (LAYERS, ODD)}
        if isinstance(entry, dict) and any(key == str(region) for region in stale)
        else entry
        for key, entry in record.items()
    }
