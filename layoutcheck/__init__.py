"""A type checker for the token layout of LLM decoder graphs.

The public names are loaded on first use, so that ``import layoutcheck`` costs next to nothing.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from layoutcheck._version import __version__

if TYPE_CHECKING:
    from layoutcheck.check import check as check
    from layoutcheck.equivalence import diff as diff
    from layoutcheck.equivalence import equivalent as equivalent
    from layoutcheck.errors import InputError as InputError
    from layoutcheck.explain import explain as explain
    from layoutcheck.findings import CODES as CODES
    from layoutcheck.findings import Finding as Finding
    from layoutcheck.findings import Fix as Fix
    from layoutcheck.findings import Report as Report
    from layoutcheck.findings import Severity as Severity
    from layoutcheck.graph import Graph as Graph
    from layoutcheck.placement.annotated import AnnotatedGraph as AnnotatedGraph
    from layoutcheck.placement.annotated import annotate as annotate
    from layoutcheck.readers import from_fx as from_fx
    from layoutcheck.readers import load as load
    from layoutcheck.readers import save as save
    from layoutcheck.regions import expand as expand
    from layoutcheck.regions import fold as fold
    from layoutcheck.rules.decorator import rule as rule

_HOME = {
    "check": "layoutcheck.check",
    "annotate": "layoutcheck.placement.annotated",
    "AnnotatedGraph": "layoutcheck.placement.annotated",
    "load": "layoutcheck.readers",
    "save": "layoutcheck.readers",
    "from_fx": "layoutcheck.readers",
    "explain": "layoutcheck.explain",
    "rule": "layoutcheck.rules.decorator",
    "expand": "layoutcheck.regions",
    "fold": "layoutcheck.regions",
    "diff": "layoutcheck.equivalence",
    "equivalent": "layoutcheck.equivalence",
    "Graph": "layoutcheck.graph",
    "Report": "layoutcheck.findings",
    "Finding": "layoutcheck.findings",
    "Fix": "layoutcheck.findings",
    "Severity": "layoutcheck.findings",
    "CODES": "layoutcheck.findings",
    "InputError": "layoutcheck.errors",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'layoutcheck' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """Importing ``layoutcheck.check`` must not hide the function of that name: the function wins."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (isinstance(value, ModuleType) and name in _HOME):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
