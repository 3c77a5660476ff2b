"""Pieces of a value that were joined along another axis than they were cut along: the two calls left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from layoutcheck.infer.calls.call import Issue, Result
from layoutcheck.infer.issues.path import main_input
from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.infer.solver.run import Key
from layoutcheck.layouts import Layout
from layoutcheck.program import CALL

Words = Callable[[int], str]
Site = Callable[[int], "int | None"]
_FAR = 256


def not_rearranged(
    analysis: Analysis, k: int, issue: Issue
) -> Iterator[tuple[Words, dict[Key, Result], Site]]:
    """The value as it was before its pieces were joined otherwise, for each operand that was rearranged so."""
    p, types = analysis.program, analysis.solution.typing.types
    for slot in issue.operands:
        found = _joined(analysis, k, slot)
        if found is None:
            continue
        join, cut = found
        key: Key = (p.op[join], *[types[v] for v in p.inputs[join]])
        of = types[p.inputs[cut][0]]
        yield _words(analysis, slot), {key: Result((of,))}, _site(analysis, slot)


def _words(analysis: Analysis, slot: int) -> Words:
    def words(k: int) -> str:
        names = [analysis.program.nodes[c].name for c in _joined(analysis, k, slot) or ()]
        return f"leave {' and '.join(reversed(names))} out"

    return words


def _site(analysis: Analysis, slot: int) -> Site:
    def site(k: int) -> int | None:
        found = _joined(analysis, k, slot)
        return found[0] if found is not None else None

    return site


def _has(of: object, kind: str) -> bool:
    return isinstance(of, Layout) and any(f.domain.kind == kind for axis in of.axes for f in axis)


def _joined(analysis: Analysis, k: int, slot: int) -> tuple[int, int] | None:
    """The call that joined the pieces and the one that cut them, where they are all the pieces of one value."""
    p, typing = analysis.program, analysis.solution.typing
    at: int | None = p.inputs[k][slot] if 0 <= slot < len(p.inputs[k]) else None
    for _ in range(_FAR):
        if at is None or not _has(typing.types[at], "concat"):
            return None
        join = p.value_call[at]
        if p.kind[join] != CALL or not p.inputs[join]:
            return None
        makers = {p.value_call[v] for v in p.inputs[join]}
        if (
            len(p.inputs[join]) > 1
            and len(makers) == 1
            and not _has(typing.types[p.inputs[join][0]], "concat")
        ):
            cut = makers.pop()
            whole = tuple(range(p.first[cut], p.first[cut] + p.outs[cut])) == tuple(p.inputs[join])
            return (join, cut) if whole and p.outs[join] == 1 and len(p.inputs[cut]) == 1 else None
        at = main_input(analysis, typing, join)
    return None
