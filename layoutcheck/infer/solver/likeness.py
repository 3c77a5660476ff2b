"""Where weights stand. Layers are alike: weights in the place of weights that are known to be shards are shards too.

A place is the same whether a layer is written out or stands in a repeated body. A weight of a body is one of each of its repeats, and
stands in the places of all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from layoutcheck.graph import TensorMeta
from layoutcheck.infer.solver.one_call import transform_of
from layoutcheck.infer.solver.repeats import find_repeats
from layoutcheck.infer.solver.unrolled import Unrolled, Where
from layoutcheck.layouts import Layout
from layoutcheck.program import CALL, PLACEHOLDER, Program
from layoutcheck.rules.kinds import GOING_UP

_COLLECTIVE = GOING_UP | {"wait"}
_BEFORE = 4
_PASSING = 8


def places_of(
    program: Program, types: list[Any], weights: Mapping[int, TensorMeta]
) -> Iterator[tuple[int, Any]]:
    """The places of weights of two axes or more: the shape, the ops that read it, the layout of what it meets, the ops around.

    Args:
        types: layouts by value.
        weights: the inputs that are weights, with their shapes.
    """
    p = program
    unrolled = Unrolled(p, find_repeats(p), _BEFORE + 2)
    for k, kind in enumerate(p.kind):
        value = p.first[k]
        if kind != PLACEHOLDER or value not in weights:
            continue
        meta = weights[value]
        read = _read(unrolled, value) if len(meta.shape) > 1 else None
        if read is None:
            continue
        at, reader, path = read
        others = [v for v in p.inputs[reader] if v != at]
        met = [(of.dtype, of.shape) if isinstance(of, Layout) else of for of in (types[v] for v in others)]
        for where in unrolled.runs(reader):
            before = [_before(unrolled, v, where, _BEFORE) for v in others]
            context = tuple(zip(met, before, strict=True))
            after = _after(unrolled, p.first[reader], where)
            yield value, (meta.shape, meta.dtype, path, context, after)


def _read(unrolled: Unrolled, value: int) -> tuple[int, int, tuple[Any, ...]] | None:
    """A weight as an op reads it together with something else, that op, and the calls from the weight to it."""
    p = unrolled.program
    at, path = value, []
    while True:
        reader = next((k for k in unrolled.readers.get(at, ()) if p.kind[k] == CALL), None)
        if reader is None:
            return None
        instance = p.instances[p.op[reader]]
        path.append((p.op[reader], p.inputs[reader].index(at)))
        transform = transform_of(instance)
        passing = (transform is not None and transform.is_view) or (
            instance.rule is not None and instance.rule.kind == "elementwise"
        )
        if not passing or len(set(p.inputs[reader])) > 1:
            return at, reader, tuple(path)
        at = p.first[reader]


def _before(unrolled: Unrolled, value: int, where: Where, depth: int) -> Any:
    p = unrolled.program
    value, where = unrolled.source(value, where)
    k = p.value_call[value]
    if p.kind[k] != CALL or depth == 0:
        return p.kind[k]
    ins = p.inputs[k]
    target = p.instances[p.op[k]].target
    return (target, _before(unrolled, ins[0], where, depth - 1) if ins else None)


def _after(unrolled: Unrolled, value: int, where: Where, depth: int = 0) -> tuple[str, ...]:
    """The ops that read a value, views and collectives aside (a dropped collective must not hide the likeness)."""
    p = unrolled.program
    found: set[str] = set()
    for k, there in unrolled.read_by(value, where):
        if p.kind[k] != CALL:
            continue
        instance = p.instances[p.op[k]]
        transform = transform_of(instance)
        rule = instance.rule
        passing = (transform is not None and transform.is_view) or (
            rule is not None and rule.code in _COLLECTIVE
        )
        if passing and depth < _PASSING:
            for v in range(p.first[k], p.first[k] + p.outs[k]):
                found.update(_after(unrolled, v, there, depth + 1))
        else:
            found.add(instance.target)
    return tuple(sorted(found))
