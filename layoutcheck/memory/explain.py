"""From a logged number back to the deployments that give it: several often do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product as combinations

from layoutcheck.errors import InputError
from layoutcheck.memory.build import kv_repeats, symbols_of
from layoutcheck.memory.engines import applies, engine_names, load_engine, matches
from layoutcheck.memory.formula import evaluate
from layoutcheck.memory.parallel import Parallel
from layoutcheck.memory.plan import Plan
from layoutcheck.memory.quantisation import Quantisation
from layoutcheck.memory.templates import Builder, Template
from layoutcheck.models import ModelConfig


@dataclass(frozen=True)
class Explanation:
    """A deployment whose static bytes on ``rank`` are ``bytes``."""

    model: str
    quantisation: str
    plan: Plan
    bytes: int
    off: int

    def __str__(self) -> str:
        rank = f", rank {self.plan.rank}" if self.plan.rank else ""
        return f"{self.model} {self.quantisation}: {self.plan}{rank}"


def powers(largest: int) -> list[int]:
    """Return the powers of two up to a number."""
    return [1 << i for i in range(largest.bit_length()) if 1 << i <= largest]


def parallels(
    world: int | None, tp: int | None = None, ep: int | None = None, largest: int = 64
) -> list[Parallel]:
    """Return the group sizes to try: powers of two, dp being the least that fits ep.

    Bytes do not depend on dp as such, so one dp stands for all that divide.
    """
    found = []
    for t, e in combinations([tp] if tp else powers(largest), [ep] if ep else powers(largest)):
        dp = max(1, e // t) if world is None else world // t
        if not dp or (world is not None and t * dp != world) or (t * dp) % e:
            continue
        found.append(Parallel(t, dp, e))
    return found


def plans(config: ModelConfig, engine_name: str) -> Iterator[Plan]:
    """Return the structural variants of an engine profile that make sense for a model."""
    engine = load_engine(engine_name)
    modes = [()] + [(name,) for name in engine.modes() if applies(engine.values["modes"][name], config)]
    for mode in modes:
        base = Plan(Parallel(), engine_name, mode)
        whole = engine.rules("whole", mode, config)
        movable = [
            path.rsplit(".", 1)[-1]
            for path in ("model.layers.0.self_attn.q_b_proj", "model.layers.0.self_attn.o_proj")
            if matches(whole, path)
        ]
        spread: list[tuple[str, ...]] = [()]
        kept: list[tuple[str, ...]] = [()]
        if "distributed" in engine.values:
            spread += [(m,) for m in movable] + ([tuple(movable)] if len(movable) > 1 else [])
        if "gathered" in engine.values and "o_proj" in movable:
            kept.append(("o_proj",))
        shared: list[tuple[tuple[str, ...], tuple[str, ...]]] = [((), ())]
        if config.experts is not None and config.experts.shared:
            pattern = "*.shared_experts.*"
            is_whole = matches(whole, "model.layers.0.mlp.shared_experts.down_proj") is not None
            shared.append(((), (pattern,)) if is_whole else ((pattern,), ()))
        mtp = [False, True] if config.mtp_layers else [False]
        for spread_over, gathered, (more, less), with_mtp, embedding in combinations(
            spread, kept, shared, mtp, ["replicated", "vocab"]
        ):
            if set(spread_over) & set(gathered):
                continue
            yield base.but(
                distribute=spread_over,
                gather=gathered,
                whole=more,
                divided=less,
                mtp=with_mtp,
                embedding=embedding,
            )


def _static(templates: Sequence[Template], symbols: dict[str, int]) -> int:
    return sum(evaluate(t.formula, symbols) for t in templates if t.state == "resident")


def explain_total(
    config: ModelConfig,
    quantisations: Iterable[tuple[str, Quantisation]],
    target: int,
    tolerance: int,
    groups: Sequence[Parallel],
    engines: Sequence[str] = (),
) -> tuple[list[Explanation], list[Explanation]]:
    """Return the deployments whose static bytes are within a tolerance of a number, and the nearest others.

    Args:
        config: the model.
        quantisations: (name, quantisation) to try.
        target, tolerance: in bytes.
        groups: group sizes to try.
        engines: profiles to try; by default all that are shipped.

    Returns:
        All that fit, nearest first, and the five nearest that do not.
    """
    found: list[Explanation] = []
    others: list[Explanation] = []
    for name, quantisation in quantisations:
        for engine in engines or engine_names():
            seen: set[frozenset[str]] = set()
            for plan in plans(config, engine):
                for one in _variants(config, name, quantisation, plan, groups, target, seen):
                    (found if abs(one.off) <= tolerance else others).append(one)
        others = sorted(others, key=lambda e: abs(e.off))[:5]
    found.sort(key=lambda e: (abs(e.off), str(e)))
    return found, others


def _variants(
    config: ModelConfig,
    name: str,
    quantisation: Quantisation,
    plan: Plan,
    groups: Sequence[Parallel],
    target: int,
    seen: set[frozenset[str]],
) -> Iterator[Explanation]:
    """Evaluate one variant at all group sizes; a variant that is another one in other words is left out."""
    built: dict[bool, list[Template]] = {}
    for parallel in groups:
        # group sizes that cannot be are no explanation
        try:
            repeats = kv_repeats(config, parallel.tp)
            if repeats not in built:
                built[repeats] = Builder(config, quantisation, plan, repeats).templates()
                lines = frozenset(f"{t.name} {t.formula} {t.state}" for t in built[repeats])
                if len(built) == 1 and lines in seen:
                    return
                seen.add(lines)
            here = plan.but(parallel=parallel)
            first = _static(built[repeats], symbols_of(config, here))
            yield Explanation(config.name, name, here, first, first - target)
            if plan.distribute and parallel.tp > 1:
                last = here.but(rank=parallel.tp - 1)
                size = _static(built[repeats], symbols_of(config, last))
                if size != first:
                    yield Explanation(config.name, name, last, size, size - target)
        except InputError:
            continue
