"""Operations on whole arrays that write into their last argument."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def in_floats(function: Callable[..., Any]) -> Callable[..., Any]:
    """The operation on operands turned into floats, for integers that may pass 2^63 and need not be exact."""
    import numpy as np

    def run(*args: Any) -> None:
        *operands, out = args
        function(
            *(np.asarray(a, np.float64) if np.asarray(a).dtype.kind == "i" else a for a in operands), out
        )

    return run


def array_functions(mode: str) -> Mapping[str, Callable[..., Any]]:
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
