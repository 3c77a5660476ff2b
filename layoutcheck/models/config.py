"""The structure of a decoder model as figures. Behaviour follows from what is there, never from a name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention: keys and values go through a latent of ``kv_lora_rank``.

    ``q_lora_rank`` is None where queries are projected directly.
    """

    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int


@dataclass(frozen=True)
class Indexer:
    """An indexer that picks top-k keys for sparse attention; ``owners[i]`` is whether layer i has its own."""

    heads: int
    head_dim: int
    topk: int
    owners: tuple[bool, ...]


@dataclass(frozen=True)
class Experts:
    """Routed and shared experts of the layers that are sparse."""

    count: int
    per_token: int
    intermediate_size: int
    shared: int
    shared_intermediate_size: int
    score_bias: bool
    shared_gate: bool = False


@dataclass(frozen=True)
class ModelConfig:
    """A decoder model.

    Attributes:
        name: what the reader called it; for reports only.
        dtype: of the unquantised parameters.
        sparse: per layer, whether it has routed experts. Its length is the number of layers.
        mtp_layers: layers for multi-token prediction, after the others.
        qkv_bias, o_bias, mlp_bias: which linears have a bias.
        qk_norm: "head" (over head_dim), "full" (over all heads) or None.
        max_positions: rows of a rotary table.
        quantization: the config's ``quantization_config``, as it stands in the file.
        notes: what the file holds and this description leaves out.
    """

    name: str
    hidden_size: int
    vocab_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    sparse: tuple[bool, ...]
    dtype: str = "bfloat16"
    latent: LatentAttention | None = None
    indexer: Indexer | None = None
    experts: Experts | None = None
    mtp_layers: int = 0
    tied_embeddings: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: str | None = None
    max_positions: int = 0
    rotary_dim: int = 0
    quantization: Mapping[str, Any] | None = field(default=None, hash=False, compare=False)
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<ModelConfig {self.name}: {len(self.sparse)} layers, hidden {self.hidden_size}>"

    @property
    def num_layers(self) -> int:
        """The number of decoder layers, without those for multi-token prediction."""
        return len(self.sparse)

    def layer_is_sparse(self, layer: int) -> bool:
        """Whether a layer has routed experts; an MTP layer is like the last decoder layer."""
        return self.sparse[layer] if layer < self.num_layers else bool(self.sparse and self.sparse[-1])

    def layer_owns_indexer(self, layer: int) -> bool:
        """Whether a layer computes its own top-k; an MTP layer does, where there is an indexer."""
        if self.indexer is None:
            return False
        return self.indexer.owners[layer] if layer < self.num_layers else True

    def symbols(self) -> dict[str, int]:
        """Return the figures under the names that formulas use."""
        found = {
            "hidden_size": self.hidden_size,
            "vocab_size": self.vocab_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.intermediate_size,
            "max_position_embeddings": self.max_positions,
            "rotary_dim": self.rotary_dim,
            "num_nextn_predict_layers": self.mtp_layers,
        }
        if self.latent is not None:
            latent = self.latent
            found |= {
                "kv_lora_rank": latent.kv_lora_rank,
                "qk_nope_head_dim": latent.qk_nope_head_dim,
                "qk_rope_head_dim": latent.qk_rope_head_dim,
                "qk_head_dim": latent.qk_nope_head_dim + latent.qk_rope_head_dim,
                "v_head_dim": latent.v_head_dim,
            }
            if latent.q_lora_rank is not None:
                found["q_lora_rank"] = latent.q_lora_rank
        if self.indexer is not None:
            found |= {
                "index_n_heads": self.indexer.heads,
                "index_head_dim": self.indexer.head_dim,
                "index_topk": self.indexer.topk,
            }
        if self.experts is not None:
            found |= {
                "n_routed_experts": self.experts.count,
                "num_experts_per_tok": self.experts.per_token,
                "moe_intermediate_size": self.experts.intermediate_size,
                "shared_intermediate_size": self.experts.shared_intermediate_size,
            }
        return found
