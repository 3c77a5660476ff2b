"""Layout faults from production serving engines as small graphs, each with its repaired twin."""

from . import boundary, moe, reductions, tokens
from .base import FAULTS, SIZES, Fault, Size

__all__ = ["FAULTS", "SIZES", "Fault", "Size", "boundary", "moe", "reductions", "tokens"]
