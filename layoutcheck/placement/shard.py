"""Cutting weights that are whole: column-parallel products, what follows from them, and sizes that count features.

A cut begins at weights of products; each op behind them is tried with another of its operands cut (a bias, the weight of the
row-parallel product that sums over the cut features). Sizes in views are divided where that makes them fit. What is broadcast
beside the cut features (a rotary part for all heads, a buffer that takes both) is made for fewer of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import gcd
from typing import Any

import attrs

from layoutcheck.domains import is_token_like
from layoutcheck.infer.calls.call import Result
from layoutcheck.infer.solver.one_call import apply, transform_of
from layoutcheck.layouts import Layout, replace, whole_extent
from layoutcheck.mesh import Group
from layoutcheck.placement.base import Base, agrees
from layoutcheck.placement.packed import Packing, Pieces, joins, pieces_of
from layoutcheck.placement.resize import size_param
from layoutcheck.program import CALL, PLACEHOLDER, OpInstance
from layoutcheck.symbols import Size, divide_exact
from layoutcheck.transforms.rank_shares import take_share

MAX_REPAIRS = 24
MAX_BACK = 12


@attrs.frozen
class Cut:
    """An input that is cut along an axis over the group, in each of its packed pieces (gate and up in one weight are two).

    `pieces` are their extents; none where the axis is one. `over`: the group's mesh axes, of which those that are not named hold the
    same (a key head that several ranks' query heads read); None: all. `padding`: rows that were added so that it divides.
    """

    value: int
    axis: int
    pieces: tuple[int, ...] = ()
    over: tuple[int, ...] | None = None
    padding: int = 0


@attrs.frozen
class Failure:
    """The call at which a cut does not go on, and what its rule said."""

    call: int
    result: Result | None
    ins: tuple[Any, ...] = ()


@attrs.define
class Sharder:
    """Tries cuts over a range of calls.

    requests: per call that spreads or fills the axis that it makes shorter, and the mesh axes over which.
    whole: inputs that stay whole, since nothing of them divides.
    stopped: the first call at which cuts over all of the group do not go on.
    finer: numbers of ways in which the group would have to be divisible for something that does not divide among all of it.
    """

    base: Base
    low: int
    high: int
    cuts: dict[int, Cut] = attrs.field(factory=dict)
    requests: dict[int, tuple[int, tuple[int, ...]]] = attrs.field(factory=dict)
    whole: set[int] = attrs.field(factory=set)
    finer: set[int] = attrs.field(factory=set)
    broad: set[int] = attrs.field(factory=set)
    params: dict[int, dict[str, Any]] = attrs.field(factory=dict)
    packing: Packing = attrs.field(factory=Packing)
    strict: bool = True
    stopped: int = -1

    @property
    def _ways(self) -> Size:
        return self.base.tokens.group.size

    def _counts(self) -> list[tuple[tuple[int, ...], Size]]:
        """Mesh axes over which something may be cut, with the number of their ranks: all, then the first ones, then the last."""
        axes, mesh = self.base.tokens.group.axes, self.base.tokens.mesh
        found = [
            axes,
            *(axes[:i] for i in range(len(axes) - 1, 0, -1)),
            *(axes[i:] for i in range(1, len(axes))),
        ]
        out: list[tuple[tuple[int, ...], Size]] = []
        for some in found:
            size: Size = 1
            for m in some:
                size = size * mesh.size(m)
            out.append((some, size))
        return out

    def settle(self, good: Callable[[dict[int, Layout]], bool] = bool) -> dict[int, Layout] | None:
        """The layouts that change with the cuts; None where they can't be had, or are not `good`. Adds what else has to be cut."""
        cuts = dict(self.cuts)
        found = self._settled()
        if found is None or not good(found):
            # A size may have to be divided in a way that leaves no axis as it was.
            self.cuts, self.strict = cuts, False
            self.requests, self.whole, self.broad = {}, set(), set()
            found = self._settled()
        return found if found is not None and good(found) else None

    def _settled(self) -> dict[int, Layout] | None:
        for _ in range(MAX_REPAIRS):
            found = self._run()
            if not isinstance(found, Failure):
                if not self.packing.agrees() or not self._are_views_whole(found):
                    return None
                for value, pieces in self.packing.pieces.items():
                    self.cuts[value] = attrs.evolve(self.cuts[value], pieces=pieces)
                return found
            if found.ins and (self._granted(found) or self._repaired(found)):
                continue
            if self.stopped < 0:
                self.stopped = found.call
            if not self._coarser(found):
                return None
        return None

    def _are_views_whole(self, found: Mapping[int, Layout]) -> bool:
        """Whether no view has an axis that is longer over all ranks than it is: features of another axis went into it then.

        It may be shorter: ranks that share a key head hold it more than once.
        """
        p = self.base.analysis.program
        for value, of in found.items():
            k, was = p.value_call[value], self.base.full[value]
            if p.kind[k] != CALL or not isinstance(was, Layout) or of.rank != was.rank:
                continue
            transform = transform_of(self.base.instance(k))
            if transform is None or not transform.is_view or size_param(self.base.instance(k)) is None:
                continue
            if self._spreads(k) or k in self.requests:
                continue
            if any(_is_more(whole_extent(of, i), was.shape[i]) for i in range(of.rank)):
                return False
        return True

    # ---- one pass

    def _run(self) -> dict[int, Layout] | Failure:
        p = self.base.analysis.program
        overlay: dict[int, Layout] = {}
        self.params = {}
        self.packing = Packing()
        for cut in self.cuts.values():
            of = self.base.full[cut.value]
            shard = self.cut(of, cut.axis, cut.over) if isinstance(of, Layout) else None
            if shard is None:
                return Failure(p.value_call[cut.value], None)
            overlay[cut.value] = shard
            self.packing.origins[cut.value] = frozenset((cut.value,))
        for k in self.base.kept:
            if p.kind[k] != CALL or k > self.high:
                continue
            reads = [self.base.root(v) for v in p.inputs[k]]
            if k not in self.requests and not any(v in overlay for v in reads):
                continue
            ins = tuple(overlay.get(v, self.base.full[v]) for v in reads)
            taken = pieces_of(self.base, k, self.base.full[reads[0]], ins[0], self._ways) if reads else True
            if taken is False or (isinstance(taken, Pieces) and not self._take_apart(k, reads[0], taken)):
                return Failure(k, None)
            found = self._call(k, ins)
            if isinstance(found, Failure):
                return found
            self.packing.join([v for v in reads if v in overlay], range(p.first[k], p.first[k] + p.outs[k]))
            if isinstance(taken, Pieces):
                self.packing.plain(range(p.first[k], p.first[k] + p.outs[k]))
            self._note_broad(k, reads)
            for j, of in enumerate(found):
                value = p.first[k] + j
                if isinstance(of, Layout):
                    of = self.base.tokens.full(of)
                    form = self.base.full[value]
                    if of is not form and (
                        not isinstance(form, Layout) or replace(of, value=form.value) is not form
                    ):
                        overlay[value] = of
        return overlay

    def _take_apart(self, k: int, value: int, taken: Pieces) -> bool:
        """Remember that the weights behind a value are packed so."""
        self.params[k] = taken.params
        total = sum(taken.sizes)
        sources = self.packing.origins.get(value, frozenset())
        for source in sources:
            extent = self.base.full[source].shape[self.cuts[source].axis]
            times = divide_exact(extent, total)
            if not isinstance(times, int) or not self.packing.pack(
                source, tuple(n * times for n in taken.sizes)
            ):
                return False
        return bool(sources)

    def _call(self, k: int, ins: tuple[Any, ...]) -> Failure | list[Any]:
        p = self.base.analysis.program
        outs = [self.base.full[p.first[k] + j] for j in range(p.outs[k])]
        if k in self.requests and isinstance(outs[0], Layout) and not self._spreads(k):
            made = self.cut(outs[0], *self.requests[k])
            return [made] if made is not None else Failure(k, None, ins)
        if joins(self.base, k, ins):
            return Failure(k, None)
        ctx = self.base.analysis.solver.ctx
        reads = {self.base.root(v) for v in p.inputs[k]}
        transform = transform_of(self.base.instance(k))
        # A view has its axes as they were, but for the one that is cut; and what is spread over fewer.
        free = not self.strict or transform is None or not transform.is_view
        free = free or k in self.requests or bool(reads & self.broad)
        first: Result | None = None
        found: Result | None = None
        for instance in self._candidates(k, ins):
            result = apply(ctx, instance, ins)
            if not agrees(self.base, k, ins, result, self.broad):
                first = first or result
                continue
            if _in_place(result.outs, outs):
                found = result
                break
            if free:
                found = found or result
            first = first or result
        if found is None:
            return Failure(k, first, ins)
        return list(found.outs[: len(outs)]) + [None] * (len(outs) - len(found.outs))

    def _candidates(self, k: int, ins: tuple[Any, ...]) -> Iterator[OpInstance]:
        """The op as it is (its token sizes written for all tokens), then with one of its sizes divided."""
        p = self.base.analysis.program
        instance = self.base.instance(k)
        if k in self.params:
            instance = attrs.evolve(instance, params={**instance.params, **self.params[k]})
        name = size_param(instance)
        form = self.base.full[p.first[k]] if p.outs[k] else None
        if name is None or not isinstance(form, Layout):
            yield instance
            return
        given = instance.params[name]
        sizes = list(given) if isinstance(given, (list, tuple)) else [given]
        if len(sizes) == form.rank:
            sizes = [s if s == -1 else n for s, n in zip(sizes, form.shape)]
        kept = self._not_spread(k, ins, sizes)
        asked = self.requests.get(k)
        if kept is not None and asked is None:
            yield attrs.evolve(instance, params={**instance.params, name: tuple(kept)})
            return
        sizes = sizes if kept is None else kept
        options = [sizes] if asked is None else []
        for over, ways in self._counts():
            for i, n in enumerate(sizes):
                less = divide_exact(n, ways) if n != -1 and isinstance(n, int) else None
                if less is not None and (asked is None or asked == (i, over)):
                    options.append([*sizes[:i], less, *sizes[i + 1 :]])
        for option in options:
            value: Any = tuple(option) if isinstance(given, (list, tuple)) else option[0]
            yield attrs.evolve(instance, params={**instance.params, name: value})

    def _not_spread(self, k: int, ins: tuple[Any, ...], sizes: list[Any]) -> list[Any] | None:
        """The sizes of an expand of something cut: an axis that it does not broadcast on the whole is as long as the share, though
        a share of one element could be broadcast. None where there is no such axis.
        """
        if not self._spreads(k) or not isinstance(ins[0], Layout):
            return None
        of = self.base.full[self.base.root(self.base.analysis.program.inputs[k][0])]
        if not isinstance(of, Layout) or of is ins[0]:
            return None
        out = list(sizes)
        for i in range(1, of.rank + 1):
            if of.shape[-i] == sizes[-i] and ins[0].shape[-i] != of.shape[-i]:
                out[-i] = ins[0].shape[-i]
        return out if out != sizes else None

    def _spreads(self, k: int) -> bool:
        """Whether a call broadcasts."""
        rule = self.base.instance(k).rule
        return rule is not None and rule.code == "expand"

    def _note_broad(self, k: int, reads: list[int]) -> None:
        """Remember what is broadcast beside cut features, and views of it."""
        p = self.base.analysis.program
        transform = transform_of(self.base.instance(k))
        seen = transform is not None and transform.is_view and bool(reads) and reads[0] in self.broad
        if seen or (k in self.requests and self._spreads(k)):
            self.broad.update(range(p.first[k], p.first[k] + p.outs[k]))

    def cut(self, of: Layout, axis: int, over: tuple[int, ...] | None = None) -> Layout | None:
        """A layout with a feature axis cut over the group, or over some of its mesh axes; None where it does not divide or is cut
        already.
        """
        group, mesh = self.base.tokens.group, self.base.tokens.mesh
        if over is not None and over != group.axes:
            size: Size = 1
            for m in over:
                size = size * mesh.size(m)
            group = Group(mesh.group_name(over), over, size)
        if axis >= of.rank or any(m in of.bound_map for m in group.axes) or len(of.axes[axis]) != 1:
            return None
        f = of.axes[axis][0]
        each = divide_exact(f.extent, group.size)
        if each is None or not f.is_whole or is_token_like(f.domain):
            return None
        taken = take_share(f, group, each, [mesh.size(m) for m in group.axes])
        if taken is None:
            return None
        bound = dict(of.bound_map)
        for m, b in taken[1].items():
            bound[m] = (*bound.get(m, ()), b)
        return replace(of, axes=(*of.axes[:axis], (taken[0],), *of.axes[axis + 1 :]), bound=bound)

    # ---- what else has to be cut

    def _granted(self, failure: Failure) -> bool:
        """Cut a weight (a bias, the weight of a product over the cut features) with which the call goes on."""
        p = self.base.analysis.program
        k, ins = failure.call, failure.ins
        reads = [self.base.root(v) for v in p.inputs[k]]
        for slot, value in enumerate(reads):
            of = self.base.full[value]
            if ins[slot] is not of or not isinstance(of, Layout):
                continue
            for axis in range(of.rank):
                shard = self.cut(of, axis)
                source = self.source(value, axis) if shard is not None else None
                if source is None or source[0] in self.cuts or not self._is_weight(source[0]):
                    continue
                if source[0] in self.whole:
                    continue
                result = apply(
                    self.base.analysis.solver.ctx,
                    self.base.instance(k),
                    (*ins[:slot], shard, *ins[slot + 1 :]),
                )
                if not result.issues and not result.wants:
                    self.cuts[source[0]] = Cut(*source)
                    return True
        return False

    def _is_weight(self, value: int) -> bool:
        return self.base.analysis.plan.roles.get(value) == "weight"

    def source(self, value: int, axis: int) -> tuple[int, int] | None:
        """The input that a value is a view of, and which of its axes this one is."""
        p = self.base.analysis.program
        for _ in range(MAX_BACK):
            call = p.value_call[value]
            if p.kind[call] == PLACEHOLDER:
                return value, axis
            if p.kind[call] != CALL or not p.inputs[call]:
                return None
            transform = transform_of(p.instances[p.op[call]])
            back = getattr(transform, "back", None)
            if back is None:
                return None
            before = self.base.root(p.inputs[call][0])
            own, old = self.base.full[value], self.base.full[before]
            if not isinstance(own, Layout) or not isinstance(old, Layout):
                return None
            moved = self._axis_before(call, own, old, axis)
            if moved is None:
                return None
            value, axis = before, moved
        return None

    def _axis_before(self, call: int, own: Layout, old: Layout, axis: int) -> int | None:
        """Which axis of a call's operand an axis of its result is: the one that, cut, gives it cut."""
        wanted = self.cut(own, axis)
        if wanted is None:
            return None
        for i in range(old.rank):
            tried = self.cut(old, i)
            if tried is None:
                continue
            ins = (
                tried,
                *(self.base.full[self.base.root(v)] for v in self.base.analysis.program.inputs[call][1:]),
            )
            result = apply(self.base.analysis.solver.ctx, self.base.instance(call), ins)
            if not result.issues and result.outs and result.outs[0] is wanted:
                return i
        return None

    def _repaired(self, failure: Failure) -> bool:
        """Make what is broadcast or filled beside the cut features for fewer of them."""
        p = self.base.analysis.program
        alike: dict[Any, list[int]] = {}
        for k in self._makers([self.base.root(v) for v in p.inputs[failure.call]]):
            form = self.base.full[p.first[k]]
            if k in self.requests or not isinstance(form, Layout):
                continue
            if self._requested([k], form, failure):
                return True
            alike.setdefault(form.shape, []).append(k)
        # Keys and values are spread alike, and one alone does not help.
        return any(
            len(calls) > 1 and self._requested(calls, self.base.full[p.first[calls[0]]], failure)
            for calls in alike.values()
        )

    def _requested(self, calls: Sequence[int], form: Layout, failure: Failure) -> bool:
        """Ask calls to make less of some axis; False, and nothing asked, where it does not get further than before."""
        for over, _ in self._counts():
            for dim, n in enumerate(form.shape):
                if not isinstance(n, int) or self.cut(form, dim, over) is None:
                    continue
                self.requests.update((k, (dim, over)) for k in calls)
                again = self._run()
                if not isinstance(again, Failure) or again.call > failure.call:
                    return True
                for k in calls:
                    del self.requests[k]
        return False

    def _coarser(self, failure: Failure) -> bool:
        """Cut what the failing call reads over fewer mesh axes: fewer key heads than ranks are shared by ranks that lie together."""
        p = self.base.analysis.program
        form = self.base.full[p.first[failure.call]] if p.outs[failure.call] else None
        reads = {self.base.root(v) for v in p.inputs[failure.call]}
        sources = {s for v in reads for s in self.packing.origins.get(v, ())}
        if not sources or not isinstance(form, Layout):
            return False
        ways = self._ways
        if isinstance(ways, int):
            shared = {gcd(n, ways) for n in form.shape if isinstance(n, int)}
            self.finer.update(n for n in shared if 1 < n < ways)
        mine = (frozenset(self.packing.origins.get(v, ())) for v in sorted(reads))
        return any(self._fewer(of, failure) for of in dict.fromkeys((*mine, frozenset(sources))) if of)

    def _fewer(self, sources: frozenset[int], failure: Failure) -> bool:
        """Cut these inputs over fewer mesh axes, or not at all; False, and as it was, where it does not get further than before."""
        axes = self.base.tokens.group.axes
        kept = {s: self.cuts[s] for s in sources}
        whole = set(self.whole)
        for i in range(len(axes) - 1, -1, -1):
            for s, cut in kept.items():
                if i >= len(axes if cut.over is None else cut.over):
                    continue
                if i:
                    self.cuts[s] = attrs.evolve(cut, over=axes[:i])
                else:
                    self.cuts.pop(s, None)
                    self.whole.add(s)
            again = self._run()
            if not isinstance(again, Failure) or again.call > failure.call:
                return True
            if again.call == failure.call and again.ins and self._repaired(again):
                return True
        self.cuts.update(kept)
        self.whole = whole
        return False

    def _makers(self, values: Sequence[int]) -> Iterator[int]:
        """Ops that name sizes and make their result of less (a fill, an expand), behind values through views."""
        p = self.base.analysis.program
        todo = list(values)
        seen: set[int] = set()
        while todo and len(seen) < 4 * MAX_BACK:
            value = todo.pop(0)
            call = p.value_call[value]
            if call in seen or p.kind[call] != CALL or call < self.low:
                continue
            seen.add(call)
            rule = self.base.instance(call).rule
            if rule is None or rule.kind != "code":
                continue
            if rule.code in ("expand", "create") and size_param(self.base.instance(call)) is not None:
                yield call
            transform = transform_of(self.base.instance(call))
            if transform is not None and (transform.is_view or rule.code in ("copy", "cat")):
                todo.extend(self.base.root(v) for v in p.inputs[call])


def _in_place(outs: Sequence[Any], forms: Sequence[Any]) -> bool:
    """Whether a result has the axes of the whole, all but one: sizes may divide in several ways, and only one keeps the others."""
    if not outs or not isinstance(outs[0], Layout) or not isinstance(forms[0], Layout):
        return True
    return sum(a != b for a, b in zip(outs[0].axes, forms[0].axes)) <= 1


def _is_more(total: Size, extent: Size) -> bool:
    return isinstance(total, int) and isinstance(extent, int) and total > extent
