"""The tokens that placement cuts, and a value's layout in each state.

One token domain is cut over one group: that of the residual stream, or the packed tokens of several sequences where a contract wants
shares of such rows only. A value is *Full* with every digit of that domain on its
axes, *Local* with the group's digit of the first of these axes taken off, *Partial* where it is Full but for a pending sum.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from layoutcheck.domains import Domain, Factor, base_of, flat, is_token_like, padded
from layoutcheck.layouts import Layout, replace
from layoutcheck.mesh import Group, Mesh
from layoutcheck.roles import Roles
from layoutcheck.symbols import Size, cdiv, divide_exact
from layoutcheck.transforms.rank_shares import take_share


@attrs.define
class Tokens:
    """The domain that is cut, the group over which it is, and the layouts that this gives.

    `share`: rows of a rank. `total`: rows with padding; equal to the domain's extent where it divides.
    """

    mesh: Mesh
    group: Group
    domain: Domain
    _local: dict[Layout, Layout | None] = attrs.field(factory=dict, repr=False)
    _full: dict[Layout, Layout] = attrs.field(factory=dict, repr=False)

    @property
    def share(self) -> Size:
        """Rows that one rank holds."""
        even = divide_exact(self.domain.extent, self.group.size)
        return cdiv(self.domain.extent, self.group.size) if even is None else even

    @property
    def total(self) -> Size:
        """Rows over all ranks, padding included."""
        even = divide_exact(self.domain.extent, self.group.size)
        return self.domain.extent if even is not None else self.share * self.group.size

    @property
    def is_padded(self) -> bool:
        """Whether the shares need padding."""
        return divide_exact(self.domain.extent, self.group.size) is None

    def _is_mine(self, domain: Domain) -> bool:
        base = domain.args[0] if domain.kind == "pad" else domain
        if base is self.domain:
            return True
        return base.kind == "iota" and base.extent is self.domain.extent

    @property
    def parts(self) -> tuple[Factor, ...]:
        """The factors of which a Full axis shows the domain: several where it is a product of packed ones."""
        return self.domain.args if self.domain.kind == "flat" else (self.domain.whole,)

    def place(self, of: Layout) -> tuple[int, int] | None:
        """The first axis that holds the whole domain, and which of its factors that is (the first one of a product)."""
        parts = self.parts
        for i, axis in enumerate(of.axes):
            for j, f in enumerate(axis):
                if (f.is_whole and self._is_mine(f.domain)) or (
                    len(parts) > 1 and axis[j : j + len(parts)] == parts
                ):
                    return i, j
        return None

    def _width(self, of: Layout, at: tuple[int, int]) -> int:
        """How many factors of an axis the domain takes up there."""
        return 1 if self._is_mine(of.axes[at[0]][at[1]].domain) else len(self.parts)

    def holds(self, of: Layout) -> bool:
        """Whether any digit of the domain, or of rows in another order, is on an axis."""
        if self.is_reordered(of) or any(self._is_mine(f.domain) for axis in of.axes for f in axis):
            return True
        return len(self.parts) > 1 and self.place(of) is not None

    def shares(self, size: Size) -> Size | None:
        """The local extent of an axis that counts a multiple of all tokens; None for another axis."""
        times = divide_exact(size, self.domain.extent)
        return None if times is None or times == 0 else times * self.share

    def fits(self, of: Layout, full: Layout) -> bool:
        """Whether every axis is as long as that of the Full layout, or as a share of it; and one is a share."""
        if of.rank != full.rank or of.dtype != full.dtype:
            return False
        pairs = [(a, b) for a, b in zip(of.shape, full.shape)]
        return all(a == b or a == self.shares(b) for a, b in pairs) and (
            not self.holds(of) or any(a != b for a, b in pairs) or self.share == self.domain.extent
        )

    def is_cut(self, of: Layout) -> bool:
        """Whether the group's ranks hold shares of the domain, and no pending sum."""
        return not set(self.group.axes) & set(of.partial) and all(
            any(self._is_mine(b.domain) for b in of.bound_map.get(m, ())) for m in self.group.axes
        )

    def is_reordered(self, of: Layout) -> bool:
        """Whether an axis holds the tokens in an order that data decides."""
        return any(
            f.domain.kind in ("permuted", "routed", "received", "opaque")
            and any(self._is_mine(d) for d in (base_of(f.domain), *_parts(f.domain)))
            for axis in of.axes
            for f in axis
        )

    def full(self, of: Layout) -> Layout:
        """The layout with all tokens: no digit taken off over the group, no padding, no pending sum."""
        found = self._full.get(of)
        if found is None:
            found = self._full[of] = self._uncut(of)
        return found

    def _uncut(self, of: Layout) -> Layout:
        group = self.group.axes
        bound = dict(of.bound_map)
        cut: set[Domain] = set()
        for m in group:
            mine = [b for b in bound.get(m, ()) if self._is_mine(b.domain)]
            if mine:
                cut.update(b.domain for b in mine)
                bound[m] = tuple(b for b in bound[m] if b not in mine)
        axes = tuple(tuple(self._whole(f, cut) for f in axis) for axis in of.axes)
        partial = tuple(m for m in of.partial if m not in group)
        return replace(of, axes=axes, bound=bound, partial=partial, value=_plain(of.value))

    def _whole(self, f: Factor, cut: set[Domain]) -> Factor:
        if f.domain in cut and f.stride == 1 and not f.is_whole:
            f = f.domain.whole
        if f.is_whole and f.domain.kind == "pad" and self._is_mine(f.domain):
            inner: Domain = f.domain.args[0]
            return inner.whole
        return f

    def local(self, of: Layout) -> Layout | None:
        """A rank's share of a Full layout; None where it holds none of the tokens, or the group cuts something else in it."""
        if of not in self._local:
            self._local[of] = self._cut(of)
        return self._local[of]

    def _cut(self, of: Layout) -> Layout | None:
        at = self.place(of)
        if at is None or any(m in of.bound_map or m in of.partial for m in self.group.axes):
            return None
        dim, j = at
        width = self._width(of, at)
        f = of.axes[dim][j] if width == 1 else self.domain.whole
        digit = f
        each = divide_exact(f.domain.extent, self.group.size)
        if each is None:
            each = cdiv(f.domain.extent, self.group.size)
            digit = padded(f.domain, each * self.group.size).whole
        sizes = [self.mesh.size(m) for m in self.group.axes]
        taken = take_share(digit, self.group, each, sizes)
        if taken is None:
            return None
        bound = dict(of.bound_map)
        for m, b in taken[1].items():
            bound[m] = (*bound.get(m, ()), b)
        axis = (*of.axes[dim][:j], taken[0], *of.axes[dim][j + width :])
        return replace(of, axes=(*of.axes[:dim], axis, *of.axes[dim + 1 :]), bound=bound)

    def partial(self, of: Layout) -> Layout | None:
        """A pending sum of this Full layout; None for integers and for what the group cuts."""
        if not of.dtype.startswith(("float", "bfloat", "complex")):
            return None
        if any(m in of.bound_map for m in self.group.axes):
            return None
        return replace(of, partial=(*of.partial, *self.group.axes))

    def dim(self, of: Layout) -> int | None:
        """The axis along which a Full layout is sliced and gathered; None where its tokens are not an axis' leading factor, so
        that a slice of the axis would take other rows.
        """
        at = self.place(of)
        if at is None:
            return None
        dim, j = at
        lead = [f for f in of.axes[dim][:j] if f.extent != 1]
        return None if lead or len(of.axes[dim]) > j + self._width(of, at) else dim

    def apart(self, of: Layout) -> Layout | None:
        """The Full layout with what stands before its tokens on an axis of its own, as in `[B*T, h]`; None where nothing does, or
        something stands behind them.
        """
        at = self.place(of)
        if at is None:
            return None
        dim, j = at
        if all(f.extent == 1 for f in of.axes[dim][:j]) or len(of.axes[dim]) > j + self._width(of, at):
            return None
        axis = of.axes[dim]
        return replace(of, axes=(*of.axes[:dim], axis[:j], axis[j:], *of.axes[dim + 1 :]))


def _parts(domain: Domain) -> list[Domain]:
    """The domains of the factors that a domain is made from."""
    rows = domain.args[0] if domain.args and isinstance(domain.args[0], tuple) else domain.args
    return [f.domain for f in rows if isinstance(f, Factor)]


def _plain(value: tuple[object, ...] | None) -> tuple[object, ...] | None:
    """What values point into, without marks of padding and shares."""
    if value and value[0] == "share":
        inner = value[1]
        return inner if isinstance(inner, tuple) else None
    return None if value == ("padded",) else value


def packed_domain(rows: Iterable[object]) -> Domain | None:
    """The product of token domains that all of these values have as their rows; None where they have no such rows alike."""
    found: set[tuple[Factor, ...]] = set()
    for of in rows:
        if not isinstance(of, Layout):
            continue
        wide = [tuple(f for f in axis if f.extent != 1) for axis in of.axes]
        rows_of = [axis for axis in wide if any(is_token_like(f.domain) for f in axis)]
        if (
            len(rows_of) != 1
            or len(rows_of[0]) < 2
            or not all(f.is_whole and is_token_like(f.domain) for f in rows_of[0])
        ):
            return None
        found.add(rows_of[0])
    return flat(found.pop()) if len(found) == 1 else None


def stream_domain(roles: Roles, types: list[object]) -> Domain | None:
    """The token domain of the residual stream: of its last token axis, where that has more than one row."""
    for block in roles.blocks:
        for value in (block.join.total, block.join.branch, block.join.stream):
            of = types[value] if value < len(types) else None
            if not isinstance(of, Layout):
                continue
            found = [f.domain for axis in of.axes for f in axis if is_token_like(f.domain)]
            found = [d.args[0] if d.kind == "pad" else d for d in found]
            wide = [d for d in found if d.extent != 1]
            if wide or found:
                return (wide or found)[-1]
    return None
