"""Which pieces of an axis ops take apart: what is packed in a weight is cut piece by piece, or not at all."""

from __future__ import annotations

from typing import Any

import pytest
from test_roles_models import analysed

from layoutcheck.domains import feature
from layoutcheck.json_form import graph_from_json
from layoutcheck.layouts import layout
from layoutcheck.placement.base import Base
from layoutcheck.placement.packed import Packing, Pieces, pieces_of


def taken(target: str, *args: tuple[Any, ...], ways: int = 2) -> Pieces | bool:
    """What the first call takes of an axis of 24 features that is cut among `ways`; each of `args` is one call on the same value."""
    nodes: list[dict[str, Any]] = [
        {
            "name": "x",
            "op": "placeholder",
            "target": "x",
            "args": [],
            "meta": {"shape": [4, 24], "dtype": "float32"},
        }
    ]
    for i, given in enumerate(args):
        listed = [list(a) if isinstance(a, tuple) else a for a in given]
        nodes.append(
            {"name": f"y{i}", "op": "call_function", "target": target, "args": [{"node": "x"}, *listed]}
        )
    nodes.append({"name": "output", "op": "output", "target": "output", "args": [[]]})
    graph = graph_from_json({"format": "layoutcheck-graph/1", "nodes": nodes})
    analysis = analysed(graph)
    p = analysis.program
    types: list[Any] = list(analysis.solution.typing.types)
    base = Base(analysis, None, list(range(p.n_values)), types, list(range(len(p.kind))))  # type: ignore[arg-type]
    cut = layout("float32", (types[0].axes[0], (feature(24 // ways).whole,)))
    return pieces_of(base, p.node_call["y0"], types[0], cut, ways)


CHUNK, SPLIT, SIZES = "aten.chunk.default", "aten.split.Tensor", "aten.split_with_sizes.default"
SLICE, NARROW, SELECT = "aten.slice.Tensor", "aten.narrow.default", "aten.select.int"


@pytest.mark.parametrize(
    ("target", "args", "expected"),
    [
        (CHUNK, [(2, -1)], Pieces((12, 12), {})),
        (CHUNK, [(2, 0)], True),
        (CHUNK, [(24, 1)], False),
        (SPLIT, [(8, 1)], Pieces((8, 8, 8), {"split_size": 4})),
        (SPLIT, [(9, 1)], False),
        (SIZES, [((12, 6, 6), 1)], Pieces((12, 6, 6), {"split_sizes": [6, 3, 3]})),
        (SIZES, [((13, 11), 1)], False),
        (SELECT, [(1, 0)], False),
        (NARROW, [(1, 16, 8)], Pieces((16, 8), {"start": 8, "length": 4})),
        (SLICE, [(1, 0, 16), (-1, 16, 20)], Pieces((16, 4, 4), {"start": 0, "end": 8})),
        (SLICE, [(1, 0, 16, 2)], False),
        (SLICE, [(1, 0, 15)], False),
        (SLICE, [(1, 0, 12), (1, 5, 24)], False),
        ("aten.relu.default", [()], True),
    ],
)
def test_pieces(target: str, args: list[tuple[Any, ...]], expected: Pieces | bool) -> None:
    found = taken(target, *args)
    if isinstance(found, Pieces):
        found = Pieces(
            found.sizes, {k: list(v) if isinstance(v, tuple) else v for k, v in found.params.items()}
        )
    assert found == expected


def test_orders_that_differ_do_not_meet() -> None:
    packing = Packing({1: frozenset((1,)), 2: frozenset((2,))})
    packing.join([1, 2], [3])
    assert packing.agrees()
    assert packing.pack(1, (4, 4)) and not packing.agrees()
    assert packing.pack(2, (8, 8)) and packing.agrees()
    assert not packing.pack(1, (2, 6))


def test_a_piece_does_not_meet_the_axis_that_it_is_of() -> None:
    packing = Packing({1: frozenset((1,))})
    packing.pack(1, (4, 4))
    packing.join([1], [2])
    packing.plain([2])
    packing.join([1, 2], [3])
    assert not packing.agrees()
