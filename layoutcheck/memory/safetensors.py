"""Names, shapes and dtypes from safetensors headers. Only headers are read, never weights, never pickle."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

from layoutcheck.documents import read_document
from layoutcheck.errors import InputError
from layoutcheck.units import DTYPE_BYTES

#: The format's own bound on a header.
LARGEST_HEADER = 100_000_000
_LARGEST_INDEX = 256 << 20
_MOST_AXES = 16
_LARGEST_AXIS = 1 << 48

_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a checkpoint."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Its size."""
        return prod(self.shape) * DTYPE_BYTES[self.dtype]


def read_header(path: Path) -> list[Tensor]:
    """Return the tensors that a safetensors file's header names.

    Raises:
        InputError: the file is no safetensors file, its header is too large or not consistent.
    """
    where = str(path)
    try:
        with path.open("rb") as file:
            size = int.from_bytes(_exactly(file.read(8), 8, where), "little")
            if not 2 <= size <= LARGEST_HEADER:
                raise InputError(f"a header of {size} bytes; at most {LARGEST_HEADER} are read", where=where)
            raw = _exactly(file.read(size), size, where)
        values = json.loads(raw.decode("utf-8"), object_pairs_hook=_pairs)
    except InputError as error:
        raise InputError(error.message, where=where) from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"not a safetensors file: {error}", where=where) from None
    return tensors_of(values, where)


def _exactly(data: bytes, size: int, where: str) -> bytes:
    if len(data) != size:
        raise InputError(f"the file ends in its header ({len(data)} of {size} bytes)", where=where)
    return data


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise InputError("a name stands twice in the header")
    return found


def tensors_of(values: Any, where: str) -> list[Tensor]:
    """Return the tensors of a header that is already parsed (also as model hubs hand it out).

    Raises:
        InputError: an entry is malformed, or its byte range does not fit its shape.
    """
    if not isinstance(values, dict):
        raise InputError("the header is no JSON object", where=where)
    found = [_tensor(name, entry, where) for name, entry in values.items() if name != "__metadata__"]
    ranges = sorted(
        tuple(entry["data_offsets"])
        for name, entry in values.items()
        if name != "__metadata__" and "data_offsets" in entry
    )
    for (_, end), (start, _) in pairwise(ranges):
        if start < end:
            raise InputError(f"two tensors share byte {start}", where=where)
    return found


def _tensor(name: str, entry: Any, where: str) -> Tensor:
    if not isinstance(entry, dict):
        raise InputError(f"{name[:200]} is no object", where=where)
    dtype = _DTYPES.get(str(entry.get("dtype")))
    if dtype is None:
        raise InputError(f"{name[:200]} has the unknown dtype {str(entry.get('dtype'))[:40]}", where=where)
    shape = entry.get("shape")
    if (
        not isinstance(shape, list)
        or len(shape) > _MOST_AXES
        or not all(type(size) is int and 0 <= size <= _LARGEST_AXIS for size in shape)
    ):
        raise InputError(f"{name[:200]} has no usable shape", where=where)
    tensor = Tensor(name, dtype, tuple(shape))
    if "data_offsets" in entry:
        offsets = entry["data_offsets"]
        if (
            not isinstance(offsets, list)
            or len(offsets) != 2
            or not all(type(at) is int and at >= 0 for at in offsets)
            or offsets[1] - offsets[0] != tensor.bytes
        ):
            raise InputError(f"{name[:200]}: byte range and shape do not agree", where=where)
    return tensor


def read_index(path: Path) -> Mapping[str, str]:
    """Return tensor name -> file name of a ``*.safetensors.index.json``.

    Raises:
        InputError: it has no weight map, or names a file outside its folder.
    """
    values = read_document(path, "an index of safetensors files", largest=_LARGEST_INDEX)
    names = values.get("weight_map")
    if not isinstance(names, dict) or not names:
        raise InputError("the index has no weight_map", where=str(path))
    for name, file in names.items():
        if (
            not isinstance(file, str)
            or file in ("", ".", "..")
            or "/" in file
            or "\\" in file
            or "\0" in file
        ):
            raise InputError(
                f"{name[:200]} lies in {str(file)[:80]!r}, not a file beside the index", where=str(path)
            )
    return names


def read_tensors(path: Path) -> list[Tensor]:
    """Return the tensors of a checkpoint: a folder, an index, one file, or a header as JSON.

    Raises:
        InputError: a file is missing, malformed, or does not hold what the index says.
    """
    if path.is_dir():
        indices = sorted(path.glob("*.safetensors.index.json"))
        if indices:
            return list(_indexed(indices[0]))
        files = sorted(path.glob("*.safetensors"))
        if not files:
            raise InputError("no safetensors file and no index in this folder", where=str(path))
        return _unique([t for file in files for t in read_header(file)], str(path))
    if path.name.endswith(".index.json"):
        return list(_indexed(path))
    if path.suffix == ".json":
        return tensors_of(
            read_document(path, "headers of safetensors files", largest=LARGEST_HEADER), str(path)
        )
    return read_header(path)


def _indexed(path: Path) -> Iterator[Tensor]:
    wanted = read_index(path)
    left = dict(wanted)
    for file in sorted(set(wanted.values())):
        shard = path.parent / file
        if not shard.exists():
            raise InputError(
                f"{file} is not here; its header (the file's beginning is enough) holds the shapes",
                where=str(path),
            )
        for tensor in read_header(shard):
            if left.pop(tensor.name, None) == file:
                yield tensor
    if left:
        name, file = next(iter(left.items()))
        raise InputError(f"{name[:200]} is not in {file}, as the index says", where=str(path))


def _unique(tensors: list[Tensor], where: str) -> list[Tensor]:
    seen: set[str] = set()
    for tensor in tensors:
        if tensor.name in seen:
            raise InputError(f"{tensor.name[:200]} stands in two files", where=where)
        seen.add(tensor.name)
    return tensors
