"""Whether rank values are what a layout claims, and under which result states they would be right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from layoutcheck.layouts import Layout
from layoutcheck.ranks.denote import Placement, Ranks, Undenoted, close, index_of, join, placement, valid


def unclaimed(of: Layout, ranks: Ranks) -> str | None:
    """Why a layout claims nothing of the op on whole operands: it is Mixed, has a factor on no axis, or names
    other rows; None if it does.
    """
    if any(of.is_mixed(m) for m in range(len(ranks.sizes))):
        return "mixed"
    if any(f.domain.kind not in ("token", "feature", "pad", "any", "iota") for axis in of.axes for f in axis):
        return "other domain"
    place = placement(of, ranks)
    if place.off:
        return "off axis"
    return "pieces in front" if _incomplete(place) else None


def _incomplete(place: Placement) -> bool:
    """Whether a feature's digits are not all there: torch gathers along dimension 0 and moves the pieces to
    their axis later.
    """
    held: dict[Any, int] = {}
    for axis in place.axes:
        for d in axis:
            if d.domain.kind == "feature":
                held[d.domain] = held.get(d.domain, 1) * d.extent
    return any(domain.extent and n % domain.extent for domain, n in held.items())


def number_of(outputs: Sequence[Tensor], n: int) -> Tensor:
    """What codes, scale and offset stand for."""
    codes, scale = outputs[0].to(torch.float64), outputs[1].to(torch.float64)
    return (codes - outputs[2]) * scale if n > 2 else codes * scale


def same_elements(values: list[Tensor], of: Layout, source: Layout, want: Tensor, ranks: Ranks) -> str | None:
    """Whether values hold, at every place, the element of `want` that the layout's digits say stands there."""
    try:
        got = join(values, of, ranks)
        mask = valid(of, ranks)
    except Undenoted as error:
        return str(error)
    place = placement(of, ranks)
    at = []
    for axis in source.axes:
        domain = axis[0].domain
        mine = next(
            (d.domain for a in place.axes for d in a if domain in (d.domain, *d.domain.args[:1])), None
        )
        if mine is None:
            return f"no digit of {domain!r}"
        at.append(index_of(place, mine))
    inside = torch.ones(got.shape, dtype=torch.bool) if mask is None else mask
    for i, index in enumerate(at):
        inside = inside & (index < want.shape[i])
    picked = want[tuple(index[inside] for index in at)]
    if int(inside.sum()) != want.numel():
        return "elements are missing or there twice"
    return None if close(got[inside], picked) else "other values"


def doubled(of: Layout) -> str | None:
    """A digit of a shard that stands twice on one axis, which later views take apart wrongly."""
    cut = {b.domain for _, fs in of.bound for b in fs}
    for axis in of.axes:
        mine = [f for f in axis if f.domain in cut and not f.is_whole]
        if len(set(mine)) < len(mine):
            return f"{mine[0]!r} stands twice on one axis"
    return None


def check(
    values: list[Tensor], of: Layout, want: Tensor, ranks: Ranks, atol: float = 0.0
) -> tuple[str | None, str]:
    """Whether values denote `want` under a layout: the problem, and whether the layout claims that at all."""
    twice = doubled(of)
    if twice is not None:
        return twice, "claim"
    said = unclaimed(of, ranks)
    if said is not None and said != "other domain":
        return None, said
    try:
        got = join(values, of, ranks)
        mask = valid(of, ranks)
    except Undenoted as error:
        return (None, said) if said else (str(error), "claim")
    if got.shape == want.shape:
        good = close(got, want, mask) if not atol else _near(got, want, mask, atol)
    elif mask is not None and got.dim() == want.dim() and int(mask.sum()) == want.numel():
        inner = got[mask].reshape(want.shape)
        good = close(inner, want) if not atol else _near(inner, want, None, atol)
    elif said:
        return None, said
    else:
        return f"denotes {tuple(got.shape)}, not {tuple(want.shape)}", "claim"
    if said and not good:
        return None, said
    return (None if good else "other values"), "claim"


def _near(a: Tensor, b: Tensor, mask: Tensor | None, atol: float) -> bool:
    away = (a - b).abs()
    return bool(((away if mask is None else away[mask]) <= atol).all())


def held(values: list[Tensor], want: Tensor) -> set[str]:
    """Result states under which rank values denote a tensor."""
    out = set()
    if all(close(v, want) for v in values):
        out.add("Full")
    if len(values) > 1 and values[0].dtype != torch.bool and all(v.shape == want.shape for v in values):
        total = torch.stack([v.to(torch.float64) if not v.is_complex() else v for v in values]).sum(0)
        if close(total.to(want.dtype), want):
            out.add("Partial")
    for i in range(want.dim()):
        if any(v.dim() != want.dim() for v in values):
            break
        try:
            joined = torch.cat(values, i)
        except RuntimeError:
            continue
        n = want.shape[i]
        if joined.shape[i] >= n and joined.shape[i] - n < len(values) and close(joined.narrow(i, 0, n), want):
            out.add(f"cut {i}")
    return out
