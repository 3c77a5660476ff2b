"""Add up kernels and collectives, and keep count of how far each time can be trusted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

from attrs import define, field, frozen

from layoutcheck.cost.collectives import fit_of
from layoutcheck.cost.hardware import Fit, Hardware
from layoutcheck.cost.tables import Measured

TRUST = ("table", "fitted", "borrowed", "assumed")
"""From the user's own rows; from a formula fitted on this hardware, fitted on another one, not fitted at all."""


@frozen
class Entry:
    """One kernel or collective, ``count`` times."""

    name: str
    us: float
    count: float
    trust: str
    held_out: float | None
    """The class' error on rows that its fit has not seen; None where none was measured."""
    source: str

    @property
    def total(self) -> float:
        """Microseconds of all repeats."""
        return self.us * self.count


@define
class Estimate:
    """A sum of times on one hardware, with the evidence behind every term."""

    hardware: Hardware
    tables: Measured = field(factory=Measured)
    entries: list[Entry] = field(factory=list)

    def kernel(
        self,
        kernel: str,
        variant: str,
        sizes: Mapping[str, float],
        formula: Callable[[], float],
        count: float = 1,
    ) -> float:
        """Add a kernel and return its microseconds.

        Args:
            kernel, variant: the class, as in the hardware files and in the user's tables.
            sizes: what a table is looked up by.
            formula: computes the time where no table reaches.
            count: how often it runs.
        """
        return self._add(f"{kernel}/{variant}", self.hardware.fit(kernel, variant), sizes, formula, count)

    def collective(
        self, op: str, size: float, ranks: int, formula: Callable[[], float], count: float = 1
    ) -> float:
        """Add a collective and return its microseconds."""
        sizes = {"size": size, "ranks": ranks}
        return self._add(f"collective/{op}", fit_of(self.hardware, op), sizes, formula, count)

    def _add(
        self, name: str, fit: Fit, sizes: Mapping[str, float], formula: Callable[[], float], count: float
    ) -> float:
        kernel, _, variant = name.partition("/")
        found = self.tables.time(kernel, variant, sizes, formula, count)
        if found.source != "formula":
            entry = Entry(name, found.us, count, "table", None, found.source)
        else:
            trust = (
                "fitted" if fit.measured else "assumed" if fit.source.startswith("assumed") else "borrowed"
            )
            entry = Entry(name, found.us, count, trust, fit.held_out if fit.measured else None, fit.source)
        self.entries.append(entry)
        return found.us

    @property
    def total(self) -> float:
        """Microseconds of everything added."""
        return sum(e.total for e in self.entries)

    def by_name(self) -> dict[str, float]:
        """Return the microseconds by class, the largest first."""
        return self._shares(lambda e: e.name)

    def by_trust(self) -> dict[str, float]:
        """Return the microseconds by kind of evidence, the largest first."""
        return self._shares(lambda e: e.trust)

    def _shares(self, key: Callable[[Entry], str]) -> dict[str, float]:
        found: dict[str, float] = defaultdict(float)
        for entry in self.entries:
            found[key(entry)] += entry.total
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def expected_error(self) -> float | None:
        """Return the held-out errors' mean, weighted by time, over the fitted part; None where nothing is fitted.

        An upper estimate of the sum's error as far as errors of different kernels cancel.
        """
        fitted = [e for e in self.entries if e.held_out is not None]
        time = sum(e.total for e in fitted)
        return sum(e.total * (e.held_out or 0.0) for e in fitted) / time if time else None

    def caveats(self) -> list[str]:
        """Return a sentence for every class whose time nothing on this hardware stands behind."""
        total, lines = self.total, []
        for name, us in self.by_name().items():
            first = next(e for e in self.entries if e.name == name)
            if first.trust in ("borrowed", "assumed"):
                lines.append(f"{name}: {100 * us / total:.0f} % of the time, {first.source}")
        return lines
