"""A finding from an issue: operands and their layouts, the message, the path, the place in the source."""

from __future__ import annotations

from typing import Any

from layoutcheck.findings import CODES, Finding, Fix, Operand, Place
from layoutcheck.infer.calls.call import Issue
from layoutcheck.infer.issues.counter import counter_example
from layoutcheck.infer.issues.entries import Entry, is_error, softened
from layoutcheck.infer.issues.path import path_to
from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.infer.solver.run import Key
from layoutcheck.layouts import Layout, render


def finding_of(
    analysis: Analysis,
    entry: Entry,
    fixes: tuple[Fix, ...] = (),
    followers: tuple[tuple[str, str], ...] = (),
) -> Finding:
    """The finding of an issue at a call, with what repairs it and what follows from it."""
    k, key, issue = entry
    p = analysis.program
    node = p.nodes[k]
    names = analysis.mesh.names()
    ins = p.inputs[k]
    texts = [render(x, names) if isinstance(x, Layout) else str(x) for x in key[1:]]
    shown = []
    for slot in issue.operands:
        if 0 <= slot < len(ins):
            value = ins[slot]
            source = p.nodes[p.value_call[value]].name
            shown.append(Operand(p.name_of(value), slot, texts[slot] if slot < len(texts) else "", source))
    message = issue.text
    for i, slot in enumerate(issue.operands):
        if slot < len(texts):
            message = message.replace(f"{{{i}}}", texts[slot])
    to_blame = blamed(key, issue)
    location = None
    if node.location is not None:
        location = Place(node.location.file, node.location.line, node.location.function or "")
    return Finding(
        code=issue.code,
        node=node.name,
        message=message,
        severity=CODES[issue.code].severity if is_error(issue, k in analysis.trusted) else softened(issue),
        module=node.module or "",
        location=location,
        operands=tuple(shown),
        path=path_to(analysis, analysis.solution.typing, k, issue, to_blame),
        fixes=fixes or _rule_fix(analysis, k, issue),
        consequences=followers,
        operand=to_blame,
        details=counter_example(analysis, key, issue),
        graph=analysis.path,
    )


def blamed(key: Key, issue: Issue) -> int | None:
    """The operand to blame: of a sum the pending one, else the one that the message names, or the last of several."""
    slots = [s for s in issue.operands if 0 <= s < len(key) - 1]
    if not slots:
        return issue.operands[-1] if issue.operands else None
    if issue.code == "LC201":
        pending = [s for s in slots if isinstance(of := key[1 + s], Layout) and (of.partial or of.bound)]
        sums = [s for s in pending if key[1 + s].partial]
        if sums or pending:
            return (sums or pending)[0]
    named = [slot for i, slot in enumerate(issue.operands) if f"{{{i}}}" in issue.text and slot in slots]
    return named[0] if len(named) == 1 else issue.operands[-1]


def _rule_fix(analysis: Analysis, k: int, issue: Issue) -> tuple[Fix, ...]:
    if issue.code != "LC901":
        return ()
    from layoutcheck.infer.solver.solve import recorded_meta
    from layoutcheck.rules.rulebook import suggestion

    p = analysis.program
    instance = p.instances[p.op[k]]
    shapes: list[Any] = []
    for v in p.inputs[k]:
        of = analysis.solution.typing.types[v]
        shapes.append(of.shape if isinstance(of, Layout) else None)
    for v in range(p.first[k], p.first[k] + p.outs[k]):
        meta = recorded_meta(p, v)
        shapes.append(meta.shape if meta is not None else None)
    text = suggestion(instance.target, len(p.inputs[k]), shapes)
    return (Fix(f"add a rule to a folder and pass it with --rules:\n{text}", "", 1, False),)
