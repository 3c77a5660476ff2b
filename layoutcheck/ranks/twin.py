"""The same program on one device: conversions are identities, sizes are those of the whole.

Values are computed from the wholes of their operands. Where the op on wholes says nothing of what a rank
does (pieces of a feature shard, which each rank packs by itself; rows grouped by expert; masks whose limits
are the rank's own), what each rank should hold is computed from its share of the wholes, and compared rank by
rank (`own`). Only where that does not run either is a value taken over from the ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from layoutcheck.errors import InputError
from layoutcheck.graph import Node
from layoutcheck.infer.calls.call import slots_in
from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.infer.solver.one_call import apply, transform_of
from layoutcheck.layout_text import parse_layout
from layoutcheck.layouts import Layout, replace
from layoutcheck.program import CALL, OUTPUT, OpInstance
from layoutcheck.ranks.denote import (
    Ranks,
    Undenoted,
    difference,
    extents,
    join,
    number,
    placement,
    relaid,
    share,
    summands,
    valid,
    wrong_rows,
)
from layoutcheck.ranks.interpreter import Members, RankError, run_node
from layoutcheck.ranks.own import OwnValues, apart
from layoutcheck.ranks.specialise import one_device
from layoutcheck.rules.kinds import GOING_UP
from layoutcheck.symbols import Expr

CONVERSIONS = GOING_UP | {"wait", "shard", "broadcast", "region_begin", "region_end"}
PIECES = frozenset(("slice", "narrow", "select", "split", "chunk", "unbind", "cat", "stack", "pad"))
SIZED = frozenset(("view", "flatten", "unflatten"))


@attrs.define
class Twin:
    """Wholes by value number; `taken` counts values that were taken over from the ranks, `first` is the first
    difference.

    `place` says where it is in words, `value` which value it is (an output's are told apart by `slot`), `right` what
    each rank should hold instead, `failed` the nodes that one device cannot run.
    """

    wholes: dict[int, Any]
    taken: list[str]
    compared: int = 0
    first: tuple[str, str] | None = None
    place: str = ""
    value: int = -1
    slot: int | None = None
    right: list[Any] | None = None
    failed: set[str] = attrs.field(factory=set)


def _fitted(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Rows cut off or added (zeros) at the ends, so that padding is as the layout says."""
    for i, n in enumerate(shape):
        if x.shape[i] > n:
            x = x.narrow(i, 0, n)
        elif x.shape[i] < n:
            more = list(x.shape)
            more[i] = n - x.shape[i]
            x = torch.cat([x, x.new_zeros(more)], i)
    return x


class TwinRunner:
    """Walks a typed program once the ranks have run, value by value; `stopped` says that they did not run to the end."""

    def __init__(
        self,
        analysis: Analysis,
        ranks: Ranks,
        given: dict[int, Tensor],
        values: Sequence[dict[str, Any]],
        nodes: Sequence[dict[str, Node]],
        members: Members,
        own: dict[int, list[Any]],
        known: frozenset[tuple[int, int]] = frozenset(),
        stopped: bool = False,
    ) -> None:
        self.stopped = stopped
        self.analysis, self.ranks, self.values, self.nodes = analysis, ranks, values, nodes
        self.known = known
        """Outputs (call, slot) whose difference is known."""
        self.twin = Twin({v: x for v, x in given.items() if v not in own}, [])
        self.own = OwnValues(ranks, members, self.on_ranks)
        self.own.values.update(own)
        self.calls = one_device(analysis, ranks)
        self.types: list[Any] = list(analysis.solution.typing.types)
        """Types as they are when a call runs: what is written into later has its first type before."""
        self.written: dict[int, list[tuple[int, Any]]] = {}
        for k, value, before, after in reversed(analysis.solution.typing.written):
            if self._is_blank(value):
                continue  # it has the extents of what is put there from the beginning
            self.types[value] = before
            self.written.setdefault(k, []).insert(0, (value, after))
        self.noise = torch.Generator().manual_seed(7)

    def _is_blank(self, value: int) -> bool:
        """Whether a value is a constant fill, or a view of one."""
        p, sharing = self.analysis.program, self.analysis.solution.runner.sharing
        while sharing is not None and value in sharing.base:
            value = sharing.base[value]
        call = p.value_call[value]
        rule = p.instances[p.op[call]].rule if p.kind[call] == CALL else None
        return rule is not None and rule.code == "create"

    def walk(self) -> Twin:
        """Compute and compare all values, up to the first difference."""
        p = self.analysis.program
        for k, kind in enumerate(p.kind):
            if kind == CALL:
                self._call(k)
                for value, after in self.written.get(k, ()):
                    self.types[value] = after
            elif kind == OUTPUT:
                self._output(k)
            if self.twin.first is not None:
                break
        return self.twin

    def _output(self, k: int) -> None:
        """Outputs hold what is declared; undeclared ones may be shares, but no summands."""
        p = self.analysis.program
        for slot, value in enumerate(p.inputs[k]):
            if (k, slot) in self.known:
                continue
            of = self.types[value]
            whole, held = self.twin.wholes.get(value), self.on_ranks(value)
            if not isinstance(of, Layout) or held is None or not isinstance(whole, torch.Tensor):
                continue
            try:
                wanted = self._boundary(p.nodes[k], slot, of)
            except InputError as error:
                self.twin.first = (p.nodes[k].name, f"{p.name_of(value)}: {error}")
                self.twin.value, self.twin.slot = value, slot
                return
            if wanted is None:
                continue
            self.twin.compared += 1
            problem = difference(held, wanted, whole, self.ranks)
            if problem is not None:
                self.twin.first = (p.nodes[k].name, f"{p.name_of(value)}: {problem}")
                self.twin.place = wrong_rows(held, wanted, whole, self.ranks)
                self.twin.value, self.twin.slot = value, slot
                return

    def _boundary(self, node: Node, slot: int, of: Layout) -> Layout | None:
        """The layout that an output must have: the declared one, else its own, complete. Raises InputError
        where the declared one does not fit.
        """
        metas = node.meta if isinstance(node.meta, tuple) else (node.meta,)
        text = getattr(metas[slot], "layout", None) if slot < len(metas) else None
        if text is None:
            return replace(of, partial=()) if self._claims(of) else None
        mesh, names = self.analysis.mesh, dict(self.analysis.plan.names)
        return parse_layout(text, mesh, of.dtype, tuple(of.shape), node.name, names)

    def on_ranks(self, value: int) -> list[Any] | None:
        """What each rank holds of a value."""
        p = self.analysis.program
        call = p.value_call[value]
        name = p.nodes[call].name
        at = value - p.first[call]
        out = []
        for mine in self.values:
            if name not in mine:
                return None
            x = mine[name]
            if isinstance(x, (tuple, list)):
                if at >= len(x):
                    return None
                x = x[at]
            elif at:
                return None
            out.append(x)
        return out

    def _call(self, k: int) -> None:
        p = self.analysis.program
        types = self.types
        instance = p.instances[p.op[k]]
        outs = [types[p.first[k] + j] for j in range(p.outs[k])]
        found = self._compute(k, instance, outs)
        if self.twin.first is not None:
            return
        apiece: list[list[Any]] | None = None
        for j, of in enumerate(outs):
            value = p.first[k] + j
            held = self.on_ranks(value)
            if not isinstance(of, Layout):
                self.twin.wholes[value] = held[0] if held is not None else self._size(of)
                continue
            whole = found[j] if found is not None and j < len(found) else None
            if held is None or not all(isinstance(x, torch.Tensor) for x in held):
                if self.stopped and isinstance(whole, torch.Tensor):
                    self.twin.wholes[value] = whole  # the ranks came to a halt: can one device go on?
                continue
            if isinstance(whole, torch.Tensor) and self._claims(of):
                problem = difference(held, of, whole, self.ranks)
                if problem is None or whole.is_floating_point() or not self._has_own(k):
                    self.twin.compared += 1
                    if problem is not None:
                        self.twin.first = (p.name_of(value), problem)
                        self.twin.place = wrong_rows(held, of, whole, self.ranks)
                        self.twin.value, self.twin.right = value, self._right(whole, of)
                        return
                    self.twin.wholes[value] = self._spoiled(whole, of)
                    continue
            if apiece is None:
                apiece = self._apiece(k) or []
            if self._own_value(value, of, whole, held, apiece[j] if j < len(apiece) else None):
                return

    def _own_value(
        self, value: int, of: Layout, whole: Any, held: list[Any], wanted: list[Any] | None
    ) -> bool:
        """Compare a value that is each rank's own; True where it differs."""
        name = self.analysis.program.name_of(value)
        pieces = held if wanted is None else wanted
        try:
            joined: Tensor | None = join(pieces, of, self.ranks) if self._claims(of) else None
        except Undenoted:
            joined = None
        # what it is on one device is known, even where no claim is made of what the ranks hold: a later value shows
        self.twin.wholes[value] = whole if isinstance(whole, torch.Tensor) else joined
        if wanted is None:
            if self.twin.wholes[value] is None or joined is not None:
                self.twin.taken.append(name)
            return False
        self.own.values[value] = wanted
        self.twin.compared += 1
        found = apart(held, wanted)
        if found is None:
            return False
        self.twin.first, self.twin.place = (name, found[1]), f"rank {found[0]} "
        self.twin.value, self.twin.right = value, wanted
        return True

    def _apiece(self, k: int) -> list[list[Any]] | None:
        """What a call should give on every rank."""
        p = self.analysis.program
        types = self.types
        operands = [(v, types[v], self.twin.wholes.get(v)) for v in p.inputs[k]]
        return self.own.run(p.nodes[k], self.nodes, operands)

    def _has_own(self, k: int) -> bool:
        """Whether ranks do something of their own here, or with what is their own."""
        return self._own_literals(k) or any(v in self.own.values for v in self.analysis.program.inputs[k])

    def _right(self, whole: Tensor, of: Layout) -> list[Any] | None:
        """What each rank should hold."""
        n = 1
        for m in of.partial:
            n *= self.ranks.sizes[m]
        try:
            return share(whole, of, self.ranks, summands(whole, n, self.noise) if of.partial else None)
        except Undenoted:
            return None

    def _size(self, of: Any) -> int | None:
        """A size that no rank came to."""
        try:
            return number(of, self.ranks.symbols) if self.stopped and isinstance(of, (int, Expr)) else None
        except Undenoted:
            return None

    def _spoiled(self, whole: Tensor, of: Layout) -> Tensor:
        """A whole with noise in its rows of padding, which may hold anything: what reads them shows."""
        mask = valid(of, self.ranks) if whole.is_floating_point() else None
        if mask is None:
            return whole
        return torch.where(mask, whole, torch.randn(whole.shape, generator=self.noise, dtype=whole.dtype))

    def _with_padding(self, value: int, of: Any, whole: Any) -> Any:
        """A whole with the ranks' own rows of padding: rows that are sorted by what they hold are at places that depend
        on those of padding, and are no rows of padding any more.
        """
        held = self.on_ranks(value)
        if held is None or not isinstance(of, Layout) or not isinstance(whole, Tensor):
            return whole
        mask = valid(of, self.ranks)
        if mask is None:
            return whole
        try:
            return torch.where(mask, whole, join(held, of, self.ranks, padding=True).to(whole.dtype))
        except Undenoted:
            return whole

    def _claims(self, of: Layout) -> bool:
        try:
            return not placement(of, self.ranks).off
        except Undenoted:
            return False

    def _compute(self, k: int, instance: OpInstance, outs: list[Any]) -> list[Any] | None:
        p = self.analysis.program
        ins = p.inputs[k]
        wholes: list[Any] = [self.twin.wholes.get(v) for v in ins]
        if any(w is None for w in wholes) or not outs:
            return None
        types = self.types
        sources = [types[v] for v in ins]
        if any(isinstance(of, Layout) and _reordered(of) for of in (*outs, *sources)):
            wholes = [self._with_padding(v, types[v], w) for v, w in zip(ins, wholes)]
        code = instance.rule.code if instance.rule is not None else None
        transform = transform_of(instance)
        code = transform.name if transform is not None else code
        of = outs[0]
        try:
            filled = self._written_over(k, instance, sources, of) if code == "create" else None
            if filled is not None:
                return [filled]
            resized = code in CONVERSIONS or code in SIZED or code in ("expand", "slice", "narrow")
            shape = extents(of, self.ranks) if resized and isinstance(of, Layout) else ()
            if code in CONVERSIONS:
                at = _data_slot(instance)
                made = self._converted(wholes[at], sources[at], of, shape)
                if made is not None and instance.rule is not None and instance.rule.mutates:
                    into = wholes[_written_slot(instance)]
                    if isinstance(into, Tensor) and into.shape == made[0].shape:
                        return [into.copy_(made[0])]
                return made
            source = sources[0] if sources else None
            cut = (
                isinstance(of, Layout)
                and isinstance(source, Layout)
                and set(of.bound_map) - set(source.bound_map)
            )
            if code in ("slice", "narrow") and cut:
                return [_fitted(wholes[0], shape)]
            if code in PIECES and any(isinstance(s, Layout) and _features_bound(s) for s in sources):
                return None
            if code in SIZED:
                return [wholes[0].reshape(shape)]
            if code == "expand":
                return [wholes[0].expand(shape)]
            if code == "create" and isinstance(of, Layout) and "size" in instance.params and of.bound:
                return None
            if p.nodes[k].name not in self.calls and self._own_literals(k):
                return None
            try:
                return self._run(k, wholes)
            except RankError as error:
                if instance.rule is not None and instance.rule.kind != "code":
                    self.twin.first = (p.name_of(p.first[k]), f"on one device: {error.args[0]}")
                raise
        except (Undenoted, RankError, RuntimeError) as problem:
            if not isinstance(problem, Undenoted):
                self.twin.failed.add(p.nodes[k].name)
            return None

    def _written_over(self, k: int, instance: OpInstance, sources: list[Any], of: Any) -> Tensor | None:
        """A constant fill that has another shape on one device than it was made with, since other tokens are put there."""
        made = apply(self.analysis.solver.ctx, instance, tuple(sources)).outs[0]
        if not isinstance(of, Layout) or not isinstance(made, Layout) or made.value is None:
            return None
        if extents(made, self.ranks) == extents(of, self.ranks):
            return None
        dtype = next((x.dtype for x in self.on_ranks(self.analysis.program.first[k]) or []), torch.float64)
        return torch.full(extents(of, self.ranks), made.value[1] or 0, dtype=dtype)

    def _converted(self, whole: Tensor, source: Any, of: Any, shape: tuple[int, ...]) -> list[Any] | None:
        """The same value in another layout; where axes were taken apart for a collective, elements are matched
        by their indices.
        """
        if len(shape) == whole.dim() and sum(n != m for n, m in zip(shape, whole.shape)) <= 1:
            return [_fitted(whole, shape)]
        moved = relaid(whole, source, of, self.ranks)
        return None if moved is None else [moved]

    def _own_literals(self, k: int) -> bool:
        """Whether the ranks' graphs have different literals here."""
        name = self.analysis.program.nodes[k].name
        first, *others = [nodes.get(name) for nodes in self.nodes]
        if first is None:
            return True
        return any(n is None or (n.args, n.kwargs) != (first.args, first.kwargs) for n in others)

    def _run(self, k: int, wholes: list[Any]) -> list[Any] | None:
        p = self.analysis.program
        node = self.calls.get(p.nodes[k].name, p.nodes[k])
        names = [r for r in node.refs()]
        holes = dict(zip(names, wholes))
        # Not copies: what an op writes into its operand must be seen by later readers of it and of its views.
        result = run_node(node, holes, self.ranks.symbols)
        return list(result) if isinstance(result, (tuple, list)) else [result]


def _data_slot(instance: OpInstance) -> int:
    """The slot of what a conversion converts: its result may be written into another operand, given before it."""
    rule = instance.rule
    named = instance.params.get(rule.options.get("x", "x")) if rule is not None else None
    return next(iter(slots_in(named)), 0)


def _written_slot(instance: OpInstance) -> int:
    """The first slot that a call writes into."""
    assert instance.rule is not None
    return next((s for name in instance.rule.mutates for s in slots_in(instance.params.get(name))), 0)


def _reordered(of: Layout) -> bool:
    """Whether rows stand in an order that depends on what they hold."""
    return any(f.domain.kind in ("routed", "permuted") for axis in of.axes for f in axis)


def _features_bound(of: Layout) -> bool:
    return any(b.domain.is_feature for _, fs in of.bound for b in fs)
