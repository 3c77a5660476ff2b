"""Walking and rewriting the arguments of nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from layoutcheck.graph import DictArg, Graph, Node, Ref

Rename = Callable[[str], str]


def renamed(arg: Any, rename: Rename) -> Any:
    """The argument with every node reference renamed; untouched parts are shared, not copied."""
    kind = type(arg)
    if kind is Ref:
        name = rename(arg.name)
        return arg if name == arg.name else Ref(name)
    if kind is tuple:
        new = tuple([renamed(a, rename) for a in arg])
        return arg if all(a is b for a, b in zip(new, arg)) else new
    if kind is DictArg:
        return DictArg(tuple([(key, renamed(a, rename)) for key, a in arg.items]))
    return arg


class _Same:
    """Leaves a module as it is."""


SAME = _Same()


def copied(node: Node, name: str, rename: Rename, module: str | _Same | None = SAME) -> Node:
    """A copy of a node under another name, reading renamed nodes; of another module (or of none) where one is given."""
    target = name if node.target == node.name and node.op != "call_function" else node.target
    args = tuple([renamed(a, rename) for a in node.args])
    kwargs = {key: renamed(a, rename) for key, a in node.kwargs.items()} if node.kwargs else {}
    path = node.module if isinstance(module, _Same) else module
    return Node(name, node.op, target, args, kwargs, node.meta, node.location, path, node.module_type)


def rebuilt(nodes: list[Node], like: Graph, **changes: Any) -> Graph:
    """A graph of these nodes with everything else as in `like`; `changes` replace attributes."""
    values: dict[str, Any] = {
        "source": like.source,
        "rank": like.rank,
        "config": dict(like.config),
        "inputs": dict(like.inputs),
        "ranges": like.ranges,
        "guards": like.guards,
        "subgraphs": like.subgraphs,
        "path": like.path,
        **changes,
    }
    return Graph(nodes, **values)
