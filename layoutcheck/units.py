"""Bytes of a dtype, and bytes as people write them."""

from __future__ import annotations

import re

from layoutcheck.errors import InputError

GIB = 1 << 30

DTYPE_BYTES: dict[str, int] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e8m0fnu": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint64": 8,
    "uint32": 4,
    "uint16": 2,
    "uint8": 1,
    "bool": 1,
}

_ALIASES = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32"}
_UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_SIZE = re.compile(r"\s*(\d+)(?:\.(\d+))?\s*([KMGT]?)(i?)B?\s*", re.IGNORECASE)


def dtype_name(text: str, where: str | None = None) -> str:
    """Return the canonical name of a dtype (``torch.bfloat16`` and ``bf16`` are ``bfloat16``).

    Raises:
        InputError: no such dtype is known.
    """
    name = text.removeprefix("torch.").lower()
    name = _ALIASES.get(name, name)
    if name not in DTYPE_BYTES:
        raise InputError(f"unknown dtype {text!r}", where=where)
    return name


def parse_size(text: str) -> tuple[int, int]:
    """Return a size and half a unit of its last printed digit, both in bytes.

    ``28.452GiB`` is 28.452 * 2**30 bytes, known to 0.0005 GiB; ``G`` and ``GB`` are powers of 1000.

    Raises:
        InputError: the text is not a size.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise InputError(f"not a size: {text!r} (write 28.452GiB, 512MiB, 80GB or a number of bytes)")
    whole, fraction, unit, binary = match[1], match[2] or "", match[3].upper(), match[4]
    scale = (1024 if binary else 1000) ** _UNITS[unit]
    digits = 10 ** len(fraction)
    return int(whole + fraction) * scale // digits, 0 if scale == 1 else -(-scale // (2 * digits))


def human(size: int) -> str:
    """Return a size in GiB with four digits."""
    return f"{size / GIB:.4f} GiB"
