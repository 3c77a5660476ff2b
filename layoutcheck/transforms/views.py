"""Views: the same elements under axes of other sizes; elements in another order or another form."""

from __future__ import annotations

from typing import Any

from layoutcheck.domains import Factor, base_of, feature, is_token_like
from layoutcheck.infer.calls.call import Call, Result, dim_of
from layoutcheck.infer.calls.compare import is_feature
from layoutcheck.infer.calls.regroup import Cuts, regroup
from layoutcheck.layouts import Axis, Layout, bound_on_axis, extent_of, layout, replace
from layoutcheck.symbols import Size, divide_exact
from layoutcheck.transforms.registry import register
from layoutcheck.transforms.units import place_units, units_behind

Sources = list[tuple[int, int, Size]]


def self_of(call: Call) -> tuple[int, Layout]:
    of = call.tensor("self")
    slot = call.slot("self")
    if of is None:
        of, slot = next(((of, s) for _, s, of in call.tensors()), (layout("float32", ()), -1))
    return slot, of


def sizes_of(value: Any) -> list[Size] | None:
    """A size argument as a list; None where it is not one."""
    if value is None:
        return None
    if isinstance(value, Layout):
        return list(value.shape)
    if isinstance(value, (list, tuple)):
        out: list[Size] = []
        for v in value:
            if isinstance(v, bool) or v is None or isinstance(v, (str, float, Layout, list, tuple)):
                return None
            out.append(v)
        return out
    return [value]


_FRACTIONS = ("float", "bfloat", "complex")


def _same(call: Call) -> Result:
    slot, of = self_of(call)
    partial = of.partial
    dtype = call.dtype(of.dtype)
    rounds = not dtype.startswith(_FRACTIONS) and of.dtype.startswith(_FRACTIONS)
    if partial and (rounds or call.rule.linear.isdisjoint({call.name("self"), "x"})):
        call.issue(
            "LC201",
            f"{{0}} is a pending sum over {call.ctx.group(partial)} and goes into an op that is not linear in it",
            slot,
        )
    out = of if dtype == of.dtype else replace(of, dtype=dtype)
    return call.result(out)


def back_same(call: Call, outs: Any, output: int, axis: int, inner: Size) -> Sources | None:
    slot, of = self_of(call)
    return [(slot, axis, inner)] if slot >= 0 and axis < of.rank else None


register("same", back=back_same, is_view=True)(_same)


def _flat_stream(of: Layout) -> list[Factor]:
    return [f for axis in of.axes for f in axis]


def numel(of: Layout) -> Size:
    total: Size = 1
    for n in of.shape:
        total = total * n
    return total


def _resolve(of: Layout, sizes: list[Size]) -> list[Size]:
    """Replace one -1 by what is left of the elements."""
    if not any(s == -1 for s in sizes):
        return sizes
    known: Size = 1
    for s in sizes:
        if s != -1:
            known = known * s
    rest = divide_exact(numel(of), known)
    return [rest if s == -1 and rest is not None else s for s in sizes]


def _written_for_another(call: Call, of: Layout, sizes: list[Size]) -> tuple[int, Size, Size] | None:
    """A literal that is the whole of a token domain where the value holds a share, or a share of what it holds whole.

    Answers (position, literal, actual size).
    """
    ways = {axis.size for axis in call.ctx.mesh.axes} | {
        group.size for group in call.ctx.mesh.groups.values()
    }
    tokens = [(f, axis) for axis in of.axes for f in axis if not f.domain.is_feature]
    for f, axis in tokens:
        have = extent_of(axis)
        wholes = {base_of(f.domain).extent, f.domain.extent}
        shares = {b.extent for fs in of.bound_map.values() for b in fs if b.domain is f.domain}
        for position, s in enumerate(sizes):
            if s == -1 or s == have or s == f.extent:
                continue
            if (s in wholes and f.extent != s) or any(divide_exact(f.extent, p) == s for p in shares | ways):
                return position, s, f.extent
    return None


def view_to(call: Call, of: Layout, slot: int, wanted: list[Size]) -> Layout:
    """The layout of a view to these sizes (one may be -1), with an issue where literals do not fit."""
    resolved = _resolve(of, wanted)
    stream, placed = place_units(of, resolved)
    cuts: Cuts = {m: list(fs) for m, fs in of.bound}
    pieces = regroup(stream, resolved, cuts, placed) if -1 not in resolved else None
    pieces = pieces and _heads_behind(pieces)
    if pieces is not None and not _tears_features(of, pieces):
        return layout(of.dtype, tuple(pieces), {m: tuple(fs) for m, fs in cuts.items()}, of.partial, of.value)
    stale = _written_for_another(call, of, wanted)
    if stale is not None:
        position, literal, actual = stale
        fixed = _resolve(of, [actual if i == position else s for i, s in enumerate(wanted)])
        cuts = {m: list(fs) for m, fs in of.bound}
        mended = regroup(_flat_stream(of), fixed, cuts) if -1 not in fixed else None
        if mended is not None:
            call.issue(
                "LC101",
                f"the size {literal} was written for another layout: {{0}} has {actual} tokens here",
                slot,
                hints=("literal",),
            )
            return layout(
                of.dtype, tuple(mended), {m: tuple(fs) for m, fs in cuts.items()}, of.partial, of.value
            )
    if pieces is not None:
        call.issue(
            "LC101", f"the sizes {_text(wanted)} mix tokens and features of {{0}}", slot, hints=("literal",)
        )
        return layout(of.dtype, tuple(pieces), {m: tuple(fs) for m, fs in cuts.items()}, of.partial, of.value)
    kept = _keep_tokens(of, resolved)
    call.issue("LC101", f"{{0}} does not fit the sizes {_text(wanted)}", slot, hints=("literal",))
    if kept is not None:
        return kept
    axes = tuple((feature(s).whole,) if s != -1 else () for s in resolved)
    return layout(of.dtype, axes, {}, of.partial)


def _heads_behind(pieces: list[Axis]) -> list[Axis]:
    """One head a rank that stood between a batch and its tokens goes with the batch: copies of heads, not of tokens."""
    out = list(pieces)
    for i in range(1, len(out)):
        lead = out[i][0] if len(out[i]) > 1 and out[i - 1] else None
        if lead is None or lead.extent != 1 or not lead.domain.is_feature or lead.is_whole:
            continue
        if not out[i][1].domain.is_feature and not is_feature(out[i - 1]):
            out[i - 1], out[i] = (*out[i - 1], lead), out[i][1:]
    return out


def _keep_tokens(of: Layout, sizes: list[Size]) -> Layout | None:
    """After a misfit, go on with the value's own axes where the number of axes allows."""
    own = [axis for axis in of.axes if axis]
    units = [i for i, s in enumerate(sizes) if s == 1]
    if len(sizes) - len(units) == len(own):
        axes: list[Axis] = []
        rest = iter(own)
        for i in range(len(sizes)):
            axes.append(() if i in units else next(rest))
        return layout(of.dtype, tuple(axes), of.bound_map, of.partial, of.value)
    return None


def _text(sizes: list[Size]) -> str:
    return "[" + ", ".join(str(s) for s in sizes) + "]"


def _tears_features(of: Layout, pieces: list[Axis]) -> bool:
    """Whether a token digit was cut off its domain and joined with features: never what a view of a full tensor does."""
    before = {f for axis in of.axes for f in axis}
    for axis in pieces:
        torn = [f for f in axis if not f.domain.is_feature and f not in before and not f.is_whole]
        if torn and any(f.domain.is_feature for f in axis):
            return True
        tokens = [f for f in axis if is_token_like(f.domain)]
        if tokens and any(f.domain.is_feature for f in axis):
            cut_tokens = [f for f in tokens if not f.is_whole]
            split_features = [f for f in axis if f.domain.is_feature and f not in before]
            if (
                cut_tokens
                and split_features
                and any(
                    f not in before and f.domain.is_feature
                    for other in pieces
                    if other is not axis
                    for f in other
                )
            ):
                return True
    return False


def _back_view(call: Call, outs: Any, output: int, axis: int, inner: Size) -> Sources | None:
    slot, of = self_of(call)
    out: Layout = outs[output]
    right: Size = inner
    for n in out.shape[axis + 1 :]:
        right = right * n
    # `right` elements lie to the right of the cut in the whole tensor; find the operand axis that holds that place.
    below: list[Size] = [1] * (of.rank + 1)
    for i in reversed(range(of.rank)):
        below[i] = below[i + 1] * of.shape[i]
    units = units_behind(of, out.shape, axis, right)
    if units:
        return [(slot, i, 1) for i in units]
    if inner == 1 and out.shape[axis] != 1 and not is_feature(out.axes[axis]):
        # one head behind tokens: an axis of one that was dropped there, or the right end of the axis with the tokens
        ends = [i for i in range(of.rank) if below[i + 1] == right]
        return [(slot, i, 1) for i in ends if of.shape[i] == 1] or [(slot, i, 1) for i in ends] or None
    for i in reversed(range(of.rank)):
        at = divide_exact(right, below[i + 1])
        if at is not None and divide_exact(below[i], right) is not None and of.shape[i] != 1:
            found = [(slot, i, at)]
            if i and at == of.shape[i] and out.shape[axis] == 1 and of.axes[i - 1]:
                # one head may stand in front of this axis, or behind the one before it
                found.append((slot, i - 1, 1))
            return found
    return None


@register("view", back=_back_view, is_view=True)
def view(call: Call) -> Result:
    """view, reshape, _unsafe_view: sizes, one of which may be -1."""
    slot, of = self_of(call)
    sizes = sizes_of(call.get("size"))
    if sizes is None:
        return call.result(of)
    return call.result(view_to(call, of, slot, sizes))


@register("flatten", back=_back_view, is_view=True)
def flatten(call: Call) -> Result:
    """Axes start_dim .. end_dim as one."""
    _slot, of = self_of(call)
    if of.rank == 0:
        return call.result(replace(of, axes=((),)))
    start, end = dim_of(call, "start_dim", of.rank, 0), dim_of(call, "end_dim", of.rank, -1)
    joined = tuple(f for axis in of.axes[start : end + 1] for f in axis)
    return call.result(replace(of, axes=(*of.axes[:start], joined, *of.axes[end + 1 :])))


@register("unflatten", back=_back_view, is_view=True)
def unflatten(call: Call) -> Result:
    """One axis as several."""
    slot, of = self_of(call)
    dim = dim_of(call, "dim", of.rank)
    sizes = sizes_of(call.get("sizes")) or [-1]
    return call.result(view_to(call, of, slot, [*of.shape[:dim], *sizes, *of.shape[dim + 1 :]]))


@register("roll", back=back_same)
@register("flip", back=back_same)
def reorder(call: Call) -> Result:
    """Rows in another fixed order along some axes: tokens must be whole there."""
    slot, of = self_of(call)
    dims = call.get("dims")
    wanted = dims if isinstance(dims, list) else [dims] if dims is not None else []
    # without dimensions the elements move through all of the tensor
    for d in wanted or range(of.rank):
        i = d + of.rank if isinstance(d, int) and d < 0 else d
        if isinstance(i, int) and 0 <= i < of.rank:
            cuts = bound_on_axis(of, i)
            if cuts:
                call.issue(
                    "LC106",
                    f"moves elements along an axis on which {{0}} is sharded over {call.ctx.group((cuts[0][0],))}",
                    slot,
                )
    return call.result(of)


def _back_parts(call: Call, outs: Any, output: int, axis: int, inner: Size) -> Sources | None:
    slot, of = self_of(call)
    return [(slot, axis, inner)] if axis < min(of.rank, outs[output].rank) else None


@register("view_as_complex", back=_back_parts, is_view=True)
def view_as_complex(call: Call) -> Result:
    """The last axis of two becomes one complex number."""
    slot, of = self_of(call)
    cuts = bound_on_axis(of, of.rank - 1) if of.rank else []
    if cuts:
        call.issue(
            "LC106",
            f"needs both parts of each number; {{0}} is sharded over {call.ctx.group((cuts[0][0],))} there",
            slot,
        )
    return call.result(replace(of, axes=of.axes[:-1], dtype="complex64"))


@register("view_as_real", back=_back_parts, is_view=True)
def view_as_real(call: Call) -> Result:
    """A complex number becomes a last axis of two."""
    _slot, of = self_of(call)
    return call.result(replace(of, axes=(*of.axes, (feature(2).whole,)), dtype="float32"))


@register("tri", back=back_same)
def triangle(call: Call) -> Result:
    """triu, tril: positions decide, so neither of the last two axes may start anywhere but at its beginning."""
    slot, of = self_of(call)
    for i in range(max(of.rank - 2, 0), of.rank):
        cuts = bound_on_axis(of, i)
        if cuts:
            call.issue(
                "LC106",
                f"a triangle is cut from the matrix's corner; {{0}} is sharded over {call.ctx.group((cuts[0][0],))}",
                slot,
            )
    return call.result(of)
