"""Reading the JSON form of a graph: a parsed document becomes a `Graph`, or an InputError names the place."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from layoutcheck.documents import kind_of
from layoutcheck.errors import InputError
from layoutcheck.graph import (
    INPUT_KINDS,
    MAX_NAME,
    MAX_NESTING,
    MAX_NODES,
    OPS,
    Arg,
    DictArg,
    DtypeArg,
    Graph,
    InputSpec,
    Location,
    Meta,
    Node,
    Other,
    Ref,
    SymMeta,
    TensorMeta,
    dtype_name,
    module_path,
    normalize_target,
)
from layoutcheck.sizes.text import parse_size
from layoutcheck.symbols import Interval, Size

FORMAT = "layoutcheck-graph/1"
MAX_SIZE = 1 << 63
"""Sizes are below this."""
MAX_DIMENSIONS = 256
_FLOATS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def graph_from_json(document: Any, path: str | None = None, consume: bool = False) -> Graph:
    """The graph of a parsed document. Raises InputError naming the file and the place in it.

    With `consume` the document's nodes are dropped as they are read, which halves the memory of large graphs.
    """
    try:
        graph = _Reader(path, consume).graph(document, "", 0)
        return graph.validate()
    except InputError as error:
        if path is None or (error.where or "").startswith(path):
            raise
        where = f"{path}: {error.where}" if error.where else path
        raise InputError(error.message, where) from None


class _Reader:
    """Turns JSON values into graph objects, sharing equal ones; `at` is the place, for messages."""

    def __init__(self, path: str | None, consume: bool) -> None:
        self.path = path
        self.consume = consume
        self.refs: dict[str, Ref] = {}
        self.metas: dict[Any, TensorMeta] = {}

    def graph(self, value: Any, at: str, depth: int) -> Graph:
        if depth > MAX_NESTING:
            raise InputError("subgraphs nested too deeply", at)
        document = _dict(value, at or "the file")
        if not depth and document.get("format") != FORMAT:
            found = kind_of(document)
            raise InputError(
                f"this is {found}, not a {FORMAT} file"
                if found is not None
                else f"this is not a {FORMAT} file: the format is {str(document.get('format'))[:40]!r}"
            )
        rank = document.get("rank")
        if rank is not None and (type(rank) is not int or not 0 <= rank < 1 << 31):
            raise InputError("the rank is no number of a rank", f"{at}rank")
        nodes = _list(document.get("nodes"), f"{at}nodes")
        if len(nodes) > MAX_NODES:
            raise InputError(f"more than {MAX_NODES} nodes", f"{at}nodes")
        graph = Graph(
            nodes=self.nodes(nodes, at),
            source=_text(document.get("source", ""), f"{at}source"),
            rank=rank,
            config=_dict(document.get("config") or {}, f"{at}config"),
            path=self.path,
        )
        for name, item in _dict(document.get("inputs") or {}, f"{at}inputs").items():
            graph.inputs[name] = self.input(item, f"{at}inputs[{name[:80]!r}]")
        for name, item in _dict(document.get("ranges") or {}, f"{at}ranges").items():
            graph.ranges[name] = _interval(item, f"{at}ranges[{name[:80]!r}]")
        guards = _list(document.get("guards") or [], f"{at}guards")
        graph.guards = tuple(_text(x, f"{at}guards[{i}]") for i, x in enumerate(guards))
        for name, item in _dict(document.get("subgraphs") or {}, f"{at}subgraphs").items():
            graph.subgraphs[name] = self.graph(item, f"{at}subgraphs[{name[:80]!r}].", depth + 1)
        return graph

    def nodes(self, values: list[Any], at: str) -> list[Node]:
        out: list[Node] = []
        for i, value in enumerate(values):
            out.append(self.node(value, f"{at}nodes[{i}]"))
            if self.consume:
                values[i] = None
        return out

    def input(self, value: Any, at: str) -> InputSpec:
        item = _dict(value, at)
        kind, fqn = item.get("kind"), item.get("fqn")
        if kind not in INPUT_KINDS:
            raise InputError(f"the kind is none of {', '.join(INPUT_KINDS)}", f"{at}.kind")
        return InputSpec(kind, None if fqn is None else _text(fqn, f"{at}.fqn"))

    def node(self, value: Any, at: str) -> Node:
        item = _dict(value, at)
        name, op, target = item.get("name"), item.get("op"), item.get("target")
        if type(name) is not str or not name or len(name) > MAX_NAME:
            raise InputError("the name is missing or no text", f"{at}.name")
        if op not in OPS:
            raise InputError(f"the op is none of {', '.join(OPS)}", f"{at}.op")
        if type(target) is not str or len(target) > MAX_NAME:
            raise InputError("the target is missing or no text", f"{at}.target")
        args = item.get("args")
        kwargs = item.get("kwargs")
        location = item.get("location")
        module, module_type = item.get("module"), item.get("module_type")
        if args is not None and type(args) is not list:
            raise InputError("a list belongs here", f"{at}.args")
        read: Arg = self.arg(args, at, 0) if args else ()
        assert isinstance(read, tuple)
        return Node(
            name=name,
            op=op,
            target=normalize_target(target) if op == "call_function" else target,
            args=read,
            kwargs={k: self.arg(x, at, 0) for k, x in _dict(kwargs, f"{at}.kwargs").items()}
            if kwargs
            else {},
            meta=self.meta(item.get("meta"), at, 0),
            location=None if location is None else _location(location, f"{at}.location"),
            module=None if module is None else _module(module, f"{at}.module"),
            module_type=None if module_type is None else _text(module_type, f"{at}.module_type"),
        )

    def arg(self, value: Any, at: str, depth: int) -> Arg:
        kind = type(value)
        if kind is int:
            if not -MAX_SIZE <= value <= 2 * MAX_SIZE:
                raise InputError("an absurdly large number", f"{at}.args")
            return int(value)
        if kind is dict:
            if len(value) == 1:
                ((key, content),) = value.items()
                make = _TAGS.get(key)
                if make is not None:
                    return make(self, content, at, depth)
            raise InputError(
                "an argument is a literal, a list, {'node'}, {'dtype'}, {'repr'}, {'size'} or {'dict'}",
                f"{at}.args",
            )
        if kind is list:
            if depth > MAX_NESTING:
                raise InputError(f"arguments nested deeper than {MAX_NESTING}", f"{at}.args")
            return tuple(self.arg(x, at, depth + 1) for x in value)
        if value is None or kind is bool or kind is str or kind is float:
            literal: Arg = value
            return literal
        raise InputError(f"an argument of type {kind.__name__}", f"{at}.args")

    def ref(self, value: Any, at: str, depth: int) -> Ref:
        found = self.refs.get(value) if type(value) is str else None
        if found is None:
            found = self.refs[value] = Ref(_text(value, f"{at}.args"))
        return found

    def dtype(self, value: Any, at: str, depth: int) -> DtypeArg:
        text = _text(value, f"{at}.args")
        return DtypeArg(dtype_name(text) or text)

    def repr_arg(self, value: Any, at: str, depth: int) -> Arg:
        text = _text(value, f"{at}.args")
        if text in _FLOATS:
            return _FLOATS[text]
        name = dtype_name(text)
        return Other(text) if name is None else DtypeArg(name)

    def size(self, value: Any, at: str, depth: int) -> Size:
        return _size(value, f"{at}.args")

    def dict_arg(self, value: Any, at: str, depth: int) -> DictArg:
        if depth > MAX_NESTING:
            raise InputError(f"arguments nested deeper than {MAX_NESTING}", f"{at}.args")
        items: list[tuple[str, Arg]] = []
        for pair in _list(value, f"{at}.args"):
            if type(pair) is not list or len(pair) != 2:
                raise InputError("a dict is a list of [key, value]", f"{at}.args")
            items.append((_text(pair[0], f"{at}.args"), self.arg(pair[1], at, depth + 1)))
        return DictArg(tuple(items))

    def meta(self, value: Any, at: str, depth: int) -> Meta:
        if value is None:
            return None
        if type(value) is list:
            if depth > MAX_NESTING:
                raise InputError(f"metadata nested deeper than {MAX_NESTING}", f"{at}.meta")
            return tuple(self.meta(x, at, depth + 1) for x in value)
        item = _dict(value, f"{at}.meta")
        if "shape" in item:
            return self.tensor(item, at)
        if "symint" in item:
            return SymMeta(_size(item["symint"], f"{at}.meta.symint"))
        if "repr" in item:
            return Other(_text(item["repr"], f"{at}.meta.repr"))
        raise InputError("metadata holds 'shape' and 'dtype', 'symint' or 'repr'", f"{at}.meta")

    def tensor(self, item: dict[str, Any], at: str) -> TensorMeta:
        shape, dtype, layout = item["shape"], item.get("dtype"), item.get("layout")
        if type(shape) is not list or len(shape) > MAX_DIMENSIONS:
            raise InputError("the shape is no list of sizes", f"{at}.meta.shape")
        if type(dtype) is not str:
            raise InputError("the dtype is missing or no text", f"{at}.meta.dtype")
        try:
            # bool and int share hashes, so the types are part of the key.
            key = (*shape, *map(type, shape), dtype, layout)
            found = self.metas.get(key)
        except TypeError:
            raise InputError("a size is a number or a text", f"{at}.meta.shape") from None
        if found is None:
            sizes = tuple(_size(x, f"{at}.meta.shape[{i}]") for i, x in enumerate(shape))
            if layout is not None:
                _text(layout, f"{at}.meta.layout")
            found = self.metas[key] = TensorMeta(sizes, dtype_name(dtype) or dtype, layout)
        return found


_TAGS: dict[str, Callable[[_Reader, Any, str, int], Arg]] = {
    "node": _Reader.ref,
    "dtype": _Reader.dtype,
    "repr": _Reader.repr_arg,
    "size": _Reader.size,
    "dict": _Reader.dict_arg,
}


def _dict(value: Any, at: str) -> dict[str, Any]:
    if type(value) is not dict:
        raise InputError("an object belongs here", at)
    return value


def _list(value: Any, at: str) -> list[Any]:
    if type(value) is not list:
        raise InputError("a list belongs here", at)
    return value


def _text(value: Any, at: str) -> str:
    if type(value) is not str:
        raise InputError("a text belongs here", at)
    return value


def _size(value: Any, at: str) -> Size:
    if type(value) is int:
        if not -MAX_SIZE < value < MAX_SIZE:
            raise InputError("an absurdly large size", at)
        return value
    if type(value) is not str:
        raise InputError("a size is a number or a text", at)
    try:
        return parse_size(value)
    except InputError as error:
        raise InputError(error.message, at) from None


def _interval(value: Any, at: str) -> Interval:
    if type(value) is not list or len(value) != 2:
        raise InputError("a range is [least, greatest]", at)
    low, high = value
    for end in (low, high):
        if end is not None and type(end) is not int:
            raise InputError("a range's end is a number or null", at)
    return low, high


def _module(value: Any, at: str) -> str:
    if type(value) is list and value:
        # Some exporters write the whole stack entry: [key, path].
        value = value[-1]
    return module_path(_text(value, at))


def _location(value: Any, at: str) -> Location:
    item = _dict(value, at)
    line = item.get("line")
    if type(line) is not int:
        raise InputError("the line is no number", f"{at}.line")
    return Location(
        _text(item.get("file"), f"{at}.file"), line, _text(item.get("function", ""), f"{at}.function")
    )
