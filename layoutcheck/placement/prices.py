"""Prices by the name of a hardware."""

from __future__ import annotations

from layoutcheck.cost.hardware import load_hardware
from layoutcheck.cost.prices import HardwarePrices, Prices


def prices_of(hardware: str | None) -> Prices | None:
    """The prices of a hardware, by its name or file; None for none. Raises InputError for one that there is not."""
    return None if hardware is None else HardwarePrices(hardware=load_hardware(hardware))
