"""Run compiled operations over arrays, a block at a time, in buffers that stay in cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from attrs import frozen

from layoutcheck.cost.array_functions import array_functions, in_floats
from layoutcheck.cost.lowering import Ref, scalar
from layoutcheck.cost.stages import Key, Stages, Step, plan_stages
from layoutcheck.errors import InputError

if TYPE_CHECKING:
    from layoutcheck.cost.compiled import Compiled

_BOOLEAN = frozenset(("lt", "le", "gt", "ge", "eq", "ne", "and", "or", "not"))
_STAGED = 20_000
"""Points from which on distinct values are looked for."""
_THREADED = 100_000
_SAMPLE = 4096


@frozen
class _Source:
    """A column that is there already: an array with an element a point, or a table with a place in it a point."""

    array: Any
    places: Any = None

    def block(self, start: int, stop: int) -> Any:
        if self.places is None:
            return self.array[start:stop]
        return self.array.take(self.places[start:stop])


def run_blocks(
    program: Compiled,
    flat: Mapping[str, Any],
    results: Mapping[str, Any],
    mode: str,
    block: int,
    bounds: Sequence[int],
) -> None:
    """Evaluate ``program`` at the flat inputs and write into ``results``.

    Operations whose operands are all single numbers run once, in Python; those that depend on one size with few distinct
    values, once for each (:mod:`layoutcheck.cost.stages`). The rest runs on blocks of the arrays, split over
    threads: numpy lets go of the interpreter while it computes.

    Args:
        bounds: the largest that each exact operation can become.

    Raises:
        InputError: something divides by zero.
    """
    plan = _Plan(program, flat, mode, block)
    count = len(next(iter(results.values()))) if results else 0
    outputs = [r for out in program.outputs.values() for r in (out.top, out.bottom) if r is not None]
    outputs = [r for r in outputs if r not in plan.once]
    distinct: dict[Ref, tuple[Any, Any]] = {}
    for ref, array in plan.arrays.items():
        few = _distinct(array) if count >= _STAGED else None
        if few is not None:
            distinct[ref] = few
    sizes = {ref: len(distinct[ref][0]) if ref in distinct else count for ref in plan.arrays}
    stages = plan_stages(plan.steps, sizes, bounds, count, outputs)
    sources = {ref: _Source(array) for ref, array in plan.arrays.items()}
    plan.evaluate(stages, None, count, sources, distinct, results)


class _Plan:
    """What was computed once, and the operations that remain for every point."""

    def __init__(self, program: Compiled, flat: Mapping[str, Any], mode: str, block: int) -> None:
        import numpy as np

        self.program, self.block = program, block
        functions = array_functions(mode)
        self.dtype = np.float64 if mode == "float64" else np.int64
        self.kinds = {"bool": np.bool_, "integer": self.dtype, "float": np.float64}
        self.once: dict[Ref, Any] = {}
        self.arrays: dict[Ref, Any] = {}
        self.steps: dict[Ref, Step] = {}
        self.calls: dict[Ref, tuple[Callable[..., Any], tuple[Ref, ...], Any]] = {}
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
                exact = index in program.exact
                kind = "bool" if op.name in _BOOLEAN else "integer" if exact else "float"
                function = functions[op.name]
                if kind == "float" and mode == "int64" and op.integer:
                    function = in_floats(function)
                self.steps[index] = Step(op.name, tuple(a for a in op.args if a not in self.once), exact)
                self.calls[index] = (function, op.args, self.kinds[kind])
        for index, value in self.once.items():
            if type(value) is int and index not in program.exact:
                self.once[index] = float(value)  # numpy takes no integer beyond 2^63

    # ---- keys

    def evaluate(
        self,
        stages: Stages,
        key: Key,
        count: int,
        sources: dict[Ref, _Source],
        distinct: Mapping[Ref, tuple[Any, Any]],
        results: Mapping[str, Any] | None,
    ) -> dict[Ref, Any]:
        """Evaluate what hangs under a key, the keys below it first; return the columns that it hands up."""
        for child in stages.children.get(key, ()):
            found = distinct.get(child)
            if found is None:
                steps = stages.steps(key, [child], self.steps, set(sources))
                column = self._run(steps, [child], count, sources)[child] if steps else sources[child].array
                sources[child] = _Source(column)
                found = _distinct(column, always=True)
                assert found is not None
            values, places = found
            below = {child: _Source(values.astype(self.dtype))}
            for ref, table in self.evaluate(stages, child, len(values), below, {}, None).items():
                sources[ref] = _Source(table, places)
        wanted = stages.exports[key]
        steps = stages.steps(key, wanted, self.steps, set(sources))
        if results is not None:
            self._run(steps, wanted, count, sources, results)
            return {}
        return self._run(steps, wanted, count, sources)

    # ---- blocks

    def _run(
        self,
        steps: Sequence[Ref],
        wanted: Sequence[Ref],
        count: int,
        sources: Mapping[Ref, _Source],
        results: Mapping[str, Any] | None = None,
    ) -> dict[Ref, Any]:
        """Run operations over all blocks; return the wanted columns, or write the results from them."""
        import numpy as np

        kept = set(wanted)
        dead: dict[Ref, list[Ref]] = {}
        last: dict[Ref, Ref] = {}
        for ref in steps:
            last.update((a, ref) for a in self.calls[ref][1])
        computed = set(steps)
        for ref, by in last.items():
            if ref in computed and ref not in kept:
                dead.setdefault(by, []).append(ref)
        needed = {ref: sources[ref] for ref in {*last, *kept} if ref in sources and ref not in computed}
        columns: dict[Ref, Any] = {}
        if results is None:
            columns = {
                r: np.empty(count, self.calls[r][2] if r in self.calls else self.dtype) for r in wanted
            }

        def work(starts: Sequence[int]) -> None:
            free: dict[Any, list[Any]] = {d: [] for d in (np.bool_, self.dtype, np.float64)}
            with np.errstate(divide="raise", invalid="raise", over="ignore", under="ignore"):
                for start in starts:
                    stop = min(start + self.block, count)
                    values = dict(self.once)
                    values.update((ref, source.block(start, stop)) for ref, source in needed.items())
                    owned = self._block(steps, dead, values, free, stop - start)
                    if results is not None:
                        self._write(values, results, start, stop)
                    for ref, column in columns.items():
                        column[start:stop] = values[ref]
                    for dtype, store in owned.values():
                        free[dtype].append(store)

        starts = range(0, count, self.block)
        threads = _threads(count)
        if threads == 1:
            work(starts)
        else:
            with ThreadPoolExecutor(threads) as pool:
                for _ in pool.map(work, [starts[i::threads] for i in range(threads)]):
                    pass
        return columns

    def _block(
        self,
        steps: Sequence[Ref],
        dead: Mapping[Ref, Sequence[Ref]],
        values: dict[Ref, Any],
        free: dict[Any, list[Any]],
        size: int,
    ) -> dict[Ref, tuple[Any, Any]]:
        """Run operations on one block; return the buffers that still hold values."""
        import numpy as np

        owned: dict[Ref, tuple[Any, Any]] = {}
        for ref in steps:
            function, args, dtype = self.calls[ref]
            store = free[dtype].pop() if free[dtype] else np.empty(self.block, dtype)
            out = store[:size]
            try:
                function(*(values[a] for a in args), out)
            except FloatingPointError as error:
                raise InputError("division by zero, or a value that is not a number") from error
            values[ref] = out
            owned[ref] = (dtype, store)
            for gone in dead.get(ref, ()):
                dtype, store = owned.pop(gone)
                free[dtype].append(store)
        return owned

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


def _distinct(values: Any, always: bool = False) -> tuple[Any, Any] | None:
    """The distinct values and each point's place among them; None where they hardly repeat, unless always wanted."""
    import numpy as np

    low, high = int(values.min()), int(values.max())
    span = high - low + 1
    if span > len(values) and not always:
        sample = values[:: max(1, len(values) // _SAMPLE)]
        if 2 * len(np.unique(sample)) > len(sample):
            return None
    if span <= 4 * len(values):
        offsets = (values - low).astype(np.intp)
        seen = np.zeros(span, np.bool_)
        seen[offsets] = True
        found = np.flatnonzero(seen)
        place = np.empty(span, np.intp)
        place[found] = np.arange(len(found))
        return found + low, place[offsets]
    distinct, places = np.unique(values, return_inverse=True)
    return distinct, places.reshape(-1)


def _threads(count: int) -> int:
    import os

    return min(4, os.cpu_count() or 1) if count >= _THREADED else 1
