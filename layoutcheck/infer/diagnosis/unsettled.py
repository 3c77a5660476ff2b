"""Slices from row 0 in an export of rank 0: a share of the tokens, or the same first rows on every rank.

Such a slice is read as the share. A gather over its group, or an operand that is a share without a doubt, settles that; where nothing
does, a note says so, and over which other groups the same rows would be a share.
"""

from __future__ import annotations

from typing import Any

from layoutcheck.domains import is_token_like
from layoutcheck.infer.calls.call import CONSTANT, Issue
from layoutcheck.infer.issues.entries import Entry
from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.infer.solver.one_call import make_call
from layoutcheck.infer.solver.run import Typing
from layoutcheck.infer.solver.which_group import SLICING, Axes, fresh, rivals
from layoutcheck.layouts import Layout
from layoutcheck.program import CALL, OUTPUT
from layoutcheck.transforms.exchanges import group_of

_FAR = 64
_GATHERING = frozenset(("all_gather", "all_to_all"))


def unsettled_shares(analysis: Analysis, typing: Typing, found: list[Entry]) -> list[Entry]:
    """A note on each share that nothing settles; none where an issue stands behind it, whose path names the slice."""
    p, types, mesh = analysis.program, typing.types, analysis.mesh
    if mesh.rank is None or analysis.together:
        return []
    slicing = {i for i, one in enumerate(p.instances) if one.rule is not None and one.rule.code in SLICING}
    shares = [k for k, op in enumerate(p.op) if op in slicing and _looks_constant(analysis, types, k)]
    if not shares:
        return []
    meets = _Meets(analysis, typing, shares)
    wrong = {k for k, _, _ in found}
    return [
        _note(analysis, types, k)
        for k in shares
        if not meets.settled(k) and not any(k in meets.behind(call) for call in wrong)
    ]


def _looks_constant(analysis: Analysis, types: list[Any], k: int) -> bool:
    """Whether a slice gives this rank's share of tokens from row 0, in numbers that any program might hold."""
    p = analysis.program
    axes = fresh(types, p, k)
    if not axes or CONSTANT in p.instances[p.op[k]].params:
        return False
    of = types[p.first[k]]
    if any(analysis.mesh.coordinate(m) != 0 for m in axes) or not all(isinstance(n, int) for n in of.shape):
        return False
    return any(is_token_like(b.domain) for m in axes for b in of.bound_map[m])


def _note(analysis: Analysis, types: list[Any], k: int) -> Entry:
    p, ctx = analysis.program, analysis.solution.runner.ctx
    of = types[p.first[k]]
    mine = fresh(types, p, k)
    size = ctx.ways(mine)
    others = sorted(ctx.group(axes) for axes in rivals(ctx) if axes != mine and ctx.ways(axes) == size)
    also = f" (or over {', '.join(others)})" if others else ""
    text = (
        f"read as this rank's share over {ctx.group(mine)}{also}, {ctx.show(of)}; in an export of rank 0 the same first rows on every "
        "rank look alike, and nothing behind it settles which: another rank's export does (--together)"
    )
    key = (p.op[k], *[types[v] for v in p.inputs[k]])
    return k, key, Issue("LC102", text, (0,), ("note",))


class _Meets:
    """What the values that come from doubtful slices meet: each call with the slices that its operands come from."""

    def __init__(self, analysis: Analysis, typing: Typing, shares: list[int]) -> None:
        self.analysis, self.types = analysis, typing.types
        p = analysis.program
        self.axes: dict[int, Axes] = {k: fresh(self.types, p, k) for k in shares}
        self.reached: dict[int, set[int]] = {k: {k} for k in shares}
        self.sure = {k for k in shares if self._gathered_before(k)}
        self.same: dict[int, set[int]] = {k: {k} for k in shares}
        of_value: dict[int, set[int]] = {}
        for k in range(shares[0], len(p.kind)):
            mine = set().union(*[of_value.get(v, ()) for v in p.inputs[k]])
            if mine:
                self.reached.setdefault(k, set()).update(mine)
                self._settle(k, mine, of_value)
            mine = mine | ({k} if k in self.axes else set())
            for v in range(p.first[k], p.first[k] + p.outs[k]):
                kept = {s for s in mine if self._holds(v, s)}
                if kept:
                    of_value[v] = kept

    def settled(self, share: int) -> bool:
        """Whether a slice, or one that its rows meet, is a share without a doubt."""
        todo, seen = [share], {share}
        while todo:
            one = todo.pop()
            if one in self.sure:
                return True
            todo.extend(self.same[one] - seen)
            seen |= self.same[one]
        return False

    def behind(self, call: int) -> set[int]:
        """The doubtful slices that a call's operands, or it, come from."""
        return self.reached.get(call, set())

    def _holds(self, value: int, share: int) -> bool:
        of = self.types[value]
        return isinstance(of, Layout) and any(m in of.bound_map for m in self.axes[share])

    def _settle(self, k: int, mine: set[int], of_value: dict[int, set[int]]) -> None:
        p = self.analysis.program
        if p.kind[k] == OUTPUT:
            meta = p.nodes[k].meta
            metas = meta if isinstance(meta, tuple) else (meta,) * len(p.inputs[k])
            for v, said in zip(p.inputs[k], metas, strict=False):
                if getattr(said, "layout", None) is not None or v in self.analysis.plan.leaving:
                    self.sure |= of_value.get(v, set())
            return
        if p.kind[k] == CALL and self._gathers(k, mine):
            return
        for v in p.inputs[k]:
            of = self.types[v]
            theirs = of_value.get(v, set())
            for share in mine - theirs:
                if not theirs and isinstance(of, Layout) and self._is_share(of, self.axes[share]):
                    self.sure.add(share)
                for other in theirs:
                    self.same[share].add(other)
                    self.same[other].add(share)

    def _gathers(self, k: int, mine: set[int]) -> bool:
        over = self._gathered(k)
        if over is not None:
            self.sure |= {s for s in mine if set(self.axes[s]) <= set(over)}
        return over is not None

    def _gathered(self, k: int) -> Axes | None:
        """The mesh axes that a call gathers over; None for a call that gathers nothing."""
        p = self.analysis.program
        instance = p.instances[p.op[k]] if p.kind[k] == CALL else None
        if instance is None or instance.rule is None or instance.rule.code not in _GATHERING:
            return None
        slots = tuple(self.types[v] for v in p.inputs[k])
        group = group_of(make_call(self.analysis.solution.runner.ctx, instance, slots))
        return group.axes if group is not None else ()

    def _gathered_before(self, k: int) -> bool:
        """Whether a slice cuts again what was gathered over the same group."""
        p = self.analysis.program
        value = p.inputs[k][0]
        for _ in range(_FAR):
            maker = p.value_call[value]
            over = self._gathered(maker)
            if over is not None:
                return set(self.axes[k]) <= set(over)
            if (
                p.kind[maker] != CALL
                or not p.inputs[maker]
                or self.types[p.inputs[maker][0]] is not self.types[value]
            ):
                return False
            value = p.inputs[maker][0]
        return False

    @staticmethod
    def _is_share(of: Layout, axes: Axes) -> bool:
        return any(is_token_like(b.domain) for m in axes for b in of.bound_map.get(m, ()))
