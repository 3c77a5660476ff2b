"""Read a Hugging Face config.json, or a shipped model file, into a ``ModelConfig``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from layoutcheck.documents import read_document
from layoutcheck.errors import InputError
from layoutcheck.models.config import Experts, Indexer, LatentAttention, ModelConfig
from layoutcheck.resources import rules_dir

CONFIG = "a model's config.json"
_MOST_LAYERS = 10_000
_LARGEST_FIGURE = 1 << 40


class _Fields:
    """Checked access to the values of a config."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = values
        self.where = where

    def first(self, *names: str) -> tuple[str, Any]:
        for name in names:
            if self.values.get(name) is not None:
                return name, self.values[name]
        return names[0], None

    def integer(self, *names: str, default: int | None = None, least: int = 0) -> int:
        name, value = self.first(*names)
        if value is None:
            if default is None:
                raise InputError(f"the config has no {' or '.join(names)}", where=self.where)
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _LARGEST_FIGURE:
            raise InputError(f"{name} is {value!r}, not an integer of at least {least}", where=self.where)
        return value

    def flag(self, *names: str, default: bool = False) -> bool:
        value = self.first(*names)[1]
        return default if value is None else bool(value)


def load_model(source: str | Path) -> ModelConfig:
    """Return the model behind a shipped name, a config.json, or a folder that holds one.

    A name is matched without regard to case, organisation, ``-``, ``.`` and ``_``.

    Raises:
        InputError: no such file or name, or a file that is not a config this package understands.
    """
    if not str(source).strip():
        raise InputError(f"give the name of a model, {CONFIG}, or a folder that holds one")
    path = Path(source)
    if path.is_dir():
        path = path / "config.json"
        if not path.is_file():
            raise InputError("this folder holds no config.json", where=str(source))
    if path.suffix == ".json" or path.exists():
        return model_from_dict(read_document(path, CONFIG), name=_name_of(path), where=str(path))
    shipped = _shipped()
    match = shipped.get(_key(str(source)))
    if match is None:
        raise InputError(
            f"no model called {source!s}; known are {', '.join(shipped_models())} (or give a config.json)"
        )
    return model_from_dict(read_document(match, CONFIG), name=match.stem, where=str(match))


def shipped_models() -> list[str]:
    """Return the names of the models whose figures are shipped."""
    return sorted(path.stem for path in set(_shipped().values()))


def model_from_dict(values: Mapping[str, Any], name: str = "model", where: str = "config") -> ModelConfig:
    """Return the model that a config's values describe.

    Raises:
        InputError: a needed figure is missing or no figure, or the config describes a structure that is not
            understood here (it is named, since a ledger that ignored it would be wrong in silence).
    """
    notes: list[str] = []
    inner = values.get("text_config")
    if isinstance(inner, Mapping):
        outside = [key for key in ("vision_config", "audio_config") if values.get(key)]
        notes += [f"{key}: its parameters are not counted" for key in outside]
        values = {**{k: v for k, v in values.items() if k not in inner}, **inner}
    known = _families()
    for key, reason in known["unsupported"].items():
        if values.get(key):
            raise InputError(f"{key} is not understood: {reason}", where=where)
    for key, left_out in known["noted"].items():
        if values.get(key) and values.get(known["switches"].get(key, key)) is not False:
            notes.append(f"{key}: {left_out}")
    implied = known["families"].get(str(values.get("model_type")), {})
    fields = _Fields({**implied, **{k: v for k, v in values.items() if v is not None}}, where)

    layers = fields.integer("num_hidden_layers", least=1)
    if layers > _MOST_LAYERS:
        raise InputError(f"num_hidden_layers is {layers}", where=where)
    heads = fields.integer("num_attention_heads", least=1)
    hidden = fields.integer("hidden_size", least=1)
    latent = _latent(fields)
    if latent is None:
        head_dim = fields.integer("head_dim", default=hidden // heads, least=1)
    else:
        head_dim = latent.qk_nope_head_dim + latent.qk_rope_head_dim
    experts = _experts(fields)
    rotary = latent.qk_rope_head_dim if latent is not None else fields.integer("rotary_dim", default=head_dim)
    bias = fields.flag("attention_bias")
    return ModelConfig(
        name=name,
        hidden_size=hidden,
        vocab_size=fields.integer("vocab_size", least=1),
        num_attention_heads=heads,
        num_key_value_heads=fields.integer("num_key_value_heads", default=heads, least=1),
        head_dim=head_dim,
        intermediate_size=fields.integer("intermediate_size", default=0 if experts else None),
        sparse=_sparse(fields, layers, experts is not None),
        dtype=_dtype(fields),
        latent=latent,
        indexer=_indexer(fields, layers) if latent is not None else None,
        experts=experts,
        mtp_layers=fields.integer("num_nextn_predict_layers", default=0),
        tied_embeddings=fields.flag("tie_word_embeddings"),
        qkv_bias=fields.flag("qkv_bias", default=bias),
        o_bias=fields.flag("o_bias", default=bias),
        mlp_bias=fields.flag("mlp_bias"),
        qk_norm=fields.first("qk_norm")[1],
        max_positions=fields.integer("max_position_embeddings", default=0),
        rotary_dim=rotary,
        quantization=_quantization(fields),
        notes=tuple(notes),
    )


def _quantization(fields: _Fields) -> Mapping[str, Any] | None:
    value = fields.first("quantization_config")[1]
    if value is not None and not isinstance(value, Mapping):
        raise InputError("quantization_config is no object", where=fields.where)
    return value


def _latent(fields: _Fields) -> LatentAttention | None:
    if fields.first("kv_lora_rank")[1] is None:
        return None
    return LatentAttention(
        q_lora_rank=fields.integer("q_lora_rank", default=0) or None,
        kv_lora_rank=fields.integer("kv_lora_rank", least=1),
        qk_nope_head_dim=fields.integer("qk_nope_head_dim"),
        qk_rope_head_dim=fields.integer("qk_rope_head_dim"),
        v_head_dim=fields.integer("v_head_dim", least=1),
    )


def _indexer(fields: _Fields, layers: int) -> Indexer | None:
    if fields.first("index_head_dim")[1] is None:
        return None
    kinds = fields.first("indexer_types")[1]
    if kinds is None:
        owners = (True,) * layers
    else:
        if not isinstance(kinds, list) or len(kinds) != layers:
            raise InputError(f"indexer_types does not name {layers} layers", where=fields.where)
        owners = tuple(kind == "full" for kind in kinds)
    return Indexer(
        heads=fields.integer("index_n_heads", least=1),
        head_dim=fields.integer("index_head_dim", least=1),
        topk=fields.integer("index_topk", default=0),
        owners=owners,
    )


def _experts(fields: _Fields) -> Experts | None:
    count = fields.integer("n_routed_experts", "num_experts", "num_local_experts", default=0)
    if not count:
        return None
    size = fields.integer("moe_intermediate_size", "intermediate_size", least=1)
    shared = fields.integer("n_shared_experts", "num_shared_experts", default=0)
    width = fields.integer("shared_expert_intermediate_size", default=0)
    if width and not shared:
        shared = 1
    return Experts(
        count=count,
        per_token=fields.integer("num_experts_per_tok", "num_experts_per_token", default=1),
        intermediate_size=size,
        shared=shared,
        shared_intermediate_size=width or shared * size,
        score_bias=fields.first("topk_method")[1] == "noaux_tc" or fields.flag("use_routing_bias"),
        shared_gate=fields.flag("shared_expert_gate", default=bool(width)),
    )


def _sparse(fields: _Fields, layers: int, has_experts: bool) -> tuple[bool, ...]:
    if not has_experts:
        return (False,) * layers
    kinds = fields.first("mlp_layer_types")[1]
    if isinstance(kinds, list):
        if len(kinds) != layers:
            raise InputError(f"mlp_layer_types does not name {layers} layers", where=fields.where)
        return tuple(kind == "sparse" for kind in kinds)
    frequency = fields.first("moe_layer_freq")[1]
    if isinstance(frequency, list):
        if len(frequency) != layers:
            raise InputError(f"moe_layer_freq does not name {layers} layers", where=fields.where)
        return tuple(bool(entry) for entry in frequency)
    step = fields.integer("moe_layer_freq", "decoder_sparse_step", default=1, least=1)
    dense = fields.integer("first_k_dense_replace", default=0)
    only = fields.first("mlp_only_layers")[1] or []
    # decoder_sparse_step counts layers from 1, moe_layer_freq from 0; at 1 both mean every layer
    offset = 1 if fields.first("moe_layer_freq")[1] is None else 0
    return tuple(i >= dense and (i + offset) % step == 0 and i not in only for i in range(layers))


def _dtype(fields: _Fields) -> str:
    from layoutcheck.units import dtype_name

    value = fields.first("dtype", "torch_dtype")[1]
    return dtype_name(str(value), where=fields.where) if value is not None else "bfloat16"


def _key(name: str) -> str:
    tail = name.replace("--", "/").rsplit("/", 1)[-1]
    return re.sub(r"[^a-z0-9]", "", tail.lower())


def _name_of(path: Path) -> str:
    return path.resolve().parent.name if path.name == "config.json" else path.stem


@lru_cache(maxsize=1)
def _shipped() -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in sorted((rules_dir() / "models").glob("*.json")):
        if path.name.startswith("_"):
            continue
        for alias in [path.stem, *read_document(path, CONFIG).get("aliases", [])]:
            found[_key(alias)] = path
    return found


@lru_cache(maxsize=1)
def _families() -> dict[str, Any]:
    return read_document(rules_dir() / "models" / "_families.json", "the families of models")
