"""Reading torch's own objects in process: the same graph as the saved archive gives."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from layoutcheck.errors import InputError  # noqa: E402
from layoutcheck.graph import (  # noqa: E402
    Arg,
    DictArg,
    DtypeArg,
    Graph,
    InputSpec,
    Other,
    Ref,
    SymMeta,
    TensorMeta,
    refs_of,
)
from layoutcheck.json_form import save  # noqa: E402
from layoutcheck.readers import from_fx, load  # noqa: E402
from layoutcheck.readers.fx import target_name  # noqa: E402
from layoutcheck.symbols import cdiv, symbol_name  # noqa: E402


class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A linear layer, a conditional, several outputs, sizes computed from the input's."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.register_buffer("scale", torch.ones(8))
        self.table = torch.ones(3)

    def forward(self, x: Any, flag: bool = True) -> Any:
        left, right = torch.split(self.linear(x), 4, dim=-1)
        count = x.shape[0]
        picked = torch.cond(x.sum() > 0, lambda u: (u + 1,), lambda u: (u * 2,), (left,))[0]
        values, places = torch.topk(picked, 2)
        rows = torch.zeros((count + 3) // 4 * 4, min(count, 6), dtype=torch.bfloat16)
        masked = x.masked_fill(x > 0, -math.inf)
        return {
            "a": (values, places, rows),
            "b": right + self.scale[:4],
            "c": self.table * 2,
            "d": (count, masked),
        }


@pytest.fixture(scope="module")
def program() -> Any:
    """The model exported with a dynamic first axis."""
    dynamic = {"x": {0: torch.export.Dim("t", min=2)}, "flag": None}
    return torch.export.export(Model(), (torch.randn(6, 8),), {"flag": True}, dynamic_shapes=dynamic)


def _literals(arg: Arg, found: list[Arg]) -> list[Arg]:
    if isinstance(arg, tuple):
        for item in arg:
            _literals(item, found)
    elif not isinstance(arg, Ref):
        found.append(arg)
    return found


def same(a: Graph, b: Graph) -> None:
    """Equal up to whether an argument is positional or named."""
    assert [node.name for node in a.nodes] == [node.name for node in b.nodes]
    assert a.inputs == b.inputs
    for x, y in zip(a.nodes, b.nodes):
        assert (x.op, x.target, x.meta) == (y.op, y.target, y.meta), x.name
        if x.op == "call_function":
            assert (x.location, x.module, x.module_type) == (y.location, y.module, y.module_type), x.name
        assert list(x.refs()) == list(y.refs()), x.name
        args = [_literals((*node.args, *node.kwargs.values()), []) for node in (x, y)]
        # The archive spells out keyword defaults that the call left out, never the other way round.
        assert all(arg in args[0] for arg in args[1]), x.name
    assert a.subgraphs.keys() == b.subgraphs.keys()
    for name, graph in a.subgraphs.items():
        same(graph, b.subgraphs[name])


def test_an_exported_program_and_its_archive_are_the_same_graph(program: Any, tmp_path: Path) -> None:
    torch.export.save(program, tmp_path / "m.pt2")
    archived, direct = load(tmp_path / "m.pt2"), from_fx(program)
    same(archived, direct)
    assert archived.ranges == direct.ranges and archived.guards == direct.guards
    # The comparison sees what there is to see.
    assert {"true_graph_0", "false_graph_0"} == set(direct.subgraphs)
    assert -math.inf in direct.node("masked_fill").args


def test_sizes_and_dtypes_of_a_program(program: Any) -> None:
    graph = from_fx(program, rank=3)
    meta = graph.node("x").meta
    assert isinstance(meta, TensorMeta)
    tokens = meta.shape[0]
    name = symbol_name(tokens)
    assert name is not None and graph.ranges[name] == (2, None)
    zeros = graph.node("zeros")
    assert isinstance(zeros.meta, TensorMeta)
    assert zeros.meta.shape[0] == 4 * cdiv(tokens, 4) and zeros.meta.dtype == "bfloat16"
    assert zeros.kwargs["dtype"] == DtypeArg("bfloat16") and zeros.kwargs["device"] == Other("cpu")
    assert graph.node("add").target == "operator.add" and graph.node("add").meta == SymMeta(tokens + 3)
    assert graph.node("linear").module == "linear"
    assert graph.node("linear").module_type == "torch.nn.modules.linear.Linear"
    location = graph.node("linear").location
    assert location is not None and location.file.endswith("test_fx.py") and location.function == "forward"
    assert graph.rank == 3
    assert graph.inputs["p_linear_weight"] == InputSpec("parameter", "linear.weight")
    assert graph.inputs["flag"] == InputSpec("constant")


def test_a_program_can_be_saved_as_json(program: Any, tmp_path: Path) -> None:
    graph = from_fx(program)
    save(graph, tmp_path / "g.json.gz")
    assert load(tmp_path / "g.json.gz") == graph


def test_a_module_with_its_weights_as_attributes(program: Any) -> None:
    graph = from_fx(program.module())
    assert graph.inputs["linear_weight"] == InputSpec("parameter", "linear.weight")
    assert graph.inputs["scale"] == InputSpec("buffer", "scale")
    assert graph.inputs["table"] == InputSpec("constant", "table")
    assert graph.inputs["x"] == InputSpec("user_input")
    assert graph.node("linear_weight").meta == TensorMeta((8, 8), "float32")
    assert any(node.target == "aten.linear.default" for node in graph.nodes)
    assert list(graph.ranges.values()) == [(2, None)]


def test_a_graph_without_shapes() -> None:
    class Plain(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.LayerNorm(4)

        def forward(self, x: Any) -> Any:
            return self.norm(x)[:, 1:].view(-1).to(torch.float16), {"k": x + 1}

    graph = from_fx(torch.fx.symbolic_trace(Plain()))
    assert [node.target for node in graph.nodes] == [
        "x",
        "torch.nn.modules.normalization.LayerNorm",
        "operator.getitem",
        "torch.Tensor.view",
        "torch.Tensor.to",
        "operator.add",
        "output",
    ]
    assert all(node.meta is None for node in graph.nodes)
    whole = DictArg((("start", None), ("stop", None), ("step", None)))
    tail = DictArg((("start", 1), ("stop", None), ("step", None)))
    assert graph.nodes[2].args == (Ref("norm"), (whole, tail))
    assert list(refs_of(graph.output.args)) == ["to", "add"]
    assert graph.inputs["x"] == InputSpec("unknown")
    assert from_fx(torch.fx.symbolic_trace(Plain()).graph).nodes[0].name == "x"


def test_names_of_targets() -> None:
    assert target_name(torch.ops.aten.view.default) == "aten.view.default"
    assert target_name(torch.ops.aten.view) == "aten.view"
    assert target_name(torch.sym_max) == "torch.sym_max"
    assert target_name(torch.ops.higher_order.cond) == "cond"
    assert target_name(torch.ops.higher_order.auto_functionalized_v2) == "auto_functionalized_v2"
    assert target_name(math.ceil) == "math.ceil"


def test_operators_as_arguments_are_written_as_in_the_json_form() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    call = graph.call_function(
        torch.ops.higher_order.auto_functionalized_v2, (torch.ops.aten.add_.Tensor,), {"x": x}
    )
    graph.output((call,))
    read = from_fx(torch.fx.GraphModule({}, graph))
    assert read.nodes[1].args == (Other("<OpOverload(op='aten.add_', overload='Tensor')>"),)


def test_other_objects_are_refused() -> None:
    with pytest.raises(InputError, match="a int is neither"):
        from_fx(3)
