"""The ways of calls that make a tensor anew: of all tokens, or of as many as a rank has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from layoutcheck.domains import anything, iota
from layoutcheck.layouts import Layout, layout, replace
from layoutcheck.placement.base import typed
from layoutcheck.placement.problem import FULL, LOCAL
from layoutcheck.placement.resize import size_param
from layoutcheck.placement.way import Way

if TYPE_CHECKING:
    from layoutcheck.placement.modes import Ways


def filled(ways: Ways, k: int) -> Iterator[Way]:
    """A tensor made anew with one value everywhere: of all tokens, or of as many as a rank has along the first axis that
    counts them. Where an axis is as long by chance, what reads it finds that it does not fit.
    """
    p = ways.base.analysis.program
    value = p.first[k]
    form = ways.base.full[value]
    # Of the tensor that it is made like only the dtype matters, unless it gives the sizes.
    ins = tuple(ways.layout(ways.base.root(v), FULL) for v in p.inputs[k])
    sized = size_param(ways.base.instance(k)) is not None
    needs = tuple(FULL if isinstance(x, Layout) and not sized else None for x in ins)
    if not isinstance(form, Layout) or p.outs[k] != 1:
        yield Way(needs, (None,) * p.outs[k], ins, (form,))
        return
    yield Way(needs, (FULL,), ins, (form,))
    tokens = ways.base.tokens
    if not sized:
        yield from _made_like(ways, k, form)
        return
    if tokens.holds(form):
        short = tokens.local(form)
    else:
        short = None
        for i, axis in enumerate(form.axes):
            share = tokens.shares(form.shape[i])
            if share is not None and len(axis) == 1 and axis[0].domain.kind == "any":
                short = replace(form, axes=(*form.axes[:i], (anything(share).whole,), *form.axes[i + 1 :]))
                break
    if short is None:
        return
    if short is not tokens.local(form):
        ways.odd[value] = short
    yield Way(needs, (LOCAL,), ins, (short,))


def _made_like(ways: Ways, k: int, form: Layout) -> Iterator[Way]:
    """A tensor made as long as another one: as long as a share of it, too."""
    p = ways.base.analysis.program
    value = p.first[k]
    reads = [ways.base.root(v) for v in p.inputs[k]]
    locals_ = [ways.local(v) for v in reads]
    if not any(locals_):
        return
    ins = tuple(of if of is not None else ways.layout(v, FULL) for v, of in zip(reads, locals_))
    result = typed(ways.base, k, ins, [form])
    out = result.outs[0] if result is not None and result.outs else None
    if not isinstance(out, Layout):
        return
    if out is not ways.base.tokens.local(form):
        ways.odd[value] = out
    needs = tuple(
        LOCAL if of is not None else FULL if isinstance(x, Layout) else None for of, x in zip(locals_, ins)
    )
    yield Way(needs, (LOCAL,), ins, (out,))


def counted(ways: Ways, k: int) -> Iterator[Way]:
    """Numbers of rows, 0, 1, 2, ..: of all rows, or of a rank's."""
    p = ways.base.analysis.program
    value = p.first[k]
    form = ways.base.full[value]
    ins = tuple(ways.base.full[ways.base.root(v)] for v in p.inputs[k])
    needs = tuple(FULL if isinstance(x, Layout) else None for x in ins)
    yield Way(needs, (FULL,), ins, (form,))
    share = ways.base.tokens.shares(form.shape[0]) if form.rank == 1 else None
    if share is None:
        return
    short = layout(form.dtype, ((iota(share).whole,),), value=form.value)
    ways.odd[value] = short
    yield Way(needs, (LOCAL,), ins, (short,))
