"""What a repair needs besides: conversions that have lost their point, sizes, readers that want the old state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from layoutcheck.contracts.candidates import Maker, Plan, Step, wanted
from layoutcheck.contracts.causes import Fault
from layoutcheck.contracts.edits import Resize
from layoutcheck.domains import is_token_like
from layoutcheck.infer.analysis import Analysis
from layoutcheck.layouts import Layout
from layoutcheck.program import OpInstance
from layoutcheck.symbols import Size, divide_exact

if TYPE_CHECKING:
    from layoutcheck.contracts.repairs import Trial

# Transforms that name the sizes of their result, and by which parameter.
_SIZED = {"view": "size", "expand": "size", "create": "size"}
_STEPS = 12


def complete(maker: Maker, moves: frozenset[int], plan: Plan, trial: Trial) -> Plan | None:
    """The plan with more steps that follow from what a trial of it has left; None where nothing follows.

    `moves` are the program's conversions.
    """
    p = maker.analysis.program
    steps: list[Step] = []
    needless = dict.fromkeys(trial.idle)
    for name, _ in trial.errors:
        call = p.node_call.get(name)
        if call is None:
            continue
        if call in moves:
            needless[call] = None
        else:
            edits = _sizes_at(maker, trial, call)
            steps += [Step(edit, "", maker.layer(edit.call)) for edit in edits]
    for call in needless:
        if call not in plan.gone:
            steps += maker.drop(call, maker.layer(call)) or []
    new = [step for step in steps if step.edit not in plan.edits]
    if not new:
        new = [step for fault in _firsts(trial) if (step := _converted(maker, trial, fault)) is not None]
    return Plan((*plan.steps, *dict.fromkeys(new))) if new else None


def _firsts(trial: Trial) -> list[Fault]:
    """The first departure that came in each layer: what lies behind it may follow from it."""
    found: dict[int, Fault] = {}
    for fault in sorted(trial.faults, key=lambda fault: fault.site.call):
        if fault.code in ("LC501", "LC502"):
            found.setdefault(fault.site.layer, fault)
    return [fault for fault in found.values() if fault.site.slot >= 0]


def _converted(maker: Maker, trial: Trial, fault: Fault) -> Step | None:
    """A conversion back, in front of a reader that wants the old state."""
    p, again = maker.analysis.program, trial.analysis.program
    value = p.by_name.get(again.name_of(fault.site.value))
    reader = p.node_call.get(again.nodes[fault.site.call].name)
    if value is None or reader is None:
        return None
    after = attrs.evolve(maker, analysis=trial.analysis)
    options = after.options(fault.site.value, wanted(fault.boundary, fault.code), fault.boundary.via)
    if not options:
        return None
    dim = after.dim(fault.site.value, options[0])
    return maker.convert(value, options[0], frozenset((reader,)), maker.layer(reader), dim)


# ---- sizes


def _sizes_at(maker: Maker, trial: Trial, call: int) -> list[Resize]:
    """Sizes to write anew: of a view whose operand is larger or smaller now, and of what was made beside it."""
    p, flow = maker.analysis.program, maker.roles.flow
    own = _viewed(maker.analysis, trial, call)
    if own is not None:
        return [own]
    found: list[Resize] = []
    todo = list(p.inputs[call])
    for _ in range(_STEPS):
        if not todo:
            break
        value = todo.pop()
        made = _made_like(maker.analysis, trial, p.value_call[value])
        if made is not None:
            found.append(made)
        elif (before := flow.carried(value)) is not None:
            todo.append(before)
    return found


def _instance(analysis: Analysis, call: int) -> tuple[OpInstance, str] | None:
    """A call's op and the parameter with the sizes of its result."""
    p = analysis.program
    instance = p.instances[p.op[call]] if p.op[call] >= 0 else None
    rule = instance.rule if instance is not None else None
    if instance is None or rule is None or rule.kind != "code" or rule.code not in _SIZED:
        return None
    name = rule.options.get(_SIZED[rule.code], _SIZED[rule.code])
    return (instance, name) if isinstance(instance.params.get(name), tuple | list) else None


def _operand(analysis: Analysis, trial: Trial, call: int) -> tuple[Layout, Layout] | None:
    """What a call's first operand was and is."""
    p, again = analysis.program, trial.analysis
    now = again.program.node_call.get(p.nodes[call].name)
    if now is None or not p.inputs[call]:
        return None
    before = analysis.solution.typing.types[p.inputs[call][0]]
    after = again.solution.typing.types[again.program.inputs[now][0]]
    return (before, after) if isinstance(before, Layout) and isinstance(after, Layout) else None


def _viewed(analysis: Analysis, trial: Trial, call: int) -> Resize | None:
    """The token axis of a view grows as its operand does."""
    found, operand = _instance(analysis, call), _operand(analysis, trial, call)
    if found is None or operand is None:
        return None
    instance, name = found
    sizes = instance.params[name]
    out = analysis.solution.typing.types[analysis.program.first[call]]
    if not isinstance(out, Layout) or len(sizes) != out.rank or instance.rule is None:
        return None
    if instance.rule.code == "create":
        return None
    for i, axis in enumerate(out.axes):
        if sizes[i] == out.shape[i] and any(is_token_like(f.domain) for f in axis):
            size = divide_exact(out.shape[i] * _elements(operand[1]), _elements(operand[0]))
            if size is not None and size != sizes[i]:
                return Resize(call, name, ((i, size),))
    return None


def _made_like(analysis: Analysis, trial: Trial, call: int) -> Resize | None:
    """A tensor made with the shape of its operand has that of what the operand is now."""
    found, operand = _instance(analysis, call), _operand(analysis, trial, call)
    if found is None or operand is None:
        return None
    instance, name = found
    sizes = tuple(instance.params[name])
    before, after = operand
    if instance.rule is None or instance.rule.code != "create" or sizes != before.shape:
        return None
    changed = tuple((i, n) for i, n in enumerate(after.shape) if n != sizes[i])
    return Resize(call, name, changed) if changed and after.rank == before.rank else None


def _elements(of: Layout) -> Size:
    total: Size = 1
    for n in of.shape:
        total = total * n
    return total
