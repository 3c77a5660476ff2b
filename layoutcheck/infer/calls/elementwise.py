"""Pointwise ops: broadcast the operands against each other, axis by axis from the right."""

from __future__ import annotations

from collections.abc import Sequence

from layoutcheck.domains import anything
from layoutcheck.infer.calls.call import INTEGERS, Call, Result
from layoutcheck.infer.calls.compare import ONE_TOKEN, compare_axes, is_misplaced, strength
from layoutcheck.infer.calls.repeated import spread_like
from layoutcheck.infer.calls.states import Operand, check_diagonal, join_bound, join_partial
from layoutcheck.layouts import Axis, Layout, layout
from layoutcheck.symbols import Expr

_FLOAT_WIDTH = {"float64": 5, "float32": 4, "bfloat16": 3, "float16": 3, "float8_e4m3fn": 2, "float8_e5m2": 2}
_WIDER = {frozenset(("float16", "bfloat16")): "float32", frozenset(("int8", "uint8")): "int16"}
# what a fraction such as 1/3 may differ by as a float
_ROUNDING = 1e-6
# operands that may be numbers
_NUMBERS = ("self", "other", "exponent", "min", "max")
_INT_WIDTH = {"int64": 5, "int32": 4, "int16": 3, "int8": 2, "uint8": 2, "bool": 1}


def promote(layouts: Sequence[Layout]) -> str:
    """The dtype of an op on these tensors: the widest, floats before integers, tensors before scalars."""
    best, best_rank = layouts[0].dtype, (-1, -1, -1)
    for of in layouts:
        is_float = of.dtype in _FLOAT_WIDTH
        width = _FLOAT_WIDTH.get(of.dtype) or _INT_WIDTH.get(of.dtype, 0)
        rank = (int(is_float), int(bool(of.axes)), width)
        if rank == best_rank and of.dtype != best:
            # neither holds all values of the other
            best = _WIDER.get(frozenset((of.dtype, best)), best)
        elif rank > best_rank:
            best, best_rank = of.dtype, rank
    return best


def with_numbers(call: Call, dtype: str) -> str:
    """The dtype where operands are numbers: a number changes the kind of a tensor (truth value, integer, float), not its width."""
    for name in _NUMBERS:
        value = call.params.get(name)
        if isinstance(value, float) and dtype not in _FLOAT_WIDTH and (dtype in INTEGERS or dtype == "bool"):
            return "float32"
        if isinstance(value, (int, Expr)) and not isinstance(value, bool) and dtype == "bool":
            dtype = "int64"
    return dtype


def broadcast_axes(call: Call, operands: Sequence[Operand]) -> tuple[Axis, ...]:
    """The axes of operands broadcast together; issues and wants where they differ."""
    depth = max((of.rank for _, _, of in operands), default=0)
    axes: list[Axis] = []
    for i in range(depth):
        best: tuple[int, Layout, int] | None = None
        best_strength = -1
        present = []
        for _, slot, of in operands:
            at = i - (depth - of.rank)
            if at < 0:
                continue
            axis = of.axes[at]
            if not axis:
                continue
            entry = (slot, of, at)
            present.append(entry)
            s = strength(axis)
            if s > best_strength:
                best, best_strength = entry, s
        if best is None:
            axes.append(())
            continue
        if best_strength == ONE_TOKEN and all(
            any(
                is_misplaced(of, at, beside, i - (depth - beside.rank))
                for _, _, beside in operands
                if i >= depth - beside.rank
            )
            for _, of, at in present
        ):
            axes.append(())
            continue
        before = len(call.issues)
        for entry in present:
            if entry is not best:
                compare_axes(call, best, entry)
        # Where operands disagree, go on with the first.
        chosen = best if len(call.issues) == before else present[0]
        axes.append(chosen[1].axes[chosen[2]])
    return tuple(axes)


def elementwise(call: Call) -> Result:
    """Any pointwise op; the rule's `linear` and `additive` say what a pending sum may do."""
    operands = list(call.tensors())
    if not operands:
        return call.result(layout(call.dtype("float32"), ()))
    if len(operands) == 1 and not operands[0][2].partial and "additive" not in call.rule.options:
        _, slot, of = operands[0]
        axes = _shifted(of.axes) if call.rule.additive and _shifts(call) else of.axes
        out = layout(call.dtype(with_numbers(call, of.dtype)), axes, of.bound_map, (), _kept_value(call, of))
        if call.rule.mutates:
            return call.result(out, mutated={slot: out})
        return call.result(out)
    if any(of.bound for _, _, of in operands):
        operands = _with_shared_heads(operands)
    before = len(call.issues)
    axes = broadcast_axes(call, operands)
    agreed = len(call.issues) == before
    bound = join_bound(call, operands) if agreed else dict(operands[0][2].bound_map)
    partial = join_partial(call, operands, call.rule.linear, call.rule.additive, bound)
    dtype = with_numbers(call, promote([of for _, _, of in operands]))
    out = layout(call.dtype(dtype), axes, bound, partial)
    if bound and len(operands) > 1 and agreed:
        check_diagonal(call, out, range(out.rank), [slot for _, slot, of in operands if of.bound])
    if call.rule.mutates:
        target = call.slot(call.rule.mutates[0])
        if target >= 0:
            return call.result(out, mutated={target: out})
    return call.result(out)


def _with_shared_heads(operands: Sequence[Operand]) -> list[Operand]:
    """Operands of which a rank has one head, spread, with the heads of those beside them (see `repeated`)."""
    out = list(operands)
    for number, (param, slot, of) in enumerate(out):
        for axis, own in enumerate(of.axes):
            if len(own) < 2 or own[-1].domain.kind != "any":
                continue
            for _, other, like in operands:
                there = axis - of.rank + like.rank
                spread = spread_like(of, axis, like, there) if other != slot and there >= 0 else None
                if spread is not None:
                    out[number] = (param, slot, spread)
                    break
    return out


def _shifts(call: Call) -> bool:
    """Whether a number that is not 0 is added."""
    return any(
        isinstance(n, (int, Expr)) and not isinstance(n, bool) and n != 0
        for n in (call.fill(call.params.get(name)) for name in call.rule.additive)
    )


def _shifted(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """Positions that count from elsewhere than 0 may be those of any rank."""
    return tuple(
        (anything(axis[0].extent).whole,) if len(axis) == 1 and axis[0].domain.kind == "iota" else axis
        for axis in axes
    )


def _kept_value(call: Call, of: Layout) -> tuple[object, ...] | None:
    """A fill (or a part of a sum) stays one through casts only; what positions point into stays through integer casts."""
    if of.value is None:
        return _scaled(call)
    if call.rule.options.get("values") == "kept" or (
        call.rule.linear and len(call.params) and _is_cast(call)
    ):
        return of.value
    return None


def _scaled(call: Call) -> tuple[object, ...] | None:
    """`("part", n)`: the n-th part of a value, which is the value once n ranks add theirs; a value times 0 is a fill of 0."""
    factor = call.fill(call.params.get(str(call.rule.options.get("factor"))))
    divisor = call.fill(call.params.get(str(call.rule.options.get("divisor"))))
    if isinstance(factor, (int, float)) and not isinstance(factor, bool):
        if factor == 0:
            return ("fill", 0)
        n = round(1 / factor) if 0 < factor <= 1 else 0
        return ("part", n) if n and abs(factor * n - 1) < _ROUNDING else None
    if isinstance(divisor, (int, float)) and not isinstance(divisor, bool) and divisor == round(divisor) >= 1:
        return ("part", round(divisor))
    return None


def _is_cast(call: Call) -> bool:
    return any(word in ("dtype",) for word in call.rule.outdtypes if word)
