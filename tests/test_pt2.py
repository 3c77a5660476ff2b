"""Reading torch.export archives by their JSON alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fuzz_documents import archive, dump, json_document, pt2_document

from layoutcheck.graph import (
    DictArg,
    DtypeArg,
    Graph,
    InputSpec,
    Location,
    Node,
    Other,
    Ref,
    SymMeta,
    TensorMeta,
)
from layoutcheck.json_form import save
from layoutcheck.readers import load
from layoutcheck.readers.pt2_graph import program_from_json
from layoutcheck.readers.pt2_values import parse_trace
from layoutcheck.symbols import cdiv, sym

T = sym("s77")


def graph() -> Graph:
    """The graph of the small archive."""
    return program_from_json(pt2_document())


def test_order_and_shape_of_the_graph() -> None:
    read = graph()
    assert [node.name for node in read.nodes] == [
        *("p_w", "b_c", "x", "use_cache", "n", "add_3", "mul", "linear", "split", "left", "right", "flag"),
        *("true_graph_0", "false_graph_0", "cond", "picked", "topk", "values", "places", "ones", "odd"),
        *("check", "output"),
    ]
    assert read.node("output").args == ((Ref("values"), Ref("ones"), Ref("odd"), Ref("add_3")),)
    assert read.source == "torch.export 2.13.0"
    assert read.ranges == {"s77": (2, None)}
    assert read.guards == ("L['x'].size()[0] >= 2",)


def test_arguments_carry_their_schema_names() -> None:
    assert graph().node("linear") == Node(
        name="linear",
        op="call_function",
        target="aten.linear.default",
        kwargs={"input": Ref("x"), "weight": Ref("p_w")},
        meta=TensorMeta((T, 8), "float32"),
        location=Location("model.py", 7, "forward"),
        module="layers.0",
        module_type="__main__.Layer",
    )


def test_every_kind_of_argument() -> None:
    assert graph().node("ones").kwargs == {
        "size": (Ref("mul"), 8),
        "dtype": DtypeArg("bfloat16"),
        "layout": Other("torch.strided"),
        "device": Other("cuda:0"),
        "pin_memory": False,
        "memory_format": Other("torch.contiguous_format"),
    }
    assert graph().node("odd").kwargs == {
        "x": Ref("b_c"),
        "indices": (None, Ref("left")),
        "scale": float("-inf"),
        "mode": "sum",
        "dims": (0, 1),
        "mask": (True, False),
        "none": None,
        "op": Other("<OpOverload(op='demo.inner', overload='default')>"),
        "maybe": Ref("left"),
        "nested": ((Ref("left"),), ()),
        "floats": (0.5, 1.0),
        "table": DictArg((("k", 1),)),
    }


def test_sizes_and_the_nodes_that_yield_them() -> None:
    read = graph()
    assert read.node("n").meta == SymMeta(T)
    assert read.node("add_3") == Node(
        "add_3",
        "call_function",
        "operator.add",
        (),
        {"a": Ref("n"), "b": 3},
        SymMeta(T + 3),
        read.node("n").location,
        "layers.0",
        "__main__.Layer",
    )
    assert read.node("mul").target == "torch.sym_max"
    assert read.node("ones").meta == TensorMeta((4 * cdiv(T, 4), 8), "bfloat16")
    assert read.node("flag").meta == TensorMeta((), "bool")


def test_several_outputs_become_getitem_nodes() -> None:
    read = graph()
    half = TensorMeta((T, 4), "float32")
    assert read.node("split").meta == (half, half)
    assert read.node("right").target == "operator.getitem"
    assert read.node("right").args == (Ref("split"), 1)
    assert read.node("right").meta == half
    assert read.node("right").location == read.node("split").location
    # One output each, the last of them None.
    assert read.node("places").args == (Ref("topk"), 1)
    assert read.node("topk").meta == (TensorMeta((T, 2), "float32"), TensorMeta((T, 2), "int64"), None)
    assert read.node("check").meta is None


def test_subgraphs_of_higher_order_ops() -> None:
    read = graph()
    assert read.node("cond").target == "cond"
    assert read.node("cond").args == (
        Ref("flag"),
        Ref("true_graph_0"),
        Ref("false_graph_0"),
        (Ref("left"),),
    )
    assert read.node("true_graph_0").op == "get_attr"
    body = read.subgraphs["true_graph_0"]
    assert [node.name for node in body.nodes] == ["u", "add", "output"]
    assert body.node("add").kwargs == {"self": Ref("u"), "other": 1}
    assert body.node("add").meta == TensorMeta((T, 4), "float32")


def test_names_of_weights_and_kinds_of_inputs() -> None:
    assert graph().inputs == {
        "p_w": InputSpec("parameter", "layers.0.w"),
        "b_c": InputSpec("buffer", "c"),
        "x": InputSpec("user_input"),
        "use_cache": InputSpec("constant"),
    }


def _calls(document: dict[str, Any]) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = document["graph_module"]["graph"]["nodes"]
    return calls


def test_one_output_of_a_higher_order_op() -> None:
    document = pt2_document()
    for flag, name in ((True, "picked"), (False, "cond")):
        cond = _calls(document)[6]
        cond["outputs"] = [{"as_tensor": {"name": "picked"}}]
        cond["is_hop_single_tensor_return"] = flag
        read = program_from_json(document)
        assert read.node(name).target == "cond"
        assert read.node("picked").target == ("cond" if flag else "operator.getitem")


def test_outputs_within_outputs() -> None:
    document = pt2_document()
    _calls(document)[4]["outputs"].append({"as_tensor": {"name": "third"}})
    read = program_from_json(document)
    assert read.node("split_0").args == (Ref("split"), 0)
    assert read.node("left").args == (Ref("split_0"), 0)
    assert read.node("third").args == (Ref("split"), 1)
    assert read.node("split").meta == (read.node("split_0").meta, None)


def test_calls_without_names_as_older_exports_write_them() -> None:
    document = pt2_document()
    for call in _calls(document):
        del call["name"]
    read = program_from_json(document)
    assert read.node("linear").target == "aten.linear.default"
    assert read.node("left").args == (Ref("split"), 0)
    assert read.node("_assert_scalar").target == "aten._assert_scalar.default"


def test_names_never_collide() -> None:
    document = pt2_document()
    calls = _calls(document)
    calls[-1]["name"] = "output"
    del calls[4]["name"]
    calls[9]["name"] = "odd"
    calls[9]["outputs"] = [{"as_tensor": {"name": "split"}}]
    document["graph_module"]["graph"]["outputs"][2]["as_tensor"]["name"] = "split"
    document["graph_module"]["graph"]["tensor_values"]["split"] = document["graph_module"]["graph"][
        "tensor_values"
    ].pop("odd")
    read = program_from_json(document)
    assert read.node("left").args == (Ref("split_1"), 0)
    assert read.node("output").target == "aten._assert_scalar.default"
    assert read.output.name == "output_1"


def test_unions_that_spell_out_their_empty_members() -> None:
    document = pt2_document()
    argument = _calls(document)[3]["inputs"][0]["arg"]
    argument.clear()
    argument.update({"as_none": None, "as_int": None, "as_tensor": {"name": "x"}})
    assert program_from_json(document).node("linear").kwargs["input"] == Ref("x")


def test_sentinels_of_infinity_are_no_bounds() -> None:
    document = pt2_document()
    document["range_constraints"] = {"s77": {"min_val": -(2**63), "max_val": 2**63 - 1}}
    assert program_from_json(document).ranges == {"s77": (None, None)}


def test_the_innermost_frame_of_the_user() -> None:
    trace = """
  File "torch/_dynamo/functional_export.py", line 232, in forward
    res = self._export_root(*args, **kwargs)
  File "src/uneven.py", line 30, in forward
    w = ep(h)
  File "/usr/lib/python3/site-packages/torch/nn/functional.py", line 5, in linear
    return g(x)
  File "<eval_with_key>.5", line 9, in forward
    child = x + 1"""
    assert parse_trace(trace) == Location("src/uneven.py", 30, "forward")
    assert parse_trace('File "torch/fx/passes/runtime_assert.py", line 24, in insert') is None
    assert parse_trace("no trace") is None


@pytest.mark.parametrize(
    "name", ["m/models/model.json", "m/models/main.json", "serialized_exported_program.json"]
)
def test_layouts_of_archives(tmp_path: Path, name: str) -> None:
    path = tmp_path / "any.name"
    path.write_bytes(archive(dump(pt2_document()), name))
    assert load(path) == graph()


def test_an_archive_as_json_is_the_same_graph(tmp_path: Path) -> None:
    path = tmp_path / "g.pt2"
    path.write_bytes(archive(dump(pt2_document())))
    read = load(path)
    save(read, tmp_path / "g.json")
    assert load(tmp_path / "g.json") == read


def test_reading_imports_no_heavy_package(tmp_path: Path) -> None:
    (tmp_path / "g.pt2").write_bytes(archive(dump(pt2_document())))
    (tmp_path / "g.json").write_bytes(dump(json_document()))
    code = (
        "import sys; from layoutcheck.readers import load; load(sys.argv[1]); load(sys.argv[2]);"
        "print([x for x in ('torch', 'sympy', 'numpy', 'networkx', 'pickle') if x in sys.modules])"
    )
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "g.pt2"), str(tmp_path / "g.json")],
        capture_output=True,
        text=True,
        check=True,
        cwd=root,
    )
    assert done.stdout.strip() == "[]"


def test_reference_archives(shared_graphs: Path, tmp_path: Path) -> None:
    files = sorted(shared_graphs.glob("*.pt2"))
    assert files
    for file in files:
        read = load(file)
        save(read, tmp_path / "g.json")
        assert load(tmp_path / "g.json") == read
        for node in read.nodes:
            if node.op == "call_function" and not node.target.startswith("aten._assert"):
                assert node.meta is not None, (file.name, node.name)


def test_shares_of_the_reference_archives(shared_graphs: Path) -> None:
    read = load(shared_graphs / "mega_sp_ws4_r0.pt2")
    tokens = read.node("x").meta
    assert isinstance(tokens, TensorMeta)
    assert read.node("narrow").meta == TensorMeta((cdiv(tokens.shape[0], 4), 64), "float32")
    uneven = load(shared_graphs / "hf_megamoe_T9_ws4_r0_dyn_strict.pt2")
    # Written as Max(1, -(-T // 4)), the same share.
    assert cdiv(sym("s6"), 4) in [node.meta.value for node in uneven.nodes if isinstance(node.meta, SymMeta)]
