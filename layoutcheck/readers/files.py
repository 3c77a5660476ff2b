"""Getting bytes out of files within bounds: sizes, compression ratios, JSON depth."""

from __future__ import annotations

import gzip
import io
import json
import os
import zlib
from typing import Any

from layoutcheck.errors import InputError

MAX_UNPACKED = 2 << 30
"""Largest unpacked size in bytes that is read."""
RATIO_FLOOR = 64 << 20
"""Below this unpacked size no compression ratio is suspicious."""
MAX_RATIO = 200
_CHUNK = 1 << 20


def read_bytes(name: str, count: int | None = None) -> bytes:
    """Contents of a file, or its first `count` bytes. Raises InputError with the path for whatever
    prevents that, an empty or huge file included."""
    try:
        if os.path.isdir(name):
            raise InputError("this is a folder, not a graph", name)
        if not os.path.isfile(name) and os.path.exists(name):
            raise InputError("this is no regular file", name)
        size = os.path.getsize(name)
        if count is None and size > MAX_UNPACKED:
            raise InputError(f"the file has {size} bytes; at most {MAX_UNPACKED} are read", name)
        with open(name, "rb") as stream:
            data = stream.read() if count is None else stream.read(count)
    except FileNotFoundError:
        raise InputError("there is no such file", name or "''") from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", name) from None
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError("this is no path", name) from None
    if not data:
        raise InputError("the file is empty", name)
    return data


def gunzip(data: bytes, name: str, limit: int = MAX_UNPACKED) -> bytes:
    """Unpacked gzip data. Raises InputError for damaged data and for bombs."""
    parts: list[bytes] = []
    total = 0
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            while chunk := stream.read(_CHUNK):
                total += len(chunk)
                check_ratio(total, len(data), name, limit)
                parts.append(chunk)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"damaged gzip data: {error}", name) from None
    return b"".join(parts)


def check_ratio(unpacked: int, packed: int, where: str, limit: int = MAX_UNPACKED) -> None:
    """Raise InputError where unpacked data is too large, or too large for what it was packed in."""
    if unpacked > limit:
        raise InputError(f"unpacks to more than {limit} bytes", where)
    if unpacked > RATIO_FLOOR and unpacked > MAX_RATIO * max(packed, 1):
        raise InputError(f"unpacks to more than {MAX_RATIO} times its size, like a bomb", where)


def parse_json(data: bytes, where: str) -> Any:
    """Parsed JSON, by orjson where installed. Raises InputError."""
    try:
        import orjson
    except ImportError:
        return _parse_plain(data, where)
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        if "NaN" not in str(error) and b"Infinity" not in data and b"NaN" not in data:
            raise InputError(f"no JSON: {str(error)[:200]}", where) from None
    return _parse_plain(data, where)


def _parse_plain(data: bytes, where: str) -> Any:
    try:
        return json.loads(data)
    except RecursionError:
        raise InputError("JSON nested too deeply", where) from None
    except ValueError as error:
        # Covers bad UTF-8, bad JSON and numbers of thousands of digits.
        raise InputError(f"no JSON: {str(error)[:200]}", where) from None
