"""Arithmetic that is the same for integers, numpy arrays and sympy expressions.

A formula is written once, with these functions where plain operators differ: a ceiling of two integers is an
integer ceiling in all three, never a rounded product with a reciprocal.
"""

from __future__ import annotations

import math
import sys
from functools import reduce
from typing import Any

Num = Any
"""A size or a time: an int, a float, a numpy array, or a sympy expression."""


def is_symbolic(*values: Num) -> bool:
    """Whether any value is a sympy object. Does not import sympy."""
    sympy = sys.modules.get("sympy")
    return sympy is not None and any(isinstance(v, sympy.Basic) for v in values)


def _is_array(*values: Num) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and any(isinstance(v, (numpy.ndarray, numpy.generic)) for v in values)


def ceil_div(a: Num, b: Num) -> Num:
    """Return ceil(a / b) for b > 0: exact for integers, ``ceiling(a/b)`` for expressions."""
    if is_symbolic(a, b):
        from sympy import ceiling, sympify

        return ceiling(sympify(a) / b)
    return -((-a) // b)


def floor_div(a: Num, b: Num) -> Num:
    """Return floor(a / b) for b > 0: exact for integers, ``floor(a/b)`` for expressions."""
    if is_symbolic(a, b):
        from sympy import floor, sympify

        return floor(sympify(a) / b)
    return a // b


def minimum(*values: Num) -> Num:
    """Return the smallest value, elementwise for arrays."""
    if is_symbolic(*values):
        from sympy import Min

        # unevaluated: sympy would compare every pair of large arguments
        return values[0] if len(values) == 1 else Min(*values, evaluate=False)
    if _is_array(*values):
        import numpy

        return reduce(numpy.minimum, values)
    return min(values)


def maximum(*values: Num) -> Num:
    """Return the largest value, elementwise for arrays."""
    if is_symbolic(*values):
        from sympy import Max

        return values[0] if len(values) == 1 else Max(*values, evaluate=False)
    if _is_array(*values):
        import numpy

        return reduce(numpy.maximum, values)
    return max(values)


def sqrt(x: Num) -> Num:
    """Return the square root."""
    if is_symbolic(x):
        from sympy import sqrt as symbolic

        return symbolic(x)
    if _is_array(x):
        import numpy

        return numpy.sqrt(x)
    return math.sqrt(x)


def log(x: Num) -> Num:
    """Return the natural logarithm."""
    if is_symbolic(x):
        from sympy import log as symbolic

        return symbolic(x)
    if _is_array(x):
        import numpy

        return numpy.log(x)
    return math.log(x)


def power(x: Num, exponent: float) -> Num:
    """Return x ** exponent for x >= 0 and a constant exponent."""
    if is_symbolic(x):
        from sympy import Float, Pow

        return Pow(x, Float(exponent))
    return x**exponent


def where(low: Num, high: Num, a: Num, b: Num) -> Num:
    """Return ``a`` where low <= high, else ``b``."""
    if is_symbolic(low, high, a, b):
        from sympy import Piecewise

        return Piecewise((a, low <= high), (b, True))
    if _is_array(low, high, a, b):
        import numpy

        return numpy.where(low <= high, a, b)
    return a if low <= high else b


def smooth_max(a: Num, b: Num, knee: int) -> Num:
    """Return (a^knee + b^knee)^(1/knee) for a knee of 1 (no overlap), 2 or 4 (nearly the maximum).

    Only these three, since they need no general power, which is ten times dearer than a square root.

    Raises:
        ValueError: another knee.
    """
    if knee == 1:
        return a + b
    if knee == 2:
        return sqrt(a * a + b * b)
    if knee == 4:
        aa, bb = a * a, b * b
        return sqrt(sqrt(aa * aa + bb * bb))
    raise ValueError(f"a knee is 1, 2 or 4, not {knee}")
