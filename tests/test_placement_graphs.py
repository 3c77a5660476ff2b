"""Placement on the reference graphs: what is inserted, that it holds the contract, and that it is found again."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

import layoutcheck
import layoutcheck.graph
from layoutcheck.placement.annotated import AnnotatedGraph, annotate
from layoutcheck.placement.certificate import verify
from layoutcheck.placement.provenance import RECORD

SHARED = Path(__file__).parent.parent.parent / "shared" / "graphs"
pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="the reference graphs are not beside the project")

# Graph, contract, and how many conversions run under prices by bytes.
PLACED = [
    ("glm5_prefill_repeated", "dsa-cp-prefill", {"all_gather": 82, "reduce_scatter": 4, "slice": 78}),
    ("glm5_prefill_repeated_e32", "dsa-cp-prefill", {"all_gather": 82, "reduce_scatter": 4, "slice": 78}),
    ("glm5_prefill_expanded6", "dsa-cp-prefill", {"all_gather": 10, "reduce_scatter": 4, "slice": 6}),
    ("glm5_prefill_noembtp_expanded6", "dsa-cp-prefill", {"all_gather": 10, "reduce_scatter": 3, "slice": 7}),
    ("glm5_prefill_rank3_expanded5", "dsa-cp-prefill", {"all_gather": 9, "reduce_scatter": 4, "slice": 5}),
    ("glm5_prefill_4100tok_expanded6", "dsa-cp-prefill", {"all_gather": 10, "reduce_scatter": 4, "slice": 6}),
    ("dsv32_prefill_repeated", "dsa-cp-prefill", None),
    ("glm5_prefill_mtp1_repeated", "dsa-cp-prefill", None),
    ("dsv3_bf16_prefill_repeated", "sequence-parallel", None),
    ("dsv3_bf16_prefill_expanded5", "sequence-parallel", {"all_gather": 9, "reduce_scatter": 9}),
    ("qwen3_8b_bf16_prefill_expanded4", "sequence-parallel", {"all_gather": 9, "reduce_scatter": 9}),
    ("qwen3_8b_prefill_expanded4", "sequence-parallel", {"all_gather": 9, "reduce_scatter": 9}),
    (
        "glm5_decode_dp8tp4_spon",
        "mc2-decode",
        {"all_reduce": 3, "slice": 150, "all_gather": 75},
    ),
]


def placed(name: str, contract: str) -> AnnotatedGraph:
    return annotate(SHARED / f"{name}.before.json.gz", contract)


def shape(graph: layoutcheck.Graph) -> list[tuple[object, ...]]:
    """A graph up to the names of its nodes: each call as its target on the calls that it reads."""
    number: dict[str, object] = {}
    out: list[tuple[object, ...]] = []

    def plain(arg: object) -> object:
        name = getattr(arg, "name", None)
        if name in number:
            return number[name]
        if isinstance(arg, tuple):
            return tuple(plain(a) for a in arg)
        return str(arg)

    for node in graph.nodes:
        if node.op == "placeholder":
            number[node.name] = node.name
            continue
        entry = (node.target, plain(node.args), tuple((k, plain(v)) for k, v in sorted(node.kwargs.items())))
        number[node.name] = hash(entry)
        out.append(entry)
    return sorted(out, key=str)


@pytest.mark.parametrize(("name", "contract", "counts"), PLACED)
def test_annotated_graphs_hold_their_contract(
    name: str, contract: str, counts: dict[str, int] | None
) -> None:
    found = placed(name, contract)
    assert [str(f) for f in found.check().findings] == []
    if counts is not None:
        assert found.counts() == counts
    assert verify(found._placed.problem.problem, found._placed.placement) is None
    assert not any(n.meta is not None and 65536 in getattr(n.meta, "shape", ()) for n in found.graph.nodes)


@pytest.mark.parametrize(("name", "contract", "counts"), PLACED)
def test_annotating_again_changes_nothing(name: str, contract: str, counts: dict[str, int] | None) -> None:
    found = placed(name, contract)
    assert annotate(found.graph, contract).graph == found.graph


@pytest.mark.parametrize(("name", "contract", "counts"), PLACED)
def test_conversions_of_unknown_origin_are_taken_out_first(
    name: str, contract: str, counts: dict[str, int] | None
) -> None:
    """Without the record of what the graph was made from, its conversions are found from its layouts."""
    found = placed(name, contract)
    bare = attrs.evolve(found.graph, config={k: v for k, v in found.graph.config.items() if k != RECORD})
    assert shape(annotate(bare, contract).graph) == shape(found.graph)


@pytest.mark.parametrize(
    ("name", "tp", "contract"),
    [
        ("llama_tiny", 4, "sequence-parallel"),
        ("qwen3_moe_tiny", 2, "sequence-parallel"),
        ("glm_moe_dsa_tiny", 4, "dsa-cp-prefill"),
        ("glm_moe_dsa_tiny", 4, "sequence-parallel"),
    ],
)
def test_conversions_around_rows_that_each_rank_sorts_are_taken_out_too(
    name: str, tp: int, contract: str
) -> None:
    """Experts written out sort a rank's rows: without the record these are found as what all ranks' rows would be."""
    found = annotate(SHARED / f"{name}.pt2", contract, groups={"tp": tp})
    bare = attrs.evolve(found.graph, config={k: v for k, v in found.graph.config.items() if k != RECORD})
    again = annotate(bare, contract)
    assert [(i.kind, i.source) for i in again.insertions] == [(i.kind, i.source) for i in found.insertions]
    assert not again.check().findings


@pytest.mark.parametrize(
    "second", ["sequence-parallel", "tensor-parallel", "mc2-decode", "dsa-cp-entry-slice"]
)
def test_another_contract_gives_what_it_gives_of_the_original(second: str) -> None:
    first = placed("glm5_prefill_expanded6", "dsa-cp-prefill")
    assert shape(annotate(first.graph, second).graph) == shape(placed("glm5_prefill_expanded6", second).graph)


def test_padding_of_an_odd_token_count() -> None:
    found = placed("glm5_prefill_4100tok_expanded6", "dsa-cp-prefill")
    texts = set(found.layouts.values())
    assert any("pad(T, 4112)/16@tp" in t for t in texts)
    shares = [n for n in found.graph.nodes if n.name.endswith("_share")]
    assert {n.args[3] for n in shares} == {257}


def test_counts_of_78_layers() -> None:
    expanded = placed("glm5_prefill_expanded78_e32", "dsa-cp-prefill")
    repeated = placed("glm5_prefill_repeated_e32", "dsa-cp-prefill")
    assert expanded.counts() == repeated.counts() == {"all_gather": 82, "reduce_scatter": 4, "slice": 78}
    assert layoutcheck.equivalent(expanded.graph, repeated.graph)


def shapes_by_role(found: AnnotatedGraph) -> dict[str, list[tuple[object, ...]]]:
    """Local shapes of what calls of a role give, in the annotated graph."""
    out: dict[str, list[tuple[object, ...]]] = {}
    for node in found.graph.nodes:
        role = found.roles.get(node.name)
        meta = node.meta[0] if isinstance(node.meta, tuple) else node.meta
        if role is not None and meta is not None and hasattr(meta, "shape"):
            out.setdefault(role, []).append(tuple(meta.shape))
    return out


def test_worked_shapes_of_prefill() -> None:
    """The table of the contract dsa-cp-prefill at 4096 tokens on 16 ranks."""
    found = placed("glm5_prefill_repeated", "dsa-cp-prefill")
    shares = [n for n in found.graph.nodes if n.name.endswith("_share")]
    assert {tuple(n.meta.shape) for n in shares} == {(256, 64, 256)}  # type: ignore[union-attr]
    shapes = shapes_by_role(found)
    assert set(shapes["o_proj"]) == {(256, 6144)}
    assert set(shapes["attention.core"]) == {(4096, 64, 256)}
    assert set(shapes["moe.gate"]) == {(256, 256)}
    assert set(shapes["moe.topk"]) == {(256, 8)}
    assert set(shapes["moe.shared"]) >= {(256, 6144), (256, 2048)}
    assert set(shapes["residual"]) == {(1, 256, 6144)}
    assert (4096, 768) in shapes["mlp.dense"]
    gathered = [n for n in found.graph.nodes if n.name.endswith("_all_gather")]
    assert {tuple(n.meta.shape) for n in gathered} == {(1, 4096, 6144)}  # type: ignore[union-attr]


def test_worked_shapes_of_decode() -> None:
    """Gate on full packed tokens; pad, slice hidden and logits; top-k and experts on a share (9 tokens, dp 8, tp 4)."""
    found = placed("glm5_decode_dp8tp4_spon", "mc2-decode")
    shapes = shapes_by_role(found)
    assert set(shapes["moe.gate"]) == {(9, 256)}
    assert set(shapes["moe.topk"]) == {(3, 8)}
    by_name = {n.name: n for n in found.graph.nodes}
    padded = [n for n in found.graph.nodes if n.name.endswith("_pad")]
    assert {n.args[1] for n in padded} == {(0, 0, 0, 3)}
    cut = [i for i in found.insertions if i.kind == "slice"]
    assert {tuple(by_name[i.nodes[-1]].meta.shape) for i in cut} == {(3, 256), (3, 6144)}  # type: ignore[union-attr]
    assert [i.kind for i in found.insertions if i.times == 75] == ["slice", "slice", "all_gather"]


def test_one_gather_for_the_norm_that_two_ops_read() -> None:
    """The indexer reads the hidden states beside the projections: one gather feeds both, output 0 of the norm only."""
    found = placed("glm5_prefill_expanded6", "dsa-cp-prefill")
    gathers = [i for i in found.insertions if i.kind == "all_gather"]
    into_attention = [i for i in gathers if any(found.roles.get(r) == "attention.indexer" for r in i.readers)]
    assert len(into_attention) == 6
    assert all(len(i.readers) == 2 for i in into_attention)
    residual = {n for n, role in found.roles.items() if role == "residual"}
    assert not any(i.source in residual for i in gathers)


def test_quantised_linears_bring_no_quantised_attention() -> None:
    before = layoutcheck.load(SHARED / "dsv32_prefill_repeated.before.json.gz")
    found = placed("dsv32_prefill_repeated", "dsa-cp-prefill")
    assert {n.target for n in found.graph.nodes} - {n.target for n in before.nodes} <= {
        "tensor_cast.add_rms_norm2.default",
        "tensor_cast.rms_norm.default",
        "aten.add.Tensor",
        "tensor_cast.dynamic_quantize_symmetric.default",
        "tensor_cast.reduce_scatter.default",
        "aten.slice.Tensor",
    }


def test_the_explanation_of_a_gather() -> None:
    found = placed("glm5_prefill_repeated", "dsa-cp-prefill")
    text = found.explain("rms_norm_default_2_all_gather")
    assert text.splitlines()[0] == "all_gather of rms_norm_default_2 (rms_norm_default_2_all_gather)"
    assert "  for      view_14, auto_functionalized_v2_2, 75 times" in text
    assert "without it the contract can't be held" in text


def test_an_indexer_that_reads_the_local_norm_gets_no_gather_of_its_own() -> None:
    """Attention's other inputs are Full already, the indexer reads the rank's share: one gather a layer is all it takes."""
    found = placed("glm5_prefill_repeated_e32", "dsa-cp-prefill")
    local = {f"{i.source}_all_gather": i.source for i in found.insertions if i.kind == "all_gather"}
    nodes = []
    for node in found.graph.nodes:
        hidden = node.kwargs.get("hidden_states")
        name = getattr(hidden, "name", None)
        if name in local:
            node = attrs.evolve(
                node, kwargs={**node.kwargs, "hidden_states": layoutcheck.graph.Ref(local[name])}
            )
        nodes.append(node)
    faulty = attrs.evolve(
        found.graph, nodes=nodes, config={k: v for k, v in found.graph.config.items() if k != RECORD}
    )
    assert nodes != found.graph.nodes
    assert {f.code for f in layoutcheck.check(faulty).errors} != set()
    mended = annotate(faulty, "dsa-cp-prefill")
    assert mended.counts() == found.counts()
    assert mended.check().findings == ()
