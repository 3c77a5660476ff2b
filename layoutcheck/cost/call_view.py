"""What the expressions of a kernel line can see of a call: axes of operands and outputs, literals, groups.

``x[0]`` is the extent of an axis, ``x[:-1]`` the product of several, ``size(x)`` and ``bytes(x)`` those of a tensor,
``whole(x, 0)`` an axis over all ranks. ``dtype(x)``, ``rank(x)``, ``has(x)``, ``count(x)`` of a list and ``every(x)`` of flags
choose between forms, and ``number(n)`` is a size as it was exported. ``ranks(group)`` is the size of a group,
``exchange(group)`` of one that exchanges rows between experts. ``out`` or ``out0`` is the first output; ``read`` and
``written`` are the bytes of all operands and outputs. Names that are no parameters are symbols. Arithmetic is ``+ - * //``,
``ceil(a, b)``, ``min``, ``max``. Expressions are parsed and walked, never run.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from layoutcheck.arguments import Hole
from layoutcheck.cost.work import DTYPE_BITS
from layoutcheck.errors import InputError
from layoutcheck.layouts import Layout
from layoutcheck.mesh import Group, Mesh
from layoutcheck.program import OpInstance
from layoutcheck.symbols import Expr, Size, cdiv, evaluate, free_symbols, smax, smin

_ODD_BITS = {
    "bool": 8,
    "uint8": 8,
    "int16": 16,
    "int32": 32,
    "int64": 64,
    "float8_e8m0fnu": 8,
    "complex64": 64,
}


class Missing(Exception):
    """An expression asked for something that this call does not have."""


class LocalSizes(Protocol):
    """Where the extents of axes and groups come from: formulas of a lifted graph, or numbers."""

    @property
    def mesh(self) -> Mesh:
        """The graph's groups."""

    def named(self, size: Size) -> Size:
        """A number as the figures that it is made of."""

    @property
    def values(self) -> Mapping[str, int]:
        """Recorded values of symbols."""

    def axes(self, of: Layout) -> tuple[Size, ...]:
        """The local extents of all axes."""

    def whole(self, of: Layout, axis: int) -> Size:
        """The extent of an axis over all ranks."""

    def ranks(self, group: Group, exchange: bool = False) -> Size:
        """The number of ranks of a group."""


class CallView:
    """One call with the lifted axes of its operands and outputs."""

    def __init__(
        self,
        instance: OpInstance,
        operands: list[Any],
        outputs: list[Any],
        sizes: LocalSizes,
        symbols: Mapping[str, Size],
    ) -> None:
        self.instance, self.operands, self.outputs = instance, operands, outputs
        self.sizes, self.symbols = sizes, symbols
        self.axes_of: dict[int, tuple[Size, ...]] = {}

    # ---- what stands behind a name

    def tensor(self, name: str) -> Any:
        """The layout, list or literal of a parameter, or of an output."""
        if name == "out" or (name.startswith("out") and name[3:].isdecimal()):
            index = int(name[3:] or 0)
            if name not in self.instance.params:
                if index >= len(self.outputs):
                    raise Missing(name)
                return self.outputs[index]
        if name not in self.instance.params:
            # a transform's own word for a parameter, as the rule's options say (`ranks=rank_group`, `group=tp`)
            rule = self.instance.rule
            said = rule.options.get(name) if rule is not None else None
            if said is None:
                raise Missing(name)
            return self._fill(self.instance.params[said]) if said in self.instance.params else said
        return self._fill(self.instance.params[name])

    def _fill(self, value: Any) -> Any:
        if isinstance(value, Hole):
            return self.operands[value.slot]
        if isinstance(value, (tuple, list)):
            return [self._fill(v) for v in value]
        return value

    def axes(self, of: Any) -> tuple[Size, ...]:
        """The lifted axes of a layout."""
        if not isinstance(of, Layout):
            raise Missing("a tensor")
        return self.sizes.axes(of)

    def bytes(self, of: Any) -> Size:
        """Bytes of a value on a rank; 0 for what is no tensor."""
        if isinstance(of, (list, tuple)):
            total: Size = 0
            for part in of:
                total = total + self.bytes(part)
            return total
        if not isinstance(of, Layout):
            return 0
        return cdiv(_product(self.axes(of)) * bits_of(of.dtype), 8)

    # ---- expressions

    def value(self, node: ast.expr) -> Any:
        """The value of an expression: a size, a flag, or a dtype's name.

        Raises:
            Missing: it names something that the call lacks.
            InputError: it is no expression of the notation.
        """
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, str)):
            return node.value
        if isinstance(node, ast.Name):
            return self._name(node.id)
        if isinstance(node, ast.Subscript):
            return self._subscript(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.BinOp):
            return self._arithmetic(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return not self.value(node.operand)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self.value(node.operand)
        if isinstance(node, ast.IfExp):
            return self.value(node.body if self.value(node.test) else node.orelse)
        if isinstance(node, ast.BoolOp):
            values = (bool(self.value(v)) for v in node.values)
            return all(values) if isinstance(node.op, ast.And) else any(values)
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return self._compare(node)
        raise InputError(f"the notation of kernels has no {type(node).__name__}")

    def _name(self, name: str) -> Any:
        if name == "read":
            return self.bytes([self.operands])
        if name == "written":
            return self.bytes([self.outputs])
        if name in self.symbols:
            return self.symbols[name]
        found = self.tensor(name)
        if isinstance(found, Layout):
            return found
        if isinstance(found, int) and not isinstance(found, bool):
            return self.sizes.named(found)
        if found is None or isinstance(found, (bool, str, Expr, list)):
            return found
        return getattr(found, "name", found)

    def _subscript(self, node: ast.Subscript) -> Any:
        of = self.value(node.value)
        if isinstance(of, list) and not isinstance(node.slice, ast.Slice):
            index = self.value(node.slice)
            if not -len(of) <= index < len(of):
                raise Missing("a list's item")
            return of[index]
        axes = self.axes(of)
        if isinstance(node.slice, ast.Slice):
            low = self.value(node.slice.lower) if node.slice.lower is not None else None
            high = self.value(node.slice.upper) if node.slice.upper is not None else None
            return _product(axes[low:high])
        index = self.value(node.slice)
        if not isinstance(index, int) or not -len(axes) <= index < len(axes):
            raise Missing("an axis")
        return axes[index]

    def _arithmetic(self, node: ast.BinOp) -> Size:
        a, b = self.value(node.left), self.value(node.right)
        for x in (a, b):
            if isinstance(x, bool) or not isinstance(x, (int, Expr)):
                raise Missing("a number")
        if isinstance(node.op, ast.Add):
            return a + b  # type: ignore[no-any-return]
        if isinstance(node.op, ast.Sub):
            return a - b  # type: ignore[no-any-return]
        if isinstance(node.op, ast.Mult):
            return a * b  # type: ignore[no-any-return]
        if isinstance(node.op, ast.FloorDiv):
            return a // b  # type: ignore[no-any-return]
        raise InputError(f"the notation of kernels has no {type(node.op).__name__}")

    def _compare(self, node: ast.Compare) -> bool:
        """Comparisons are decided at the exported sizes: they choose between forms of an op."""
        a, b = (self.recorded(self.value(n)) for n in (node.left, node.comparators[0]))
        tests: dict[type, Callable[[Any, Any], bool]] = {
            ast.Eq: lambda x, y: x == y,
            ast.NotEq: lambda x, y: x != y,
            ast.Lt: lambda x, y: x < y,
            ast.LtE: lambda x, y: x <= y,
            ast.Gt: lambda x, y: x > y,
            ast.GtE: lambda x, y: x >= y,
        }
        test = tests.get(type(node.ops[0]))
        if test is None:
            raise InputError(f"the notation of kernels has no {type(node.ops[0]).__name__}")
        return test(a, b)

    def recorded(self, value: Any) -> Any:
        """A size at the exported counts; the size itself where they are not known."""
        if isinstance(value, Expr) and free_symbols(value) <= self.sizes.values.keys():
            return evaluate(value, self.sizes.values)
        return value

    def _call(self, node: ast.Call) -> Any:
        if not isinstance(node.func, ast.Name) or node.keywords:
            raise InputError("the notation of kernels has plain functions only")
        name = node.func.id
        if name == "has":
            try:
                return self.value(node.args[0]) is not None
            except Missing:
                return False
        args = [self.value(a) for a in node.args]
        made: Any = _FUNCTIONS.get(name)
        if made is None:
            raise InputError(f"the notation of kernels has no function {name}")
        try:
            return made(self, *args)
        except TypeError as error:
            raise Missing(name) from error

    def whole(self, of: Any, axis: int) -> Size:
        """An axis over all ranks."""
        if not isinstance(of, Layout) or not -of.rank <= axis < of.rank:
            raise Missing("an axis")
        return self.sizes.whole(of, axis)

    def ranks(self, group: Any, exchange: bool = False) -> Size:
        """The ranks of a group given by its list of ranks or by its name."""
        mesh = self.sizes.mesh
        if isinstance(group, list):
            found = mesh.by_ranks.get(tuple(sorted(group)))
            if found is None:
                return len(group) or 1
        else:
            found = mesh.groups.get(str(group))
            if found is None:
                raise Missing("a group")
        return self.sizes.ranks(found, exchange)


def _count(view: CallView, of: Any) -> int:
    return len(of) if isinstance(of, list) else 1


def _rank(view: CallView, of: Any) -> int:
    return len(view.axes(of))


def _size(view: CallView, of: Any) -> Size:
    return _product(view.axes(of))


def _dtype(view: CallView, of: Any) -> str:
    if not isinstance(of, Layout):
        raise Missing("a tensor")
    return of.dtype


def _every(view: CallView, values: Any) -> bool:
    return isinstance(values, list) and bool(values) and all(values)


_FUNCTIONS: dict[str, Any] = {
    "size": _size,
    "bytes": CallView.bytes,
    "dtype": _dtype,
    "rank": _rank,
    "count": _count,
    "every": _every,
    "number": lambda view, value: view.sizes.named(view.recorded(value)),
    "whole": CallView.whole,
    "ranks": lambda view, group: view.ranks(group),
    "exchange": lambda view, group: view.ranks(group, True),
    "ceil": lambda view, a, b: cdiv(a, b),
    "min": lambda view, a, b: smin(a, b),
    "max": lambda view, a, b: smax(a, b),
}


def bits_of(dtype: str) -> int:
    """Bits of an element of a dtype, 16 where it is not known."""
    return DTYPE_BITS.get(dtype) or _ODD_BITS.get(dtype, 16)


def _product(sizes: Any) -> Size:
    total: Size = 1
    for size in sizes:
        total = total * size
    return total
