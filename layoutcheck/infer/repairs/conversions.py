"""Single conversions of a layout: gather, slice, reduce, scatter, pad, cut padding off; each with its price on the wire."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from layoutcheck.domains import is_token_like, padded
from layoutcheck.infer.repairs.prices import FREE, Cost, fraction, gathering, nbytes
from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.layouts import Layout, bound_on_axis, replace
from layoutcheck.mesh import Group
from layoutcheck.symbols import Size, cdiv, divide_exact
from layoutcheck.transforms.exchanges import pending_over
from layoutcheck.transforms.gathers import gather_onto
from layoutcheck.transforms.rank_shares import axis_digit, take_share


@attrs.frozen(eq=False)
class Conversion:
    """One operand's other layout, how to get it (`kind` over `group`) and its price."""

    layout: Layout
    text: str
    kind: str
    group: str
    cost: Cost = FREE

    @property
    def bytes(self) -> str:
        """The price as text."""
        return str(self.cost)


def all_groups(analysis: Analysis) -> list[Group]:
    """Groups to convert over, one for each set of mesh axes."""
    mesh = analysis.mesh
    seen: dict[tuple[int, ...], Group] = {}
    for group in [*mesh.groups.values(), *mesh.by_ranks.values()]:
        if group.axes and not set(group.axes) & mesh.quotient:
            seen.setdefault(group.axes, group)
    return list(seen.values())


def along(dim: int) -> str:
    """The words that name an axis, where it is not the first."""
    return f" along axis {dim}" if dim else ""


def conversions(analysis: Analysis, of: Layout, every_axis: bool = False) -> list[Conversion]:
    """All single conversions of a layout: gather, slice, reduce, scatter, unpad.

    A share is one of the first axis that holds tokens, or, with `every_axis`, of any of these.
    """
    out: list[Conversion] = []
    for group in all_groups(analysis):
        out += _gathers(of, group)
        if all(m not in of.bound_map and m not in of.partial for m in group.axes):
            for share in _shares(analysis, of, group, every_axis):
                text = f"slice{share[2]} at rank({group.name}){along(share[1])}"
                out.append(Conversion(share[0], text, "slice", group.name))
        out += _reductions(analysis, of, group, every_axis)
    for dim in range(of.rank):
        tail = _unpadded(of, dim)
        if tail is not None:
            out.append(Conversion(tail, "cut the padding off", "unpad", ""))
    return out


def _gathers(of: Layout, group: Group) -> list[Conversion]:
    if not all(len(of.bound_map.get(m, ())) == 1 and m not in of.partial for m in group.axes):
        return []
    out = []
    cost = gathering(group.size, of)
    for dim in range(of.rank):
        if not set(group.axes) <= {m for m, _ in bound_on_axis(of, dim)}:
            continue
        wide, problem = gather_onto(of, dim, group)
        if problem:
            continue
        text = f"all_gather over {group.name}{along(dim)}"
        out.append(Conversion(wide, text, "all_gather", group.name, cost))
        tail = _unpadded(wide, dim)
        if tail is not None:
            out.append(Conversion(tail, f"{text}, then cut the padding off", "all_gather", group.name, cost))
    return out


def _reductions(analysis: Analysis, of: Layout, group: Group, every_axis: bool) -> list[Conversion]:
    pending = pending_over(of, group)
    if not pending or len(pending) < len(group.axes) or any(of.is_mixed(m) for m in group.axes):
        return []
    bare = replace(
        of,
        partial=tuple(m for m in of.partial if m not in group.axes),
        bound={m: fs for m, fs in of.bound if m not in pending or m in of.partial},
    )
    out = [
        Conversion(
            bare,
            f"all_reduce over {group.name}",
            "all_reduce",
            group.name,
            fraction(2, group.size, nbytes(of)),
        )
    ]
    if any(m in bare.bound_map for m in group.axes):
        return out
    for share in _shares(analysis, bare, group, every_axis):
        text = f"reduce_scatter{share[2]} over {group.name}{along(share[1])}"
        # Padding is sent as well.
        cost = gathering(group.size, share[0])
        out.append(Conversion(share[0], text, "reduce_scatter", group.name, cost))
    return out


def _unpadded(of: Layout, dim: int) -> Layout | None:
    axis = of.axes[dim]
    if len(axis) == 1 and axis[0].is_whole and axis[0].domain.kind == "pad":
        return replace(of, axes=(*of.axes[:dim], (axis[0].domain.args[0].whole,), *of.axes[dim + 1 :]))
    return None


def _shares(
    analysis: Analysis, of: Layout, group: Group, every_axis: bool
) -> Iterator[tuple[Layout, int, str]]:
    """This rank's share of a token axis, padded where it does not divide; which axis that is, and words for the padding."""
    sizes = [analysis.mesh.size(m) for m in group.axes]
    for dim, axis in enumerate(of.axes):
        if (
            not axis
            or not any(is_token_like(f.domain) for f in axis)
            or any(f.domain.kind in ("range", "pick") for f in axis)
        ):
            continue
        digit = axis_digit(axis)
        each = divide_exact(digit.extent, group.size) if digit is not None else None
        filled = ""
        if digit is not None and each is None and digit.is_whole:
            each = cdiv(digit.extent, group.size)
            filled = f" (padded to {each * group.size})"
            digit = padded(digit.domain, each * group.size).whole
        cut = take_share(digit, group, each, sizes) if digit is not None and each is not None else None
        if cut is not None:
            bound = dict(of.bound_map)
            for m, b in cut[1].items():
                bound[m] = (*bound.get(m, ()), b)
            share = replace(of, axes=(*of.axes[:dim], (cut[0],), *of.axes[dim + 1 :]), bound=bound)
            yield share, dim, filled
        if not every_axis:
            return


def paddings(analysis: Analysis, of: Layout) -> list[Conversion]:
    """Token axes that do not divide among a group, filled up; `text` holds the tensor's name as `{}`."""
    out = []
    for group in all_groups(analysis):
        for dim, axis in enumerate(of.axes):
            digit = axis_digit(axis)
            if digit is None or not digit.is_whole or not is_token_like(digit.domain):
                continue
            if divide_exact(digit.extent, group.size) is not None:
                continue
            total: Size = cdiv(digit.extent, group.size) * group.size
            wide = replace(
                of, axes=(*of.axes[:dim], (padded(digit.domain, total).whole,), *of.axes[dim + 1 :])
            )
            text = f"pad {{}} by {total - digit.extent} rows to {total}{along(dim)} first"
            out.append(Conversion(wide, text, "pad", group.name))
    return out


def on_one_rank(analysis: Analysis, of: Layout) -> list[Conversion]:
    """A complete value as a summand of a pending sum: zero everywhere but on one rank (Full <: Partial)."""
    out = []
    for group in all_groups(analysis):
        if all(of.is_full(m) for m in group.axes):
            lone = replace(of, partial=(*of.partial, *group.axes))
            text = f"zero {{}} on all ranks of {group.name} but one first"
            out.append(Conversion(lone, text, "zero", group.name))
    return out
