"""A graph as flat arrays for inference.

getitem nodes are folded into the outputs that they read, `auto_functionalized` wrappers into the op that they wrap. Every call
is interned as an op instance, its arguments with holes for inputs, so that equal calls on equal layouts are typed once.
"""

from __future__ import annotations

import re
from typing import Any

import attrs

from layoutcheck.arguments import Hole
from layoutcheck.errors import InputError
from layoutcheck.graph import Graph, Node, Ref
from layoutcheck.rules.rulebook import RuleBook
from layoutcheck.rules.types import Rule

_OVERLOAD = re.compile(r"op='([^']+)'(?:, overload='([^']*)')?")
_WRAPPERS = ("auto_functionalized_v2", "auto_functionalized")

PLACEHOLDER, CALL, OUTPUT, UNKNOWN, REGION_BEGIN, REGION_END, REGION_COPY = range(7)


@attrs.define
class OpInstance:
    """A target with bound arguments, holes in the place of inputs. `error` is why they could not be bound.

    `read` counts the outputs that getitem nodes read: one more than the largest index, 0 where there are none.
    """

    target: str
    rule: Rule | None
    params: dict[str, Any]
    n_inputs: int
    returns: int
    error: str | None = None
    bases: tuple[int, ...] = ()
    read: int = 0


@attrs.define
class Program:
    """Calls in order. Values are numbered; call k reads `inputs[k]` and writes values `first[k] .. first[k] + outs[k] - 1`."""

    graph: Graph
    nodes: list[Node]
    kind: list[int]
    op: list[int]
    inputs: list[tuple[int, ...]]
    first: list[int]
    outs: list[int]
    instances: list[OpInstance]
    value_call: list[int]
    value_names: dict[int, str]
    by_name: dict[str, int]
    node_call: dict[str, int]
    aliases: dict[int, int]

    def __repr__(self) -> str:
        return f"<Program of {self.graph!r}: {len(self.kind)} calls, {self.n_values} values>"

    @property
    def n_values(self) -> int:
        """Number of values."""
        return len(self.value_call)

    def name_of(self, value: int) -> str:
        """The name by which a value is known: its getitem node's, else its node's."""
        name = self.value_names.get(value)
        if name is not None:
            return name
        call = self.value_call[value]
        node = self.nodes[call].name
        at = value - self.first[call]
        return node if self.outs[call] == 1 else f"{node}[{at}]"


class _Template:
    """Arguments with holes; collects the inputs."""

    __slots__ = ("inputs", "lookup")

    def __init__(self, lookup: dict[str, int]) -> None:
        self.lookup = lookup
        self.inputs: list[int] = []

    def of(self, arg: Any) -> Any:
        if isinstance(arg, Ref):
            value = self.lookup[arg.name]
            self.inputs.append(value)
            return Hole(len(self.inputs) - 1)
        if isinstance(arg, (tuple, list)):
            return tuple([self.of(a) for a in arg])
        return arg


def _shared_holes(template: Any, inputs: list[int]) -> tuple[Any, tuple[int, ...]]:
    """Inputs read twice keep two slots: which argument an input is matters more than its identity."""
    return template, tuple(inputs)


def _unwrap(node: Node) -> tuple[str, dict[str, Any], list[Any]]:
    """The wrapped op, its arguments and the mutated bases of an `auto_functionalized` node."""
    operator = node.args[0] if node.args else node.kwargs.get("_mutable_op")
    text = getattr(operator, "text", operator if isinstance(operator, str) else "")
    found = _OVERLOAD.search(text or "")
    name = (
        f"{found.group(1)}.{found.group(2) or 'default'}" if found else (text or "").strip() or "unknown.op"
    )
    name = name.replace("::", ".").removeprefix("torch.ops.")
    kwargs: dict[str, Any] = {}
    given = node.kwargs.get("_all_bases", ())
    bases: list[Any] = list(given) if isinstance(given, (list, tuple)) else []
    for key, value in node.kwargs.items():
        if key in ("_all_bases", "_mutable_op"):
            continue
        if key.startswith("_") and key.endswith("_base_index"):
            param = key[1 : -len("_base_index")]
            if isinstance(value, int) and 0 <= value < len(bases):
                kwargs[param] = bases[value]
            continue
        if key.startswith("_") and (
            "_length" in key or "_slice" in key or "_size" in key or "_stride" in key or "_alias" in key
        ):
            continue
        kwargs[key] = value
    return name, kwargs, bases


def _hashable(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple([_hashable(v) for v in value])
    if isinstance(value, float):
        return ("float", repr(value))
    if isinstance(value, bool):
        return ("bool", value)
    return value


class _Builder:
    def __init__(self, graph: Graph, book: RuleBook) -> None:
        self.graph, self.book = graph, book
        self.program = Program(graph, [], [], [], [], [], [], [], [], {}, {}, {}, {})
        self.table: dict[Any, int] = {}
        self.multi: dict[str, tuple[int, int]] = {}
        self.rules: dict[str, Rule | None] = {}
        self.regions = {"region_begin": REGION_BEGIN, "region_end": REGION_END, "region_copy": REGION_COPY}

    def build(self) -> Program:
        p = self.program
        readers = _getitem_counts(self.graph)
        for node in self.graph.nodes:
            if node.op == "call_function" and node.target == "operator.getitem" and self._getitem(node):
                continue
            call = len(p.nodes)
            p.nodes.append(node)
            p.node_call[node.name] = call
            if node.op == "call_function":
                self._call(node, call, readers.get(node.name, 0))
            elif node.op == "output":
                template = _Template(p.by_name)
                args = template.of(node.args)
                del args
                self._add(OUTPUT, -1, tuple(template.inputs), 0, node)
            else:
                self._add(PLACEHOLDER, -1, (), 1, node)
                p.by_name[node.name] = p.first[call]
        return p

    def _add(self, kind: int, op: int, inputs: tuple[int, ...], outs: int, node: Node) -> None:
        p = self.program
        call = len(p.kind)
        p.kind.append(kind)
        p.op.append(op)
        p.inputs.append(inputs)
        p.first.append(len(p.value_call))
        p.outs.append(outs)
        p.value_call.extend([call] * outs)
        del node

    def _getitem(self, node: Node) -> bool:
        args = node.args
        if len(args) != 2 or not isinstance(args[0], Ref) or not isinstance(args[1], int):
            return False
        source = self.multi.get(args[0].name)
        if source is None:
            return False
        first, count = source
        index = args[1] + count if args[1] < 0 else args[1]
        if not 0 <= index < count:
            raise InputError(f"reads output {args[1]} of {args[0].name}, which has {count}", where=node.name)
        value = first + index
        self.program.by_name[node.name] = value
        self.program.value_names.setdefault(value, node.name)
        return True

    def _rule(self, target: str) -> Rule | None:
        try:
            return self.rules[target]
        except KeyError:
            found = self.rules[target] = self.book.lookup(target)
            return found

    def _call(self, node: Node, call: int, read: int) -> None:
        p = self.program
        target = node.target
        args: tuple[Any, ...] = tuple(node.args)
        kwargs: dict[str, Any] = node.kwargs
        bases: list[Any] = []
        wrapped = target in _WRAPPERS
        if wrapped:
            target, kwargs, bases = _unwrap(node)
            args = ()
        template = _Template(p.by_name)
        try:
            held_args = template.of(args)
            held_kwargs = {k: template.of(v) for k, v in kwargs.items()} if kwargs else {}
            base_slots = []
            for base in bases:
                hole = template.of(base)
                base_slots.append(hole.slot if isinstance(hole, Hole) else -1)
        except KeyError as error:
            raise InputError(
                f"reads {error.args[0]}, which is not defined before it", where=node.name
            ) from None
        recorded = len(node.meta) if isinstance(node.meta, tuple) else 1
        own_read = read
        if wrapped:
            # The mutated bases come behind the op's own outputs, of which there is at least a None.
            recorded, own_read = max(recorded - len(bases), 1), 0
        try:
            key = (
                target,
                _hashable(held_args),
                tuple([(k, _hashable(v)) for k, v in held_kwargs.items()]),
                recorded,
                own_read,
                wrapped,
            )
            index = self.table.get(key)
        except TypeError:
            key, index = None, None
        if index is None:
            instance = self._instance(
                target, held_args, held_kwargs, len(template.inputs), recorded, own_read
            )
            instance.bases = tuple(base_slots)
            index = len(p.instances)
            p.instances.append(instance)
            if key is not None:
                self.table[key] = index
        instance = p.instances[index]
        outs = instance.returns
        if wrapped:
            outs = max(outs, 1) + len(bases)
        kind = UNKNOWN if instance.rule is None or instance.error else CALL
        if instance.rule is not None and instance.rule.kind == "code":
            kind = self.regions.get(instance.rule.code or "", kind)
        self._add(kind, index, tuple(template.inputs), outs, node)
        first = p.first[call]
        if outs == 1 and read == 0:
            p.by_name[node.name] = first
        else:
            self.multi[node.name] = (first, outs)
            p.by_name[node.name] = first

    def _instance(
        self, target: str, args: Any, kwargs: dict[str, Any], n_inputs: int, recorded: int, read: int
    ) -> OpInstance:
        rule = self._rule(target)
        if rule is None:
            return OpInstance(target, None, {}, n_inputs, max(recorded, read, 1))
        try:
            params = rule.bind(args, kwargs)
        except InputError as error:
            # The same op under another library's parameter names: go by order.
            values = [*args, *kwargs.values()][: len(rule.params)]
            try:
                params = rule.bind(values, {})
            except InputError:
                return OpInstance(target, rule, {}, n_inputs, max(recorded, read, 1), error=error.message)
        returns = self._returns(rule, params, recorded, read)
        return OpInstance(target, rule, params, n_inputs, returns, read=read)

    def _returns(self, rule: Rule, params: dict[str, Any], recorded: int, read: int) -> int:
        if rule.kind == "factors":
            inserted = sum(1 + ("offset" in options) for name, options in rule.then if name == "quantize")
            return max(len(rule.outputs) + inserted, 1)
        return max(recorded, read, 1)


def _getitem_counts(graph: Graph) -> dict[str, int]:
    """How many outputs of each node are read by getitem: one more than the largest index."""
    counts: dict[str, int] = {}
    for node in graph.nodes:
        if node.target == "operator.getitem" and node.op == "call_function" and len(node.args) == 2:
            source, index = node.args
            if isinstance(source, Ref) and isinstance(index, int) and not isinstance(index, bool):
                n = index + 1 if index >= 0 else 1
                if n > counts.get(source.name, 0):
                    counts[source.name] = n
    return counts


def build_program(graph: Graph, book: RuleBook) -> Program:
    """Flatten a graph.

    Raises:
        InputError: a reference to a node that is not defined before it, or a getitem out of range.
    """
    return _Builder(graph, book).build()
