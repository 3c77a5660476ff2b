"""Roles are found from dataflow: on built programs of which every part is known, and the same under any names."""

from __future__ import annotations

from typing import Any

import pytest
from support import engine, shared, transform
from support.builder import DIALECTS, GraphBuilder, Json, Val
from support.programs import PROGRAMS, build

from layoutcheck.infer.analysis import Analysis, analyse
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


class Decoder:
    """Layers of sparse attention and a mixture of experts in torch's own ops, with parts that can be left out."""

    def __init__(self, picking: str = "used", gated: bool = True, shared_expert: bool = True) -> None:
        self.b = GraphBuilder(groups={}, T=12, dialect="c10d", dtype="float32")
        self.picking, self.gated, self.shared_expert = picking, gated, shared_expert
        self.marks: dict[str, set[str]] = {}
        self.later: list[Val] = []

    def mark(self, role: str, value: Val) -> Val:
        self.marks.setdefault(role, set()).add(value.made_by)
        return value

    def norm(self, x: Val, role: str) -> Val:
        """Spelled out: the mean of squares, its root, a weight."""
        b, width = self.b, x.shape[-1]
        square = self.mark(role, b.call("aten.pow.Tensor_Scalar", x, 2, shape=x.shape))
        column = (*x.shape[:-1], 1)
        mean = self.mark(role, b.call("aten.mean.dim", square, [-1], True, shape=column))
        shifted = self.mark(role, b.call("aten.add.Tensor", mean, 1e-6, shape=column))
        root = self.mark(role, b.call("aten.rsqrt.default", shifted, shape=column))
        scaled = self.mark(role, b.multiply(x, root))
        return self.mark(role, b.multiply(b.weight((width,)), scaled))

    def attention(self, x: Val) -> Val:
        b, t = self.b, x.shape[0]
        q, k, v = (self.mark("attention.input", b.linear(x, b.weight((8, 16)))) for _ in range(3))
        mask = self.mask(x)
        lift = [b.call("aten.unsqueeze.default", part, 0, shape=(1, t, 8)) for part in (q, k, v)]
        heads = [b.call("aten.unsqueeze.default", part, 0, shape=(1, 1, t, 8)) for part in lift]
        core = b.call("aten.scaled_dot_product_attention.default", *heads, mask, shape=(1, 1, t, 8))
        self.mark("attention.core", core)
        return self.mark("o_proj", b.linear(b.view(core, (t, 8)), b.weight((16, 8))))

    def mask(self, x: Val) -> Val | None:
        """A mask of the keys that an indexer picks, or of those above a bound where there is no top-k."""
        b, t = self.b, x.shape[0]
        if self.picking == "none":
            return None
        queries = b.linear(x, b.weight((4, 16)))
        keys = b.linear(x, b.weight((4, 16)))
        turned = b.call("aten.permute.default", keys, [1, 0], shape=(4, t))
        scores = b.call("aten.mm.default", queries, turned, shape=(t, t))
        if self.picking == "bound":
            kept = b.call("aten.gt.Scalar", scores, 0.0, shape=(t, t), dtype="bool")
        else:
            _, ids = b.call_many(
                "aten.topk.default", scores, 3, metas=[((t, 3), "float32"), ((t, 3), "int64")]
            )
            empty = b.call("aten.new_zeros.default", scores, [t, t], shape=(t, t), dtype="bool")
            kept = b.call("aten.scatter.value", empty, 1, ids, True, shape=(t, t), dtype="bool")
            if self.picking == "used":
                for part in (queries, keys, scores, ids):
                    self.mark("attention.indexer", part)
            else:
                self.later.append(ids)
                return None
        lifted = b.call("aten.unsqueeze.default", kept, 0, shape=(1, t, t), dtype="bool")
        return b.call("aten.unsqueeze.default", lifted, 0, shape=(1, 1, t, t), dtype="bool")

    def experts(self, x: Val) -> Val:
        b, t = self.b, x.shape[0]
        logits = self.mark("moe.gate", b.linear(x, b.weight((6, 16))))
        scores = self.mark("moe.gate", b.call("aten.softmax.int", logits, -1, shape=(t, 6)))
        weights, ids = b.call_many(
            "aten.topk.default", scores, 2, metas=[((t, 2), "float32"), ((t, 2), "int64")]
        )
        self.mark("moe.topk", ids)
        up, down = b.weight((6, 5, 16)), b.weight((6, 16, 5))
        mine = b.call("aten.index.Tensor", up, [ids], shape=(t, 2, 5, 16))
        inner = b.call("aten.einsum.default", "tkfh,th->tkf", [mine, x], shape=(t, 2, 5))
        back = b.call("aten.index.Tensor", down, [ids], shape=(t, 2, 16, 5))
        outer = b.call("aten.einsum.default", "tkhf,tkf->tkh", [back, b.silu(inner)], shape=(t, 2, 16))
        column = b.call("aten.unsqueeze.default", weights, 2, shape=(t, 2, 1))
        scaled = b.call("aten.mul.Tensor", outer, column, shape=(t, 2, 16))
        routed = b.call("aten.sum.dim_IntList", scaled, [1], shape=(t, 16))
        for part in (mine, inner, back, outer, scaled, routed):
            self.mark("moe.routed", part)
        if not self.shared_expert:
            return routed
        gate = self.mark("moe.shared", b.linear(x, b.weight((5, 16))))
        lifted = self.mark("moe.shared", b.silu(gate))
        return b.add(routed, self.mark("moe.shared", b.linear(lifted, b.weight((16, 5)))))

    def build(self, layers: int = 2) -> Json:
        b = self.b
        table = b.weight((32, 16))
        x = self.mark("embedding", b.call("aten.embedding.default", table, b.tokens(), shape=(12, 16)))
        for _ in range(layers):
            x = self.mark("residual", b.add(x, self.attention(self.norm(x, "norm.input"))))
            if self.gated:
                branch = self.experts(self.norm(x, "norm.post_attention"))
            else:
                h = self.norm(x, "norm.post_attention")
                gate = self.mark("mlp.dense", b.linear(h, b.weight((20, 16))))
                acted = self.mark("mlp.dense", b.silu(gate))
                branch = self.mark("mlp.dense", b.linear(acted, b.weight((16, 20))))
            x = self.mark("residual", b.add(x, branch))
        logits = self.mark("lm_head", b.linear(self.norm(x, "norm.final"), b.weight((32, 16))))
        b.output([logits, *self.later])
        return b.graph()


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
    ("picking", "sparse"), [("used", True), ("unused", False), ("bound", False), ("none", False)]
)
def test_sparse_attention_needs_each_of_its_parts(picking: str, sparse: bool) -> None:
    roles = roles_of(Decoder(picking).build())
    assert roles.is_sparse() is sparse
    assert ("attention.indexer" in roles.calls.values()) is sparse
    assert [layer.blocks[0].kind for layer in roles.layers] == ["attention", "attention"]


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
@pytest.mark.parametrize("name", GRAPHS)
def test_names_and_recorded_shapes_play_no_part(name: str) -> None:
    graph = shared.load(name)
    before = roles_of(graph)
    other, _ = transform.rename(transform.anonymise(graph), seed=7)
    after = roles_of(other)
    assert after.calls == before.calls
    assert after.values == before.values
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
