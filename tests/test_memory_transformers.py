"""The inventory against the parameters of transformers' own models, by name and shape."""

from __future__ import annotations

import re
from math import prod

import pytest

from layoutcheck.memory.build import weight_ledger
from layoutcheck.memory.formula import evaluate
from layoutcheck.memory.inventory import inventory
from layoutcheck.memory.parallel import Parallel
from layoutcheck.memory.plan import Plan
from layoutcheck.models import ModelConfig, model_from_dict

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

MODELS = {
    "LlamaConfig": {"num_key_value_heads": 2, "tie_word_embeddings": False},
    "Qwen2Config": {"num_key_value_heads": 2, "tie_word_embeddings": True},
    "Qwen3Config": {"num_key_value_heads": 2, "head_dim": 24, "tie_word_embeddings": False},
    "Qwen3MoeConfig": {
        "num_key_value_heads": 2,
        "head_dim": 24,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 40,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [1],
        "tie_word_embeddings": False,
    },
    "DeepseekV3Config": {
        "num_key_value_heads": 8,
        "q_lora_rank": 48,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 24,
        "qk_rope_head_dim": 16,
        "v_head_dim": 20,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "n_shared_experts": 2,
        "moe_intermediate_size": 40,
        "first_k_dense_replace": 1,
        "num_nextn_predict_layers": 0,
        "topk_method": "noaux_tc",
    },
    "GlmMoeDsaConfig": {
        "num_key_value_heads": 8,
        "q_lora_rank": 48,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 24,
        "qk_rope_head_dim": 16,
        "v_head_dim": 20,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "n_shared_experts": 1,
        "moe_intermediate_size": 40,
        "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
        "index_n_heads": 4,
        "index_head_dim": 32,
        "index_topk": 8,
        "topk_method": "noaux_tc",
    },
}


def _pair(name: str) -> tuple[ModelConfig, dict[str, tuple[int, ...]]]:
    kind = getattr(transformers, name, None)
    if kind is None:
        pytest.skip(f"this transformers has no {name}")
    common = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "vocab_size": 128,
        "max_position_embeddings": 64,
        "pad_token_id": None,
        "eos_token_id": None,
        "bos_token_id": None,
    }
    values = {**common, **MODELS[name]}
    config = kind(**values)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    shapes = {key: tuple(tensor.shape) for key, tensor in model.named_parameters()}
    shapes |= {key: tuple(t.shape) for key, t in model.named_buffers() if key.endswith("correction_bias")}
    return model_from_dict({**values, "model_type": config.model_type}, name=name), shapes


def _unpacked(shapes: dict[str, tuple[int, ...]]) -> dict[str, int]:
    """Elements by module, layer numbers taken out; stacked experts count as their parts."""
    sums: dict[str, int] = {}
    for name, shape in shapes.items():
        key = re.sub(r"\.\d+\.", ".#.", name)
        if match := re.match(r"(.*\.experts)\.(gate_up_proj|down_proj)$", key):
            key = f"{match[1]}.#.{match[2]}.weight"
        sums[key] = sums.get(key, 0) + prod(shape)
    return sums


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_is_there_with_its_size(name: str) -> None:
    config, shapes = _pair(name)
    expected = _unpacked(shapes)
    symbols = config.symbols()
    found: dict[str, int] = {}
    for weight in inventory(config):
        one = evaluate(weight.out, symbols) * (evaluate(weight.inp, symbols) if weight.inp else 1)
        count = max(1, len(weight.layers)) * (config.experts.count if weight.expert and config.experts else 1)
        path = weight.path.replace("{layer}", "#").replace("{expert}", "#")
        if weight.expert and path.endswith(("gate_proj", "up_proj")):
            path = path.rsplit(".", 1)[0] + ".gate_up_proj"
        key = f"{path}.{weight.param}"
        found[key] = found.get(key, 0) + one * count
    assert found == expected


@pytest.mark.parametrize("name", MODELS)
def test_one_rank_holds_the_sum_of_all_parameters(name: str) -> None:
    config, shapes = _pair(name)
    ledger = weight_ledger(config, Plan(Parallel(), "parameters-only", mtp=False))
    float32 = sum(prod(s) for n, s in shapes.items() if n.endswith("correction_bias"))
    elements = sum(map(prod, shapes.values()))
    weights = ledger.total(["replicated", "tensor-parallel", "expert-parallel"])
    assert weights == 2 * elements + 2 * float32
