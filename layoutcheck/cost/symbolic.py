"""A model's terms with the names of its figures in their sizes: ``hidden_size`` where a step's own terms hold 6144.

The decoder is written once more with figures that no two sizes share (:mod:`layoutcheck.models.figures`), typed and lifted; its
sizes then say which figures they are made of. Every size is held against the model's own: one that does not give the same
with the model's figures in it stays a number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from attrs import evolve

from layoutcheck.cost.model_cost import analysed_step
from layoutcheck.cost.terms import GraphCost, Term
from layoutcheck.models.config import ModelConfig
from layoutcheck.models.figures import figures_of
from layoutcheck.models.step import Step
from layoutcheck.symbols import Expr, Size, evaluate, substitute

_AT = ({"T": 4096, "context": 0}, {"T": 8191, "context": 777}, {"T": 17, "context": 12345})
"""Counts at which sizes are compared that are written differently."""


def with_figures(
    cost: GraphCost,
    config: ModelConfig,
    step: Step,
    *,
    rules: Sequence[str | Path] = (),
    kernels: Sequence[str | Path] = (),
    indexer_queries: str = "auto",
) -> GraphCost:
    """The terms of a step with its figures as symbols; ``cost`` itself where the two graphs are not alike.

    Args:
        cost: the step's terms, as :func:`layoutcheck.cost.model_cost.model_cost` gives them.
        config, step, rules, kernels, indexer_queries: what it was made from.
    """
    from layoutcheck.cost.lift import lift

    figures = figures_of(config, step.tp)
    analysis = analysed_step(figures.config, step, rules)
    named = lift(analysis, kernels=kernels, indexer_queries=indexer_queries, figures=figures)
    if [_kind(t) for t in named.terms] != [_kind(t) for t in cost.terms]:
        return cost
    terms = tuple(
        evolve(
            own,
            sizes={n: _size(own.sizes[n], size, figures.real, cost.values) for n, size in t.sizes.items()},
        )
        for own, t in zip(cost.terms, named.terms)
    )
    used = {n for term in terms for n in term.symbols()}
    shown = {n: v for n, v in figures.real.items() if n in used}
    return evolve(cost, terms=terms, values={**cost.values, **shown}, figures=shown)


def _kind(term: Term) -> tuple[object, ...]:
    return term.kernel, term.label, term.node, term.count, tuple(term.sizes)


def _size(own: Size, named: Size, real: Mapping[str, int], groups: Mapping[str, int]) -> Size:
    """The named size if it is the model's own with the model's figures in it."""
    if not isinstance(named, Expr):
        return own
    back = substitute(named, dict(real))
    if back is own or back == own:
        return named
    for at in _AT:
        values = {**groups, **at}
        if evaluate(back, values) != evaluate(own, values):
            return own
    return named
