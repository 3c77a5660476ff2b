"""Schemes, description files, quantization configs, and the types that fused modules need."""

from __future__ import annotations

from typing import Any

import pytest

from layoutcheck.errors import InputError
from layoutcheck.memory.build import quantisation_of, weight_ledger
from layoutcheck.memory.ledger import Ledger
from layoutcheck.memory.parallel import Parallel
from layoutcheck.memory.plan import Plan
from layoutcheck.memory.quantisation import ByName, Description, HuggingFace
from layoutcheck.models import ModelConfig, model_from_dict

FIGURES: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 1024,
    "max_position_embeddings": 128,
}
SPARSE = {
    **FIGURES,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 128,
    "first_k_dense_replace": 1,
}
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")


def _model(**more: Any) -> ModelConfig:
    return model_from_dict({**FIGURES, **more})


def _sizes(ledger: Ledger, module: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for line in ledger.lines:
        path, _, param = line.name.rpartition(".")
        if path.endswith(module) and line.state == "resident":
            found[param] = found.get(param, 0) + line.bytes
    return found


def _description(sparse: bool = False, **changes: str) -> dict[str, Any]:
    values: dict[str, Any] = {
        "model_quant_type": "W8A8",
        "version": "1.0.0",
        "metadata": {"group_size": 0},
        "lm_head.weight": "FLOAT",
        "model.embed_tokens.weight": "FLOAT",
        "model.norm.weight": "FLOAT",
    }
    for layer in range(3):
        prefix = f"model.layers.{layer}"
        for module in ATTENTION:
            for part in ("weight", "weight_scale", "weight_offset", "input_scale", "deq_scale"):
                values[f"{prefix}.self_attn.{module}.{part}"] = "W8A8"
        experts = [f"experts.{e}." for e in range(4)] + ["shared_experts."] if sparse and layer else [""]
        for place in experts:
            for module in MLP:
                values[f"{prefix}.mlp.{place}{module}.weight"] = "W8A8_DYNAMIC"
        values[f"{prefix}.mlp.gate.weight"] = "FLOAT"
    return {**values, **{key.replace("__", "."): value for key, value in changes.items()}}


def test_static_w8a8_has_all_its_companions() -> None:
    ledger = weight_ledger(_model(), Plan(Parallel(2)), ByName("W8A8"))
    layers, out, inp = 3, 256, 256 // 2  # o_proj: rows whole, columns divided
    assert _sizes(ledger, "o_proj") == {
        "weight": layers * out * inp,
        "input_scale": layers * 2,
        "input_offset": layers,
        "quant_bias": layers * out * 4,
        "deq_scale": layers * out * 4,
        "weight_scale": layers * out * 2,
        "weight_offset": layers * out * 2,
        "aclnn_input_scale": layers * inp * 2,
        "aclnn_input_scale_reciprocal": layers * inp * 2,
        "aclnn_input_offset": layers * inp * 2,
    }
    # a fused module has vectors over all its outputs and one set over its inputs
    fused = _sizes(ledger, "qkv_proj")
    assert fused["deq_scale"] == layers * (256 + 64 + 64) // 2 * 4
    assert fused["aclnn_input_scale"] == layers * 256 * 2
    assert fused["input_scale"] == layers * 2


def test_deq_scale_is_int64_for_models_in_float16() -> None:
    def deq_scale(dtype: str) -> int:
        ledger = weight_ledger(_model(dtype=dtype), Plan(), ByName("W8A8"))
        return _sizes(ledger, "o_proj")["deq_scale"]

    assert deq_scale("float16") == 2 * deq_scale("bfloat16") == 3 * 256 * 8


def test_dynamic_w8a8_of_experts_has_fp32_scales_for_gate_and_up_alone() -> None:
    config = model_from_dict(SPARSE)
    ledger = weight_ledger(config, Plan(Parallel(2, 1, 2)), ByName("W8A8_DYNAMIC"))
    sparse_layers, here = 2, 2
    assert _sizes(ledger, "{expert}.gate_up_proj") == {
        "weight": sparse_layers * here * 2 * 128 * 256,
        "weight_scale": sparse_layers * here * 256 * 2,
        "weight_offset": sparse_layers * here * 256 * 2,
        "weight_scale_fp32": sparse_layers * here * 256 * 4,
    }
    assert set(_sizes(ledger, "{expert}.down_proj")) == {"weight", "weight_scale", "weight_offset"}


def test_int4_weights_are_half_a_byte_and_their_scales_grow_on_load() -> None:
    ledger = weight_ledger(model_from_dict(SPARSE), Plan(), ByName("W4A8_DYNAMIC"))
    sizes = _sizes(ledger, "{expert}.down_proj")
    assert sizes["weight"] == 2 * 4 * 256 * 128 // 2
    assert sizes["weight_scale"] == 2 * 4 * 256 * 8
    freed = [line for line in ledger.find("{expert}.down_proj") if line.state == "load"]
    assert {line.dtype for line in freed} == {"float32"}


def test_a_description_says_what_each_module_is() -> None:
    description = Description(_description(sparse=True))
    assert description.metadata["model_quant_type"] == "W8A8"
    ledger = weight_ledger(model_from_dict(SPARSE), Plan(), description)
    assert {line.scheme for line in ledger.find("o_proj.weight")} == {"W8A8"}
    assert {line.scheme for line in ledger.find("gate_up_proj.weight")} == {"W8A8_DYNAMIC"}
    assert {line.dtype for line in ledger.find("mlp.gate.weight")} == {"bfloat16"}
    assert not ledger.notes


def test_float_exceptions_are_those_of_the_file_in_the_layers_of_the_file() -> None:
    changed = _description(**{"model__layers__1__self_attn__o_proj__weight": "FLOAT"})
    ledger = weight_ledger(_model(), Plan(), Description(changed))
    weights = {
        line.scheme: line.bytes for line in ledger.find("o_proj.weight") if line.name.endswith(".weight")
    }
    assert weights == {"W8A8": 2 * 256 * 256, "FLOAT": 256 * 256 * 2}
    # and lm_head is quantised if the file says so
    ledger = weight_ledger(_model(), Plan(), Description(_description(lm_head__weight="W8A8")))
    assert ledger.find("lm_head.weight")[0].dtype == "int8"


@pytest.mark.parametrize(
    ("module", "fused"),
    [("self_attn__k_proj", "qkv_proj"), ("mlp__up_proj", "gate_up_proj")],
)
def test_fused_modules_need_one_type(module: str, fused: str) -> None:
    changed = _description(**{f"model__layers__2__{module}__weight": "FLOAT"})
    with pytest.raises(InputError) as caught:
        weight_ledger(_model(), Plan(), Description(changed))
    message = str(caught.value)
    assert fused in message and "FLOAT" in message and "W8A8" in message
    assert f"model.layers.2.{module.replace('__', '.')}" in message
    # an engine that does not fuse them does not mind
    weight_ledger(_model(), Plan(engine="parameters-only"), Description(changed))


def test_the_latent_projections_need_one_type_where_they_are_fused() -> None:
    quantisation = ByName("W8A8", {"*.kv_a_proj_with_mqa": "W8A8_DYNAMIC"})
    with pytest.raises(InputError, match=r"q_a_proj is W8A8 and .*kv_a_proj_with_mqa is W8A8_DYNAMIC"):
        weight_ledger(model_from_dict(LATENT), Plan(), quantisation)


def test_experts_of_a_layer_need_one_type() -> None:
    changed = _description(True, **{"model__layers__2__mlp__experts__3__down_proj__weight": "W8A8"})
    with pytest.raises(
        InputError, match=r"experts.0.down_proj is W8A8_DYNAMIC and .*experts.3.down_proj is W8A8"
    ):
        weight_ledger(model_from_dict(SPARSE), Plan(), Description(changed))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"a.weight": "W3A3"}, "W3A3"),
        ({"version": "1"}, "no tensor"),
        ({"lm_head.weight": "FLOAT"}, "not described"),
    ],
)
def test_descriptions_that_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        weight_ledger(_model(), Plan(), Description(values))


def _weights(config: dict[str, Any], module: str, **more: Any) -> dict[str, int]:
    model = _model(quantization_config=config, **more)
    return _sizes(weight_ledger(model, Plan(engine="parameters-only", companions="full")), module)


def test_fp8_in_blocks() -> None:
    config = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
    # 512 x 256 in blocks of 128 x 128: 4 x 2 scales
    assert _weights(config, "mlp.gate_proj") == {"weight": 3 * 512 * 256, "weight_scale_inv": 3 * 4 * 2 * 4}
    # 64 rows are one block
    assert _weights(config, "self_attn.k_proj")["weight_scale_inv"] == 3 * 1 * 2 * 4
    assert _weights({**config, "modules_to_not_convert": ["k_proj"]}, "self_attn.k_proj") == {
        "weight": 3 * 64 * 256 * 2
    }
    tensor = {"quant_method": "fp8", "activation_scheme": "static"}
    assert _weights(tensor, "mlp.gate_proj") == {
        "weight": 3 * 512 * 256,
        "weight_scale": 3 * 4,
        "input_scale": 3 * 4,
    }


def test_gptq_and_awq() -> None:
    gptq = _weights({"quant_method": "gptq", "bits": 4, "group_size": 64}, "mlp.gate_proj")
    assert gptq == {
        "qweight": 3 * (256 // 8) * 512 * 4,
        "qzeros": 3 * (256 // 64) * (512 // 8) * 4,
        "scales": 3 * (256 // 64) * 512 * 2,
        "g_idx": 3 * 256 * 4,
    }
    awq = _weights({"quant_method": "awq", "bits": 4, "group_size": -1}, "mlp.gate_proj")
    assert awq == {"qweight": 3 * 256 * (512 // 8) * 4, "qzeros": 3 * (512 // 8) * 4, "scales": 3 * 512 * 2}


def _compressed(weights: dict[str, Any], form: str = "pack-quantized", **more: Any) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups, **more}


def test_compressed_tensors() -> None:
    packed = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
    config = _compressed(packed, ignore=["lm_head", "re:.*self_attn.*"])
    assert _weights(config, "mlp.gate_proj") == {
        "weight_packed": 3 * 512 * (256 // 8) * 4,
        "weight_scale": 3 * 512 * (256 // 32) * 2,
        "weight_shape": 3 * 2 * 8,
    }
    assert _weights(config, "self_attn.q_proj") == {"weight": 3 * 256 * 256 * 2}
    uneven = _compressed({**packed, "symmetric": False})
    assert _weights(uneven, "mlp.gate_proj")["weight_zero_point"] == 3 * (512 // 8) * (256 // 32) * 4
    channel = {"num_bits": 8, "type": "float", "strategy": "channel"}
    assert _weights(_compressed(channel, "float-quantized"), "mlp.gate_proj") == {
        "weight": 3 * 512 * 256,
        "weight_scale": 3 * 512 * 4,
    }
    micro = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}
    assert _weights(_compressed(micro, "mxfp4-pack-quantized"), "mlp.gate_proj") == {
        "weight_packed": 3 * 512 * 128,
        "weight_scale": 3 * 512 * 8,
    }


@pytest.mark.parametrize(
    "config",
    [
        {"quant_method": "unheard-of"},
        {},
        {"quant_method": "fp8", "weight_block_size": [0, 128]},
        {"quant_method": "fp8", "weight_block_size": "128"},
        {"quant_method": "compressed-tensors"},
        {"quant_method": "compressed-tensors", "config_groups": {"g": {}}},
        _compressed({"num_bits": 3, "type": "int"}, "odd"),
        _compressed({"type": "int"}),
        {"quant_method": "fp8", "ignored_layers": ["re:(a+)+$"]},
        {"quant_method": "fp8", "ignored_layers": ["re:("]},
        {"quant_method": "fp8", "ignored_layers": ["re:" + "a" * 1000]},
    ],
)
def test_configs_that_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        HuggingFace(config)


LATENT = {
    **FIGURES,
    "q_lora_rank": 64,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}


def test_originals_of_derived_weights_are_kept_or_freed_as_the_profile_says() -> None:
    config = model_from_dict(LATENT)

    def resident(engine: str, *modes: str) -> dict[str, int]:
        ledger = weight_ledger(config, Plan(Parallel(2), engine, modes), ByName("W8A8"))
        return {
            line.name.rsplit("self_attn.", 1)[-1]: line.bytes
            for line in ledger.lines
            if line.state == "resident"
        }

    whole = 3 * 4 * 32  # layers, heads here, latent
    freed = resident("vllm-ascend")
    assert freed["W_UK_T"] + freed["W_UV"] == whole * (16 + 16) * 2
    assert "kv_b_proj.weight" not in freed
    kept = resident("vllm")
    assert kept["W_UK_T"] + kept["W_UV"] == whole * (16 + 16) * 2
    assert kept["kv_b_proj.weight"] == whole * (16 + 16)
    fused = resident("vllm-ascend", "mlapo")
    assert fused["wd_qkv"] == fused["fused_qkv_a_proj.weight"] == 3 * 256 * (64 + 32 + 8)
    assert fused["wu_q"] == fused["q_b_proj.weight"] == 3 * 4 * 24 * 64
    decode = resident("vllm-ascend", "mlapo-decode")
    assert "wd_qkv" in decode and "fused_qkv_a_proj.weight" not in decode
    assert "fused_qkv_a_proj.weight_scale" in decode
    # only static W8A8 has that form
    dynamic = weight_ledger(config, Plan(Parallel(2), modes=("mlapo",)), ByName("W8A8_DYNAMIC"))
    assert not dynamic.find("wd_qkv")
    with pytest.raises(InputError, match="no mlapo-decode together with mlapo"):
        resident("vllm-ascend", "mlapo", "mlapo-decode")


def test_the_loading_peak_is_above_what_stays() -> None:
    config = model_from_dict(LATENT)
    ledger = weight_ledger(config, Plan(), ByName("W8A8"))
    assert ledger.loading_peak > ledger.static
    # everything as loaded, and one transposed copy of the largest weight, here gate_up_proj of one layer
    derived, freed = ledger.total(["derived"]), ledger.total(state="load")
    assert ledger.loading_peak == ledger.static - derived + freed + 2 * 512 * 256


def test_without_a_config_everything_is_float_and_nothing_is_assumed() -> None:
    quantisation = quantisation_of(_model())
    ledger = weight_ledger(_model(), Plan(), quantisation)
    assert {line.scheme for line in ledger.lines} == {"FLOAT"}
    assert not ledger.notes


def test_assumptions_are_said() -> None:
    ledger = weight_ledger(_model(), Plan(), ByName("W8A8"))
    assert any("by assumption" in note and "lm_head" in note for note in ledger.notes)


@pytest.mark.parametrize(
    ("text", "bits", "group"), [("AWQ", 4, 128), ("AWQ:bits=8", 8, 128), ("AWQ:group=64,bits=4", 4, 64)]
)
def test_a_scheme_by_name_has_the_usual_parameters_or_those_given(text: str, bits: int, group: int) -> None:
    sizes = _sizes(
        weight_ledger(_model(), Plan(engine="parameters-only", companions="full"), ByName(text)), "o_proj"
    )
    rows, columns = 256, 8 * 32
    assert sizes["qweight"] == 3 * columns * -(-rows * bits // 32) * 4
    assert sizes["scales"] == 3 * -(-columns // group) * rows * 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("AWQ:bits", "'bits' in 'AWQ:bits': write PARAMETER=NUMBER"),
        ("AWQ:bits=0", "'bits=0' in 'AWQ:bits=0': write PARAMETER=NUMBER"),
        ("AWQ:block=4", "AWQ has no parameter 'block'; it has bits, group"),
        ("W8A8:bits=4", "W8A8 has no parameter 'bits'; it has none"),
    ],
)
def test_wrong_parameters_of_a_scheme(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        ByName(text)
    assert str(caught.value) == message
