"""The parameters of a decoder, from its figures: one entry a module, with the layers it stands in.

Names are those of Hugging Face checkpoints, so that quantisation files and checkpoints find them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from layoutcheck.models import ModelConfig


@dataclass(frozen=True, slots=True)
class Weight:
    """A parameter that stands in one or more layers.

    Attributes:
        path: the module, ``model.layers.{layer}.self_attn.o_proj``; no ``{layer}`` at model level.
        out, inp: rows and columns as formulas; ``inp`` is None for a vector.
        kind: ``linear`` (may be quantised), ``embedding``, ``router``, ``norm``, ``bias``, ``vector``.
        layers: the layer numbers; empty at model level.
        expert: one of these for every routed expert (``{expert}`` in the path).
        dtype: where it is not the model's.
    """

    path: str
    out: str
    inp: str | None
    kind: str
    layers: tuple[int, ...] = ()
    param: str = "weight"
    expert: bool = False
    dtype: str | None = None

    @property
    def module(self) -> str:
        """The last part of the path."""
        return self.path.rsplit(".", 1)[-1]

    def at(self, layer: int, expert: int = 0) -> str:
        """Return the path in one layer."""
        return self.path.replace("{layer}", str(layer)).replace("{expert}", str(expert))


@dataclass(frozen=True)
class _Block:
    """Layers that are alike."""

    layers: tuple[int, ...]
    sparse: bool
    indexer: bool
    mtp: bool


def inventory(config: ModelConfig, mtp: bool = True) -> list[Weight]:
    """Return the parameters of a model; ``mtp`` includes the layers for multi-token prediction."""
    found = [Weight("model.embed_tokens", "vocab_size", "hidden_size", "embedding")]
    # what is alike in several blocks is one entry
    merged: dict[Weight, list[int]] = {}
    for block in _blocks(config, mtp):
        for weight in _layer(config, block):
            merged.setdefault(replace(weight, layers=()), []).extend(weight.layers)
    found += [replace(weight, layers=tuple(sorted(layers))) for weight, layers in merged.items()]
    found.append(Weight("model.norm", "hidden_size", None, "norm"))
    if not config.tied_embeddings:
        found.append(Weight("lm_head", "vocab_size", "hidden_size", "head"))
    return found


def _blocks(config: ModelConfig, mtp: bool) -> Iterator[_Block]:
    alike: dict[tuple[bool, bool, bool], list[int]] = {}
    for layer in range(config.num_layers + (config.mtp_layers if mtp else 0)):
        key = (config.layer_is_sparse(layer), config.layer_owns_indexer(layer), layer >= config.num_layers)
        alike.setdefault(key, []).append(layer)
    for (sparse, indexer, extra), layers in alike.items():
        yield _Block(tuple(layers), sparse, indexer, extra)


def _layer(config: ModelConfig, block: _Block) -> Iterator[Weight]:
    prefix = "model.layers.{layer}"

    def weight(path: str, out: str, inp: str | None, kind: str = "linear", **more: object) -> Weight:
        return Weight(f"{prefix}.{path}", out, inp, kind, block.layers, **more)  # type: ignore[arg-type]

    def linear(path: str, out: str, inp: str, bias: bool = False) -> Iterator[Weight]:
        yield weight(path, out, inp)
        if bias:
            yield weight(path, out, None, "bias", param="bias")

    if block.mtp:
        yield weight("enorm", "hidden_size", None, "norm")
        yield weight("hnorm", "hidden_size", None, "norm")
        yield weight("eh_proj", "hidden_size", "2*hidden_size")
        yield weight("shared_head.norm", "hidden_size", None, "norm")
    yield weight("input_layernorm", "hidden_size", None, "norm")
    yield weight("post_attention_layernorm", "hidden_size", None, "norm")

    if config.latent is not None:
        heads = "num_attention_heads"
        if config.latent.q_lora_rank is None:
            yield from linear("self_attn.q_proj", f"{heads}*qk_head_dim", "hidden_size")
        else:
            yield from linear("self_attn.q_a_proj", "q_lora_rank", "hidden_size", config.qkv_bias)
            yield weight("self_attn.q_a_layernorm", "q_lora_rank", None, "norm")
            yield from linear("self_attn.q_b_proj", f"{heads}*qk_head_dim", "q_lora_rank")
        latent = "kv_lora_rank+qk_rope_head_dim"
        yield from linear("self_attn.kv_a_proj_with_mqa", latent, "hidden_size", config.qkv_bias)
        yield weight("self_attn.kv_a_layernorm", "kv_lora_rank", None, "norm")
        yield from linear("self_attn.kv_b_proj", f"{heads}*(qk_nope_head_dim+v_head_dim)", "kv_lora_rank")
        yield from linear("self_attn.o_proj", "hidden_size", f"{heads}*v_head_dim", config.o_bias)
        if block.indexer:
            query = "index_n_heads*index_head_dim"
            source = "hidden_size" if config.latent.q_lora_rank is None else "q_lora_rank"
            yield weight("self_attn.indexer.wq_b", query, source)
            yield weight("self_attn.indexer.wk", "index_head_dim", "hidden_size")
            yield weight("self_attn.indexer.k_norm", "index_head_dim", None, "norm")
            yield weight("self_attn.indexer.k_norm", "index_head_dim", None, "norm", param="bias")
            yield weight("self_attn.indexer.weights_proj", "index_n_heads", "hidden_size")
    else:
        queries, keys = "num_attention_heads*head_dim", "num_key_value_heads*head_dim"
        yield from linear("self_attn.q_proj", queries, "hidden_size", config.qkv_bias)
        yield from linear("self_attn.k_proj", keys, "hidden_size", config.qkv_bias)
        yield from linear("self_attn.v_proj", keys, "hidden_size", config.qkv_bias)
        yield from linear("self_attn.o_proj", "hidden_size", queries, config.o_bias)
        if config.qk_norm is not None:
            whole = config.qk_norm == "full"
            yield weight("self_attn.q_norm", queries if whole else "head_dim", None, "norm")
            yield weight("self_attn.k_norm", keys if whole else "head_dim", None, "norm")

    if not block.sparse:
        yield from _mlp(linear, "mlp", "intermediate_size", config.mlp_bias)
        return
    assert config.experts is not None
    yield weight("mlp.gate", "n_routed_experts", "hidden_size", "router")
    if config.experts.score_bias:
        yield weight(
            "mlp.gate", "n_routed_experts", None, "vector", param="e_score_correction_bias", dtype="float32"
        )
    for module, out, inp in _mlp_shapes("moe_intermediate_size"):
        yield weight(f"mlp.experts.{{expert}}.{module}", out, inp, expert=True)
    if config.experts.shared:
        yield from _mlp(linear, "mlp.shared_experts", "shared_intermediate_size", config.mlp_bias)
        if config.experts.shared_gate:
            yield weight("mlp.shared_expert_gate", "1", "hidden_size", "router")


def _mlp_shapes(width: str) -> tuple[tuple[str, str, str], ...]:
    return (
        ("gate_proj", width, "hidden_size"),
        ("up_proj", width, "hidden_size"),
        ("down_proj", "hidden_size", width),
    )


def _mlp(linear: object, prefix: str, width: str, bias: bool) -> Iterator[Weight]:
    assert callable(linear)
    for module, out, inp in _mlp_shapes(width):
        yield from linear(f"{prefix}.{module}", out, inp, bias)
