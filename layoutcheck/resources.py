"""Where the rule files are: beside the package in a checkout, inside it once installed."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def rules_dir() -> Path:
    """Return the folder of the rules that come with layoutcheck (``ops/`` and others are below it).

    Raises:
        FileNotFoundError: neither an installed nor a checked-out rule folder exists.
    """
    for candidate in (_PACKAGE / "_rules", _PACKAGE.parent / "rules"):
        if (candidate / "ops").is_dir():
            return candidate
    raise FileNotFoundError(f"no rule folder in {_PACKAGE} or beside it; is the installation complete?")
