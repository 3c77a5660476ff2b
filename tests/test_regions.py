"""Regions: markers, writing repeats out, finding them again."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import layoutcheck
from layoutcheck.errors import InputError
from layoutcheck.graph import Graph, Node, Ref, SymMeta
from layoutcheck.regions import expand, find_regions, fold
from layoutcheck.regions.expand import Origins
from layoutcheck.regions.repeats import set_repeats
from layoutcheck.rules.rulebook import RuleBook
from layoutcheck.testing import Builder, Decoder, Layers, Value, assert_equivalent, decoders, op_chains

SMALL = (Layers("dense", 3), Layers("moe", 2))
BOOK = RuleBook.load()


def shape(graph: Graph) -> list[tuple[int, int]]:
    """Repeats and carried values of each region."""
    return [(r.repeats, r.carried) for r in find_regions(graph)]


def spelled(graph: Graph) -> list[tuple[str, str, tuple[object, ...]]]:
    """A graph with its nodes numbered, so that two graphs can be compared up to names and ids."""
    number = {node.name: i for i, node in enumerate(graph.nodes)}
    ids: dict[int, int] = {}
    markers = {
        i
        for r in find_regions(graph)
        for i in (*r.begins, *r.ends, *(c for round_ in r.copies for c in round_))
    }

    def arg(value: object, marker: bool) -> object:
        if isinstance(value, Ref):
            return ("node", number[value.name])
        if isinstance(value, tuple):
            return tuple(arg(v, marker) for v in value)
        if marker and isinstance(value, int):
            return ("id", ids.setdefault(value, len(ids)))
        return value

    return [
        (n.op, n.target if n.op == "call_function" else "", tuple(arg(a, i in markers) for a in n.args))
        for i, n in enumerate(graph.nodes)
    ]


def edited(graph: Graph, drop: str | None = None, **targets: str) -> Graph:
    """A copy of a graph without a node, or with other targets."""
    nodes = [
        Node(n.name, n.op, targets.get(n.name, n.target), n.args, dict(n.kwargs), n.meta)
        for n in graph.nodes
        if n.name != drop
    ]
    return Graph(nodes, graph.source, graph.rank, graph.config)


# ---- markers


def test_regions_of_a_repeated_decoder() -> None:
    graph = Decoder(SMALL, carried="state").build("repeated")
    first, second = find_regions(graph)
    assert (first.repeats, first.carried, first.parent) == (3, 2, None)
    assert (second.repeats, second.carried) == (2, 2)
    assert first.ends[-1] < second.begins[0]


def test_nested_regions_know_their_parent() -> None:
    graph = Decoder((Layers("reuse", 2, period=4, nested=True),)).build("repeated")
    outer, inner = find_regions(graph)
    assert inner.parent == outer.id and outer.parent is None
    assert (outer.repeats, inner.repeats) == (2, 3)


def test_ids_may_be_any_integers() -> None:
    graph = Decoder(SMALL).build("repeated")
    ids = {0: -7, 1: 140687004839120}
    markers = [n for n in graph.nodes if n.target in _marker_targets()]
    for node in markers:
        node.args = (node.args[0], ids[node.args[1]])  # type: ignore[index]
    assert [r.id for r in find_regions(graph)] == [-7, 140687004839120]
    assert_equivalent(graph, Decoder(SMALL).build("expanded"))


def _marker_targets() -> set[str]:
    from layoutcheck.regions.markers import marker_ops

    ops = marker_ops(BOOK)
    return {ops.begin, ops.end, ops.copy}


@pytest.mark.parametrize(
    ("drop", "message"),
    [
        ("_internal_mark_region_begin", "reads"),
        ("_internal_mark_region_end", "reads"),
    ],
)
def test_a_missing_marker_is_no_valid_graph(drop: str, message: str) -> None:
    graph = edited(Decoder(SMALL).build("repeated"), drop)
    with pytest.raises(InputError, match=message):
        graph.validate()


def _marked(*markers: tuple[str, str, str, int]) -> Graph:
    from layoutcheck.regions.markers import marker_ops

    ops = marker_ops(BOOK)
    target = {"begin": ops.begin, "end": ops.end, "copy": ops.copy, "silu": "aten.silu.default"}
    nodes = [Node("x", "placeholder", "x")]
    for name, kind, value, region in markers:
        args: tuple[object, ...] = (Ref(value),) if kind == "silu" else (Ref(value), region)
        nodes.append(Node(name, "call_function", target[kind], args))  # type: ignore[arg-type]
    nodes.append(Node("output", "output", "output", ((Ref(nodes[-1].name),),)))
    return Graph(nodes)


@pytest.mark.parametrize(
    ("markers", "message"),
    [
        ([("e", "end", "x", 1)], "has not begun"),
        ([("c", "copy", "x", 1)], "has not begun"),
        ([("b", "begin", "x", 1), ("s", "silu", "b", 0)], "has no end"),
        ([("b", "begin", "x", 1), ("c", "copy", "b", 1), ("e", "end", "c", 1)], "copied before its end"),
        ([("b", "begin", "x", 1), ("e", "end", "b", 1), ("b2", "begin", "e", 1)], "begins again"),
        (
            [("b", "begin", "x", 1), ("e", "end", "b", 1), ("e2", "end", "e", 1)],
            "ends inside of another one, or twice",
        ),
        (
            [("b", "begin", "x", 1), ("b2", "begin", "b", 2), ("e", "end", "b2", 1), ("e2", "end", "e", 2)],
            "ends inside of another one",
        ),
        (
            [("b", "begin", "x", 1), ("b1", "begin", "x", 1), ("e", "end", "b", 1), ("e1", "end", "b1", 1)]
            + [("c", "copy", "e", 1)],
            "no multiple",
        ),
    ],
)
def test_markers_that_do_not_pair_up(markers: list[tuple[str, str, str, int]], message: str) -> None:
    graph = _marked(*markers)
    with pytest.raises(InputError, match=message) as raised:
        find_regions(graph)
    (found,) = layoutcheck.check(graph).errors
    assert (found.code, found.node) == ("LC903", raised.value.where)
    assert found.message == f"the markers of repeated bodies do not pair up: {raised.value.message}"


@pytest.mark.parametrize("region", [[1], {"a": 1}, (1, [2]), {1}])
def test_a_marker_made_in_memory_with_an_id_of_another_type(region: object) -> None:
    """A graph file cannot say this, a list in place of the id's integer."""
    graph = _marked(("b", "begin", "x", region), ("e", "end", "b", region))  # type: ignore[arg-type]
    for use in (fold, expand, find_regions):
        with pytest.raises(InputError) as raised:
            use(graph)
        assert raised.value.where == "b"


def test_a_list_in_a_graph_made_in_memory_is_named() -> None:
    graph = _marked(("s", "silu", "x", 0))
    graph.nodes[1].args = (Ref("x"), (1, [2]))
    with pytest.raises(InputError, match=r"s: has an argument that no graph has: \[2\]"):
        fold(graph)


# ---- expand


def test_expansion_has_no_regions_and_every_repeat() -> None:
    graph = Decoder(SMALL).build("repeated")
    found = expand(graph).validate()
    assert find_regions(found) == []
    # one attention a layer
    assert sum("scaled_dot_product" in n.target for n in found.nodes) == 5


def test_every_repeat_has_weights_and_caches_of_its_own() -> None:
    decoder = Decoder((Layers("dsa", 3),))
    written, found = decoder.build("repeated"), expand(decoder.build("repeated"))
    by_hand = decoder.build("expanded")
    inputs = [sum(n.op == "placeholder" for n in g.nodes) for g in (written, found, by_hand)]
    assert inputs[1] == inputs[2] > inputs[0]
    caches = [
        [n.meta for n in g.nodes if n.op == "placeholder" and "cache" in n.name] for g in (found, by_hand)
    ]
    assert len(caches[0]) == len(caches[1]) == 6
    # what says where tokens are is everybody's
    assert sum(n.name.startswith("slots") for n in found.nodes if n.op == "placeholder") == 1


def test_the_output_shows_the_caches_of_every_repeat() -> None:
    graph = expand(Decoder((Layers("dsa", 3),)).build("repeated"))
    (items,) = graph.output.args
    assert isinstance(items, tuple) and len(items) == 3 * 2 + 1


def test_origins_say_where_nodes_come_from() -> None:
    graph = Decoder((Layers("reuse", 2, period=3, nested=True),)).build("repeated")
    outer, inner = find_regions(graph)
    origins = Origins()
    found = expand(graph, origins=origins)
    places = {where for _name, where in origins.of.values() if where}
    assert ((outer.id, 1), (inner.id, 1)) in places and ((outer.id, 0), (inner.id, 0)) in places
    assert set(origins.of) <= {n.name for n in found.nodes}


def test_a_graph_without_regions_stays_as_it_is() -> None:
    graph = Decoder(SMALL).build("expanded")
    assert expand(graph) is graph


def test_an_inner_value_read_from_outside_is_an_error() -> None:
    graph = Decoder((Layers("dense", 2),)).build("repeated")
    inner = next(n.name for n in graph.nodes if n.target == "tensor_cast.silu.default")
    last = graph.nodes[-2]
    last.args = (Ref(inner), *last.args[1:])
    with pytest.raises(InputError, match="leaves a region through an end marker"):
        expand(graph)


def test_shared_values_made_inside_of_a_body_may_be_read_outside() -> None:
    graph = _marked(
        ("b", "begin", "x", 1), ("s", "silu", "b", 0), ("e", "end", "s", 1), ("c", "copy", "e", 1)
    )
    graph.nodes.insert(0, Node("y", "placeholder", "y"))
    graph.nodes.insert(3, Node("shared", "call_function", "aten.silu.default", (Ref("y"),)))
    graph.nodes.insert(-1, Node("late", "call_function", "aten.add.Tensor", (Ref("c"), Ref("shared"))))
    graph.nodes[-1].args = ((Ref("late"),),)
    assert len(expand(graph).validate().nodes) == 2 + 2 * 2 + 1 + 1


# ---- other numbers of repeats


@pytest.mark.parametrize("numbers", [(1, 1), (2, 5), (6, 1), (3, 2)])
@pytest.mark.parametrize("carried", ["hidden", "state"])
def test_other_numbers_of_repeats(numbers: tuple[int, int], carried: str) -> None:
    graph = Decoder(SMALL, carried=carried).build("repeated")
    wanted = Decoder((Layers("dense", numbers[0]), Layers("moe", numbers[1])), carried=carried)
    assert_equivalent(expand(graph, repeats=numbers), wanted.build("expanded"))
    assert [r.repeats for r in find_regions(set_repeats(graph, numbers))] == list(numbers)


def test_numbers_of_repeats_by_id() -> None:
    graph = Decoder(SMALL).build("repeated")
    assert [r.repeats for r in find_regions(set_repeats(graph, {1: 9}))] == [3, 9]


@pytest.mark.parametrize("numbers", [(0, 1), (1,), (1, 2, 3), (1, 10**9)])
def test_impossible_numbers_of_repeats(numbers: tuple[int, ...]) -> None:
    with pytest.raises(InputError):
        set_repeats(Decoder(SMALL).build("repeated"), numbers)


def test_an_expansion_that_is_too_large_is_refused() -> None:
    graph = Decoder(SMALL).build("repeated")
    with pytest.raises(InputError, match="more than"):
        expand(graph, repeats=(900_000, 2))


# ---- fold


@pytest.mark.parametrize("carried", ["hidden", "state"])
@pytest.mark.parametrize("style", ["tp", "sp"])
@pytest.mark.parametrize("fused", [False, True])
def test_fold_finds_the_stacks(style: str, fused: bool, carried: str) -> None:
    decoder = Decoder(SMALL, style=style, fused=fused, carried=carried, mtp=True)
    found = fold(decoder.build("expanded"))
    values = 1 if carried == "hidden" else 2
    assert shape(found) == [(3, values), (2, values)]
    assert_equivalent(found, decoder.build("repeated"))


def test_the_pair_form_folds_to_its_one_residual_stream() -> None:
    """Where the update is added at the next layer's start, the cut behind the addition carries one value."""
    decoder = Decoder((Layers("dense", 4),), carried="pair", fused=True)
    found = fold(decoder.build("expanded"))
    assert shape(found) == [(4, 1)]
    assert_equivalent(found, decoder.build("repeated"))


def test_without_fusion_the_first_layer_is_another_one() -> None:
    """The first norm stands alone while later ones are fused with the addition before them."""
    decoder = Decoder((Layers("dense", 5),), carried="pair", fused=True)
    graph = decoder.build("expanded")
    fused = fold(graph, fusion=False)
    assert_equivalent(fused, graph)
    assert len(fused.nodes) < len(graph.nodes)


def test_a_period_of_several_layers() -> None:
    graph = Decoder((Layers("reuse", 3, period=4),)).build("expanded")
    found = fold(graph)
    assert shape(found) == [(3, 1)]
    assert sum("mla_sparse" in n.target for n in found.nodes) == 4


def test_nested_folding() -> None:
    decoder = Decoder((Layers("reuse", 3, period=4, nested=True),))
    found = fold(decoder.build("expanded"), nested=True)
    assert [(r.repeats, r.parent is None) for r in find_regions(found)] == [(3, True), (3, False)]
    assert_equivalent(found, decoder.build("repeated"))


def test_own_and_shared_inputs_survive() -> None:
    """A weight that all layers share is shared again after expansion, though its role would make it each layer's own."""
    decoder = Decoder((Layers("dense", 3),))
    graph = decoder.build("expanded")
    norms = [n for n in graph.nodes if n.target == "tensor_cast.rms_norm.default"]
    for node in norms[:-1]:
        node.args = (node.args[0], norms[0].args[1], *node.args[2:])
    used = {ref for n in graph.nodes for ref in n.refs()}
    graph = Graph([n for n in graph.nodes if n.op != "placeholder" or n.name in used], "", 0, graph.config)
    found = fold(graph)
    assert shape(found) == [(3, 1)]
    assert_equivalent(expand(found), graph)
    assert not layoutcheck.equivalent(expand(found), decoder.build("expanded"))


def test_layers_that_differ_are_not_folded() -> None:
    graph = Decoder((Layers("dense", 2),)).build("expanded")
    silu = next(n for n in graph.nodes if "silu" in n.target)
    assert shape(fold(edited(graph, **{silu.name: "aten.relu.default"}))) == []


def test_a_value_read_out_of_an_early_layer_ends_the_region_before_it() -> None:
    graph = Decoder((Layers("dense", 5),)).build("expanded")
    silus = [n.name for n in graph.nodes if "silu" in n.target]
    last = graph.nodes[-2]
    shown = graph.output
    shown.args = ((Ref(silus[3]), Ref(last.name)),)
    found = fold(graph)
    assert shape(found) == [(3, 1)]
    assert_equivalent(found, graph)


@pytest.mark.parametrize("twice", [False, True])
def test_hidden_states_of_every_layer_in_the_output(twice: bool) -> None:
    """The last layer's hidden states are shown as those of every layer, and leave the region besides."""
    b = Builder(expanded=True)
    x = b.input("x", (16, 32))
    for _ in range(4):
        x = b.add(x, b.silu(b.norm(x)))
        b.show(x)
    graph = b.graph(*([x] if twice else []), b.norm(x))
    found = fold(graph)
    assert shape(found) == [(4, 1)]
    assert_equivalent(found, graph)


def test_two_values_shown_layer_by_layer_and_one_after_the_other() -> None:
    def build(by_layer: bool) -> Graph:
        b = Builder(expanded=True)
        x = b.input("x", (16, 32))
        first, second = [], []
        for _ in range(3):
            first.append(b.norm(x))
            second.append(b.silu(first[-1]))
            x = b.add(x, second[-1])
        pairs = [v for pair in zip(first, second) for v in pair]
        return b.graph(*(pairs if by_layer else [*first, *second]), x)

    assert shape(fold(build(True))) == [(3, 1)]
    for graph in (build(True), build(False)):
        assert_equivalent(fold(graph), graph)


def test_sizes_that_layers_share_belong_to_none_of_them() -> None:
    """Exporters compute a size once, in the layer that needs it first, or once more in each layer."""

    def build(shared: bool) -> Graph:
        b = Builder(expanded=True)
        t = b.input("t", (), "int64")
        x = b.input("x", (16, 32))
        size: Value | None = None
        for _ in range(3):
            y = b.norm(x)
            if size is None or not shared:
                size = b.call("operator.mul", t, 2, shape=())
            y = b.call("aten.view.default", y, (size, -1), shape=(32, 16))
            x = b.add(x, b.call("aten.view.default", b.silu(y), (t, -1), shape=(16, 32)))
        graph = b.graph(x)
        for node in graph.nodes:
            if node.name == t.name or node.target == "operator.mul":
                node.meta = SymMeta(16 if node.name == t.name else 32)
        return graph

    graphs = [build(shared) for shared in (True, False)]
    folded = [fold(g).validate() for g in graphs]
    assert [shape(g) for g in folded] == [[(3, 1)], [(3, 1)]]
    assert [sum(n.target == "operator.mul" for n in g.nodes) for g in folded] == [1, 1]
    for a in (*graphs, *folded):
        assert_equivalent(a, graphs[0])


def test_fold_leaves_regions_that_are_there() -> None:
    graph = Decoder(SMALL).build("repeated")
    assert fold(graph) is graph


@settings(max_examples=150)
@given(decoders(carried=("hidden", "state")))
def test_fold_undoes_expand(decoder: Decoder) -> None:
    """fold(expand(g)) is g up to names, for regions that carry no more than they have to and are not nested."""
    graph = decoder.build("repeated")
    if any(r.parent is not None for r in find_regions(graph)):
        decoder = decoder_without_nesting(decoder)
        graph = decoder.build("repeated")
    neighbours = [(a.kind, a.heads, a.inner, a.period) for a in decoder.stack]
    if len(set(neighbours)) < len(neighbours):
        # Two stacks of the same layers are one stack.
        assert_equivalent(fold(expand(graph)), graph)
        return
    found = fold(expand(graph))
    assert spelled(found) == spelled(graph)


def decoder_without_nesting(decoder: Decoder) -> Decoder:
    import attrs

    return attrs.evolve(decoder, stack=tuple(attrs.evolve(s, nested=False) for s in decoder.stack))


@settings(max_examples=150)
@given(decoders())
def test_expand_undoes_fold(decoder: Decoder) -> None:
    graph = decoder.build("expanded")
    found = fold(graph, nested=True)
    assert find_regions(found)
    assert_equivalent(expand(found), graph)


@settings(max_examples=150)
@given(op_chains(streams=3))
def test_chains_fold_and_expand(chain: object) -> None:
    graph = chain.build("expanded")  # type: ignore[attr-defined]
    assert_equivalent(expand(fold(graph)), graph)
    assert_equivalent(chain.build("repeated"), graph)  # type: ignore[attr-defined]


def disturbed(graph: Graph, random: Random, times: int) -> Graph:
    """A copy of a graph with a few calls made other ones, read other values of their shape, or written once more."""
    nodes = [Node(n.name, n.op, n.target, n.args, dict(n.kwargs), n.meta) for n in graph.nodes]
    for _ in range(times):
        calls = [i for i, n in enumerate(nodes) if n.op == "call_function" and n.target != "operator.getitem"]
        i = random.choice(calls)
        node = nodes[i]
        kind = random.randrange(3)
        if kind == 0 and node.target == "tensor_cast.silu.default":
            node.target = "aten.relu.default"
        elif kind == 1:
            metas = {n.name: n.meta for n in nodes}
            earlier = [n.name for n in nodes[:i]]
            node.args = tuple(
                Ref(random.choice([e for e in earlier if metas[e] == metas[a.name]]))
                if isinstance(a, Ref)
                else a
                for a in node.args
            )
        else:
            args = dict(node.kwargs)
            nodes.insert(
                i, Node(f"{node.name}_{len(nodes)}", node.op, node.target, node.args, args, node.meta)
            )
    return Graph(nodes, graph.source, graph.rank, graph.config)


@settings(max_examples=150)
@given(decoders(max_repeats=5), st.randoms(use_true_random=False), st.integers(1, 3), st.booleans())
def test_disturbed_layers_fold_and_expand(decoder: Decoder, random: Random, times: int, nested: bool) -> None:
    """Layers with a difference in one of them: what is folded around it is still the same program."""
    graph = disturbed(decoder.build(), random, times).validate()
    assert_equivalent(expand(fold(graph, nested=nested)).validate(), graph)


# ---- the reference graphs


@pytest.mark.shared
def test_fold_of_78_layers(shared_graphs: Path) -> None:
    graph = layoutcheck.load(shared_graphs / "glm5_prefill_expanded78_e32.before.json.gz")
    found = fold(graph)
    assert shape(found) == [(3, 1), (75, 1)]
    written = layoutcheck.load(shared_graphs / "glm5_prefill_repeated_e32.before.json.gz")
    assert shape(written) == [(3, 1), (75, 1)]
    assert_equivalent(found, written)


@pytest.mark.shared
@pytest.mark.parametrize(
    "name",
    [
        "glm5_prefill_repeated_e32.before",
        "glm5_prefill_repeated.before",
        "dsv3_bf16_prefill_repeated.before",
        "dsv3_bf16_prefill_repeated.after",
    ],
)
def test_fold_undoes_expand_on_reference_graphs(shared_graphs: Path, name: str) -> None:
    graph = layoutcheck.load(shared_graphs / f"{name}.json.gz")
    found = fold(expand(graph))
    assert shape(found) == shape(graph)
    assert len(found.nodes) == len(graph.nodes)
    assert_equivalent(found, graph, repeats=[3, 2])


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "regions"),
    [
        ("llama_tiny.pt2", [(3, 1)]),
        ("qwen3_moe_tiny.pt2", [(3, 1)]),
        ("glm_moe_dsa_tiny.pt2", [(2, 1)]),
        ("deepseek_v3_true4_meta.pt2", [(3, 1)]),
        ("tp_llama_sp_ws4_dyn.pt2", [(2, 1)]),
        ("qwen3_8b_prefill_expanded4.after.json.gz", [(4, 1)]),
        ("glm5_prefill_expanded6.after.json.gz", [(3, 1), (3, 1)]),
    ],
)
def test_layers_of_exports_are_found(shared_graphs: Path, name: str, regions: list[tuple[int, int]]) -> None:
    graph = layoutcheck.load(shared_graphs / name)
    found = fold(graph).validate()
    assert shape(found) == regions
    assert_equivalent(found, graph)


@pytest.mark.shared
def test_expansion_of_the_mtp_graph(shared_graphs: Path) -> None:
    graph = layoutcheck.load(shared_graphs / "glm5_prefill_mtp1_repeated.before.json.gz")
    found = expand(graph).validate()
    assert shape(fold(found))[:2] == shape(graph)[:2]
