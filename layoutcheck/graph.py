"""The graph as exporters hand it over: fx-shaped, one node a call, getitem nodes for several outputs.

An argument is a literal (None, bool, int, float, str), a symbolic size (`Expr`), a tuple of arguments,
or one of `Ref`, `DtypeArg`, `DictArg`, `Other`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, TypeAlias

import attrs

from layoutcheck.errors import InputError
from layoutcheck.symbols import Expr, Interval, Size

MAX_NODES = 50_000_000
MAX_NAME = 4096
MAX_NESTING = 50

OPS = ("placeholder", "call_function", "get_attr", "output")
INPUT_KINDS = ("parameter", "buffer", "constant", "user_input", "unknown")


@attrs.frozen
class Ref:
    """The value of another node."""

    name: str


@attrs.frozen
class DtypeArg:
    """A dtype given as an argument, by torch's name without `torch.`."""

    name: str


@attrs.frozen
class Other:
    """An argument that only its text is known of: a device, a layout, a memory format, an operator."""

    text: str


@attrs.frozen
class DictArg:
    """A mapping given as an argument, in its order."""

    items: tuple[tuple[str, Any], ...]


Arg: TypeAlias = "bool | int | float | str | Expr | Ref | DtypeArg | Other | DictArg | tuple[Arg, ...] | None"


@attrs.frozen
class TensorMeta:
    """Recorded shape and dtype (torch's name without `torch.`); `layout` is a layout declared in text."""

    shape: tuple[Size, ...]
    dtype: str
    layout: str | None = None


@attrs.frozen
class SymMeta:
    """Recorded value of a node that yields a size."""

    value: Size


Meta: TypeAlias = "TensorMeta | SymMeta | Other | tuple[Meta, ...] | None"


@attrs.frozen
class Location:
    """Where in the model's source a node comes from."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@attrs.define
class Node:
    """One call, input, constant or the output.

    `target` is normalised (`aten.view.default`, `operator.getitem`, a placeholder's own name). `module` is
    the path of the innermost module and `module_type` its class. `meta` is what the exporter recorded: a
    tuple for several outputs, None where nothing was.
    """

    name: str
    op: str
    target: str
    args: tuple[Arg, ...] = ()
    kwargs: dict[str, Arg] = attrs.field(factory=dict)
    meta: Meta = None
    location: Location | None = None
    module: str | None = None
    module_type: str | None = None

    def __repr__(self) -> str:
        reads = ", ".join(dict.fromkeys(self.refs()))
        text = (
            f"<Node {self.name} = {self.target}({reads})"
            if self.op == "call_function"
            else f"<Node {self.name}, {self.op}"
        )
        return f"{text[:150]}>"

    def refs(self) -> Iterator[str]:
        """Names of the nodes whose values this one reads, in order, repeated where read twice."""
        for arg in self.args:
            yield from refs_of(arg)
        for arg in self.kwargs.values():
            yield from refs_of(arg)


@attrs.define
class InputSpec:
    """What an input of the graph is: `kind` is one of `INPUT_KINDS`, `fqn` its name in the model."""

    kind: str
    fqn: str | None = None


@attrs.define
class Graph:
    """Nodes in execution order with what the export says of them.

    `inputs` describes placeholders and get_attr constants by node name, `ranges` gives a symbol's least and
    greatest value (None: unbounded), `guards` are Python conditions as text, `subgraphs` the bodies of
    higher-order ops by the target of their get_attr node.
    """

    nodes: list[Node]
    source: str = ""
    rank: int | None = None
    config: dict[str, Any] = attrs.field(factory=dict)
    inputs: dict[str, InputSpec] = attrs.field(factory=dict)
    ranges: dict[str, Interval] = attrs.field(factory=dict)
    guards: tuple[str, ...] = ()
    subgraphs: dict[str, Graph] = attrs.field(factory=dict)
    path: str | None = attrs.field(default=None, eq=False)
    _index: dict[str, Node] | None = attrs.field(default=None, init=False, eq=False, repr=False)

    def __repr__(self) -> str:
        """Where the graph is from and its size; the nodes are in `nodes`."""
        inputs = sum(node.op == "placeholder" for node in self.nodes)
        rank = "" if self.rank is None else f", rank {self.rank}"
        return f"<Graph {self.path or self.source or 'in memory'}: {len(self.nodes)} nodes, {inputs} inputs{rank}>"

    def node(self, name: str) -> Node:
        """The node of this name. Raises KeyError."""
        if self._index is None or len(self._index) != len(self.nodes):
            self._index = {node.name: node for node in self.nodes}
        return self._index[name]

    @property
    def output(self) -> Node:
        """The output node. Raises InputError where there is none."""
        for node in reversed(self.nodes):
            if node.op == "output":
                return node
        raise InputError("the graph has no output node", self.path)

    def validate(self) -> Graph:
        """Check the structure and return the graph itself.

        Raises InputError naming the node: duplicate names, references to nodes that are missing or come later
        (so cycles), no or several outputs, unknown ops, oversized names or nesting.
        """
        self._validate(0)
        return self

    def _validate(self, depth: int) -> None:
        if depth > MAX_NESTING:
            raise InputError("subgraphs nested too deeply", self.path)
        if len(self.nodes) > MAX_NODES:
            raise InputError(f"the graph has more than {MAX_NODES} nodes", self.path)
        seen: set[str] = set()
        outputs = 0
        for node in self.nodes:
            name = node.name
            if node.op not in OPS:
                raise self._bad(node, f"unknown op {node.op!r}")
            if outputs:
                what = "a second output" if node.op == "output" else "a node after the output"
                raise self._bad(node, what)
            if not name or len(name) > MAX_NAME or len(node.target) > MAX_NAME:
                raise self._bad(node, "an empty or oversized name")
            for ref in node.refs():
                if ref not in seen:
                    raise self._bad_ref(node, ref)
            if name in seen:
                raise self._bad(node, "the name stands twice")
            seen.add(name)
            outputs += node.op == "output"
        if not outputs:
            raise InputError("the graph has no output node", self.path)
        for graph in self.subgraphs.values():
            graph._validate(depth + 1)

    def _bad(self, node: Node, message: str) -> InputError:
        where = f"node {node.name[:80]!r}"
        return InputError(message, f"{self.path}: {where}" if self.path else where)

    def _bad_ref(self, node: Node, ref: str) -> InputError:
        if ref == node.name:
            return self._bad(node, "it reads itself")
        if any(other.name == ref for other in self.nodes):
            return self._bad(
                node, f"it reads {ref[:80]!r}, which comes later (a cycle, or not in execution order)"
            )
        return self._bad(node, f"it reads {ref[:80]!r}, which is no node")


def refs_of(arg: object, depth: int = 0) -> Iterator[str]:
    """Names of the nodes in one argument. Raises InputError for nesting deeper than 50."""
    if type(arg) is Ref:
        yield arg.name
    elif type(arg) is tuple:
        if depth > MAX_NESTING:
            raise InputError(f"arguments nested deeper than {MAX_NESTING}")
        for item in arg:
            yield from refs_of(item, depth + 1)
    elif type(arg) is DictArg:
        if depth > MAX_NESTING:
            raise InputError(f"arguments nested deeper than {MAX_NESTING}")
        for _, item in arg.items:
            yield from refs_of(item, depth + 1)


_BUILTIN = re.compile(r"<(?:built-in function|slot wrapper) '?([A-Za-z_]\w*)'?.*>\Z")
_FUNCTION = re.compile(r"<function (_?sym_\w+) at 0x[0-9a-f]+>\Z")
_MATH = frozenset({"ceil", "floor", "trunc", "sqrt"})


def normalize_target(text: str) -> str:
    """One spelling of a call's target, whatever the exporter wrote.

    `torch.ops.aten.view.default` -> `aten.view.default`, `_operator.add` and `<built-in function add>` ->
    `operator.add`, `<function sym_min at 0x..>` -> `torch.sym_min`, higher-order ops by their bare name.
    """
    if text.startswith("torch.ops."):
        text = text[10:]
        return text[13:] if text.startswith("higher_order.") else text
    if text.startswith("_operator."):
        return text[1:]
    if text.startswith("<"):
        match = _BUILTIN.match(text)
        if match:
            return f"math.{match[1]}" if match[1] in _MATH else f"operator.{match[1]}"
        match = _FUNCTION.match(text)
        if match:
            return f"torch.{match[1]}"
    return text


_ROOT = re.compile(r"(?:L\['\w+'\](?:\[\d+\])?|L__self__)(?:\.|\Z)")


def module_path(text: str) -> str:
    """A module's path without what tracers put in front of it: `L['self'].model.norm` -> `model.norm`."""
    match = _ROOT.match(text)
    return text[match.end() :] if match else text


def dtype_name(text: str) -> str | None:
    """`float32` of `torch.float32`, or None where the text names no dtype."""
    name = text[6:] if text.startswith("torch.") else None
    return name if name in DTYPES else None


_DTYPES = (
    "bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 uint1 uint2 uint3 uint4 uint5 uint6 uint7 "
    "int1 int2 int3 int4 int5 int6 int7 float16 bfloat16 float32 float64 complex32 complex64 complex128 "
    "float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2 "
    "qint8 quint8 qint32 quint4x2 quint2x4 bits1x8 bits2x4 bits4x2 bits8 bits16"
)
DTYPES = frozenset(_DTYPES.split())
"""torch's dtypes, by name."""
