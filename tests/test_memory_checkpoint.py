"""Checkpoints: headers, indices, hostile files, and the ledger of what they hold."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layoutcheck.errors import InputError
from layoutcheck.memory.build import weight_ledger
from layoutcheck.memory.checkpoint import checkpoint_ledger
from layoutcheck.memory.formula import evaluate
from layoutcheck.memory.inventory import inventory
from layoutcheck.memory.parallel import Parallel
from layoutcheck.memory.plan import Plan
from layoutcheck.memory.quantisation import ByName, HuggingFace
from layoutcheck.memory.safetensors import Tensor, read_header, read_index, read_tensors, tensors_of
from layoutcheck.memory.schemes import scheme_named
from layoutcheck.models import ModelConfig, model_from_dict
from layoutcheck.units import DTYPE_BYTES

SHORT = {"bfloat16": "BF16", "float32": "F32", "float8_e4m3fn": "F8_E4M3", "int8": "I8", "int32": "I32"}
FIGURES: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 1000,
    "max_position_embeddings": 64,
    "q_lora_rank": 128,
    "kv_lora_rank": 128,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 256,
    "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 1,
    "index_head_dim": 32,
    "index_n_heads": 8,
    "index_topk": 16,
    "topk_method": "noaux_tc",
}


def header(tensors: list[Tensor]) -> bytes:
    """The beginning of a safetensors file; the weights themselves are never needed."""
    values: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for tensor in tensors:
        end = at + tensor.bytes
        entry = {"dtype": SHORT[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, end]}
        values[tensor.name] = entry
        at = end
    raw = json.dumps(values).encode()
    return len(raw).to_bytes(8, "little") + raw


def tensors_for(config: ModelConfig, block: int | None = None) -> Iterator[Tensor]:
    """A checkpoint as published: one tensor a module, a layer and an expert; fp8 blocks if asked for."""
    symbols = config.symbols()
    quantisation = (
        HuggingFace({"quant_method": "fp8", "weight_block_size": [block, block]}) if block else None
    )
    for weight in inventory(config):
        rows = evaluate(weight.out, symbols)
        shape = (rows, evaluate(weight.inp, symbols)) if weight.inp else (rows,)
        for layer in weight.layers or (-1,):
            for expert in range(config.experts.count if weight.expert and config.experts else 1):
                path = weight.at(layer, expert)
                dtype = weight.dtype or config.dtype
                narrow = (
                    quantisation is not None
                    and weight.kind in ("linear", "head", "router")
                    and quantisation.scheme(path).name != "FLOAT"
                )
                yield Tensor(f"{path}.{weight.param}", "float8_e4m3fn" if narrow else dtype, shape)
                if narrow and block:
                    scales = tuple(-(-size // block) for size in shape)
                    yield Tensor(f"{path}.weight_scale_inv", "float32", scales)


def folder(path: Path, tensors: list[Tensor], shards: int = 3) -> Path:
    path.mkdir()
    names = [f"model-{n:05}-of-{shards:05}.safetensors" for n in range(1, shards + 1)]
    for number, name in enumerate(names):
        (path / name).write_bytes(header(tensors[number::shards]))
    weight_map = {tensor.name: names[i % shards] for i, tensor in enumerate(tensors)}
    index = {"metadata": {"total_size": sum(t.bytes for t in tensors)}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    (path / "config.json").write_text(json.dumps(FIGURES))
    return path


SPREAD = Plan(Parallel(4, 2, 8))
CUT = Plan(Parallel(4, 1, 2, 2), "vllm", mtp=False)
REPLICATED = Plan(Parallel(8), "vllm", embedding="replicated")


@pytest.mark.parametrize(
    ("block", "plan"),
    [
        (None, Plan()),
        (None, SPREAD),
        (None, SPREAD.but(modes=("dsa-cp",))),
        *((block, plan) for block in (None, 128, 96) for plan in (CUT, REPLICATED)),
    ],
    ids=str,
)
def test_a_checkpoint_gives_the_ledger_of_its_config(tmp_path: Path, block: int | None, plan: Plan) -> None:
    config = model_from_dict(FIGURES)
    tensors = list(tensors_for(config, block))
    read = read_tensors(folder(tmp_path / "model", tensors))
    assert sorted(read, key=lambda t: t.name) == sorted(tensors, key=lambda t: t.name)
    found = checkpoint_ledger(read, config, plan)
    config_says = {"quant_method": "fp8", "weight_block_size": [block, block]}
    expected = weight_ledger(config, plan, HuggingFace(config_says) if block else None)
    assert found.by_category() == expected.by_category()


def test_a_rank_alone_holds_the_whole_checkpoint(tmp_path: Path) -> None:
    config = model_from_dict(FIGURES)
    tensors = list(tensors_for(config, 128))
    ledger = checkpoint_ledger(tensors, config, Plan(engine="parameters-only", mtp=True))
    weights = ledger.total() - ledger.total(["buffers"])
    assert weights == sum(tensor.bytes for tensor in tensors)


def test_ranks_together_hold_the_checkpoint(tmp_path: Path) -> None:
    config = model_from_dict({**FIGURES, "n_routed_experts": 10, "vocab_size": 1024})
    tensors = list(tensors_for(config))
    plan = Plan(Parallel(2, 2, 4), "parameters-only", embedding="vocab", mtp=True)
    ledgers = [checkpoint_ledger(tensors, config, plan.but(rank=rank)) for rank in range(4)]
    # ten experts over four ranks: 3, 3, 2, 2
    experts = [ledger.total(["expert-parallel"]) for ledger in ledgers]
    one = 3 * 256 * 256 * 2 * 3  # three matrices, three sparse layers with the MTP layer
    assert experts == [3 * one, 3 * one, 2 * one, 2 * one]
    whole = sum(t.bytes for t in tensors)
    divided = 2 * ledgers[0].total(["tensor-parallel"])
    assert sum(experts) + divided + ledgers[0].total(["replicated"]) == whole


def test_packed_layouts_are_cut_along_the_right_axis() -> None:
    config = model_from_dict({**FIGURES, "kv_lora_rank": None, "n_routed_experts": None})
    prefix = "model.layers.0.mlp"
    tensors = [
        Tensor(f"{prefix}.gate_proj.qweight", "int32", (32, 512)),  # inputs / 8, outputs
        Tensor(f"{prefix}.gate_proj.g_idx", "int32", (256,)),
        Tensor(f"{prefix}.down_proj.qweight", "int32", (64, 256)),
        Tensor(f"{prefix}.down_proj.g_idx", "int32", (512,)),
        Tensor(f"{prefix}.down_proj.scales", "bfloat16", (5, 256)),
        Tensor(f"{prefix}.up_proj.weight_packed", "int32", (512, 32)),
        Tensor(f"{prefix}.up_proj.weight_shape", "int32", (2,)),
    ]
    ledger = checkpoint_ledger(tensors, config, Plan(Parallel(4), "vllm"))
    sizes = {line.name.split("mlp.")[-1]: line.bytes for line in ledger.lines if "mlp" in line.name}
    assert sizes == {
        "gate_proj.qweight": 32 * 128 * 4,
        "gate_proj.g_idx": 256 * 4,
        "down_proj.qweight": 16 * 256 * 4,
        "down_proj.g_idx": 128 * 4,
        "down_proj.scales": 2 * 256 * 2,  # 5 groups over 4 ranks: two here
        "up_proj.weight_packed": 128 * 32 * 4,
        "up_proj.weight_shape": 2 * 4,
    }


def test_what_a_scheme_makes_after_load_is_added() -> None:
    config = model_from_dict(FIGURES)
    tensors = [Tensor("model.layers.0.self_attn.o_proj.weight", "int8", (256, 256))]
    ledger = checkpoint_ledger(tensors, config, Plan(Parallel(4)), ByName("W8A8"))
    loaded = {c.name for c in scheme_named("W8A8").companions(False) if c.when == "loaded"}
    sizes = {line.name.rsplit(".", 1)[-1]: line.bytes for line in ledger.find("o_proj")}
    assert sizes == {"weight": 256 * 64, **dict.fromkeys(loaded, 64 * 2)}


def test_unknown_modules_are_whole_and_named() -> None:
    config = model_from_dict(FIGURES)
    ledger = checkpoint_ledger(
        [Tensor("model.layers.0.novel.weight", "bfloat16", (64, 64))], config, Plan(Parallel(4))
    )
    assert ledger.find("novel")[0].bytes == 64 * 64 * 2
    assert any("novel" in note for note in ledger.notes)


def test_experts_must_be_as_many_as_the_config_says() -> None:
    config = model_from_dict(FIGURES)
    tensors = [Tensor("model.layers.1.mlp.experts.0.up_proj.weight", "bfloat16", (256, 256))]
    with pytest.raises(InputError, match="1 experts, the config says 8"):
        checkpoint_ledger(tensors, config, Plan())


GOOD = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x01",
        b"\xff" * 8,
        (200_000_000).to_bytes(8, "little") + b"{}",
        (100).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (2).to_bytes(8, "little") + b"{\xff",
        (9).to_bytes(8, "little") + b'{"a": 1} ',
        (40_000).to_bytes(8, "little") + b"[" * 40_000,
        b"\x80\x04\x95" + b"pickle" * 20,
    ],
)
def test_hostile_files_are_refused(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw)
    with pytest.raises(InputError):
        read_header(path)


@pytest.mark.parametrize(
    "entry",
    [
        1,
        {},
        {**GOOD, "dtype": "F31"},
        {**GOOD, "dtype": ["F32"]},
        {**GOOD, "shape": [-2]},
        {**GOOD, "shape": [True]},
        {**GOOD, "shape": [2.0]},
        {**GOOD, "shape": "2"},
        {**GOOD, "shape": [1] * 99},
        {**GOOD, "shape": [1 << 60]},
        {**GOOD, "data_offsets": [0, 7]},
        {**GOOD, "data_offsets": [8, 0]},
        {**GOOD, "data_offsets": [-8, 0]},
        {**GOOD, "data_offsets": "08"},
        {**GOOD, "data_offsets": None},
    ],
)
def test_hostile_entries_are_refused(entry: Any) -> None:
    assert tensors_of({"x": GOOD}, "here") == [Tensor("x", "float32", (2,))]
    with pytest.raises(InputError):
        tensors_of({"x": entry}, "here")


def test_overlapping_tensors_and_repeated_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="share byte"):
        tensors_of({"x": GOOD, "y": GOOD}, "here")
    entry = json.dumps(GOOD)
    raw = f'{{"x": {entry}, "x": {entry}}}'.encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(raw).to_bytes(8, "little") + raw)
    with pytest.raises(InputError, match="twice"):
        read_header(path)


@pytest.mark.parametrize("file", ["../secret", "/etc/passwd", "a/b.safetensors", "..", "", 3, "a\\b", "a\0b"])
def test_an_index_may_not_point_elsewhere(tmp_path: Path, file: Any) -> None:
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": {"x": file}}))
    with pytest.raises(InputError):
        read_index(path)


def test_what_an_index_promises_must_be_there(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": {"x": "a.safetensors"}}))
    with pytest.raises(InputError, match=r"a\.safetensors is not here"):
        read_tensors(path)
    (tmp_path / "a.safetensors").write_bytes(header([Tensor("y", "int8", (3,))]))
    with pytest.raises(InputError, match="x is not in"):
        read_tensors(path)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(InputError, match="no safetensors"):
        read_tensors(empty)


def test_a_folder_without_an_index_and_a_header_as_json(tmp_path: Path) -> None:
    tensors = [Tensor("a", "int8", (3,)), Tensor("b", "float32", ())]
    (tmp_path / "model.safetensors").write_bytes(header(tensors))
    assert read_tensors(tmp_path) == tensors
    (tmp_path / "again.safetensors").write_bytes(header(tensors[:1]))
    with pytest.raises(InputError, match="two files"):
        read_tensors(tmp_path)
    dump = tmp_path / "header.json"
    dump.write_text(json.dumps({"a": {"dtype": "I8", "shape": [3]}}))
    assert read_tensors(dump) == tensors[:1]


@given(st.integers(0, 10_000))
def test_mutated_headers_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    rng = random.Random(seed)
    raw = bytearray(header([Tensor("layers.0.a", "float32", (4, 2)), Tensor("b", "int8", (7,))]))
    for _ in range(rng.randint(1, 4)):
        raw[rng.randrange(len(raw))] = rng.randrange(256)
    path = tmp_path_factory.getbasetemp() / "mutated.safetensors"
    path.write_bytes(bytes(raw[: rng.randint(0, len(raw))] if seed % 3 == 0 else raw))
    try:
        found = read_header(path)
    except InputError:
        return
    for tensor in found:
        assert tensor.dtype in DTYPE_BYTES and tensor.bytes >= 0
