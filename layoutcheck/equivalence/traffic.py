"""Counts and bytes of a program's collectives."""

from __future__ import annotations

from typing import Any

import attrs

from layoutcheck.cost.collectives import COLLECTIVES
from layoutcheck.cost.work import DTYPE_BITS
from layoutcheck.equivalence.result import Traffic
from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.infer.solver.one_call import make_call
from layoutcheck.layouts import Layout
from layoutcheck.mesh import Group
from layoutcheck.program import CALL
from layoutcheck.symbols import Size, divide_exact
from layoutcheck.transforms.exchanges import group_of

_GATHERED = "all_gather"


def traffic(analysis: Analysis) -> dict[tuple[str, str], Traffic]:
    """Per (collective, group), how many there are and the bytes that a rank sends (regions are not multiplied: expand first).

    A collective fused into another op counts as one. Groups of one rank are left out.
    """
    p, types = analysis.program, analysis.solution.typing.types
    found: dict[tuple[str, str], Traffic] = {}
    for k, kind in enumerate(p.kind):
        if kind != CALL:
            continue
        instance = p.instances[p.op[k]]
        rule = instance.rule
        assert rule is not None
        for code, options in _collectives(rule):
            slots = tuple([types[v] for v in p.inputs[k]])
            call = make_call(analysis.solution.runner.ctx, instance, slots)
            call.rule = attrs.evolve(rule, code=code, options=options)
            group = group_of(call)
            name, ways = (group.name, group.size) if isinstance(group, Group) else ("?", 1)
            if group is not None and not group.axes:
                continue
            out = types[p.first[k]] if p.outs[k] else None
            given = next((s for s in slots if isinstance(s, Layout)), None)
            size = _bytes(out if code == _GATHERED or rule.code != code else given)
            before = found.get((code, name), Traffic(0, 0))
            found[(code, name)] = Traffic(before.count + 1, before.bytes + _sent(code, size, ways))
    return found


def _collectives(rule: Any) -> list[tuple[str, Any]]:
    own = [(rule.code, rule.options)] if rule.kind == "code" and rule.code in COLLECTIVES else []
    return [*own, *[(name, options) for name, options in rule.then if name in COLLECTIVES]]


def _bytes(of: Any) -> Size:
    if not isinstance(of, Layout):
        return 0
    bits = DTYPE_BITS.get(of.dtype, 16)
    size: Size = 1
    for extent in of.shape:
        size = size * extent
    whole = divide_exact(size * bits, 8)
    return whole if whole is not None else size * bits


def _sent(code: str, size: Size, ways: Size) -> Size:
    """Bytes that a rank sends of a whole buffer of `size` bytes: the same rule as `cost.collectives.wire_bytes`."""
    if code == "broadcast":
        return size
    share = divide_exact(size, ways)
    moved = size - share if share is not None else size
    return moved * 2 if code == "all_reduce" else moved
