"""Where the axes of a factor rule's results come from, and which axes it sums over: by its labels."""

from __future__ import annotations

from typing import Any

from layoutcheck.infer.calls.call import Call
from layoutcheck.infer.calls.compare import is_wild
from layoutcheck.infer.calls.matching import Matching, match
from layoutcheck.layouts import Layout, extent_of
from layoutcheck.rules.types import Axis as LabelAxis
from layoutcheck.rules.types import Variadic
from layoutcheck.symbols import Size, divide_exact

# slot, axis, and the elements to the right of the digit in that axis
Source = tuple[int, int, Size]


def summed_labels(call: Call) -> list[list[Source]]:
    """For each label that no output has, its places on the operands."""
    rule = call.rule
    found = match(call)
    on_output = {
        label.name for out in rule.outputs if out.pattern is not None for label in out.pattern.labels()
    }
    groups = []
    for name, occurrences in found.labels.items():
        if name in on_output or _is_whole(call, name):
            continue
        places = [o for o in occurrences if o.source >= 0]
        groups.append([(o.slot, o.source, extent_of(o.of.axes[o.axis]) * o.inner) for o in places])
    return groups


def label_sources(call: Call, output: int, out: Any, axis: int, inner: Size) -> list[Source] | None:
    """The operand axes that an axis of a factor rule's output comes from; None where there is none, or where it must be whole."""
    rule = call.rule
    if output >= len(rule.outputs) or not isinstance(out, Layout):
        return None
    pattern_out = rule.outputs[output]
    found = match(call)
    if pattern_out.kind == "same":
        slot = call.slot(pattern_out.same_as or "")
        return [(slot, axis, inner)] if slot >= 0 else None
    if pattern_out.pattern is None:
        return None
    items: list[Any] = []
    for item in pattern_out.pattern.axes:
        if isinstance(item, Variadic):
            depth = len(found.variadic.get(item.label.name, []))
            items.extend((item, depth - 1 - i) for i in range(depth))
        else:
            items.append((item, 0))
    if axis >= len(items):
        return None
    item, depth = items[axis]
    if isinstance(item, Variadic):
        if _is_whole(call, item.label.name):
            return None
        return _occurrences(found.variadic[item.label.name][depth], inner, _masks(call, found))
    if not isinstance(item, LabelAxis) or any(_is_whole(call, label.name) for label in item.labels[:1]):
        return None
    return _composite(found, item, inner, _masks(call, found))


def _masks(call: Call, found: Matching) -> set[int]:
    """Slots of optional operands: what they lack of an axis they are broadcast over."""
    optional = {operand.param for operand in call.rule.operands if operand.optional}
    return {slot for param, slot, _ in found.matched if param in optional}


def _is_whole(call: Call, label: str) -> bool:
    return any(
        x.whole and x.name == label for operand in call.rule.operands for x in operand.pattern.labels()
    )


def _composite(found: Matching, item: LabelAxis, inner: Size, broadcast: set[int]) -> list[Source] | None:
    """Which label of a composite axis a cut falls into: the leftmost that it leads, heads before what a head holds."""
    sizes = []
    for label in item.labels:
        occurrences = found.labels.get(label.name)
        if not occurrences:
            return None
        sizes.append(next((extent_of(o.of.axes[o.axis]) for o in occurrences if o.of.axes[o.axis]), 1))
    for i, label in enumerate(item.labels):
        right: Size = 1
        for size in sizes[i + 1 :]:
            right = right * size
        at = divide_exact(inner, right)
        if at is None or divide_exact(sizes[i], at) is None or (at == 1 and sizes[i] != 1 and len(sizes) > 1):
            continue
        return _occurrences(found.labels[label.name], at, broadcast)
    return None


def _occurrences(
    occurrences: Any, inner: Size, broadcast: frozenset[int] | set[int] = frozenset()
) -> list[Source] | None:
    out = []
    for o in occurrences:
        axis = o.of.axes[o.axis]
        if o.source < 0 or (o.slot in broadcast and not axis) or is_wild(axis):
            # a mask of one head, and one head that was expanded to many, go with any share of the heads
            continue
        out.append((o.slot, o.source, inner * o.inner))
    return out or None
