"""Whether two graphs are the same program."""

from __future__ import annotations

from layoutcheck.equivalence.compare import diff, equivalent
from layoutcheck.equivalence.result import Comparison, Divergence, Traffic

__all__ = ["Comparison", "Divergence", "Traffic", "diff", "equivalent"]
