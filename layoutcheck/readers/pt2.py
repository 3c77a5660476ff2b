"""torch.export archives: a zip whose `*/models/model.json` holds the graph.

Only the zip's directory and that JSON are read: no torch, no pickle, no weights, and ops of any namespace.
"""

from __future__ import annotations

import struct
import zipfile
import zlib

from layoutcheck.errors import InputError
from layoutcheck.graph import Graph
from layoutcheck.readers.files import MAX_UNPACKED, check_ratio, parse_json
from layoutcheck.readers.pt2_graph import program_from_json

_OLD_NAME = "serialized_exported_program.json"
_CHUNK = 1 << 20
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    OSError,
    KeyError,
    IndexError,
    ValueError,
    OverflowError,
    NotImplementedError,
    RuntimeError,
)
"""What zipfile raises for damaged, encrypted or exotic archives."""


def read_pt2(path: str) -> Graph:
    """The graph of an archive. Raises InputError naming the path and the place in the JSON."""
    name, data = _model_json(path)
    document = parse_json(data, f"{path}: {name}")
    del data
    try:
        return program_from_json(document, path)
    except InputError as error:
        if error.where is not None and error.where.startswith(path):
            raise
        where = f"{path}: {name}"
        raise InputError(error.message, f"{where}: {error.where}" if error.where else where) from None


def _model_json(path: str) -> tuple[str, bytes]:
    try:
        with zipfile.ZipFile(path) as archive:
            info = _find(archive, path)
            where = f"{path}: {info.filename}"
            check_ratio(info.file_size, info.compress_size, where)
            parts: list[bytes] = []
            total = 0
            # The directory may lie about sizes, so what comes out is counted too.
            with archive.open(info) as stream:
                while chunk := stream.read(_CHUNK):
                    total += len(chunk)
                    check_ratio(total, info.compress_size, where, MAX_UNPACKED)
                    parts.append(chunk)
            return info.filename, b"".join(parts)
    except InputError:
        raise
    except _DAMAGE as error:
        raise InputError(f"damaged archive: {str(error)[:200]}", path) from None


def _find(archive: zipfile.ZipFile, path: str) -> zipfile.ZipInfo:
    models = [
        x
        for x in archive.infolist()
        if (x.filename.startswith("models/") or "/models/" in x.filename) and x.filename.endswith(".json")
    ]
    main = [x for x in models if x.filename.endswith("models/model.json")]
    old = [x for x in archive.infolist() if x.filename.rpartition("/")[2] == _OLD_NAME]
    for found in (main, models, old):
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(x.filename[:80] for x in found[:5])
            raise InputError(f"the archive holds several graphs: {names}", path)
    raise InputError("a zip without models/model.json, so no torch.export archive", path)
