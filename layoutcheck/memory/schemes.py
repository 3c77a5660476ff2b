"""Quantisation schemes as data: which tensors a quantised linear brings along (``rules/quantization``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from layoutcheck.documents import read_document
from layoutcheck.errors import InputError
from layoutcheck.resources import rules_dir
from layoutcheck.units import dtype_name

FLOAT = "FLOAT"


@dataclass(frozen=True, slots=True)
class Companion:
    """A tensor of a scheme: elements as a formula in ``out``, ``in`` and the scheme's parameters.

    ``when`` is ``always``, ``file`` (freed after load) or ``loaded`` (made after load).
    """

    name: str
    elements: str
    dtype: Any
    when: str
    modules: tuple[str, ...]

    def dtype_in(self, model_dtype: str) -> str:
        """Return the dtype, given the model's.

        Raises:
            InputError: the scheme is not defined for that dtype.
        """
        if isinstance(self.dtype, Mapping):
            if model_dtype not in self.dtype:
                raise InputError(f"{self.name} is not defined for models in {model_dtype}")
            return str(self.dtype[model_dtype])
        return model_dtype if self.dtype == "model" else str(self.dtype)

    @property
    def is_weight(self) -> bool:
        """Whether this is the weight itself."""
        return self.name in ("weight", "weight_packed", "qweight")


@dataclass(frozen=True, slots=True)
class Scheme:
    """A scheme with its parameters (block or group sizes, bits), as one module has it."""

    name: str
    params: tuple[tuple[str, int], ...] = ()

    def companions(self, expert: bool) -> tuple[Companion, ...]:
        """Return the tensors of a linear, or of one expert's linear."""
        return _tensors(self.name, expert)

    def __str__(self) -> str:
        inner = ", ".join(f"{k} {v}" for k, v in self.params)
        return f"{self.name} ({inner})" if inner else self.name


@lru_cache(maxsize=1)
def schemes() -> Mapping[str, Any]:
    """Return all known schemes by name, as they stand in the rule files."""
    found: dict[str, Any] = {}
    for path in sorted((rules_dir() / "quantization").glob("*.json")):
        found |= read_document(path, "schemes of quantisation").get("schemes", {})
    return found


@lru_cache(maxsize=8)
def unless_listed(file: str) -> tuple[tuple[str, ...], str]:
    """Return the patterns of modules that stay float where nothing is said, and why."""
    entry = read_document(rules_dir() / "quantization" / f"{file}.json", "schemes of quantisation")[
        "unless_listed"
    ]
    return tuple(entry["patterns"]), str(entry["why"])


def scheme_named(name: str, where: str | None = None, params: Mapping[str, int] | None = None) -> Scheme:
    """Return a scheme by its name; parameters that are not given are the usual ones, as its rule file has them.

    Raises:
        InputError: no such scheme is known, or it has no such parameter.
    """
    if name not in schemes():
        raise InputError(
            f"unknown quantisation {name!r}; known are {', '.join(sorted(schemes()))}", where=where
        )
    usual: Mapping[str, int] = schemes()[name].get("parameters", {})
    for param in params or ():
        if param not in usual:
            raise InputError(
                f"{name} has no parameter {param!r}; it has {', '.join(usual) or 'none'}", where=where
            )
    return Scheme(name, tuple(sorted({**usual, **(params or {})}.items())))


def scheme_from_text(text: str) -> Scheme:
    """Return the scheme that a text such as ``AWQ`` or ``AWQ:bits=4,group=64`` names.

    Raises:
        InputError: the text has another form, or names no scheme or parameter.
    """
    name, colon, rest = text.partition(":")
    params = {}
    for part in rest.split(",") if colon else ():
        key, sign, value = part.partition("=")
        if not sign or not (value.isascii() and value.isdecimal() and 0 < len(value) < 10 and int(value)):
            raise InputError(f"{part!r} in {text!r}: write PARAMETER=NUMBER")
        params[key] = int(value)
    return scheme_named(name, params=params)


def products_of(name: str) -> str:
    """Return what a scheme's products run in, a word of ``layoutcheck cost --quant``; ``none`` where only weights are narrow."""
    return str(schemes()[name].get("products", "none"))


@lru_cache(maxsize=256)
def _tensors(name: str, expert: bool) -> tuple[Companion, ...]:
    entry = schemes()[name]
    rows = entry.get("expert", entry["linear"]) if expert else entry["linear"]
    found = []
    for row in rows:
        dtype = row["dtype"]
        for one in dtype.values() if isinstance(dtype, dict) else [dtype]:
            if one != "model":
                dtype_name(one, where=f"scheme {name}")
        when = row.get("when", "always")
        found.append(Companion(row["name"], row["elements"], dtype, when, tuple(row.get("modules", ()))))
    return tuple(found)
