"""Groups of ranks, refined into independent mesh axes.

Every group that a graph names is a set of ranks. All of them together are refined into mesh axes such that each group is a
product of axes: with `tp = [0..3]` and `ep = [0..31]` the axes are `tp` (4 ranks, 1 apart) and its quotient in ep (8 ranks, 4
apart). A layout has one state per mesh axis.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import attrs

from layoutcheck.errors import InputError
from layoutcheck.symbols import Size

MAX_RANKS = 1 << 20


@attrs.frozen
class MeshAxis:
    """`size` ranks, `stride` apart in the global numbering; `stride` is 0 where rank numbers are not known."""

    index: int
    name: str
    size: Size
    stride: int


@attrs.frozen
class Group:
    """A communication group: mesh axes, major to minor. An empty tuple is the group of one rank."""

    name: str
    axes: tuple[int, ...]
    size: Size


@attrs.define
class Mesh:
    """All mesh axes of a program and the groups over them."""

    axes: list[MeshAxis]
    groups: dict[str, Group]
    by_ranks: dict[tuple[int, ...], Group]
    rank: int | None = None
    quotient: frozenset[int] = frozenset()

    def names(self) -> dict[int, str]:
        """Printed name per mesh axis."""
        return {a.index: a.name for a in self.axes}

    def size(self, axis: int) -> Size:
        """Number of ranks along a mesh axis."""
        return self.axes[axis].size

    def coordinate(self, axis: int) -> int | None:
        """This rank's coordinate along a mesh axis, None where the rank is not known."""
        found = self.axes[axis]
        if self.rank is None:
            return None
        if found.stride == 0:
            return self.rank % found.size if isinstance(found.size, int) else self.rank
        return (
            (self.rank // found.stride) % found.size
            if isinstance(found.size, int)
            else self.rank // found.stride
        )

    def rank_in(self, group: Group) -> int | None:
        """This rank's number in a group, counted over its axes major to minor."""
        number = 0
        for axis in group.axes:
            at, size = self.coordinate(axis), self.size(axis)
            if at is None:
                return None
            if not isinstance(size, int):
                return at if len(group.axes) == 1 else None
            number = number * size + at
        return number

    def group_name(self, axes: Iterable[int]) -> str:
        """The name of the group with these axes, or their names joined."""
        wanted = set(axes)
        for group in self.groups.values():
            if set(group.axes) == wanted:
                return group.name
        return "*".join(self.axes[a].name for a in sorted(wanted, reverse=True))


def _lattice(ranks: Sequence[int], where: str) -> list[tuple[int, int]]:
    """The (stride, size) digits of a sorted rank list that is a regular lattice, minor first."""
    digits: list[tuple[int, int]] = []
    rest = [r - ranks[0] for r in ranks]
    while len(rest) > 1:
        step = rest[1]
        count = 1
        while count < len(rest) and rest[count] == step * count:
            count += 1
        if len(rest) % count or any(
            rest[i] - rest[i - i % count] != step * (i % count) for i in range(len(rest))
        ):
            raise InputError(f"ranks {list(ranks)[:8]} ... do not form a regular grid", where)
        digits.append((step, count))
        rest = rest[::count]
    return digits


def _cuts(strides: set[int], where: str) -> list[int]:
    ordered = sorted(strides)
    for small, large in pairwise(ordered):
        if large % small:
            raise InputError(f"groups of strides {small} and {large} do not refine into a common grid", where)
    return ordered


def build_mesh(
    rank_lists: Iterable[tuple[int, ...]],
    named_sizes: dict[str, Size],
    *,
    aliases: dict[str, Size] | None = None,
    rank: int | None = None,
    world: int | None = None,
    sharing: Iterable[tuple[int, ...]] = (),
    named_lists: dict[str, tuple[int, ...]] | None = None,
) -> Mesh:
    """Refine groups into mesh axes.

    Args:
        rank_lists: groups given by their ranks.
        named_sizes: groups given by name and size only (torch's group names); each is an axis of its own
            unless an alias of the same size names a group given by ranks.
        aliases: printed names, as in `{"tp": 16}`.
        rank: the exporting rank.
        world: number of ranks altogether; adds a quotient axis where the groups do not reach it.
        sharing: the groups whose ranks work on the same tokens (all_reduce, all_gather, reduce_scatter); axes outside
            of them carry different tokens (data parallelism).
        named_lists: names for groups given by ranks.

    Raises:
        InputError: ranks that form no regular grid, or too many of them.
    """
    lists = sorted(
        {tuple(sorted(r)) for r in rank_lists if len(r) > 1}
        | {tuple(sorted(r)) for r in (named_lists or {}).values() if len(r) > 1}
    )
    if any(len(r) > MAX_RANKS for r in lists) or len(lists) > 4096:
        raise InputError(f"more than {MAX_RANKS} ranks in a group", "rank_group")
    digits = {r: _lattice(r, "rank_group") for r in lists}
    strides: set[int] = set()
    for found in digits.values():
        for stride, count in found:
            strides.update((stride, stride * count))
    if world is not None and world > 1 and strides and all(world % s == 0 for s in strides):
        # A world that the groups do not divide is left out rather than guessed at.
        strides.add(world)
    cuts = _cuts(strides, "rank_group")
    axes: list[MeshAxis] = []
    for low, high in pairwise(cuts):
        covered = any(s <= low and high <= s * c for found in digits.values() for s, c in found)
        if covered or (world is not None and high <= world):
            axes.append(MeshAxis(len(axes), "", high // low, low))

    def spanned(found: list[tuple[int, int]]) -> tuple[int, ...]:
        inside = [a for a in axes for s, c in found if s <= a.stride and a.stride * _number(a.size) <= s * c]
        return tuple(a.index for a in sorted(inside, key=lambda a: -a.stride))

    by_ranks = {r: spanned(found) for r, found in digits.items()}
    groups: dict[str, Group] = {}
    taken: dict[tuple[int, ...], str] = {}

    def add(name: str, members: tuple[int, ...]) -> None:
        size: Size = 1
        for a in members:
            size = size * axes[a].size
        groups[name] = Group(name, members, size)
        taken.setdefault(members, name)

    for name, ranks in (named_lists or {}).items():
        add(name, by_ranks.get(tuple(sorted(ranks)), ()))
    for name, size in (aliases or {}).items():
        if size == 1 or name in groups:
            continue
        for members in sorted(set(by_ranks.values()), key=lambda m: (m in taken, len(m), m)):
            if members not in taken and _product(axes, members) == size:
                add(name, members)
                break
    for name, size in named_sizes.items():
        if name in groups:
            continue
        if size == 1:
            groups[name] = Group(name, (), 1)
            continue
        shown = name
        alias = next((a for a, s in (aliases or {}).items() if s == size and a not in groups), None)
        if name.isdigit():
            shown = alias or ("tp" if not axes else f"group{name}")
        axes.append(MeshAxis(len(axes), shown, size, 1 if not any(a.stride for a in axes) else 0))
        groups[name] = Group(shown, (axes[-1].index,), size)
        if shown != name:
            groups.setdefault(shown, groups[name])
        taken.setdefault((axes[-1].index,), shown)
    for name, size in (aliases or {}).items():
        if name not in groups and size != 1 and not by_ranks:
            axes.append(MeshAxis(len(axes), name, size, 1 if not any(a.stride for a in axes) else 0))
            add(name, (axes[-1].index,))
    _name_axes(axes, taken, set(by_ranks.values()))
    for members in set(by_ranks.values()):
        if members not in taken:
            add("*".join(axes[a].name for a in members) or "self", members)
    shared = {a for r in sharing for a in by_ranks.get(tuple(sorted(r)), ())}
    quotient = (
        frozenset(a.index for a in axes if a.stride and a.index not in shared)
        if shared and by_ranks
        else frozenset()
    )
    ranked = {r: Group(taken.get(m, "group"), m, _product(axes, m)) for r, m in by_ranks.items()}
    return Mesh(axes, groups, ranked, rank, quotient)


def _number(size: Size) -> int:
    """A size that came from ranks, so a number."""
    assert isinstance(size, int)
    return size


def _product(axes: list[MeshAxis], members: tuple[int, ...]) -> Size:
    size: Size = 1
    for a in members:
        size = size * axes[a].size
    return size


def _name_axes(axes: list[MeshAxis], taken: dict[tuple[int, ...], str], used: set[tuple[int, ...]]) -> None:
    for i, axis in enumerate(axes):
        if axis.name:
            continue
        name = taken.get((i,))
        if name is None:
            holder = next((n for members, n in taken.items() if i in members and len(members) > 1), None)
            if holder is not None and all(
                m in {k[0] for k in taken if len(k) == 1} for m in _others(taken, holder, i)
            ):
                name = f"{holder}/{'*'.join(taken[(m,)] for m in _others(taken, holder, i))}"
        if name is None:
            free = [
                n
                for n in ("tp", "dp", "cp", "ep")
                if n not in taken.values() and n not in {a.name for a in axes}
            ]
            name = free[0] if free and axis.stride == 1 else f"g{axis.size}x{axis.stride}"
        axes[i] = MeshAxis(i, name, axis.size, axis.stride)
        taken.setdefault((i,), name)


def _others(taken: dict[tuple[int, ...], str], holder: str, axis: int) -> list[int]:
    members = next(m for m, n in taken.items() if n == holder)
    return [m for m in members if m != axis]
