"""Following an axis or a pending sum back to the inputs that decide it."""

from __future__ import annotations

from typing import Any

import attrs

from layoutcheck.arguments import Hole
from layoutcheck.domains import Factor
from layoutcheck.infer.calls.call import MERGED, Call, dim_of
from layoutcheck.infer.calls.compare import counts_any, cut_signature, is_one_token, is_wild
from layoutcheck.infer.calls.factor_sources import Source, label_sources, summed_labels
from layoutcheck.infer.calls.states import is_zero
from layoutcheck.infer.solver.one_call import make_call, transform_of
from layoutcheck.infer.solver.run import Runner, Typing
from layoutcheck.layouts import Axis, Layout
from layoutcheck.program import CALL, PLACEHOLDER, REGION_BEGIN, REGION_COPY, REGION_END, UNKNOWN, Program
from layoutcheck.rules.kinds import COMMUNICATING
from layoutcheck.symbols import Size, divide_exact

MAX_STEPS = 2000
_FEW = 40
_WRITING = frozenset(("index_put", "scatter", "index_add", "copy", "slice_scatter", "select_scatter"))
_SLICES = frozenset(("slice", "narrow"))
_STOPS = COMMUNICATING | {"dispatch", "moe"}


@attrs.frozen
class Cut:
    """An input's axis holds a shard: a digit over `mesh_axes` sits `inner` elements from its right end."""

    value: int
    axis: int
    inner: Size
    mesh_axes: tuple[int, ...]


@attrs.define
class Tracer:
    """Walks back over one typing. `adaptable` says which inputs may still be cut."""

    runner: Runner
    typing: Typing
    adaptable: Any
    weights_only: bool = False
    blind: bool = False
    steps: int = 0
    # axes that are cut by the trace at hand
    cut_axes: set[tuple[int, int]] = attrs.field(factory=set)
    _writes: dict[int, list[int]] | None = None

    def _call(self, k: int) -> Call:
        p = self.runner.program
        slots = tuple(self.typing.types[v] for v in p.inputs[k])
        return make_call(self.runner.ctx, p.instances[p.op[k]], slots)

    def cut(self, value: int, axis: int, inner: Size, mesh_axes: tuple[int, ...]) -> list[Cut] | None:
        """The inputs to cut so that this axis is cut; None where something fixed stands against it."""
        self.steps = 0
        seen: set[tuple[int, int]] = set()
        found: list[Cut] = []
        if not self._cut(value, axis, inner, mesh_axes, seen, found):
            return None
        self.cut_axes |= seen
        return found

    def _cut(
        self,
        value: int,
        axis: int,
        inner: Size,
        mesh_axes: tuple[int, ...],
        seen: set[tuple[int, int]],
        found: list[Cut],
    ) -> bool:
        self.steps += 1
        if self.steps > MAX_STEPS:
            return False
        if (value, axis) in seen:
            return True
        seen.add((value, axis))
        of = self.typing.types[value]
        if not isinstance(of, Layout) or axis >= of.rank:
            return False
        signature = cut_signature(of, axis)
        if signature:
            return any(i == inner and m in mesh_axes for i, m in signature)
        factors: tuple[Factor, ...] = () if is_one_token(of.axes[axis]) else of.axes[axis]
        if not _holds_feature(factors, inner):
            return False
        p = self.runner.program
        k = p.value_call[value]
        kind = p.kind[k]
        if kind == PLACEHOLDER:
            if not self.adaptable(value, axis, of, self.weights_only):
                return False
            found.append(Cut(value, axis, inner, mesh_axes))
            return True
        if kind in (REGION_BEGIN, REGION_END, REGION_COPY):
            return self._cut(p.inputs[k][0], axis, inner, mesh_axes, seen, found)
        if kind != CALL:
            self.blind = self.blind or kind == UNKNOWN
            return False
        written = self._written(value, axis, inner)
        if written:
            # a write whose axis is the buffer's own says nothing
            before = len(found)
            done = all(self._cut(v, a, i, mesh_axes, seen, found) for v, a, i in written)
            return done and len(found) > before
        if not factors and self._is_elementwise(k):
            return self._cut_unit(k, of, axis, mesh_axes, seen, found)
        sources = self.back(k, value - p.first[k], axis, inner)
        if not sources:
            return False
        if not factors:
            # Operands that are broadcast along a unit axis have no part in the cut; only tracing tells which.
            any_cut = False
            for s, a, i in sources:
                mine: list[Cut] = []
                if self._cut(p.inputs[k][s], a, i, mesh_axes, seen, mine):
                    any_cut = True
                    found.extend(mine)
            return any_cut
        return all(self._cut(p.inputs[k][s], a, i, mesh_axes, seen, found) for s, a, i in sources)

    def _written(self, value: int, axis: int, inner: Size) -> list[tuple[int, int, Size]]:
        """What in-place ops wrote into a fresh buffer, or into slices of it: values, with the axis of each that this axis is."""
        of = self.typing.types[value]
        out = []
        for v in self._writes_into(value):
            mine = self.typing.types[v]
            if not isinstance(mine, Layout) or mine.rank != of.rank:
                return []
            if is_wild(mine.axes[axis]):
                # what was expanded to this extent has all of whatever share the others have
                continue
            same = mine.shape[axis] == of.shape[axis]
            out.append((v, axis, inner if same else mine.shape[axis]))
        return out

    def _is_elementwise(self, k: int) -> bool:
        p = self.runner.program
        rule = p.instances[p.op[k]].rule
        return rule is not None and (rule.kind == "elementwise" or rule.code in ("where", "masked_fill"))

    def _cut_unit(
        self,
        k: int,
        out: Layout,
        axis: int,
        mesh_axes: tuple[int, ...],
        seen: set[tuple[int, int]],
        found: list[Cut],
    ) -> bool:
        """An axis of local extent one: which operands hold one head, and which are broadcast, only tracing tells."""
        p = self.runner.program
        any_cut = False
        for _, slot, of in self._call(k).tensors():
            at = axis - (out.rank - of.rank)
            if at < 0 or (of.axes[at] and not is_one_token(of.axes[at])):
                continue
            mine: list[Cut] = []
            value = p.inputs[k][slot]
            if (value, at) in seen or self._cut(value, at, 1, mesh_axes, seen, mine):
                any_cut = True
                found.extend(mine)
        return any_cut

    def back(self, k: int, output: int, axis: int, inner: Size) -> list[Source] | None:
        """The operand axes that an output axis comes from."""
        p = self.runner.program
        instance = p.instances[p.op[k]]
        rule = instance.rule
        if rule is None:
            return None
        call = self._call(k)
        outs = self.typing.types[p.first[k] : p.first[k] + p.outs[k]]
        if rule.kind == "elementwise":
            return _back_elementwise(call, outs[output], axis, inner)
        if rule.kind == "factors":
            return label_sources(call, output, outs[output], axis, inner)
        transform = transform_of(instance)
        if transform is None or transform.back is None:
            return None
        found: list[Source] | None = transform.back(call, outs, output, axis, inner)
        return [s for s in found if s[0] >= 0] if found else None

    def pending(self, value: int, mesh_axes: tuple[int, ...]) -> list[Cut] | None:
        """The inputs to cut so that a value is a pending sum over these mesh axes; None where that can't be."""
        self.steps = 0
        self.cut_axes = set()
        self.weights_only = True
        found = self._pending(value, mesh_axes, set())
        self.weights_only = False
        return found

    def _pending(self, value: int, mesh_axes: tuple[int, ...], seen: set[int]) -> list[Cut] | None:
        self.steps += 1
        if self.steps > MAX_STEPS:
            return None
        if value in seen:
            return []
        seen.add(value)
        of = self.typing.types[value]
        if isinstance(of, Layout) and mesh_axes and all(m in of.partial for m in mesh_axes):
            return []
        p = self.runner.program
        k = p.value_call[value]
        kind = p.kind[k]
        if kind in (REGION_BEGIN, REGION_END):
            return None
        if kind != CALL:
            self.blind = self.blind or kind == UNKNOWN
            return None
        instance = p.instances[p.op[k]]
        rule = instance.rule
        if rule is None or rule.code in _STOPS:
            return None
        call = self._call(k)
        groups = summed(call)
        behind = self._summed_before(k, call)
        if behind is not None:
            return self._pending(behind, mesh_axes, seen)
        for group in groups:
            found: list[Cut] | None = []
            for slot, axis, inner in group:
                of = self.typing.types[p.inputs[k][slot]]
                if isinstance(of, Layout) and len(group) > 1 and counts_any(of.axes[axis]):
                    # positions made on the spot go with any share
                    continue
                cuts = self.cut(p.inputs[k][slot], axis, inner, mesh_axes)
                if cuts is None:
                    found = None
                    break
                assert found is not None
                found.extend(cuts)
            if found:
                return found
        if any(len(group) > 1 for group in groups) and any(self._is_input(v) for v in p.inputs[k]):
            # A product with a weight that is summed here is not looked for behind its factors.
            return None
        if _name_of(p, k) == "create":
            return self._any_pending(self._writes_into(value), mesh_axes, seen)
        return self._through(k, call, mesh_axes, seen)

    def _summed_before(self, k: int, call: Call) -> int | None:
        """An operand that is itself summed over an axis that is to be cut for another summand (a low-rank pair's first half)."""
        p = self.runner.program
        if not self.cut_axes:
            return None
        for name, slot, _ in call.tensors():
            before = p.value_call[p.inputs[k][slot]]
            if name not in call.rule.linear or p.kind[before] != CALL:
                continue
            first = self._call(before)
            axes = {(p.inputs[before][s], a) for group in summed(first) for s, a, _ in group}
            if axes & self.cut_axes:
                return p.inputs[k][slot]
        return None

    def _writes_into(self, value: int) -> list[int]:
        """Results of the in-place ops that write into a fresh buffer."""
        p = self.runner.program
        if self._writes is None:
            self._writes = _writes_of(p)
        return [p.first[k] for k in self._writes.get(value, ())]

    def extreme(self, value: int, mesh_axes: tuple[int, ...]) -> list[Cut] | None:
        """The inputs to cut so that a greatest value is that of a rank's own shard; None where there is no such value."""
        p = self.runner.program
        todo, seen = [value], {value}
        while todo and len(seen) < _FEW:
            k = p.value_call[todo.pop()]
            instance = p.instances[p.op[k]] if p.kind[k] == CALL else None
            transform = transform_of(instance) if instance is not None else None
            if instance is None or instance.rule is None:
                continue
            if MERGED in instance.params:
                call = self._call(k)
                of = call.tensor("self")
                dim = dim_of(call, "dim", of.rank, -1) if of is not None else -1
                return (
                    self.cut(p.inputs[k][0], dim, of.shape[dim], mesh_axes)
                    if of is not None and dim >= 0
                    else None
                )
            if instance.rule.kind == "elementwise" or (transform is not None and transform.is_view):
                todo.extend(v for v in p.inputs[k] if v not in seen)
                seen.update(p.inputs[k])
        return None

    def _is_input(self, value: int) -> bool:
        """Whether a value is an input of the program, or a view of one."""
        p = self.runner.program
        k = p.value_call[value]
        while p.kind[k] == CALL:
            transform = transform_of(p.instances[p.op[k]])
            if transform is None or not transform.is_view or len(p.inputs[k]) != 1:
                return False
            k = p.value_call[p.inputs[k][0]]
        return p.kind[k] == PLACEHOLDER

    def _any_pending(self, values: list[int], mesh_axes: tuple[int, ...], seen: set[int]) -> list[Cut] | None:
        """One pending summand is enough to say what was meant; one that is not is then a finding of its own."""
        out: list[Cut] | None = None
        for value in values:
            cuts = self._pending(value, mesh_axes, seen)
            if cuts is not None:
                out = [*(out or []), *cuts]
        return out

    def _through(self, k: int, call: Call, mesh_axes: tuple[int, ...], seen: set[int]) -> list[Cut] | None:
        p = self.runner.program
        rule = call.rule
        tensors = list(call.tensors())
        additive = set(rule.additive)
        if rule.code in ("cat", "stack"):
            additive = {name for name, _, _ in tensors}
        if rule.code in ("where", "masked_fill", "pad"):
            data = [(n, s, of) for n, s, of in tensors if of.dtype != "bool" and not is_zero(of) and of.axes]
            if len(data) == 1 or rule.code != "where":
                return self._pending(p.inputs[k][data[0][1]], mesh_axes, seen) if data else None
            return None
        summands = [(s, of) for n, s, of in tensors if n in additive and not is_zero(of)]
        if summands:
            return self._any_pending([p.inputs[k][s] for s, _ in summands], mesh_axes, seen)
        if rule.code in _WRITING:
            parts = [
                s for n, s, of in tensors if n in ("self", "values", "src", "source") and not is_zero(of)
            ]
            return self._any_pending([p.inputs[k][s] for s in parts], mesh_axes, seen)
        for name, s, _ in tensors:
            if name in rule.linear:
                cuts = self._pending(p.inputs[k][s], mesh_axes, seen)
                if cuts is not None:
                    return cuts
        return None


def _holds_feature(axis: Axis, inner: Size) -> bool:
    """Whether a rank's digit can stand `inner` elements from an axis' right end: in front of or inside a feature.

    Of a batch flattened with its heads only the heads are features; one head a rank stands behind the batch.
    """
    right: Size = 1
    behind: Factor | None = None
    for f in reversed(axis):
        if right == inner:
            break
        right = right * f.extent
        behind = f
        if right != inner and divide_exact(right, inner) is not None:
            break
    if behind is None:
        return True
    return behind.domain.is_feature or behind.domain.kind == "variable"


def _writes_of(p: Program) -> dict[int, list[int]]:
    """Fresh buffers, with the calls that write into them or into slices of them."""
    found: dict[int, list[int]] = {}
    for k, kind in enumerate(p.kind):
        instance = p.instances[p.op[k]] if kind == CALL else None
        if instance is None or instance.rule is None or not instance.rule.mutates or instance.bases:
            continue
        for name in instance.rule.mutates:
            hole = instance.params.get(name)
            if not isinstance(hole, Hole):
                continue
            base = p.inputs[k][hole.slot]
            while p.kind[p.value_call[base]] == CALL and _name_of(p, p.value_call[base]) in _SLICES:
                base = p.inputs[p.value_call[base]][0]
            if p.kind[p.value_call[base]] == CALL and _name_of(p, p.value_call[base]) == "create":
                found.setdefault(base, []).append(k)
    return found


def _name_of(p: Program, k: int) -> str:
    transform = transform_of(p.instances[p.op[k]])
    return transform.name if transform is not None else ""


def summed(call: Call) -> list[list[Source]]:
    """Groups of operand axes that a call sums over."""
    rule = call.rule
    if rule.kind == "factors":
        return summed_labels(call)
    if rule.kind == "code":
        from layoutcheck.transforms import find

        transform = find(rule.code or "")
        if transform is not None and transform.summed is not None:
            return transform.summed(call)
    return []


def _back_elementwise(call: Call, out: Any, axis: int, inner: Size) -> list[Source] | None:
    if not isinstance(out, Layout):
        return None
    sources = []
    for _, slot, of in call.tensors():
        at = axis - (out.rank - of.rank)
        if at >= 0 and of.axes[at] and not counts_any(of.axes[at]):
            sources.append((slot, at, inner))
    return sources or None
