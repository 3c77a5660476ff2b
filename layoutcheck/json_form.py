"""`layoutcheck-graph/1`, the JSON form of a graph: writing it, and reading a parsed document.

`layoutcheck/schema/graph-1.json` describes the form. What is written reads back to an equal graph.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

from layoutcheck.errors import InputError
from layoutcheck.graph import DictArg, DtypeArg, Graph, Node, Other, Ref, SymMeta, TensorMeta
from layoutcheck.json_reading import FORMAT, graph_from_json
from layoutcheck.symbols import Expr, Size, plain_text

__all__ = ["FORMAT", "dumps", "graph_from_json", "graph_to_json", "save"]


def graph_to_json(graph: Graph) -> dict[str, Any]:
    """The document of a graph, made of dicts, lists and scalars that JSON holds."""
    document: dict[str, Any] = {
        "format": FORMAT,
        "source": graph.source,
        "rank": graph.rank,
        "config": graph.config,
        "nodes": [_node_to_json(node) for node in graph.nodes],
    }
    if graph.inputs:
        document["inputs"] = {k: {"kind": v.kind, "fqn": v.fqn} for k, v in graph.inputs.items()}
    if graph.ranges:
        document["ranges"] = {k: list(v) for k, v in graph.ranges.items()}
    if graph.guards:
        document["guards"] = list(graph.guards)
    if graph.subgraphs:
        document["subgraphs"] = {k: graph_to_json(v) for k, v in graph.subgraphs.items()}
    return document


def _node_to_json(node: Node) -> dict[str, Any]:
    out: dict[str, Any] = {
        "name": node.name,
        "op": node.op,
        "target": node.target,
        "args": [_arg_to_json(x) for x in node.args],
    }
    if node.kwargs:
        out["kwargs"] = {k: _arg_to_json(x) for k, x in node.kwargs.items()}
    out["meta"] = _meta_to_json(node.meta)
    if node.location is not None:
        at = node.location
        out["location"] = {"file": at.file, "line": at.line, "function": at.function}
    if node.module is not None:
        out["module"] = node.module
    if node.module_type is not None:
        out["module_type"] = node.module_type
    return out


def _arg_to_json(arg: Any) -> Any:
    if arg is None or isinstance(arg, (bool, int, str)):
        return arg
    if isinstance(arg, float):
        # JSON has no infinities.
        return arg if math.isfinite(arg) else {"repr": repr(arg)}
    if isinstance(arg, Ref):
        return {"node": arg.name}
    if isinstance(arg, tuple):
        return [_arg_to_json(x) for x in arg]
    if isinstance(arg, DtypeArg):
        return {"dtype": arg.name}
    if isinstance(arg, Other):
        return {"repr": arg.text}
    if isinstance(arg, Expr):
        return {"size": plain_text(arg)}
    if isinstance(arg, DictArg):
        return {"dict": [[k, _arg_to_json(v)] for k, v in arg.items]}
    raise TypeError(f"no argument of a graph: {arg!r}")


def _size_to_json(size: Size) -> int | str:
    return size if isinstance(size, int) else plain_text(size)


def _meta_to_json(meta: Any) -> Any:
    if meta is None:
        return None
    if isinstance(meta, TensorMeta):
        out: dict[str, Any] = {"shape": [_size_to_json(x) for x in meta.shape], "dtype": meta.dtype}
        if meta.layout is not None:
            out["layout"] = meta.layout
        return out
    if isinstance(meta, SymMeta):
        return {"symint": _size_to_json(meta.value)}
    if isinstance(meta, Other):
        return {"repr": meta.text}
    if isinstance(meta, tuple):
        return [_meta_to_json(x) for x in meta]
    raise TypeError(f"no metadata of a node: {meta!r}")


def dumps(graph: Graph) -> bytes:
    """The graph as UTF-8 JSON text."""
    document = graph_to_json(graph)
    return json.dumps(document, separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode()


def save(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Write the graph to `path`, gzipped where the name ends in `.gz`.

    The file appears only when complete. Raises InputError where it cannot be written.
    """
    target = Path(path)
    data = dumps(graph)
    if target.suffix == ".gz":
        data = gzip.compress(data, mtime=0)
    temporary: str | None = None
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name[:60]}.", dir=target.parent)
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, target)
        temporary = None
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", str(target)) from None
    finally:
        if temporary is not None:
            os.unlink(temporary)
