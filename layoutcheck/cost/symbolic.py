"""A model's terms with the names of its figures in their sizes: ``hidden_size`` where a step's own terms hold 6144.

The decoder is written once more with figures that no two sizes share (:mod:`layoutcheck.models.figures`), typed and lifted; its
sizes then say which figures they are made of. Every size is held against the model's own: one that does not give the same
with the model's figures in it stays a number.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from attrs import evolve

from layoutcheck.cost.model_cost import analysed_step, model_cost
from layoutcheck.cost.terms import GraphCost, Term
from layoutcheck.errors import InputError
from layoutcheck.models.config import ModelConfig
from layoutcheck.models.figures import figures_of
from layoutcheck.models.step import QUANT, Step, step_for, styles
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
    return _shown(cost, terms, figures.real)


def with_figures_of(cost: GraphCost, config: ModelConfig) -> GraphCost:
    """The terms of an exported graph with a model's figures as symbols.

    A term takes the sizes of one of the written model's terms: of the same role and kernel, with the same sizes. Where several fit
    that are made of different figures, its numbers stay.

    Args:
        cost: the exported graph's terms.
        config: the figures of the model that it was exported from.

    Raises:
        InputError: no term has this model's hidden size: the graph is another model's.
    """
    names: dict[Any, set[tuple[Size, ...]]] = defaultdict(set)
    real: dict[str, int] = {}
    for step in _steps(cost, config):
        own = model_cost(config, step)
        named = with_figures(own, config, step)
        real |= named.figures
        for a, b in zip(own.terms, named.terms):
            names[_place(a)].add(tuple(b.sizes.values()))
    terms = []
    for term in cost.terms:
        found = names.get(_place(term), set())
        terms.append(
            evolve(term, sizes=dict(zip(term.sizes, next(iter(found))))) if len(found) == 1 else term
        )
    done = _shown(cost, tuple(terms), real)
    if "hidden_size" not in done.figures:
        raise InputError(f"the graph's layers are not those of {config.name}", where="--figures")
    return done


def _steps(cost: GraphCost, config: ModelConfig) -> Iterator[Step]:
    """The model's steps on the graph's groups, in every form that it may be exported in."""
    tp, ep = cost.values.get("tp", 1), cost.values.get("ep", 1)
    coded = [
        q for q, dtype in QUANT.items() if dtype and any(t.options.get("dtype") == dtype for t in cost.terms)
    ]
    for contract, decode in product(styles(), (False, True)):
        try:
            yield step_for(
                config,
                contract=contract,
                tp=tp,
                dp=max(1, ep // tp),
                ep=ep if config.experts is not None else None,
                decode=decode,
                quant=coded[0] if coded else "none",
            )
        except InputError:
            continue


def _place(term: Term) -> tuple[object, ...]:
    kind = term.options["op"] if term.kernel == "collective" else term.kernel
    return term.role, kind, tuple(term.sizes.items())


def _shown(cost: GraphCost, terms: tuple[Term, ...], real: Mapping[str, int]) -> GraphCost:
    used = {n for term in terms for n in term.symbols()}
    shown = {n: v for n, v in real.items() if n in used}
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
