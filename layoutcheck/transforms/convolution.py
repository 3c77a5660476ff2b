"""Convolutions: channels run through like the features of a matmul, positions read their neighbours and must be whole."""

from __future__ import annotations

from typing import Any

import attrs

from layoutcheck.domains import feature, opaque, padded
from layoutcheck.infer.calls.call import Call, Result
from layoutcheck.infer.calls.factor_rule import apply_factors
from layoutcheck.infer.calls.factor_sources import Source, label_sources, summed_labels
from layoutcheck.layouts import Axis, Layout, extent_of, layout, replace
from layoutcheck.rules.types import Axis as LabelAxis
from layoutcheck.rules.types import Label, OperandPattern, OutputPattern, Pattern, Unit
from layoutcheck.symbols import Size, floordiv
from layoutcheck.transforms.rank_shares import axis_digit
from layoutcheck.transforms.registry import register


def _back_conv(call: Call, outs: Any, output: int, axis: int, inner: Size) -> list[Source] | None:
    factors = _as_factors(call)
    return label_sources(factors, output, outs[output], axis, inner) if factors is not None else None


def _summed_conv(call: Call) -> list[list[Source]]:
    factors = _as_factors(call)
    return summed_labels(factors) if factors is not None else []


@register("conv", back=_back_conv, summed=_summed_conv)
def convolution(call: Call) -> Result:
    """`input [b, c, n..]` with `weight [o, c / groups, k..]` and a bias `[o]`.

    One group: c is summed over. A group a channel (depthwise): the output channels are the input's. Any other grouping
    needs all channels. Output sizes are those of torch.nn.Conv1d and ConvTranspose1d.
    """
    factors = _as_factors(call)
    of, weight = call.tensor("input"), call.tensor("weight")
    if factors is None or of is None or weight is None:
        _, _, first = next(call.tensors(), ("", -1, layout("float32", ())))
        return call.result(first)
    factors.issues, factors.wants = call.issues, call.wants
    answer = apply_factors(factors)
    swapped = call.get("transposed") is True
    return attrs.evolve(answer, outs=(_resized(call, answer.outs[0], of, weight, swapped), *answer.outs[1:]))


def _as_factors(call: Call) -> Call | None:
    """The convolution as a call of a factor rule; None where its operands have no such axes."""
    of, weight = call.tensor("input"), call.tensor("weight")
    if of is None or weight is None or weight.rank < 3 or of.rank not in (weight.rank, weight.rank - 1):
        return None
    spatial = weight.rank - 2
    positions = [Label(f"n{i}", True) for i in range(spatial)]
    taps = [LabelAxis((Label(f"k{i}", True),)) for i in range(spatial)]
    swapped = call.get("transposed") is True
    channels = of.shape[of.rank - spatial - 1]
    inputs, outputs, kernel = _channels(weight, call.get("groups", 1), channels, swapped)
    lead = [LabelAxis((Label("b", False),))] if of.rank == weight.rank else []
    on_input = Pattern((*lead, inputs, *[LabelAxis((n,)) for n in positions]))
    operands = [
        OperandPattern(call.name("input"), False, False, on_input),
        OperandPattern(call.name("weight"), False, False, Pattern((*kernel, *taps))),
        OperandPattern(call.name("bias"), True, False, Pattern((outputs,))),
    ]
    out = OutputPattern("tensor", Pattern((*lead, outputs, *[LabelAxis((n,)) for n in positions])))
    rule = attrs.evolve(call.rule, kind="factors", operands=tuple(operands), outputs=(out,))
    return Call(call.ctx, rule, call.params, call.slots)


def _channels(
    weight: Layout, groups: Any, channels: Size, swapped: bool
) -> tuple[LabelAxis, LabelAxis, tuple[Any, Any]]:
    """The input's, the output's and the weight's two channel axes as labels."""

    def one(name: str, whole: bool = False) -> LabelAxis:
        return LabelAxis((Label(name, whole),))

    if groups == 1:
        pair = (one("c"), one("o")) if swapped else (one("o"), one("c"))
        return one("c"), one("o"), pair
    if groups == channels and not swapped and weight.shape[1] == 1:
        if weight.shape[0] == channels:
            return one("c"), one("c"), (one("c"), Unit())
        several = LabelAxis((Label("c", False), Label("m", False)))
        return one("c"), several, (several, Unit())
    if swapped:
        # output channels are groups times the weight's second axis, which no operand has as one axis
        return one("c", True), one("o", True), (one("c", True), one("i", True))
    return one("c", True), one("o", True), (one("o", True), one("i", True))


def _resized(call: Call, out: Layout, of: Layout, weight: Layout, swapped: bool) -> Layout:
    """The output with the positions that stride, padding and dilation leave."""
    spatial = weight.rank - 2
    axes = list(out.axes)
    for i in range(spatial):
        at = out.rank - spatial + i
        size, taps = of.shape[of.rank - spatial + i], weight.shape[2 + i]
        new = _positions(call, size, taps, i, swapped)
        if new is not None and new != size:
            axes[at] = _rows(of, of.rank - spatial + i, new)
    if swapped and call.get("groups", 1) != 1:
        channels = call.get("groups") * weight.shape[1]
        axes[out.rank - spatial - 1] = (feature(channels).whole,)
    return replace(out, axes=tuple(axes))


def _rows(of: Layout, at: int, new: Size) -> Axis:
    """The positions of an axis of tokens that a convolution leaves, `new` of them.

    It looks back: what it says of a token stands at the token's own place as far as the padding in front reaches. More
    rows than tokens are tokens with padding behind them; fewer are the tokens behind a state or padding put in front.
    """
    axis = of.axes[at]
    if new == 1 or all(f.domain.is_feature for f in axis):
        return () if new == 1 else (feature(new).whole,)
    digit = axis_digit(axis)
    if digit is None or not digit.is_whole:
        return (opaque("convolved", new, (axis,)).whole,)
    domain = digit.domain
    if domain.kind == "concat" and extent_of(domain.args[-1]) == new:
        tokens: Axis = domain.args[-1]
        return tokens
    if domain.kind == "opaque" and domain.name == "padded":
        inner, _ = domain.args
        if inner.is_whole and inner.extent == new:
            return (inner,)
    more = new - digit.extent
    if not isinstance(more, int) or more > 0:
        return (padded(domain, new).whole,)
    return (opaque("convolved", new, (axis,)).whole,)


def _positions(call: Call, size: Size, taps: Size, i: int, swapped: bool) -> Size | None:
    padding = call.get("padding", 0)
    if padding == "same":
        return size
    stride, dilation = _at(call.get("stride", 1), i), _at(call.get("dilation", 1), i)
    around = 0 if padding == "valid" else _at(padding, i)
    if stride is None or dilation is None or around is None:
        return None
    reach = dilation * (taps - 1)
    if swapped:
        extra = _at(call.get("output_padding", 0), i) or 0
        return (size - 1) * stride - 2 * around + reach + extra + 1
    return floordiv(size + 2 * around - reach - 1, stride) + 1


def _at(value: Any, i: int) -> Size | None:
    if isinstance(value, list):
        if not value:
            return 0
        value = value[i] if i < len(value) else value[-1]
    return None if isinstance(value, (bool, str)) or value is None else value
