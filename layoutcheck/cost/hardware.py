"""Hardware as data: peaks, memory, links, and fitted constants per kernel class, read from JSON files."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from attrs import field, frozen

from layoutcheck.cost.fit_entry import check_entry, figure
from layoutcheck.documents import read_document
from layoutcheck.errors import InputError
from layoutcheck.resources import rules_dir

FORMAT = "layoutcheck-hardware/1"

_ASSUMED = {"compute": 0.7, "memory": 0.6, "launch": 5.0}
_ASSUMED_SOURCE = "assumed: 0.7 of peak, 0.6 of bandwidth, 5 us launch"


@frozen
class Fit:
    """Constants of one kernel class on one hardware, and how far to trust them.

    Attributes:
        constants: the fitted numbers, by name; what each means is said by the kernel's module.
        structure: numbers that are not fitted per class: tile sizes, the knee of the roofline.
        measured: whether the constants came from measurements on this very hardware.
        held_out: mean absolute relative error on rows that the fit has not seen, None where unmeasured.
        details: what else the fitting script wrote: row counts, the median, the references' errors.
        source: where the constants come from, in words.
    """

    constants: Mapping[str, float]
    structure: Mapping[str, Any] = field(factory=dict)
    measured: bool = False
    held_out: float | None = None
    details: Mapping[str, Any] = field(factory=dict)
    source: str = _ASSUMED_SOURCE

    def get(self, name: str, default: float) -> float:
        """Return a constant, or ``default`` where this class has none of that name."""
        return float(self.constants.get(name, default))

    def shape(self, name: str, default: Any) -> Any:
        """Return a structural number, or ``default``."""
        return self.structure.get(name, default)


@frozen
class Tier:
    """A level of the network: up to ``ranks`` ranks reach each other at ``bandwidth`` one way."""

    name: str
    ranks: int
    bandwidth: float
    """Bytes a microsecond, one way, per rank."""
    latency: float
    """Microseconds."""


@frozen
class Hardware:
    """One accelerator (a die, where a card has two), with its links and fitted constants."""

    name: str
    label: str
    vendor: str
    cores: int
    peaks: Mapping[str, float]
    """Dense peak by data type, flop a microsecond."""
    emulated: Mapping[str, str]
    """Data types that are computed in another one here."""
    vector: float
    """Peak of elementwise arithmetic, flop a microsecond."""
    memory_bytes: int
    bandwidth: float
    """Memory bandwidth, bytes a microsecond."""
    tiers: tuple[Tier, ...]
    """Links, the smallest and fastest first."""
    launch_us: float
    measured: bool
    kernels: Mapping[str, Mapping[str, Fit]]
    collectives: Mapping[str, Fit]
    sources: Mapping[str, str]

    def __repr__(self) -> str:
        return f"<Hardware {self.name}: {self.label}>"

    def peak(self, dtype: str) -> float:
        """Return the dense peak in flop a microsecond.

        Raises:
            InputError: neither a peak nor a substitute is known for the data type.
        """
        found = self.peaks.get(dtype) or self.peaks.get(self.emulated.get(dtype, ""))
        if found is None:
            raise InputError(f"{self.name}: no peak is known for {dtype}; known are {', '.join(self.peaks)}")
        return found

    def fit(self, kernel: str, variant: str = "bfloat16") -> Fit:
        """Return the constants of a kernel class, e.g. ``("gemm", "int8")`` or ``("gemm", "float8@vllm")``.

        A variant that has none falls back to the same data type's default library, then to the kernel's first
        variant (as unmeasured), then to the assumed efficiencies.
        """
        variants = self.kernels.get(kernel, {})
        if variant in variants:
            return variants[variant]
        plain = variant.split("@")[0]
        if plain in variants:
            return variants[plain]
        for fit in variants.values():
            from attrs import evolve

            return evolve(fit, measured=False, source=f"{fit.source}; taken for {variant}, which has none")
        return Fit(_ASSUMED)

    def tier_of(self, ranks: int) -> Tier:
        """Return the smallest tier that holds so many ranks, the widest if none does."""
        for tier in self.tiers:
            if ranks <= tier.ranks:
                return tier
        return self.tiers[-1]

    @property
    def node(self) -> Tier:
        """The tier of a node: the widest one before the network between nodes."""
        return self.tiers[-2] if len(self.tiers) > 1 else self.tiers[-1]


def hardware_names() -> tuple[str, ...]:
    """Return the names of the hardware that comes with layoutcheck."""
    folder = rules_dir() / "hardware"
    return tuple(sorted(p.stem for p in folder.glob("*.json"))) if folder.is_dir() else ()


@lru_cache(maxsize=32)
def load_hardware(name: str) -> Hardware:
    """Read hardware by its name, by one of its aliases, or from a user's own file.

    Raises:
        InputError: there is no such name or file, or the file is not what it should be.
    """
    path = Path(name)
    if path.suffix == ".json":
        return read_hardware(path)
    folder = rules_dir() / "hardware"
    known: dict[str, Path] = {}
    for candidate in sorted(folder.glob("*.json")):
        known[candidate.stem] = candidate
        for alias in _load(candidate).get("aliases", []):
            known.setdefault(str(alias).lower(), candidate)
    found = known.get(name.lower())
    if found is None:
        raise InputError(
            f"unknown hardware {name!r}; known are {', '.join(hardware_names())}, or give a .json"
        )
    return read_hardware(found)


def read_hardware(path: Path) -> Hardware:
    """Read one hardware file, and the one that it borrows constants from.

    Raises:
        InputError: the file cannot be read, or lacks something.
    """
    data = _load(path)
    try:
        kernels, collectives = _fits(data, path)
        memory = data["memory"]
        return Hardware(
            name=str(data["name"]),
            label=str(data["label"]),
            vendor=str(data["vendor"]),
            cores=int(figure(data["cores"]["value"], "cores", whole=True)),
            peaks={k: figure(v["tflops"], f"the peak of {k}") * 1e6 for k, v in data["peaks"].items()},
            emulated=dict(data.get("emulated", {})),
            vector=figure(data["vector"]["tflops"], "vector") * 1e6,
            memory_bytes=int(figure(memory["gib"], "gib of memory") * 2**30),
            bandwidth=figure(memory["tbps"], "tbps of memory") * 1e6,
            tiers=_tiers(data["tiers"]),
            launch_us=figure(data["launch"]["us"], "launch", zero=True),
            measured=bool(data["measured"]),
            kernels=kernels,
            collectives=collectives,
            sources=_sources(data),
        )
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, OverflowError) as error:
        if isinstance(error, InputError):
            raise
        what = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        if isinstance(error, (TypeError, AttributeError)):
            what = f"an entry is of another type than it should be: {error}"
        raise InputError(what, where=str(path)) from error


def _tiers(entries: Any) -> tuple[Tier, ...]:
    if not isinstance(entries, list) or not entries:
        raise ValueError("tiers is no list of links")
    found = []
    for entry in entries:
        name = str(entry["name"])
        ranks = int(figure(entry["ranks"], f"ranks of {name}", whole=True))
        rate, latency = figure(entry["gbps"], f"gbps of {name}"), entry["latency_us"]
        found.append(Tier(name, ranks, rate * 1e3, figure(latency, f"latency of {name}", zero=True)))
    return tuple(found)


def _load(path: Path) -> dict[str, Any]:
    return read_document(path, "a hardware file", form=FORMAT)


def _fits(data: Mapping[str, Any], path: Path) -> tuple[dict[str, dict[str, Fit]], dict[str, Fit]]:
    kernels: dict[str, dict[str, Fit]] = {}
    collectives: dict[str, Fit] = {}
    for lender in _lenders(data, path):
        text = f"borrowed from {lender.name}, no measurement on this hardware"
        for kernel, variants in lender.kernels.items():
            into = kernels.setdefault(kernel, {})
            for variant, fit in variants.items():
                into[variant] = Fit(fit.constants, fit.structure, False, None, {}, text)
        for op, fit in lender.collectives.items():
            collectives[op] = Fit(fit.constants, fit.structure, False, None, {}, text)
    for kernel, variants in data.get("kernels", {}).items():
        for variant, entry in variants.items():
            kernels.setdefault(kernel, {})[variant] = _fit(entry, f"{kernel}/{variant}")
    for op, entry in data.get("collectives", {}).items():
        collectives[op] = _fit(entry, op)
    return kernels, collectives


def _lenders(data: Mapping[str, Any], path: Path) -> list[Hardware]:
    names = data.get("borrow", [])
    if data.get("name") in names:
        raise InputError("borrows from itself", where=str(path))
    return [load_hardware(str(n)) for n in names]


def _fit(entry: Mapping[str, Any], name: str) -> Fit:
    try:
        check_entry(dict(entry["constants"]), dict(entry.get("structure", {})))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    return Fit(
        constants={str(k): float(v) for k, v in entry["constants"].items()},
        structure=dict(entry.get("structure", {})),
        measured=bool(entry["measured"]),
        held_out=None if entry.get("held_out") is None else float(entry["held_out"]),
        details=dict(entry.get("details", {})),
        source=str(entry.get("source", "")),
    )


def _sources(data: Mapping[str, Any]) -> dict[str, str]:
    found = {f"peak {k}": str(v["source"]) for k, v in data["peaks"].items()}
    for part in ("cores", "vector", "memory", "launch"):
        found[part] = str(data[part]["source"])
    for tier in data["tiers"]:
        found[f"tier {tier['name']}"] = str(tier["source"])
    return found
