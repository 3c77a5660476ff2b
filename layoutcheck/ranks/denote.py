"""What a layout stands for, on real values.

Over a mesh axis of p ranks with values x_0 .. x_{p-1} a layout denotes one global tensor: x_0 where nothing
is bound and all are equal, their sum where it is partial, and where a digit is bound, the tensor in which
that digit stands in front of the digit that the ranks hold of the same domain. `share` cuts a global tensor
so, `join` puts rank values together, `extents` gives the global shape. Rows of padding may hold anything:
`valid` says which elements count.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any

import attrs
import torch
from torch import Tensor

from layoutcheck.domains import Domain, Factor, unpicked
from layoutcheck.layouts import Layout
from layoutcheck.symbols import Size, evaluate, free_symbols

Coordinates = tuple[int, ...]


class Undenoted(ValueError):
    """Rank values, or a layout, that stand for no tensor; str() says why."""


def number(size: Size, symbols: dict[str, int] | None = None) -> int:
    """A size as an int. Raises Undenoted for a symbol without a value."""
    if isinstance(size, int):
        return size
    missing = free_symbols(size) - set(symbols or ())
    if missing:
        raise Undenoted(f"the size {size} has no value for {', '.join(sorted(missing))}")
    return int(evaluate(size, symbols or {}))


@attrs.frozen
class Ranks:
    """The ranks of a mesh: `sizes` per mesh axis, and values of symbols. Rank r has coordinate (r / stride)
    mod size on each.
    """

    sizes: tuple[int, ...]
    symbols: dict[str, int] = attrs.field(factory=dict, hash=False)

    @property
    def world(self) -> int:
        """Number of ranks."""
        return prod(self.sizes)

    def coordinates(self, rank: int) -> Coordinates:
        """Coordinate on every mesh axis; axis 0 changes fastest."""
        out = []
        for n in self.sizes:
            out.append(rank % n)
            rank //= n
        return tuple(out)

    def rank(self, coordinates: Sequence[int]) -> int:
        """The rank with these coordinates."""
        number_, stride = 0, 1
        for c, n in zip(coordinates, self.sizes):
            number_ += c * stride
            stride *= n
        return number_

    def members(self, rank: int, axes: Sequence[int]) -> list[int]:
        """The ranks of the group over these mesh axes (major to minor) that `rank` is in, in order."""
        at = list(self.coordinates(rank))
        out = []
        for chosen in product(*[range(self.sizes[a]) for a in axes]):
            for a, c in zip(axes, chosen):
                at[a] = c
            out.append(self.rank(at))
        return out


@attrs.frozen
class Digit:
    """A digit of a global axis: its domain, stride and extent, and the mesh axis whose coordinate selects it
    (None: on every rank).
    """

    domain: Domain
    stride: int
    extent: int
    mesh: int | None = None


@attrs.frozen
class Placement:
    """A layout's global axes as digits; `off` are selected factors whose domain is on no axis."""

    axes: tuple[tuple[Digit, ...], ...]
    off: tuple[Digit, ...]
    partial: tuple[int, ...]

    def shape(self) -> tuple[int, ...]:
        """The global shape, without factors on no axis."""
        return tuple(prod(d.extent for d in axis) for axis in self.axes)


def _same_domain(held: Domain, selected: Domain) -> bool:
    return held is selected or unpicked(held)[0] is selected


def placement(of: Layout, ranks: Ranks) -> Placement:
    """The digits of a layout's global axes.

    Raises:
        Undenoted: the layout is Mixed, or an extent has no value.
    """
    for m in range(len(ranks.sizes)):
        if of.is_mixed(m) and ranks.sizes[m] > 1:
            raise Undenoted("tokens and features are sharded over the same group")
    symbols = ranks.symbols
    free = [(m, b) for m, fs in of.bound for b in fs]
    axes: list[tuple[Digit, ...]] = []
    for axis in of.axes:
        digits: list[Digit] = []
        for f in axis:
            stride, extent = number(f.stride, symbols), number(f.extent, symbols)
            reach = stride * extent
            mine = [
                (number(b.stride, symbols), m, b)
                for m, b in free
                if _same_domain(f.domain, b.domain) and number(b.stride, symbols) >= reach
            ]
            mine.sort(key=lambda x: (-x[0], -x[1]))
            # Only the digits right above this one, without a gap that another axis holds.
            held: list[Digit] = []
            at = reach
            for b_stride, m, b in reversed(mine):
                if b_stride == at or not held:
                    held.insert(0, Digit(f.domain, b_stride, number(b.extent, symbols), m))
                    free.remove((m, b))
                    at = b_stride * number(b.extent, symbols)
            digits.extend(held)
            digits.append(Digit(f.domain, stride, extent))
        axes.append(tuple(digits))
    off = tuple(Digit(b.domain, number(b.stride, symbols), number(b.extent, symbols), m) for m, b in free)
    return Placement(tuple(axes), off, of.partial)


def extents(of: Layout, ranks: Ranks) -> tuple[int, ...]:
    """The shape of the tensor that a layout denotes."""
    return placement(of, ranks).shape()


def _split(place: Placement) -> tuple[list[int], list[int | None]]:
    sizes: list[int] = []
    mesh: list[int | None] = []
    for axis in place.axes:
        for d in axis:
            sizes.append(d.extent)
            mesh.append(d.mesh)
    return sizes, mesh


def share(whole: Tensor, of: Layout, ranks: Ranks, parts: Sequence[Tensor] | None = None) -> list[Tensor]:
    """Each rank's value of a global tensor. `parts` are the summands over all partial mesh axes (one a
    combination of coordinates there).

    Raises:
        Undenoted: the layout denotes no tensor, or one of another shape.
    """
    place = placement(of, ranks)
    if tuple(whole.shape) != place.shape():
        raise Undenoted(f"a tensor of {tuple(whole.shape)} for a layout of {place.shape()}")
    sizes, mesh = _split(place)
    combos = list(product(*[range(ranks.sizes[m]) for m in place.partial]))
    summands = {c: p for c, p in zip(combos, parts or [whole])}
    local = tuple(prod(d.extent for d in axis if d.mesh is None) for axis in place.axes)
    out = []
    for r in range(ranks.world):
        at = ranks.coordinates(r)
        x = summands[tuple(at[m] for m in place.partial)].reshape(sizes)
        index: Any = tuple(at[m] if m is not None else slice(None) for m in mesh)
        out.append(x[index].reshape(local).clone())
    return out


def close(a: Tensor, b: Tensor, where: Tensor | None = None) -> bool:
    """Whether two tensors are equal, floats up to rounding (1e-9 of their size); `where` masks the elements
    that count.
    """
    if a.shape != b.shape:
        return False
    if where is not None:
        where = where.expand(a.shape)
        a, b = a[where], b[where]
    if not (a.is_floating_point() or b.is_floating_point() or a.is_complex() or b.is_complex()):
        return bool(torch.equal(a.to(torch.int64), b.to(torch.int64)))
    kind = torch.complex128 if a.is_complex() or b.is_complex() else torch.float64
    return bool(torch.allclose(a.to(kind), b.to(kind), rtol=1e-9, atol=1e-9, equal_nan=True))


def join(values: Sequence[Tensor], of: Layout, ranks: Ranks, *, padding: bool = False) -> Tensor:
    """The tensor that rank values denote under a layout. Elements of padding need not agree between ranks
    unless `padding`.

    Raises:
        Undenoted: the values have another shape, or ranks that should be equal are not.
    """
    place = placement(of, ranks)
    local = tuple(prod(d.extent for d in axis if d.mesh is None) for axis in place.axes)
    for r, x in enumerate(values):
        if tuple(x.shape) != local:
            raise Undenoted(f"rank {r} holds {tuple(x.shape)}, the layout says {local}")
    sizes, mesh = _split(place)
    if place.off:
        raise Undenoted("a factor on no axis: each rank holds its own")
    selected = {m for m in mesh if m is not None} | set(place.partial)
    kept = [n for n, m in zip(sizes, mesh) if m is None]
    dtype = values[0].dtype
    out = values[0].new_zeros(sizes, dtype=torch.int64 if dtype == torch.bool else dtype)
    first: dict[tuple[int, ...], Tensor] = {}
    mask = None if padding else valid(of, ranks)
    for r, x in enumerate(values):
        at = ranks.coordinates(r)
        key = tuple(at[m] for m in sorted(selected))
        known = first.get(key)
        if known is not None:
            where = None if mask is None else _share_mask(mask, sizes, mesh, at, local)
            if not close(known, x, where):
                raise Undenoted(
                    f"rank {r} holds another value than the ranks before it, the layout says that they are equal"
                )
            continue
        first[key] = x
        index: Any = tuple(at[m] if m is not None else slice(None) for m in mesh)
        piece = x.reshape(kept)
        if place.partial and dtype == torch.bool:
            raise Undenoted("truth values are no summands")
        out[index] += piece.to(out.dtype)
    return out.reshape(place.shape()).to(dtype)


def _share_mask(
    mask: Tensor, sizes: list[int], mesh: list[int | None], at: Coordinates, local: tuple[int, ...]
) -> Tensor:
    index: Any = tuple(at[m] if m is not None else slice(None) for m in mesh)
    return mask.reshape(sizes)[index].reshape(local)


def valid(of: Layout, ranks: Ranks) -> Tensor | None:
    """Which elements of the denoted tensor are no padding; None where all count."""
    place = placement(of, ranks)
    domains = {d.domain for axis in place.axes for d in axis}
    masks = []
    for domain in domains:
        found = _valid_indices(domain, index_of(place, domain), ranks)
        if found is not None:
            masks.append(found)
    if not masks:
        return None
    out = torch.ones(place.shape(), dtype=torch.bool)
    for m in masks:
        out = out & m
    return out


def _valid_indices(domain: Domain, at: Tensor, ranks: Ranks) -> Tensor | None:
    if domain.kind == "pad":
        base: Domain = domain.args[0]
        inside = at < number(base.extent, ranks.symbols)
        deeper = _valid_indices(base, at, ranks)
        return inside if deeper is None else inside & deeper
    if domain.kind == "range":
        of: Factor = domain.args[0]
        if of.is_whole:
            return _valid_indices(of.domain, at + number(domain.args[1], ranks.symbols), ranks)
    return None


def index_of(place: Placement, domain: Domain) -> Tensor:
    """Of every element of the global tensor, its index in a domain (digits that are on no axis count as 0)."""
    rank = len(place.axes)
    total = torch.zeros([1] * rank, dtype=torch.int64)
    for i, axis in enumerate(place.axes):
        inner = 1
        shape = [1] * rank
        size = prod(d.extent for d in axis)
        shape[i] = size
        here = torch.arange(size)
        part = torch.zeros(size, dtype=torch.int64)
        for d in reversed(axis):
            if d.domain is domain:
                part += here // inner % d.extent * d.stride
            inner *= d.extent
        total = total + part.reshape(shape)
    return total.expand(place.shape())


def difference(values: Sequence[Tensor], of: Layout, expected: Tensor, ranks: Ranks) -> str | None:
    """Why rank values under a layout are not this tensor; None where they are. Padding is not compared."""
    try:
        got = join(values, of, ranks)
        mask = valid(of, ranks)
    except Undenoted as error:
        return str(error)
    if got.shape != expected.shape:
        return f"denotes {tuple(got.shape)}, not {tuple(expected.shape)}"
    if close(got, expected, mask):
        return None
    wrong = (
        (got.to(torch.float64) - expected.to(torch.float64)).abs() > 1e-9
        if not got.is_complex()
        else got != expected
    )
    if mask is not None:
        wrong = wrong & mask.expand(wrong.shape)
    if not bool(wrong.any()):
        return "infinite or undefined elements"
    at = wrong.nonzero()[0].tolist()
    return f"element {at}: {_shown(got[tuple(at)].item())}, not {_shown(expected[tuple(at)].item())}"


def _shown(x: Any) -> str:
    return f"{x:.6g}" if isinstance(x, float) else str(x)


def summands(whole: Tensor, n: int, generator: torch.Generator) -> list[Tensor]:
    """n random tensors with this sum; none of them is 0 or a multiple of it."""
    parts = [torch.randint(-9, 10, whole.shape, generator=generator).to(whole.dtype) for _ in range(n - 1)]
    rest = whole
    for part in parts:
        rest = rest - part
    return [*parts, rest]


def relaid(whole: Tensor, source: Layout, target: Layout, ranks: Ranks) -> Tensor | None:
    """The tensor that `target` denotes, with the elements of the one that `source` denotes, matched by their
    indices in domains.

    Rows of padding that the source lacks are zeros. None where the indices do not name every element once
    (a domain on two axes).
    """
    a, b = placement(source, ranks), placement(target, ranks)
    domains = {d.domain for axis in (*a.axes, *b.axes) for d in axis if d.extent > 1}
    roots = sorted({_root(d) for d in domains}, key=lambda d: (d.kind, d.name, str(d.extent), id(d)))
    keys: list[Tensor] = []
    for place in (a, b):
        key = torch.zeros(place.shape(), dtype=torch.int64)
        for root in roots:
            own = {d.domain for axis in place.axes for d in axis if _root(d.domain) is root}
            at = torch.zeros(place.shape(), dtype=torch.int64)
            for domain in own:
                at = at + index_of(place, domain)
            key = key * (1 << 20) + at if len(roots) <= 3 else key * 4096 + at
        keys.append(key.flatten())
    have, want = keys
    order = have.argsort()
    ranked = have[order]
    if bool((ranked[1:] == ranked[:-1]).any()):
        return None
    at = torch.searchsorted(ranked, want).clamp(max=max(len(ranked) - 1, 0))
    there = ranked[at] == want
    mask = valid(target, ranks)
    if mask is not None and bool((~there & mask.flatten()).any()):
        return None
    if mask is None and not bool(there.all()):
        return None
    out = whole.flatten()[order[at]]
    return torch.where(there, out, torch.zeros_like(out)).reshape(b.shape())


def _root(domain: Domain) -> Domain:
    """The domain under padding and picking, whose indices an element keeps."""
    while domain.kind in ("pad", "pick"):
        domain = domain.args[0]
    return domain


def wrong_rows(values: Sequence[Tensor], of: Layout, whole: Tensor, ranks: Ranks) -> str:
    """The first rank, and its rows, that hold something else than their share of a tensor, as text; of pending sums
    the rows of the sum.
    """
    if of.partial:
        try:
            total = join(values, of, ranks)
        except Undenoted:
            return ""
        rows = _rows_apart(total, whole)
        return f"the sum over the ranks, rows {rows[0]}..{rows[-1]} of {total.shape[0]}; " if rows else ""
    try:
        wanted = share(whole, of, ranks)
    except Undenoted:
        return ""
    for r, (got, want) in enumerate(zip(values, wanted)):
        if got.shape != want.shape:
            return f"rank {r} holds {tuple(got.shape)}, want {tuple(want.shape)}; "
        rows = _rows_apart(got, want)
        if rows:
            return f"rank {r}, rows {rows[0]}..{rows[-1]} of {got.shape[0]}; "
    return ""


def _rows_apart(got: Tensor, want: Tensor) -> list[int]:
    """Rows in which two tensors differ."""
    if got.shape != want.shape or not got.dim() or close(got, want):
        return []
    away = got != want if got.is_complex() else (got.to(torch.float64) - want.to(torch.float64)).abs() > 1e-9
    away = away.flatten(1).any(1) if away.dim() > 1 else away
    found: list[int] = away.nonzero().flatten().tolist()
    return found
