"""Bytes on the wire of collectives, as exact quotients of sizes that may be symbolic.

A ring's figures per rank: an all_gather sends (p - 1) shares, a reduce_scatter and an all_to_all (p - 1)/p of what a rank
holds, an all_reduce twice that (Patarasuk and Yuan, 2009).
"""

from __future__ import annotations

import attrs

from layoutcheck.infer.calls.call import Call
from layoutcheck.infer.solver.one_call import make_call
from layoutcheck.layouts import Layout
from layoutcheck.program import OpInstance
from layoutcheck.symbols import Size, divide_exact, evaluate, free_symbols
from layoutcheck.transforms.exchanges import group_of

_BYTES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "bfloat16": 2, "float16": 2, "int16": 2}
_NOMINAL = 5040


@attrs.frozen
class Cost:
    """`above / below` bytes."""

    above: Size = 0
    below: Size = 1

    def __add__(self, other: Cost) -> Cost:
        if self.above == 0 or other.above == 0:
            return other if self.above == 0 else self
        if self.below == other.below:
            return Cost(self.above + other.above, self.below)
        return Cost(self.above * other.below + other.above * self.below, self.below * other.below)

    def __neg__(self) -> Cost:
        return Cost(-1 * self.above, self.below)

    def __str__(self) -> str:
        even = divide_exact(self.above, self.below)
        if even is not None:
            return str(even)
        size = divide_exact(self.above, self.below - 1)
        if size is None:
            return f"({self.above})/({self.below})"
        shown = str(size) if " " not in str(size) else f"({size})"
        return f"{shown}*({self.below} - 1)/{self.below}"

    @property
    def sign(self) -> int:
        """-1, 0 or 1; of symbolic sizes at one large point."""
        at = evaluate(self.above, dict.fromkeys(free_symbols(self.above), _NOMINAL))
        return (at > 0) - (at < 0)


FREE = Cost()


def nbytes(of: Layout) -> Size:
    """Bytes that a rank holds of a tensor."""
    total: Size = _BYTES.get(of.dtype, 1)
    for n in of.shape:
        total = total * n
    return total


def fraction(count: int, ways: Size, size: Size) -> Cost:
    """`count*(ways - 1)/ways*size`."""
    return Cost(count * (ways - 1) * size, ways)


def gathering(ways: Size, of: Layout) -> Cost:
    """An all_gather of shares."""
    return Cost(nbytes(of) * (ways - 1))


def collective(kind: str, ways: Size, of: Layout) -> Cost:
    """What a collective sends of its operand; nothing for any other op."""
    if kind == "all_gather":
        return gathering(ways, of)
    count = {"all_reduce": 2, "reduce_scatter": 1, "all_to_all": 1}.get(kind, 0)
    return fraction(count, ways, nbytes(of)) if count else FREE


def paid(call: Call, of: Layout) -> Cost:
    """What a call sends of this operand."""
    group = group_of(call) if call.rule.kind == "code" else None
    return FREE if group is None else collective(call.rule.code or "", group.size, of)


def paid_by(ctx: object, instance: OpInstance, slots: tuple[object, ...], of: Layout) -> Cost:
    """What an op instance on these operands sends of one of them."""
    return paid(make_call(ctx, instance, slots), of) if instance.rule is not None else FREE  # type: ignore[arg-type]
