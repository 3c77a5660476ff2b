"""Checks the form of an engine profile, so that a user's file fails with a sentence and not in the middle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from layoutcheck.errors import InputError
from layoutcheck.units import dtype_name

_KEYS = frozenset(
    (
        *("doc", "source", "companions", "fuse", "vocab_multiple", "embedding", "whole", "float", "modes"),
        *("buffers", "derived", "conversion", "distributed", "gathered", "mtp", "cache"),
    )
)
_MODE_KEYS = frozenset(("contract", "needs", "excludes", "whole", "float", "derived"))
_STRUCTURES = ("latent", "indexer", "experts")


def check_profile(values: Mapping[str, Any], where: str) -> None:
    """Check a profile.

    Raises:
        InputError: a key is not known or a value has not the form it must have.
    """

    def need(condition: object, message: str) -> None:
        if not condition:
            raise InputError(message, where=where)

    def texts(value: Any, what: str) -> None:
        need(isinstance(value, list) and all(isinstance(v, str) for v in value), f"{what} is a list of names")

    def entries(value: Any, what: str, keys: tuple[str, ...]) -> list[Mapping[str, Any]]:
        need(
            isinstance(value, list) and all(isinstance(v, dict) for v in value),
            f"{what} is a list of objects",
        )
        for entry in value:
            for key in keys:
                need(isinstance(entry.get(key), str), f"an entry of {what} has no {key}")
            for key in ("why", "scheme"):
                need(isinstance(entry.get(key, ""), str), f"{key} in an entry of {what} is a text")
            needs(entry, what)
            if "dtype" in keys and entry["dtype"] != "model":
                dtype_name(entry["dtype"], where=where)
        return list(value)

    def needs(entry: Mapping[str, Any], what: str) -> None:
        texts(entry.get("needs", []), f"needs of {what}")
        for structure in entry.get("needs", []):
            need(structure in _STRUCTURES, f"{what} needs {structure!r}; known are {', '.join(_STRUCTURES)}")

    def derived(value: Any, what: str) -> None:
        for entry in entries(value, what, ("name", "of", "elements", "dtype", "original")):
            need(entry["original"] in ("kept", "freed"), f"original in {what} is kept or freed")
            texts(entry.get("frees", []), f"frees of {what}")

    unknown = sorted(set(values) - _KEYS)
    need(not unknown, f"unknown key {unknown[:1]} in an engine profile")
    need(values.get("companions") in ("full", "scalars", "none"), "companions is full, scalars or none")
    need(values.get("embedding") in ("replicated", "vocab"), "embedding is replicated or vocab")
    need(
        type(values.get("vocab_multiple", 1)) is int and values.get("vocab_multiple", 1) > 0, "vocab_multiple"
    )
    fuse = values.get("fuse", {})
    need(isinstance(fuse, dict), "fuse is an object")
    for name, parts in fuse.items():
        texts(parts, f"fuse.{name}")
    for key in ("whole", "float"):
        entries(values.get(key, []), key, ("match",))
    entries(values.get("buffers", []), "buffers", ("name", "elements", "dtype"))
    derived(values.get("derived", []), "derived")
    modes = values.get("modes", {})
    need(isinstance(modes, dict), "modes is an object")
    for name, mode in modes.items():
        need(isinstance(mode, dict) and set(mode) <= _MODE_KEYS, f"mode {name} has keys {sorted(_MODE_KEYS)}")
        needs(mode, f"mode {name}")
        need(isinstance(mode.get("contract", ""), str), f"contract of mode {name} is a name")
        texts(mode.get("excludes", []), f"excludes of mode {name}")
        for key in ("whole", "float"):
            entries(mode.get(key, []), f"{name}.{key}", ("match",))
        derived(mode.get("derived", []), f"{name}.derived")
    _check_numbers(values, where)


def _check_numbers(values: Mapping[str, Any], where: str) -> None:
    wanted = {
        "conversion": {"copies": 0},
        "distributed": {"window": 0},
        "gathered": {"buffers": 0},
        "cache": {"block": 1},
    }
    for key, numbers in wanted.items():
        entry = values.get(key, {})
        if not isinstance(entry, dict):
            raise InputError(f"{key} is an object", where=where)
        for name, least in numbers.items():
            number = entry.get(name, 1)
            if type(number) is not int or number < least:
                raise InputError(f"{key}.{name} is an integer of at least {least}", where=where)
    for key in ("distributed", "gathered"):
        if type(values.get(key, {}).get("overlap", False)) is not bool:
            raise InputError(f"{key}.overlap is true or false", where=where)
    padding = values.get("conversion", {}).get("padding", {})
    well_formed = isinstance(padding, dict) and all(
        isinstance(sizes, dict)
        and all(type(sizes.get(axis)) is int and sizes[axis] > 0 for axis in ("in", "out"))
        for sizes in padding.values()
    )
    if not well_formed:
        raise InputError("conversion.padding gives in and out by dtype", where=where)
