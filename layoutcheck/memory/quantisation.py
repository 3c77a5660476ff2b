"""Which scheme each module has: from a description file, a ``quantization_config``, or a scheme's name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol

from layoutcheck.documents import read_document
from layoutcheck.errors import InputError
from layoutcheck.memory.schemes import FLOAT, Scheme, scheme_from_text, scheme_named, schemes, unless_listed

_FLOAT = Scheme(FLOAT)
_LARGEST_DESCRIPTION = 256 << 20


class Quantisation(Protocol):
    """Answers which scheme a linear has.

    ``notes`` says what had to be assumed; ``uniform``, whether layers never differ.
    """

    notes: tuple[str, ...]
    uniform: bool

    def scheme(self, path: str, expert_paths: Sequence[str] = ()) -> Scheme:
        """Return the scheme of the module at a path such as ``model.layers.3.self_attn.o_proj``.

        For the experts of a layer, ``expert_paths`` are the paths of all of them.
        """
        ...


@dataclass
class Unquantised:
    """Everything in the model's dtype."""

    notes: tuple[str, ...] = ()
    uniform: bool = True

    def scheme(self, path: str, expert_paths: Sequence[str] = ()) -> Scheme:
        return _FLOAT


@dataclass
class ByName:
    """One scheme for every linear, but for those that match a pattern.

    Attributes:
        name: of the scheme, as in ``AWQ`` or ``AWQ:bits=4,group=64``.
        overrides: pattern -> scheme name, the first match counts.
    """

    name: str
    overrides: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._scheme = scheme_from_text(self.name)
        self.uniform = not any(re.search(r"\d", pattern) for pattern in self.overrides)
        self._overrides = [(pattern, scheme_from_text(name)) for pattern, name in self.overrides.items()]
        if self.name == FLOAT:
            return
        patterns, why = unless_listed("ascend")
        self._overrides += [(p, _FLOAT) for p in patterns if p not in self.overrides]
        self.notes += (f"float by assumption: {', '.join(patterns)} ({why})",)

    def scheme(self, path: str, expert_paths: Sequence[str] = ()) -> Scheme:
        for pattern, scheme in self._overrides:
            if fnmatchcase(path, pattern):
                return scheme
        return self._scheme


class Description:
    """A ``quant_model_description.json``: a flat map from tensor names to schemes, with metadata keys."""

    def __init__(self, values: Mapping[str, Any], where: str = "description") -> None:
        known = schemes()
        self.uniform = False
        self.where = where
        self.types: dict[str, str] = {}
        self.metadata: dict[str, Any] = {}
        for name, value in values.items():
            if not isinstance(value, str) or "." not in name:
                self.metadata[name] = value
                continue
            if value not in known:
                raise InputError(
                    f"{name} is {value!r}; known are {', '.join(sorted(known))}", where=self.where
                )
            self.types[name] = value
        if not self.types:
            raise InputError("no tensor is described", where=where)
        self.notes: tuple[str, ...] = ()

    def scheme(self, path: str, expert_paths: Sequence[str] = ()) -> Scheme:
        if not expert_paths:
            return Scheme(self._of(path))
        found = self._of(expert_paths[0])
        for other in expert_paths[1:]:
            if (kind := self._of(other)) != found:
                raise InputError(
                    f"{expert_paths[0]} is {found} and {other} is {kind}; "
                    "the experts of a layer need one type",
                    where=self.where,
                )
        return Scheme(found)

    def _of(self, path: str) -> str:
        for suffix in (".weight", ".weight_packed"):
            if (kind := self.types.get(path + suffix)) is not None:
                return kind
        short = path.removeprefix("model.")
        if short != path:
            return self._of(short)
        raise InputError(f"{path}.weight is not described; a file names every weight", where=self.where)


class HuggingFace:
    """A ``quantization_config``: fp8 (blocks or whole tensors), compressed-tensors, AWQ, GPTQ."""

    def __init__(self, config: Mapping[str, Any], where: str = "quantization_config") -> None:
        self.where = where
        method = str(config.get("quant_method", ""))
        ignored = [
            str(pattern)
            for key in ("ignore", "modules_to_not_convert", "ignored_layers", "dynamic_exclude")
            for pattern in self._list(config, key)
        ]
        self.uniform = not any(re.search(r"\d", pattern) for pattern in ignored)
        self._ignored = [_matcher(pattern) for pattern in ignored]
        patterns, why = unless_listed("huggingface")
        self._default_float = patterns
        self.notes: tuple[str, ...] = (f"float by assumption: {', '.join(patterns)} ({why})",)
        builders = {
            "fp8": self._fp8,
            "compressed-tensors": self._compressed,
            "awq": self._packed,
            "gptq": self._packed,
        }
        if method not in builders:
            raise InputError(f"quant_method is {method!r}; known are {', '.join(builders)}", where=where)
        self._groups: list[tuple[list[re.Pattern[str]] | None, Scheme]] = builders[method](config)

    def scheme(self, path: str, expert_paths: Sequence[str] = ()) -> Scheme:
        if any(pattern.fullmatch(path) for pattern in self._ignored):
            return _FLOAT
        if any(fnmatchcase(path, pattern) for pattern in self._default_float):
            return _FLOAT
        for targets, scheme in self._groups:
            if targets is None or any(target.fullmatch(path) for target in targets):
                return scheme
        return _FLOAT

    def _list(self, values: Mapping[str, Any], key: str) -> list[Any]:
        value = values.get(key)
        if value is not None and not isinstance(value, list):
            raise InputError(f"{key} is {value!r}, not a list", where=self.where)
        return value or []

    def _integer(self, values: Mapping[str, Any], *names: str, default: int | None = None) -> int:
        for name in names:
            value = values.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and value:
                return value
        if default is None:
            raise InputError(f"no {' or '.join(names)}", where=self.where)
        return default

    def _fp8(self, config: Mapping[str, Any]) -> list[tuple[list[re.Pattern[str]] | None, Scheme]]:
        block = config.get("weight_block_size")
        if block is None:
            static = config.get("activation_scheme") == "static"
            return [(None, scheme_named("FP8_TENSOR_STATIC" if static else "FP8_TENSOR"))]
        rows, columns = self._blocks(block)
        return [(None, scheme_named("FP8_BLOCK", params={"block_out": rows, "block_in": columns}))]

    def _blocks(self, block: Any) -> list[int]:
        sizes = isinstance(block, list) and len(block) == 2 and all(type(b) is int and b > 0 for b in block)
        if not sizes:
            raise InputError(f"a block of {block!r}, not two sizes", where=self.where)
        return list(block)

    def _packed(self, config: Mapping[str, Any]) -> list[tuple[list[re.Pattern[str]] | None, Scheme]]:
        bits = self._integer(config, "bits", "w_bit", default=4)
        group = self._integer(config, "group_size", "q_group_size", default=128)
        # group_size -1 is one group over all inputs
        params = {"bits": bits, "group": group if group > 0 else 1 << 40}
        return [(None, scheme_named(str(config["quant_method"]).upper(), params=params))]

    def _compressed(self, config: Mapping[str, Any]) -> list[tuple[list[re.Pattern[str]] | None, Scheme]]:
        groups = config.get("config_groups")
        if not isinstance(groups, Mapping) or not groups:
            raise InputError("compressed-tensors without config_groups", where=self.where)
        found = []
        for name, group in groups.items():
            weights = group.get("weights") if isinstance(group, Mapping) else None
            if not isinstance(weights, Mapping):
                raise InputError(f"config_groups.{name} has no weights", where=self.where)
            form = str(group.get("format") or config.get("format") or "")
            targets = [str(t) for t in self._list(group, "targets") or ["Linear"]]
            matchers = None if "Linear" in targets else [_matcher(t) for t in targets]
            found.append((matchers, self._group_scheme(weights, form, f"{self.where}.{name}")))
        return found

    def _group_scheme(self, weights: Mapping[str, Any], form: str, where: str) -> Scheme:
        bits, kind = self._integer(weights, "num_bits"), str(weights.get("type", "int"))
        strategy = str(weights.get("strategy") or "tensor")
        if kind == "float" and bits == 4:
            name = "CT_MXFP4" if "mxfp4" in form else "CT_NVFP4"
            return scheme_named(name, params={"group": self._integer(weights, "group_size", default=32)})
        if kind == "float" and bits == 8:
            if strategy == "block":
                block = self._blocks(weights.get("block_structure") or [128, 128])
                return scheme_named("FP8_BLOCK", params={"block_out": block[0], "block_in": block[1]})
            return scheme_named("CT_FP8_CHANNEL" if strategy == "channel" else "FP8_TENSOR")
        if kind == "int" and "pack" in form:
            group = weights.get("group_size")
            params = {"bits": bits, "group": group if isinstance(group, int) and group > 0 else 1 << 40}
            return scheme_named(
                "CT_PACKED" if weights.get("symmetric", True) else "CT_PACKED_ASYM", params=params
            )
        if kind == "int" and bits == 8:
            return scheme_named("CT_INT8_CHANNEL" if strategy == "channel" else "CT_INT8_TENSOR")
        raise InputError(f"{bits} bit {kind} weights, {strategy}, format {form!r} are not known", where=where)


def _matcher(pattern: str) -> re.Pattern[str]:
    """A target is a regular expression after ``re:``, else a path or the end of one."""
    if not pattern.startswith("re:"):
        return re.compile(rf"(?:.*\.)?{re.escape(pattern)}(?:\..*)?")
    text = pattern[3:]
    # nested repeats can take exponential time on a hostile pattern
    if len(text) > 300 or re.search(r"[+*}]\s*\)\s*[+*{]", text):
        raise InputError(f"pattern {text[:60]!r} is not accepted", where="quantization_config")
    try:
        # compressed-tensors matches a target at the start of the path
        return re.compile(f"(?:{text}).*")
    except re.error as error:
        raise InputError(f"pattern {text!r}: {error}", where="quantization_config") from None


def load_quantisation(source: str, overrides: Mapping[str, str] | None = None) -> Quantisation:
    """Return the quantisation behind a scheme's name or a description file.

    Raises:
        InputError: no such scheme or file.
    """
    path = Path(source)
    if path.suffix == ".json" or path.exists():
        if overrides:
            raise InputError("a file says which modules are float; exceptions cannot be added", where=source)
        return Description(
            read_document(path, "a description of quantised tensors", largest=_LARGEST_DESCRIPTION),
            where=str(path),
        )
    return ByName(source, overrides or {})
