"""Small graphs in every file form, and damaged copies of them: what readers must survive.

`mutations(seed)` yields `(kind, file name, bytes)` for ever, the same ones for the same seed.
"""

from __future__ import annotations

import copy
import functools
import gzip
import io
import json
import random
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

SREPR = "FloorDiv(Add(Symbol('s77', positive=True, integer=True), Integer(3)), Integer(4))"
T_TEXT = "Symbol('s77', positive=True, integer=True)"

TRACE = """File "model.py", line 7, in forward
    x = f(x)
  File "torch/nn/functional.py", line 1, in f
    return g(x)"""

HOSTILE = [
    "__import__('os').system('touch /tmp/owned')",
    'exec("import os")',
    "(lambda: 0)()",
    "s77.__class__.__mro__",
    "Symbol('s77').__init__",
    "eval('1')",
    "open('/etc/passwd').read()",
    "Function('f')(Symbol('s77'))",
    "(" * 5000,
    "(" * 9000 + "1" + ")" * 9000,
    "-" * 19000 + "1",
    "Max(" * 3000 + "1" + ")" * 3000,
    "2**" * 3000 + "2",
    "9" * 19_999,
    "s1**999999999",
    "*".join(f"(a{i}+b{i}+c{i})" for i in range(400)),
    "(a+b+c+d)**16*(e+f+g+h)**16",
    "+".join(f"(a{i}+b{i})**16" for i in range(900)),
    "Min(" + ",".join(f"a{i}" for i in range(3000)) + ")",
    "Max(" + ",".join(f"a{i}-b{i}" for i in range(64)) + ")",
    "+".join(f"a{i}*b{i}" for i in range(2000)),
    "//".join(f"(a{i}+{i})" for i in range(1, 900)),
    "(" + "+".join(f"a{i}" for i in range(2000)) + ")//(" + "+".join(f"b{i}" for i in range(900)) + ")",
    "%".join("s77+1" for _ in range(900)),
    "s77//0",
    "s77%(s77-s77)",
    "0/0",
    "1/3",
    "x" * 50_000,
    "s" * 19_000,
    "\x00",
    "é",
    "",
    " ",
    "1 2",
    "Integer(Integer(Integer(1)))",
    "Symbol('a b')",
    "Symbol('" + "a" * 10_000 + "')",
]
"""Expression strings that must neither run nor hang."""

VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63 - 1,
    2**63,
    -(2**63),
    10**30,
    0.5,
    -1e308,
    "",
    "x",
    "x" * 5000,
    "output",
    "\ud800".encode("utf-8", "replace").decode(),
    [],
    [[]],
    [None],
    {},
    {"": None},
    {"name": "x"},
    {"node": "x"},
    {"node": 3},
    {"node": []},
    {"repr": None},
    {"size": []},
    {"dict": [1]},
    {"dict": [["k", {"node": "missing"}]]},
    {"as_int": "1"},
    {"as_int": True},
    {"as_tensor": None},
    {"as_tensor": {"name": []}},
    {"as_tensors": [{"name": "x"}, 3]},
    {"as_graph": {"name": "g", "graph": {}}},
    {"as_graph": {"name": "g"}},
    {"as_expr": {"expr_str": None}},
    {"as_sym_ints": [{"as_name": "x"}, {"as_name": 7}]},
    {"as_what": 1},
    {"shape": 3, "dtype": 4},
    {"shape": ["T", {}], "dtype": "float32"},
    {"shape": [1] * 1000, "dtype": "float32"},
    {"symint": [1]},
    *({"as_expr": {"expr_str": text}} for text in HOSTILE[:4]),
    *HOSTILE[:4],
]
"""Values that stand where another type belongs."""


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


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items: Any = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, item in items:
        yield from _places(item, (*path, key))


def _replace(document: Any, path: tuple[Any, ...], make: Callable[[Any, Any], None]) -> Any:
    document = copy.deepcopy(document)
    holder = document
    for key in path[:-1]:
        holder = holder[key]
    make(holder, path[-1])
    return document


def edit(document: Any, places: list[tuple[Any, ...]], rng: random.Random) -> Any:
    """A copy of the document with one place changed, dropped, doubled or exchanged."""
    path = rng.choice(places[1:])
    action = rng.randrange(8)

    def make(holder: Any, key: Any) -> None:
        if action == 0:
            del holder[key]
        elif action == 1 and isinstance(holder, list):
            holder.insert(rng.randrange(len(holder) + 1), copy.deepcopy(holder[key]))
        elif action == 2 and isinstance(holder, list):
            other = rng.randrange(len(holder))
            holder[key], holder[other] = holder[other], holder[key]
        elif action == 3:
            holder[key] = [holder[key]]
        elif action == 4 and isinstance(holder, dict):
            holder[rng.choice(["x", "", "name", "as_tensor", "as_int"])] = holder.pop(key)
        elif action == 5 and isinstance(holder[key], str):
            holder[key] = rng.choice(HOSTILE)
        elif action == 6:
            source: Any = document
            for step in rng.choice(places):
                source = source[step]
            holder[key] = copy.deepcopy(source)
        else:
            holder[key] = rng.choice(VALUES)

    return _replace(document, path, make)


def damage(data: bytes, rng: random.Random) -> bytes:
    """The bytes cut, flipped, repeated or with rubbish in them."""
    action = rng.randrange(5)
    at = rng.randrange(len(data))
    if action == 0:
        return data[:at]
    if action == 1:
        return data[at:]
    out = bytearray(data)
    if action == 2:
        for _ in range(rng.choice([1, 1, 2, 8, 64])):
            out[rng.randrange(len(out))] = rng.randrange(256)
    elif action == 3:
        out[at:at] = rng.choice([b"\0", b"[" * 1000, b"\xff\xfe", b'"', b"}", b"1e999", rng.randbytes(30)])
    else:
        end = rng.randrange(at, len(data))
        out[at:at] = data[at:end]
    return bytes(out)


def _nested(rng: random.Random) -> tuple[str, bytes]:
    depth = rng.choice([60, 500, 2000, 100_000])
    which = rng.randrange(4)
    if which == 0:
        return "deep.json", b"[" * depth + b"]" * depth
    if which == 1:
        return "deep.json", b'{"format":' * depth + b"1" + b"}" * depth
    text = dump(json_document())
    if which == 2:
        return "deep.json", text.replace(
            b'{"node": "mm"}, 4', b"[" * depth + b'{"node": "mm"}' + b"]" * depth + b", 4"
        )
    open_, close = b'{"as_string_to_argument": {"k": ', b"}}"
    inner = open_ * depth + b'{"as_int": 1}' + close * depth
    return "deep.pt2", archive(dump(pt2_document()).replace(b'{"as_string": "sum"}', inner))


def _blanks() -> Iterator[bytes]:
    """300 MB of JSON that says next to nothing, in pieces."""
    yield b'{"format": "layoutcheck-graph/1", "nodes": ['
    for _ in range(300):
        yield b" " * (1 << 20)
    yield b"]}"


@functools.cache
def bombs() -> tuple[tuple[str, bytes], ...]:
    """Files of some hundred kilobytes that unpack to hundreds of megabytes."""
    packed, zipped = io.BytesIO(), io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=6) as out:
        for piece in _blanks():
            out.write(piece)
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archived:
        with archived.open("m/models/model.json", "w") as member:
            for piece in _blanks():
                member.write(piece)
    return (
        ("bomb.json.gz", packed.getvalue()),
        ("twice.json.gz", gzip.compress(packed.getvalue())),
        ("bomb.pt2", zipped.getvalue()),
        ("quoted.pt2", _lying_archive(zipped.getvalue())),
    )


def _lying_archive(data: bytes) -> bytes:
    """The archive with the unpacked size of its graph understated in the directory."""
    with zipfile.ZipFile(io.BytesIO(data)) as read:
        size = read.getinfo("m/models/model.json").file_size
    return data.replace(size.to_bytes(4, "little"), (1000).to_bytes(4, "little"))


def _wide(rng: random.Random) -> tuple[str, bytes]:
    """Cycles, doubled names, huge numbers of dimensions, long names."""
    document = json_document()
    nodes = document["nodes"]
    which = rng.randrange(10)
    if which == 0:
        nodes[4]["args"] = [{"node": "item"}]
    elif which == 1:
        nodes.append(copy.deepcopy(rng.choice(nodes)))
    elif which == 2:
        nodes[0]["meta"]["shape"] = [1] * rng.choice([257, 100_000])
    elif which == 3:
        nodes[0]["name"] = "n" * rng.choice([4096, 4097, 1_000_000])
    elif which == 4:
        rng.shuffle(nodes)
    else:
        nodes[0]["meta"]["shape"][0] = rng.choice(HOSTILE)
    return "wide.json", dump(document)


def mutations(seed: int, with_bombs: bool = True) -> Iterator[tuple[str, str, bytes]]:
    """Damaged files without end, as `(kind, file name, bytes)`."""
    rng = random.Random(seed)
    documents = {"json": json_document(), "pt2": pt2_document()}
    places = {form: list(_places(document)) for form, document in documents.items()}
    whole = {
        "g.json": dump(documents["json"]),
        "g.json.gz": gzip.compress(dump(documents["json"]), mtime=0),
        "g.pt2": archive(dump(documents["pt2"])),
    }
    while True:
        kind = rng.random()
        if kind < 0.62:
            form = rng.choice(["json", "pt2"])
            document = documents[form]
            for _ in range(rng.choice([1, 1, 1, 2, 4])):
                document = edit(
                    document, places[form] if document is documents[form] else list(_places(document)), rng
                )
            data = dump(document)
            yield ("edited", "g.json", data) if form == "json" else ("edited", "g.pt2", archive(data))
        elif kind < 0.80:
            name = rng.choice(list(whole))
            yield "damaged", name, damage(whole[name], rng)
        elif kind < 0.88:
            # Damage inside the packing, so that the checksums hold.
            form = rng.choice(["json", "pt2"])
            data = damage(dump(documents[form]), rng)
            yield (
                ("inside", "g.pt2", archive(data))
                if form == "pt2"
                else ("inside", "g.json.gz", gzip.compress(data, 1))
            )
        elif kind < 0.91:
            yield "nested", *_nested(rng)
        elif kind < 0.999 or not with_bombs:
            yield "wide", *_wide(rng)
        else:
            yield "bomb", *rng.choice(bombs())
