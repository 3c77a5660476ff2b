"""A graph as interned calls, to compare calls with each other fast.

A call's key is its target with its literal arguments; what it reads are numbers of values. Reads of one output of several (getitem)
are folded into that number. Keys are the same for calls that differ in names only, also across graphs that share a `Keys`.
"""

from __future__ import annotations

from typing import Any

import attrs

from layoutcheck.errors import InputError
from layoutcheck.graph import DictArg, DtypeArg, Graph, Node, Ref
from layoutcheck.regions.fusion import GETITEM
from layoutcheck.regions.fusion_rules import FusionBook
from layoutcheck.rules.rulebook import RuleBook

OUTS = 1 << 16
"""Values are numbered `call * OUTS + out`: out 0 is the call's result as it is, out j + 1 its j-th output."""

INPUT, OUTPUT = -1, -2


class _Hole:
    """The place of a value among the literals."""

    def __repr__(self) -> str:
        return "%"


HOLE = _Hole()


@attrs.define
class KeyInfo:
    """A key's target and literals, the order of its reads after binding, and which two of these may be swapped.

    Calls that differ in spelling only have the same `canonical` number. `bound` says whether the arguments fit the op's
    rule; then the literals are pairs of a parameter and its value."""

    target: str
    literals: tuple[Any, ...]
    order: tuple[int, ...]
    swap: tuple[int, int] | None = None
    canonical: int = 0
    bound: bool = False


class Keys:
    """Interned keys."""

    def __init__(self, book: RuleBook, fusion: FusionBook | None = None) -> None:
        self.book = book
        self.fusion = FusionBook.load() if fusion is None else fusion
        self.infos: list[KeyInfo] = []
        self._raw: dict[Any, int] = {}
        self._bound: dict[Any, int] = {}  # canonical numbers

    def key(self, node: Node, refs: list[str]) -> int:
        """The key of a call; the names that it reads are appended to `refs`, in the order of its arguments.

        Raises:
            InputError: an argument is a list or another thing that can change, which only a graph made in memory can have.
        """
        parts: list[Any] = [node.target]
        for arg in node.args:
            parts.append(_literal(arg, refs))
        if node.kwargs:
            for name, arg in node.kwargs.items():
                parts.append((name, _literal(arg, refs)))
            parts.append(len(node.args))
        raw = tuple(parts)
        try:
            found = self._raw.get(raw)
        except TypeError:
            raise InputError(f"has an argument that no graph has: {_foreign(raw)!r}", node.name) from None
        if found is None:
            found = self._raw[raw] = self._intern(node, raw, len(refs))
        return found

    def _intern(self, node: Node, raw: Any, count: int) -> int:
        rule = self.book.lookup(node.target)
        info = KeyInfo(node.target, raw[1:], tuple(range(count)))
        bound_key: Any = ("raw", raw)
        if rule is not None:
            numbers = iter(range(count))
            args = tuple([_numbered(a, numbers) for a in node.args])
            kwargs = {k: _numbered(a, numbers) for k, a in node.kwargs.items()}
            try:
                bound = rule.bind(args, kwargs)
            except InputError:
                bound = None
            if bound is not None:
                order: list[int] = []
                literals = tuple([(p, _collect(v, order)) for p, v in bound.items()])
                info = KeyInfo(
                    node.target, literals, tuple(order), self._swap(node.target, rule, bound), bound=True
                )
                bound_key = (node.target, literals, info.swap)
        info.canonical = self._bound.setdefault(bound_key, len(self._bound))
        self.infos.append(info)
        return len(self.infos) - 1

    def _swap(self, target: str, rule: Any, bound: dict[str, Any]) -> tuple[int, int] | None:
        pair = self.fusion.commutative.get(target)
        if pair is None or not all(type(bound.get(p)) is _Slot for p in pair):
            return None
        rest = [p for p in rule.params if p.name not in pair]
        if any(p.required or bound[p.name] != p.default for p in rest):
            return None
        order: list[int] = []
        at: dict[str, int] = {}
        for name, value in bound.items():
            at[name] = len(order)
            _collect(value, order)
        return at[pair[0]], at[pair[1]]


@attrs.frozen
class _Slot:
    number: int


def _numbered(arg: Any, numbers: Any) -> Any:
    kind = type(arg)
    if kind is Ref:
        return _Slot(next(numbers))
    if kind is tuple:
        return tuple([_numbered(a, numbers) for a in arg])
    if kind is DictArg:
        return tuple([(key, _numbered(a, numbers)) for key, a in arg.items])
    return arg


def _collect(value: Any, order: list[int]) -> Any:
    kind = type(value)
    if kind is _Slot:
        order.append(value.number)
        return HOLE
    if kind is tuple or kind is list:
        return tuple([_collect(v, order) for v in value])
    if kind is DtypeArg:
        return value.name
    return _tagged(value)


def _foreign(value: Any) -> Any:
    """The part of an argument that cannot be hashed."""
    if type(value) is not tuple:
        return value
    for part in value:
        try:
            hash(part)
        except TypeError:
            return _foreign(part)
    return value


def _tagged(value: Any) -> Any:
    kind = type(value)
    if kind is bool or kind is float:
        return (kind.__name__, repr(value))
    return value


def _literal(arg: Any, refs: list[str]) -> Any:
    kind = type(arg)
    if kind is Ref:
        refs.append(arg.name)
        return HOLE
    if kind is int or kind is str or arg is None:
        return arg
    if kind is tuple:
        return tuple([_literal(a, refs) for a in arg])
    if kind is DictArg:
        return tuple([(key, _literal(a, refs)) for key, a in arg.items])
    return _tagged(arg)


@attrs.define
class Flat:
    """Calls in execution order: per call its node, key and the values that it reads (in the order of its arguments).

    `items` are the getitem nodes per call, `values` the value that each name stands for.
    """

    graph: Graph
    nodes: list[Node]
    keys: list[int]
    refs: list[tuple[int, ...]]
    items: dict[int, list[Node]]
    values: dict[str, int]

    def name(self, value: int) -> str:
        """A node name that stands for a value."""
        call, out = divmod(value, OUTS)
        if out == 0:
            return self.nodes[call].name
        for item in self.items.get(call, ()):
            if self.values[item.name] == value:
                return item.name
        return f"{self.nodes[call].name}[{out - 1}]"


def flatten(graph: Graph, keys: Keys) -> Flat:
    """Intern the calls of a graph. Raises InputError for a reference to a node that does not come before."""
    flat = Flat(graph, [], [], [], {}, {})
    nodes, ids, all_refs, values = flat.nodes, flat.keys, flat.refs, flat.values
    key_of = keys.key
    for node in graph.nodes:
        op = node.op
        if op == "call_function":
            args = node.args
            if node.target == GETITEM and len(args) == 2 and type(args[0]) is Ref and type(args[1]) is int:
                source = values.get(args[0].name)
                if source is not None and source % OUTS == 0 and 0 <= args[1] < OUTS - 1:
                    values[node.name] = source + args[1] + 1
                    flat.items.setdefault(source // OUTS, []).append(node)
                    continue
            names: list[str] = []
            ids.append(key_of(node, names))
        elif op == "output":
            names = list(node.refs())
            ids.append(OUTPUT)
        else:
            names = []
            ids.append(INPUT)
        try:
            all_refs.append(tuple([values[n] for n in names]))
        except KeyError as error:
            raise InputError(
                f"reads {error.args[0]}, which is not defined before it", where=node.name
            ) from None
        values[node.name] = len(nodes) * OUTS
        nodes.append(node)
    return flat


def size_calls(flat: Flat, keys: Keys) -> list[int]:
    """Calls that compute sizes from inputs and other such calls: arithmetic that belongs to no layer."""
    kinds: dict[int, bool] = {}
    found: set[int] = set()
    for call, key in enumerate(flat.keys):
        if key < 0:
            continue
        is_size = kinds.get(key)
        if is_size is None:
            rule = keys.book.lookup(keys.infos[key].target)
            is_size = kinds[key] = rule is not None and rule.code == "sym"
        if is_size and all(flat.keys[v // OUTS] == INPUT or v // OUTS in found for v in flat.refs[call]):
            found.add(call)
    return sorted(found)
