"""The ledger of a rank from a checkpoint's tensors: what the files hold, exactly, and how it is shared."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from layoutcheck.errors import InputError
from layoutcheck.memory.build import add_template, kv_repeats, symbols_of
from layoutcheck.memory.engines import load_engine, matches
from layoutcheck.memory.formula import product, substitute
from layoutcheck.memory.ledger import Ledger
from layoutcheck.memory.parallel import is_input_vector, is_listed, is_uncut, split_of, stored_transposed
from layoutcheck.memory.plan import Plan
from layoutcheck.memory.quantisation import Quantisation, Unquantised
from layoutcheck.memory.safetensors import Tensor
from layoutcheck.memory.schemes import FLOAT
from layoutcheck.memory.templates import Builder
from layoutcheck.models import ModelConfig
from layoutcheck.units import DTYPE_BYTES

_LAYER = re.compile(r"^(.*?\.?(?:layers|h|blocks)\.)(\d+)(\..*)$")
_EXPERT = re.compile(r"^(.*\.experts\.)(\d+)(\..*)$")


@dataclass(frozen=True)
class _Group:
    """Tensors that differ only in layer and expert number."""

    path: str
    param: str
    dtype: str
    shape: tuple[int, ...]
    layers: tuple[int, ...]
    experts: int

    @property
    def module(self) -> str:
        return self.path.rsplit(".", 1)[-1]


def group_tensors(tensors: Iterable[Tensor]) -> list[_Group]:
    """Return the tensors grouped over layers and experts, in order of appearance.

    Raises:
        InputError: a layer has fewer experts than another one of its group.
    """
    found: dict[tuple[str, str, tuple[int, ...]], dict[int, set[int]]] = {}
    for tensor in tensors:
        name, layer, expert = tensor.name, -1, -1
        if match := _LAYER.match(name):
            name, layer = f"{match[1]}{{layer}}{match[3]}", int(match[2])
        if match := _EXPERT.match(name):
            name, expert = f"{match[1]}{{expert}}{match[3]}", int(match[2])
        found.setdefault((name, tensor.dtype, tensor.shape), {}).setdefault(layer, set()).add(expert)
    groups = []
    for (name, dtype, shape), by_layer in found.items():
        by_count: dict[int, list[int]] = {}
        for layer, experts in by_layer.items():
            by_count.setdefault(0 if experts == {-1} else len(experts), []).append(layer)
        path, _, param = name.rpartition(".")
        for count, layers in by_count.items():
            groups.append(_Group(path, param, dtype, shape, tuple(sorted(layers)), count))
    return groups


def checkpoint_ledger(
    tensors: Sequence[Tensor], config: ModelConfig, plan: Plan, quantisation: Quantisation | None = None
) -> Ledger:
    """Return the ledger of what a checkpoint's tensors put on a rank.

    Sizes and dtypes are those of the files. ``quantisation`` adds what a scheme makes after load.

    Raises:
        InputError: a size does not divide among the ranks.
    """
    if plan.distribute or plan.gather:
        raise InputError(
            "a checkpoint's ledger knows no distributed or gathered weights; use its config.json"
        )
    engine = load_engine(plan.engine)
    derived = engine.entries("derived", plan.modes, config) if plan.derived else []
    whole = engine.rules("whole", plan.modes, config) + [(p, "asked for") for p in plan.whole]
    mtp = bool(engine.values.get("mtp")) if plan.mtp is None else plan.mtp
    ledger = Ledger(f"{config.name} (checkpoint), {plan}", plan.rank, symbols_of(config, plan))
    unknown: list[str] = []
    for group in group_tensors(tensors):
        layers = [x for x in group.layers if mtp or x < config.num_layers]
        if not layers:
            continue
        split = _split(group, plan, engine.values, whole)
        if split == "whole" and not is_listed(group.module) and len(group.shape) > 1:
            unknown.append(group.path)
        freed = any(
            e["original"] == "freed" and "scheme" not in e and fnmatchcase(group.path, e["of"])
            for e in derived
        )
        _add(ledger, config, plan, group, len(layers), split, "load" if freed else "resident")
        if quantisation is not None and group.param in ("weight", "weight_packed") and len(group.shape) == 2:
            _add_loaded(ledger, config, plan, group, layers, split, quantisation)
    builder = Builder(config, Unquantised(), plan, kv_repeats(config, plan.parallel.tp))
    for template in builder.templates():
        if template.category in ("derived", "buffers"):
            add_template(ledger, template)
    if unknown:
        ledger.notes.append(f"counted whole on every rank, for want of a rule: {', '.join(unknown[:8])}")
    ledger.notes += [*config.notes, *(quantisation.notes if quantisation else ())]
    ledger.loading_peak = ledger.static + ledger.total(state="load")
    return ledger


def _split(group: _Group, plan: Plan, engine: object, whole: list[tuple[str, str]]) -> str:
    assert isinstance(engine, dict)
    if group.module == "embed_tokens":
        return "vocab" if (plan.embedding or engine.get("embedding")) == "vocab" else "whole"
    divided = any(fnmatchcase(group.path, pattern) for pattern in plan.divided)
    if not divided and group.module not in plan.gather and matches(whole, group.path):
        return "whole"
    return split_of(group.module)


def _axes(group: _Group, split: str) -> tuple[int | None, bool]:
    """Which axis of a stored tensor is cut, and whether the cut is rounded up (block scales are)."""
    rank = len(group.shape)
    rounded = group.param.endswith(("scale_inv", "qzeros", "scales"))
    if split == "whole" or rank == 0 or is_uncut(group.param):
        return None, False
    if rank == 1:
        runs_over_inputs = is_input_vector(group.param)
        cut = (split == "row") == runs_over_inputs and group.shape[0] > 1
        return (0 if cut else None), rounded
    outputs = 1 if stored_transposed(group.param) else 0
    axis = 1 - outputs if split == "row" else outputs
    return (axis if group.shape[axis] > 1 else None), rounded


def _local(
    ledger: Ledger, config: ModelConfig, plan: Plan, group: _Group, split: str
) -> tuple[str, str, str]:
    """Return elements here, the group that divides, and the divisor."""
    axis, rounded = _axes(group, split)
    sizes = [str(size) for size in group.shape]
    symbol = "etp" if group.experts else "tp"
    if axis is None:
        return product(*sizes), "replicated", "1"
    divisor = symbol
    if split == "kv" and config.num_key_value_heads < plan.parallel.tp:
        divisor = "num_key_value_heads"
    if split == "vocab":
        sizes[axis] = f"pad({sizes[axis]}, vocab_multiple)/{symbol}"
    else:
        sizes[axis] = f"ceil({sizes[axis]}, {divisor})" if rounded else f"{sizes[axis]}/{divisor}"
    return product(*sizes), symbol, divisor


def _here(config: ModelConfig, group: _Group) -> Iterator[str]:
    if group.experts:
        if config.experts is None or group.experts != config.experts.count:
            expected = config.experts.count if config.experts else 0
            raise InputError(f"{group.path} has {group.experts} experts, the config says {expected}")
        yield "experts_here"


def _add(
    ledger: Ledger, config: ModelConfig, plan: Plan, group: _Group, layers: int, split: str, state: str
) -> None:
    elements, symbol, divisor = _local(ledger, config, plan, group, split)
    experts = [*_here(config, group)]
    companion = group.param not in ("weight", "bias", "qweight", "weight_packed", "e_score_correction_bias")
    if companion:
        category = "companions"
    elif group.experts:
        category = "expert-parallel"
    else:
        category = "replicated" if symbol == "replicated" else "tensor-parallel"
    cut = "replicated" if symbol == "replicated" else f"1/{ledger.symbols[divisor]} ({symbol})"
    if group.experts:
        cut = f"1/{plan.parallel.ep} (ep)" + ("" if symbol == "replicated" else f", {cut}")
    ledger.add(
        category,
        f"{group.path}.{group.param}",
        product(layers, *experts, elements, DTYPE_BYTES[group.dtype]),
        dtype=group.dtype,
        shape=str(list(group.shape)),
        count=layers * (ledger.symbols["experts_here"] if group.experts else 1),
        split=cut,
        scheme=FLOAT,
        state=state,
    )


def _add_loaded(
    ledger: Ledger,
    config: ModelConfig,
    plan: Plan,
    group: _Group,
    layers: Sequence[int],
    split: str,
    quantisation: Quantisation,
) -> None:
    """What the scheme of a linear makes after load: vectors over its local inputs or outputs."""
    by_scheme: dict[str, int] = {}
    chosen = {}
    for layer in layers:
        path = group.path.replace("{layer}", str(layer))
        paths = [path.replace("{expert}", str(e)) for e in range(group.experts)]
        scheme = quantisation.scheme(paths[0] if paths else path, paths)
        chosen[scheme.name] = scheme
        by_scheme[scheme.name] = by_scheme.get(scheme.name, 0) + 1
    symbol = "etp" if group.experts else "tp"
    axis, _ = _axes(group, split)
    out, inp = (str(size) for size in group.shape)
    if axis == 0:
        out = f"{out}/{symbol}"
    elif axis == 1:
        inp = f"{inp}/{symbol}"
    for name, count in by_scheme.items():
        for companion in chosen[name].companions(bool(group.experts)):
            if companion.when != "loaded" or (companion.modules and group.module not in companion.modules):
                continue
            elements = substitute(companion.elements, {"out": out, "in": inp})
            dtype = companion.dtype_in(config.dtype)
            ledger.add(
                "companions",
                f"{group.path}.{companion.name}",
                product(count, *_here(config, group), elements, DTYPE_BYTES[dtype]),
                dtype=dtype,
                shape=elements,
                count=count,
                scheme=name,
                note="made after load",
            )
