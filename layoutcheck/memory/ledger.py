"""The ledger: one line for everything that lies on a rank, with its formula and its bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from layoutcheck.errors import InputError
from layoutcheck.memory.formula import evaluate, tidy
from layoutcheck.memory.liveness import Peak

#: The categories, in the order in which they are reported.
CATEGORIES = {
    "replicated": "parameters, whole on every rank",
    "tensor-parallel": "parameters, divided by tp",
    "expert-parallel": "routed experts",
    "layer-distributed": "parameters, each layer's on one rank",
    "companions": "scales, offsets and biases of quantised weights",
    "derived": "made from weights after load",
    "buffers": "rotary tables, windows and other buffers",
    "kv-cache": "keys and values",
    "indexer-cache": "keys of the indexer",
    "inputs": "what the caller hands over for a step",
    "activations": "the peak of live activations",
}


_OF_A_STEP = ("kv-cache", "indexer-cache", "inputs", "activations")


@dataclass(frozen=True, slots=True)
class Line:
    """One entry.

    Attributes:
        category: a key of ``CATEGORIES``.
        name: the module and parameter, ``{layer}`` and ``{expert}`` standing for all that are alike.
        tensors: the checkpoint's tensors behind it.
        formula: bytes as a formula over the ledger's symbols.
        bytes: its value.
        dtype: of the elements.
        shape: rows and columns of one tensor here, as formulas.
        count: how many such tensors a rank holds.
        split: how it is divided, as text: ``replicated``, ``1/16 (tp)``.
        scheme: quantisation, where it is not float.
        state: ``resident``, or ``load`` for what is freed after load.
        note: why it is here or so.
    """

    category: str
    name: str
    tensors: tuple[str, ...]
    formula: str
    bytes: int
    dtype: str
    shape: str
    count: int
    split: str
    scheme: str = "FLOAT"
    state: str = "resident"
    note: str = ""

    def record(self) -> dict[str, Any]:
        """Return the line as plain data."""
        return {
            "category": self.category,
            "name": self.name,
            "tensors": list(self.tensors),
            "formula": self.formula,
            "bytes": self.bytes,
            "dtype": self.dtype,
            "shape": self.shape,
            "count": self.count,
            "split": self.split,
            "scheme": self.scheme,
            "state": self.state,
            "note": self.note,
        }


@dataclass
class Ledger:
    """What lies on one rank."""

    title: str
    rank: int
    symbols: dict[str, int]
    lines: list[Line] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    loading_peak: int = 0

    def __repr__(self) -> str:
        return f"<Ledger {self.title}, rank {self.rank}: {len(self.lines)} lines, {self.total()} bytes>"

    def add(self, category: str, name: str, formula: str, **more: Any) -> Line:
        """Evaluate a formula and append the line; a line of no bytes is left out."""
        size = evaluate(formula, self.symbols)
        defaults: dict[str, Any] = {
            "tensors": (name,),
            "dtype": "",
            "shape": "",
            "count": 1,
            "split": "replicated",
        }
        if defaults_shape := more.get("shape"):
            more["shape"] = defaults_shape if "[" in defaults_shape else tidy(defaults_shape)
        line = Line(category=category, name=name, formula=tidy(formula), bytes=size, **{**defaults, **more})
        if size:
            self.lines.append(line)
        return line

    def total(self, categories: Iterable[str] | None = None, state: str = "resident") -> int:
        """Return the bytes of the resident lines, or of those in some categories or in another state."""
        wanted = None if categories is None else set(categories)
        return sum(
            line.bytes
            for line in self.lines
            if line.state == state and (wanted is None or line.category in wanted)
        )

    @property
    def static(self) -> int:
        """Bytes that lie there before the first token: everything but caches, inputs and activations."""
        return self.total(c for c in CATEGORIES if c not in _OF_A_STEP)

    def by_category(self) -> dict[str, int]:
        """Return resident bytes by category, in order, those of no bytes left out."""
        sums = dict.fromkeys(CATEGORIES, 0)
        for line in self.lines:
            if line.state == "resident":
                sums[line.category] += line.bytes
        return {name: size for name, size in sums.items() if size}

    def find(self, text: str) -> list[Line]:
        """Return the lines whose name contains a text."""
        return [line for line in self.lines if text in line.name]

    def record(self) -> dict[str, Any]:
        """Return the ledger as plain data, ready for JSON."""
        return {
            "format": "layoutcheck-memory/1",
            "title": self.title,
            "rank": self.rank,
            "symbols": dict(sorted(self.symbols.items())),
            "total_bytes": self.total(),
            "static_bytes": self.static,
            "load_only_bytes": self.total(state="load"),
            "loading_peak_bytes": self.loading_peak,
            "by_category": self.by_category(),
            "lines": [line.record() for line in self.lines],
            "notes": list(self.notes),
        }


def add_activations(ledger: Ledger, peak: Peak, formula: str | None = None, place: str | None = None) -> Line:
    """Add the peak of live activations; ``formula`` is its sum over what is alive, ``place`` the node, if known.

    Raises:
        InputError: the formula does not give the peak.
    """
    line = ledger.add(
        "activations",
        "peak of live activations",
        formula or str(peak.bytes),
        tensors=tuple(name for name, _ in peak.live),
        note=f"at {place}" if place else f"at step {'/'.join(map(str, peak.path))}",
    )
    if line.bytes != peak.bytes:
        raise InputError(f"the formula gives {line.bytes} bytes, the peak has {peak.bytes}", where=formula)
    return line
