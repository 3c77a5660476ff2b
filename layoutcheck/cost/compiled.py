"""Evaluate formulas at a million points: sympy expressions compiled to exact numpy arithmetic.

Three ways of running the same operations, of which the fastest that is exact for the given sizes is taken:

* ``float64`` while every integer on the way stays below 2^53: sums and products of such floats are exact,
  and so is the floor of their quotient where numerator + denominator < 2^53 (a quotient just below an
  integer is further from it than half the distance of two floats);
* ``int64`` below 2^62;
* Python's own integers beyond that.

Whether a size is safe is decided from the largest value of every input, by bounds on each operation's result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import define, field

from layoutcheck.cost.lowering import Lowering, Op, Ref, Value, scalar
from layoutcheck.errors import InputError

EXACT_READERS = frozenset(("ceil_div", "floor_div", "lt", "le", "gt", "ge", "eq", "ne"))
"""Operations whose result jumps: what they read must be exact."""

_BLOCK = 8192


@define
class Compiled:
    """Formulas ready to be evaluated, by name.

    Attributes:
        outputs: each formula's numerator and denominator (or its value alone).
        inexact_ceilings: ceilings and floors of values that are not ratios of integers; 0 in a formula of
        sizes.
    """

    ops: Sequence[Op]
    outputs: Mapping[str, Value]
    inexact_ceilings: int = 0
    exact: frozenset[Ref] = field(init=False)
    """Operations whose integers must be exact; the others only enter times, where 1e-16 is nothing."""

    def __attrs_post_init__(self) -> None:
        wanted: set[Ref] = set()
        for out in self.outputs.values():
            if out.exact:
                wanted |= {r for r in (out.top, out.bottom) if r is not None}
        for index in range(len(self.ops) - 1, -1, -1):
            op = self.ops[index]
            if op.name in EXACT_READERS or (index in wanted and op.integer):
                wanted.update((index, *op.args))
        self.exact = frozenset(r for r in wanted if self.ops[r].integer)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the symbols that the formulas use."""
        return tuple(sorted(op.value for op in self.ops if op.name == "input"))

    def at(self, **sizes: int) -> dict[str, Any]:
        """Evaluate at one point in Python's exact integers; ratios come as Fractions."""
        from fractions import Fraction

        self._check(sizes)
        values: list[Any] = []
        for op in self.ops:
            if op.name == "const":
                values.append(op.value)
            elif op.name == "input":
                values.append(int(sizes[op.value]))
            else:
                values.append(scalar(op.name, *(values[a] for a in op.args)))
        found: dict[str, Any] = {}
        for name, out in self.outputs.items():
            top = values[out.top]
            if out.bottom is not None:
                if values[out.bottom] == 0:
                    raise InputError(f"division by zero in {name}")
                top = Fraction(top, values[out.bottom])
            found[name] = top
        return found

    def mode(self, largest: Mapping[str, int]) -> str:
        """Return how inputs up to these sizes are evaluated: ``float64``, ``int64`` or ``python``."""
        bound = self._bounds(largest)[1]
        return "float64" if bound < 2**53 else "int64" if bound < 2**62 else "python"

    def __call__(self, **sizes: Any) -> dict[str, Any]:
        """Evaluate at many points.

        Args:
            sizes: for every symbol an integer or an array of integers; arrays are broadcast against each
            other.

        Returns:
            by formula an int64 array for integers (objects beyond 2^62), else a float64 array.

        Raises:
            InputError: a symbol is missing, an input is negative or not an integer, or something divides by
            zero.
        """
        import numpy as np

        self._check(sizes)
        arrays = {name: _integers(name, sizes[name]) for name in self.inputs}
        shape = np.broadcast_shapes(*(a.shape for a in arrays.values())) if arrays else ()
        largest = {n: int(a.max()) if a.size else 0 for n, a in arrays.items()}
        mode = self.mode(largest)
        flat = {
            n: (a.item() if a.ndim == 0 else np.ascontiguousarray(np.broadcast_to(a, shape)).reshape(-1))
            for n, a in arrays.items()
        }
        count = int(np.prod(shape, dtype=np.int64)) if shape else 1
        results = self._python(flat, count) if mode == "python" else self._numpy(flat, count, mode, largest)
        return {name: values.reshape(shape) for name, values in results.items()}

    # one way of evaluating each ------------------------------------------------------------

    def _python(self, flat: Mapping[str, Any], count: int) -> dict[str, Any]:
        import numpy as np

        points = [
            self.at(**{n: (v if isinstance(v, int) else int(v[i])) for n, v in flat.items()})
            for i in range(count)
        ]
        found = {}
        for name, out in self.outputs.items():
            integer = out.exact and out.bottom is None
            column = [p[name] if integer else float(p[name]) for p in points]
            found[name] = np.array(column, dtype=object if integer else np.float64)
        return found

    def _numpy(
        self, flat: Mapping[str, Any], count: int, mode: str, largest: Mapping[str, int]
    ) -> dict[str, Any]:
        import numpy as np

        from layoutcheck.cost.blocks import run_blocks

        results: dict[str, Any] = {}
        for name, out in self.outputs.items():
            integer = out.exact and out.bottom is None
            results[name] = np.empty(count, np.int64 if integer else np.float64)
        run_blocks(self, flat, results, mode, _BLOCK, self._bounds(largest)[0])
        return results

    def _check(self, sizes: Mapping[str, Any]) -> None:
        missing = [n for n in self.inputs if n not in sizes]
        if missing:
            raise InputError(f"no value for {', '.join(missing)}")

    def _bounds(self, largest: Mapping[str, int]) -> tuple[list[int], int]:
        """The largest integer that each exact operation can come to, sums taken without signs, and the largest of all."""
        bounds: list[int] = []
        worst = 1
        for index, op in enumerate(self.ops):
            args = [bounds[a] for a in op.args]
            if index not in self.exact:
                found = 0
            elif op.name == "const":
                found = abs(op.value) if op.integer else 0
            elif op.name == "input":
                found = largest[op.value]
            elif op.name == "add":
                found = args[0] + args[1]
            elif op.name == "mul":
                found = args[0] * args[1]
            elif op.name in ("ceil_div", "floor_div"):
                worst = max(worst, args[0] + args[1])  # what the floor of a float quotient needs
                by = self.ops[op.args[1]]
                found = args[0] // (abs(by.value) if by.name == "const" and by.value else 1) + 1
            else:  # min, max, where, abs: one of the operands
                found = max(args)
            worst = max(worst, found)
            bounds.append(found)
        return bounds, worst


def compile_formulas(formulas: Mapping[str, Any]) -> Compiled:
    """Compile sympy expressions (or plain numbers) together, so that what they share is computed once.

    Every symbol is a size: an integer from 0 up. Ceilings, floors, minima and maxima of integers and ratios
    are exact.

    Raises:
        InputError: an expression holds a function that is not known.
    """
    from sympy import sympify

    lowering = Lowering()
    outputs: dict[str, Value] = {}
    for name, formula in formulas.items():
        outputs[name] = lowering.lower(sympify(formula))
    return Compiled(lowering.ops, outputs, lowering.inexact_ceilings)


def compile_formula(formula: Any) -> Compiled:
    """Compile one expression, under the name ``value``."""
    return compile_formulas({"value": formula})


def _integers(name: str, value: Any) -> Any:
    import numpy as np

    array = np.asarray(value)
    if array.dtype.kind not in "iuO":
        raise InputError(f"{name}: sizes are integers, not {array.dtype}")
    if array.dtype.kind == "O" and not all(isinstance(v, int) for v in array.reshape(-1)):
        raise InputError(f"{name}: sizes are integers")
    if array.size and array.min() < 0:
        raise InputError(f"{name}: a size is negative")
    return array
