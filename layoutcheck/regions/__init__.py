"""Repeated bodies: writing them out, finding them, and undoing fused ops that straddle them."""

from __future__ import annotations

from layoutcheck.regions.expand import expand
from layoutcheck.regions.fold import fold
from layoutcheck.regions.fusion import unfuse
from layoutcheck.regions.markers import Region, find_regions

__all__ = ["Region", "expand", "find_regions", "fold", "unfuse"]
