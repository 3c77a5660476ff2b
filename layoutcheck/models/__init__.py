"""Models as figures: one ``ModelConfig`` from a Hugging Face config.json or a shipped file."""

from __future__ import annotations

from layoutcheck.models.config import Experts, Indexer, LatentAttention, ModelConfig
from layoutcheck.models.read import load_model, model_from_dict, shipped_models

__all__ = [
    "Experts",
    "Indexer",
    "LatentAttention",
    "ModelConfig",
    "load_model",
    "model_from_dict",
    "shipped_models",
]
