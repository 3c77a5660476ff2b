"""Interned integer polynomials: the values that symbolic sizes are.

An `Expr` is a sum of integer coefficients times monomials; a monomial is a product of powers of atoms; an
atom is a symbol or an opaque term (`floordiv`, `min`, `max`). Everything is hash-consed, so equality of
canonical forms is identity. A constant is always a plain `int`, never an `Expr`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from layoutcheck.errors import InputError

MAX_TERMS = 4096
"""Largest number of terms in one size; a real one has fewer than ten."""
MAX_BITS = 4096
"""Largest coefficient, in bits."""
_MEMO_LIMIT = 200_000

SymbolArgs: TypeAlias = "tuple[str, bool, str]"


class Atom:
    """An indivisible factor. `kind` is `sym`, `floordiv`, `min` or `max`.

    `args` is `(name, positive, shown name)` of a symbol, else a tuple of sizes.
    """

    __slots__ = ("args", "key", "kind", "text")
    kind: str
    args: tuple[Any, ...]
    key: tuple[int, str]
    text: str

    def __repr__(self) -> str:
        return self.text

    def __reduce__(self) -> tuple[Any, ...]:
        return (atom, (self.kind, self.args))


class Mono:
    """An interned product of atom powers. `factors` is sorted by the atoms' keys; `key` orders
    monomials lexicographically, largest first, so that the constant comes last."""

    __slots__ = ("factors", "key")
    factors: tuple[tuple[Atom, int], ...]
    key: tuple[tuple[tuple[int, str], int], ...]


_KIND_RANK = {"sym": 0, "floordiv": 1, "min": 2, "max": 3}
_LAST = ((9, ""), 0)
_ATOMS: dict[tuple[str, tuple[Any, ...]], Atom] = {}
_MONOS: dict[tuple[tuple[Atom, int], ...], Mono] = {}
_EXPRS: dict[tuple[tuple[Mono, int], ...], Expr] = {}
_ADD: dict[tuple[Size, Size], Size] = {}
_MUL: dict[tuple[Size, Size], Size] = {}
_DIV: dict[tuple[Size, Size], Size | None] = {}


def atom(kind: str, args: tuple[Any, ...]) -> Atom:
    """The interned atom of this kind and these arguments (already canonical)."""
    found = _ATOMS.get((kind, args))
    if found is None:
        from layoutcheck.sizes.printing import atom_text

        found = Atom.__new__(Atom)
        found.kind = kind
        found.args = args
        found.text = atom_text(kind, args)
        # The plain name orders symbols: a shown name is for people only.
        found.key = (_KIND_RANK[kind], args[0] if kind == "sym" else found.text)
        _ATOMS[kind, args] = found
    return found


def mono(factors: tuple[tuple[Atom, int], ...]) -> Mono:
    """The interned monomial of factors sorted by key."""
    found = _MONOS.get(factors)
    if found is None:
        found = Mono.__new__(Mono)
        found.factors = factors
        found.key = (*((a.key, -power) for a, power in factors), _LAST)
        _MONOS[factors] = found
    return found


ONE = mono(())


def mono_mul(a: Mono, b: Mono) -> Mono:
    """Product of two monomials."""
    if not a.factors:
        return b
    if not b.factors:
        return a
    powers = dict(a.factors)
    for factor, power in b.factors:
        powers[factor] = powers.get(factor, 0) + power
    return mono(tuple(sorted(powers.items(), key=_factor_key)))


def mono_div(a: Mono, b: Mono) -> Mono | None:
    """`a / b`, or None where `b` does not divide `a`."""
    if not b.factors:
        return a
    powers = dict(a.factors)
    for factor, power in b.factors:
        left = powers.get(factor, 0) - power
        if left < 0:
            return None
        if left:
            powers[factor] = left
        else:
            del powers[factor]
    return mono(tuple(powers.items()))


def _factor_key(item: tuple[Atom, int]) -> tuple[int, str]:
    return item[0].key


def _term_key(item: tuple[Mono, int]) -> Any:
    return item[0].key


def _is_size(value: object) -> bool:
    return isinstance(value, Expr) or (isinstance(value, int) and not isinstance(value, bool))


class Expr:
    """A non-constant integer polynomial. Immutable and interned: compare with `is`.

    `terms` are `(monomial, coefficient)` pairs, leading term first. `+ - * // % **` and unary minus give a
    plain int where the result is constant.
    """

    __slots__ = ("__weakref__", "_text", "terms")
    terms: tuple[tuple[Mono, int], ...]
    _text: str | None

    def __add__(self, other: Size) -> Size:
        return add(self, other) if _is_size(other) else NotImplemented

    __radd__ = __add__

    def __mul__(self, other: Size) -> Size:
        return multiply(self, other) if _is_size(other) else NotImplemented

    __rmul__ = __mul__

    def __neg__(self) -> Size:
        return multiply(self, -1)

    def __sub__(self, other: Size) -> Size:
        return add(self, -other) if _is_size(other) else NotImplemented

    def __rsub__(self, other: Size) -> Size:
        return add(multiply(self, -1), other) if _is_size(other) else NotImplemented

    def __floordiv__(self, other: Size) -> Size:
        from layoutcheck.sizes.division import floordiv

        return floordiv(self, other) if _is_size(other) else NotImplemented

    def __rfloordiv__(self, other: Size) -> Size:
        from layoutcheck.sizes.division import floordiv

        return floordiv(other, self) if _is_size(other) else NotImplemented

    def __mod__(self, other: Size) -> Size:
        from layoutcheck.sizes.division import modulo

        return modulo(self, other) if _is_size(other) else NotImplemented

    def __rmod__(self, other: Size) -> Size:
        from layoutcheck.sizes.division import modulo

        return modulo(other, self) if _is_size(other) else NotImplemented

    def __pow__(self, exponent: int) -> Size:
        return power(self, exponent)

    def __str__(self) -> str:
        if self._text is None:
            from layoutcheck.sizes.printing import expr_text

            self._text = expr_text(self)
        return self._text

    __repr__ = __str__

    def __copy__(self) -> Expr:
        return self

    def __deepcopy__(self, memo: object) -> Expr:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (tuple((m.factors, c) for m, c in self.terms),))


Size: TypeAlias = int | Expr


def _rebuild(terms: tuple[tuple[tuple[tuple[Atom, int], ...], int], ...]) -> Size:
    return from_terms({mono(tuple(sorted(factors, key=_factor_key))): c for factors, c in terms})


def from_terms(terms: Mapping[Mono, int]) -> Size:
    """The size with these coefficients; zero ones are dropped."""
    items = [item for item in terms.items() if item[1]]
    if len(items) > 1:
        items.sort(key=_term_key)
    if not items:
        return 0
    if len(items) == 1 and items[0][0] is ONE:
        return items[0][1]
    if len(items) > MAX_TERMS:
        raise InputError(f"a size has more than {MAX_TERMS} terms")
    key = tuple(items)
    found = _EXPRS.get(key)
    if found is None:
        found = Expr.__new__(Expr)
        found.terms = key
        found._text = None
        _EXPRS[key] = found
    return found


def terms_of(e: Size) -> tuple[tuple[Mono, int], ...]:
    """Terms of any size, an int included."""
    if isinstance(e, Expr):
        return e.terms
    return ((ONE, e),) if e else ()


def of_atom(a: Atom) -> Expr:
    """The size that is this atom alone."""
    result = from_terms({mono(((a, 1),)): 1})
    assert isinstance(result, Expr)
    return result


def sym(name: str, positive: bool = True, shown: str | None = None) -> Expr:
    """The symbol `name`, an integer; at least 1 unless `positive` is False.

    `shown` is what it prints as (`T/4` for the symbol that stands for a quarter of T).
    """
    return of_atom(atom("sym", (name, positive, shown or name)))


def symbol_name(e: Size) -> str | None:
    """Name of a size that is one symbol, else None."""
    a = single_atom(e)
    return a.args[0] if a is not None and a.kind == "sym" else None


def single_atom(e: Size) -> Atom | None:
    """The atom that `e` is, or None."""
    if isinstance(e, Expr) and len(e.terms) == 1:
        m, c = e.terms[0]
        if c == 1 and len(m.factors) == 1 and m.factors[0][1] == 1:
            return m.factors[0][0]
    return None


def constant_of(e: Size) -> int:
    """The constant term."""
    if isinstance(e, Expr):
        last, c = e.terms[-1]
        return c if last is ONE else 0
    return e


def add(a: Size, b: Size) -> Size:
    """`a + b`."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    key = (a, b)
    found = _ADD.get(key)
    if found is None:
        total = dict(terms_of(a))
        for m, c in terms_of(b):
            total[m] = total.get(m, 0) + c
        found = from_terms(total)
        _remember(_ADD, key, found)
    return found


def add_all(sizes: Iterable[Size]) -> Size:
    """Sum of many sizes."""
    total: dict[Mono, int] = {}
    for size in sizes:
        for m, c in terms_of(size):
            total[m] = total.get(m, 0) + c
    return from_terms(total)


def multiply(a: Size, b: Size) -> Size:
    """`a * b`, expanded. Raises InputError where that has absurdly many terms or digits."""
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    key = (a, b)
    found = _MUL.get(key)
    if found is None:
        left, right = terms_of(a), terms_of(b)
        if len(left) * len(right) > MAX_TERMS:
            raise InputError(f"a product of sizes has more than {MAX_TERMS} terms")
        total: dict[Mono, int] = {}
        for m1, c1 in left:
            for m2, c2 in right:
                m = mono_mul(m1, m2)
                total[m] = total.get(m, 0) + c1 * c2
        if any(c.bit_length() > MAX_BITS for c in total.values()):
            raise InputError("a size has a coefficient that is absurdly large")
        found = from_terms(total)
        _remember(_MUL, key, found)
    return found


def power(base: Size, exponent: int) -> Size:
    """`base ** exponent` for a small exponent >= 0. Raises InputError for others."""
    if exponent < 0 or exponent > 8:
        raise InputError(f"power with exponent {exponent} in a size")
    result: Size = 1
    for _ in range(exponent):
        result = multiply(result, base)
        if isinstance(result, int) and result.bit_length() > MAX_BITS:
            raise InputError("a size is absurdly large")
    return result


def _remember(memo: dict[Any, Any], key: object, value: object) -> None:
    if len(memo) > _MEMO_LIMIT:
        memo.clear()
    memo[key] = value


def divide_exact(a: Size, b: Size) -> Size | None:
    """The polynomial q with `q * b == a`, or None where there is none (or b is 0)."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b if b and a % b == 0 else None
    if a is b:
        return 1
    if b == 1:
        return a
    key = (a, b)
    if key in _DIV:
        return _DIV[key]
    quotient, rest = divide_terms(a, b, exact=True)
    found = quotient if rest == 0 and b != 0 else None
    _remember(_DIV, key, found)
    return found


def divide_terms(a: Size, b: Size, exact: bool = False) -> tuple[Size, Size]:
    """Polynomial long division: `(q, r)` with `a == q*b + r`, no term of r divisible by b's leading term
    (coefficients leave a non-negative remainder). With `exact`, stops at the first term that is left."""
    divisor = terms_of(b)
    if not divisor:
        return 0, a
    lead, lead_c = divisor[0]
    left = dict(terms_of(a))
    quotient: dict[Mono, int] = {}
    rest: dict[Mono, int] = {}
    steps = 0
    while left:
        steps += 1
        # A size this long is nobody's; giving up is always right, only less canonical.
        if steps > 1024 or len(left) > 256:
            return 0, a
        m = min(left, key=lambda x: x.key) if len(left) > 1 else next(iter(left))
        c = left.pop(m)
        ratio = mono_div(m, lead)
        q, r = divmod(c, lead_c) if ratio is not None else (0, c)
        if r:
            if exact:
                return 0, a
            rest[m] = rest.get(m, 0) + r
        if q and ratio is not None:
            quotient[ratio] = quotient.get(ratio, 0) + q
            for m2, c2 in divisor[1:]:
                product = mono_mul(ratio, m2)
                c = left.get(product, 0) - q * c2
                if c:
                    left[product] = c
                else:
                    left.pop(product, None)
    return from_terms(quotient), from_terms(rest)
