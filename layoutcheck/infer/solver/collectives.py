"""A program's collectives and the groups that they run over."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from layoutcheck.infer.calls.call import Context
from layoutcheck.infer.solver.one_call import make_call
from layoutcheck.mesh import Group
from layoutcheck.program import CALL, Program
from layoutcheck.transforms.exchanges import group_of


class Collective(NamedTuple):
    """A call, the transform that its rule names, its operands' types, and the group, which has more than one rank."""

    call: int
    code: str
    slots: tuple[Any, ...]
    group: Group


def collectives_of(
    program: Program, types: Sequence[Any], ctx: Context, codes: Collection[str]
) -> Iterator[Collective]:
    """The calls of these transforms that run over a group, in the program's order."""
    wanted = {
        i: rule.code
        for i, rule in enumerate(instance.rule for instance in program.instances)
        if rule is not None and rule.code is not None and rule.code in codes
    }
    for k, (kind, op) in enumerate(zip(program.kind, program.op)):
        if kind != CALL or op not in wanted:
            continue
        slots = tuple(types[v] for v in program.inputs[k])
        group = group_of(make_call(ctx, program.instances[op], slots))
        if group is not None and group.axes:
            yield Collective(k, wanted[op], slots, group)
