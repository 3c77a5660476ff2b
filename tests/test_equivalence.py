"""Whether two graphs are the same program: what diff sees, what it must not see, and how it says it."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import layoutcheck
from layoutcheck.cli import main
from layoutcheck.errors import InputError
from layoutcheck.graph import Graph, Node, Ref, TensorMeta
from layoutcheck.regions import unfuse
from layoutcheck.regions.fusion_rules import FusionBook, parse_fusion
from layoutcheck.rules.rulebook import RuleBook
from layoutcheck.testing import Builder, Decoder, Layers, assert_equivalent, decoders

DECODER = Decoder((Layers("dense", 2), Layers("moe", 2)), style="sp")


def copy(graph: Graph, change: Callable[[Node], None] | None = None, names: str = "") -> Graph:
    """A copy of a graph, its nodes changed or renamed."""

    def arg(value: object) -> object:
        if isinstance(value, Ref):
            return Ref(names + value.name)
        return tuple(arg(v) for v in value) if isinstance(value, tuple) else value

    nodes = []
    for n in graph.nodes:
        kwargs = {k: arg(v) for k, v in n.kwargs.items()}
        name = names + n.name
        target = name if n.op == "placeholder" else n.target
        new = Node(name, n.op, target, tuple(arg(a) for a in n.args), kwargs, n.meta)  # type: ignore[arg-type]
        if change is not None:
            change(new)
        nodes.append(new)
    return Graph(nodes, graph.source, graph.rank, dict(graph.config))


def first(graph: Graph, text: str, at: int = 0) -> str:
    """The name of the `at`-th node whose target contains a text."""
    return [n.name for n in graph.nodes if text in n.target][at]


def on(name: str, change: Callable[[Node], None]) -> Callable[[Node], None]:
    """A change of the node with this name."""

    def apply(node: Node) -> None:
        if node.name == name:
            change(node)

    return apply


# ---- what is the same


def test_names_do_not_matter() -> None:
    graph = DECODER.build()
    assert_equivalent(graph, copy(graph, names="other_"))


def test_the_order_of_independent_calls_does_not_matter() -> None:
    graph = DECODER.build()
    nodes = list(graph.nodes)
    # the first two linears of a gated MLP, their permutes included
    at = [i for i, n in enumerate(nodes) if n.target == "aten.permute.default"]
    pairs = [(i, j) for i, j in pairwise(at) if j == i + 2 and nodes[i + 1].args[0] == nodes[j + 1].args[0]]
    i, j = pairs[0]
    nodes[i : i + 2], nodes[j : j + 2] = nodes[j : j + 2], nodes[i : i + 2]
    assert_equivalent(graph, Graph(nodes, "", 0, graph.config))


def test_the_order_of_an_additions_operands_does_not_matter() -> None:
    graph = DECODER.build()

    def swap(node: Node) -> None:
        if node.target == "aten.add.Tensor":
            node.args = (node.args[1], node.args[0])

    assert_equivalent(graph, copy(graph, swap))


def test_keywords_and_defaults_do_not_matter() -> None:
    graph = DECODER.build()

    def respell(node: Node) -> None:
        if node.target == "aten.add.Tensor":
            node.args, node.kwargs = (node.args[0],), {"other": node.args[1], "alpha": 1}

    assert_equivalent(graph, copy(graph, respell))


def test_the_spelling_of_a_size_does_not_matter() -> None:
    def build(*size: int) -> Graph:
        b = Builder()
        x = b.input("x", (16, 4, 8))
        return b.graph(b.silu(b.call("aten.view.default", x, size, shape=(16, 32))))

    assert_equivalent(build(16, 32), build(-1, 32))
    assert_equivalent(build(16, -1), build(-1, 32))
    assert not layoutcheck.equivalent(build(16, 32), build(32, 16))


def test_fused_and_separate_norms_are_the_same() -> None:
    pair = [Decoder((Layers("moe", 3),), carried="pair", fused=fused, style="sp") for fused in (True, False)]
    assert_equivalent(pair[0].build(), pair[1].build("repeated"))


@settings(max_examples=100)
@given(decoders(), st.sampled_from(("expanded", "repeated")), st.sampled_from(("expanded", "repeated")))
def test_a_graph_is_the_same_as_itself_in_any_form(decoder: Decoder, one: str, other: str) -> None:
    assert_equivalent(decoder.build(one), copy(decoder.build(other), names="z"))


# ---- what is not


def divergence(a: Graph, b: Graph) -> tuple[str, str | None, str | None]:
    """Kind and both nodes of the first divergence."""
    found = layoutcheck.diff(a, b).divergence
    assert found is not None
    back = layoutcheck.diff(b, a).divergence
    assert back is not None and (back.kind, back.a.node, back.b.node) == (
        found.kind,
        found.b.node,
        found.a.node,
    )
    return found.kind, found.a.node, found.b.node


def test_another_op() -> None:
    graph = DECODER.build()
    name = first(graph, "silu", 2)
    other = copy(graph, on(name, lambda n: setattr(n, "target", "aten.relu.default")))
    assert divergence(graph, other) == ("op", name, name)


def test_another_literal() -> None:
    graph = DECODER.build()
    name = first(graph, "rms_norm", 3)
    other = copy(graph, on(name, lambda n: setattr(n, "args", (*n.args[:2], 1e-5))))
    assert divergence(graph, other) == ("op", name, name)


def test_one_is_not_true_and_not_one_point_zero() -> None:
    def build(value: object) -> Graph:
        b = Builder()
        x = b.input("x", (16, 32))
        return b.graph(b.call("aten.mul.Tensor", x, value, shape=(16, 32)))

    values = [1, 1.0, True]
    for i, one in enumerate(values):
        for j, other in enumerate(values):
            assert layoutcheck.equivalent(build(one), build(other)) == (i == j)


def test_another_wiring() -> None:
    graph = DECODER.build()
    add = first(graph, "aten.add.Tensor", 3)
    earlier = first(graph, "aten.add.Tensor", 1)
    other = copy(graph, on(add, lambda n: setattr(n, "args", (Ref(earlier), n.args[1]))))
    kind, _a, b = divergence(graph, other)
    assert kind == "op" and b == add


def test_an_op_that_is_there_once_more() -> None:
    graph = DECODER.build()
    name = first(graph, "silu", 1)
    other = copy(graph)
    at = next(i for i, n in enumerate(other.nodes) if n.name == name)
    other.nodes.insert(at + 1, Node("again", "call_function", other.nodes[at].target, other.nodes[at].args))
    assert divergence(graph, other) == ("op", None, "again")


def test_a_weight_that_two_layers_share() -> None:
    graph = DECODER.build()
    norms = [n for n in graph.nodes if "rms_norm" in n.target]
    shared = norms[0].args[1]
    other = copy(graph, on(norms[2].name, lambda n: setattr(n, "args", (n.args[0], shared, n.args[2]))))
    kind, _a, _b = divergence(graph, other)
    assert kind == "input"


def test_another_shape_of_a_weight() -> None:
    one, other = (Decoder((Layers("dense", 2, inner=n),)).build() for n in (4, 8))
    assert divergence(one, other)[0] == "op"


def test_other_outputs() -> None:
    graph = DECODER.build()
    name = first(graph, "aten.add.Tensor", 2)
    other = copy(graph)
    other.output.args = ((*other.output.args[0], Ref(name)),)  # type: ignore[misc]
    assert divergence(graph, other)[0] == "output"


def test_outputs_in_another_order() -> None:
    graph = DECODER.build()
    name = first(graph, "aten.add.Tensor", 2)
    both = [copy(graph), copy(graph)]
    (last,) = graph.output.args[0]  # type: ignore[misc]
    both[0].output.args = ((last, Ref(name)),)
    both[1].output.args = ((Ref(name), last),)
    assert divergence(both[0], both[1])[0] == "output"


def test_written_caches_in_another_order_are_the_same() -> None:
    graph = Decoder((Layers("dsa", 2),)).build()
    (items,) = graph.output.args
    assert isinstance(items, tuple)
    other = copy(graph)
    other.output.args = ((items[2], items[0], items[3], items[1], items[4]),)
    assert_equivalent(graph, other)


def test_a_declared_layout() -> None:
    def build(text: str) -> Graph:
        b = Builder()
        x = b.input("x", (4, 8), layout=text)
        return b.graph(b.all_gather(b.silu(x)))

    assert_equivalent(build("[T/4@tp, 8]"), build("[S/4@tp, 8]"))
    kind, a, b_ = divergence(build("[T/4@tp, 8]"), build("[4, 32/4@tp]"))
    assert kind in ("layout", "shape") and a == b_ == "x"


def test_arguments_that_do_not_fit_the_rule_are_compared_as_they_are() -> None:
    def build(*more: object) -> Graph:
        b = Builder()
        x = b.input("x", (16, 32))
        return b.graph(b.call("aten.view.default", x, x, x, *more, shape=(16, 32)))

    assert_equivalent(build(1), build(1))
    assert not layoutcheck.equivalent(build(1), build(2))


def test_other_groups() -> None:
    kind, _a, _b = divergence(Decoder(ranks=4).build(), Decoder(ranks=2).build())
    assert kind in ("op", "groups")


def test_traffic_is_counted_with_repeats() -> None:
    decoder = Decoder((Layers("dense", 5),), width=32, tokens=16)
    found = layoutcheck.diff(decoder.build("repeated"), decoder.build("expanded"))
    assert found and list(found.traffic) == [("all_reduce", "tp")]
    one, other = found.traffic[("all_reduce", "tp")]
    assert one == other and one is not None
    # two a layer, each 2 (p - 1) / p of 16 x 32 in two bytes
    assert one.count == 10
    assert one.bytes == 10 * 2 * 3 * (16 * 32 * 2) // 4


def test_a_divergence_names_the_first_place_and_both_sides() -> None:
    graph = DECODER.build()
    names = [first(graph, "silu", i) for i in (1, 3)]

    def change(node: Node) -> None:
        if node.name in names:
            node.target = "aten.relu.default"

    found = layoutcheck.diff(DECODER.build("repeated"), copy(graph, change))
    assert found.divergence is not None and found.divergence.b.node == names[0]
    assert "repeat 2 of 2 of region 0" in found.divergence.a.place
    assert found.divergence.a.call.startswith("silu(") and found.divergence.b.call.startswith("relu(")
    assert found.matched < min(found.calls)
    text = str(found)
    assert "first divergence (op)" in text and names[0] in text and names[1] not in text


# ---- fusion classes


BOOK = RuleBook.load()
CLASSES = sorted(FusionBook.load().classes)


@pytest.mark.parametrize("target", CLASSES)
def test_classes_name_the_ops_own_parameters(target: str) -> None:
    found = FusionBook.load().classes[target]
    rule = BOOK.lookup(target)
    assert rule is not None and set(found.params) <= set(rule.param_names)
    for part in found.parts:
        of = BOOK.lookup(part.target)
        assert of is not None
        assert len([p for p in of.params if p.required]) <= len(part.args) <= len(of.params)


def fused_graph(target: str, local: bool) -> Graph:
    """A graph with one fused op; operands are rows of 32 channels, everything else its default or a small literal."""
    found = FusionBook.load().classes[target]
    b = Builder()
    x = b.input("x", (4 if local else 16, 32), layout="[T/4@tp, 32]" if local else "[T, 32]")
    rows = {"x": x, "residual": b.silu(x), "weight": b.weight(32)}
    literals: dict[str, object] = {"eps": 1e-6, "dims": (-1,), "group_size": 32, "quant_offset": None}
    rule = BOOK.lookup(target)
    assert rule is not None
    args: list[object] = []
    for p in rule.params:
        if p.name == "quant_scale":
            args.append(b.input("scale", (1,), "float32"))
        elif p.name in rows:
            args.append(rows[p.name])
        elif p.required:
            args.append(literals[p.name])
    if len(found.outputs) == 1:
        return b.graph(b.call(target, *args, shape=x.shape))
    metas = [(x.shape, "bfloat16")] * len(found.outputs)
    graph = b.graph(*b.call_many(target, *args, metas=metas))
    for node in graph.nodes:
        if node.op == "call_function" and node.target in (target, "operator.getitem"):
            node.meta = None
    return graph


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("target", CLASSES)
def test_a_fused_op_has_the_layouts_of_its_parts(target: str, local: bool) -> None:
    graph = fused_graph(target, local)
    plain = unfuse(graph).validate()
    assert all(n.target != target for n in plain.nodes)
    reports = [layoutcheck.check(g) for g in (graph, plain)]
    assert [len([f for f in r.findings if f.severity.value == "error"]) for r in reports] == [0, 0]
    outputs = [[r.layout_text(ref) for ref in g.output.refs()] for r, g in zip(reports, (graph, plain))]
    assert outputs[0] == outputs[1] and all(outputs[0])
    assert_equivalent(graph, plain)


def test_a_tuple_that_is_read_as_a_whole_stays_fused() -> None:
    graph = fused_graph("tensor_cast.add_rms_norm2.default", False)
    fused = first(graph, "add_rms_norm2")
    graph.output.args = ((Ref(fused),),)
    assert unfuse(graph) is graph or fused in {n.name for n in unfuse(graph).nodes}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("    y = a.b(x)\n", "without a fused op"),
        ("a.f(x)\n", "expected"),
        ("a.f(x) -> y\n    y = a.b(z)\n", "neither a parameter"),
        ("a.f(x) -> y\n    z = a.b(x)\n", "no part gives"),
        ("a.f(x) -> y\n    x = a.b(x)\n", "stands for something"),
        ("a.f(x) -> y\n    y = a.b(x)\na.f(x) -> y\n    y = a.c(x)\n", "stands for something"),
        ("a.f(x) -> y\n    y a.b(x)\n", "expected"),
    ],
)
def test_mistakes_in_fusion_files(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        parse_fusion(text, "mine.fusion")
    assert "mine.fusion:" in str(caught.value)


def test_a_class_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.rules").write_text("mine.silu_mul(a, b)\n    elementwise\n")
    (tmp_path / "mine.fusion").write_text(
        "mine.silu_mul(a, b) -> y\n    s = tensor_cast.silu(a)\n    y = aten.mul.Tensor(s, b)\n"
    )

    def build(fused: bool) -> Graph:
        b = Builder()
        x, y = b.input("x", (16, 32)), b.input("y", (16, 32))
        if fused:
            return b.graph(b.call("mine.silu_mul.default", x, y, shape=(16, 32)))
        return b.graph(b.multiply(b.silu(x), y))

    assert_equivalent(build(True), build(False), rules=[tmp_path])
    assert not layoutcheck.equivalent(build(True), build(False))


# ---- the command


def saved(tmp_path: Path, **graphs: Graph) -> list[str]:
    paths = []
    for name, graph in graphs.items():
        path = str(tmp_path / f"{name}.json")
        layoutcheck.save(graph, path)
        paths.append(path)
    return paths


def test_the_command_says_that_two_graphs_are_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = saved(tmp_path, a=DECODER.build(), b=DECODER.build("repeated"))
    assert main(["diff", *paths]) == 0
    assert "equivalent" in capsys.readouterr().out


def test_the_command_prints_the_divergence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = DECODER.build()
    name = first(graph, "silu")
    other = copy(graph, on(name, lambda n: setattr(n, "target", "aten.relu.default")))
    paths = saved(tmp_path, a=graph, b=other)
    assert main(["diff", *paths]) == 1
    assert "first divergence (op)" in capsys.readouterr().out
    assert main(["diff", *paths, "--format", "json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["format"] == "layoutcheck-diff/1" and data["divergence"]["a"]["node"] == name
    assert not data["equivalent"]


def test_the_command_takes_numbers_of_repeats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = saved(tmp_path, a=Decoder((Layers("dense", 61),)).build("repeated"), b=DECODER_TWO.build())
    assert main(["diff", *paths]) == 1
    assert main(["diff", *paths, "--repeats", "2"]) == 0
    assert main(["diff", *paths, "--repeats", "two"]) == 2
    capsys.readouterr()


DECODER_TWO = Decoder((Layers("dense", 2),))


def test_fold_and_expand_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = saved(tmp_path, a=DECODER.build())
    folded, again = str(tmp_path / "f.json.gz"), str(tmp_path / "e.json")
    assert main(["fold", path, "-o", folded]) == 0
    out = capsys.readouterr().out
    assert "region 0: 2 repeats" in out and "region 1: 2 repeats" in out
    assert main(["expand", folded, "-o", again]) == 0
    assert main(["diff", again, path]) == 0
    assert main(["expand", folded, "-o", str(tmp_path / "x.txt")]) == 2


def test_help_names_the_options() -> None:
    from layoutcheck.cli.app import app

    for command in ("expand", "fold", "diff"):
        result = CliRunner().invoke(app, [command, "--help"])
        assert result.exit_code == 0 and "--rules" in result.output


# ---- the reference graphs


@pytest.mark.shared
def test_the_gathered_residual_of_a_reference_graph(shared_graphs: Path) -> None:
    """The rewriting of the expanded form gathers the residual between its two MoE layers; that of the repeated form does not."""
    a, b = (shared_graphs / f"dsv3_bf16_prefill_{form}.after.json.gz" for form in ("repeated", "expanded5"))
    found = layoutcheck.diff(a, b, repeats=[3, 2])
    assert found.divergence is not None and found.divergence.kind == "op"
    assert found.divergence.b.node == "all_gather_default_8"
    assert "repeat 1 of 2" in found.divergence.a.place
    assert "residual, between layers 3 (moe) and 4 (moe)" in found.divergence.a.place
    assert found.divergence.b.place == "reads residual, between layers 3 (moe) and 4 (moe)"
    assert found.divergence.a.node == "add_14"
    assert found.divergence.reads == ("getitem_103 in A, getitem_215 in B  f16[1, T/16@tp, 7168]",)
    gathers = found.traffic[("all_gather", "tp")]
    assert gathers[0] is not None and gathers[1] is not None
    assert gathers[1].count == gathers[0].count + 2


@pytest.mark.shared
@pytest.mark.parametrize(
    ("a", "b", "repeats"),
    [
        ("dsv3_bf16_prefill_repeated.before", "dsv3_bf16_prefill_expanded5.before", [3, 2]),
        ("glm5_prefill_repeated_e32.before", "glm5_prefill_expanded6.before", [3, 3]),
        ("glm5_prefill_repeated_e32.before", "glm5_prefill_expanded78_e32.before", None),
    ],
)
def test_reference_graphs_in_both_forms(
    shared_graphs: Path, a: str, b: str, repeats: list[int] | None
) -> None:
    one, other = (shared_graphs / f"{name}.json.gz" for name in (a, b))
    assert_equivalent(one, other, repeats=repeats)


def test_input_meta_is_compared() -> None:
    graph = DECODER.build()
    name = graph.nodes[0].name
    other = copy(graph, on(name, lambda n: setattr(n, "meta", TensorMeta(n.meta.shape, "float32"))))  # type: ignore[union-attr]
    assert not layoutcheck.equivalent(graph, other)
