"""The path from where a value began to where it went wrong: the nodes at which its state over a group changed."""

from __future__ import annotations

from layoutcheck.findings import Step
from layoutcheck.infer.calls.call import Issue
from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.infer.solver.run import Typing
from layoutcheck.layouts import Layout, render
from layoutcheck.program import PLACEHOLDER

MAX_STEPS = 12


def main_input(analysis: Analysis, typing: Typing, k: int) -> int | None:
    """The operand that a call's rows come from: the first tensor that is not a weight and shares a domain with the output."""
    p = analysis.program
    out = typing.types[p.first[k]] if p.outs[k] else None
    wanted = (
        {f.domain for a in out.axes for f in a if not f.domain.is_feature}
        if isinstance(out, Layout)
        else set()
    )
    best = None
    for v in p.inputs[k]:
        of = typing.types[v]
        if not isinstance(of, Layout):
            continue
        if best is None:
            best = v
        if any(f.domain in wanted for a in of.axes for f in a):
            return v
    return best


def trail(analysis: Analysis, typing: Typing, value: int) -> list[Step]:
    """Origin first: the input, then every node at which bound factors, pending sums or token domains changed."""
    p = analysis.program
    names = analysis.mesh.names()
    steps: list[Step] = []
    seen: set[int] = set()
    at: int | None = value
    later: tuple[object, ...] | None = None
    last: tuple[int, Layout] | None = None
    while at is not None and at not in seen and len(seen) < 100_000:
        seen.add(at)
        of = typing.types[at]
        k = p.value_call[at]
        if isinstance(of, Layout):
            state = (of.bound, of.partial, tuple(f for a in of.axes for f in a if not f.domain.is_feature))
            if later is not None and state != later and last is not None:
                steps.append(Step(p.nodes[last[0]].name, render(last[1], names)))
            later, last = state, (k, of)
        if p.kind[k] == PLACEHOLDER or not p.inputs[k]:
            break
        at = main_input(analysis, typing, k)
    if last is not None:
        steps.append(Step(p.nodes[last[0]].name, render(last[1], names)))
    steps.reverse()
    return steps


def path_to(
    analysis: Analysis, typing: Typing, k: int, issue: Issue, to_blame: int | None = None
) -> tuple[Step, ...]:
    """The trail of the operand to blame: of two, from where both were still one."""
    p = analysis.program
    slots = [s for s in issue.operands if 0 <= s < len(p.inputs[k])]
    if not slots:
        return ()
    slots = slots[:2]
    if to_blame in slots:
        slots = [*[s for s in slots if s != to_blame], to_blame]
    trails = [trail(analysis, typing, p.inputs[k][s]) for s in slots]
    chosen = trails[-1]
    if len(trails) == 2:
        shared = 0
        while shared < min(len(trails[0]), len(trails[1])) and trails[0][shared] == trails[1][shared]:
            shared += 1
        chosen = (
            trails[1][max(shared - 1, 0) :] if len(trails[1]) > shared else trails[0][max(shared - 1, 0) :]
        )
    return tuple(chosen[:1] + chosen[1:][-MAX_STEPS:])
