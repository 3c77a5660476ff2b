"""What a rank holds at a model's step, as formulas over its tokens and context: the ledger of its graph, with caches of any length.

The graph is written with a small number of tokens and caches that hold just these. Weights do not depend on tokens; inputs and
the peak of activations are sizes in ``T`` (:mod:`layoutcheck.memory.envelope`); a cache's bytes a token are those of its rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from layoutcheck.cost.algebra import Num, ceil_div
from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.memory.graph_ledger import graph_memory
from layoutcheck.models.step import Step
from layoutcheck.models.writer import BLOCK, cached_tokens
from layoutcheck.symbols import Expr, Size, evaluate, to_sympy

PARTS = ("weights", "cache", "activations")
"""Columns of a step's memory; they add up to all of it."""

_WEIGHTS = ("replicated", "tensor-parallel", "expert-parallel", "companions")
_CACHES = ("kv-cache", "indexer-cache")


@frozen
class StepMemory:
    """Bytes of a rank.

    Attributes:
        step: whose memory it is.
        weights: parameters with their scales.
        row: of one cached token, over all layers.
        inputs: what the caller hands over, over ``T``.
        peaks: what may be the peak of activations, over ``T``: it is the largest.
    """

    step: Step
    weights: int
    row: int
    inputs: Size
    peaks: tuple[Size, ...]

    def cache(self, tokens: Num, context: Num) -> Num:
        """Bytes of the caches after the step, in whole blocks of :data:`BLOCK` tokens of each sequence."""
        sequences, new = (tokens, 1) if self.step.decode else (self.step.sequences, None)
        if new is None:
            # tokens / sequences are whole: the ceiling of both quotients is one of the sum
            blocks = ceil_div(context * sequences + tokens, sequences * BLOCK)
        else:
            blocks = ceil_div(context + new, BLOCK)
        return self.row * BLOCK * sequences * blocks

    def at(self, tokens: int, context: int) -> dict[str, int]:
        """Bytes by part at one point."""
        values = {"T": tokens}
        inputs, *peaks = (
            evaluate(s, values) if isinstance(s, Expr) else s for s in (self.inputs, *self.peaks)
        )
        return {
            "weights": self.weights,
            "cache": int(self.cache(tokens, context)),
            "activations": inputs + max(peaks, default=0),
        }

    def formulas(self) -> Mapping[str, Any]:
        """Bytes by part as sympy expressions over ``T`` and ``context``."""
        import sympy

        tokens, context = (sympy.Symbol(n, integer=True, nonnegative=True) for n in ("T", "context"))
        peaks = [to_sympy(s) if isinstance(s, Expr) else sympy.Integer(s) for s in self.peaks or (0,)]
        inputs = to_sympy(self.inputs) if isinstance(self.inputs, Expr) else self.inputs
        peak = peaks[0] if len(peaks) == 1 else sympy.Max(*peaks, evaluate=False)
        return {
            "weights": sympy.Integer(self.weights),
            "cache": self.cache(tokens, context),
            "activations": sympy.Add(inputs, peak, evaluate=False),
        }


def step_memory(step: Step, analysis: Analysis) -> StepMemory:
    """The memory of a step from its typed graph."""
    found = graph_memory(analysis)
    sizes = found.ledger.by_category()
    held = cached_tokens(step.tokens)
    return StepMemory(
        step,
        sum(sizes.get(c, 0) for c in _WEIGHTS),
        sum(sizes.get(c, 0) for c in _CACHES) // held,
        found.sizes.get("inputs", 0),
        tuple(size for size, _ in found.envelope.candidates),
    )
