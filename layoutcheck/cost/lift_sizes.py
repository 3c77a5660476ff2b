"""Sizes of typed values over token counts and group sizes, also where the graph holds numbers.

An export at T = 4096 on 16 ranks has 256 rows and 768 columns. Their layouts say that 256 is T cut over ``tp`` and that 768 is
12288 cut over ``tp``: the first becomes ``ceil(T/tp)``, the second ``12288//tp``. A lifted size that does not give the
recorded number back is dropped for the number, so no formula is wrong at the sizes that were exported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from layoutcheck.domains import TOKEN, Domain, Factor
from layoutcheck.layouts import Layout
from layoutcheck.mesh import Group, Mesh
from layoutcheck.models.figures import Figures
from layoutcheck.symbols import Expr, Size, cdiv, divide_exact, evaluate, free_symbols, substitute, sym

Cuts = Mapping[Domain, tuple[int, ...]]


class LiftedSizes:
    """Sizes of one graph over its token symbols and group sizes.

    Attributes:
        values: each symbol's recorded value; symbols of a dynamic export have none.
        shares: divisions of features by groups, which must come out even, as (dividend, divisor).
    """

    def __init__(
        self,
        mesh: Mesh,
        symbols: frozenset[str],
        config: Mapping[str, Any],
        figures: Figures | None = None,
    ) -> None:
        self.mesh = mesh
        self.values: dict[str, int] = {}
        self.shares: set[tuple[Size, Size]] = set()
        self.figures = figures
        if figures is not None:
            self.values.update(figures.values)
        self._symbols = symbols
        self._ways: dict[int, Size] = {}
        for axis in mesh.axes:
            self._ways[axis.index] = self._axis_symbol(axis.name, axis.size)
        said = config.get("ep_size")
        self._exchange = said if isinstance(said, int) and said > 1 else None
        self._domains: dict[tuple[Domain, tuple[tuple[Domain, tuple[int, ...]], ...]], Size] = {}
        self._axes: dict[Layout, tuple[Size, ...]] = {}

    def _axis_symbol(self, name: str, size: Size) -> Size:
        if not isinstance(size, int):
            return size
        if size == 1:
            return 1
        if name.isidentifier():
            self.values[name] = size
            return sym(name)
        whole, _, inner = name.partition("/")
        outer, part = self.mesh.groups.get(whole), self.mesh.groups.get(inner)
        if outer is None or part is None or not isinstance(outer.size, int) or not isinstance(part.size, int):
            return size
        self.values[whole], self.values[inner] = outer.size, part.size
        return sym(whole) // sym(inner)

    def named(self, size: Size) -> Size:
        """A number as the figures that it is made of, where they are known; any other size as it is."""
        if self.figures is None or isinstance(size, Expr):
            return size
        return self.figures.sizes.get(size, size)

    def ranks(self, group: Group, exchange: bool = False) -> Size:
        """The number of ranks of a group, as the symbol of its name.

        Args:
            group: the group.
            exchange: it exchanges rows between experts; its name is then ``ep`` where the graph says that this is the
                experts' size, also if the same ranks are called something else.
        """
        if exchange and self._exchange == group.size:
            self.values["ep"] = self._exchange
            return sym("ep")
        if group.name.isidentifier() and group.name in self.mesh.groups and isinstance(group.size, int):
            self.values[group.name] = group.size
            return sym(group.name)
        total: Size = 1
        for axis in group.axes:
            total = total * self._ways[axis]
        return self._checked(total, group.size)

    def axes(self, of: Layout) -> tuple[Size, ...]:
        """The local extents of all axes of a layout."""
        found = self._axes.get(of)
        if found is None:
            cuts = _cuts(of)
            found = self._axes[of] = tuple(self._axis(axis, cuts) for axis in of.axes)
        return found

    def whole(self, of: Layout, axis: int) -> Size:
        """The extent of an axis over all ranks."""
        total: Size = 1
        recorded: Size = 1
        for domain in dict.fromkeys(f.domain for f in of.axes[axis]):
            total = total * self._extent(domain, {})
            recorded = recorded * domain.extent
        return self._checked(total, recorded)

    def _axis(self, axis: tuple[Factor, ...], cuts: Cuts) -> Size:
        total: Size = 1
        for f in axis:
            total = total * self._factor(f, cuts)
        return self._checked(total, _product(f.extent for f in axis))

    def _factor(self, f: Factor, cuts: Cuts) -> Size:
        domain = f.domain
        if f.is_whole:
            return self._extent(domain, cuts)
        mine = cuts.get(domain, ())
        ways: Size = 1
        count: Size = 1
        for m in mine:
            ways, count = ways * self._ways[m], count * self.mesh.size(m)
        whole = self._extent(domain, cuts)
        share = self._share(whole, ways, domain.is_feature)
        return self._checked(share, f.extent) if f.stride == 1 and mine else self.named(f.extent)

    def _share(self, whole: Size, ways: Size, feature: bool) -> Size:
        if ways == 1:
            return whole
        exact = divide_exact(whole, ways)
        if exact is not None:
            return exact
        if feature and (isinstance(whole, int) or self.figures is not None):
            self.shares.add((whole, ways))
            return whole // ways
        return cdiv(whole, ways)

    def _checked(self, lifted: Size, recorded: Size) -> Size:
        """The lifted size if it gives the recorded one back, else the recorded one."""
        if isinstance(recorded, Expr):
            numbers: dict[str, Size] = {n: v for n, v in self.values.items() if n in free_symbols(lifted)}
            back = substitute(lifted, numbers) if isinstance(lifted, Expr) else lifted
            return lifted if back is recorded else recorded
        if isinstance(lifted, int):
            return recorded
        known = free_symbols(lifted) <= self.values.keys()
        return lifted if known and evaluate(lifted, self.values) == recorded else recorded

    def _extent(self, domain: Domain, cuts: Cuts) -> Size:
        key = (domain, tuple(sorted(cuts.items(), key=lambda c: str(c[0]))) if domain.args else ())
        found = self._domains.get(key)
        if found is None:
            self._domains[key] = domain.extent
            found = self._domains[key] = self._checked(self._lift(domain, cuts), domain.extent)
        return found

    def _lift(self, domain: Domain, cuts: Cuts) -> Size:
        kind, args, extent = domain.kind, domain.args, domain.extent
        if isinstance(extent, Expr):
            return self._padded_to(self._extent(args[0], cuts), extent) if kind == "pad" else extent
        if kind == TOKEN:
            return self._symbol(domain.name, extent)
        if not args:
            return self.named(extent)
        if kind == "pad":
            return self._pad(self._extent(args[0], cuts), args[0].extent, extent)
        if kind == "range":
            return self._range(args[0], extent, cuts)
        if kind == "concat":
            return _sum(self._stream(part, cuts) for part in args)
        if kind in ("flat", "permuted"):
            return self._stream(args, cuts)
        if kind == "routed":
            inner = {**cuts, **_by_domain(args[1])}
            return self._stream(args[0], inner)
        if kind == "received":
            return self._received(args[0], extent, cuts)
        if kind == "repeat":
            times: Size = args[1]
            return self._factor(args[0], cuts) * times
        return self.named(extent)

    def _symbol(self, name: str, extent: int) -> Size:
        if extent <= 1 or not name.isidentifier():
            return extent
        while name in self._symbols or self.values.get(name, extent) != extent:
            name += "_"  # another domain of that name with another extent
        self.values[name] = extent
        return sym(name)

    def _stream(self, factors: Any, cuts: Cuts) -> Size:
        total: Size = 1
        for f in factors:
            total = total * self._factor(f, cuts)
        return total

    def _pad(self, base: Size, inner: Size, extent: int) -> Size:
        if isinstance(base, int) or not isinstance(inner, int):
            return extent
        for axis in self.mesh.axes:
            size, ways = axis.size, self._ways[axis.index]
            if isinstance(size, int) and size > 1 and -(-inner // size) * size == extent:
                return cdiv(base, ways) * ways
        return base + (extent - inner)

    def _padded_to(self, base: Size, shown: Size) -> Size:
        """A padded extent of a dynamic export over the group that it is padded for."""
        for axis in self.mesh.axes:
            ways = self._ways[axis.index]
            if isinstance(axis.size, int) and cdiv(base, axis.size) * axis.size is shown:
                return cdiv(base, ways) * ways
        return shown

    def _range(self, of: Factor, extent: int, cuts: Cuts) -> Size:
        """A prefix that cuts padding off, or the whole; any other constant slice stays a number."""
        if extent == of.extent:
            return self._factor(of, cuts)
        if of.is_whole and of.domain.kind == "pad" and of.domain.args[0].extent == extent:
            return self._extent(of.domain.args[0], cuts)
        return self.named(extent)

    def _received(self, sent: Domain, extent: int, cuts: Cuts) -> Size:
        """Rows after an exchange: as many as were sent, or a multiple of them."""
        rows = self._extent(sent, cuts)
        before = sent.extent
        if isinstance(rows, int) or not isinstance(before, int) or not before or extent % before:
            return extent
        return rows * (extent // before)


def _cuts(of: Layout) -> Cuts:
    return _by_domain(of.bound)


def _by_domain(bound: Iterable[tuple[int, tuple[Factor, ...]]]) -> dict[Domain, tuple[int, ...]]:
    found: dict[Domain, tuple[int, ...]] = {}
    for m, factors in bound:
        for b in factors:
            found[b.domain] = (*found.get(b.domain, ()), m)
    return found


def _product(sizes: Iterable[Size]) -> Size:
    total: Size = 1
    for size in sizes:
        total = total * size
    return total


def _sum(sizes: Iterable[Size]) -> Size:
    total: Size = 0
    for size in sizes:
        total = total + size
    return total
