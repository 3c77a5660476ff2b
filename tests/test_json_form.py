"""The JSON form: what is written reads back equal, and reference graphs keep their meaning."""

from __future__ import annotations

import gzip
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layoutcheck.errors import InputError
from layoutcheck.graph import (
    Arg,
    DictArg,
    DtypeArg,
    Graph,
    InputSpec,
    Location,
    Meta,
    Node,
    Other,
    Ref,
    SymMeta,
    TensorMeta,
    dtype_name,
    module_path,
    normalize_target,
)
from layoutcheck.json_form import dumps, graph_from_json, graph_to_json, save
from layoutcheck.readers import load
from layoutcheck.schema import graph_schema
from layoutcheck.sizes.text import parse_size
from layoutcheck.symbols import Size, cdiv, smin, sym

T = sym("T")
_SIZES: list[Size] = [
    0,
    1,
    4096,
    T,
    T + 1,
    4 * cdiv(T, 4),
    cdiv(T, sym("p")),
    smin(6, T),
    8 * T,
    sym("u0", False),
]
sizes = st.sampled_from(_SIZES)
texts = st.text(max_size=12)
names = st.text(min_size=1, max_size=12)
dtypes = st.sampled_from(["float32", "bfloat16", "int64", "bool", "float8_e4m3fn"])
tensors = st.builds(
    TensorMeta, st.lists(sizes, max_size=4).map(tuple), dtypes, st.none() | st.just("bf16[T/16@tp, 6144]")
)
metas: st.SearchStrategy[Meta] = st.recursive(
    st.none() | tensors | st.builds(SymMeta, sizes) | st.builds(Other, st.just("FakeScriptObject")),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=4,
)
others = st.sampled_from(
    ["cpu", "torch.strided", "device(type='meta')", "<OpOverload(op='a.b', overload='c')>"]
)


def args_over(known: list[str]) -> st.SearchStrategy[Arg]:
    """Arguments that read only the nodes in `known`."""
    leaves: st.SearchStrategy[Any] = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False),
        texts,
        sizes,
        st.builds(DtypeArg, dtypes),
        st.builds(Other, others),
    )
    if known:
        leaves = st.sampled_from(known).map(Ref) | leaves
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3).map(tuple),
            st.builds(DictArg, st.lists(st.tuples(texts, inner), max_size=2).map(tuple)),
        ),
        max_leaves=6,
    )


@st.composite
def graphs(draw: st.DrawFn, depth: int = 0) -> Graph:
    """Well-formed graphs with everything that a graph can hold."""
    nodes: list[Node] = []
    known: list[str] = []
    for name in draw(st.lists(names.filter(lambda x: x != "output"), unique=True, max_size=5)):
        op = draw(st.sampled_from(["placeholder", "call_function", "get_attr"]))
        node = Node(name, op, draw(st.sampled_from(["aten.mm.default", "operator.getitem", name])))
        if op == "call_function":
            node.args = tuple(draw(st.lists(args_over(known), max_size=3)))
            node.kwargs = draw(st.dictionaries(texts, args_over(known), max_size=2))
        node.meta = draw(metas)
        if draw(st.booleans()):
            node.location = Location(draw(texts), draw(st.integers(0, 10**6)), draw(texts))
            node.module, node.module_type = draw(st.just("model.layers.0")), draw(st.none() | texts)
        nodes.append(node)
        known.append(name)
    nodes.append(Node("output", "output", "output", (tuple(map(Ref, known)),)))
    graph = Graph(nodes, source=draw(texts), rank=draw(st.none() | st.integers(0, 63)))
    graph.config = draw(st.dictionaries(texts, st.integers(0, 9) | st.booleans() | texts, max_size=2))
    kinds = st.sampled_from(["parameter", "buffer", "constant", "user_input", "unknown"])
    graph.inputs = draw(st.dictionaries(names, st.builds(InputSpec, kinds, st.none() | texts), max_size=2))
    ends = st.none() | st.integers(0, 2**62)
    graph.ranges = draw(st.dictionaries(names, st.tuples(ends, ends), max_size=2))
    graph.guards = tuple(draw(st.lists(texts, max_size=2)))
    if depth < 2:
        graph.subgraphs = draw(st.dictionaries(names, graphs(depth + 1), max_size=1))
    return graph


@given(graphs())
def test_what_is_written_reads_back_equal(graph: Graph) -> None:
    document = json.loads(dumps(graph))
    again = graph_from_json(document)
    assert again == graph
    assert graph_to_json(again) == document


@given(graphs())
def test_what_is_written_meets_the_schema(graph: Graph) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator(graph_schema()).validate(json.loads(dumps(graph)))


def small() -> Graph:
    """Two calls on a symbolic size."""
    x = TensorMeta((T, 8), "float32")
    nodes = [
        Node("x", "placeholder", "x", meta=x),
        Node("relu", "call_function", "aten.relu.default", (Ref("x"),), meta=x),
        Node("out", "output", "output", ((Ref("relu"),),)),
    ]
    return Graph(nodes, source="test", inputs={"x": InputSpec("user_input")}, ranges={"T": (2, None)})


@pytest.mark.parametrize("name", ["g.json", "g.json.gz"])
def test_files_plain_and_gzipped(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    save(small(), path)
    assert (path.read_bytes()[:2] == b"\x1f\x8b") == name.endswith(".gz")
    read = load(path)
    assert read == small() and read.path == str(path)
    assert read.node("relu").args == (Ref("x"),)


def test_the_written_text_is_the_documented_form() -> None:
    document = graph_to_json(small())
    assert document["format"] == "layoutcheck-graph/1"
    assert document["nodes"][1] == {
        "name": "relu",
        "op": "call_function",
        "target": "aten.relu.default",
        "args": [{"node": "x"}],
        "meta": {"shape": ["T", 8], "dtype": "float32"},
    }


def test_infinite_numbers_survive_in_strict_json(tmp_path: Path) -> None:
    graph = small()
    graph.nodes[1].args = (Ref("x"), -math.inf, math.nan)
    data = dumps(graph)
    assert b'{"repr":"-inf"}' in data and b"Infinity" not in data and b"NaN" not in data
    save(graph, tmp_path / "g.json")
    read = load(tmp_path / "g.json").nodes[1].args
    assert read[1] == -math.inf and isinstance(read[2], float) and math.isnan(read[2])


def test_python_s_own_infinities_are_read(tmp_path: Path) -> None:
    text = dumps(small()).replace(b'[{"node":"x"}]', b'[{"node":"x"},-Infinity]')
    (tmp_path / "g.json").write_bytes(text)
    assert load(tmp_path / "g.json").nodes[1].args[1] == -math.inf


def test_nothing_is_left_where_writing_fails(tmp_path: Path) -> None:
    bad = small()
    bad.nodes[1].args = (object(),)  # type: ignore[assignment]
    with pytest.raises(TypeError):
        save(bad, tmp_path / "g.json")
    with pytest.raises(InputError, match="cannot be written"):
        save(small(), tmp_path / "missing" / "g.json")
    (tmp_path / "taken.json").mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        save(small(), tmp_path / "taken.json")
    assert os.listdir(tmp_path) == ["taken.json"]


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "g.json"
    save(small(), path)
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(InputError, match="No space left"):
        save(Graph(small().nodes, source="other"), path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["g.json"]


def test_dtypes_written_as_text_become_dtypes() -> None:
    document = graph_to_json(small())
    document["nodes"][1]["kwargs"] = {"a": {"repr": "torch.float32"}, "b": {"dtype": "torch.bool"}}
    document["nodes"][1]["kwargs"]["c"] = {"repr": "torch.strided"}
    kwargs = graph_from_json(document).nodes[1].kwargs
    assert kwargs == {"a": DtypeArg("float32"), "b": DtypeArg("bool"), "c": Other("torch.strided")}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("torch.ops.aten.view.default", "aten.view.default"),
        ("aten.view.default", "aten.view.default"),
        ("_operator.add", "operator.add"),
        ("<built-in function floordiv>", "operator.floordiv"),
        ("<built-in function getitem>", "operator.getitem"),
        ("<function sym_min at 0x7f17396709a0>", "torch.sym_min"),
        ("<built-in function ceil>", "math.ceil"),
        ("torch.ops.higher_order.cond", "cond"),
        ("torch.sym_max", "torch.sym_max"),
    ],
)
def test_targets_have_one_spelling(text: str, name: str) -> None:
    assert normalize_target(text) == name
    assert normalize_target(name) == name


def test_small_spellings() -> None:
    assert dtype_name("torch.float16") == "float16" and dtype_name("torch.strided") is None
    assert module_path("L['self'].model.norm") == "model.norm"
    assert module_path("L['args'][0].lm_head") == "lm_head"
    assert module_path("model.self_attn") == "model.self_attn"


class TestValidation:
    def refuse(self, graph: Graph, message: str) -> None:
        with pytest.raises(InputError, match=message):
            graph.validate()

    def test_structure(self) -> None:
        x, relu, out = small().nodes
        assert small().validate() == small()
        self.refuse(Graph([x, x, out]), "'x': the name stands twice")
        self.refuse(Graph([x, relu]), "no output")
        self.refuse(Graph([]), "no output")
        self.refuse(Graph([x, relu, out, out]), "second output")
        self.refuse(Graph([x, relu, out, Node("late", "placeholder", "late")]), "after the output")
        self.refuse(Graph([relu, x, out]), "which comes later")
        self.refuse(Graph([x, out]), "which is no node")
        self.refuse(Graph([x, Node("y", "call_function", "f", (Ref("y"),)), out]), "reads itself")
        self.refuse(Graph([x, Node("y", "call_method", "f"), out]), "unknown op")
        self.refuse(Graph([Node("y" * 5000, "placeholder", "y"), out]), "oversized name")
        self.refuse(Graph([x, relu, out], subgraphs={"f": Graph([x])}), "no output")

    def test_nesting(self) -> None:
        deep: Arg = Ref("x")
        for _ in range(60):
            deep = (deep,)
        x, _, out = small().nodes
        self.refuse(Graph([x, Node("relu", "call_function", "f", (deep,)), out]), "nested deeper than 50")


def _meaning(value: Any) -> Any:
    """A document with the spellings unified that reading may change."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"repr": repr(value)}
    if isinstance(value, list):
        return [_meaning(x) for x in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"repr"} and dtype_name(value["repr"]):
        return {"dtype": dtype_name(value["repr"])}
    out = {k: _meaning(v) for k, v in value.items() if k != "kwargs" or v}
    if "shape" in out:
        out["shape"] = [parse_size(x) if isinstance(x, str) else x for x in out["shape"]]
    if isinstance(out.get("symint"), str):
        out["symint"] = parse_size(out["symint"])
    if isinstance(out.get("target"), str):
        out["target"] = normalize_target(out["target"])
    if isinstance(out.get("module"), list):
        out["module"] = module_path(out["module"][-1])
    return out


def test_reference_graphs_survive_a_round_trip(shared_graphs: Path, tmp_path: Path) -> None:
    files = sorted(shared_graphs.glob("*.json.gz"))
    assert files
    for file in files:
        graph = load(file)
        save(graph, tmp_path / "g.json.gz")
        assert load(tmp_path / "g.json.gz") == graph
        before = json.loads(gzip.decompress(file.read_bytes()))
        after = json.loads(gzip.decompress((tmp_path / "g.json.gz").read_bytes()))
        assert _meaning(after) == _meaning(before), file.name
