"""Values of torch.export's JSON: sizes, tensors' metadata, stack traces, module stacks."""

from __future__ import annotations

import re
from typing import Any

from layoutcheck.errors import InputError
from layoutcheck.graph import MAX_NAME, Location, SymMeta, TensorMeta, module_path
from layoutcheck.json_reading import MAX_DIMENSIONS, MAX_SIZE
from layoutcheck.sizes.text import parse_size
from layoutcheck.symbols import Interval, Size

SCALAR_TYPES = {
    1: "uint8",
    2: "int8",
    3: "int16",
    4: "int32",
    5: "int64",
    6: "float16",
    7: "float32",
    8: "float64",
    9: "complex32",
    10: "complex64",
    11: "complex128",
    12: "bool",
    13: "bfloat16",
    28: "uint16",
    29: "float8_e4m3fn",
    30: "float8_e5m2",
    31: "float8_e4m3fnuz",
    32: "float8_e5m2fnuz",
    33: "float8_e8m0fnu",
    34: "uint32",
    35: "uint64",
}
"""torch.export's numbers of dtypes (schema version 8)."""
LAYOUTS = {
    1: "torch.sparse_coo",
    2: "torch.sparse_csr",
    3: "torch.sparse_csc",
    4: "torch.sparse_bsr",
    5: "torch.sparse_bsc",
    6: "torch._mkldnn",
    7: "torch.strided",
}
MEMORY_FORMATS = {
    1: "torch.contiguous_format",
    2: "torch.channels_last",
    3: "torch.channels_last_3d",
    4: "torch.preserve_format",
}
_UNBOUNDED = 1 << 62
_FRAME = re.compile(r'File "([^"\n]+)", line (\d{1,9}), in (\S+)')
_TORCH_FILE = re.compile(r"(?:^|/)torch/")
NO_STACK = "_empty_nn_module_stack_from_metadata_hook"


def as_dict(value: Any, at: str) -> dict[str, Any]:
    """`value` if it is an object. Raises InputError."""
    if type(value) is not dict:
        raise InputError("an object belongs here", at)
    return value


def as_list(value: Any, at: str) -> list[Any]:
    """`value` if it is a list. Raises InputError."""
    if type(value) is not list:
        raise InputError("a list belongs here", at)
    return value


def as_text(value: Any, at: str) -> str:
    """`value` if it is a text. Raises InputError."""
    if type(value) is not str:
        raise InputError("a text belongs here", at)
    return value


def as_name(value: Any, at: str) -> str:
    """`value` if it is a usable name. Raises InputError."""
    if type(value) is not str or not value or len(value) > MAX_NAME:
        raise InputError("a name belongs here", at)
    return value


def name_of(value: Any, at: str) -> str:
    """The name in `{"name": ...}`. Raises InputError."""
    return as_name(as_dict(value, at).get("name"), f"{at}.name")


def size_of(value: Any, at: str) -> Size:
    """A size written as `{"as_int": 3}` or `{"as_expr": {"expr_str": ...}}`. Raises InputError."""
    item = as_dict(value, at)
    number = item.get("as_int")
    if number is not None:
        if type(number) is not int or not -MAX_SIZE < number < MAX_SIZE:
            raise InputError("no size", f"{at}.as_int")
        return number
    expr = as_dict(item.get("as_expr"), f"{at}.as_expr")
    text = as_text(expr.get("expr_str"), f"{at}.as_expr.expr_str")
    try:
        return parse_size(text)
    except InputError as error:
        raise InputError(error.message, f"{at}.as_expr.expr_str") from None


class Values:
    """The recorded values of one archive. Equal metadata, places and modules are shared objects."""

    def __init__(self) -> None:
        self._metas: dict[Any, TensorMeta] = {}
        self._locations: dict[str, Location | None] = {}
        self._modules: dict[str, tuple[str | None, str | None]] = {}

    def tensor(self, value: Any, at: str) -> TensorMeta:
        """Metadata of a tensor. Raises InputError."""
        item = as_dict(value, at)
        dtype = item.get("dtype")
        sizes = item.get("sizes")
        if type(sizes) is not list or len(sizes) > MAX_DIMENSIONS:
            raise InputError("no list of sizes", f"{at}.sizes")
        shape: list[Size] = []
        for i, size in enumerate(sizes):
            number = size.get("as_int") if type(size) is dict else None
            if type(number) is int and 0 <= number < MAX_SIZE:
                shape.append(number)
            else:
                shape.append(size_of(size, f"{at}.sizes[{i}]"))
        if type(dtype) is not int:
            raise InputError("no dtype", f"{at}.dtype")
        key = (dtype, *shape)
        found = self._metas.get(key)
        if found is None:
            # A number from a newer torch is no reason to refuse the graph.
            found = TensorMeta(tuple(shape), SCALAR_TYPES.get(dtype, f"dtype{dtype}"))
            self._metas[key] = found
        return found

    def location(self, trace: Any, at: str) -> Location | None:
        """The innermost frame outside torch of a stack trace, or None."""
        if trace is None:
            return None
        text = as_text(trace, at)
        if text in self._locations:
            return self._locations[text]
        found = parse_trace(text)
        self._locations[text] = found
        return found

    def module(self, stack: Any, at: str) -> tuple[str | None, str | None]:
        """Path and class of the innermost module of a module stack."""
        if stack is None:
            return None, None
        text = as_text(stack, at)
        found = self._modules.get(text)
        if found is None:
            found = self._modules[text] = _parse_modules(text)
        return found


def parse_trace(text: str) -> Location | None:
    """The innermost frame of a Python stack trace that is neither torch's own nor generated, or None."""
    for file, line, function in reversed(_FRAME.findall(text)):
        if not file.startswith("<") and not _TORCH_FILE.search(file):
            return Location(file, int(line), function)
    return None


def _parse_modules(text: str) -> tuple[str | None, str | None]:
    # key,path,class;key,path,class
    last = text.rpartition(";")[2] if ";" in text else text
    parts = last.split(",")
    if len(parts) < 3 or parts[0] == NO_STACK:
        return None, None
    return module_path(",".join(parts[1:-1])), parts[-1]


def sym_values(value: Any, at: str) -> dict[str, SymMeta]:
    """Sizes that nodes yield, by name. Raises InputError."""
    items = as_dict(value, at).items()
    return {as_name(k, at): SymMeta(size_of(v, f"{at}[{k[:80]!r}]")) for k, v in items}


def ranges_of(value: Any, at: str) -> dict[str, Interval]:
    """Ranges of symbols; torch's sentinels for infinity become None. Raises InputError."""
    ranges: dict[str, Interval] = {}
    for name, item in as_dict(value, at).items():
        place = f"{at}[{name[:80]!r}]"
        ends: list[int | None] = []
        for key in ("min_val", "max_val"):
            end = as_dict(item, place).get(key)
            if end is not None and type(end) is not int:
                raise InputError("no number", f"{place}.{key}")
            ends.append(None if end is None or abs(end) >= _UNBOUNDED else end)
        ranges[name] = (ends[0], ends[1])
    return ranges
