"""A graph as a torch.fx.GraphModule that torch runs. Needs torch, and whatever registers ops of other namespaces."""

from __future__ import annotations

import importlib
from typing import Any

from layoutcheck.errors import InputError
from layoutcheck.graph import DictArg, DtypeArg, Graph, Node, Other, Ref, SymMeta, TensorMeta
from layoutcheck.inline import inline_subgraphs
from layoutcheck.sizes.core import Atom, terms_of
from layoutcheck.symbols import Expr, Size, symbol_name

_POSITIONAL = ("operator.", "math.", "torch.sym_")
_MODULES = ("operator", "math", "torch")


def to_fx(graph: Graph, groups: dict[str, str] | None = None) -> Any:
    """The graph as a GraphModule.

    Args:
        graph: the graph. Its inputs, parameters among them, are the module's inputs in order.
        groups: names under which torch.distributed knows the graph's groups, as in `{"tp": dist.group.WORLD.group_name}`.

    Raises:
        InputError: torch is not installed, an op is not registered, or a size counts what no input has.
    """
    try:
        import torch
        import torch.distributed._functional_collectives
        import torch.fx
    except ImportError:
        raise InputError("to_fx needs torch: pip install 'layoutcheck[torch]'") from None
    return _Writer(inline_subgraphs(graph)[0], groups or {}, torch).module()


class _Writer:
    def __init__(self, graph: Graph, groups: dict[str, str], torch: Any) -> None:
        self.source, self.groups, self.torch = graph, groups, torch
        self.out = torch.fx.Graph()
        self.values: dict[str, Any] = {}
        self.symbols: dict[str, Any] = {}
        self.sizes: dict[Size, Any] = {}

    def module(self) -> Any:
        inputs = [n for n in self.source.nodes if n.op in ("placeholder", "get_attr")]
        for node in inputs:
            self.values[node.name] = self.out.placeholder(node.name)
        for node in inputs:
            self._find_symbols(node)
        for node in self.source.nodes:
            if node.op == "call_function":
                args = tuple(self._arg(a) for a in node.args)
                kwargs = {k: self._arg(v) for k, v in node.kwargs.items()}
                if node.target.startswith(_POSITIONAL):
                    # Python's own functions know no argument names.
                    args, kwargs = (*args, *kwargs.values()), {}
                self.values[node.name] = self.out.call_function(self._target(node), args, kwargs)
            elif node.op == "output":
                result = tuple(self._arg(a) for a in node.args)
                self.out.output(result[0] if len(result) == 1 else result)
        self.out.lint()
        return self.torch.fx.GraphModule(self.torch.nn.Module(), self.out)

    def _find_symbols(self, node: Node) -> None:
        """Symbols that an input's axis counts, or that an input is."""
        value = self.values[node.name]
        if isinstance(node.meta, SymMeta):
            name = symbol_name(node.meta.value)
            if name is not None:
                self.symbols.setdefault(name, value)
        if isinstance(node.meta, TensorMeta):
            for dim, size in enumerate(node.meta.shape):
                name = symbol_name(size) if isinstance(size, Expr) else None
                if name is not None and name not in self.symbols:
                    self.symbols[name] = self._call(self.torch.ops.aten.sym_size.int, value, dim)

    def _call(self, target: Any, *args: Any) -> Any:
        return self.out.call_function(target, args)

    def _target(self, node: Node) -> Any:
        parts = node.target.split(".")
        if parts[0] in _MODULES:
            found: Any = importlib.import_module(parts[0])
            for part in parts[1:]:
                found = getattr(found, part, None)
            if found is not None:
                return found
        found = self.torch.ops
        try:
            for part in parts:
                found = getattr(found, part)
        except AttributeError:
            found = None
        if not callable(found):  # a namespace is made for any name
            raise InputError(
                f"torch has no op {node.target}; import the library that registers it", node.name
            )
        return found

    # ---- arguments

    def _arg(self, arg: Any) -> Any:
        if isinstance(arg, Ref):
            return self.values[arg.name]
        if isinstance(arg, Expr):
            return self._size(arg)
        if isinstance(arg, tuple):
            return [self._arg(a) for a in arg]
        if isinstance(arg, DictArg):
            return {k: self._arg(v) for k, v in arg.items}
        if isinstance(arg, DtypeArg):
            return getattr(self.torch, arg.name)
        if isinstance(arg, Other):
            return self._other(arg.text)
        if isinstance(arg, str):
            return self.groups.get(arg, arg)
        return arg

    def _other(self, text: str) -> Any:
        name = text.removeprefix("torch.")
        value = getattr(self.torch, name, None)
        if isinstance(value, (self.torch.layout, self.torch.memory_format)):
            return value
        device = text.removeprefix("device(type='").removesuffix("')")
        try:
            return self.torch.device(device)
        except RuntimeError:
            return None

    def _size(self, size: Size) -> Any:
        """A size as calls on the sizes of inputs."""
        if not isinstance(size, Expr):
            return size
        found = self.sizes.get(size)
        if found is None:
            found = self.sizes[size] = self._sum(size)
        return found

    def _sum(self, size: Expr) -> Any:
        import operator

        total: Any = None
        for mono, coefficient in terms_of(size):
            term: Any = coefficient
            for atom, power in mono.factors:
                for _ in range(power):
                    value = self._atom(atom)
                    term = (
                        value
                        if isinstance(term, int) and term == 1
                        else self._call(operator.mul, term, value)
                    )
            total = term if total is None else self._call(operator.add, total, term)
        return total

    def _atom(self, atom: Atom) -> Any:
        import operator

        if atom.kind == "sym":
            if atom.args[0] not in self.symbols:
                raise InputError(
                    f"no input has an axis of {atom.text} elements, from which torch could take its size"
                )
            return self.symbols[atom.args[0]]
        args = [self._size(a) for a in atom.args]
        if atom.kind == "floordiv":
            return self._call(operator.floordiv, *args)
        target = self.torch.sym_min if atom.kind == "min" else self.torch.sym_max
        out = args[0]
        for more in args[1:]:
            out = self._call(target, out, more)
        return out


__all__ = ["to_fx"]
