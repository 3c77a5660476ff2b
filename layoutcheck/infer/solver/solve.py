"""Passes until nothing is left to learn.

A pass assumes (weights replicated, anonymous axes unknown, the exporting rank 0) and returns wants. Wants that can be had change
the inputs; what cannot be had becomes a finding. Evidence only grows, so the loop ends.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import attrs

from layoutcheck.domains import Domain, Factor
from layoutcheck.graph import TensorMeta
from layoutcheck.infer.calls.call import Context, Issue
from layoutcheck.infer.solver.inputs import InputPlan, Substitution, build_inputs
from layoutcheck.infer.solver.likeness import places_of
from layoutcheck.infer.solver.run import Key, Memo, Runner, Typing
from layoutcheck.infer.solver.trace import Cut, Tracer
from layoutcheck.infer.solver.vocabulary import heads, masked_tables
from layoutcheck.layouts import Layout
from layoutcheck.mesh import Mesh
from layoutcheck.program import Program

MAX_PASSES = 40


@attrs.define
class Solution:
    """The last pass, what the inputs came to be, and the issues that stand."""

    runner: Runner
    typing: Typing
    issues: list[tuple[int, Key, Issue]]
    repeated: list[tuple[int, Key, Issue]]
    cuts: dict[int, list[Cut]]
    same: Substitution
    passes: int
    alike: set[int]
    unresolved: dict[int, str]

    def __repr__(self) -> str:
        return f"<Solution after {self.passes} passes: {self.typing!r}, {len(self.issues)} issues>"


@attrs.define
class Solver:
    """Holds the evidence between passes. `patched` answers and `given` inputs stand in while a repair is tried."""

    program: Program
    ctx: Context
    plan: InputPlan
    cuts: dict[int, list[Cut]] = attrs.field(factory=dict)
    same: Substitution = attrs.field(factory=dict)
    alike: set[int] = attrs.field(factory=set)
    fixed: set[int] = attrs.field(factory=set)
    memo: Memo = attrs.field(factory=dict)
    patched: dict[Key, Any] = attrs.field(factory=dict)
    given: dict[int, Layout] = attrs.field(factory=dict)

    def __repr__(self) -> str:
        return f"<Solver of {self.program!r}>"

    def solve(self, siblings: bool = True) -> Solution:
        """Run passes to a fixpoint."""
        passes = 0
        while True:
            passes += 1
            runner = Runner(
                self.program,
                self.ctx,
                {**build_inputs(self.program, self.ctx.mesh, self.plan, self.cuts, self.same), **self.given},
                self.memo,
                self.patched,
            )
            typing = runner.run()
            learned, standing = self._learn(runner, typing)
            if not learned and siblings and passes < MAX_PASSES:
                learned = self._liken(typing) or self._vocabulary(runner, typing)
            if not learned or passes >= MAX_PASSES:
                break
        issues = [(k, key, issue) for k, key, result in typing.hits for issue in result.issues]
        issues += standing
        issues.sort(key=lambda entry: entry[0])
        repeated = [(k, key, issue) for k, key, result in typing.repeats for issue in result.issues]
        return Solution(runner, typing, issues, repeated, self.cuts, self.same, passes, self.alike, {})

    def _adaptable(self, value: int, axis: int, of: Layout, weights_only: bool) -> bool:
        if value in self.plan.declared or value in self.fixed:
            return False
        role = self.plan.roles.get(value)
        if role == "weight":
            return True
        if role == "cache":
            return True
        if weights_only:
            return False
        factors = of.axes[axis]
        return bool(factors) and all(f.domain.kind == "variable" or f.domain.is_feature for f in factors)

    def _learn(self, runner: Runner, typing: Typing) -> tuple[bool, list[tuple[int, Key, Issue]]]:
        tracer = Tracer(runner, typing, self._adaptable)
        learned = False
        standing: list[tuple[int, Key, Issue]] = []
        ranks: Counter[tuple[tuple[int, ...], int]] = Counter()
        inputs = self.program.inputs
        for k, key, result in [*typing.hits, *typing.repeats]:
            for want in result.wants:
                if want.kind == "rank":
                    ranks[want.data] += 1
                    continue
                if want.kind == "same":
                    learned |= self._unify(*want.data)
                    continue
                value = inputs[k][want.slot] if 0 <= want.slot < len(inputs[k]) else -1
                cuts: list[Cut] | None = None
                tracer.blind = False
                if want.kind == "cut" and value >= 0:
                    cuts = tracer.cut(value, want.axis, want.inner, want.mesh_axes)
                elif want.kind == "shard" and value >= 0:
                    cuts = self._some_axis(tracer, value, want.mesh_axes)
                elif want.kind == "partial":
                    cuts = (
                        tracer.pending(value, want.mesh_axes)
                        if value >= 0
                        else self._inside(tracer, k, want.mesh_axes)
                    )
                if cuts and self._take(cuts):
                    learned = True
                elif cuts is None and tracer.blind:
                    # An op without a rule stands in the way: nothing can be said.
                    continue
                elif (want.issue is not None and cuts is None) or (want.issue is not None and not learned):
                    standing.append((k, key, want.issue))
        if self.ctx.mesh.rank is None:
            learned |= self._settle_rank(ranks)
        return learned, standing

    def _some_axis(self, tracer: Tracer, value: int, mesh_axes: tuple[int, ...]) -> list[Cut] | None:
        """The last feature axis of a value that may be a shard."""
        of = tracer.typing.types[value]
        if not isinstance(of, Layout):
            return None
        for axis in reversed(range(of.rank)):
            if of.axes[axis] and all(f.domain.is_feature for f in of.axes[axis]):
                cuts = tracer.cut(value, axis, of.shape[axis], mesh_axes)
                if cuts:
                    return cuts
        return tracer.extreme(value, mesh_axes)

    def _inside(self, tracer: Tracer, k: int, mesh_axes: tuple[int, ...]) -> list[Cut] | None:
        """A fused op whose second half wants a pending sum of its first half (matmul + all_reduce)."""
        from layoutcheck.infer.solver.trace import summed

        call = tracer._call(k)
        for group in summed(call):
            found: list[Cut] | None = []
            for slot, axis, inner in group:
                cuts = tracer.cut(self.program.inputs[k][slot], axis, inner, mesh_axes)
                if cuts is None:
                    found = None
                    break
                assert found is not None
                found.extend(cuts)
            if found:
                return found
        return None

    def _take(self, cuts: list[Cut]) -> bool:
        changed = False
        for c in cuts:
            mine = self.cuts.setdefault(c.value, [])
            if any(d.axis == c.axis and set(c.mesh_axes) <= set(d.mesh_axes) for d in mine):
                continue
            taken = {m for d in mine for m in d.mesh_axes}
            if taken & set(c.mesh_axes):
                continue
            mine.append(c)
            changed = True
        return changed

    def _unify(self, variable: Domain, other: Any) -> bool:
        target = other
        while isinstance(target, Domain) and target in self.same:
            target = self.same[target]
        if target is variable:
            return False
        if isinstance(target, tuple) and any(isinstance(f, Factor) and f.domain is variable for f in target):
            return False
        source = variable
        while source in self.same:
            found = self.same[source]
            if not isinstance(found, Domain) or found is target:
                return False
            source = found
        if source is target or source.kind != "variable":
            return False
        if isinstance(target, Domain) and target.kind in ("any", "iota"):
            return False
        self.same[source] = target
        return True

    def _settle_rank(self, votes: Counter[tuple[tuple[int, ...], int]]) -> bool:
        """Slices at a share's offset say which rank exported; offset 0 may mean anything."""
        if not votes:
            return False
        (axes, at), _ = max(votes.items(), key=lambda entry: (entry[0][1] != 0, entry[1]))
        mesh = self.ctx.mesh
        rank = 0
        weight = 1
        for axis in reversed(axes):
            size = mesh.size(axis)
            number = at % size if isinstance(size, int) else at
            stride = mesh.axes[axis].stride or weight
            rank += number * stride
            at = at // size if isinstance(size, int) else 0
            weight = stride * (size if isinstance(size, int) else 1)
        mesh.rank = rank
        self.memo.clear()
        return True

    def _liken(self, typing: Typing) -> bool:
        """Weights in the place of weights that are known to be shards are shards too: layers are alike."""
        if not self.cuts:
            return False
        weights = {v: meta for v, meta in self.plan.metas.items() if self.plan.roles.get(v) == "weight"}
        by_place: dict[Any, dict[int, None]] = {}
        for value, place in places_of(self.program, typing.types, weights):
            by_place.setdefault(place, {})[value] = None
        changed = False
        for members in by_place.values():
            known = [v for v in members if self.cuts.get(v)]
            open_ones = [
                v
                for v in members
                if not self.cuts.get(v) and v not in self.plan.declared and v not in self.fixed
            ]
            if not known or not open_ones:
                continue
            pattern = self.cuts[known[0]]
            if any(
                {(c.axis, c.inner, c.mesh_axes) for c in self.cuts[v]}
                != {(c.axis, c.inner, c.mesh_axes) for c in pattern}
                for v in known[1:]
            ):
                continue
            for v in open_ones:
                self.cuts[v] = [attrs.evolve(c, value=v) for c in pattern]
                self.alike.add(v)
                changed = True
        return changed

    def _vocabulary(self, runner: Runner, typing: Typing) -> bool:
        """Tables and heads that hold one rank's part of the vocabulary."""
        if self.ctx.group_of is None:
            return False
        found = [
            c
            for c in masked_tables(self.program, self.ctx, typing)
            if not self.cuts.get(c.value) and c.value not in self.plan.declared and c.value not in self.fixed
        ]
        if self._take(found):
            return True
        return self._take(heads(Tracer(runner, typing, self._adaptable), self.ctx))


def mesh_of(runner: Runner) -> Mesh:
    """The mesh that a runner types over."""
    return runner.ctx.mesh


def recorded_meta(p: Program, value: int) -> TensorMeta | None:
    """What the exporter recorded for a value."""
    k = p.value_call[value]
    meta = p.nodes[k].meta
    if isinstance(meta, tuple):
        at = value - p.first[k]
        found = meta[at] if at < len(meta) else None
        return found if isinstance(found, TensorMeta) else None
    return meta if isinstance(meta, TensorMeta) and p.outs[k] == 1 else None
