"""Which values share memory: views, in-place results and mutated buffers, each with the value it lies in.

`infer/solver/sharing.py` says what is a view, and what only where its operand's strides allow one. Whether they do is followed
from the views before it.
"""

from __future__ import annotations

from itertools import accumulate
from operator import mul
from typing import Any

from layoutcheck.infer.calls.call import slots_in
from layoutcheck.infer.solver.sharing import kind_of
from layoutcheck.layouts import Layout
from layoutcheck.program import CALL, OpInstance, Program
from layoutcheck.symbols import Size

_REORDERING = frozenset(("permute", "transpose", "t", "movedim", "expand"))
_CUTTING = frozenset(("slice", "narrow", "select", "split", "chunk", "unbind"))


def aliases_of(program: Program, types: list[Any]) -> list[int]:
    """Return, for every value, the value in whose memory it lies; itself where it has memory of its own.

    What begins or ends a region stands for itself too: which memory it is differs between the repeats.
    """
    return _Aliases(program, types).run()


class _Aliases:
    def __init__(self, program: Program, types: list[Any]) -> None:
        self.program, self.types = program, types
        self.root = list(range(program.n_values))
        self.strided: set[int] = set()
        self.kinds: dict[int, tuple[str, int, tuple[int, ...]]] = {}

    def run(self) -> list[int]:
        p = self.program
        for k, kind in enumerate(p.kind):
            if kind == CALL:
                self._call(k)
        return self.root

    def _call(self, k: int) -> None:
        p = self.program
        op = p.op[k]
        found = self.kinds.get(op)
        if found is None:
            found = self.kinds[op] = _kind_of(p.instances[op])
        kind, slot, mutated = found
        ins, first, outs = p.inputs[k], p.first[k], p.outs[k]
        instance = p.instances[op]
        for j, base in enumerate(instance.bases):
            if base >= 0:
                self.root[first + outs - len(instance.bases) + j] = self.root[ins[base]]
        for written in mutated:
            # an in-place op gives its operand back; what it returns besides has another layout
            for out in range(first, first + outs - len(instance.bases)):
                if self.types[out] is self.types[ins[written]] and isinstance(self.types[out], Layout):
                    self.root[out] = self.root[ins[written]]
        if kind == "own" or not ins:
            if kind == "own" and any(v in self.strided for v in ins) and instance.rule is not None:
                self._keep_strides(instance, ins, first)
            return
        source = ins[slot]
        for out in range(first, first + outs):
            self._view(kind, instance, source, out)

    def _keep_strides(self, instance: OpInstance, ins: tuple[int, ...], first: int) -> None:
        """Pointwise results take the strides of their first operand of the same shape."""
        if instance.rule is None or instance.rule.kind != "elementwise":
            return
        out = self.types[first]
        for v in ins:
            of = self.types[v]
            if isinstance(of, Layout) and isinstance(out, Layout) and of.shape == out.shape:
                if v in self.strided:
                    self.strided.add(first)
                return

    def _view(self, kind: str, instance: OpInstance, source: int, out: int) -> None:
        of, to = self.types[source], self.types[out]
        if not isinstance(of, Layout) or not isinstance(to, Layout):
            return
        if of.dtype != to.dtype and kind == "same":
            return
        strided = source in self.strided
        if kind == "maybe" and strided and not _refines(of.shape, to.shape):
            return
        self.root[out] = self.root[source]
        code = instance.rule.code if instance.rule is not None else None
        if strided or (code in _REORDERING and _moves(of, to)) or (code in _CUTTING and _gaps(of, to)):
            self.strided.add(out)


def _kind_of(instance: OpInstance) -> tuple[str, int, tuple[int, ...]]:
    """How an op's outputs lie, of which slot, and the slots that it writes into."""
    rule = instance.rule
    if rule is None or instance.error:
        return "own", 0, ()
    return *kind_of(instance), tuple(s for name in rule.mutates for s in slots_in(instance.params.get(name)))


def _refines(before: tuple[Size, ...], after: tuple[Size, ...]) -> bool:
    """Whether a reshape only splits axes, which any strides allow."""
    return set(accumulate(reversed(before), mul)) <= {1, *accumulate(reversed(after), mul)}


def _moves(of: Layout, to: Layout) -> bool:
    """Whether axes longer than one changed places or were widened."""
    kept = [n for n in of.shape if n != 1]
    if kept != [n for n in to.shape if n != 1]:
        return True
    # equal extents say nothing of a square; then the factors do
    return [a for a, n in zip(of.axes, of.shape) if n != 1] != [
        a for a, n in zip(to.axes, to.shape) if n != 1
    ] or (len(kept) > 1 and len(set(kept)) < len(kept))


def _gaps(of: Layout, to: Layout) -> bool:
    """Whether a cut leaves gaps: it does unless it is along the outermost axis that is longer than one."""
    outer = next((i for i, n in enumerate(of.shape) if n != 1), 0)
    inner = of.shape[outer + 1 :]
    return inner != to.shape[max(0, to.rank - len(inner)) :] if inner else False
