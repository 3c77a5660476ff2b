"""Domains (sets of tokens or features) and factors (digits of a domain's index).

A domain is interned and structural: two domains built the same way are the same object, and equal
extents never make domains equal. A factor is one digit of a domain's index in mixed radix, named by its stride and extent
(the way CuTe names modes): `Factor(t, 1, N)` is the whole of `t`; cutting `t` in `p` equal shares
gives the major digit `Factor(t, N/p, p)` and the minor digit `Factor(t, 1, N/p)`.
"""

from __future__ import annotations

from typing import Any

from layoutcheck.symbols import Size, divide_exact

FEATURE = "feature"
ANY = "any"
TOKEN = "token"
VARIABLE = "variable"
IOTA = "iota"

_FEATURE_LIKE = frozenset((FEATURE, ANY))


class Domain:
    """A set with an extent. Use the constructor functions below; instances are interned.

    Attributes:
        kind: `token`, `feature`, `any` (a constant fill, equal to every domain of its extent), `variable`
            (an anonymous input's axis, not yet known), `iota` (0, 1, 2, ... of an arange), or a derived kind: `pad`, `range`,
            `pick`, `concat`, `flat`, `routed`, `received`, `permuted`, `repeat`.
        name: what is printed for base domains.
        extent: number of elements over all ranks.
        args: what a derived domain is made from.
    """

    __slots__ = ("args", "extent", "is_feature", "kind", "name", "whole")

    kind: str
    name: str
    extent: Size
    args: tuple[Any, ...]
    is_feature: bool
    whole: Factor

    def __repr__(self) -> str:
        return describe(self)


class Factor:
    """A digit of a domain's index: `stride` elements apart, `extent` values. Interned."""

    __slots__ = ("domain", "extent", "is_whole", "stride")

    domain: Domain
    stride: Size
    extent: Size
    is_whole: bool

    def __repr__(self) -> str:
        return f"Factor({self.domain!r}, {self.stride}, {self.extent})"


_domains: dict[tuple[Any, ...], Domain] = {}
_factors: dict[tuple[Any, ...], Factor] = {}


def _domain(kind: str, name: str, extent: Size, args: tuple[Any, ...] = ()) -> Domain:
    key = (kind, name, extent, args)
    found = _domains.get(key)
    if found is None:
        found = Domain()
        found.kind, found.name, found.extent, found.args = kind, name, extent, args
        found.is_feature = kind in _FEATURE_LIKE
        _domains[key] = found
        found.whole = factor(found, 1, extent)
    return found


def factor(domain: Domain, stride: Size, extent: Size) -> Factor:
    """The interned digit of `domain` with this stride and extent."""
    key = (domain, stride, extent)
    found = _factors.get(key)
    if found is None:
        found = Factor()
        found.domain, found.stride, found.extent = domain, stride, extent
        found.is_whole = stride == 1 and extent == domain.extent
        _factors[key] = found
    return found


def token(name: str, extent: Size) -> Domain:
    """A named token domain."""
    return _domain(TOKEN, name, extent)


def feature(extent: Size) -> Domain:
    """The feature of this extent. Features are structural: sizes, not names, tell them apart."""
    return _domain(FEATURE, "", extent)


def anything(extent: Size, place: tuple[Size, Size] | None = None) -> Domain:
    """The axis of a constant fill, which fits every domain of its extent.

    `place` says where a slice was taken from: its start, and how many elements there were.
    """
    return _domain(ANY, "", extent, place or ())


def variable(name: str, axis: int, extent: Size) -> Domain:
    """The domain variable of axis `axis` of the anonymous input `name`."""
    return _domain(VARIABLE, name, extent, (axis,))


def iota(extent: Size) -> Domain:
    """The axis of an `arange`: its elements are 0, 1, 2, ... in order."""
    return _domain(IOTA, "", extent)


def padded(base: Domain, extent: Size) -> Domain:
    """`base` followed by padding, up to `extent` elements."""
    if extent == base.extent:
        return base
    if base.kind == "pad":
        base = base.args[0]
        if extent == base.extent:
            return base
    return _domain("pad", "", extent, (base,))


def ranged(of: Factor, start: Size, length: Size) -> Domain:
    """Elements `start .. start + length` of a factor: a constant slice, the same on every rank."""
    if start == 0 and length == of.extent and of.is_whole:
        return of.domain
    if of.is_whole and of.domain.kind == "range":
        inner: Factor = of.domain.args[0]
        return ranged(inner, of.domain.args[1] + start, length)
    return _domain("range", "", length, (of, start))


Digit = tuple[Size, int, int]


def pick(base: Domain, fixed: tuple[Digit, ...]) -> Domain:
    """The elements of a domain of which some digits `(stride, extent, index)` are fixed; the other digits keep their strides."""
    if base.kind == "pick":
        fixed = base.args[1] + fixed
        base = base.args[0]
    if not fixed:
        return base
    extent = base.extent
    for _, count, _ in fixed:
        left = divide_exact(extent, count)
        extent = left if left is not None else extent
    return _domain("pick", "", extent, (base, tuple(sorted(fixed, key=str))))


def unpicked(domain: Domain) -> tuple[Domain, tuple[Digit, ...]]:
    """A picked domain's base and fixed digits; the domain itself and none for others."""
    if domain.kind == "pick":
        return domain.args[0], domain.args[1]
    return domain, ()


def concatenated(parts: tuple[tuple[Factor, ...], ...], extent: Size) -> Domain:
    """The parts one after another."""
    return _domain("concat", "", extent, parts)


def flat(parts: tuple[Factor, ...]) -> Domain:
    """One domain for a product of factors, major to minor."""
    extent: Size = 1
    for part in parts:
        extent = extent * part.extent
    return _domain("flat", "", extent, parts)


def repeated(of: Factor, times: Size, interleaved: bool) -> Domain:
    """Every element of a factor `times` times, beside each other or the whole over again."""
    return _domain("repeat", "", of.extent * times, (of, times, interleaved))


def permuted(rows: tuple[Factor, ...], extent: Size, label: str) -> Domain:
    """The rows in an order that data decides (a sort); `label` names the order."""
    return _domain("permuted", label, extent, rows)


def routed(rows: tuple[Factor, ...], bound: tuple[Any, ...], extent: Size, label: str) -> Domain:
    """Rows of a rank's tokens, grouped by the expert that top-k ids chose; `bound` says whose tokens they are."""
    return _domain("routed", label, extent, (rows, bound))


def received(sent: Domain, axes: tuple[int, ...], bound: tuple[Any, ...], extent: Size) -> Domain:
    """What a rank holds after `sent` was exchanged over mesh axes: all ranks' rows for its own experts.

    `bound` is what the ranks of these axes selected before, which the way back restores.
    """
    return _domain("received", "", extent, (sent, axes, bound))


def opaque(what: str, extent: Size, args: tuple[Any, ...] = ()) -> Domain:
    """A domain about which only its making is known (a strided slice, a data-dependent choice)."""
    return _domain("opaque", what, extent, args)


def base_of(domain: Domain) -> Domain:
    """The domain that this one was derived from, at the far end; itself for base domains."""
    seen = domain
    while seen.args:
        first = seen.args[0]
        if isinstance(first, Factor):
            seen = first.domain
        elif isinstance(first, Domain):
            seen = first
        elif isinstance(first, tuple) and first and isinstance(first[0], Factor):
            seen = first[0].domain
        else:
            return seen
    return seen


def is_token_like(domain: Domain) -> bool:
    """Whether the domain is a token domain or derived from one."""
    return base_of(domain).kind in (TOKEN, VARIABLE)


def holds_padding(domain: Domain) -> bool:
    """Whether some of the rows are a token domain's padding, also behind a constant slice or a choice of pieces."""
    if domain.kind == "pad":
        return is_token_like(domain)
    if domain.kind == "range":
        inner: Factor = domain.args[0]
        end = domain.args[1] + domain.extent
        if inner.is_whole and inner.domain.kind == "pad":
            tokens = inner.domain.args[0].extent
            if isinstance(end, int) and isinstance(tokens, int) and end <= tokens:
                return False
        return holds_padding(inner.domain)
    return domain.kind == "pick" and holds_padding(domain.args[0])


def split(of: Factor, minor_extent: Size) -> tuple[Factor, Factor] | None:
    """Major and minor digit of a factor, the minor with `minor_extent`; None if it does not divide."""
    major = divide_exact(of.extent, minor_extent)
    if major is None:
        return None
    return factor(of.domain, of.stride * minor_extent, major), factor(of.domain, of.stride, minor_extent)


def merge(major: Factor, minor: Factor) -> Factor | None:
    """The one digit that two adjacent digits of a domain make, or None."""
    if major.domain is minor.domain and major.stride == minor.stride * minor.extent:
        return factor(major.domain, minor.stride, major.extent * minor.extent)
    return None


def _factor_text(of: Factor) -> str:
    text = describe(of.domain)
    if of.is_whole:
        return text
    if of.stride == 1:
        return f"{text}.minor{of.extent}"
    return f"{text}.major{of.extent}"


def describe(domain: Domain) -> str:
    """The printed name of a domain, as in `pad(T, 4112)`."""
    kind, args = domain.kind, domain.args
    if kind in (FEATURE, ANY):
        return str(domain.extent)
    if kind == TOKEN:
        return domain.name
    if kind == VARIABLE:
        return f"{domain.name}.{args[0]}"
    if kind == IOTA:
        return f"0..{domain.extent}"
    if kind == "pad":
        return f"pad({describe(args[0])}, {domain.extent})"
    if kind == "range":
        start = args[1]
        what = "prefix" if start == 0 else "range"
        return f"{what}({_factor_text(args[0])}, {start}, {start + domain.extent})"
    if kind == "pick":
        at = ", ".join(f"{index} of {count}" for _, count, index in args[1])
        return f"pick({describe(args[0])}, {at})"
    if kind == "concat":
        parts = ["*".join(_factor_text(f) for f in part) or "1" for part in args[:4]]
        if len(args) > 4:
            parts.append(f"... {len(args)} parts")
        return f"concat({', '.join(parts)})"
    if kind == "flat":
        return "*".join(_factor_text(f) for f in args)
    if kind == "repeat":
        return f"repeat({_factor_text(args[0])}, {args[1]})"
    if kind == "permuted":
        return f"permuted({'*'.join(_factor_text(f) for f in args)})"
    if kind == "routed":
        return f"routed({'*'.join(_factor_text(f) for f in args[0])})"
    if kind == "received":
        return f"received({describe(args[0])})"
    return f"{domain.name}({domain.extent})"
