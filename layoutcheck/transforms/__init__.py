"""Factor transforms: shape ops, indexing, collectives and routing as functions on factors.

A rule says `code NAME`; the functions here know factors only, never ops.
"""

from __future__ import annotations

from layoutcheck.transforms.registry import Transform, find

__all__ = ["Transform", "find"]
