"""Writing into a tensor changes what views of it hold, whether they were taken before or after; a copy keeps what it held.

Law: the same view taken before and after a write has one type, and the same findings where it is read.
"""

from __future__ import annotations

from typing import Any

import pytest
from support import engine

from layoutcheck.graph import Graph, Node, Ref, TensorMeta
from layoutcheck.infer.solver.analysis import analyse

P = 4
Step = tuple[Any, ...]
BUFFER: list[Step] = [("b", "aten.mul.Tensor", Ref("f"), 2.0)]

VIEWS: dict[str, list[Step]] = {
    "slice": [("y", "aten.slice.Tensor", Ref("b"), 0, 2, 6)],
    "view": [("y", "aten.view.default", Ref("b"), (48,))],
    "permute": [("y", "aten.permute.default", Ref("b"), (1, 0))],
    "unsqueeze": [("y", "aten.unsqueeze.default", Ref("b"), 0)],
    "reshape": [("y", "aten.reshape.default", Ref("b"), (16, 3))],
    "piece": [
        ("s", "aten.split.Tensor", Ref("b"), 4, 0),
        ("y", "operator.getitem", Ref("s"), 1),
    ],
    "view of a view": [
        ("v", "aten.permute.default", Ref("b"), (1, 0)),
        ("y", "aten.slice.Tensor", Ref("v"), 0, 1, 3),
    ],
}
WRITES: dict[str, list[Step]] = {
    "copy": [("w", "aten.copy_.default", Ref("b"), Ref("x"))],
    "add": [("w", "aten.add_.Tensor", Ref("b"), Ref("x"))],
    "through a view": [
        ("o", "aten.view.default", Ref("b"), (8, 2, 3)),
        ("ox", "aten.view.default", Ref("x"), (8, 2, 3)),
        ("w", "aten.copy_.default", Ref("o"), Ref("ox")),
    ],
    "what an in-place op gave back": [
        ("o", "aten.add_.Tensor", Ref("b"), 1.0),
        ("w", "aten.copy_.default", Ref("o"), Ref("x")),
    ],
}
REDUCTIONS: dict[str, list[Step]] = {
    "functional": [("r", "_c10d_functional.all_reduce_.default", Ref("b"), "sum", "tp")],
    "eager": [("r", "c10d.allreduce_.default", (Ref("b"),), "tp", "sum", None)],
}


def graph(steps: list[Step], out: str = "z", rank: int = 0) -> Graph:
    """A whole f and a pending sum x, both [8, 6]; the result is read."""
    nodes = [
        Node("f", "placeholder", "f", meta=TensorMeta((8, 6), "float32", "[T, 6]")),
        Node("x", "placeholder", "x", meta=TensorMeta((8, 6), "float32", "[T, 6] +tp")),
    ]
    nodes += [Node(name, "call_function", target, tuple(args)) for name, target, *args in steps]
    nodes.append(Node("output", "output", "output", ((Ref(out),),)))
    config = {"groups": {"tp": list(range(P))}, "tp_size": P, "world_size": P}
    return Graph(nodes, rank=rank, config=config)


READ: list[Step] = [("z", "aten.silu.default", Ref("y"))]


def type_of(g: Graph, name: str) -> Any:
    analysis = analyse(g)
    return analysis.solution.typing.types[analysis.program.by_name[name]]


def agree(steps: list[Step]) -> bool:
    """Whether the ranks compute what one device does."""
    pytest.importorskip("torch")
    from layoutcheck.ranks.verify import verify

    return verify(analyse(graph(steps)), graphs=[graph(steps, rank=r) for r in range(P)]).equal


def codes(steps: list[Step]) -> list[str]:
    return [engine.code(f) for f in engine.errors(engine.check(graph(steps)))]


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_taken_before_a_write_is_one_taken_after_it(view: str, write: str) -> None:
    before = [*BUFFER, *VIEWS[view], *WRITES[write], *READ]
    after = [*BUFFER, *WRITES[write], *VIEWS[view], *READ]
    assert type_of(graph(before), "y") is type_of(graph(after), "y")
    assert codes(before) == codes(after) == ["LC201"]
    assert not agree(before)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_of_what_is_reduced_in_place_is_complete(view: str, reduction: str) -> None:
    start: list[Step] = [("b", "aten.mul.Tensor", Ref("x"), 2.0)]
    steps = [*start, *VIEWS[view], *REDUCTIONS[reduction], *READ]
    assert type_of(graph(steps), "y").partial == ()
    assert codes(steps) == []
    assert agree(steps)


@pytest.mark.parametrize("view", VIEWS)
def test_reducing_a_view_of_what_was_reduced_is_one_too_many(view: str) -> None:
    start: list[Step] = [("b", "aten.mul.Tensor", Ref("x"), 2.0)]
    again: Step = ("z", "tensor_cast.all_reduce.default", Ref("y"), 0, tuple(range(P)))
    assert codes([*start, *VIEWS[view], *REDUCTIONS["functional"], again]) == ["LC202"]


COPIES: dict[str, list[Step]] = {
    "clone": [("y", "aten.clone.default", Ref("b"))],
    "clone of a view": [
        ("v", "aten.view.default", Ref("b"), (48,)),
        ("y", "aten.clone.default", Ref("v")),
    ],
    "reshape that cannot be a view": [
        ("v", "aten.permute.default", Ref("b"), (1, 0)),
        ("y", "aten.reshape.default", Ref("v"), (48,)),
    ],
    "contiguous of a permuted tensor": [
        ("v", "aten.permute.default", Ref("b"), (1, 0)),
        ("y", "aten.contiguous.default", Ref("v")),
    ],
}


@pytest.mark.parametrize("copy", COPIES)
def test_a_copy_keeps_what_it_held(copy: str) -> None:
    steps = [*BUFFER, *COPIES[copy], *WRITES["copy"], *READ]
    assert codes(steps) == []
    assert agree(steps)


@pytest.mark.parametrize("copy", COPIES)
def test_writing_into_a_copy_changes_no_original(copy: str) -> None:
    fill: list[Step] = [
        ("like", "aten.mul.Tensor", Ref("x"), 1.0),
        ("px", "aten.permute.default", Ref("x"), (1, 0)),
    ]
    shapes = {
        "clone": Ref("x"),
        "clone of a view": Ref("lx"),
        "reshape that cannot be a view": Ref("rx"),
        "contiguous of a permuted tensor": Ref("px"),
    }
    fill += [
        ("lx", "aten.view.default", Ref("x"), (48,)),
        ("rx", "aten.reshape.default", Ref("px"), (48,)),
    ]
    steps = [*BUFFER, *fill, *COPIES[copy], ("w", "aten.copy_.default", Ref("y"), shapes[copy])]
    steps.append(("z", "aten.silu.default", Ref("b")))
    assert codes(steps) == []
    assert agree(steps)


BESIDE: dict[str, list[Step]] = {
    "pieces": [
        ("s", "aten.split.Tensor", Ref("b"), 4, 0),
        ("u", "operator.getitem", Ref("s"), 0),
        ("y", "operator.getitem", Ref("s"), 1),
    ],
    "slices": [
        ("u", "aten.slice.Tensor", Ref("b"), 0, 0, 4),
        ("y", "aten.slice.Tensor", Ref("b"), 0, 4, 8),
    ],
}


@pytest.mark.parametrize("kind", BESIDE)
def test_what_lies_beside_a_written_part_keeps_what_it_held(kind: str) -> None:
    part: list[Step] = [
        ("sx", "aten.split.Tensor", Ref("x"), 4, 0),
        ("px", "operator.getitem", Ref("sx"), 0),
    ]
    if kind == "slices":
        part = [("px", "aten.slice.Tensor", Ref("x"), 0, 0, 4)]
    write: Step = ("w", "aten.copy_.default", Ref("u"), Ref("px"))
    steps = [*BUFFER, *BESIDE[kind], *part, write, *READ]
    assert codes(steps) == []
    assert agree(steps)


def test_overlapping_slices_are_written_together() -> None:
    steps: list[Step] = [
        *BUFFER,
        ("u", "aten.slice.Tensor", Ref("b"), 0, 0, 4),
        ("y", "aten.slice.Tensor", Ref("b"), 0, 3, 7),
        ("sx", "aten.slice.Tensor", Ref("x"), 0, 0, 4),
        ("w", "aten.copy_.default", Ref("u"), Ref("sx")),
        *READ,
    ]
    assert codes(steps) == ["LC201"]
    assert not agree(steps)
