"""A graph whose own conversions are wrong, made well typed, so that its layouts say again what each value is.

A pass that rewrote a graph wrongly leaves values of which some readers have all tokens and some a share, gathers of what is whole
already, sums that are taken twice. Behind such a place layouts are no more what was meant. One walk in the order of the program
brings operands that disagree to all tokens and leaves idle collectives out. What that costs does not matter, since all conversions are
placed anew afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from layoutcheck.contracts.edits import Convert, Drop, Edit, Exchange, edited
from layoutcheck.graph import Graph
from layoutcheck.infer.calls.call import Issue, Result
from layoutcheck.infer.issues.entries import is_error
from layoutcheck.infer.repairs.conversions import Conversion, conversions
from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.infer.solver.one_call import apply
from layoutcheck.layouts import Layout, state_of
from layoutcheck.mesh import Group
from layoutcheck.program import CALL, OUTPUT, PLACEHOLDER, REGION_BEGIN, REGION_COPY, REGION_END, OpInstance
from layoutcheck.rules.kinds import CONVERTING

MAX_CHAIN = 12
_ROUTED = ("routed", "received", "pick", "concat")
_TO_ALL = ("all_gather", "all_reduce")
_TO_SHARES = ("slice", "reduce_scatter")


def mended(analysis: Analysis, group: Group) -> Graph | None:
    """The graph with conversions over a group put where operands disagree, and idle ones left out.

    None where there is no fault of that kind, or none that this repairs.
    """
    wrong = {k for k, _, issue in analysis.solution.issues if _is_of_states(issue)}
    same = {k for k, _, issue in analysis.solution.issues if issue.code == "LC602"}
    dispatches = {d for k in same for d in _dispatches(analysis, k)}
    if not wrong and not dispatches:
        return None
    edits = _Mender(analysis, group, wrong, dispatches).edits()
    return edited(analysis, group, edits) if edits else None


def _is_of_states(issue: Issue) -> bool:
    """Whether an issue may be one of conversions; mixed tokens are a matter of how weights are laid out."""
    return is_error(issue) and issue.code[:3] in ("LC1", "LC2") and issue.code != "LC203"


def _dispatches(analysis: Analysis, k: int) -> Iterator[int]:
    """The dispatches from which the rows of an exchange come."""
    p, types = analysis.program, analysis.solution.typing.types
    todo, seen = list(p.inputs[k]), set(p.inputs[k])
    while todo:
        value = todo.pop()
        of, maker = types[value], p.value_call[value]
        routed = isinstance(of, Layout) and any(f.domain.kind in _ROUTED for axis in of.axes for f in axis)
        if not routed or p.kind[maker] != CALL:
            continue
        rule = p.instances[p.op[maker]].rule
        if rule is not None and rule.code == "dispatch":
            yield maker
            continue
        todo.extend(v for v in p.inputs[maker] if v not in seen)
        seen.update(p.inputs[maker])


def outputs_as_before(was: Analysis, analysis: Analysis, group: Group) -> Graph | None:
    """The mended graph with outputs in the state in which they left before; None where they are."""
    p = analysis.program
    mender = _Mender(analysis, group, set(), set())
    for k, kind in enumerate(p.kind):
        for value in dict.fromkeys(p.inputs[k]) if kind == OUTPUT else ():
            known = was.program.by_name.get(p.name_of(value))
            old, of = was.solution.typing.types[known] if known is not None else None, mender.of(value)
            if not isinstance(old, Layout) or _is_cut(old, group) == _is_cut(of, group):
                continue
            for way in mender.options(of, (*_TO_ALL, *_TO_SHARES)):
                if way.layout.shape == old.shape:
                    mender.convert(k, value, of, way)
                    break
    return edited(analysis, group, mender.found) if mender.found else None


@attrs.define
class _Mender:
    """One walk through a program.

    wrong: calls with faults of states. dispatches: calls that send the same rows from every rank.
    now: layouts of values behind what was mended, where they are other ones.
    """

    analysis: Analysis
    group: Group
    wrong: set[int]
    dispatches: set[int]
    now: dict[int, Any] = attrs.field(factory=dict)
    found: list[Edit] = attrs.field(factory=list)
    known: dict[Any, list[Conversion]] = attrs.field(factory=dict)

    def edits(self) -> list[Edit]:
        p = self.analysis.program
        for k, kind in enumerate(p.kind):
            if kind == PLACEHOLDER or not p.outs[k]:
                continue
            moved = any(v in self.now for v in p.inputs[k])
            if kind in (REGION_BEGIN, REGION_END, REGION_COPY):
                if moved:
                    self.now[p.first[k]] = self.of(p.inputs[k][0])
            elif kind == CALL and (moved or k in self.wrong or k in self.dispatches):
                self._call(k)
        return self.found

    def of(self, value: int) -> Any:
        return self.now.get(value, self.analysis.solution.typing.types[value])

    def convert(self, k: int, value: int, of: Layout, way: Conversion) -> None:
        edit = Convert(value, way.kind, _axis(of, way), _cuts_padding(way), frozenset((k,)))
        if edit not in self.found:
            self.found.append(edit)

    def _call(self, k: int) -> None:
        p = self.analysis.program
        instance = p.instances[p.op[k]]
        if instance.rule is None or instance.error is not None:
            return
        ins = tuple(self.of(v) for v in p.inputs[k])
        result = self._apply(instance, ins)
        if k in self.dispatches:
            shares = {i: ways[0] for i, of in enumerate(ins) if (ways := self.options(of, ("slice",)))}
            result = self._converted(k, instance, ins, shares) or result
        faults = [issue for issue in _issues(result) if _is_of_states(issue)]
        if faults:
            result = self._repaired(k, instance, ins, faults[0]) or result
        for j, of in enumerate(result.outs[: p.outs[k]]):
            if of is not self.of(p.first[k] + j):
                self.now[p.first[k] + j] = of
        for slot, of in result.mutated.items():
            if 0 <= slot < len(p.inputs[k]) and of is not self.of(p.inputs[k][slot]):
                self.now[p.inputs[k][slot]] = of

    def _apply(self, instance: OpInstance, ins: tuple[Any, ...]) -> Result:
        return apply(self.analysis.solution.runner.ctx, instance, ins)

    def _repaired(self, k: int, instance: OpInstance, ins: tuple[Any, ...], issue: Issue) -> Result | None:
        """What a call gives once it is repaired; the repair is noted. None where nothing of the kind repairs it."""
        p = self.analysis.program
        rule = instance.rule
        slot = issue.operands[0] if issue.operands else 0
        if slot >= len(ins) or not isinstance(ins[slot], Layout) or rule is None:
            return None
        pure = rule.kind == "code" and not rule.then and not rule.mutates and p.outs[k] == 1
        if "drop" in issue.hints and pure:
            self.found.append(Drop(k, p.inputs[k][slot]))
            self.found.extend(Drop(w, p.first[k]) for w in self._waits(k))
            return Result((ins[slot],))
        if pure and rule.code in CONVERTING and ("redimension" in issue.hints or issue.code == "LC301"):
            return self._exchanged(k, rule.code)
        if issue.code == "LC102":
            for cut in sorted({c for s in issue.operands for c in self._cuts(k, s)}):
                self._exchanged(cut, "slice")
            return None
        for ways in self._choices(ins):
            if ways and (result := self._converted(k, instance, ins, ways)) is not None:
                return result
        return None

    def _converted(
        self, k: int, instance: OpInstance, ins: tuple[Any, ...], ways: dict[int, Conversion]
    ) -> Result | None:
        """What a call gives of converted operands, which are noted; None where its rule does not take them."""
        p = self.analysis.program
        result = self._apply(instance, tuple(ways[i].layout if i in ways else of for i, of in enumerate(ins)))
        if _issues(result):
            return None
        for i, way in ways.items():
            self.convert(k, p.inputs[k][i], ins[i], way)
        return result

    def _exchanged(self, k: int, kind: str) -> Result | None:
        """A conversion of a kind over the group in a call's place, of what the call reads first; None where there is none."""
        source = self.analysis.program.inputs[k][0]
        of = self.of(source)
        for way in self.options(of, (kind,)):
            if not _cuts_padding(way):
                edit = Exchange(k, source, kind, _axis(of, way))
                if edit not in self.found:
                    self.found.append(edit)
                return Result((way.layout,))
        return None

    def _cuts(self, k: int, slot: int) -> Iterator[int]:
        """Slices that give every rank the same rows, or another rank's, on the way to an operand."""
        p = self.analysis.program
        value = p.inputs[k][slot]
        for _ in range(MAX_CHAIN):
            of, maker = self.of(value), p.value_call[value]
            if not isinstance(of, Layout) or not _is_stretch(of) or p.kind[maker] != CALL:
                return
            rule = p.instances[p.op[maker]].rule
            source = self.of(p.inputs[maker][0]) if p.inputs[maker] else None
            if rule is None or not isinstance(source, Layout):
                return
            if rule.code in ("slice", "narrow") and p.outs[maker] == 1 and not _is_stretch(source):
                yield maker
                return
            value = p.inputs[maker][0]

    def _waits(self, k: int) -> list[int]:
        """Calls that wait for what a collective gives."""
        p = self.analysis.program
        return [
            reader
            for reader, _ in self.analysis.uses.get(p.first[k], ())
            if p.kind[reader] == CALL
            and (rule := p.instances[p.op[reader]].rule) is not None
            and rule.code == "wait"
        ]

    def _choices(self, ins: tuple[Any, ...]) -> Iterator[dict[int, Conversion]]:
        """Conversions of operands to try: all of them to all tokens, one of them, then shares of one."""
        whole = {i: self.options(of, _TO_ALL) for i, of in enumerate(ins)}
        for at in range(max((len(ways) for ways in whole.values()), default=0)):
            yield {i: ways[min(at, len(ways) - 1)] for i, ways in whole.items() if ways}
        for i, ways in whole.items():
            yield from ({i: way} for way in ways)
        for i, of in enumerate(ins):
            yield from ({i: way} for way in self.options(of, _TO_SHARES))

    def options(self, of: Any, kinds: tuple[str, ...]) -> list[Conversion]:
        """Conversions of one layout over the group; those that cut padding off first."""
        if not isinstance(of, Layout) or any(of.is_mixed(m) for m in self.group.axes):
            return []
        if (of, kinds) not in self.known:
            names = {self.group.name, *(n for n, g in self.analysis.mesh.groups.items() if g == self.group)}
            ways = [
                way
                for way in conversions(self.analysis, of, every_axis=True)
                if way.group in names and way.kind in kinds
            ]
            self.known[(of, kinds)] = sorted(ways, key=lambda way: not _cuts_padding(way))
        return self.known[(of, kinds)]


def _issues(result: Result) -> list[Issue]:
    """What is wrong at a call, also where an input would have to be another one."""
    return [*result.issues, *(w.issue for w in result.wants if w.issue is not None)]


def _cuts_padding(way: Conversion) -> bool:
    return way.text.endswith("cut the padding off")


def _is_stretch(of: Layout) -> bool:
    """Whether an axis holds a stretch of the tokens that is no rank's share by its layout."""
    return any(f.domain.kind == "range" for axis in of.axes for f in axis)


def _is_cut(of: Any, group: Group) -> bool:
    """Whether ranks hold parts of a value's rows or features: behind a fault it is not known which of them."""
    return isinstance(of, Layout) and any(state_of(of, m) in ("Local", "Sharded") for m in group.axes)


def _axis(of: Layout, way: Conversion) -> int:
    """The axis that a conversion changes."""
    return next((i for i, axis in enumerate(of.axes) if way.layout.axes[i] != axis), 0)
