"""Engine profiles as data (``rules/engines``): what an engine makes of a model's weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any

from layoutcheck.documents import read_document
from layoutcheck.errors import InputError
from layoutcheck.memory.profile_check import check_profile
from layoutcheck.models import ModelConfig
from layoutcheck.resources import rules_dir


@dataclass(frozen=True)
class Engine:
    """An engine profile.

    Attributes:
        name: of the profile.
        values: what the file holds, checked for unknown keys.
    """

    name: str
    values: Mapping[str, Any]

    def modes(self) -> list[str]:
        """Return the names of the modes that can be switched on."""
        return sorted(self.values.get("modes", {}))

    def entries(self, key: str, modes: tuple[str, ...], config: ModelConfig) -> list[Mapping[str, Any]]:
        """Return the entries of a list such as ``derived``, with those of the modes that are on.

        Raises:
            InputError: a mode is not known, or the model lacks the structure it needs.
        """
        found = [r for r in self.values.get(key, ()) if applies(r, config)]
        for mode in modes:
            entry = self.values.get("modes", {}).get(mode)
            if entry is None:
                known = ", ".join(self.modes()) or "none"
                raise InputError(f"{self.name} has no mode {mode!r}; known: {known}")
            if not applies(entry, config):
                raise InputError(f"mode {mode} needs a model with {' and '.join(entry['needs'])}")
            if clash := set(entry.get("excludes", ())) & set(modes):
                raise InputError(f"{self.name} has no {mode} together with {sorted(clash)[0]}")
            found += [r for r in entry.get(key, ()) if applies(r, config)]
        return found

    def rules(self, key: str, modes: tuple[str, ...], config: ModelConfig) -> list[tuple[str, str]]:
        """Return (pattern, why) of a list such as ``whole``, with those of the modes that are on.

        Raises:
            InputError: as in ``entries``.
        """
        return [(r["match"], r.get("why", "")) for r in self.entries(key, modes, config)]

    def fused_into(self, module: str) -> str | None:
        """Return the fused module that a module is a part of, if the engine fuses it."""
        for fused, parts in self.values.get("fuse", {}).items():
            if module in parts:
                return str(fused)
        return None


def applies(entry: Mapping[str, Any], config: ModelConfig) -> bool:
    """Whether a model has the structure that an entry needs (latent, indexer, experts)."""
    return all(getattr(config, need, None) is not None for need in entry.get("needs", ()))


def matches(rules: list[tuple[str, str]], path: str) -> tuple[str, str] | None:
    """Return the first rule whose pattern fits a path."""
    return next((rule for rule in rules if fnmatchcase(path, rule[0])), None)


def engine_names() -> list[str]:
    """Return the names of the shipped profiles."""
    return sorted(p.stem for p in (rules_dir() / "engines").glob("*.json"))


@lru_cache(maxsize=32)
def load_engine(source: str) -> Engine:
    """Return a profile by name, or from a file of the same form.

    Raises:
        InputError: no such profile, or a key that is not known.
    """
    path = Path(source)
    if path.suffix != ".json":
        path = rules_dir() / "engines" / f"{source}.json"
        if source not in engine_names():
            raise InputError(f"no engine profile {source!r}; known are {', '.join(engine_names())}")
    values = read_document(path, "an engine profile")
    check_profile(values, str(path))
    return Engine(path.stem, values)
