"""Run compiled operations over arrays, a block at a time, in buffers that stay in cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from layoutcheck.cost.lowering import Ref, scalar
from layoutcheck.errors import InputError

if TYPE_CHECKING:
    from layoutcheck.cost.compiled import Compiled

_BOOLEAN = frozenset(("lt", "le", "gt", "ge", "eq", "ne", "and", "or", "not"))


def run_blocks(
    program: Compiled,
    flat: Mapping[str, Any],
    results: Mapping[str, Any],
    mode: str,
    block: int,
    threads: int = 1,
) -> None:
    """Evaluate ``program`` at the flat inputs and write into ``results``.

    Operations whose operands are all single numbers run once, in Python. The others run on blocks of the
    arrays, split over threads: numpy lets go of the interpreter while it computes.

    Raises:
        InputError: something divides by zero.
    """
    plan = _Plan(program, flat, mode)
    count = len(next(iter(results.values()))) if results else 0
    starts = range(0, count, block)
    shares = [starts[i::threads] for i in range(threads)] if threads > 1 else [starts]

    def work(share: range) -> None:
        plan.run(share, block, count, results)

    if len(shares) == 1:
        work(shares[0])
        return
    with ThreadPoolExecutor(len(shares)) as pool:
        for _ in pool.map(work, shares):
            pass


class _Plan:
    """What to compute once, and which operations remain for every block."""

    def __init__(self, program: Compiled, flat: Mapping[str, Any], mode: str) -> None:
        import numpy as np

        self.program = program
        self.functions = _functions(mode)
        self.dtype = np.float64 if mode == "float64" else np.int64
        self.once: dict[Ref, Any] = {}
        self.arrays: dict[Ref, Any] = {}
        self.steps: list[tuple[Ref, Callable[..., Any], tuple[Ref, ...], str, list[Ref]]] = []
        kept = {r for out in program.outputs.values() for r in (out.top, out.bottom) if r is not None}
        last_use: dict[Ref, int] = {}
        for index, op in enumerate(program.ops):
            if op.name == "const":
                self.once[index] = op.value
            elif op.name == "input":
                value = flat[op.value]
                if isinstance(value, int):
                    self.once[index] = value
                else:
                    self.arrays[index] = value.astype(self.dtype)
            elif all(a in self.once for a in op.args):
                self.once[index] = scalar(op.name, *(self.once[a] for a in op.args))
            else:
                kind = "bool" if op.name in _BOOLEAN else "integer" if index in program.exact else "float"
                function = self.functions[op.name]
                if kind == "float" and mode == "int64" and op.integer:
                    function = _in_floats(function)
                self.steps.append((index, function, op.args, kind, []))
                for a in op.args:
                    last_use[a] = len(self.steps) - 1
        for index, value in self.once.items():
            if type(value) is int and index not in program.exact:
                self.once[index] = float(value)  # numpy takes no integer beyond 2^63
        computed = {step[0] for step in self.steps}
        for ref, position in last_use.items():
            if ref in computed and ref not in kept:
                self.steps[position][4].append(ref)

    def run(self, starts: range, block: int, count: int, results: Mapping[str, Any]) -> None:
        import numpy as np

        dtypes = {"bool": np.bool_, "integer": self.dtype, "float": np.float64}
        free: dict[Any, list[Any]] = {d: [] for d in (np.bool_, self.dtype, np.float64)}
        with np.errstate(divide="raise", invalid="raise", over="ignore", under="ignore"):
            for start in starts:
                stop = min(start + block, count)
                size = stop - start
                values: dict[Ref, Any] = dict(self.once)
                for ref, array in self.arrays.items():
                    values[ref] = array[start:stop]
                owned: dict[Ref, tuple[Any, Any]] = {}
                for ref, function, args, kind, dead in self.steps:
                    dtype = dtypes[kind]
                    store = free[dtype].pop() if free[dtype] else np.empty(block, dtype)
                    out = store[:size]
                    try:
                        function(*(values[a] for a in args), out)
                    except FloatingPointError as error:
                        raise InputError("division by zero, or a value that is not a number") from error
                    values[ref] = out
                    owned[ref] = (dtype, store)
                    for gone in dead:
                        dtype, store = owned.pop(gone)
                        free[dtype].append(store)
                self._write(values, results, start, stop)
                for dtype, store in owned.values():
                    free[dtype].append(store)

    def _write(self, values: Mapping[Ref, Any], results: Mapping[str, Any], start: int, stop: int) -> None:
        import numpy as np

        for name, out in self.program.outputs.items():
            value = values[out.top]
            if out.bottom is not None:
                bottom = values[out.bottom]
                if np.any(np.equal(bottom, 0)):
                    raise InputError(f"division by zero in {name}")
                value = np.true_divide(value, bottom)
            results[name][start:stop] = value


def _in_floats(function: Callable[..., Any]) -> Callable[..., Any]:
    """The operation on operands turned into floats, for integers that may pass 2^63 and need not be exact."""
    import numpy as np

    def run(*args: Any) -> None:
        *operands, out = args
        function(
            *(np.asarray(a, np.float64) if np.asarray(a).dtype.kind == "i" else a for a in operands), out
        )

    return run


def _functions(mode: str) -> Mapping[str, Callable[..., Any]]:
    """Array operations that write into their last argument."""
    import numpy as np

    def float_ceil(a: Any, b: Any, out: Any) -> None:
        np.true_divide(a, b, out)
        np.ceil(out, out)

    def float_floor(a: Any, b: Any, out: Any) -> None:
        np.true_divide(a, b, out)
        np.floor(out, out)

    def integer_ceil(a: Any, b: Any, out: Any) -> None:
        np.negative(a, out)
        np.floor_divide(out, b, out)
        np.negative(out, out)

    def where(test: Any, a: Any, b: Any, out: Any) -> None:
        np.copyto(out, b)
        np.copyto(out, a, where=test)

    exact = mode == "float64"
    return {
        "add": np.add,
        "mul": np.multiply,
        "div": np.true_divide,
        "ceil_div": float_ceil if exact else integer_ceil,
        "floor_div": float_floor if exact else np.floor_divide,
        "ceil": np.ceil,
        "floor": np.floor,
        "min": lambda a, b, out: np.minimum(a, b, out=out),
        "max": lambda a, b, out: np.maximum(a, b, out=out),
        "sqrt": np.sqrt,
        "pow": np.power,
        "log": np.log,
        "exp": np.exp,
        "abs": np.absolute,
        "where": where,
        "lt": np.less,
        "le": np.less_equal,
        "gt": np.greater,
        "ge": np.greater_equal,
        "eq": np.equal,
        "ne": np.not_equal,
        "and": np.logical_and,
        "or": np.logical_or,
        "not": np.logical_not,
    }
