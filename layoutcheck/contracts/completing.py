"""What a repair needs besides: conversions that have lost their point, sizes, readers that want the old state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from layoutcheck.contracts.candidates import Maker, Plan, Step, wanted
from layoutcheck.contracts.causes import Fault
from layoutcheck.contracts.edits import Resize
from layoutcheck.domains import is_token_like
from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.layouts import Layout
from layoutcheck.program import OpInstance
from layoutcheck.symbols import Size, divide_exact

if TYPE_CHECKING:
    from layoutcheck.contracts.repairs import Trial

# Transforms that name the sizes of their result, and by which parameter.
_SIZED = {"view": "size", "expand": "size", "create": "size"}
_STEPS = 12


def complete(maker: Maker, moves: frozenset[int], sites: set[int], plan: Plan, trial: Trial) -> Plan | None:
    """The plan with more steps that follow from what a trial of it has left; None where nothing follows.

    What lies behind something else that is left may follow from it, so the first of it in each layer is looked at, in the finding's
    own layers (`sites`) before others. `moves` are the program's conversions.
    """
    layers: dict[int, list[_Left]] = {}
    for left in _all_left(maker, trial):
        layers.setdefault(left.layer, []).append(left)
    mine = [i for i in layers if i in sites]
    others = sorted((i for i in layers if i not in sites), key=lambda i: (i < 0, i))
    for chosen in (mine, *([i] for i in others)):
        steps: dict[Step, None] = {}
        for i in chosen:
            for left in _firsts(trial.analysis, layers[i]):
                steps.update(dict.fromkeys(_steps(maker, moves, plan, trial, left)))
        if new := [step for step in steps if step.edit not in plan.edits]:
            return Plan((*plan.steps, *new))
    return None


@attrs.frozen(eq=False)
class _Left:
    """What a trial has left at a call (its number in the trial's program, and in the old one): an error, an idle conversion, or
    a departure."""

    now: int
    call: int
    layer: int
    fault: Fault | None = None


def _all_left(maker: Maker, trial: Trial) -> list[_Left]:
    """All that is left at calls that the program had, in order."""
    old, new = maker.analysis.program, trial.analysis.program
    found = []
    for name in dict.fromkeys([name for name, _ in trial.errors] + [old.nodes[k].name for k in trial.idle]):
        if name in old.node_call and name in new.node_call:
            call = old.node_call[name]
            found.append(_Left(new.node_call[name], call, maker.layer(call)))
    for fault in trial.faults:
        call = old.node_call.get(new.nodes[fault.site.call].name, -1)
        if call >= 0 and fault.site.slot >= 0 and fault.code in ("LC501", "LC502"):
            found.append(_Left(fault.site.call, call, maker.layer(call), fault))
    return sorted(found, key=lambda left: (left.now, left.fault is not None))


def _firsts(again: Analysis, left: list[_Left]) -> list[_Left]:
    """Those that depend on no other of them."""
    last = max(one.now for one in left)
    behind: set[int] = set()
    found: list[_Left] = []
    for one in left:
        if one.now not in behind:
            found.append(one)
            behind |= _downstream(again, one.now, last)
    return found


def _downstream(again: Analysis, call: int, last: int) -> set[int]:
    """Calls up to one that depend on a call's results."""
    p = again.program
    found: set[int] = set()
    todo = [call]
    while todo:
        at = todo.pop()
        for value in range(p.first[at], p.first[at] + p.outs[at]):
            for reader, _ in again.uses.get(value, ()):
                if reader <= last and reader not in found:
                    found.add(reader)
                    todo.append(reader)
    return found


def _steps(maker: Maker, moves: frozenset[int], plan: Plan, trial: Trial, left: _Left) -> list[Step]:
    if left.fault is not None:
        step = _converted(maker, trial, left.fault)
        return [step] if step is not None else []
    if left.call in moves:
        return [] if left.call in plan.gone else maker.drop(left.call, left.layer) or []
    sizes = [Step(edit, "", maker.layer(edit.call)) for edit in _sizes_at(maker, trial, left.call)]
    return sizes or _met(maker, trial, left)


def _met(maker: Maker, trial: Trial, left: _Left) -> list[Step]:
    """Where the stream and a branch are added and one of them has changed: the other one, brought to its state."""
    if not any(block.join.call == left.call for block in maker.roles.blocks):
        return []
    p, again = maker.analysis.program, trial.analysis.program
    old, new = maker.analysis.solution.typing.types, trial.analysis.solution.typing.types
    after = attrs.evolve(maker, analysis=trial.analysis)
    operands = list(zip(p.inputs[left.call], again.inputs[left.now]))
    changed = {after.state(new[w]) for v, w in operands if after.state(new[w]) != maker.state(old[v])}
    steps = []
    for v, w in operands:
        if after.state(new[w]) == maker.state(old[v]) and p.name_of(v) == again.name_of(w):
            found = after.options(w, tuple(changed))
            if found and changed:
                readers = frozenset((left.call,))
                steps.append(maker.convert(v, found[0], readers, left.layer, after.dim(w, found[0])))
    return steps


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
