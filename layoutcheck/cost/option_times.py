"""What an option of a memory verdict costs in time: a prefill step of the changed plan against one of the plan, by the cost model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from layoutcheck.cost.evaluate import time_graph
from layoutcheck.cost.hardware import Hardware
from layoutcheck.cost.lift import lift
from layoutcheck.cost.model_cost import model_cost
from layoutcheck.cost.moving import overlapped
from layoutcheck.cost.terms import GraphCost
from layoutcheck.errors import InputError
from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.memory.engines import load_engine
from layoutcheck.memory.ledger import Ledger
from layoutcheck.memory.plan import Plan
from layoutcheck.memory.schemes import products_of
from layoutcheck.memory.verdict import Option
from layoutcheck.models import ModelConfig
from layoutcheck.models.step import step_for


def timed(
    options: Iterable[Option], config: ModelConfig, plan: Plan, ledger: Ledger, hardware: Hardware
) -> tuple[tuple[Option, ...], str]:
    """Return the options with what each adds to a step in microseconds, and a sentence on how that was found.

    The step is a prefill of ``plan.max_tokens`` tokens of each data-parallel group. An option whose plan no decoder is written
    for stays as it was; if the plan itself is such a one, all do.
    """
    quant = products_of(_largest(ledger))
    try:
        before = _step_us(config, plan, quant, hardware)
    except InputError as error:
        return tuple(options), f"no times of options: {error.message}"
    found: list[Option] = []
    for option in options:
        try:
            if option.plan is not None and _seen(option.plan) != _seen(plan):
                option = replace(option, time_us=_step_us(config, option.plan, quant, hardware) - before)
        except InputError:
            pass  # no decoder is written for it
        found.append(option)
    return tuple(found), (
        f"times of options: a prefill step of {plan.max_tokens} tokens more or less than {before / 1e3:.2f} ms,"
        f" by the cost model on {hardware.name} (layoutcheck cost says what that rests on)"
    )


def timed_steps(
    options: Iterable[Option], analysis: Analysis, counts: Mapping[str, int], hardware: Hardware
) -> tuple[tuple[Option, ...], str]:
    """Return the options of a graph's verdict with what each adds in microseconds, and a sentence on that.

    Smaller steps are timed as the graph is; bytes over links take as long as the links' bandwidth says.
    """
    try:
        cost = lift(analysis)
        before = time_graph(cost, hardware, _known(cost, counts)).total_us
        found = []
        for option in options:
            if option.counts:
                given = _known(cost, {**counts, **dict(option.counts)})
                after = option.steps * time_graph(cost, hardware, given).total_us
                option = replace(option, time_us=after - before)
            elif option.wire_bytes and option.ranks > 1:
                link = hardware.tier_of(option.ranks).bandwidth
                option = replace(option, time_us=option.wire_bytes / link)
            found.append(option)
    except InputError as error:
        return tuple(options), f"no times of options: {error.message}"
    return tuple(found), (
        f"times of options: the work of a step more or less than {before / 1e3:.2f} ms, by the cost model on {hardware.name}"
    )


def _known(cost: GraphCost, counts: Mapping[str, int]) -> dict[str, int]:
    """The counts of which the cost knows."""
    return {name: value for name, value in counts.items() if name in cost.symbols()}


def _step_us(config: ModelConfig, plan: Plan, quant: str, hardware: Hardware) -> float:
    """Microseconds of a prefill step of a plan. Raises InputError where no decoder can be written for it."""
    parallel = plan.parallel
    if config.experts is not None and parallel.etp > 1:
        raise InputError("a step whose experts are cut over ranks cannot be timed", "--etp")
    engine = load_engine(plan.engine)
    step = step_for(
        config,
        tp=parallel.tp,
        dp=parallel.dp,
        ep=parallel.ep if config.experts is not None else None,
        contract=_contract(plan),
        quant=quant,
        mtp=bool(config.mtp_layers) and bool(engine.values.get("mtp") if plan.mtp is None else plan.mtp),
        distribute=plan.distribute,
        gather=plan.gather,
    )
    cost = model_cost(config, step)
    return time_graph(cost, hardware, {"T": plan.max_tokens}, overlap=overlapped(engine)).total_us


def _contract(plan: Plan) -> str | None:
    """The contract that the plan's modes stand for. Raises InputError where they stand for several."""
    modes = load_engine(plan.engine).values.get("modes", {})
    names = {modes[mode]["contract"] for mode in plan.modes if "contract" in modes.get(mode, ())}
    if len(names) > 1:
        raise InputError(f"the modes stand for {' and '.join(sorted(names))}", "--mode")
    return names.pop() if names else None


def _seen(plan: Plan) -> tuple[object, ...]:
    """What the cost of a step depends on."""
    return plan.parallel, plan.modes, plan.mtp, plan.distribute, plan.gather


def _largest(ledger: Ledger) -> str:
    """The scheme of most of the parameters."""
    sizes: dict[str, int] = {}
    for line in ledger.lines:
        sizes[line.scheme] = sizes.get(line.scheme, 0) + line.bytes
    # a scheme with parameters is printed with them: FP8_BLOCK (block_in 128, ...)
    return max(sizes, key=lambda name: sizes[name]).split(" (")[0]
