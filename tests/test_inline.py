"""Subgraphs of higher-order ops, written out in their place: the types are those of the program written flat."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.builder import GraphBuilder, Json
from support.engine import load

from layoutcheck import check
from layoutcheck.graph import Graph
from layoutcheck.inline import MAX_DEPTH, inline_subgraphs

T8 = {"shape": [16, 8], "dtype": "bfloat16"}


def node(name: str, op: str, target: str, args: list[Any], meta: Any = None, **more: Any) -> Json:
    return {"name": name, "op": op, "target": target, "args": args, "meta": meta, **more}


def ref(name: str) -> Json:
    return {"node": name}


def body(
    *calls: tuple[str, str, list[Any]], inputs: tuple[str, ...] = ("a",), outputs: list[Any] | None = None
) -> Json:
    """A subgraph: calls `(name, target, args)`, the outputs by name (default: the last call's)."""
    nodes = [node(name, "placeholder", name, [], T8) for name in inputs]
    nodes += [node(name, "call_function", target, args, T8) for name, target, args in calls]
    nodes.append(
        node("output", "output", "output", [outputs if outputs is not None else [ref(calls[-1][0])]])
    )
    return {"format": "layoutcheck-graph/1", "nodes": nodes}


def program(call: Json, subgraphs: dict[str, Json], layout: str, reads: int | None = 0) -> Json:
    """x -> a call of subgraphs -> output (of item `reads`, or of the call itself)."""
    nodes = [node("x", "placeholder", "x", [], {**T8, "layout": layout})]
    nodes += [node(name, "get_attr", name, []) for name in subgraphs]
    nodes.append(call)
    last = call["name"]
    if reads is not None:
        nodes.append(node("item", "call_function", "operator.getitem", [ref(last), reads], T8))
        last = "item"
    nodes.append(node("output", "output", "output", [[ref(last)]]))
    return {"format": "layoutcheck-graph/1", "rank": 0, "config": {"groups": {"tp": [0, 1, 2, 3]}}, "nodes": nodes,
            "subgraphs": subgraphs}  # fmt: skip


def calls(graph: Graph) -> list[tuple[str, str]]:
    return [(n.name, str(n.target)) for n in graph.nodes if n.op == "call_function"]


SQUARE = body(("s", "aten.mul.Tensor", [ref("a"), ref("a")]), ("r", "aten.relu.default", [ref("s")]))


def test_a_graph_without_subgraphs_is_itself() -> None:
    b = GraphBuilder()
    b.output([b.silu(b.input("x", (16, 8), layout="[T, 8]"))])
    graph = load(b.graph())
    assert inline_subgraphs(graph) == (graph, {})
    assert inline_subgraphs(graph)[0] is graph


@pytest.mark.parametrize("reads", [0, -1, None])
def test_a_wrapper_is_its_body(reads: int | None) -> None:
    wrap = node("wrap", "call_function", "wrap_with_set_grad_enabled", [False, ref("sub"), ref("x")], T8)
    if reads is None:
        wrap["meta"] = T8
    graph, names = inline_subgraphs(load(program(wrap, {"sub": SQUARE}, "[T, 8]", reads)))
    assert calls(graph) == [("wrap.s", "aten.mul.Tensor"), ("wrap.r", "aten.relu.default")]
    assert graph.subgraphs == {} and not [n for n in graph.nodes if n.op == "get_attr"]
    assert names == ({} if reads is None else {"item": "wrap.r"})


def test_a_body_is_found_under_the_name_of_the_node_that_reads_it() -> None:
    """fx names the attribute's node as it likes: `submod_7` for the attribute `submod_1`."""
    wrap = node("wrap", "call_function", "wrap_with_set_grad_enabled", [False, ref("other"), ref("x")], T8)
    document = program(wrap, {"sub": SQUARE}, "[T, 8]")
    next(n for n in document["nodes"] if n["op"] == "get_attr")["name"] = "other"
    graph, names = inline_subgraphs(load(document))
    assert calls(graph) == [("wrap.s", "aten.mul.Tensor"), ("wrap.r", "aten.relu.default")]
    assert names == {"item": "wrap.r"} and not [n for n in graph.nodes if n.op == "get_attr"]


def test_layouts_and_findings_are_those_of_the_flat_program() -> None:
    """A sum that is not linear inside a wrapper is found there, and values keep their old names for `layout_of`."""
    wrap = node("wrap", "call_function", "wrap_with_set_grad_enabled", [False, ref("sub"), ref("x")], T8)
    place = {"mul": "wrap.s", "relu": "wrap.r"}
    for layout, faulty in (("[T, 8]", False), ("[T, 8] +tp", True)):
        report = check(load(program(wrap, {"sub": SQUARE}, layout)))
        b = GraphBuilder()
        x = b.input("x", (16, 8), layout=layout)
        b.output([b.call("aten.relu.default", b.multiply(x, x), shape=(16, 8))])
        flat = check(load(b.graph()))
        said = [(f.code, f.node, f.message) for f in report.findings]
        assert said == [(f.code, place[f.node], f.message) for f in flat.findings]
        assert bool(said) == faulty
        assert report.layout_text("wrap.r") == flat.layout_text("relu") == report.layout_text("item")


def test_a_body_used_twice_is_written_twice() -> None:
    """Names never collide, also where a body calls a body."""
    inner = body(("y", "aten.neg.default", [ref("a")]))
    outer = body(("w1", "wrap", [ref("deep"), ref("a")]), ("w2", "wrap", [ref("deep"), ref("w1i")]))
    outer["nodes"].insert(1, node("deep", "get_attr", "deep", []))
    outer["nodes"].insert(3, node("w1i", "call_function", "operator.getitem", [ref("w1"), 0], T8))
    outer["nodes"].insert(5, node("w2i", "call_function", "operator.getitem", [ref("w2"), 0], T8))
    outer["nodes"][-1]["args"] = [[ref("w2i")]]
    outer["subgraphs"] = {"deep": inner}
    one = node("one", "call_function", "wrap", [ref("sub"), ref("x")], T8)
    document = program(one, {"sub": outer}, "[T, 8]")
    two = node("two", "call_function", "wrap", [ref("sub"), ref("item")], T8)
    document["nodes"][-1:-1] = [two, node("last", "call_function", "operator.getitem", [ref("two"), 0], T8)]
    document["nodes"][-1]["args"] = [[ref("last")]]
    graph, names = inline_subgraphs(load(document))
    assert [name for name, _ in calls(graph)] == ["one.w1.y", "one.w2.y", "two.w1.y", "two.w2.y"]
    assert [n.args[0].name for n in graph.nodes if n.op == "call_function"] == [
        "x",
        "one.w1.y",
        "one.w2.y",
        "two.w1.y",
    ]
    assert names == {"item": "one.w2.y", "last": "two.w2.y"}
    assert check(load(document)).layout_text("last") == "bf16[T, 8]"


def test_both_branches_are_written_out() -> None:
    """`cond(flag, a, b, (x,))`: operands come as a list, each branch has its calls, and what they end in is compared."""
    other = body(("n", "aten.neg.default", [ref("a")]))
    branch = node("c", "call_function", "cond", [True, ref("yes"), ref("no"), [ref("x")]], [T8])
    graph, names = inline_subgraphs(load(program(branch, {"yes": SQUARE, "no": other}, "[T/4@tp, 8]")))
    assert [name for name, _ in calls(graph)] == ["c.s", "c.r", "c.1.n", "c"]
    assert names == {"item": "c"}


def test_branches_have_to_give_the_same_layout() -> None:
    reduced = body(("n", "tensor_cast.all_reduce.default", [ref("a"), 0, [0, 1, 2, 3]]))
    plain = body(("m", "aten.neg.default", [ref("a")]))
    branch = node("c", "call_function", "cond", [True, ref("yes"), ref("no"), [ref("x")]], [T8])
    report = check(load(program(branch, {"yes": reduced, "no": plain}, "[T, 8] +tp")), groups={"tp": 4})
    assert [(f.code, f.node) for f in report.findings] == [("LC201", "c")]


@pytest.mark.parametrize(
    "call",
    [
        node("wrap", "call_function", "wrap", [ref("sub"), ref("x"), ref("x")], T8),  # an operand too many
        node("wrap", "call_function", "wrap", [ref("sub")], T8),  # none
        node("wrap", "call_function", "wrap", [ref("x")], T8),  # no subgraph
    ],
)
def test_what_does_not_fit_stays_a_call(call: Json) -> None:
    graph, names = inline_subgraphs(load(program(call, {"sub": SQUARE}, "[T, 8]", None)))
    assert calls(graph) == [("wrap", "wrap")] and names == {}


def test_recursion_ends() -> None:
    """A chain of bodies deeper than the limit stays a call there, without a RecursionError."""
    inner = SQUARE
    for _ in range(MAX_DEPTH + 2):
        outer = body(("w", "wrap", [ref("sub"), ref("a")]))
        outer["nodes"].insert(1, node("sub", "get_attr", "sub", []))
        outer["subgraphs"] = {"sub": inner}
        inner = outer
    call = node("w", "call_function", "wrap", [ref("sub"), ref("x")], T8)
    try:
        document = load(program(call, {"sub": inner}, "[T, 8]", None))
    except ValueError as error:
        assert "nested too deeply" in str(error)
        return
    graph, _ = inline_subgraphs(document)
    assert [target for _, target in calls(graph)] == ["wrap"]


def exported(module: Any, args: tuple[Any, ...], path: Path) -> str:
    """The archive of a torch module."""
    torch = pytest.importorskip("torch")
    torch.export.save(torch.export.export(module, args), path)
    return str(path)


def typed(path: str, layout: str) -> list[tuple[str, str | None]]:
    """Targets of the aten calls with their results' layouts, in order."""
    from layoutcheck.readers import load as read

    report = check(path, layouts={"x": layout}, groups={"tp": 4})
    assert not report.findings, report.findings
    graph, _ = inline_subgraphs(read(path))
    return [
        (str(n.target), report.layout_text(n.name)) for n in graph.nodes if str(n.target).startswith("aten.")
    ]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", ["[T, 8]", "[T/4@tp, 8]"])
@pytest.mark.parametrize("kind", ["no_grad", "autocast", "nested", "cond"])
def test_torch_exports(kind: str, layout: str, tmp_path: Path) -> None:
    """The same arithmetic exported with and without a higher-order op around part of it has the same types."""
    torch = pytest.importorskip("torch")

    def part(x: Any) -> Any:
        return (x * 2 + 1).relu()

    class Flat(torch.nn.Module):
        def forward(self, x: Any, flag: Any) -> Any:
            return part(part(x)).sin() if kind == "nested" else part(x).sin()

    class Wrapped(torch.nn.Module):
        def forward(self, x: Any, flag: Any) -> Any:
            if kind == "cond":
                return torch.cond(flag, part, part, (x,)).sin()
            if kind == "autocast":
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    y = part(x)
                return y.sin()
            with torch.no_grad():
                y = part(x)
                if kind == "nested":
                    with torch.autocast("cpu", dtype=torch.bfloat16):
                        y = part(y)
            return y.sin()

    args = (torch.ones(4, 8), torch.tensor(True))
    flat = typed(exported(Flat(), args, tmp_path / "flat.pt2"), layout)
    path = exported(Wrapped(), args, tmp_path / "wrapped.pt2")
    wrapped = typed(path, layout)
    from layoutcheck.readers import load as read

    assert read(path).subgraphs, "torch wrote no higher-order op"
    if kind == "cond":
        assert wrapped == [*flat[:-1], *flat[:-1], flat[-1]]
    else:
        assert wrapped == flat


@pytest.mark.filterwarnings("ignore")
def test_a_loop_gives_what_its_body_gives(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torch._higher_order_ops.while_loop import while_loop

    class Loop(torch.nn.Module):
        def forward(self, x: Any, n: Any) -> Any:
            return while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a.sin() * 2), (n, x))[1]

    path = exported(Loop(), (torch.ones(4, 8), torch.tensor(0)), tmp_path / "loop.pt2")
    report = check(path, layouts={"x": "[T/4@tp, 8]"}, groups={"tp": 4})
    assert not report.findings
    assert report.layout_text("getitem_1") == "f32[T/4@tp, 8]"
