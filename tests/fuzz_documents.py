"""Small graphs in both file forms that together use every part of the forms."""

from __future__ import annotations

import copy
import io
import json
import zipfile
from typing import Any

SREPR = "FloorDiv(Add(Symbol('s77', positive=True, integer=True), Integer(3)), Integer(4))"
T_TEXT = "Symbol('s77', positive=True, integer=True)"

TRACE = """File "model.py", line 7, in forward
    x = f(x)
  File "torch/nn/functional.py", line 1, in f
    return g(x)"""


def json_document() -> dict[str, Any]:
    """A `layoutcheck-graph/1` document that uses every part of the form."""
    tensor = {"shape": ["4*((T + 3)//4)", 8], "dtype": "float32"}
    nodes: list[dict[str, Any]] = [
        {
            "name": "x",
            "op": "placeholder",
            "target": "x",
            "args": [],
            "meta": {"shape": ["T", 8], "dtype": "float32"},
        },
        {
            "name": "w",
            "op": "placeholder",
            "target": "w",
            "args": [],
            "meta": {"shape": [8, 8], "dtype": "float32"},
        },
        {"name": "n", "op": "call_function", "target": "aten.sym_size.int", "args": [{"node": "x"}, 0]},
        {
            "name": "pad",
            "op": "call_function",
            "target": "aten.constant_pad_nd.default",
            "args": [{"node": "x"}],
        },
        {
            "name": "mm",
            "op": "call_function",
            "target": "aten.mm.default",
            "args": [{"node": "pad"}, {"node": "w"}],
        },
        {
            "name": "split",
            "op": "call_function",
            "target": "aten.split.Tensor",
            "args": [{"node": "mm"}, 4, 1],
        },
        {"name": "item", "op": "call_function", "target": "operator.getitem", "args": [{"node": "split"}, 0]},
        {"name": "output", "op": "output", "target": "output", "args": [[{"node": "item"}, {"node": "n"}]]},
    ]
    nodes[2]["meta"] = {"symint": "T"}
    nodes[3]["args"] += [[0, 0, 0, {"size": "4*ceil(T/4) - T"}], {"repr": "-inf"}]
    nodes[3]["meta"], nodes[4]["meta"] = tensor, copy.deepcopy(tensor)
    nodes[4]["kwargs"] = {
        "out_dtype": {"dtype": "float32"},
        "device": {"repr": "cpu"},
        "alpha": 1.5,
        "flag": True,
    }
    nodes[4]["kwargs"]["options"] = {"dict": [["k", [1, None, {"node": "x"}]]]}
    nodes[4]["location"] = {"file": "model.py", "line": 12, "function": "forward"}
    nodes[4]["module"], nodes[4]["module_type"] = "layers.0", "torch.nn.Linear"
    nodes[5]["meta"] = [{"shape": ["4*((T + 3)//4)", 4], "dtype": "float32"}] * 2
    body = [
        {"name": "a", "op": "placeholder", "target": "a", "args": [], "meta": None},
        {"name": "output", "op": "output", "target": "output", "args": [[{"node": "a"}]], "meta": None},
    ]
    return {
        "format": "layoutcheck-graph/1",
        "source": "fuzz",
        "rank": 0,
        "config": {"tp": 4},
        "nodes": nodes,
        "inputs": {"w": {"kind": "parameter", "fqn": "w"}, "x": {"kind": "user_input", "fqn": None}},
        "ranges": {"T": [2, None]},
        "guards": ["T >= 2"],
        "subgraphs": {"body": {"nodes": body}},
    }


def _tensor(*sizes: int | str, dtype: int = 7) -> dict[str, Any]:
    listed = [
        {"as_expr": {"expr_str": x, "hint": {"as_int": 6}}} if isinstance(x, str) else {"as_int": x}
        for x in sizes
    ]
    return {
        "dtype": dtype,
        "sizes": listed,
        "requires_grad": False,
        "device": {"type": "cpu", "index": None},
        "layout": 7,
    }


def _call(name: str, target: str, outputs: list[Any], **inputs: Any) -> dict[str, Any]:
    return {
        "name": name,
        "target": target,
        "inputs": [{"name": k, "arg": v, "kind": 1} for k, v in inputs.items()],
        "outputs": outputs,
        "metadata": {
            "stack_trace": TRACE,
            "nn_module_stack": "L__self__,,__main__.Model;L__self__layers.0,layers.0,__main__.Layer",
        },
        "is_hop_single_tensor_return": None,
    }


def _name(name: str) -> dict[str, Any]:
    return {"as_tensor": {"name": name}}


def pt2_document() -> dict[str, Any]:
    """The JSON of a torch.export archive that uses most kinds of arguments."""
    inner = {
        "inputs": [_name("u")],
        "outputs": [_name("add")],
        "nodes": [
            _call("add", "torch.ops.aten.add.Tensor", [_name("add")], self=_name("u"), other={"as_int": 1})
        ],
        "tensor_values": {"u": _tensor(T_TEXT, 4), "add": _tensor(T_TEXT, 4)},
        "sym_int_values": {},
        "sym_bool_values": {},
        "is_single_tensor_return": False,
    }
    cond = _call("cond", "torch.ops.higher_order.cond", [{"as_tensors": [{"name": "picked"}]}])
    graphs = [
        {"as_graph": {"name": f"{x}_graph_0", "graph": copy.deepcopy(inner)}} for x in ("true", "false")
    ]
    cond["inputs"] = [
        {"name": "", "arg": x, "kind": 1}
        for x in (_name("flag"), *graphs, {"as_tensors": [{"name": "left"}]})
    ]
    ones: dict[str, Any] = {
        "size": {"as_sym_ints": [{"as_name": "mul"}, {"as_int": 8}]},
        "dtype": {"as_scalar_type": 13},
    }
    ones |= {"layout": {"as_layout": 7}, "device": {"as_device": {"type": "cuda", "index": 0}}}
    ones |= {"pin_memory": {"as_bool": False}, "memory_format": {"as_memory_format": 1}}
    extra: dict[str, Any] = {
        "indices": {"as_optional_tensors": [{"as_none": True}, _name("left")]},
        "scale": {"as_float": "-Infinity"},
        "mode": {"as_string": "sum"},
        "dims": {"as_ints": [0, 1]},
        "mask": {"as_bools": [True, False]},
        "none": {"as_none": True},
        "op": {"as_operator": "torch.ops.demo.inner.default"},
        "maybe": {"as_optional_tensor": _name("left")},
        "nested": {"as_nested_tensors": [[{"name": "left"}], []]},
        "floats": {"as_floats": [0.5, 1]},
        "table": {"as_string_to_argument": {"k": {"as_int": 1}}},
    }
    nodes = [
        _call(
            "n",
            "torch.ops.aten.sym_size.int",
            [{"as_sym_int": {"as_name": "n"}}],
            self=_name("x"),
            dim={"as_int": 0},
        ),
        _call(
            "add_3",
            "_operator.add",
            [{"as_sym_int": {"as_name": "add_3"}}],
            a={"as_sym_int": {"as_name": "n"}},
            b={"as_int": 3},
        ),
        _call(
            "mul",
            "torch.sym_max",
            [{"as_sym_int": {"as_name": "mul"}}],
            a={"as_sym_int": {"as_name": "n"}},
            b={"as_int": 1},
        ),
        _call(
            "linear",
            "torch.ops.aten.linear.default",
            [_name("linear")],
            input=_name("x"),
            weight=_name("p_w"),
        ),
        _call(
            "split",
            "torch.ops.aten.split.Tensor",
            [{"as_tensors": [{"name": "left"}, {"name": "right"}]}],
            self=_name("linear"),
        ),
        _call("gt", "torch.ops.aten.gt.Scalar", [_name("flag")], self=_name("x"), other={"as_float": 0.0}),
        cond,
        _call(
            "topk",
            "torch.ops.demo.topk.default",
            [_name("values"), _name("places"), {"as_none": True}],
            self=_name("picked"),
        ),
        _call("ones", "torch.ops.aten.ones.default", [_name("ones")], **ones),
        _call("odd", "torch.ops.demo.odd.default", [_name("odd")], x=_name("b_c"), **extra),
        _call("check", "torch.ops.aten._assert_scalar.default", []),
    ]
    values = {
        "p_w": _tensor(8, 8),
        "b_c": _tensor(3),
        "x": _tensor(T_TEXT, 8),
        "linear": _tensor(T_TEXT, 8),
        **dict.fromkeys(("left", "right", "picked"), _tensor(T_TEXT, 4)),
        "flag": _tensor(dtype=12),
        "values": _tensor(T_TEXT, 2),
        "places": _tensor(T_TEXT, 2, dtype=5),
        "ones": _tensor(f"Mul(Integer(4), {SREPR})", 8, dtype=13),
        "odd": _tensor(3),
    }
    signature = [
        {"parameter": {"arg": {"name": "p_w"}, "parameter_name": "layers.0.w"}},
        {"buffer": {"arg": {"name": "b_c"}, "buffer_name": "c", "persistent": True}},
        {"user_input": {"arg": _name("x")}},
        {"constant_input": {"name": "use_cache", "value": {"as_bool": True}}},
    ]
    graph = {
        "inputs": [_name("p_w"), _name("b_c"), _name("x"), {"as_bool": True}],
        "outputs": [_name("values"), _name("ones"), _name("odd"), {"as_sym_int": {"as_name": "add_3"}}],
        "nodes": nodes,
        "tensor_values": values,
        "sym_int_values": {
            "n": {"as_expr": {"expr_str": T_TEXT, "hint": {"as_int": 6}}},
            "add_3": {"as_expr": {"expr_str": f"Add({T_TEXT}, Integer(3))"}},
            "mul": {"as_expr": {"expr_str": f"Mul(Integer(4), {SREPR})"}},
        },
        "sym_bool_values": {},
        "is_single_tensor_return": False,
    }
    return {
        "graph_module": {"graph": graph, "signature": {"input_specs": signature, "output_specs": []}},
        "range_constraints": {"s77": {"min_val": 2, "max_val": None}},
        "schema_version": {"major": 8, "minor": 20},
        "torch_version": "2.13.0",
        "guards_code": ["L['x'].size()[0] >= 2"],
    }


def dump(document: Any) -> bytes:
    """JSON text of a document, Python's own infinities included."""
    return json.dumps(document).encode("utf-8", "surrogatepass")


def archive(data: bytes, name: str = "m/models/model.json") -> bytes:
    """A `.pt2` around the bytes of its JSON."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("m/archive_format", "pt2")
        out.writestr(name, data)
        out.writestr("m/data/weights/weight_0", b"\0" * 64)
    return stream.getvalue()
