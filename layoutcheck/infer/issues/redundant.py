"""Collectives whose result is already there: right, but traffic for nothing (LC601)."""

from __future__ import annotations

from layoutcheck.infer.calls.call import Issue
from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.infer.solver.run import Key, Typing
from layoutcheck.layouts import Layout
from layoutcheck.program import CALL, Program
from layoutcheck.rules.kinds import GOING_UP

_SHARES = frozenset(("slice", "narrow", "shard", "split", "chunk"))
_IDENTITIES = frozenset(("wait", "same"))

Entry = tuple[int, Key, Issue]


def redundant(analysis: Analysis, typing: Typing) -> list[Entry]:
    """Collectives done twice on one value, and gathers that a rank's slice before or behind them undoes."""
    p = analysis.program
    spans = [(low, high) for low, high, *_ in typing.regions.values()]
    seen: dict[tuple[object, ...], int] = {}
    out: list[Entry] = []
    for k, kind in enumerate(p.kind):
        if kind != CALL or _code(p, k) not in GOING_UP:
            continue
        instance = p.instances[p.op[k]]
        if instance.rule is not None and instance.rule.mutates:
            continue
        slots = tuple(typing.types[v] for v in p.inputs[k])
        key: Key = (p.op[k], *slots)
        place = tuple(i for i, (low, high) in enumerate(spans) if low <= k <= high)
        mark = (p.op[k], tuple(p.inputs[k]), place)
        first = seen.setdefault(mark, k)
        text = ""
        if first != k:
            text = f"the same {_code(p, k)} as {p.nodes[first].name}: read that result"
        elif _code(p, k) == "all_gather":
            text = _undone(analysis, typing, k)
        if text:
            out.append((k, key, Issue("LC601", text, (0,))))
    return out


def _code(p: Program, k: int) -> str:
    rule = p.instances[p.op[k]].rule if p.kind[k] == CALL else None
    return (rule.code or "") if rule is not None else ""


def _undone(analysis: Analysis, typing: Typing, k: int) -> str:
    """Why a gather is for nothing: its operand was just cut from its result, or all readers cut it again at once."""
    p = analysis.program
    types = typing.types
    value = p.inputs[k][0] if p.inputs[k] else None
    result = types[p.first[k]]
    if value is None or not isinstance(result, Layout) or not isinstance(types[value], Layout):
        return ""
    maker = p.value_call[value]
    while _code(p, maker) in _IDENTITIES and p.inputs[maker]:
        maker = p.value_call[p.inputs[maker][0]]
    if _code(p, maker) in _SHARES and p.inputs[maker] and types[p.inputs[maker][0]] is result:
        return f"it puts together again what {p.nodes[maker].name} cut: read {p.name_of(p.inputs[maker][0])}"
    cut = []
    todo = [p.first[k]]
    while todo:
        for reader, _ in analysis.uses.get(todo.pop(), ()):
            if _code(p, reader) in _IDENTITIES:
                todo.append(p.first[reader])
                continue
            shares = types[p.first[reader] : p.first[reader] + p.outs[reader]]
            if _code(p, reader) not in _SHARES or types[value] not in shares:
                return ""
            cut.append(p.nodes[reader].name)
    return f"{cut[0]} cuts the rank's own share from it again: read {p.name_of(value)}" if cut else ""
