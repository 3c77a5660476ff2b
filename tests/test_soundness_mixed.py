"""A Mixed value denotes nothing: an op on one says so, or gives a Mixed value again. Nothing has to run for that."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("torch")

from ranks import samples_auto, samples_fused, samples_more, samples_rest, samples_torch
from ranks.calls import FULL, Sample, X, dtype_of, extent, layout_for, states
from ranks.enumerate_rules import _claims
from ranks.judging import unclaimed

from layoutcheck.layouts import Layout, layout
from layoutcheck.ranks.denote import Ranks
from layoutcheck.rules.rulebook import RuleBook

BOOK = RuleBook.load()
P, T = 2, 6
RANKS = Ranks((P,))
SHAPE_ONLY = (
    "_like",
    "aten.new_",
    "aten.fill",
    "aten.zero",
    "type_as",
    "to.other",
    "expand_as",
    "reshape_as",
)
OTHERS = ("view_as", "_internal_record", "maybe_chunk_residual", "native_dropout")
"""Ops that read no value of the operand, but its shape or dtype (of a dropout, the mask)."""


def mixed(x: X) -> Iterator[tuple[str, Layout]]:
    """Layouts of an operand that denote nothing: a shard that is a summand as well, or a shard along two axes."""
    cuts = [s for s in states(x, P) if s[0] == "cut"]
    dtype = dtype_of(x)
    for state in cuts:
        of = layout_for(x, state, P, T, dtype)
        if ("partial", -1) in states(x, P):
            yield f"{state} and partial", layout(dtype, of.axes, of.bound_map, (0,))
    for i, first in enumerate(cuts):
        for second in cuts[i + 1 :]:
            a, b = layout_for(x, first, P, T, dtype), layout_for(x, second, P, T, dtype)
            axes = list(a.axes)
            axes[second[1]] = b.axes[second[1]]
            factors = (*a.bound_map[0], *b.bound_map[0])
            if factors[0] is not factors[1]:
                yield f"{first} and {second}", layout(dtype, tuple(axes), {0: factors}, ())


def silent(sample: Sample) -> Iterator[str]:
    """Mixed operands of a call of which nothing is said."""
    operands = sample.operands()
    for k, (name, _, x) in enumerate(operands):
        for text, of in mixed(x) if x.states != "full" else ():
            layouts = [layout_for(y, FULL, P, T, dtype_of(y)) for _, _, y in operands]
            layouts[k] = of
            try:
                outs, refused, said = _claims(
                    BOOK, sample, layouts, P, T, lambda _, label, local, x=x: extent(label, x, T), 1
                )
            except (RuntimeError, ValueError, IndexError, KeyError, AttributeError):
                continue  # a literal that does not fit this size
            if not refused and any(isinstance(o, Layout) and unclaimed(o, RANKS) is None for o in outs):
                yield f"{sample.target} {sample.note}: {name} {text} gives {said}"


@pytest.mark.parametrize(
    "source",
    (samples_torch, samples_fused, samples_more, samples_rest, None),
    ids=lambda s: getattr(s, "__name__", "pointwise"),
)
def test_nothing_is_claimed_of_what_denotes_nothing(source: object) -> None:
    samples = list(samples_auto.pointwise(BOOK)) if source is None else list(source.all_samples())  # type: ignore[attr-defined]
    judged = [s for s in samples if not any(word in s.target for word in (*SHAPE_ONLY, *OTHERS))]
    judged = [s for s in judged if s.only is None or s.only(P, T)]
    found = [text for sample in judged for text in silent(sample)]
    assert not found, "\n".join(found[:20])
