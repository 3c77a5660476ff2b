"""Reading graphs from files and from torch objects in process.

A file's form is told by its content: a zip is a torch.export archive, gzip and `{` are `layoutcheck-graph/1`.
"""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING, Any

from layoutcheck.errors import InputError
from layoutcheck.json_form import graph_from_json, save
from layoutcheck.readers.files import gunzip, parse_json, read_bytes

if TYPE_CHECKING:
    from layoutcheck.graph import Graph

__all__ = ["from_fx", "load", "save"]

_ZIP = b"PK\x03\x04"
_EMPTY_ZIP = b"PK\x05\x06"
_GZIP = b"\x1f\x8b"


def load(path: str | os.PathLike[str]) -> Graph:
    """The graph in a file: a `.pt2` archive or `layoutcheck-graph/1`, plain or gzipped.

    Raises InputError naming the path, and the place in it, for whatever is wrong.
    """
    name = os.fspath(path)
    # Parsed JSON is millions of objects and no cycle: the collector would only walk them again and again.
    collecting = gc.isenabled()
    gc.disable()
    try:
        # An archive's weights may be huge, so it is never read as a whole.
        if read_bytes(name, 4) in (_ZIP, _EMPTY_ZIP):
            from layoutcheck.readers.pt2 import read_pt2

            return read_pt2(name)
        data = read_bytes(name)
        if data[:2] == _GZIP:
            data = gunzip(data, name)
        start = data[:64].lstrip(b"\xef\xbb\xbf \t\r\n")
        if not start.startswith(b"{"):
            raise InputError("this is neither a .pt2 archive nor a layoutcheck-graph/1 file", name)
        document = parse_json(data.removeprefix(b"\xef\xbb\xbf"), name)
        del data
        return graph_from_json(document, name, consume=True)
    except RecursionError:
        raise InputError("nested too deeply", name) from None
    except MemoryError:
        raise InputError("needs more memory than there is", name) from None
    finally:
        if collecting:
            gc.enable()


def from_fx(source: Any, **options: Any) -> Graph:
    """The graph of a torch.fx.GraphModule or an ExportedProgram; see `layoutcheck.readers.fx.from_fx`."""
    from layoutcheck.readers.fx import from_fx as read

    return read(source, **options)
