"""Subgraphs of higher-order ops written out in their place.

A call that names subgraphs and passes on operands (a wrapper around a region without gradients, the two branches of a
condition, a loop's body) is replaced by the subgraphs' nodes; its outputs are those of the subgraphs that end in what is
recorded of the call. Of several branches all have to give the same. What does not fit that form stays a call.
"""

from __future__ import annotations

from typing import Any

import attrs

from layoutcheck.graph import DictArg, Graph, Node, Ref, TensorMeta

MAX_DEPTH = 32
BRANCH = "layoutcheck.branch"


def inline_subgraphs(graph: Graph) -> tuple[Graph, dict[str, str]]:
    """The graph with subgraphs written out, and the names of values that went, by the name of what they are now."""
    if not graph.subgraphs:
        return graph, {}
    writer = _Writer()
    writer.write(graph, {}, "", 0)
    names = {name: value.name for name, value in writer.aliases.items() if isinstance(value, Ref)}
    return attrs.evolve(graph, nodes=writer.nodes, subgraphs={}), names


class _Writer:
    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.aliases: dict[str, Any] = {}
        self.metas: dict[str, Any] = {}

    def write(self, graph: Graph, env: dict[str, Any], prefix: str, depth: int) -> Any:
        """Append the nodes of a graph; the value of its output."""
        result: Any = None
        bodies = _by_name(graph)
        for node in graph.nodes:
            if node.op == "placeholder" and node.name in env:
                continue
            if node.op == "get_attr" and node.name in bodies:
                continue
            if node.op == "output" and prefix:
                result = _map(node.args, env)
                continue
            if self._getitem(node, env, prefix):
                continue
            body = self._bodies(bodies, node) if depth < MAX_DEPTH else None
            if body is not None:
                subgraphs, operands = body
                given = _map(operands, env)
                outs = [
                    self.write(
                        sub,
                        dict(zip(_inputs(sub), given, strict=True)),
                        f"{prefix}{node.name}.{i}." if i else f"{prefix}{node.name}.",
                        depth + 1,
                    )
                    for i, sub in enumerate(subgraphs)
                ]
                env[node.name] = self._result(node, prefix, [_flat_output(out) for out in outs])
                if not prefix:
                    self.aliases[node.name] = env[node.name]
                continue
            name = prefix + node.name
            self._append(
                attrs.evolve(
                    node,
                    name=name,
                    args=_map(node.args, env),
                    kwargs={k: _map(v, env) for k, v in node.kwargs.items()},
                )
            )
            if prefix:
                env[node.name] = Ref(name)
        return result

    def _result(self, node: Node, prefix: str, outs: list[Any]) -> Any:
        """What the call gives: the values of the subgraphs that end in as many as are recorded, joined where several do."""
        count = len(node.meta) if isinstance(node.meta, tuple) else 1
        fitting = [out for out in outs if isinstance(out, tuple) and len(out) == count]
        fitting = [out for out in fitting if _same_kinds(self.metas, out, node.meta)] or fitting
        if not fitting:
            return outs[-1]
        result = fitting[0]
        for other in fitting[1:]:
            result = tuple(
                a if a is b else self._branch(node, prefix, j, a, b)
                for j, (a, b) in enumerate(zip(result, other, strict=True))
            )
        return result

    def _branch(self, node: Node, prefix: str, j: int, a: Any, b: Any) -> Any:
        if not isinstance(a, Ref) or not isinstance(b, Ref):
            return a
        name = f"{prefix}{node.name}" if j == 0 else f"{prefix}{node.name}.{j}"
        meta = node.meta[j] if isinstance(node.meta, tuple) else node.meta
        self._append(attrs.evolve(node, name=name, target=BRANCH, args=(a, b), kwargs={}, meta=meta))
        return Ref(name)

    def _append(self, node: Node) -> None:
        self.nodes.append(node)
        self.metas[node.name] = node.meta

    def _getitem(self, node: Node, env: dict[str, Any], prefix: str) -> bool:
        if node.target != "operator.getitem" or len(node.args) != 2:
            return False
        source, index = node.args
        if not isinstance(source, Ref) or not isinstance(index, int) or source.name not in env:
            return False
        value = env[source.name]
        if not isinstance(value, tuple) or not -len(value) <= index < len(value):
            return False
        env[node.name] = value[index]
        if not prefix:
            self.aliases[node.name] = value[index]
        return True

    def _bodies(self, named: dict[str, Graph], node: Node) -> tuple[list[Graph], tuple[Any, ...]] | None:
        """The subgraphs that a call names and the operands behind them, where those are their inputs."""
        if node.op != "call_function":
            return None
        args = tuple(node.args) + tuple(node.kwargs.values())
        places = [i for i, a in enumerate(args) if isinstance(a, Ref) and a.name in named]
        if not places:
            return None
        rest = args[places[-1] + 1 :]
        operands = tuple(x for a in rest for x in (a if isinstance(a, tuple) else (a,)))
        subgraphs = [named[args[i].name] for i in places]  # type: ignore[union-attr]
        if any(len(_inputs(sub)) != len(operands) for sub in subgraphs):
            return None
        for sub in subgraphs:
            inside = [node.meta for node in sub.nodes if node.op == "placeholder"]
            if not all(
                _fits(meta, self.metas.get(a.name))
                for meta, a in zip(inside, operands, strict=True)
                if isinstance(a, Ref)
            ):
                # a body that sees rows of what is passed (a scan, a map) is no piece of this graph
                return None
        return subgraphs, operands


def _by_name(graph: Graph) -> dict[str, Graph]:
    """Subgraphs by the names under which calls read them: an attribute's node may have a name of its own."""
    found = dict(graph.subgraphs)
    for node in graph.nodes:
        if node.op == "get_attr" and node.target in graph.subgraphs:
            found[node.name] = graph.subgraphs[node.target]
    return found


def _fits(inside: Any, outside: Any) -> bool:
    """Whether a subgraph's input is the very value that is passed, by recorded number of axes."""
    if not isinstance(inside, TensorMeta) or not isinstance(outside, TensorMeta):
        return True
    return len(inside.shape) == len(outside.shape)


def _same_kinds(metas: dict[str, Any], out: tuple[Any, ...], recorded: Any) -> bool:
    """Whether values have the recorded dtypes and numbers of axes."""
    wanted = recorded if isinstance(recorded, tuple) else (recorded,)
    for value, meta in zip(out, wanted, strict=True):
        found = metas.get(value.name) if isinstance(value, Ref) else None
        if not isinstance(found, TensorMeta) or not isinstance(meta, TensorMeta):
            continue
        if (found.dtype, len(found.shape)) != (meta.dtype, len(meta.shape)):
            return False
    return True


def _inputs(graph: Graph) -> list[str]:
    return [node.name for node in graph.nodes if node.op == "placeholder"]


def _flat_output(args: Any) -> Any:
    """The output node's arguments as one tuple of values."""
    value = args
    while isinstance(value, tuple) and len(value) == 1 and isinstance(value[0], tuple):
        value = value[0]
    return value


def _map(arg: Any, env: dict[str, Any]) -> Any:
    if isinstance(arg, Ref):
        return env.get(arg.name, arg)
    if isinstance(arg, tuple):
        return tuple(_map(a, env) for a in arg)
    if isinstance(arg, DictArg):
        return DictArg(tuple((k, _map(v, env)) for k, v in arg.items))
    return arg
