"""Floor division in canonical form, so that equal spellings of a share become one object.

`floor(n/d)`: whole multiples of d leave the numerator, common factors cancel, nested divisions merge, and of
the two spellings `floor(n/d) == -floor((d - 1 - n)/d)` one is chosen. So `(T+p-1)//p` and `-((-T)//p)` are
identical, for a number p and for a symbol.
"""

from __future__ import annotations

from math import gcd

from layoutcheck.sizes.bounds import interval, lower_bound
from layoutcheck.sizes.core import (
    ONE,
    Expr,
    Mono,
    Size,
    _remember,
    add,
    atom,
    constant_of,
    divide_exact,
    divide_terms,
    from_terms,
    mono,
    mono_div,
    multiply,
    of_atom,
    terms_of,
)

_FLOORDIV: dict[tuple[Size, Size], Size] = {}


def floordiv(a: Size, b: Size) -> Size:
    """`a // b` rounded down, canonical. Raises ZeroDivisionError for b = 0."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    key = (a, b)
    found = _FLOORDIV.get(key)
    if found is None:
        found = _by_int(a, b) if isinstance(b, int) else _by_expr(a, b)
        _remember(_FLOORDIV, key, found)
    return found


def cdiv(a: Size, b: Size) -> Size:
    """`a / b` rounded up: the largest share of a cut in b."""
    return multiply(floordiv(multiply(a, -1), b), -1)


def modulo(a: Size, b: Size) -> Size:
    """`a - b * (a // b)`, Python's `%`."""
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    return add(a, multiply(multiply(floordiv(a, b), b), -1))


def _merge_nested(n: Size, d: Size) -> Size | None:
    """`(floor(x/y) + r) // d` as `(x + y*r) // (y*d)`, where n holds exactly one such term, else None."""
    inner: tuple[Mono, int] | None = None
    for m, c in terms_of(n):
        if any(a.kind == "floordiv" for a, _ in m.factors):
            if inner is not None:
                return None
            inner = (m, c)
    if inner is None or abs(inner[1]) != 1 or len(inner[0].factors) != 1 or inner[0].factors[0][1] != 1:
        return None
    num, den = inner[0].factors[0][0].args
    low = lower_bound(den)
    if low is None or low < 1:
        return None
    sign = inner[1]
    rest = add(n, from_terms({inner[0]: -sign}))
    merged = add(multiply(num, sign), multiply(den, rest))
    if sign < 0:
        # -floor(x/y) == floor((y - 1 - x)/y)
        merged = add(merged, add(den, -1))
    return floordiv(merged, multiply(den, d))


def _by_int(a: Size, d: int) -> Size:
    if d == 0:
        raise ZeroDivisionError("division of a size by zero")
    if d < 0:
        return floordiv(multiply(a, -1), -d)
    # Before coefficients are reduced: (T - ceil(T/2))//2 is T//4; (T + ceil(T/2))//2 - ceil(T/2) hides it.
    merged = _merge_nested(a, d)
    if merged is not None:
        return merged
    whole, rest, d = _reduce(a, d)
    if isinstance(rest, int):
        return add(whole, rest // d)
    merged = _merge_nested(rest, d)
    if merged is not None:
        return add(whole, merged)
    sign = 1
    if _should_flip(rest, d):
        sign = -1
        flipped, rest, d = _reduce(add(multiply(rest, -1), d - 1), d)
        whole = add(whole, multiply(flipped, -1))
    low, high = interval(rest)
    if low is not None and high is not None and low // d == high // d:
        return add(whole, sign * (low // d))
    return add(whole, multiply(of_atom(atom("floordiv", (rest, d))), sign))


def _reduce(a: Size, d: int) -> tuple[Size, Size, int]:
    """`a // d` as `whole + rest // d'`: coefficients of rest in (-d'/2, d'/2], its constant in [0, d')."""
    whole: dict[Mono, int] = {}
    rest: dict[Mono, int] = {}
    common = d
    for m, c in terms_of(a):
        if m is ONE:
            continue
        q, r = divmod(c, d)
        if 2 * r > d:
            q, r = q + 1, r - d
        whole[m] = q
        if r:
            rest[m] = r
            common = gcd(common, r)
    # floor((g*x + k)/(g*y)) == floor((x + floor(k/g))/y)
    d //= common
    q, r = divmod(constant_of(a) // common, d)
    whole[ONE] = q
    rest = {m: c // common for m, c in rest.items()}
    rest[ONE] = r
    return from_terms(whole), from_terms(rest), d


def _should_flip(rest: Expr, d: int) -> bool:
    for m, c in rest.terms:
        if m is not ONE and 2 * abs(c) != d:
            return c < 0
    # Only halves: floor(x/2) and x - ceil(x/2) tie, and the rounded-up one is kept.
    return constant_of(rest) == 0


def _by_expr(a: Size, b: Expr) -> Size:
    exact = divide_exact(a, b)
    if exact is not None:
        return exact
    low, high = interval(b)
    if high is not None and high < 0:
        return floordiv(multiply(a, -1), multiply(b, -1))
    if low is None or low < 1:
        return of_atom(atom("floordiv", (a, b)))
    whole, rest = divide_terms(a, b)
    rest, den = _cancel(rest, b)
    if isinstance(den, int):
        return add(whole, floordiv(rest, den))
    merged = _merge_nested(rest, den)
    if merged is not None:
        return add(whole, merged)
    sign = 1
    if _leads_negative(rest, den):
        sign = -1
        flipped, rest = divide_terms(add(multiply(rest, -1), add(den, -1)), den)
        whole = add(whole, multiply(flipped, -1))
    if constant_of(rest) < 0:
        rest = add(rest, den)
        whole = add(whole, -sign)
    value = _decided(rest, den)
    if value is not None:
        return add(whole, sign * value)
    return add(whole, multiply(of_atom(atom("floordiv", (rest, den))), sign))


def _decided(rest: Size, den: Expr) -> int | None:
    """The quotient where bounds alone decide that it is 0 or -1."""
    low, high = interval(rest)
    if low is not None and low >= 0:
        gap = lower_bound(add(den, multiply(rest, -1)))
        if gap is not None and gap >= 1:
            return 0
    elif high is not None and high < 0:
        gap = lower_bound(add(den, rest))
        if gap is not None and gap >= 0:
            return -1
    return None


def _leads_negative(rest: Size, den: Expr) -> bool:
    lead = den.terms[0][0]
    for m, c in terms_of(rest):
        if m is not ONE and mono_div(m, lead) is None:
            return c < 0
    return False


def _cancel(rest: Size, den: Expr) -> tuple[Size, Size]:
    """Divide numerator and denominator by their common number and their common atoms."""
    constant = constant_of(rest)
    varying = [(m, c) for m, c in terms_of(rest) if m is not ONE]
    g = 0
    for _, c in (*varying, *den.terms):
        g = gcd(g, c)
    if g > 1:
        constant //= g
        varying = [(m, c // g) for m, c in varying]
        den_size = from_terms({m: c // g for m, c in den.terms})
        assert isinstance(den_size, Expr)
        den = den_size
    shared = _shared_atoms([m for m, _ in (*varying, *den.terms)])
    if shared is not None and varying:
        # floor((m*x + k)/(m*y)) == floor((x + floor(k/m))/y); only where floor(k/m) is a number.
        low = lower_bound(shared)
        carried = 0 if constant == 0 else floordiv(constant, shared)
        if low is not None and low >= 1 and isinstance(carried, int):
            factor = shared.terms[0][0]
            smaller = {mono_div(m, factor) or ONE: c for m, c in varying}
            numerator = add(from_terms(smaller), carried)
            return numerator, from_terms({mono_div(m, factor) or ONE: c for m, c in den.terms})
    return add(from_terms(dict(varying)), constant), den


def _shared_atoms(monos: list[Mono]) -> Expr | None:
    powers = dict(monos[0].factors)
    for m in monos[1:]:
        here = dict(m.factors)
        powers = {a: min(p, here[a]) for a, p in powers.items() if a in here}
        if not powers:
            return None
    result = from_terms({mono(tuple(powers.items())): 1})
    return result if isinstance(result, Expr) else None
