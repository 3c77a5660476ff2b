"""torch.fx graphs and exported programs in process. torch is imported only when one is read."""

from __future__ import annotations

import operator
from typing import Any

from layoutcheck.errors import InputError
from layoutcheck.graph import (
    MAX_NESTING,
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
    module_path,
    normalize_target,
)
from layoutcheck.readers.pt2_values import NO_STACK, parse_trace
from layoutcheck.sizes.text import parse_size
from layoutcheck.symbols import Interval, Size

_UNBOUNDED = 1 << 62


def from_fx(source: Any, rank: int | None = None) -> Graph:
    """The graph of a `torch.fx.GraphModule`, a `torch.fx.Graph` or a `torch.export.ExportedProgram`.

    Shapes come from the fake tensors in `node.meta`, where present. `rank` is the rank it was traced on.
    Raises InputError for other objects and for graphs that are not well formed.
    """
    reader = _Reader()
    if hasattr(source, "graph_module") and hasattr(source, "graph_signature"):
        graph = reader.graph(source.graph_module, 0)
        kinds = _signature_inputs(source.graph_signature)
        for node in graph.nodes:
            if node.op == "placeholder":
                graph.inputs[node.name] = kinds.get(node.name) or InputSpec("unknown")
        graph.ranges = {str(k): _range(v) for k, v in source.range_constraints.items()}
        graph.guards = tuple(str(x) for x in getattr(source, "_guards_code", None) or ())
        graph.source = "torch.export"
    elif hasattr(source, "graph") or hasattr(source, "nodes"):
        graph = reader.graph(source, 0)
        owns = any(spec.kind == "parameter" for spec in graph.inputs.values())
        for node in graph.nodes:
            if node.op == "placeholder":
                # Where the weights are attributes, what is left are the user's inputs.
                graph.inputs[node.name] = InputSpec("user_input" if owns else "unknown")
        graph.ranges = reader.shape_ranges()
        graph.source = "torch.fx"
    else:
        raise InputError(f"a {type(source).__name__} is neither a GraphModule nor an ExportedProgram")
    graph.rank = rank
    return graph.validate()


def _signature_inputs(signature: Any) -> dict[str, InputSpec]:
    kinds = {"PARAMETER": "parameter", "BUFFER": "buffer", "USER_INPUT": "user_input"}
    kinds |= {"CONSTANT_TENSOR": "constant", "CUSTOM_OBJ": "constant"}
    found: dict[str, InputSpec] = {}
    for spec in signature.input_specs:
        kind = kinds.get(spec.kind.name, "unknown")
        if type(spec.arg).__name__ == "ConstantArgument":
            kind = "constant"
        found[spec.arg.name] = InputSpec(kind, spec.target)
    return found


def _range(value: Any) -> Interval:
    ends: list[int | None] = []
    for end in (value.lower, value.upper):
        try:
            number = int(end)
        except (TypeError, ValueError, OverflowError, AttributeError):
            number = _UNBOUNDED
        ends.append(None if abs(number) >= _UNBOUNDED else number)
    return ends[0], ends[1]


class _Reader:
    def __init__(self) -> None:
        self.sizes: dict[Any, Size] = {}
        self.locations: dict[str, Location | None] = {}
        self.shape_env: Any = None

    def graph(self, module: Any, depth: int) -> Graph:
        if depth > MAX_NESTING:
            raise InputError("subgraphs nested too deeply")
        fx_graph = getattr(module, "graph", module)
        out = Graph([])
        for node in fx_graph.nodes:
            if node.op == "call_module" and not node.users:
                # `ExportedProgram.module()` puts a check of its inputs in front; it yields nothing.
                continue
            made = self.node(node, module)
            out.nodes.append(made)
            if node.op == "get_attr":
                value = _attribute(module, node.target)
                if hasattr(value, "graph"):
                    if node.target not in out.subgraphs:
                        out.subgraphs[node.target] = self.graph(value, depth + 1)
                else:
                    out.inputs[node.name] = InputSpec(
                        _attribute_kind(module, node.target, value), node.target
                    )
                    if made.meta is None:
                        made.meta = self.meta(value)
        return out

    def node(self, node: Any, module: Any) -> Node:
        op, target = node.op, node.target
        made = Node(node.name, op, str(target))
        made.args = tuple(self.arg(x, 0) for x in node.args)
        made.kwargs = {k: self.arg(x, 0) for k, x in node.kwargs.items()}
        if op == "call_function":
            made.target = target_name(target)
        elif op == "call_method":
            made.op, made.target = "call_function", f"torch.Tensor.{target}"
        elif op == "call_module":
            made.op, made.target = "call_function", _type_name(type(_attribute(module, target)))
        meta = node.meta
        for key in ("val", "example_value", "tensor_meta"):
            if meta.get(key) is not None:
                value = meta[key]
                # A number that a placeholder was specialised to is no size that the graph computes.
                plain = op == "placeholder" and isinstance(value, (bool, int, float, str))
                made.meta = None if plain else self.meta(value)
                break
        trace = meta.get("stack_trace")
        if isinstance(trace, str):
            if trace not in self.locations:
                self.locations[trace] = parse_trace(trace)
            made.location = self.locations[trace]
        stack = meta.get("nn_module_stack")
        if isinstance(stack, dict) and stack:
            key = next(reversed(stack))
            entry = stack[key]
            if key != NO_STACK and isinstance(entry, tuple) and len(entry) == 2:
                made.module = module_path(str(entry[0]))
                made.module_type = _type_name(entry[1])
        return made

    def arg(self, value: Any, depth: int) -> Arg:
        if value is None or type(value) in (bool, int, float, str):
            literal: Arg = value
            return literal
        if depth > MAX_NESTING:
            raise InputError(f"arguments nested deeper than {MAX_NESTING}")
        if isinstance(value, (list, tuple)):
            return tuple(self.arg(x, depth + 1) for x in value)
        if isinstance(value, dict):
            return DictArg(tuple((str(k), self.arg(x, depth + 1)) for k, x in value.items()))
        if isinstance(value, slice):
            ends = (("start", value.start), ("stop", value.stop), ("step", value.step))
            return DictArg(tuple((k, self.arg(x, depth + 1)) for k, x in ends))
        import torch

        if isinstance(value, torch.fx.Node):
            return Ref(value.name)
        if isinstance(value, torch.dtype):
            return DtypeArg(str(value).removeprefix("torch."))
        if isinstance(value, torch.SymInt):
            return self.size(value)
        if isinstance(value, (torch.device, torch.layout, torch.memory_format)):
            return Other(str(value))
        return Other(repr(value)[:4096])

    def size(self, value: Any) -> Size:
        """The size that a SymInt or an int is."""
        if isinstance(value, int):
            return value
        node = value.node
        expr = node.expr
        found = self.sizes.get(expr)
        if found is None:
            import sympy

            if self.shape_env is None:
                self.shape_env = getattr(node, "shape_env", None)
            found = self.sizes[expr] = parse_size(sympy.srepr(expr))
        return found

    def meta(self, value: Any) -> Meta:
        if isinstance(value, bool) or value is None:
            return None
        if isinstance(value, int):
            return SymMeta(value)
        if hasattr(value, "shape") and hasattr(value, "dtype"):
            sizes = tuple(self.size(x) for x in value.shape)
            return TensorMeta(sizes, str(value.dtype).removeprefix("torch."))
        if isinstance(value, (list, tuple)):
            return tuple(self.meta(x) for x in value)
        if type(value).__name__ == "SymInt":
            return SymMeta(self.size(value))
        return None

    def shape_ranges(self) -> dict[str, Interval]:
        known = getattr(self.shape_env, "var_to_range", None) or {}
        return {str(k): _range(v) for k, v in known.items()}


def target_name(target: Any) -> str:
    """Normalised name of what a call_function node calls."""
    kind = type(target).__name__
    if kind in ("OpOverload", "OpOverloadPacket"):
        return normalize_target(
            f"torch.ops.{target}" if not str(target).startswith("torch.ops.") else str(target)
        )
    if hasattr(target, "_name") and "HigherOrder" in "".join(x.__name__ for x in type(target).__mro__):
        return str(target.__name__)
    name = getattr(target, "__name__", None)
    if name is None:
        return str(target)
    if getattr(operator, name, None) is target:
        return f"operator.{name}"
    module = str(getattr(target, "__module__", None) or "")
    if name.lstrip("_").startswith("sym_") and module.startswith("torch"):
        return f"torch.{name}"
    return f"{module}.{name}" if module else normalize_target(str(target))


def _attribute(module: Any, path: str) -> Any:
    for part in str(path).split("."):
        module = getattr(module, part, None)
    return module


def _attribute_kind(module: Any, path: str, value: Any) -> str:
    if type(value).__name__ == "Parameter":
        return "parameter"
    owner, _, name = str(path).rpartition(".")
    holder = _attribute(module, owner) if owner else module
    return "buffer" if name in (getattr(holder, "_buffers", None) or {}) else "constant"


def _type_name(kind: Any) -> str:
    return kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
