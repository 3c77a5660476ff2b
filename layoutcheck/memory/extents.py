"""Local bytes of a layout as a size in the token counts, also where the graph holds numbers.

A static export has T as 4096. The layouts still know which axes count tokens: each factor is a digit of a domain, and
a domain derives from token domains. Their extents are lifted to symbols here, shares of them to ``ceil(T/p)``. A lifted
size that does not give the recorded number back is dropped for the number, so a formula is never wrong where it is known.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from layoutcheck.domains import TOKEN, Domain, Factor
from layoutcheck.errors import InputError
from layoutcheck.layouts import Layout
from layoutcheck.mesh import Mesh
from layoutcheck.symbols import Expr, Size, cdiv, evaluate, free_symbols, substitute, sym
from layoutcheck.units import DTYPE_BYTES


class Extents:
    """Sizes of one graph's layouts over its token symbols.

    Attributes:
        values: the recorded value of each symbol; those of a dynamic export have none until one is given.
    """

    def __init__(self, mesh: Mesh, symbols: frozenset[str] = frozenset()) -> None:
        self.values: dict[str, int] = {}
        self._symbols = symbols
        sizes = {a.size for a in mesh.axes} | {g.size for g in mesh.groups.values()}
        self._ways = sorted(s for s in sizes if isinstance(s, int) and s > 1)
        self._domains: dict[Domain, Size] = {}
        self._bytes: dict[Layout, Size] = {}

    def bytes_of(self, of: Any) -> Size:
        """Bytes that a rank holds of a value; 0 for what is no tensor.

        Raises:
            InputError: the dtype's width is not known.
        """
        if not isinstance(of, Layout):
            return 0
        found = self._bytes.get(of)
        if found is None:
            width = DTYPE_BYTES.get(of.dtype)
            if width is None:
                raise InputError(f"the width of dtype {of.dtype!r} is not known")
            found = self._bytes[of] = self._elements(of) * width
        return found

    def axis(self, axis: tuple[Factor, ...]) -> Size:
        """The local extent of one axis over the token symbols."""
        recorded = _product(f.extent for f in axis)
        lifted: Size = 1
        for digits in _grouped([axis]):
            lifted = lifted * self._digits(digits)
        return self._checked(lifted, recorded)

    def _elements(self, of: Layout) -> Size:
        total: Size = 1
        for digits in _grouped(of.axes):
            total = total * self._digits(digits)
        return self._checked(total, _product(of.shape))

    def _checked(self, lifted: Size, recorded: Size) -> Size:
        """The lifted size if it gives the recorded number, else the number."""
        if isinstance(recorded, Expr):
            back = substitute(lifted, dict(self.values)) if isinstance(lifted, Expr) else lifted
            return lifted if back is recorded else recorded
        if isinstance(lifted, int):
            return recorded
        known = free_symbols(lifted) <= self.values.keys()
        return lifted if known and evaluate(lifted, self.values) == recorded else recorded

    def _digits(self, digits: list[Factor]) -> Size:
        """The product of some digits of one domain."""
        local = _product([f.extent for f in digits])
        whole = digits[0].domain.extent
        if isinstance(local, Expr) or isinstance(whole, Expr):
            return local
        return _times(self.extent(digits[0].domain), Fraction(local, whole) if whole else Fraction(0))

    def extent(self, domain: Domain) -> Size:
        """The extent of a domain over the token symbols."""
        found = self._domains.get(domain)
        if found is None:
            self._domains[domain] = domain.extent
            lifted = self._lift(domain)
            found = self._domains[domain] = self._checked(lifted, domain.extent)
        return found

    def _lift(self, domain: Domain) -> Size:
        kind, args, extent = domain.kind, domain.args, domain.extent
        if isinstance(extent, Expr) or (not args and kind != TOKEN):
            return extent
        if kind == TOKEN:
            return self._symbol(domain.name, extent)
        if kind == "pad":
            return self._pad(self.extent(args[0]), args[0].extent, extent)
        if kind == "range":
            return self._range(args[0], extent)
        if kind == "pick":
            return _times(self.extent(args[0]), Fraction(extent, args[0].extent))
        if kind == "concat":
            total: Size = 0
            for part in args:
                total = total + self._stream(part)
            return total
        if kind in ("flat", "permuted"):
            return self._stream(args)
        if kind == "routed":
            return self._stream(args[0])
        if kind == "received":
            return _received(self.extent(args[0]), args[0].extent, extent)
        if kind == "repeat":
            times: Size = args[1]
            return self._digits([args[0]]) * times
        return extent

    def _symbol(self, name: str, extent: int) -> Size:
        if extent <= 1 or not name.isidentifier():
            return extent
        while name in self._symbols or self.values.get(name, extent) != extent:
            name += "_"  # another domain of that name with another extent
        self.values[name] = extent
        return sym(name)

    def _stream(self, factors: Any) -> Size:
        total: Size = 1
        for f in factors:
            total = total * self._digits([f])
        return total

    def _pad(self, base: Size, inner: Size, extent: int) -> Size:
        if isinstance(base, int) or not isinstance(inner, int):
            return extent
        for ways in self._ways:
            if -(-inner // ways) * ways == extent:
                return cdiv(base, ways) * ways
        return base + (extent - inner)

    def _range(self, of: Factor, extent: int) -> Size:
        """A prefix that cuts padding off, or the whole; any other constant slice stays a number."""
        if extent == of.extent:
            return self._digits([of])
        if of.is_whole and of.domain.kind == "pad" and of.domain.args[0].extent == extent:
            return self.extent(of.domain.args[0])
        return extent


def _times(size: Size, share: Fraction) -> Size:
    """A share of a size: of a sum of tokens it is ``ceil``, as the larger ranks hold it."""
    if isinstance(size, int):
        exact = size * share
        return int(exact) if exact.denominator == 1 else -(-exact.numerator // exact.denominator)
    scaled = size * share.numerator
    return scaled if share.denominator == 1 else cdiv(scaled, share.denominator)


def _received(sent: Size, before: Size, after: int) -> Size:
    """Rows after an exchange: as many as were sent, or a multiple, but for a few that did not divide evenly."""
    if isinstance(sent, int) or not isinstance(before, int) or before == 0:
        return after
    times = max(1, round(after / before))
    rest = after - times * before
    return sent * times + rest if abs(rest) * 100 <= after else _times(sent, Fraction(after, before))


def _product(sizes: Iterable[Size]) -> Size:
    total: Size = 1
    for size in sizes:
        total = total * size
    return total


def _grouped(axes: Iterable[tuple[Factor, ...]]) -> list[list[Factor]]:
    """The factors on a layout's axes by domain; a domain on two axes (queries and keys) is two instances."""
    groups: list[list[Factor]] = []
    open_: dict[Domain, list[Factor]] = {}
    for axis in axes:
        for f in axis:
            group = open_.get(f.domain)
            if group is None or any(f.stride == g.stride for g in group):
                open_[f.domain] = group = []
                groups.append(group)
            group.append(f)
    return groups
