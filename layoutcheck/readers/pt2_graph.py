"""torch.export's JSON graph as a `Graph`: one node a call, getitem nodes where a call has several outputs.

Follows the schema of torch.export (`torch/_export/serde/schema.py`, major version 8; older ones differ
only in what they leave out).
"""

from __future__ import annotations

from typing import Any

from layoutcheck.errors import InputError
from layoutcheck.graph import (
    MAX_NAME,
    MAX_NESTING,
    Arg,
    Graph,
    InputSpec,
    Meta,
    Node,
    SymMeta,
    TensorMeta,
    normalize_target,
)
from layoutcheck.readers.pt2_args import ArgumentReader
from layoutcheck.readers.pt2_values import (
    Values,
    as_dict,
    as_list,
    as_name,
    as_text,
    name_of,
    ranges_of,
    sym_values,
)

_INPUT_KINDS = {
    "parameter": ("parameter", "parameter_name"),
    "buffer": ("buffer", "buffer_name"),
    "tensor_constant": ("constant", "tensor_constant_name"),
    "custom_obj": ("constant", "custom_obj_name"),
    "constant_input": ("constant", None),
    "user_input": ("user_input", None),
    "token": ("unknown", None),
}


def program_from_json(document: Any, path: str | None = None) -> Graph:
    """The graph of an archive's JSON. Raises InputError naming the place."""
    program = as_dict(document, "the file")
    module = as_dict(program.get("graph_module"), "graph_module")
    specs, order = _input_specs(as_dict(module.get("signature"), "graph_module.signature"))
    reader = _Reader(Values(), 0)
    graph = reader.graph(module.get("graph"), "graph_module.graph", order)
    for node in graph.nodes:
        if node.op == "placeholder":
            graph.inputs[node.name] = specs.get(node.name) or InputSpec("unknown")
    graph.ranges = ranges_of(program.get("range_constraints") or {}, "range_constraints")
    guards = as_list(program.get("guards_code") or [], "guards_code")
    graph.guards = tuple(as_text(x, f"guards_code[{i}]") for i, x in enumerate(guards))
    version = program.get("torch_version")
    graph.source = f"torch.export {version}" if type(version) is str else "torch.export"
    graph.path = path
    return graph.validate()


def _input_specs(signature: dict[str, Any]) -> tuple[dict[str, InputSpec], list[str | None]]:
    """What each input is, by placeholder name, and the placeholders' names in order."""
    specs: dict[str, InputSpec] = {}
    order: list[str | None] = []
    at = "graph_module.signature.input_specs"
    for i, value in enumerate(as_list(signature.get("input_specs"), at)):
        place = f"{at}[{i}]"
        item = as_dict(value, place)
        known = next((k for k in _INPUT_KINDS if item.get(k) is not None), None)
        if known is None:
            order.append(None)
            continue
        kind, key = _INPUT_KINDS[known]
        content = as_dict(item[known], f"{place}.{known}")
        name = content.get("name")
        arg = content.get("arg")
        while name is None and type(arg) is dict and len(arg) > 0:
            # {"name": x}, or wrapped once more: {"as_tensor": {"name": x}}, {"as_sym_int": {"as_name": x}}.
            name = arg.get("name") or arg.get("as_name")
            arg = next(iter(arg.values()))
        fqn = None if key is None else as_text(content.get(key), f"{place}.{known}.{key}")
        if name is None:
            order.append(None)
            continue
        order.append(as_name(name, f"{place}.{known}.name"))
        specs[name] = InputSpec(kind, fqn)
    return specs, order


class _Reader(ArgumentReader):
    """Reads one graph (a subgraph gets a reader of its own)."""

    def __init__(self, values: Values, depth: int) -> None:
        super().__init__()
        self.values = values
        self.depth = depth
        self.nodes: list[Node] = []
        self.names: set[str] = set()
        self.syms: dict[str, SymMeta] = {}
        self.metas: dict[str, TensorMeta] = {}
        self.subgraphs: dict[str, Graph] = {}

    def graph(self, value: Any, at: str, order: list[str | None]) -> Graph:
        if self.depth > MAX_NESTING:
            raise InputError("subgraphs nested too deeply", at)
        item = as_dict(value, at)
        self.syms = sym_values(item.get("sym_int_values") or {}, f"{at}.sym_int_values")
        place = f"{at}.tensor_values"
        tensor = self.values.tensor
        for name, meta in as_dict(item.get("tensor_values"), place).items():
            self.metas[name] = tensor(meta, f"{place}[{name[:80]!r}]")
        for i, argument in enumerate(as_list(item.get("inputs"), f"{at}.inputs")):
            self.placeholder(argument, f"{at}.inputs[{i}]", i, order[i] if i < len(order) else None)
        nodes = as_list(item.get("nodes"), f"{at}.nodes")
        # Generated names must not take one that a later node carries.
        for i, node in enumerate(nodes):
            own = as_dict(node, f"{at}.nodes[{i}]").get("name")
            if type(own) is str:
                self.names.add(own)
        self.names.update(self.metas, self.syms)
        for i, node in enumerate(nodes):
            self.call(node, f"{at}.nodes[{i}]")
        outputs = as_list(item.get("outputs"), f"{at}.outputs")
        results = tuple(self.arg(x, f"{at}.outputs[{i}]") for i, x in enumerate(outputs))
        single = item.get("is_single_tensor_return") is True and len(results) == 1
        self.add(Node(self.fresh("output"), "output", "output", (results[0] if single else results,)))
        return Graph(self.nodes, subgraphs=self.subgraphs)

    def fresh(self, stem: str) -> str:
        """A name that no value has."""
        stem = stem[: MAX_NAME - 12]
        name, count = stem, 0
        while name in self.names:
            count += 1
            name = f"{stem}_{count}"
        self.names.add(name)
        return name

    def add(self, node: Node) -> None:
        self.nodes.append(node)

    def meta(self, name: str) -> Meta:
        return self.metas.get(name) or self.syms.get(name)

    def placeholder(self, value: Any, at: str, index: int, name: str | None) -> None:
        item = as_dict(value, at)
        for key in ("as_tensor", "as_custom_obj"):
            if item.get(key) is not None:
                name = name_of(item[key], f"{at}.{key}")
        symbol = item.get("as_sym_int")
        if type(symbol) is dict and symbol.get("as_name") is not None:
            name = as_name(symbol["as_name"], f"{at}.as_sym_int.as_name")
        if name is None:
            name = self.fresh(f"input_{index}")
        self.add(Node(name, "placeholder", name, meta=self.meta(name)))

    def call(self, value: Any, at: str) -> None:
        item: dict[str, Any] = value
        target = item.get("target")
        inputs, outputs = item.get("inputs"), item.get("outputs")
        if type(target) is not str or len(target) > MAX_NAME:
            raise InputError("no target", f"{at}.target")
        if type(inputs) is not list or type(outputs) is not list:
            where = "inputs" if type(inputs) is not list else "outputs"
            raise InputError("a list belongs here", f"{at}.{where}")
        args: list[Arg] = []
        kwargs: dict[str, Arg] = {}
        for i, argument in enumerate(inputs):
            if type(argument) is not dict or type(argument.get("name")) is not str:
                raise InputError("no named argument", f"{at}.inputs[{i}]")
            name = argument["name"]
            content = self.arg(argument.get("arg"), f"{at}.inputs[{i}].arg")
            # Higher-order ops have no schema, so their arguments no names.
            if name:
                kwargs[name] = content
            else:
                args.append(content)
        metadata = item.get("metadata") or {}
        if type(metadata) is not dict:
            raise InputError("an object belongs here", f"{at}.metadata")
        location = self.values.location(metadata.get("stack_trace"), f"{at}.metadata.stack_trace")
        module = self.values.module(metadata.get("nn_module_stack"), f"{at}.metadata.nn_module_stack")
        target = normalize_target(target)
        made = Node("", "call_function", target, tuple(args), kwargs, None, location, *module)
        own = item.get("name")
        name = None if own is None else as_name(own, f"{at}.name")
        single = self.single(outputs, item.get("is_hop_single_tensor_return"), at)
        if single is not None:
            made.name = single
            made.meta = self.meta(single)
            self.add(made)
            return
        made.name = name if name is not None else self.fresh(target.split(".")[-2 if "." in target else -1])
        self.add(made)
        if outputs:
            flat = len(outputs) == 1 and type(outputs[0]) is dict and outputs[0].get("as_tensors") is not None
            items = self.tensor_list(outputs[0]["as_tensors"], f"{at}.outputs[0]") if flat else outputs
            made.meta = self.outputs(made, items, at, 0)

    def single(self, outputs: list[Any], hop_single: Any, at: str) -> str | None:
        """Name of the one output that the call itself is, or None where getitem nodes read its outputs."""
        if len(outputs) != 1 or hop_single is False:
            return None
        item = as_dict(outputs[0], f"{at}.outputs[0]")
        for key, content in item.items():
            if key in ("as_tensor", "as_custom_obj"):
                return name_of(content, f"{at}.outputs[0].{key}")
            if key in ("as_sym_int", "as_sym_float", "as_sym_bool"):
                place = f"{at}.outputs[0].{key}"
                return as_name(as_dict(content, place).get("as_name"), f"{place}.as_name")
        return None

    def tensor_list(self, value: Any, at: str) -> list[Any]:
        return [{"as_tensor": x} for x in as_list(value, f"{at}.as_tensors")]

    def outputs(self, source: Node, items: list[Any], at: str, depth: int) -> Meta:
        """Add a getitem node for each output of `source`; the metadata of them all."""
        metas: list[Meta] = []
        for i, value in enumerate(items):
            place = f"{at}.outputs[{i}]"
            item = as_dict(value, place)
            name: str | None = None
            inner: list[Any] | None = None
            for key, content in item.items():
                if content is None:
                    continue
                if key in ("as_tensor", "as_custom_obj"):
                    name = name_of(content, f"{place}.{key}")
                elif key in ("as_sym_int", "as_sym_float", "as_sym_bool"):
                    name = as_dict(content, place).get("as_name")
                elif key == "as_optional_tensor" and type(content) is dict and content.get("as_tensor"):
                    name = name_of(content["as_tensor"], f"{place}.{key}")
                elif key == "as_tensors":
                    inner = self.tensor_list(content, place)
            if name is None and inner is None:
                # None, or a literal: nothing can read it.
                metas.append(None)
                continue
            own = self.fresh(f"{source.name}_{i}") if name is None else as_name(name, place)
            node = Node(own, "call_function", "operator.getitem", (self.ref(source.name), i))
            node.location, node.module, node.module_type = source.location, source.module, source.module_type
            self.add(node)
            node.meta = self.meta(own) if inner is None else self.outputs(node, inner, at, depth + 1)
            metas.append(node.meta)
        return tuple(metas)

    def body(self, value: Any, at: str) -> Arg:
        name = name_of(value, at)
        if name not in self.subgraphs:
            inner = _Reader(self.values, self.depth + 1)
            self.subgraphs[name] = inner.graph(value.get("graph"), f"{at}.graph", [])
            self.add(Node(name, "get_attr", name))
        return self.ref(name)
