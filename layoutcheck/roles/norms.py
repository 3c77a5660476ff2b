"""Norms: ops that are one by their rule, and the spelled-out form.

Spelled out, a norm is a statistic over the last axis of a value (a mean of squares, a variance), which comes back to the
same value through pointwise ops, and a product with a weight along that axis. A softmax or the scaling of router weights
is the same without the weight, and no norm.
"""

from __future__ import annotations

from layoutcheck.roles.flow import Flow
from layoutcheck.roles.model import Norm

_STEPS = 40


def find_norms(flow: Flow) -> list[Norm]:
    """All norms, in order of their calls."""
    found: list[Norm] = []
    taken: set[int] = set()
    p = flow.program
    for k in range(len(p.kind)):
        fact = flow.fact(k)
        if fact is None or k in taken:
            continue
        if fact.norm and p.outs[k]:
            norm = _fused(flow, k)
        elif fact.reduces and p.outs[k]:
            norm = _spelled_out(flow, k)
        else:
            continue
        if norm is not None:
            taken.update(norm.calls)
            found.append(norm)
    found.sort(key=lambda norm: norm.calls)
    return found


def _fused(flow: Flow, k: int) -> Norm | None:
    p = flow.program
    fact = flow.fact(k)
    assert fact is not None
    first, outs = p.first[k], p.outs[k]
    addends = tuple(v for name in fact.adds for v in flow.operands(k, name))
    if len(addends) > 1:
        total = next(
            (u for v in range(first, first + outs) for u in flow.parents[v] if flow.maker[u] == k), -1
        )
        if total < 0:
            return None
        outputs = tuple(v for v in range(first, first + outs) if v != total)
        return Norm((k,), total, total, outputs, addends)
    source = flow.operands(k, fact.normed or "")
    if not source:
        return None
    return Norm((k,), source[0], source[0], tuple(range(first, first + outs)))


def _spelled_out(flow: Flow, k: int) -> Norm | None:
    """A norm whose first statistic is the reduction `k`."""
    p = flow.program
    data = flow.data_inputs(k)
    out = flow.layout(p.first[k])
    if len(data) != 1 or out is None or flow.kinds[data[0]] != "A":
        return None
    before = flow.layout(data[0])
    if before is None or not before.rank or before.shape[-1] == 1:
        return None
    kept = out.rank == before.rank and out.shape[-1] == 1 and out.shape[:-1] == before.shape[:-1]
    if not kept and out.shape != before.shape[:-1]:
        return None
    sources = _pointwise_sources(flow, data[0])
    width = before.shape[-1]
    outs = range(p.first[k], p.first[k] + p.outs[k])
    inside = set(outs)
    full: set[int] = set()
    calls = [k]
    source = sources[0]
    todo = [c for v in outs for c in flow.readers.get(v, ())]
    for _ in range(_STEPS):
        if not todo:
            return None
        call = min(todo)
        todo = [c for c in todo if c != call]
        fact = flow.fact(call)
        if fact is None or not p.outs[call] or not (fact.pointwise or fact.carries or fact.reduces):
            continue
        others = [v for v in flow.data_inputs(call) if v not in inside]
        met = {flow.root(v) for v in others if flow.kinds[v] == "A"}
        if len(met) > 1 or not met <= set(sources):
            continue
        value = p.first[call]
        of = flow.layout(value)
        if of is None or not of.rank:
            continue
        calls.append(call)
        if not fact.carries and any(_along(flow, v, width) for v in others) and of.shape[-1] == width:
            if any(v in full for v in p.inputs[call]):
                before_k = [flow.maker[s] for s in sources[: sources.index(source)]]
                own = tuple(sorted({*before_k, *calls}))
                read = next(v for c in own for v in flow.data_inputs(c) if flow.root(v) == source)
                return _with_bias(flow, Norm(own, source, read, (value,)), width)
            calls.pop()
            continue
        if met:
            source = met.pop()
        inside.add(value)
        if of.shape[-1] == width and width != 1:
            full.add(value)
        todo.extend(c for c in flow.readers.get(value, ()) if c not in todo)
    return None


def _with_bias(flow: Flow, norm: Norm, width: object) -> Norm:
    """The norm with the bias that is added to it, where one is."""
    p = flow.program
    readers = flow.readers.get(norm.output, ())
    if len(readers) != 1 or not p.outs[readers[0]]:
        return norm
    call = readers[0]
    fact = flow.fact(call)
    others = [v for v in flow.data_inputs(call) if v != norm.output]
    rule = p.instances[p.op[call]].rule if p.op[call] >= 0 else None
    if fact is None or rule is None or not (fact.pointwise and rule.additive) or len(others) != 1:
        return norm
    if not _along(flow, others[0], width):
        return norm
    return Norm((*norm.calls, call), norm.source, norm.read, (p.first[call],))


def _along(flow: Flow, value: int, width: object) -> bool:
    """Whether a value is a weight along an axis of this width, and along no other."""
    of = flow.layout(value)
    if of is None or flow.kinds[value] != "W" or not of.rank or of.shape[-1] != width:
        return False
    return all(n == 1 for n in of.shape[:-1])


def _pointwise_sources(flow: Flow, value: int) -> list[int]:
    """The values that `value` is computed from, an element at a time, nearest first.

    A residual sum, a gated product or a mask has two roots and ends the walk; a square has one.
    """
    found: list[int] = []
    for _ in range(_STEPS):
        root = flow.root(value)
        found.append(root)
        if root >= flow.program.n_values:
            break
        call = flow.maker[root]
        fact = flow.fact(call)
        if fact is None or not fact.pointwise or fact.code is not None:
            break
        roots = {flow.root(v) for v in flow.data_inputs(call)}
        if len(roots) != 1:
            break
        value = roots.pop()
    return found
