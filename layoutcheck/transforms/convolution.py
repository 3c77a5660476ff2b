"""Convolutions: channels run through like the features of a matmul, positions read their neighbours and must be whole."""

from __future__ import annotations

from typing import Any

import attrs

from layoutcheck.domains import feature
from layoutcheck.infer.calls.call import Call, Result
from layoutcheck.infer.calls.factor_rule import apply_factors
from layoutcheck.layouts import Layout, layout, replace
from layoutcheck.rules.types import Axis, Label, OperandPattern, OutputPattern, Pattern, Unit
from layoutcheck.symbols import Size, floordiv
from layoutcheck.transforms.registry import register


@register("conv")
def convolution(call: Call) -> Result:
    """`input [b, c, n..]` with `weight [o, c / groups, k..]` and a bias `[o]`.

    One group: c is summed over. A group a channel (depthwise): the output channels are the input's. Any other grouping
    needs all channels. Output sizes are those of torch.nn.Conv1d and ConvTranspose1d.
    """
    of, weight = call.tensor("input"), call.tensor("weight")
    if of is None or weight is None or weight.rank < 3 or of.rank not in (weight.rank, weight.rank - 1):
        _, _, first = next(call.tensors(), ("", -1, layout("float32", ())))
        return call.result(first)
    spatial = weight.rank - 2
    positions = [Label(f"n{i}", True) for i in range(spatial)]
    taps = [Axis((Label(f"k{i}", True),)) for i in range(spatial)]
    swapped = call.get("transposed") is True
    groups = call.get("groups", 1)
    channels = of.shape[of.rank - spatial - 1]
    inputs, outputs, kernel = _channels(weight, groups, channels, swapped)
    lead = [Axis((Label("b", False),))] if of.rank == weight.rank else []
    on_input = Pattern((*lead, inputs, *[Axis((n,)) for n in positions]))
    operands = [
        OperandPattern(call.name("input"), False, False, on_input),
        OperandPattern(call.name("weight"), False, False, Pattern((*kernel, *taps))),
        OperandPattern(call.name("bias"), True, False, Pattern((outputs,))),
    ]
    out = OutputPattern("tensor", Pattern((*lead, outputs, *[Axis((n,)) for n in positions])))
    rule = attrs.evolve(call.rule, kind="factors", operands=tuple(operands), outputs=(out,))
    inner = Call(call.ctx, rule, call.params, call.slots)
    inner.issues, inner.wants = call.issues, call.wants
    answer = apply_factors(inner)
    return attrs.evolve(answer, outs=(_resized(call, answer.outs[0], of, weight, swapped), *answer.outs[1:]))


def _channels(
    weight: Layout, groups: Any, channels: Size, swapped: bool
) -> tuple[Axis, Axis, tuple[Any, Any]]:
    """The input's, the output's and the weight's two channel axes as labels."""

    def one(name: str, whole: bool = False) -> Axis:
        return Axis((Label(name, whole),))

    if groups == 1:
        pair = (one("c"), one("o")) if swapped else (one("o"), one("c"))
        return one("c"), one("o"), pair
    if groups == channels and not swapped and weight.shape[1] == 1:
        if weight.shape[0] == channels:
            return one("c"), one("c"), (one("c"), Unit())
        several = Axis((Label("c", False), Label("m", False)))
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
            axes[at] = () if new == 1 else (feature(new).whole,)
    if swapped and call.get("groups", 1) != 1:
        channels = call.get("groups") * weight.shape[1]
        axes[out.rank - spatial - 1] = (feature(channels).whole,)
    return replace(out, axes=tuple(axes))


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
