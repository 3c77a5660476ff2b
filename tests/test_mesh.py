"""Groups of ranks become mesh axes and come back as the same ranks, for any order and subset of the axes."""

from __future__ import annotations

from itertools import combinations
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layoutcheck.errors import InputError
from layoutcheck.mesh import Group, Mesh, build_mesh
from layoutcheck.symbols import sym

Ranks = tuple[int, ...]


@st.composite
def grids(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    """Rank numbers on a grid: one to three axes of two to four, in row-major order."""
    sizes = draw(st.lists(st.sampled_from([2, 3, 4]), min_size=1, max_size=3))
    return np.arange(prod(sizes)).reshape(sizes)


def members(grid: np.ndarray[Any, Any], rank: int, axes: tuple[int, ...]) -> Ranks:
    """The ranks that differ from `rank` along these axes only."""
    at = [c[0] for c in np.nonzero(grid == rank)]
    inside = grid[tuple(slice(None) if i in axes else at[i] for i in range(grid.ndim))]
    return tuple(sorted(inside.reshape(-1).tolist()))


def subsets(n: int) -> list[tuple[int, ...]]:
    return [c for k in range(1, n + 1) for c in combinations(range(n), k)]


def ranks_of(mesh: Mesh, group: Group, rank: int) -> Ranks:
    """The ranks of a group by its mesh axes' sizes and strides, in the order of the axes."""
    found = np.zeros((), int)
    for index in group.axes:
        axis = mesh.axes[index]
        assert isinstance(axis.size, int) and axis.stride
        own = rank // axis.stride % axis.size
        found = np.add.outer(found, (np.arange(axis.size) - own) * axis.stride)
    return tuple((rank + found).reshape(-1).tolist())


@given(grids(), st.data())
def test_rank_lists_come_back(grid: np.ndarray[Any, Any], data: st.DataObject) -> None:
    """Whichever groups of a grid are named, in whatever order: each is a product of axes that spans just its ranks."""
    rank = data.draw(st.integers(0, grid.size - 1))
    chosen = data.draw(st.lists(st.sampled_from(subsets(grid.ndim)), min_size=1, unique=True))
    lists = [members(grid, rank, axes) for axes in chosen]
    mesh = build_mesh(data.draw(st.permutations(lists)), {}, rank=rank, world=grid.size)
    missing = min(axis.stride for axis in mesh.axes)  # ranks closer than all groups' strides have no axis
    assert prod(int(str(axis.size)) for axis in mesh.axes) * missing == grid.size
    for ranks in lists:
        group = mesh.by_ranks[ranks]
        assert group.size == len(ranks)
        assert ranks_of(mesh, group, rank) == ranks
        number = mesh.rank_in(group)
        assert number is not None and ranks[number] == rank
    # one axis is finer than any two groups: groups are equal just where their axes are
    for one, other in combinations(lists, 2):
        shared = set(mesh.by_ranks[one].axes) & set(mesh.by_ranks[other].axes)
        common = prod(int(str(mesh.size(a))) for a in shared)
        assert common == len(set(one) & set(other))


@given(grids(), st.data())
def test_the_order_of_lists_means_nothing(grid: np.ndarray[Any, Any], data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, grid.size - 1))
    chosen = data.draw(st.lists(st.sampled_from(subsets(grid.ndim)), min_size=1, unique=True))
    lists = [members(grid, rank, axes) for axes in chosen]
    mesh = build_mesh(lists, {}, rank=rank)
    other = build_mesh(data.draw(st.permutations(lists)) + lists[:1], {}, rank=rank)
    assert [(a.size, a.stride) for a in mesh.axes] == [(a.size, a.stride) for a in other.axes]
    assert {r: g.axes for r, g in mesh.by_ranks.items()} == {r: g.axes for r, g in other.by_ranks.items()}


@given(grids(), st.data())
def test_all_ranks_find_the_same_axes(grid: np.ndarray[Any, Any], data: st.DataObject) -> None:
    """Each rank's export names its own ranks; the axes are the same, and the coordinates tell the ranks apart."""
    chosen = data.draw(st.lists(st.sampled_from(subsets(grid.ndim)), min_size=1, unique=True))
    seen = set()
    shapes = set()
    for rank in range(grid.size):
        mesh = build_mesh([members(grid, rank, axes) for axes in chosen], {}, rank=rank, world=grid.size)
        shapes.add(tuple((a.size, a.stride) for a in mesh.axes))
        seen.add(tuple(mesh.coordinate(a.index) for a in mesh.axes))
    assert len(shapes) == 1
    missing = min(stride for _, stride in shapes.pop())
    assert len(seen) * missing == grid.size


@given(grids(), st.data())
def test_names_follow_their_lists(grid: np.ndarray[Any, Any], data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, grid.size - 1))
    named = {f"n{i}": members(grid, rank, axes) for i, axes in enumerate(subsets(grid.ndim))}
    mesh = build_mesh([], {}, rank=rank, named_lists=named)
    for name, ranks in named.items():
        assert ranks_of(mesh, mesh.groups[name], rank) == ranks
        assert mesh.group_name(mesh.groups[name].axes) == name
    assert set(mesh.names().values()) <= set(named)


def test_a_group_inside_another_leaves_a_quotient() -> None:
    mesh = build_mesh([(0, 1, 2, 3), tuple(range(32))], {}, aliases={"tp": 4, "ep": 32}, rank=6)
    assert [(a.name, a.size, a.stride) for a in mesh.axes] == [("tp", 4, 1), ("ep/tp", 8, 4)]
    assert mesh.groups["ep"].axes == (1, 0) and mesh.groups["tp"].axes == (0,)
    assert [mesh.coordinate(0), mesh.coordinate(1), mesh.rank_in(mesh.groups["ep"])] == [2, 1, 6]
    assert mesh.group_name([0, 1]) == "ep"


def test_groups_known_by_size_alone() -> None:
    """torch's names have no rank lists: each is an axis of its own, and a symbol may be a size."""
    p = sym("p")
    mesh = build_mesh([], {"tp": 4, "dp": p, "one": 1}, rank=5)
    assert [(a.name, a.size, a.stride) for a in mesh.axes] == [("tp", 4, 1), ("dp", p, 0)]
    assert mesh.groups["one"].axes == () and mesh.groups["one"].size == 1
    assert mesh.coordinate(0) == 1 and mesh.rank_in(mesh.groups["one"]) == 0
    opaque = build_mesh([], {"0": 4}, aliases={"tp": 4})
    assert opaque.groups["0"].name == "tp" and opaque.groups["tp"].axes == (0,)
    assert opaque.coordinate(0) is None and opaque.rank_in(opaque.groups["tp"]) is None


def test_axes_that_no_group_shares_are_the_quotient() -> None:
    """With tp named by its collectives and ep by dispatches alone, tokens differ over what ep adds."""
    tp, ep = (0, 1, 2, 3), tuple(range(8))
    mesh = build_mesh([tp, ep], {}, sharing=[tp])
    assert mesh.quotient == {1}
    assert build_mesh([tp, ep], {}, sharing=[tp, ep]).quotient == frozenset()


def test_a_group_of_one_rank_adds_no_axis() -> None:
    mesh = build_mesh([(3,), (0, 1, 2, 3)], {}, rank=3)
    assert set(mesh.by_ranks) == {(0, 1, 2, 3)} and [axis.size for axis in mesh.axes] == [4]
    assert build_mesh([(3,)], {}, rank=3).axes == []


@pytest.mark.parametrize(
    ("lists", "world", "message"),
    [
        ([(0, 1, 3)], None, "rank_group: ranks [0, 1, 3] ... do not form a regular grid"),
        ([(0, 1, 4, 6)], None, "rank_group: ranks [0, 1, 4, 6] ... do not form a regular grid"),
        ([(0, 2), (0, 3)], None, "rank_group: groups of strides 2 and 3 do not refine into a common grid"),
        ([(0, 1), (0, 1, 2)], None, "rank_group: groups of strides 2 and 3 do not refine into a common grid"),
    ],
)
def test_errors(lists: list[Ranks], world: int | None, message: str) -> None:
    with pytest.raises(InputError) as caught:
        build_mesh(lists, {}, world=world)
    assert str(caught.value) == message
