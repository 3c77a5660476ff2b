"""Greatest values of a rank's shard that are then compared over the group: vocabulary-parallel maxima, arg-max and top-k."""

from __future__ import annotations

import attrs

from layoutcheck.infer.calls.call import MERGED
from layoutcheck.infer.solver.one_call import transform_of
from layoutcheck.program import CALL, Program

_PASSING = frozenset(("wait", "same"))
_FAR = 12


def mark_merged(p: Program, uses: dict[int, list[tuple[int, int]]]) -> None:
    """Mark maxima and top-k of which an all_reduce (of the same kind) or an all_gather takes all ranks' values."""
    made: dict[int, int] = {}
    for k, kind in enumerate(p.kind):
        if kind != CALL or not is_extreme(p, k) or not _is_merged(p, uses, k):
            continue
        index = p.op[k]
        if index not in made:
            made[index] = len(p.instances)
            instance = p.instances[index]
            p.instances.append(attrs.evolve(instance, params={**instance.params, MERGED: True}))
        p.op[k] = made[index]


def is_extreme(p: Program, k: int) -> bool:
    """Whether a call takes the greatest or least of an axis."""
    transform = transform_of(p.instances[p.op[k]])
    rule = p.instances[p.op[k]].rule
    if transform is None or rule is None:
        return False
    return transform.name == "topk" or (transform.name == "reduce" and rule.options.get("kind") == "extreme")


def _is_merged(p: Program, uses: dict[int, list[tuple[int, int]]], k: int) -> bool:
    todo, seen = [p.first[k]], 0
    while todo and seen < _FAR:
        seen += 1
        for reader, _ in uses.get(todo.pop(), ()):
            if p.kind[reader] != CALL:
                continue
            instance = p.instances[p.op[reader]]
            transform = transform_of(instance)
            name = transform.name if transform is not None else ""
            if name == "all_gather" or (
                name == "all_reduce" and _op(p, reader) in p.instances[p.op[k]].target
            ):
                return True
            if transform is not None and (transform.is_view or name in _PASSING):
                todo.extend(range(p.first[reader], p.first[reader] + p.outs[reader]))
    return False


def _op(p: Program, k: int) -> str:
    """What an all_reduce does: `max`, `min`; a question mark for anything else."""
    instance = p.instances[p.op[k]]
    options = instance.rule.options if instance.rule is not None else {}
    for name in ("reduce_op", "op"):
        found = instance.params.get(options.get(name, name))
        if isinstance(found, str) and found.lower() in ("max", "min"):
            return found.lower()
    return "?"
