"""What is known of a size's value: intervals, and `min` / `max` that drop what bounds decide."""

from __future__ import annotations

from collections.abc import Mapping
from math import lcm
from typing import NamedTuple, TypeAlias

from layoutcheck.errors import InputError
from layoutcheck.sizes.core import (
    ONE,
    Atom,
    Expr,
    Mono,
    Size,
    add,
    add_all,
    atom,
    divide_exact,
    from_terms,
    mono,
    mono_div,
    multiply,
    of_atom,
    power,
    single_atom,
    terms_of,
)

Interval: TypeAlias = tuple[int | None, int | None]
"""Inclusive lower and upper bound; None is unbounded."""
MAX_ARGUMENTS = 64
_FUEL = 3
_MEMO_LIMIT = 100_000


class Bounds:
    """Known ranges of symbols (by name) and `facts`, sizes known to be >= 0. Symbols without a range are
    >= 1 where they are positive symbols, else unbounded."""

    __slots__ = ("_memo", "facts", "ranges")

    def __init__(self, ranges: Mapping[str, Interval] | None = None, facts: tuple[Size, ...] = ()) -> None:
        self.ranges: dict[str, Interval] = dict(ranges or {})
        self.facts: tuple[Size, ...] = facts
        self._memo: dict[tuple[Expr, int], Interval] = {}

    def symbol(self, a: Atom) -> Interval:
        """Range of a symbol's atom."""
        low, high = self.ranges.get(a.args[0], (None, None))
        if a.args[1] and (low is None or low < 1):
            low = 1
        return low, high


DEFAULT = Bounds()


def interval(e: Size, bounds: Bounds | Mapping[str, Interval] | None = None) -> Interval:
    """Lower and upper bound of `e`: sound, not always tight."""
    if isinstance(e, int):
        return e, e
    if bounds is None:
        bounds = DEFAULT
    elif not isinstance(bounds, Bounds):
        bounds = Bounds(bounds)
    return _interval(e, bounds, _FUEL)


def lower_bound(e: Size, bounds: Bounds | Mapping[str, Interval] | None = None) -> int | None:
    """A number that `e` is never below, or None."""
    return interval(e, bounds)[0]


def upper_bound(e: Size, bounds: Bounds | Mapping[str, Interval] | None = None) -> int | None:
    """A number that `e` is never above, or None."""
    return interval(e, bounds)[1]


def known_positive(e: Size, bounds: Bounds | Mapping[str, Interval] | None = None) -> bool:
    """Is `e` certainly >= 1?"""
    low = lower_bound(e, bounds)
    return low is not None and low >= 1


def _interval(e: Size, bounds: Bounds, fuel: int) -> Interval:
    if isinstance(e, int):
        return e, e
    found = bounds._memo.get((e, fuel))
    if found is None:
        found = _compute(e, bounds, fuel)
        if len(bounds._memo) > _MEMO_LIMIT:
            bounds._memo.clear()
        bounds._memo[e, fuel] = found
    return found


def _compute(e: Expr, bounds: Bounds, fuel: int) -> Interval:
    low: int | None = 0
    high: int | None = 0
    opaque = False
    for m, c in e.terms:
        opaque = opaque or any(a.kind != "sym" for a, _ in m.factors)
        mlow, mhigh = _mono_interval(m, bounds, fuel)
        if c < 0:
            mlow, mhigh = mhigh, mlow
        low = None if low is None or mlow is None else low + c * mlow
        high = None if high is None or mhigh is None else high + c * mhigh
    if fuel <= 0 or len(e.terms) > 64:
        return low, high
    if opaque and len(e.terms) > 1:
        for other in (_relaxed(e, bounds, fuel), _by_cases(e, bounds, fuel)):
            low, high = _tighter((low, high), other)
    for fact in bounds.facts:
        step = _interval(add(e, multiply(fact, -1)), bounds, fuel - 1)[0]
        low, high = _tighter((low, high), (step, None))
        step = _interval(add(e, fact), bounds, fuel - 1)[1]
        low, high = _tighter((low, high), (None, step))
    return low, high


def _tighter(a: Interval, b: Interval) -> Interval:
    lows = [x for x in (a[0], b[0]) if x is not None]
    highs = [x for x in (a[1], b[1]) if x is not None]
    return max(lows) if lows else None, min(highs) if highs else None


def _mono_interval(m: Mono, bounds: Bounds, fuel: int) -> Interval:
    result: Interval = (1, 1)
    for a, p in m.factors:
        one = _atom_interval(a, bounds, fuel)
        for _ in range(p):
            result = _product(result, one)
    return result


def _product(a: Interval, b: Interval) -> Interval:
    (al, ah), (bl, bh) = a, b
    if al is not None and bl is not None and al >= 0 and bl >= 0:
        return al * bl, None if ah is None or bh is None else ah * bh
    if al is None or ah is None or bl is None or bh is None:
        return None, None
    corners = (al * bl, al * bh, ah * bl, ah * bh)
    return min(corners), max(corners)


def _atom_interval(a: Atom, bounds: Bounds, fuel: int) -> Interval:
    if a.kind == "sym":
        return bounds.symbol(a)
    if a.kind == "floordiv":
        return _floordiv_interval(a.args[0], a.args[1], bounds, fuel)
    parts = [_interval(x, bounds, fuel - 1) for x in a.args]
    lows = [x[0] for x in parts if x[0] is not None]
    highs = [x[1] for x in parts if x[1] is not None]
    if a.kind == "min":
        return min(lows) if len(lows) == len(parts) else None, min(highs, default=None)
    return max(lows, default=None), max(highs) if len(highs) == len(parts) else None


def _floordiv_interval(num: Size, den: Size, bounds: Bounds, fuel: int) -> Interval:
    dlow, dhigh = _interval(den, bounds, fuel - 1)
    if dlow is None or dlow < 1:
        return None, None
    low, high = _interval(num, bounds, fuel - 1)
    qlow: int | None = None
    qhigh: int | None = None
    if low is not None:
        # A fraction is least where its numerator is least and, if that is negative, its denominator.
        qlow = low // dlow if low < 0 else (0 if dhigh is None else low // dhigh)
        if dhigh is None and qlow == 0 and fuel > 0:
            step = _interval(add(num, multiply(den, -1)), bounds, fuel - 1)[0]
            qlow = 1 if step is not None and step >= 0 else 0
    if high is not None:
        qhigh = high // dlow if high >= 0 else (-1 if dhigh is None else high // dhigh)
    return qlow, qhigh


def _relaxed(e: Expr, bounds: Bounds, fuel: int) -> Interval:
    """Bounds with each `k*floor(x/y)` replaced by what it is near: `(x - [0, y-1]) / y`, where y is a
    number or divides k, and else from above by `x - y + 1`."""
    factors: dict[Atom, dict[Mono, int]] = {}
    others: dict[Mono, int] = {}
    for m, c in e.terms:
        a = next((a for a, p in m.factors if a.kind == "floordiv" and p == 1), None)
        if a is None:
            others[m] = c
        else:
            factors.setdefault(a, {})[mono_div(m, mono(((a, 1),))) or ONE] = c
    found: list[_Near] = []
    scale = 1
    for a, terms in factors.items():
        factor = from_terms(terms)
        near = _near(a, factor, bounds, fuel)
        if near is None:
            others.update(terms_of(multiply(factor, of_atom(a))))
        else:
            found.append(near)
            scale = lcm(scale, near.divisor)
    if not found or scale.bit_length() > 256:
        return None, None
    ends: list[int | None] = []
    for want_low in (True, False):
        parts: list[Size] = [multiply(from_terms(others), scale)]
        for near in found:
            value = near.least if near.positive == want_low else near.greatest
            parts.append(multiply(multiply(near.factor, value), scale // near.divisor))
        ends.append(_interval(add_all(parts), bounds, fuel - 1)[0 if want_low else 1])
    return (
        None if ends[0] is None else -(-ends[0] // scale),
        None if ends[1] is None else ends[1] // scale,
    )


class _Near(NamedTuple):
    """`factor * floor`, where `floor * divisor` lies between `least` and `greatest` and factor has a sign."""

    factor: Size
    positive: bool
    divisor: int
    least: Size
    greatest: Size


def _near(a: Atom, factor: Size, bounds: Bounds, fuel: int) -> _Near | None:
    num, den = a.args
    low, high = _interval(factor, bounds, fuel - 1)
    positive = low is not None and low >= 0
    dlow = _interval(den, bounds, fuel - 1)[0]
    if dlow is None or dlow < 1 or not (positive or (high is not None and high <= 0)):
        return None
    least = add(num, multiply(add(den, -1), -1))
    if isinstance(den, int):
        return _Near(factor, positive, den, least, num)
    by_den = divide_exact(factor, den)
    if by_den is not None:
        return _Near(by_den, positive, 1, least, num)
    whole = _interval(add(num, multiply(den, -1)), bounds, fuel - 1)[0]
    if whole is None or whole < 0:
        return None
    # x >= y >= 1: 1 <= floor(x/y) <= x - y + 1, as (x - y)(y - 1) >= 0.
    return _Near(factor, positive, 1, 1, least)


def _by_cases(e: Expr, bounds: Bounds, fuel: int) -> Interval:
    """Bounds over the cases of the first `min` or `max`: it equals one of its arguments."""
    for m, _ in e.terms:
        for a, _p in m.factors:
            if a.kind in ("min", "max") and len(a.args) <= 8:
                return _cases(e, a, bounds, fuel)
    return None, None


def _cases(e: Expr, a: Atom, bounds: Bounds, fuel: int) -> Interval:
    single = mono(((a, 1),))
    coefficient: int | None = None
    uses = 0
    for m, c in e.terms:
        if any(x is a for x, _ in m.factors):
            uses += 1
            coefficient = c if m is single else None
    parts = [_interval(replace_atom(e, a, x), bounds, fuel - 1) for x in a.args]
    lows = [x[0] for x in parts]
    highs = [x[1] for x in parts]
    all_low = None if None in lows else min(x for x in lows if x is not None)
    all_high = None if None in highs else max(x for x in highs if x is not None)
    if uses == 1 and coefficient is not None:
        # min(..) <= each argument: one good argument is enough for the bound on that side.
        if (a.kind == "min") == (coefficient > 0):
            all_high = min((x for x in highs if x is not None), default=None)
        else:
            all_low = max((x for x in lows if x is not None), default=None)
    return all_low, all_high


def replace_atom(e: Size, a: Atom, value: Size) -> Size:
    """`e` with the polynomial's own uses of atom `a` replaced; uses inside other atoms stay."""
    parts: list[Size] = []
    for m, c in terms_of(e):
        p = next((p for x, p in m.factors if x is a), 0)
        if p == 0:
            parts.append(from_terms({m: c}))
        else:
            rest = mono_div(m, mono(((a, p),))) or ONE
            parts.append(multiply(from_terms({rest: c}), power(value, p)))
    return add_all(parts)


def smin(*sizes: Size, bounds: Bounds | None = None) -> Size:
    """The least of the sizes, canonical: flattened, sorted, without what bounds rule out."""
    return _extreme("min", sizes, bounds)


def smax(*sizes: Size, bounds: Bounds | None = None) -> Size:
    """The greatest of the sizes, canonical: flattened, sorted, without what bounds rule out."""
    return _extreme("max", sizes, bounds)


def _extreme(kind: str, sizes: tuple[Size, ...], bounds: Bounds | None) -> Size:
    if not sizes:
        raise InputError(f"{kind} of nothing")
    numbers: list[int] = []
    exprs: dict[Expr, None] = {}
    for size in sizes:
        a = single_atom(size)
        flat = a.args if a is not None and a.kind == kind else (size,)
        for x in flat:
            if isinstance(x, Expr):
                exprs[x] = None
            else:
                numbers.append(x)
    if len(exprs) > MAX_ARGUMENTS:
        raise InputError(f"{kind} of more than {MAX_ARGUMENTS} sizes")
    kept: list[Size] = []
    if numbers:
        kept.append(min(numbers) if kind == "min" else max(numbers))
    kept.extend(sorted(exprs, key=str))
    # Drop x where another y is never on the wrong side of it; of two equal ones the first stays.
    index = 0
    while index < len(kept):
        x = kept[index]
        if any(_beats(kind, y, x, bounds) for y in kept if y is not x):
            kept.pop(index)
        else:
            index += 1
    if len(kept) == 1:
        return kept[0]
    return of_atom(atom(kind, tuple(kept)))


def _beats(kind: str, y: Size, x: Size, bounds: Bounds | None) -> bool:
    gap = add(x, multiply(y, -1)) if kind == "min" else add(y, multiply(x, -1))
    low = interval(gap, bounds)[0]
    return low is not None and low >= 0
