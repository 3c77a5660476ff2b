"""Does it fit, by how much, what is the most that fits, and what would change that at which cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from layoutcheck.errors import InputError
from layoutcheck.memory.build import weight_ledger
from layoutcheck.memory.cache import Cache, block_size, bytes_per_token
from layoutcheck.memory.engines import applies, load_engine, matches
from layoutcheck.memory.formula import evaluate
from layoutcheck.memory.ledger import Ledger
from layoutcheck.memory.plan import Plan
from layoutcheck.memory.quantisation import Quantisation
from layoutcheck.models import ModelConfig


@dataclass(frozen=True)
class Option:
    """A change of the plan: what it saves on this rank, and what it costs.

    Attributes:
        wire_bytes: what a rank receives a step because of it; 0 where it costs something else.
        ranks: how many exchange it, where that is known.
        plan: the changed plan, None where something else than the plan changes.
        counts: tokens of a smaller step by symbol, where that is the change, and in `steps` how many of them do the work of one.
        time_us: what a step takes more, in microseconds, by a cost model; None where that was not asked or cannot be said.
    """

    change: str
    saving: int
    wire_bytes: int
    cost: str
    ranks: int = 0
    plan: Plan | None = None
    counts: tuple[tuple[str, int], ...] = ()
    steps: int = 1
    time_us: float | None = None

    def record(self) -> dict[str, object]:
        """Return the option as plain data."""
        return {
            "change": self.change,
            "saving_bytes": self.saving,
            "wire_bytes": self.wire_bytes,
            "cost": self.cost,
            "time_us": self.time_us,
        }


@dataclass(frozen=True)
class Verdict:
    """Whether a ledger fits into a device.

    Attributes:
        capacity: usable bytes: memory * utilisation - reserve.
        used: resident bytes.
        slack: capacity - used, negative where it does not fit.
        loading_slack: the same for the peak while weights are loaded and converted.
        most_tokens: cached tokens that fit beside everything static, whole blocks, over all sequences.
        most_sequences: sequences of the asked context that fit; None where no context was given.
        options: changes, the largest saving first.
        step_symbol, most_step: with a graph, the symbol of the tokens of its step and its largest value that fits beside all else.
    """

    capacity: int
    used: int
    slack: int
    loading_slack: int
    most_tokens: int
    most_sequences: int | None
    options: tuple[Option, ...]
    step_symbol: str | None = None
    most_step: int = 0

    @property
    def fits(self) -> bool:
        """Whether everything fits, the loading peak included."""
        return self.slack >= 0 and self.loading_slack >= 0


def usable(memory: int, utilisation: float = 1.0, reserve: int = 0) -> int:
    """Return the bytes that may be used of a device's memory.

    Raises:
        InputError: a number outside its range.
    """
    if memory <= 0 or not 0 < utilisation <= 1 or reserve < 0:
        raise InputError("memory is positive, utilisation in (0, 1], reserve not negative")
    return int(memory * utilisation) - reserve


def verdict(
    ledger: Ledger,
    config: ModelConfig,
    plan: Plan,
    capacity: int,
    cache: Cache | None = None,
    quantisation: Quantisation | None = None,
    activations: int = 0,
) -> Verdict:
    """Judge a ledger (with its caches, if any) against a capacity in bytes.

    Args:
        activations: bytes of the activation peak where it is not a line of the ledger.
    """
    used = ledger.total() + activations
    fixed = ledger.total() - ledger.total(["kv-cache", "indexer-cache"]) + activations
    shape = cache or Cache(0)
    block, ranks = block_size(plan, shape), shape.ranks
    per_block = bytes_per_token(config, plan, shape, ledger.symbols) * block
    blocks = max(0, (capacity - fixed) // per_block) if per_block else 0
    sequences = None
    if cache is not None and cache.context:
        here = -(-cache.context // ranks)
        sequences = blocks // -(-here // block)
    options = tuple(sorted(_options(config, plan, quantisation), key=lambda option: -option.saving))
    return Verdict(
        capacity,
        used,
        capacity - used,
        capacity - ledger.loading_peak,
        blocks * block * ranks,
        sequences,
        options,
    )


def largest_tokens(bytes_at: Callable[[int], int], budget: int, most: int = 1 << 30) -> int:
    """Return the largest T with ``bytes_at(T) <= budget``, 0 if there is none.

    ``bytes_at`` (say, a liveness peak as a function of the tokens of a step) must not fall as T grows.
    """
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if bytes_at(middle) <= budget:
            low = middle
        else:
            high = middle - 1
    return low


def _options(config: ModelConfig, plan: Plan, quantisation: Quantisation | None) -> Iterator[Option]:
    base = weight_ledger(config, plan, quantisation)
    for changed, change, wire, cost in _changes(config, plan, base):
        # what cannot be built is no option
        try:
            saving = base.static - weight_ledger(config, changed, quantisation).static
        except InputError:
            continue
        if saving > 0:
            yield Option(change, saving, wire, cost, plan.parallel.tp, changed)


def _changes(config: ModelConfig, plan: Plan, base: Ledger) -> Iterator[tuple[Plan, str, int, str]]:
    engine = load_engine(plan.engine)
    tp, hidden = plan.parallel.tp, config.hidden_size
    width = 2 if config.dtype != "float32" else 4
    token_rows = plan.max_tokens * hidden * width
    if (plan.embedding or engine.values.get("embedding")) == "replicated" and tp > 1:
        cost = "one all_reduce of [max_tokens, hidden_size] a step"
        yield plan.but(embedding="vocab"), "divide the embedding", 2 * token_rows * (tp - 1) // tp, cost
    whole = engine.rules("whole", plan.modes, config)
    for line in base.lines:
        module = line.name.split(".")[-2] if line.name.endswith(".weight") else ""
        if line.category != "replicated" or not matches(whole, line.name.removesuffix(".weight")):
            continue
        if "shared_experts" in line.name or module in (*plan.distribute, *plan.gather):
            continue
        each = line.bytes // line.count
        if "distributed" in engine.values:
            arrives = each * (
                config.num_layers - evaluate("ceil(num_hidden_layers - tp_rank, tp)", base.symbols)
            )
            cost = "broadcasts of the other ranks' layers each step, hidden behind a window of layers"
            yield (
                plan.but(distribute=(*plan.distribute, module)),
                f"distribute {module} over layers",
                arrives,
                cost,
            )
        if "gathered" in engine.values and module == "o_proj":
            cost = "one all_gather of the weight a layer"
            yield (
                plan.but(gather=(*plan.gather, module)),
                f"keep {module} divided and gather it",
                config.num_layers * each * (tp - 1) // tp,
                cost,
            )
    for mode in plan.modes:
        rest = tuple(m for m in plan.modes if m != mode)
        cost = "every rank works on all tokens in attention; all_reduces after row-parallel linears"
        yield plan.but(modes=rest, distribute=(), gather=()), f"without {mode}", 0, cost
    mtp = bool(engine.values.get("mtp")) if plan.mtp is None else plan.mtp
    if mtp and config.mtp_layers:
        yield plan.but(mtp=False), "without multi-token prediction", 0, "one token a step"
    if config.experts is not None and applies({"needs": ["experts"]}, config):
        parallel = plan.parallel
        doubled = type(parallel)(parallel.tp, parallel.dp * 2, parallel.world * 2)
        if config.experts.count >= doubled.ep:
            cost = f"{doubled.world} ranks instead of {parallel.world}; dispatch over more of them"
            yield plan.but(parallel=doubled), f"dp {doubled.dp}, ep {doubled.ep}", 0, cost
