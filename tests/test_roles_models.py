"""Roles in exports of transformers' own models: what reads a weight has the role that the weight's name says.

Names are what the detection does not look at, so they are a witness of their own. The models are tiny; plain exports and
decomposed ones write norms, attention and experts in different ops.
"""

from __future__ import annotations

import re
import warnings
from functools import cache
from typing import Any

import pytest
from support import shared, transform
from support.engine import load
from support.tiny_configs import EXPERTS, INDEXER, LATENT

from layoutcheck import from_fx
from layoutcheck.graph import Graph
from layoutcheck.infer.solver.analysis import Analysis, analyse
from layoutcheck.json_form import graph_to_json
from layoutcheck.roles import Roles, find_roles

ROLE_OF_WEIGHT = {
    r"embed_tokens\.weight": "embedding",
    r"lm_head\.weight": "lm_head",
    r"model\.norm\.weight": "norm.final",
    r"\.input_layernorm\.weight": "norm.input",
    r"\.post_attention_layernorm\.weight": "norm.post_attention",
    r"\.indexer\.(wq_b|q_b_proj|weights_proj|scorer\.weights_proj)\.weight": "attention.indexer",
    r"\.self_attn\.(q|k|v|kv|q_a|kv_a)(_proj|_proj_with_mqa)\.weight": "attention.input",
    r"\.self_attn\.(o|o_b)_proj\.weight": "o_proj",
    r"\.mlp\.(gate|router)\.weight": "moe.gate",
    r"\.mlp\.experts\.\w+": "moe.routed",
    r"\.mlp\.shared_experts?\.\w+_proj\.weight": "moe.shared",
    r"\.mlp\.(gate|up|down)_proj\.weight": "mlp.dense",
}
BASE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "use_cache": False,
}
PLAIN_EXPERTS = {"num_experts_per_tok": 2, "num_experts": 8, "moe_intermediate_size": 16}
FIRST_DENSE = {"first_k_dense_replace": 1}
STREAMS = {
    **{"o_groups": 2, "o_lora_rank": 12, "hc_sinkhorn_iters": 3, "sliding_window": 8, "head_dim": 16},
    "layer_types": ["compressed_sparse_attention", "sliding_attention"],
    "compress_rates": {"compressed_sparse_attention": 2, "heavily_compressed_attention": 4},
    "mlp_layer_types": ["hash_moe", "moe"],
    "num_key_value_heads": 1,
}
# family: (configuration, blocks of each layer, which layers' attention is sparse)
MODELS: dict[str, tuple[dict[str, Any], tuple[str, ...], tuple[int, ...]]] = {
    "Llama": ({}, ("dense", "dense"), ()),
    "Mixtral": ({"num_local_experts": 4}, ("moe", "moe"), ()),
    "Qwen3Moe": (PLAIN_EXPERTS, ("moe", "moe"), ()),
    "GptOss": ({"num_local_experts": 4, "num_experts_per_tok": 2}, ("moe", "moe"), ()),
    "Glm4Moe": ({**EXPERTS, **FIRST_DENSE}, ("dense", "moe"), ()),
    "DeepseekV3": ({**LATENT, **EXPERTS, **FIRST_DENSE}, ("dense", "moe"), ()),
    "DeepseekV32": ({**LATENT, **EXPERTS, **INDEXER, **FIRST_DENSE}, ("dense", "moe"), (0, 1)),
    "GlmMoeDsa": (
        {**LATENT, **EXPERTS, **INDEXER, "mlp_layer_types": ["dense", "sparse"]},
        ("dense", "moe"),
        (0, 1),
    ),
    "DeepseekV4": ({**LATENT, **EXPERTS, **INDEXER, **STREAMS}, ("moe", "moe"), (0,)),
}
DECOMPOSED = ("Qwen3Moe", "GlmMoeDsa")


@cache
def export(family: str, decomposed: bool) -> Graph:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    if not hasattr(transformers, f"{family}Config"):
        pytest.skip(f"this transformers has no {family}")
    config = getattr(transformers, f"{family}Config")(**{**BASE, **MODELS[family][0]})
    config._attn_implementation = "eager" if family in ("GptOss", "DeepseekV4") else "sdpa"
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    inputs = {"input_ids": torch.zeros(1, 12, dtype=torch.int64), "use_cache": False}
    shapes = {"input_ids": {1: torch.export.Dim.DYNAMIC}, "use_cache": None}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(model, (), inputs, dynamic_shapes=shapes, strict=False)
        return from_fx(program.run_decompositions() if decomposed else program)


def analysed(graph: Graph) -> Analysis:
    return analyse(
        graph,
    )


def readers_of(analysis: Analysis, roles: Roles, weight: int) -> set[int]:
    """Calls that make an activation of a weight, also through casts, views and stacks of it."""
    p, flow = analysis.program, roles.flow
    seen: set[int] = set()
    found: set[int] = set()
    todo = [weight]
    while todo:
        for call in flow.readers.get(todo.pop(), ()):
            outs = range(p.first[call], p.first[call] + p.outs[call])
            if any(flow.kinds[v] == "A" for v in outs):
                found.add(call)
            elif call not in seen:
                seen.add(call)
                todo.extend(outs)
    return found


def check_weights(graph: Graph) -> set[str]:
    """Assert that each weight's readers have the role that its name says; the roles that were named."""
    analysis = analysed(graph)
    roles = find_roles(analysis)
    met: set[str] = set()
    for name, spec in graph.inputs.items():
        wanted = next(
            (r for pattern, r in ROLE_OF_WEIGHT.items() if re.search(pattern + "$", spec.fqn or "")), ""
        )
        if wanted and name in analysis.program.by_name:
            found = {roles.of(c) for c in readers_of(analysis, roles, analysis.program.by_name[name])}
            assert found == {wanted}, (spec.fqn, found)
            met.add(wanted)
    return met


@pytest.mark.parametrize(
    ("family", "decomposed"), [*((name, False) for name in MODELS), *((name, True) for name in DECOMPOSED)]
)
def test_weights_are_read_where_their_names_say(family: str, decomposed: bool) -> None:
    graph = export(family, decomposed)
    analysis = analysed(graph)
    assert not [i.code for _, _, i in analysis.solution.issues if i.code == "LC901"]
    roles = find_roles(analysis)
    _, kinds, sparse = MODELS[family]
    assert [[b.kind for b in layer.blocks] for layer in roles.layers] == [["attention", k] for k in kinds]
    assert tuple(layer.index for layer in roles.layers if roles.is_sparse(layer.index)) == sparse
    counts = {role: list(roles.values.values()).count(role) for role in ("residual",)}
    assert counts == {"residual": 2 * len(kinds)}
    assert {"attention.core", "residual"} | ({"moe.topk"} if "moe" in kinds else set()) <= set(
        roles.calls.values()
    )
    met = check_weights(graph)
    wanted = {
        "embedding",
        "norm.input",
        "attention.input",
        "o_proj",
        "norm.post_attention",
        "norm.final",
        "lm_head",
    }
    wanted |= {"mlp.dense"} if "dense" in kinds else set()
    wanted |= {"moe.gate", "moe.routed"} if "moe" in kinds else set()
    wanted |= {"moe.shared"} if "n_shared_experts" in MODELS[family][0] else set()
    wanted |= {"attention.indexer"} if sparse else set()
    assert met == wanted
    if not decomposed:
        check_names_play_no_part(graph, roles)


def check_names_play_no_part(graph: Graph, before: Roles) -> None:
    other, _ = transform.rename(transform.strip_shapes(transform.anonymise(graph_to_json(graph))), seed=11)
    after = find_roles(analysed(load(other)))
    assert after.calls == before.calls
    assert [(b.kind, b.sparse) for b in after.blocks] == [(b.kind, b.sparse) for b in before.blocks]


@pytest.mark.shared
@pytest.mark.parametrize(
    "name",
    ["glm_moe_dsa_true4_meta", "glm_moe_dsa_tiny", "deepseek_v3_true4_meta", "qwen3_moe_tiny", "llama_tiny"],
)
def test_weights_of_the_reference_exports_are_read_where_their_names_say(name: str) -> None:
    assert len(check_weights(load(shared.load(f"{name}.pt2")))) >= 8
