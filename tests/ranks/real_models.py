"""transformers' own decoders at tiny sizes with random weights, exported, with their logits."""

from __future__ import annotations

import warnings
from functools import cache
from inspect import signature
from typing import Any

import attrs
import torch
from support.tiny_configs import EXPERTS, INDEXER, LATENT
from torch import Tensor, nn

from layoutcheck import from_fx
from layoutcheck.errors import InputError
from layoutcheck.graph import Graph
from layoutcheck.ranks.annotated import AnnotatedRun, exported_inputs, run_annotated

BATCH, VOCABULARY = 2, 64
BASE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
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
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Qwen3Moe": {"num_experts_per_tok": 2, "num_experts": 8, "moe_intermediate_size": 16},
    "DeepseekV3": {**LATENT, **EXPERTS, "first_k_dense_replace": 1},
    "GlmMoeDsa": {**LATENT, **EXPERTS, **INDEXER, "mlp_layer_types": ["dense", "sparse"]},
}
# How other models spell what is cut: queries, keys and values in one product, gate and up in one, biases, a gated shared
# expert. `model` names a class that is called otherwise, `attention` how it is computed where transformers has no fused form.
OTHERS: dict[str, dict[str, Any]] = {
    "Phi3": {"pad_token_id": 0},
    "Qwen2": {},
    "Glm": {"pad_token_id": 0},
    "Qwen2Moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
    },
    "OPT": {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "Starcoder2": {},
    "Ernie4_5": {"use_bias": True},
    "GPTNeoX": {"rotary_pct": 0.5},
    "GPT2": {"model": "GPT2LMHeadModel", "n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 128},
    "Phi": {},
    "GPTJ": {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 128, "rotary_dim": 4},
    "Gemma2": {"attention": "eager", "query_pre_attn_scalar": 8, "pad_token_id": 0},
    "Glm4": {"pad_token_id": 0},
    "Mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "Cohere": {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    "Granite": {},
    "Olmo2": {"pad_token_id": 0},
    "GptOss": {"attention": "eager", "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16},
}
CONTRACTS = ("tensor-parallel", "sequence-parallel")
SPARSE = ("dsa-cp-prefill", "dsa-cp-query-local", "dsa-cp-entry-slice")
DYNAMIC = 10
"""Tokens with which a program of any number of tokens is exported."""


@attrs.frozen
class Exported:
    """A model, the program that torch.export makes of it and the graph of that."""

    model: nn.Module
    program: Any
    graph: Graph

    def inputs(self, ids: Tensor) -> dict[str, Any]:
        """Whole inputs of the graph by node name."""
        return exported_inputs(self.program, self.graph, [ids])

    def logits(self, ids: Tensor) -> Tensor:
        """What transformers computes, in float32."""
        with torch.no_grad():
            found: Tensor = self.model(ids, use_cache=False).logits
        return found


def ids_of(tokens: int, seed: int = 1) -> Tensor:
    """Random token numbers."""
    return torch.randint(0, VOCABULARY, (BATCH, tokens), generator=torch.Generator().manual_seed(seed))


@cache
def model_of(family: str, **more: Any) -> nn.Module:
    """A model with random weights (norms' too). Raises AttributeError where transformers has no such family."""
    import transformers

    given = {**BASE, **(FAMILIES | OTHERS)[family], **more}
    attention, name = given.pop("attention", "sdpa"), given.pop("model", f"{family}ForCausalLM")
    config = getattr(transformers, f"{family}Config")(**{k: v for k, v in given.items() if v is not None})
    config._attn_implementation = attention
    torch.manual_seed(0)
    model: nn.Module = getattr(transformers, name)(config).eval()
    for weight in model.parameters():
        if weight.dim() == 1:
            nn.init.uniform_(weight, 0.5, 1.5)
        else:
            nn.init.normal_(weight, 0, weight.shape[-1] ** -0.5)
    return model


@cache
def export(family: str, tokens: int | None, **more: Any) -> Exported:
    """A model exported for a number of tokens, or for any (None)."""
    model = model_of(family, **more)
    given = {"input_ids": ids_of(tokens or DYNAMIC), "use_cache": False}
    free = {1: torch.export.Dim.DYNAMIC} if tokens is None else None
    shapes: dict[str, Any] = {"input_ids": free, "use_cache": None}
    if "use_cache" not in signature(model.forward).parameters:
        shapes = {"input_ids": free, "kwargs": {"use_cache": None}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(model, (), given, dynamic_shapes=shapes, strict=False)
    return Exported(model, program, from_fx(program))


@attrs.frozen
class Compared:
    """An annotated model on ranks against the model: the largest difference of any rank's logits, and findings."""

    run: AnnotatedRun
    difference: float
    scale: float
    findings: tuple[str, ...]


def compared(
    family: str, export_for: int | None, tokens: int, contract: str, ranks: int, **options: Any
) -> Compared:
    """Annotate, run on simulated ranks, compare. Raises InputError where the contract does not fit."""
    model = export(family, export_for, **options.pop("config", {}))
    ids = ids_of(tokens)
    want = model.logits(ids)
    found = run_annotated(model.graph, contract, ranks, model.inputs(ids), **options)
    worst = 0.0
    for run in found.runs:
        logits = run.outputs[0]
        if logits.shape != want.shape:
            raise InputError(f"logits of shape {tuple(logits.shape)}, not {tuple(want.shape)}")
        worst = max(worst, (logits - want).abs().max().item())
    findings = tuple(str(f) for f in found.annotated[0].check().findings)
    return Compared(found, worst, want.abs().max().item(), findings)


def fitting(family: str) -> tuple[str, ...]:
    """The contracts that are meant for a family; several sequences packed for experts, too."""
    experts = ("mc2-decode",) if any("experts" in key for key in FAMILIES.get(family, {})) else ()
    return (*CONTRACTS, *(SPARSE if family == "GlmMoeDsa" else ()), *experts)
