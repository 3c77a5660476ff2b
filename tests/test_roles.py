"""Roles are found from dataflow: on built programs of which every part is known, and the same under any names."""

from __future__ import annotations

from typing import Any

import pytest
from support import engine, shared, transform
from support.builder import DIALECTS, GraphBuilder, Val
from support.programs import PROGRAMS, build
from support.sparse_decoder import SparseDecoder as Decoder
from support.streams import FORMS, Streams

from layoutcheck.contracts import check_contract
from layoutcheck.infer.solver.analysis import Analysis, analyse
from layoutcheck.roles import Roles, find_roles, role_at, shared_expert_calls

OPTIONS: dict[str, Any] = {
    "groups": {},
    "rank": None,
    "world": None,
    "tokens": [],
    "layouts": {},
    "assumptions": [],
    "rules": [],
    "plan": None,
    "trust": {},
    "others": [],
}


def analysed(graph: Any) -> Analysis:
    return analyse(engine.load(graph), **OPTIONS)


def roles_of(graph: Any) -> Roles:
    return find_roles(analysed(graph))


def names(analysis: Analysis, roles: Roles, role: str) -> set[str]:
    return {analysis.program.nodes[k].name for k, found in roles.calls.items() if found == role}


@pytest.mark.parametrize("gated", [True, False])
def test_every_role_of_a_spelled_out_decoder(gated: bool) -> None:
    decoder = Decoder(gated=gated)
    analysis = analysed(decoder.build())
    roles = find_roles(analysis)
    for role in set(decoder.marks) - {"moe.routed", "attention.indexer"}:
        assert names(analysis, roles, role) == decoder.marks[role], role
    for role in {"moe.routed", "attention.indexer"} & set(decoder.marks):
        assert names(analysis, roles, role) >= decoder.marks[role], role
    assert {role for role in roles.calls.values()} == set(decoder.marks)
    assert [[b.kind for b in layer.blocks] for layer in roles.layers] == [
        ["attention", "moe" if gated else "dense"]
    ] * 2


@pytest.mark.parametrize(
    ("picking", "sparse"),
    [("used", True), ("unused", False), ("bound", False), ("fixed", False), ("none", False)],
)
def test_sparse_attention_needs_each_of_its_parts(picking: str, sparse: bool) -> None:
    roles = roles_of(Decoder(picking).build())
    assert roles.is_sparse() is sparse
    assert ("attention.indexer" in roles.calls.values()) is sparse
    assert [layer.blocks[0].kind for layer in roles.layers] == ["attention", "attention"]


@pytest.mark.parametrize("shared_expert", [True, False])
def test_experts_that_a_table_chooses(shared_expert: bool) -> None:
    """No top-k: the ids of the input are looked up, and the gate only weighs what the table gives."""
    decoder = Decoder(tabled=True, shared_expert=shared_expert)
    analysis = analysed(decoder.build())
    roles = find_roles(analysis)
    assert [[b.kind for b in layer.blocks] for layer in roles.layers] == [["attention", "moe"]] * 2
    for role in ("moe.gate", "moe.topk", "moe.shared"):
        assert names(analysis, roles, role) == decoder.marks.get(role, set()), role
    assert names(analysis, roles, "moe.routed") >= decoder.marks["moe.routed"]


def test_experts_without_a_shared_one() -> None:
    analysis = analysed(Decoder(shared_expert=False).build())
    roles = find_roles(analysis)
    assert not shared_expert_calls(analysis, roles)
    branches = roles.moe_branches(0)
    assert branches["moe.routed"] and not branches["moe.shared"]


def test_layers_begin_at_a_norm_and_end_at_a_join() -> None:
    decoder = Decoder()
    analysis = analysed(decoder.build(3))
    roles = find_roles(analysis)
    assert len(roles.layers) == 3
    for layer in roles.layers:
        assert roles.of(layer.begin) == "norm.input"
        assert roles.of(layer.end) == "residual"
        assert layer.times == 1
        assert roles.layer_of(layer.begin) is layer
    assert roles.layer_of(0) is None
    first, last = roles.layers[0], roles.layers[-1]
    assert [b.join.total for b in first.blocks] == [
        v for v in roles.values if v in {b.join.total for b in first.blocks}
    ]
    assert roles.final is not None and roles.final.source == last.blocks[-1].join.total


def test_a_residual_stream_through_both_branches_side_by_side() -> None:
    b = GraphBuilder(groups={}, T=12, dialect="c10d")
    x = b.call("aten.embedding.default", b.weight((32, 16)), b.tokens(), shape=(12, 16))
    for _ in range(2):
        h = b.norm(x)
        attended = b.add(x, b.attention(h, 2, 8))
        x = b.add(attended, b.mlp(h, 20))
    b.output([b.linear(b.norm(x), b.weight((32, 16)))])
    roles = roles_of(b.graph())
    assert [[block.kind for block in layer.blocks] for layer in roles.layers] == [["attention", "dense"]] * 2
    assert roles.heads


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("form", FORMS)
def test_a_residual_of_several_streams(form: str, p: int) -> None:
    """Hyper-connections: blocks read a mixture of streams, and what mixes them belongs to no block."""
    program = Streams(form, p)
    analysis = analysed(program.build())
    assert not analysis.solution.issues
    roles = find_roles(analysis)
    assert [[b.kind for b in layer.blocks] for layer in roles.layers] == [["attention", "dense"]] * 2
    for role in (
        "embedding",
        "norm.input",
        "o_proj",
        "norm.post_attention",
        "residual",
        "norm.final",
        "lm_head",
    ):
        assert names(analysis, roles, role) == program.marks[role], role
    assert names(analysis, roles, "mlp.dense") >= program.marks["mlp.dense"]
    for block in roles.blocks:
        inside = [roles.of(k) for k in sorted(block.calls) if analysis.program.outs[k] and roles.of(k)]
        assert inside.count("attention.input") == (3 if block.kind == "attention" else 0)
        assert block.around and not {roles.of(k) for k in block.around} - {None}
        assert block.norm is not None and min(block.around) < block.norm.calls[0]
        assert roles.layer_of(min(block.around)) is roles.layer_of(block.join.call)
    if p > 1:
        assert check_contract(analysis, "tensor-parallel") == []


def test_a_norm_behind_both_branches_and_a_cast_to_the_type_of_another_value() -> None:
    """Side by side behind one norm, attention says what the norm is; `type_as` hands on its first operand."""
    b = GraphBuilder(groups={}, T=12, dialect="c10d", dtype="float32")
    x = b.call("aten.embedding.default", b.weight((32, 16)), b.tokens(), shape=(12, 16))
    h = b.norm(x)
    cast = b.call("aten.type_as.default", h, x, shape=h.shape)
    x = b.add(b.add(x, b.attention(cast, 2, 8)), b.mlp(cast, 20))
    b.output([b.linear(b.norm(x), b.weight((32, 16)))])
    analysis = analysed(b.graph())
    roles = find_roles(analysis)
    assert names(analysis, roles, "norm.input") == {h.made_by}
    assert not names(analysis, roles, "norm.post_attention")
    assert list(roles.calls.values()).count("attention.input") == 3


def spelled_layer_norm(b: GraphBuilder, x: Val, form: str) -> Val:
    """A layer norm with a bias, by the mean of squares of what is left of the mean, or by var_mean."""
    column, width = (*x.shape[:-1], 1), x.shape[-1]
    if form == "var_mean":
        metas = [(column, "float32")] * 2
        var, mean = b.call_many("aten.var_mean.correction", x, [-1], metas=metas)
        b.nodes[-3]["kwargs"] = {"correction": 0, "keepdim": True}
        centred = b.call("aten.sub.Tensor", x, mean, shape=x.shape)
    else:
        mean = b.call("aten.mean.dim", x, [-1], True, shape=column)
        centred = b.call("aten.sub.Tensor", x, mean, shape=x.shape)
        square = b.call("aten.pow.Tensor_Scalar", centred, 2, shape=x.shape)
        var = b.call("aten.mean.dim", square, [-1], True, shape=column)
    root = b.call("aten.rsqrt.default", b.call("aten.add.Tensor", var, 1e-5, shape=column), shape=column)
    scaled = b.multiply(b.multiply(centred, root), b.weight((width,)))
    return b.add(scaled, b.weight((width,)))


@pytest.mark.parametrize("form", ["mean", "var_mean"])
def test_a_spelled_out_layer_norm_with_a_bias(form: str) -> None:
    b = GraphBuilder(groups={}, T=12, dialect="c10d", dtype="float32")
    x = b.call("aten.embedding.default", b.weight((32, 16)), b.tokens(), shape=(12, 16))
    h = spelled_layer_norm(b, x, form)
    x = b.add(x, b.attention(h, 2, 8))
    x = b.add(x, b.mlp(spelled_layer_norm(b, x, form), 20))
    b.output([b.linear(spelled_layer_norm(b, x, form), b.weight((32, 16)))])
    analysis = analysed(b.graph())
    roles = find_roles(analysis)
    assert len(roles.norms) == 3
    block = roles.layers[0].blocks[0]
    assert block.norm is not None and analysis.program.name_of(block.norm.output) == h.name
    assert list(roles.calls.values()).count("attention.input") == 3
    assert {"norm.input", "norm.post_attention", "norm.final", "lm_head"} <= set(roles.calls.values())


def test_positions_that_an_earlier_layer_picked_make_attention_sparse() -> None:
    roles = roles_of(Decoder(picking="first").build(3))
    assert [layer.blocks[0].sparse for layer in roles.layers] == [True, True, True]
    assert [bool(layer.blocks[0].picks) for layer in roles.layers] == [True, False, False]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_parallel_programs_have_the_same_structure(name: str, dialect: str) -> None:
    roles = roles_of(build(name, dialect, PROGRAMS[name][1][0]))
    second = "moe" if name == "expert_parallel" else "dense"
    assert [[b.kind for b in layer.blocks] for layer in roles.layers] == [["attention", second]] * 2
    assert not roles.is_sparse()
    for layer in roles.layers:
        inside = [roles.of(k) for k in sorted(layer.blocks[0].calls) if roles.of(k)]
        assert inside[0] == "attention.input" and inside[-1] == "o_proj"


def test_a_graph_that_is_no_decoder_has_no_layers() -> None:
    b = GraphBuilder(groups={}, T=8, dialect="c10d")
    x = b.input("x", (8, 16))
    b.output([b.linear(b.silu(b.linear(x, b.weight((4, 16)))), b.weight((16, 4)))])
    roles = roles_of(b.graph())
    assert roles.layers == () and not roles.is_sparse() and roles.final is None


GRAPHS = tuple(name for name in shared.ALL_ROOTS if name not in shared.LARGE)
LAYERS = {
    "glm5_prefill_repeated.after.json.gz": ("attention dense", "attention moe"),
    "glm5_prefill_expanded6.before.json.gz": ("attention dense",) * 3 + ("attention moe",) * 3,
    "glm5_prefill_mtp1_repeated.after.json.gz": ("attention dense", "attention moe", "attention moe"),
    "dsv3_bf16_prefill_expanded5.after.json.gz": ("attention dense",) * 3 + ("attention moe",) * 2,
    "qwen3_8b_prefill_expanded4.after.json.gz": ("attention dense",) * 4,
    "glm_moe_dsa_true4_meta.pt2": ("attention dense",) * 3 + ("attention moe",),
    "deepseek_v3_true4_meta.pt2": ("attention dense",) * 3 + ("attention moe",),
    "tp_hf_glm_moe_dsa_ws4.json.gz": ("attention dense", "attention moe"),
    "mega_dsa_cp_ws4_r0.pt2": ("attention moe",) * 2,
    "llama_tiny.pt2": ("attention dense",) * 3,
    "qwen3_moe_tiny.pt2": ("attention moe",) * 3,
}


@pytest.mark.shared
@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_the_reference_graphs(name: str) -> None:
    roles = roles_of(shared.load(name))
    assert tuple(" ".join(b.kind for b in layer.blocks) for layer in roles.layers) == LAYERS[name]
    for layer in roles.layers:
        found = {roles.of(k) for b in layer.blocks for k in b.calls}
        assert {"attention.input", "attention.core", "o_proj"} <= found
        if layer.blocks[-1].kind == "moe":
            assert {"moe.gate", "moe.topk", "moe.routed"} <= found


@pytest.mark.shared
@pytest.mark.parametrize("name", GRAPHS)
def test_sparse_attention_in_the_reference_graphs(name: str) -> None:
    roles = roles_of(shared.load(name))
    wanted = name.startswith(("glm", "dsv32", "tp_hf_glm"))
    assert roles.is_sparse() is wanted
    assert all(roles.is_sparse(layer.index) is wanted for layer in roles.layers)


@pytest.mark.shared
def test_a_fused_attention_that_reads_no_positions_is_dense() -> None:
    """The second of two bodies loses the operand that holds what its indexer picked."""
    graph = shared.load("glm5_prefill_repeated.before.json.gz")
    roles = roles_of(graph)
    analysis = analysed(graph)
    p = analysis.program
    core = roles.layers[1].blocks[0].core[-1]
    picks = roles.layers[1].blocks[0].picks[-1]
    picked = {p.name_of(v) for v in range(p.first[picks], p.first[picks] + p.outs[picks])}
    node = next(n for n in graph["nodes"] if n["name"] == p.nodes[core].name)
    before = [*node["args"], *node.get("kwargs", {}).values()]
    node["args"] = [None if isinstance(a, dict) and a.get("node") in picked else a for a in node["args"]]
    kwargs = {
        key: None if isinstance(a, dict) and a.get("node") in picked and "indices" in key else a
        for key, a in node.get("kwargs", {}).items()
    }
    if kwargs:
        node["kwargs"] = kwargs
    assert [*node["args"], *kwargs.values()] != before
    after = roles_of(graph)
    assert [layer.blocks[0].sparse for layer in after.layers] == [True, False]
    assert [layer.blocks[0].kind for layer in after.layers] == ["attention", "attention"]


@pytest.mark.shared
def test_a_spelled_out_indexer_whose_mask_is_not_read_is_dense() -> None:
    """Every attention goes back to the causal mask that the indexer's mask was joined with."""
    graph = shared.load("glm_moe_dsa_true4_meta.pt2")
    assert roles_of(graph).is_sparse()
    cores = [n for n in graph["nodes"] if n["target"].startswith("aten.scaled_dot_product_attention")]
    joined = {n["name"]: n for n in graph["nodes"] if n["target"] == "aten.__and__.Tensor"}
    for node in cores:
        both = [*node["args"], *node.get("kwargs", {}).values()]
        mask = next(a["node"] for a in both if isinstance(a, dict) and a.get("node") in joined)
        causal = joined[mask]["args"][0] if joined[mask]["args"] else joined[mask]["kwargs"]["self"]
        node["args"] = [causal if a == {"node": mask} else a for a in node["args"]]
        if "kwargs" in node:
            node["kwargs"] = {k: causal if a == {"node": mask} else a for k, a in node["kwargs"].items()}
    roles = roles_of(graph)
    assert len(roles.layers) == 4 and not roles.is_sparse()


@pytest.mark.shared
@pytest.mark.parametrize("name", [*GRAPHS, *shared.LARGE])
def test_names_and_recorded_shapes_play_no_part(name: str) -> None:
    graph = shared.load(name)
    before = roles_of(graph)
    other, _ = transform.rename(transform.strip_shapes(transform.anonymise(graph)), seed=7)
    after = roles_of(other)
    assert after.calls == before.calls
    assert [(x.kind, x.sparse, x.join.call) for x in after.blocks] == [
        (x.kind, x.sparse, x.join.call) for x in before.blocks
    ]
    assert [(x.begin, x.end, x.times) for x in after.layers] == [
        (x.begin, x.end, x.times) for x in before.layers
    ]


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "repeats"), [("glm5_prefill_repeated", [3, 75]), ("dsv32_prefill_repeated", [3, 58])]
)
def test_repeated_bodies_are_counted(name: str, repeats: list[int]) -> None:
    assert [x.times for x in roles_of(shared.load(f"{name}.before.json.gz")).layers] == repeats


@pytest.mark.shared
def test_mixed_tokens_are_placed_in_the_shared_expert() -> None:
    analysis = analysed(shared.load("mega_dsa_cp_ws4_r0.pt2"))
    mixed = [k for k, _, issue in analysis.solution.issues if issue.code == "LC203"]
    assert len(mixed) == 2
    assert {role_at(analysis, k) for k in mixed} == {"moe.shared"}


@pytest.mark.shared
def test_mixed_tokens_of_a_dense_mlp_are_not_the_shared_expert() -> None:
    analysis = analysed(shared.load("dsv32_prefill_repeated.after.json.gz"))
    mixed = [k for k, _, issue in analysis.solution.issues if issue.code == "LC203"]
    assert mixed
    assert {role_at(analysis, k) for k in mixed} == {"mlp.dense"}
