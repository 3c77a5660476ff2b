"""Times of a model over tokens, contexts, groups, contracts and hardware."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from attrs import define, field, frozen

from layoutcheck.cost.compiled import compile_formulas
from layoutcheck.cost.evaluate import time_graph
from layoutcheck.cost.hardware import Hardware, load_hardware
from layoutcheck.cost.model_cost import analysed_step, lifted_step
from layoutcheck.cost.step_memory import PARTS, StepMemory, step_memory
from layoutcheck.cost.terms import GraphCost
from layoutcheck.cost.time_formulas import TOTAL, compile_times
from layoutcheck.errors import InputError
from layoutcheck.models.config import ModelConfig
from layoutcheck.models.step import Step, step_for

COMPILE_FROM = 400
"""Points of a combination from which on its formulas are compiled: below, evaluating each is faster."""
MOST_POINTS = 10_000_000
"""A column of each role is kept of all of them: 1.5 GB."""

_CHUNK = 4096

FIXED = ("hardware", "contract", "tp", "dp", "ep", "tokens", "context")


@frozen
class Grid:
    """What is swept. ``ep`` may hold None: as many ranks as there are."""

    hardware: tuple[str, ...]
    contracts: tuple[str | None, ...] = (None,)
    tp: tuple[int, ...] = (1,)
    dp: tuple[int, ...] = (1,)
    ep: tuple[int | None, ...] = (None,)
    tokens: tuple[int, ...] = (4096,)
    context: tuple[int, ...] = (0,)

    @property
    def points(self) -> int:
        """How many there are, those that turn out not to fit included."""
        total = 1
        for axis in (self.hardware, self.contracts, self.tp, self.dp, self.ep, self.tokens, self.context):
            total *= len(axis)
        return total


@define
class Block:
    """The points of one combination: columns of tokens, contexts, microseconds by role and in all, and bytes by part."""

    hardware: Hardware
    step: Step
    tokens: Sequence[int]
    context: Sequence[int]
    us: Mapping[str, Sequence[float]]
    memory: Mapping[str, Sequence[int]]

    def columns(self) -> Iterator[dict[str, list[Any]]]:
        """Columns of a few thousand points each: ms, what a rank holds, tokens a second of all data-parallel groups, ms by role."""
        s = self.step
        fixed = {"hardware": self.hardware.name, "contract": s.contract, "tp": s.tp, "dp": s.dp, "ep": s.ep}
        for start in range(0, len(self.tokens), _CHUNK):
            part = slice(start, start + _CHUNK)
            tokens, context = _listed(self.tokens[part]), _listed(self.context[part])
            us = _listed(self.us[TOTAL][part])
            held = {name: _listed(self.memory[name][part]) for name in PARTS}
            total = [sum(sizes) for sizes in zip(*held.values())]
            most = self.hardware.memory_bytes
            yield {
                **{name: [value] * len(us) for name, value in fixed.items()},
                "tokens": tokens,
                "context": context,
                "ms": [t / 1e3 for t in us],
                "memory_gib": [size / 2**30 for size in total],
                "fits": ["yes" if size <= most else "no" for size in total],
                **{f"{name}_gib": [size / 2**30 for size in sizes] for name, sizes in held.items()},
                "tokens_per_s": [n * s.dp / t * 1e6 for n, t in zip(tokens, us)],
                **{
                    f"{role}_ms": [t / 1e3 for t in _listed(times[part])]
                    for role, times in self.us.items()
                    if role != TOTAL
                },
            }

    def rows(self) -> Iterator[dict[str, Any]]:
        """The columns of :meth:`columns`, a row a point."""
        for columns in self.columns():
            yield from (dict(zip(columns, row)) for row in zip(*columns.values()))


def _listed(values: Sequence[Any]) -> list[Any]:
    """Numbers of an array or a sequence as Python's."""
    found: list[Any] = values.tolist() if hasattr(values, "tolist") else list(values)
    return found


@define
class Sweep:
    """All blocks, and the combinations that do not fit with the reason."""

    blocks: list[Block] = field(factory=list)
    skipped: dict[str, str] = field(factory=dict)

    def rows(self) -> Iterator[dict[str, Any]]:
        """All points, a row each."""
        for block in self.blocks:
            yield from block.rows()


def sweep(
    config: ModelConfig,
    grid: Grid,
    *,
    decode: bool = False,
    sequences: int = 1,
    quant: str = "none",
    mtp: bool = False,
    routing: str = "balanced",
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Sweep:
    """Time a model at every point of a grid.

    Args:
        config: the model's figures.
        grid: what is swept.
        decode, sequences, quant, mtp: see ``Step``.
        routing: see ``time_graph``.
        progress: called with the combinations that are done and how many there are.

    Raises:
        InputError: too many points, unknown hardware, or no combination fits.
    """
    if grid.points > MOST_POINTS:
        raise InputError(f"{grid.points} points are more than {MOST_POINTS}")
    if any(n % sequences for n in grid.tokens):
        raise InputError(f"tokens are not the same for {sequences} sequences", where="--sequences")
    parts = [load_hardware(name) for name in grid.hardware]
    found = Sweep()
    steps: dict[Step, None] = {}
    for contract, tp, dp, ep in product(grid.contracts, grid.tp, grid.dp, grid.ep):
        options: dict[str, Any] = {"contract": contract, "tp": tp, "dp": dp, "ep": ep}
        try:
            step = step_for(config, **options, decode=decode, sequences=sequences, quant=quant, mtp=mtp)
        except InputError as error:
            words = ", ".join(f"{n} {v}" for n, v in options.items() if v is not None)
            found.skipped[words] = error.message
            continue
        steps[step] = None
    if not steps:
        raise InputError(next(iter(found.skipped.values())))
    done = 0
    for step in steps:
        analysis = analysed_step(config, step)
        cost, memory = lifted_step(config, step, analysis), step_memory(step, analysis)
        for hardware in parts:
            try:
                found.blocks.append(_block(cost, memory, hardware, grid, routing))
            except InputError as error:
                found.skipped[f"{hardware.name}, tp {step.tp}, dp {step.dp}, ep {step.ep}"] = error.message
            done += 1
            progress(done, len(steps) * len(parts))
    if not found.blocks:
        raise InputError(next(iter(found.skipped.values())))
    return found


def _block(cost: GraphCost, memory: StepMemory, hardware: Hardware, grid: Grid, routing: str) -> Block:
    points = len(grid.tokens) * len(grid.context)
    if points >= COMPILE_FROM:
        return _compiled(cost, memory, hardware, grid, routing)
    tokens, context = [], []
    us: dict[str, list[float]] = {}
    held: dict[str, list[int]] = {part: [] for part in PARTS}
    for t, c in product(grid.tokens, grid.context):
        report = time_graph(cost, hardware, {"T": t, "context": c}, routing=routing)
        tokens.append(t)
        context.append(c)
        for row in report.rows("role"):
            us.setdefault(row.name, []).append(row.us)
        us.setdefault(TOTAL, []).append(report.total_us)
        for part, size in memory.at(t, c).items():
            held[part].append(size)
    return Block(hardware, memory.step, tokens, context, us, held)


def _compiled(cost: GraphCost, memory: StepMemory, hardware: Hardware, grid: Grid, routing: str) -> Block:
    try:
        import numpy as np
    except ImportError as error:
        raise InputError("so many points need numpy: pip install 'layoutcheck[fit]'") from error
    fixed = {n: v for n, v in cost.values.items() if n != "context"}
    times, bytes_ = compile_times(cost, hardware, fixed, routing), compile_formulas(memory.formulas())
    tokens = np.repeat(np.asarray(grid.tokens, np.int64), len(grid.context))
    context = np.tile(np.asarray(grid.context, np.int64), len(grid.tokens))
    held = {n: np.broadcast_to(v, tokens.shape) for n, v in bytes_(T=tokens, context=context).items()}
    return Block(hardware, memory.step, tokens, context, times(T=tokens, context=context), held)


def pareto(rows: Sequence[Mapping[str, Any]], x: str, y: str) -> list[Mapping[str, Any]]:
    """The rows that no other one beats in both columns, smaller being better, in order of ``x``."""
    found: list[Mapping[str, Any]] = []
    for row in sorted(rows, key=lambda r: (r[x], r[y])):
        if not found or row[y] < found[-1][y]:
            found.append(row)
    return found
