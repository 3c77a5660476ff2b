"""Layouts: what each rank holds of a tensor.

A layout has a dtype, per axis a list of factors (major to minor, local extents), per mesh axis the factors that the
rank's coordinate selects (`bound`), the mesh axes over which the value is a pending sum (`partial`), and for integer
tensors what the values point into (`value`).

What it denotes, over a mesh axis of p ranks with values x_0 .. x_{p-1}: nothing bound and not partial, all are equal
(Full); one factor bound, their concatenation along it (Local or Sharded); partial, their sum; two bound, nothing (Mixed).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from layoutcheck.domains import Domain, Factor, anything, describe, factor, feature, is_token_like, merge
from layoutcheck.symbols import Size, free_symbols

Axis = tuple[Factor, ...]
Bound = tuple[tuple[int, tuple[Factor, ...]], ...]

_SHORT = {
    "bfloat16": "bf16",
    "float16": "f16",
    "float32": "f32",
    "float64": "f64",
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
    "uint8": "u8",
    "bool": "b1",
    "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2",
}


class Layout:
    """An interned layout; build it with `layout()`. Equality is identity."""

    __slots__ = ("axes", "bound", "bound_map", "dtype", "partial", "shape", "value")

    dtype: str
    axes: tuple[Axis, ...]
    bound: Bound
    bound_map: dict[int, tuple[Factor, ...]]
    partial: tuple[int, ...]
    value: tuple[Any, ...] | None
    shape: tuple[Size, ...]

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.axes)

    def is_full(self, mesh_axis: int) -> bool:
        """Whether the value is the same on every rank of this mesh axis."""
        return mesh_axis not in self.bound_map and mesh_axis not in self.partial

    def is_mixed(self, mesh_axis: int) -> bool:
        """Whether the value denotes nothing over this mesh axis (DESIGN: Mixed)."""
        factors = self.bound_map.get(mesh_axis, ())
        return len(factors) > 1 or bool(factors and mesh_axis in self.partial)

    def domains_on_axes(self) -> set[Domain]:
        """The domains that have a digit on some axis."""
        return {f.domain for axis in self.axes for f in axis}

    def __repr__(self) -> str:
        return f"Layout({render(self)})"


_layouts: dict[tuple[Any, ...], Layout] = {}


def extent_of(axis: Axis) -> Size:
    """Local size of an axis."""
    size: Size = 1
    for f in axis:
        size = size * f.extent
    return size


def _canonical_axis(factors: Axis, bound: dict[int, list[Factor]]) -> Axis:
    """Merge digits: token digits by their strides, features freely as long as no sharded one is inside.

    A sharded feature that swallows its right neighbour changes its domain, so `bound` is updated in place.
    """
    lone = factors[0] if len(factors) == 1 else None
    if lone is not None and lone.domain.kind != "flat" and (lone.extent != 1 or not lone.domain.is_feature):
        return factors
    out: list[Factor] = []
    for f in factors:
        domain = f.domain
        if domain.kind == "flat" and f.is_whole:
            for part in domain.args:
                _push(out, part, bound)
        else:
            _push(out, f, bound)
    return tuple(out)


def _bound_axes(domain: Domain, bound: dict[int, list[Factor]]) -> list[int]:
    return [m for m, factors in bound.items() if any(b.domain is domain for b in factors)]


def _push(out: list[Factor], f: Factor, bound: dict[int, list[Factor]]) -> None:
    domain = f.domain
    if not domain.is_feature:
        if out:
            joined = merge(out[-1], f)
            if joined is not None:
                out.pop()
                if joined.domain.kind == "flat" and joined.is_whole:
                    for part in joined.domain.args:
                        _push(out, part, bound)
                else:
                    out.append(joined)
                return
        out.append(f)
        return
    sharded = _bound_axes(domain, bound) if bound and not f.is_whole else []
    if f.extent == 1 and not sharded:
        return
    if not out or not out[-1].domain.is_feature or sharded:
        if not sharded and not f.is_whole:
            f = (anything(f.extent) if domain.kind == "any" else feature(f.extent)).whole
        out.append(f)
        return
    last = out[-1]
    extent = last.extent * f.extent
    kept = _bound_axes(last.domain, bound) if bound and not last.is_whole else []
    if not kept:
        both_any = last.domain.kind == "any" and domain.kind == "any"
        out[-1] = (anything(extent) if both_any else feature(extent)).whole
        return
    if last.extent == 1 and domain.kind == "any":
        # The one piece of a shard, spread: that it is the same one everywhere matters where others are cut further.
        out.append(f)
        return
    total = extent
    for m in kept:
        for b in bound[m]:
            if b.domain is last.domain:
                total = total * b.extent
    wider = feature(total)
    for m in kept:
        bound[m] = [
            factor(wider, b.stride * f.extent, b.extent) if b.domain is last.domain else b for b in bound[m]
        ]
    out[-1] = factor(wider, 1, extent)


def layout(
    dtype: str,
    axes: tuple[Axis, ...],
    bound: Mapping[int, tuple[Factor, ...]] | None = None,
    partial: tuple[int, ...] = (),
    value: tuple[Any, ...] | None = None,
) -> Layout:
    """The interned layout with these parts, in canonical form."""
    held: dict[int, list[Factor]] = {m: list(fs) for m, fs in bound.items() if fs} if bound else {}
    axes = tuple([_canonical_axis(axis, held) for axis in axes])
    if held:
        frozen: Bound = tuple(sorted((m, tuple(dict.fromkeys(fs))) for m, fs in held.items()))
    else:
        frozen = ()
    if len(partial) > 1:
        partial = tuple(sorted(set(partial)))
    key = (dtype, axes, frozen, partial, value)
    found = _layouts.get(key)
    if found is None:
        found = Layout()
        found.dtype, found.axes, found.bound, found.partial, found.value = key
        found.bound_map = dict(frozen)
        found.shape = tuple([extent_of(axis) for axis in axes])
        _layouts[key] = found
    return found


def replace(
    of: Layout,
    *,
    dtype: str | None = None,
    axes: tuple[Axis, ...] | None = None,
    bound: Mapping[int, tuple[Factor, ...]] | None = None,
    partial: tuple[int, ...] | None = None,
    value: Any = ...,
) -> Layout:
    """`of` with some parts changed."""
    return layout(
        of.dtype if dtype is None else dtype,
        of.axes if axes is None else axes,
        of.bound_map if bound is None else bound,
        of.partial if partial is None else partial,
        of.value if value is ... else value,
    )


def whole(dtype: str, shape: tuple[Size, ...]) -> Layout:
    """A replicated tensor whose axes are features."""
    return layout(dtype, tuple((feature(n).whole,) for n in shape))


def partner_axis(of: Layout, bound_factor: Factor) -> int | None:
    """The axis that holds the minor digit of a bound factor, or None (a factor on no axis)."""
    for i, axis in enumerate(of.axes):
        for f in axis:
            if f.domain is bound_factor.domain and bound_factor.stride == f.stride * f.extent:
                return i
    for i, axis in enumerate(of.axes):
        for f in axis:
            if f.domain is bound_factor.domain and not f.is_whole:
                return i
    return None


def bound_on_axis(of: Layout, axis: int) -> list[tuple[int, Factor]]:
    """Mesh axes (with their factor) that cut this axis, major first."""
    domains = {f.domain for f in of.axes[axis] if not f.is_whole or f.domain.kind == "pick"}
    domains |= {d.args[0] for d in domains if d.kind == "pick"}
    cuts = [(m, b) for m, fs in of.bound for b in fs if b.domain in domains]
    cuts.sort(key=lambda cut: _stride_rank(cut[1]), reverse=True)
    return cuts


def whole_extent(of: Layout, axis: int) -> Size:
    """The elements of an axis over all ranks."""
    total = extent_of(of.axes[axis])
    for _, b in bound_on_axis(of, axis):
        total = total * b.extent
    return total


def _stride_rank(f: Factor) -> Any:
    stride = f.stride
    return stride if isinstance(stride, int) else _symbolic_rank(stride)


def _symbolic_rank(stride: Any) -> int:
    """Order of symbolic strides: a value at one large point is enough, since strides divide each other."""
    from layoutcheck.symbols import evaluate, free_symbols

    return evaluate(stride, dict.fromkeys(free_symbols(stride), 5040))


def render(of: Layout, names: Mapping[int, str] | None = None) -> str:
    """The printed form, as in `bf16[T/16@tp, 6144] +tp`. `names` gives the mesh axes' names."""
    names = names or {}

    def name(m: int) -> str:
        return names.get(m, f"g{m}")

    shown: set[tuple[int, Factor]] = set()
    parts = []
    for i, axis in enumerate(of.axes):
        cuts = bound_on_axis(of, i)
        texts = []
        for f in axis:
            text = str(f.extent) if f.domain.is_feature and f.is_whole else describe(f.domain)
            if not f.is_whole:
                mine = [(m, b) for m, b in cuts if b.domain is f.domain]
                if f.domain.is_feature:
                    text = str(f.domain.extent)
                whole_extent: Size = f.stride * f.extent
                for m, b in mine:
                    text += f"/{b.extent}@{name(m)}"
                    shown.add((m, b))
                    whole_extent = whole_extent * b.extent
                if f.stride != 1 or whole_extent != f.domain.extent:
                    text += f"[{f.extent}x{f.stride}]"
            texts.append(text)
        parts.append("*".join(texts) or "1")
    out = f"{_SHORT.get(of.dtype, of.dtype)}[{', '.join(parts)}]"
    for m in of.partial:
        out += f" +{name(m)}"
    for m, fs in of.bound:
        for b in fs:
            if (m, b) not in shown:
                out += f" {{{_off_axis(b)}@{name(m)}}}"
    for m, _fs in of.bound:
        if of.is_mixed(m):
            out += f" mixed@{name(m)}"
    return out


def _off_axis(b: Factor) -> str:
    return f"{describe(b.domain)}/{b.extent}"


def state_of(of: Layout, mesh_axis: int) -> str:
    """`Full`, `Local`, `Sharded`, `Partial` or `Mixed`: the state over one mesh axis."""
    if of.is_mixed(mesh_axis):
        return "Mixed"
    if mesh_axis in of.partial:
        return "Partial"
    factors = of.bound_map.get(mesh_axis)
    if not factors:
        return "Full"
    return "Local" if is_token_like(factors[0].domain) else "Sharded"


def symbols_of(types: Iterable[Any]) -> frozenset[str]:
    """The symbols in the shapes of typed values."""
    names: set[str] = set()
    for of in types:
        if isinstance(of, Layout):
            for size in of.shape:
                names |= free_symbols(size)
    return frozenset(names)
