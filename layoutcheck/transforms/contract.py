"""Contractions whose pattern depends on the call: einsum, matmul.

Each becomes a factor rule for the call at hand.
"""

from __future__ import annotations

import string
from typing import Any

import attrs

from layoutcheck.arguments import Hole
from layoutcheck.infer.calls.call import Call, Result
from layoutcheck.infer.calls.compare import is_wild
from layoutcheck.infer.calls.factor_rule import apply_factors
from layoutcheck.layouts import Layout, layout
from layoutcheck.rules.types import Axis, Label, OperandPattern, OutputPattern, Pattern, Unit
from layoutcheck.symbols import Size
from layoutcheck.transforms.registry import register

Terms = list[list[str]]


def _pattern(labels: list[str]) -> Pattern:
    return Pattern(tuple(Unit() if x == "1" else Axis((Label(x, False),)) for x in labels))


def as_rule(call: Call, holes: list[Any], terms: Terms, out: list[str]) -> Call:
    """The call under a factor rule with one operand per hole."""
    params = dict(call.params)
    operands = []
    names = []
    for i, (hole, labels) in enumerate(zip(holes, terms, strict=True)):
        name = next((p for p, v in call.params.items() if v is hole), f"operand{i}")
        params[name] = hole
        names.append(name)
        operands.append(OperandPattern(name, False, False, _pattern(labels)))
    linear = call.rule.linear | {n for n in names if n.startswith("operand")}
    rule = attrs.evolve(
        call.rule,
        kind="factors",
        operands=tuple(operands),
        outputs=(OutputPattern("tensor", _pattern(out)),),
        linear=frozenset(linear),
    )
    inner = Call(call.ctx, rule, params, call.slots)
    inner.issues, inner.wants = call.issues, call.wants
    return inner


def einsum_terms(call: Call) -> tuple[list[Any], Terms, list[str]] | None:
    """Holes, labels per operand and the output's labels of an einsum."""
    equation = call.get("equation")
    raw = call.raw("operands")
    if not isinstance(equation, str) or not isinstance(raw, (list, tuple)):
        return None
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    inputs = left.split(",")
    if len(inputs) != len(raw):
        return None
    layouts = [call.fill(h) for h in raw]
    if not all(isinstance(x, Layout) for x in layouts):
        return None
    dots = 0
    for term, of in zip(inputs, layouts, strict=True):
        if "..." in term:
            dots = max(dots, of.rank - (len(term) - 3))
    filler = [c for c in string.ascii_uppercase if c not in text][:dots]

    def expand(term: str, rank: int | None) -> list[str]:
        if "..." not in term:
            return list(term)
        before, _, after = term.partition("...")
        n = dots if rank is None else rank - len(before) - len(after)
        return [*before, *filler[dots - n :], *after]

    terms = [expand(t, of.rank) for t, of in zip(inputs, layouts, strict=True)]
    if arrow:
        out = expand(right, None)
    else:
        counts: dict[str, int] = {}
        for t in terms:
            for label in t:
                counts[label] = counts.get(label, 0) + 1
        out = [*filler, *sorted(x for x, n in counts.items() if n == 1 and x not in filler)]
    if any(len(t) != of.rank for t, of in zip(terms, layouts, strict=True)):
        return None
    return list(raw), terms, out


def matmul_terms(call: Call) -> tuple[list[Any], Terms, list[str]] | None:
    """torch.matmul's cases: vectors, matrices, batches broadcast from the right."""
    names = [call.name("self"), call.name("other")]
    holes = [call.params.get(n) for n in names]
    a, b = (call.fill(h) for h in holes)
    if not isinstance(a, Layout) or not isinstance(b, Layout) or not a.rank or not b.rank:
        return None
    left = ["m", "k"] if a.rank > 1 else ["k"]
    right = ["k", "n"] if b.rank > 1 else ["k"]
    batch_a, batch_b = max(a.rank - 2, 0), max(b.rank - 2, 0)
    depth = max(batch_a, batch_b)
    names_batch = [f"b{i}" for i in range(depth)]

    # an axis of extent one is broadcast, or holds one head of many: its label says which axis of the result it is
    terms = [names_batch[depth - batch_a :] + left, names_batch[depth - batch_b :] + right]
    out = [*names_batch]
    out += ["m"] if a.rank > 1 else []
    out += ["n"] if b.rank > 1 else []
    return holes, terms, out


def summed_by(terms: Any) -> Any:
    def summed(call: Call) -> list[list[tuple[int, int, Size]]]:
        found = terms(call)
        if found is None:
            return []
        holes, labels, out = found
        groups: dict[str, list[tuple[int, int, Size]]] = {}
        for hole, term in zip(holes, labels, strict=True):
            if not isinstance(hole, Hole):
                continue
            for axis, label in enumerate(term):
                if label != "1" and label not in out:
                    of = call.slots[hole.slot]
                    groups.setdefault(label, []).append((hole.slot, axis, of.shape[axis]))
        return list(groups.values())

    return summed


def back_by(terms: Any) -> Any:
    def back(
        call: Call, outs: Any, output: int, axis: int, inner: Size
    ) -> list[tuple[int, int, Size]] | None:
        found = terms(call)
        if found is None:
            return None
        holes, labels, out = found
        label = out[axis]
        sources = []
        for hole, term in zip(holes, labels, strict=True):
            if not isinstance(hole, Hole) or label not in term:
                continue
            at = term.index(label)
            of = call.slots[hole.slot].axes[at]
            if outs[output].axes[axis] and (not of or is_wild(of)):
                # one head that is broadcast or was expanded goes with any share of the heads
                continue
            sources.append((hole.slot, at, inner))
        return sources or None

    return back


def apply_terms(call: Call, found: tuple[list[Any], Terms, list[str]] | None) -> Result:
    if found is None:
        _, _, of = next(call.tensors(), ("", -1, layout("float32", ())))
        return call.result(of)
    holes, terms, out = found
    return apply_factors(as_rule(call, holes, terms, out))


@register("einsum", back=back_by(einsum_terms), summed=summed_by(einsum_terms))
def einsum(call: Call) -> Result:
    """torch.einsum; `...` is broadcast from the right."""
    return apply_terms(call, einsum_terms(call))


@register("matmul", back=back_by(matmul_terms), summed=summed_by(matmul_terms))
def matmul(call: Call) -> Result:
    """torch.matmul."""
    return apply_terms(call, matmul_terms(call))
