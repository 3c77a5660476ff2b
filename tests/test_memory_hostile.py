"""Configs and profiles with anything anywhere: they work or are refused with a sentence."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from layoutcheck.errors import InputError
from layoutcheck.memory.build import weight_ledger
from layoutcheck.memory.cache import Cache, add_cache
from layoutcheck.memory.engines import engine_names, load_engine
from layoutcheck.memory.parallel import Parallel
from layoutcheck.memory.plan import Plan
from layoutcheck.models import model_from_dict
from layoutcheck.resources import rules_dir

JUNK: list[Any] = [
    None,
    True,
    -1,
    0,
    3,
    1 << 70,
    2.5,
    float("nan"),
    "",
    "x",
    "re:(",
    [],
    [1],
    ["x"],
    {},
    {"x": 1},
]

CONFIG: dict[str, Any] = {
    "model_type": "some",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 128,
    "max_position_embeddings": 32,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 32,
    "mlp_layer_types": ["dense", "sparse"],
    "indexer_types": ["full", "shared"],
    "index_head_dim": 16,
    "index_n_heads": 2,
    "index_topk": 4,
    "num_nextn_predict_layers": 1,
    "torch_dtype": "bfloat16",
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "ignore": ["lm_head", "re:.*self_attn.*"],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {
                    "num_bits": 4,
                    "type": "int",
                    "strategy": "group",
                    "group_size": 32,
                    "symmetric": True,
                    "block_structure": [16, 16],
                },
            }
        },
    },
}


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from _places(inner, (*path, key))


def _mutants(value: Any) -> Iterator[Any]:
    for path in _places(value):
        for junk in JUNK:
            mutant = copy.deepcopy(value)
            at = mutant
            for key in path[:-1]:
                at = at[key]
            at[path[-1]] = copy.deepcopy(junk)
            yield mutant


def _ledger(config: Any, engine: str = "vllm-ascend") -> int:
    model = model_from_dict(config)
    plan = Plan(Parallel(2, 1, 2), engine, modes=("dsa-cp",) if engine == "vllm-ascend" else ())
    ledger = weight_ledger(model, plan)
    add_cache(ledger, model, plan, Cache(100))
    return ledger.total()


def test_any_value_anywhere_in_a_config() -> None:
    assert _ledger(CONFIG) > 0
    refused = 0
    for mutant in _mutants(CONFIG):
        try:
            assert _ledger(mutant) >= 0
        except InputError as error:
            refused += bool(str(error))
    assert refused > 100


@pytest.mark.parametrize("name", engine_names())
def test_any_value_anywhere_in_a_profile(name: str, tmp_path: Path) -> None:
    profile = json.loads((rules_dir() / "engines" / f"{name}.json").read_text())
    mutants = list(_mutants(profile))
    random.Random(0).shuffle(mutants)
    for number, mutant in enumerate(mutants[:400]):
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps(mutant))
        try:
            engine = load_engine(str(path))
            config = {key: value for key, value in CONFIG.items() if key != "quantization_config"}
            modes = tuple(engine.modes()[:1])
            weight_ledger(model_from_dict(config), Plan(Parallel(2, 1, 2), str(path), modes))
        except InputError:
            continue
