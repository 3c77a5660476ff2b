"""The forward pass: a layout for every value, in dataflow order, each kind of call typed once.

Regions: `begin` and `end` are identities. A copy of a region whose input has the type that the body began with has the type that it
ended with; otherwise the body is typed again for that input, once per distinct type, so the number of repeats does not matter.
"""

from __future__ import annotations

from typing import Any

import attrs

from layoutcheck.infer.calls.call import Context, Issue, Result
from layoutcheck.infer.solver.one_call import apply, transform_of
from layoutcheck.infer.solver.repeats import Repeats, find_repeats, region_id
from layoutcheck.infer.solver.sharing import Sharing
from layoutcheck.infer.solver.written import written_back
from layoutcheck.layouts import Layout, layout, replace, whole
from layoutcheck.program import (
    CALL,
    OUTPUT,
    PLACEHOLDER,
    REGION_BEGIN,
    REGION_COPY,
    REGION_END,
    Program,
)

Key = tuple[Any, ...]
Memo = dict[Key, Result]


@attrs.define
class Typing:
    """What a pass found: a layout (or size) per value, and the calls with something to say.

    `regions` has first begin, last end, and the carried values at both, per region; `given` are values that begins take
    in a repeat.
    """

    types: list[Any]
    hits: list[tuple[int, Key, Result]]
    regions: dict[Any, tuple[int, int, tuple[Any, ...], tuple[Any, ...]]] = attrs.field(factory=dict)
    repeats: list[tuple[int, Key, Result]] = attrs.field(factory=list)
    given: dict[int, Any] = attrs.field(factory=dict)
    written: list[tuple[int, int, Any, Any]] = attrs.field(factory=list)
    """What in-place ops changed, in order: the call, the value, its type before and after."""

    def __repr__(self) -> str:
        return f"<Typing of {len(self.types)} values, {len(self.regions)} regions>"


@attrs.define
class Runner:
    """Runs passes over one program. `patched` holds answers that stand in for a rule's (repairs being tried)."""

    program: Program
    ctx: Context
    inputs: dict[int, Layout]
    memo: Memo
    patched: dict[Key, Result] = attrs.field(factory=dict)
    region_types: dict[Any, tuple[Any, ...]] = attrs.field(factory=dict)
    repeats: dict[Any, Repeats] = attrs.field(init=False)
    sharing: Sharing | None = attrs.field(init=False, default=None)

    def __repr__(self) -> str:
        return f"<Runner of {self.program!r}>"

    def __attrs_post_init__(self) -> None:
        self.repeats = find_repeats(self.program)

    def run(self) -> Typing:
        """Type the whole program."""
        typing = Typing([None] * self.program.n_values, [])
        self.region_types = {}
        self._range(typing, 0, len(self.program.kind), typing.hits)
        return typing

    def _range(self, typing: Typing, low: int, high: int, hits: list[tuple[int, Key, Result]]) -> None:
        p = self.program
        types, memo, patched = typing.types, self.memo, self.patched
        kinds, ops, inputs, first, counts, instances = p.kind, p.op, p.inputs, p.first, p.outs, p.instances
        ctx = self.ctx
        get = types.__getitem__
        for k in range(low, high):
            kind = kinds[k]
            if kind == CALL:
                ins = inputs[k]
                key = (ops[k], *map(get, ins))
                result = memo.get(key)
                if result is None:
                    result = apply(ctx, instances[ops[k]], key[1:])
                    memo[key] = result
                if patched:
                    result = patched.get(key, result)
                at = first[k]
                n = counts[k]
                outs = result.outs
                if n == 1:
                    types[at] = outs[0]
                elif not instances[ops[k]].bases:
                    types[at : at + n] = outs[:n]
                else:
                    self._functionalized(types, k, result)
                if not result.quiet:
                    if result.issues or result.wants:
                        hits.append((k, key, result))
                    if result.mutated and not instances[ops[k]].bases:
                        self._mutate(typing, k, key, result, hits)
            elif kind == PLACEHOLDER:
                types[first[k]] = self.inputs[first[k]]
            elif kind == REGION_BEGIN:
                value = typing.given[k] if k in typing.given else types[inputs[k][0]]
                types[first[k]] = value
                region = region_id(p, k)
                begun = typing.regions.get(region)
                if begun is None:
                    typing.regions[region] = (k, -1, (value,), ())
                elif k not in typing.given:
                    typing.regions[region] = (begun[0], -1, (*begun[2], value), ())
            elif kind == REGION_END:
                value = types[inputs[k][0]]
                types[first[k]] = value
                self._end(typing, k, value)
            elif kind == REGION_COPY:
                types[first[k]] = self._copy(typing, k)
            elif kind == OUTPUT:
                continue
            else:
                self._untyped(typing, k, hits)

    def _end(self, typing: Typing, k: int, value: Any) -> None:
        """One carried value leaves the body; with the last of them the body's answer is known."""
        region = region_id(self.program, k)
        begun = typing.regions.get(region)
        if begun is None:
            return
        outs = (*begun[3], value)
        typing.regions[region] = (begun[0], k, begun[2], outs)
        if len(outs) == self.repeats[region].carried:
            self.region_types[(region, begun[2])] = outs

    def _copy(self, typing: Typing, k: int) -> Any:
        """What a repeat makes of the carried values: the body is typed again for types that it was not typed for yet."""
        p = self.program
        region = region_id(p, k)
        place, group = self.repeats[region].group_of(k)
        values = tuple(typing.types[p.inputs[c][0]] for c in group)
        known = self.region_types.get((region, values))
        if known is None:
            known = self._body(typing, region, values)
        return known[place] if place < len(known) else values[place]

    def _body(self, typing: Typing, region: Any, values: tuple[Any, ...]) -> tuple[Any, ...]:
        p = self.program
        found = typing.regions.get(region)
        if found is None or found[1] < 0:
            return values
        begins, end = self.repeats[region].begins, found[1]
        again = Typing(list(typing.types), [], dict(typing.regions))
        self.region_types[(region, values)] = values
        again.given = dict(zip(begins, values, strict=False))
        again.regions[region] = (found[0], -1, values, ())
        hits: list[tuple[int, Key, Result]] = []
        self._range(again, found[0], end + 1, hits)
        outs = tuple(again.types[p.first[e]] for e in self.repeats[region].ends)
        if any(result.issues for _, _, result in hits):
            # What a body makes of inputs that it was not written for says nothing of what follows it.
            outs = found[3]
        typing.repeats.extend(hits)
        self.region_types[(region, values)] = outs
        return outs

    def front_of(self, k: int, base: int) -> int | None:
        """The axis of which a view call takes the beginning, None where it is no such slice."""
        instance = self.program.instances[self.program.op[k]]
        transform = transform_of(instance)
        of = self.program.inputs[k][0] if self.program.inputs[k] else None
        if (
            instance.rule is None
            or transform is None
            or transform.name not in ("slice", "narrow")
            or of != base
        ):
            return None
        params = {
            name: instance.params.get(instance.rule.options.get(name, name))
            for name in ("dim", "start", "step")
        }
        dim = params["dim"] if isinstance(params["dim"], int) else 0
        return dim if params["start"] in (0, None) and params["step"] in (1, None) and dim >= 0 else None

    def _functionalized(self, types: list[Any], k: int, result: Result) -> None:
        """Outputs of a functionalised wrapper: the op's own, then the mutated bases."""
        p = self.program
        instance = p.instances[p.op[k]]
        at, n = p.first[k], p.outs[k]
        own = n - len(instance.bases)
        for j in range(own):
            types[at + j] = result.outs[j] if j < len(result.outs) else None
        changed = {p.inputs[k][slot]: new for slot, new in result.mutated.items() if slot >= 0}
        for j, base in enumerate(instance.bases):
            value = p.inputs[k][base] if base >= 0 else -1
            types[at + own + j] = changed.get(value, types[value] if value >= 0 else None)

    def _mutate(
        self, typing: Typing, k: int, key: Key, result: Result, hits: list[tuple[int, Key, Result]]
    ) -> None:
        """An in-place op changes its operand for all later readers, what the operand is a view of, and all other views of that."""
        p, types = self.program, typing.types
        if self.sharing is None:
            self.sharing = Sharing(p)
        sharing = self.sharing
        for slot, new in result.mutated.items():
            if slot < 0 or slot >= len(p.inputs[k]):
                continue
            value = p.inputs[k][slot]
            for out, of in zip(range(p.first[k], p.first[k] + p.outs[k]), result.outs):
                if of is new and types[value] is not None and len(result.mutated) == 1:
                    sharing.gives_back(out, value)
            before = {value: types[value]}
            types[value] = new
            path = [value]
            for _ in range(16):
                base = sharing.base.get(value)
                if base is None:
                    break
                old = before[base] = types[base]
                if not isinstance(old, Layout) or not isinstance(types[value], Layout):
                    break
                if value in sharing.given_back:
                    types[base] = types[value]
                else:
                    types[base] = written_back(old, types[value], self.front_of(p.value_call[value], base))
                value = base
                path.append(value)
            self._check_buffer(types, k, key, slot, value, hits)
            typing.written.extend((k, v, old, types[v]) for v, old in before.items() if types[v] is not old)
            for of, come_from in zip(path, (-1, *path)):
                self._see(typing, of, k, come_from, hits)

    def _see(self, typing: Typing, of: int, k: int, but: int, hits: list[tuple[int, Key, Result]]) -> None:
        """Views that were taken before call k wrote into what they are views of, and are read after it, hold what was
        written: they are typed again.
        """
        p, types, sharing = self.program, typing.types, self.sharing
        assert sharing is not None
        for view in sharing.stale(of, k, but):
            call = p.value_call[view]
            if view in sharing.given_back:
                now = types[of]
            else:
                key: Key = (p.op[call], *[types[v] for v in p.inputs[call]])
                result = self.memo.get(key)
                if result is None:
                    result = self.memo[key] = apply(self.ctx, p.instances[p.op[call]], key[1:])
                result = self.patched.get(key, result)
                at = view - p.first[call]
                now = result.outs[at] if at < len(result.outs) else None
                if not result.quiet and now is not types[view] and (result.issues or result.wants):
                    hits.append((call, key, result))
            if now is not types[view]:
                typing.written.append((k, view, types[view], now))
                types[view] = now
                self._see(typing, view, k, -1, hits)

    def _check_buffer(
        self, types: list[Any], k: int, key: Key, slot: int, value: int, hits: list[tuple[int, Key, Result]]
    ) -> None:
        """An input buffer that holds all tokens, written by each rank with its own share, is filled in part."""
        p = self.program
        given = self.inputs.get(value)
        now = types[value]
        if (
            p.kind[p.value_call[value]] != PLACEHOLDER
            or not isinstance(given, Layout)
            or not isinstance(now, Layout)
        ):
            return
        whole_tokens = {
            f.domain for axis in given.axes for f in axis if f.is_whole and not f.domain.is_feature
        }
        for m, fs in now.bound:
            stored = {b.domain.args[0] if b.domain.kind == "pad" else b.domain for b in fs}
            if m in given.bound_map or not stored & whole_tokens:
                continue
            group = self.ctx.group((m,))
            issue = Issue(
                "LC107",
                f"each rank of {group} stores its share of the tokens to a buffer that holds all of them: {{0}}",
                (slot,),
            )
            patched = self.patched.get((*key, "buffer"))
            if patched is None:
                hits.append((k, (*key, "buffer"), Result(result_outs(types, p, k), (issue,))))
            types[value] = given
            return

    def _untyped(self, typing: Typing, k: int, hits: list[tuple[int, Key, Result]]) -> None:
        """An op without a rule: reported, and typing goes on around it with recorded shapes, or the first input's layout."""
        p = self.program
        instance = p.instances[p.op[k]]
        recorded = _recorded(p, k)
        ins = [typing.types[v] for v in p.inputs[k]]
        outs: list[Any] = []
        for j in range(p.outs[k]):
            shape = recorded[j] if j < len(recorded) else None
            outs.append(_guess(ins, shape))
        if instance.rule is None:
            issue = Issue("LC901", f"no rule for {instance.target}", (), ("rule",))
        else:
            issue = Issue("LC903", f"the arguments do not fit {instance.target}: {instance.error}", ())
        result = Result(tuple(outs), (issue,))
        key: Key = (p.op[k], *ins)
        result = self.patched.get(key, result)
        at = p.first[k]
        typing.types[at : at + p.outs[k]] = outs
        if not result.quiet:
            hits.append((k, key, result))


def result_outs(types: list[Any], p: Program, k: int) -> tuple[Any, ...]:
    """The layouts of a call's outputs as they stand."""
    return tuple(types[p.first[k] : p.first[k] + p.outs[k]])


def _recorded(p: Program, k: int) -> list[Any]:
    meta = p.nodes[k].meta
    metas = meta if isinstance(meta, tuple) else (meta,)
    return list(metas)


def _guess(ins: list[Any], meta: Any) -> Any:
    """A layout for the output of an unknown op: that of an input with the same shape, else features of the recorded shape."""
    tensors = [x for x in ins if isinstance(x, Layout)]
    shape = getattr(meta, "shape", None)
    if shape is not None:
        for of in tensors:
            if tuple(of.shape) == tuple(shape):
                return replace(of, dtype=meta.dtype, partial=(), value=None)
        return whole(meta.dtype, tuple(shape))
    if tensors:
        return replace(tensors[0], partial=(), value=None)
    return layout("float32", ())
