"""The cost of a model from its figures: its decoder as a graph, typed and lifted like any export."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import evolve

from layoutcheck.cost.terms import GraphCost
from layoutcheck.models.config import ModelConfig
from layoutcheck.models.step import Step

if TYPE_CHECKING:
    from layoutcheck.infer.solver.analysis import Analysis


def model_cost(
    config: ModelConfig,
    step: Step,
    *,
    rules: Sequence[str | Path] = (),
    kernels: Sequence[str | Path] = (),
    indexer_queries: str = "auto",
) -> GraphCost:
    """The terms of one step of a model on rank 0, as formulas over its tokens ``T`` (of one data-parallel group) and ``context``.

    Args:
        config: the model's figures.
        step: what runs, and on which ranks; see ``layoutcheck.models.step.step_for``.
        rules, kernels: folders of one's own.
        indexer_queries: see :func:`layoutcheck.cost.lift.lift`.
    """
    return lifted_step(
        config, step, analysed_step(config, step, rules), kernels=kernels, indexer_queries=indexer_queries
    )


def analysed_step(config: ModelConfig, step: Step, rules: Sequence[str | Path] = ()) -> Analysis:
    """A step's graph, typed."""
    from layoutcheck.infer.solver.analysis import analyse
    from layoutcheck.models.decoder import build_decoder

    return analyse(
        build_decoder(config, step),
        tokens=[("input_ids", 0)],
        rules=rules,
    )


def lifted_step(
    config: ModelConfig,
    step: Step,
    analysis: Analysis,
    *,
    kernels: Sequence[str | Path] = (),
    indexer_queries: str = "auto",
) -> GraphCost:
    """The terms of a step's typed graph."""
    from layoutcheck.cost.lift import lift

    cost = lift(analysis, kernels=kernels, indexer_queries=indexer_queries)
    notes = [f"written from the model's figures for {describe(step)}", *config.notes, *cost.notes]
    values = {n: v for n, v in cost.values.items() if n != "T"}
    return evolve(cost, values=values, source=config.name, notes=tuple(notes))


def describe(step: Step) -> str:
    """A step in words."""
    phase = "decode" if step.decode else f"prefill of {step.sequences} sequence{'s' * (step.sequences > 1)}"
    groups = f"tp {step.tp}, dp {step.dp}, ep {step.ep}"
    linears = f"{step.quant} linears" if step.quant else "no quantised linears"
    more = [", with MTP"] * step.mtp + [f", {m} broadcast" for m in step.distribute]
    more += [f", {m} gathered" for m in step.gather]
    return f"{step.contract}, {phase}, {groups}, {linears}" + "".join(more)
