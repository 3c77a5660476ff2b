"""Arguments of torch.export's JSON: one method for each member of the schema's union."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from layoutcheck.errors import InputError
from layoutcheck.graph import MAX_NESTING, Arg, DictArg, DtypeArg, Other, Ref, normalize_target
from layoutcheck.json_reading import MAX_SIZE
from layoutcheck.readers.pt2_values import (
    LAYOUTS,
    MEMORY_FORMATS,
    SCALAR_TYPES,
    as_dict,
    as_list,
    as_name,
    as_text,
    name_of,
)


class ArgumentReader:
    """Reads arguments; references to one node share one object."""

    def __init__(self) -> None:
        self.refs: dict[str, Ref] = {}

    def ref(self, name: str) -> Ref:
        found = self.refs.get(name)
        if found is None:
            found = self.refs[name] = Ref(name)
        return found

    def arg(self, value: Any, at: str) -> Arg:
        if type(value) is not dict:
            raise InputError("no argument", at)
        for tag, content in value.items():
            # Some writers spell out every other member of the union as null.
            if content is None and len(value) > 1:
                continue
            make = _TAGS.get(tag)
            if make is None:
                raise InputError(f"unknown kind of argument {tag[:40]!r}", at)
            return make(self, content, f"{at}.{tag}")
        raise InputError("no argument", at)

    def none(self, value: Any, at: str) -> Arg:
        return None

    def tensor(self, value: Any, at: str) -> Arg:
        return self.ref(name_of(value, at))

    def tensors(self, value: Any, at: str) -> Arg:
        return tuple(self.ref(name_of(x, at)) for x in as_list(value, at))

    def nested_tensors(self, value: Any, at: str) -> Arg:
        return tuple(self.tensors(x, at) for x in as_list(value, at))

    def optional_tensor(self, value: Any, at: str) -> Arg:
        content = as_dict(value, at).get("as_tensor")
        return None if content is None else self.ref(name_of(content, at))

    def optional_tensors(self, value: Any, at: str) -> Arg:
        return tuple(self.optional_tensor(x, at) for x in as_list(value, at))

    def integer(self, value: Any, at: str) -> Arg:
        if type(value) is not int or not -MAX_SIZE <= value <= 2 * MAX_SIZE:
            raise InputError("no number", at)
        return value

    def integers(self, value: Any, at: str) -> Arg:
        return tuple(self.integer(x, at) for x in as_list(value, at))

    def integer_lists(self, value: Any, at: str) -> Arg:
        return tuple(self.integers(x, at) for x in as_list(value, at))

    def real(self, value: Any, at: str) -> Arg:
        if type(value) is float:
            return value
        if type(value) is int and abs(value) < 1 << 1000:
            return float(value)
        if value in ("Infinity", "-Infinity", "NaN"):
            return float(value)
        raise InputError("no number", at)

    def reals(self, value: Any, at: str) -> Arg:
        return tuple(self.real(x, at) for x in as_list(value, at))

    def real_lists(self, value: Any, at: str) -> Arg:
        return tuple(self.reals(x, at) for x in as_list(value, at))

    def boolean(self, value: Any, at: str) -> Arg:
        if type(value) is not bool:
            raise InputError("neither true nor false", at)
        return value

    def booleans(self, value: Any, at: str) -> Arg:
        return tuple(self.boolean(x, at) for x in as_list(value, at))

    def string(self, value: Any, at: str) -> Arg:
        return as_text(value, at)

    def strings(self, value: Any, at: str) -> Arg:
        return tuple(as_text(x, at) for x in as_list(value, at))

    def symbolic(self, value: Any, at: str) -> Arg:
        item = as_dict(value, at)
        name = item.get("as_name")
        if name is not None:
            return self.ref(as_name(name, at))
        for key, read in (("as_int", self.integer), ("as_float", self.real), ("as_bool", self.boolean)):
            if item.get(key) is not None:
                return read(item[key], f"{at}.{key}")
        raise InputError("no symbol and no number", at)

    def symbolics(self, value: Any, at: str) -> Arg:
        return tuple(self.symbolic(x, at) for x in as_list(value, at))

    def scalar_type(self, value: Any, at: str) -> Arg:
        if type(value) is not int:
            raise InputError("no dtype", at)
        return DtypeArg(SCALAR_TYPES.get(value, f"dtype{value}"))

    def layout(self, value: Any, at: str) -> Arg:
        return self.enumerated(value, LAYOUTS, "layout", at)

    def memory_format(self, value: Any, at: str) -> Arg:
        return self.enumerated(value, MEMORY_FORMATS, "memory format", at)

    def enumerated(self, value: Any, names: dict[int, str], what: str, at: str) -> Arg:
        if type(value) is not int:
            raise InputError(f"no {what}", at)
        return Other(names.get(value, f"{what} {value}"))

    def device(self, value: Any, at: str) -> Arg:
        item = as_dict(value, at)
        kind, index = as_text(item.get("type"), at), item.get("index")
        return Other(kind if index is None else f"{kind}:{self.integer(index, at)}")

    def operator(self, value: Any, at: str) -> Arg:
        parts = normalize_target(as_text(value, at)).split(".")
        if len(parts) == 3:
            return Other(f"<OpOverload(op='{parts[0]}.{parts[1]}', overload='{parts[2]}')>")
        return Other(".".join(parts))

    def custom_object(self, value: Any, at: str) -> Arg:
        return self.ref(name_of(value, at))

    def complex_number(self, value: Any, at: str) -> Arg:
        item = as_dict(value, at)
        real, imaginary = (self.real(item.get(k), at) for k in ("real", "imag"))
        return Other(repr(complex(float(str(real)), float(str(imaginary)))))

    def mapping(self, value: Any, at: str) -> Arg:
        # Its values are whole arguments; the JSON parser has bounded how deep they go.
        if at.count("as_string_to_argument") > MAX_NESTING:
            raise InputError(f"arguments nested deeper than {MAX_NESTING}", at[:200])
        items = as_dict(value, at).items()
        return DictArg(tuple((k, self.arg(v, f"{at}[{k[:40]!r}]")) for k, v in items))

    def body(self, value: Any, at: str) -> Arg:
        """The body of a higher-order op; readers of whole graphs know how to read one."""
        raise NotImplementedError


_TAGS: dict[str, Callable[[ArgumentReader, Any, str], Arg]] = {
    "as_none": ArgumentReader.none,
    "as_tensor": ArgumentReader.tensor,
    "as_tensors": ArgumentReader.tensors,
    "as_optional_tensor": ArgumentReader.optional_tensor,
    "as_optional_tensors": ArgumentReader.optional_tensors,
    "as_nested_tensors": ArgumentReader.nested_tensors,
    "as_int": ArgumentReader.integer,
    "as_ints": ArgumentReader.integers,
    "as_int_lists": ArgumentReader.integer_lists,
    "as_float": ArgumentReader.real,
    "as_floats": ArgumentReader.reals,
    "as_float_lists": ArgumentReader.real_lists,
    "as_bool": ArgumentReader.boolean,
    "as_bools": ArgumentReader.booleans,
    "as_string": ArgumentReader.string,
    "as_strings": ArgumentReader.strings,
    "as_sym_int": ArgumentReader.symbolic,
    "as_sym_ints": ArgumentReader.symbolics,
    "as_sym_float": ArgumentReader.symbolic,
    "as_sym_floats": ArgumentReader.symbolics,
    "as_sym_bool": ArgumentReader.symbolic,
    "as_sym_bools": ArgumentReader.symbolics,
    "as_scalar_type": ArgumentReader.scalar_type,
    "as_layout": ArgumentReader.layout,
    "as_memory_format": ArgumentReader.memory_format,
    "as_device": ArgumentReader.device,
    "as_operator": ArgumentReader.operator,
    "as_custom_obj": ArgumentReader.custom_object,
    "as_complex": ArgumentReader.complex_number,
    "as_string_to_argument": ArgumentReader.mapping,
    "as_graph": lambda reader, value, at: reader.body(value, at),
}
