"""Does a typed graph fit on a device, up to how many tokens, and what would make it smaller at which cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from layoutcheck.domains import is_token_like
from layoutcheck.layouts import Layout
from layoutcheck.memory.envelope import envelope
from layoutcheck.memory.formula import evaluate as evaluate_text
from layoutcheck.memory.graph_ledger import GraphMemory
from layoutcheck.memory.ledger import Ledger
from layoutcheck.memory.liveness import Interval, Region
from layoutcheck.memory.verdict import Option, largest_tokens
from layoutcheck.symbols import cdiv, evaluate

_LISTED = 4
_MOST_TOKENS = 1 << 24


@dataclass(frozen=True)
class GraphVerdict:
    """Whether weights, caches, inputs and the activation peak of a graph fit.

    Attributes:
        capacity, used, slack: bytes; slack is negative where it does not fit.
        symbol: the token symbol that ``most_tokens`` is about, None where no size depends on one.
        most_tokens: its largest value that fits; 0 where the weights alone do not.
        options: changes, the largest saving first.
    """

    capacity: int
    used: int
    slack: int
    symbol: str | None
    most_tokens: int
    options: tuple[Option, ...]

    @property
    def fits(self) -> bool:
        """Whether it fits."""
        return self.slack >= 0


def graph_verdict(memory: GraphMemory, capacity: int) -> GraphVerdict:
    """Judge a graph's memory against a capacity in bytes."""
    used = memory.ledger.total()
    symbol = main_symbol(memory)
    most = 0
    if symbol is not None:
        most = largest_tokens(lambda tokens: total_at(memory, symbol, tokens), capacity, _MOST_TOKENS)
    options = sorted(_options(memory, symbol), key=lambda option: -option.saving)
    return GraphVerdict(capacity, used, capacity - used, symbol, most, tuple(options))


def main_symbol(memory: GraphMemory) -> str | None:
    """The token symbol that moves the peak most, None where none does."""
    best, found = 0, None
    for name, value in memory.symbols.items():
        doubled = memory.envelope.at({**memory.symbols, name: 2 * value})[0]
        if doubled - memory.peak.bytes > best:
            best, found = doubled - memory.peak.bytes, name
    return found


def largest_step(memory: GraphMemory, ledger: Ledger, capacity: int) -> tuple[str | None, int]:
    """The symbol that moves a graph's peak most, and its largest value with which a ledger that holds that peak fits; caches and
    buffers stay what they are."""
    symbol = main_symbol(memory)
    if symbol is None:
        return None, 0
    rest = ledger.total() - memory.peak.bytes

    def bytes_at(tokens: int) -> int:
        return rest + memory.envelope.at({**memory.symbols, symbol: tokens})[0]

    return symbol, largest_tokens(bytes_at, capacity, _MOST_TOKENS)


def total_at(memory: GraphMemory, symbol: str, tokens: int) -> int:
    """Return the bytes of everything for another number of tokens."""
    ledger = memory.ledger
    symbols = {**ledger.symbols, symbol: tokens}
    other = sum(evaluate_text(x.formula, symbols) for x in ledger.lines if x.category != "activations")
    return other + memory.envelope.at({**memory.symbols, symbol: tokens})[0]


def _options(memory: GraphMemory, symbol: str | None) -> Iterator[Option]:
    if symbol is not None and memory.symbols[symbol] > 1:
        half = memory.symbols[symbol] // 2
        saving = memory.ledger.total() - total_at(memory, symbol, half)
        if saving > 0:
            cost = "twice the steps, each reading all weights"
            change = f"steps of {half} {symbol} instead of {memory.symbols[symbol]}"
            yield Option(change, saving, 0, cost, counts=((symbol, half),), steps=2)
    seen: set[tuple[Layout, int]] = set()
    for name, _ in memory.peak.live:
        value = memory.activations.values.get(name)
        if value is None or len(seen) >= _LISTED:
            continue
        of = memory.analysis.solution.typing.types[value]
        kind = _op_of(memory, value)
        if not isinstance(of, Layout) or (of, kind) in seen or not _has_tokens(of):
            continue
        seen.add((of, kind))
        for axis in memory.analysis.mesh.axes:
            if of.is_full(axis.index) and isinstance(axis.size, int) and axis.index not in _quotient(memory):
                option = _kept_local(memory, name, of, kind, axis.name, axis.size)
                if option is not None:
                    yield option


def _quotient(memory: GraphMemory) -> frozenset[int]:
    return memory.analysis.mesh.quotient


def _has_tokens(of: Layout) -> bool:
    return any(is_token_like(f.domain) for axis in of.axes for f in axis)


def _op_of(memory: GraphMemory, value: int) -> int:
    program = memory.analysis.program
    return program.op[program.value_call[value]]


def _kept_local(
    memory: GraphMemory, name: str, of: Layout, kind: int, group: str, ways: int
) -> Option | None:
    """The peak if every value like this one were cut by its tokens, for one all_gather where it is read whole."""
    types = memory.analysis.solution.typing.types
    acts = memory.activations
    target = _target(memory, kind)

    def alike(interval: Interval) -> bool:
        value = acts.values.get(interval.name)
        return value is not None and types[value] is of and _target(memory, _op_of(memory, value)) == target

    def cut(intervals: Iterable[Interval]) -> list[Interval]:
        return [
            replace(i, bytes=cdiv(i.bytes, ways)) if alike(i) and not isinstance(i.bytes, str) else i
            for i in intervals
        ]

    bodies: dict[int, list[Interval]] = {}
    regions: list[Region] = []
    for region in acts.regions:
        key = id(region.intervals)
        if key not in bodies:
            bodies[key] = cut(region.intervals)
        regions.append(replace(region, intervals=bodies[key]))
    saving = memory.peak.bytes - envelope(cut(acts.intervals), regions).at(memory.symbols)[0]
    if saving <= 0:
        return None
    count = sum(_runs_of(memory, i) for i in acts.intervals if alike(i))
    size = memory.extents.bytes_of(of)
    wire = evaluate(size, memory.symbols) - evaluate(cdiv(size, ways), memory.symbols)
    cost = f"{count} x all_gather over {group}, where it is read whole"
    return Option(f"keep {name} ({target}) local over {group}", saving, wire * count, cost, ways)


def _target(memory: GraphMemory, op: int) -> str:
    return memory.analysis.program.instances[op].target if op >= 0 else ""


def _runs_of(memory: GraphMemory, interval: Interval) -> int:
    value = memory.activations.values.get(interval.name, -1)
    call = memory.analysis.program.value_call[value] if value >= 0 else -1
    times = 1
    for body in memory.activations.bodies:
        if body.holds(call):
            times *= body.runs
    return times
