"""Reference implementations of fused ops, written from their definitions; no rule is read here."""

from __future__ import annotations

from layoutcheck.ranks.reference.registry import Exchange, find, known_targets, real_dtype, reference

__all__ = ["Exchange", "find", "known_targets", "real_dtype", "reference"]
