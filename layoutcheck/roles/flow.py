"""Dataflow by values: what depends on what, through data or through indices, with in-place writes made visible.

Classes of values: `W` weights and constants, `A` activations, `I` indices and masks that come with the inputs, `C` those that
were chosen by a computation on activations (top-k) or by a table of the input's ids, and `-` for what is no tensor. A weight
looked up by chosen indices is still a weight; one looked up by indices of the inputs is an activation (an embedding).
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.layouts import Layout
from layoutcheck.program import OUTPUT, PLACEHOLDER, REGION_BEGIN, REGION_COPY, REGION_END, Program
from layoutcheck.roles.facts import Facts, additive_pair, facts_of

_INDEX_TYPES = frozenset(("int64", "int32", "int16", "uint8", "bool", "uint16", "uint32", "uint64"))
_MARKERS = (REGION_BEGIN, REGION_END, REGION_COPY)


@attrs.define
class Flow:
    """Values with numbers from the program's `n_values` on are sums that a fused norm forms and no output shows."""

    program: Program
    types: list[object]
    facts: list[Facts]
    parents: list[tuple[int, ...]]
    maker: list[int]
    kinds: list[str]
    readers: dict[int, list[int]]
    _roots: dict[int, int]

    def fact(self, call: int) -> Facts | None:
        """The facts of a call's op; None for inputs, outputs and unknown ops."""
        op = self.program.op[call]
        return self.facts[op] if op >= 0 else None

    def layout(self, value: int) -> Layout | None:
        """The layout of a value, None where it is no tensor (or a sum that no output shows)."""
        found = self.types[value] if value < len(self.types) else None
        return found if isinstance(found, Layout) else None

    def is_index(self, value: int) -> bool:
        """Whether a value is integers or a mask rather than data."""
        of = self.layout(value)
        return of is not None and of.dtype in _INDEX_TYPES

    def data_inputs(self, call: int) -> list[int]:
        """A call's inputs that are tensors of data."""
        return [v for v in self.program.inputs[call] if self.layout(v) is not None and not self.is_index(v)]

    def operands(self, call: int, param: str) -> list[int]:
        """The inputs of a call that are part of one of its op's parameters."""
        fact = self.fact(call)
        if fact is None:
            return []
        return [v for v, name in zip(self.program.inputs[call], fact.params) if name == param]

    def is_weight_product(self, call: int) -> bool:
        """Whether a call contracts an activation with a weight."""
        fact = self.fact(call)
        if fact is None or not fact.contracts:
            return False
        found = {self.kinds[v] for v in self.data_inputs(call)}
        return "A" in found and "W" in found

    def is_product_of_activations(self, call: int) -> bool:
        """Whether a call contracts two activations with each other."""
        fact = self.fact(call)
        if fact is None or not fact.contracts or fact.indexer:
            return False
        data = self.data_inputs(call)
        return sum(self.kinds[v] == "A" for v in data) >= 2 and all(self.kinds[v] == "A" for v in data)

    def is_choice_by_table(self, call: int) -> bool:
        """Whether a call looks integers up in a weight: what the ids of the input stand for, such as their experts."""
        fact = self.fact(call)
        ins = self.program.inputs[call]
        return (
            fact is not None
            and fact.looks_up
            and any(self.kinds[v] == "W" and self.is_index(v) for v in ins)
            and any(self.kinds[v] == "I" and self.is_index(v) for v in ins)
        )

    def root(self, value: int) -> int:
        """Where the content of a value was computed: back over views, slices, casts, collectives and codes."""
        path = []
        while value not in self._roots:
            before = self.carried(value)
            if before is None:
                self._roots[value] = value
                break
            path.append(value)
            value = before
        found = self._roots[value]
        for passed in path:
            self._roots[passed] = found
        return found

    def carried(self, value: int) -> int | None:
        """The value whose content this one is, in another form; None where it was computed."""
        if value >= self.program.n_values:
            return None
        call = self.maker[value]
        if self.program.kind[call] in _MARKERS:
            return self.program.inputs[call][0]
        fact = self.fact(call)
        if fact is None or not fact.carries:
            return None
        data = self.operands(call, fact.carried) if fact.carried else self.data_inputs(call)
        if not data and len(self.program.inputs[call]) >= 1 and not fact.carried:
            data = [v for v in self.program.inputs[call] if self.layout(v) is not None]
        if len(data) == 1:
            return data[0]
        roots = {self.root(v) for v in data}
        return data[0] if len(roots) == 1 else None

    def back(
        self, values: Iterable[int], *, above: int = -1, stop: Iterable[int] = (), data: bool = False
    ) -> set[int]:
        """Ancestors of values (with them) that are made after call `above`, not beyond the values of `stop`.

        With `data`, paths through integers and masks are not followed.
        """
        walls = frozenset(stop)
        found: set[int] = set()
        todo = list(values)
        while todo:
            v = todo.pop()
            if v in found or self.maker[v] <= above or (data and self.is_index(v)):
                continue
            found.add(v)
            if v not in walls:
                todo.extend(self.parents[v])
        return found

    def ahead(self, values: Iterable[int], within: set[int]) -> set[int]:
        """Descendants of values (without them, unless they depend on each other) inside a set of values."""
        starts = set(values)
        found: set[int] = set()
        for v in sorted(within, key=lambda value: (self.maker[value], value)):
            if any(u in found or u in starts for u in self.parents[v]):
                found.add(v)
        return found


def build_flow(analysis: Analysis) -> Flow:
    """The dataflow of a solved program."""
    p = analysis.program
    facts = facts_of(p)
    n = p.n_values
    flow = Flow(p, analysis.solution.typing.types, facts, [()] * n, list(p.value_call), ["-"] * n, {}, {})
    base: dict[int, int] = {}
    writers: dict[int, list[int]] = {}
    for k, ins in enumerate(p.inputs):
        for v in ins:
            flow.readers.setdefault(v, []).append(k)
        first, outs = p.first[k], p.outs[k]
        if p.kind[k] == PLACEHOLDER:
            flow.kinds[first] = _input_kind(flow, analysis.plan.roles.get(first, ""), first)
            continue
        if p.kind[k] == OUTPUT:
            continue
        fact = flow.fact(k)
        written = [w for v in ins for w in writers.get(base.get(v, v), ())]
        if fact is not None and fact.code == "create":
            # Its operand gives a size and a dtype, nothing of its content.
            for v in range(first, first + outs):
                flow.kinds[v] = "W" if flow.layout(v) is not None else "-"
            continue
        for v in range(first, first + outs):
            flow.parents[v] = (*ins, *written)
            flow.kinds[v] = _kind(flow, k, v, written)
        if fact is None:
            continue
        if fact.aliases and ins:
            for v in range(first, first + outs):
                base[v] = base.get(ins[0], ins[0])
        if fact.adds:
            _insert_sum(flow, k, fact)
        for name in fact.mutates:
            for v in flow.operands(k, name):
                target = base.get(v, v)
                if outs and target < first:
                    writers.setdefault(target, []).append(first)
                    if any(flow.kinds[u] == "A" for u in ins) and not flow.is_index(target):
                        flow.kinds[target] = "A"
    return flow


def _input_kind(flow: Flow, role: str, value: int) -> str:
    if flow.layout(value) is None:
        return "-"
    if role == "weight":
        return "W"
    return "I" if flow.is_index(value) else "A"


def _kind(flow: Flow, call: int, value: int, written: list[int]) -> str:
    if flow.layout(value) is None:
        return "-"
    found = {flow.kinds[v] for v in flow.program.inputs[call]} | {flow.kinds[w] for w in written}
    if flow.is_index(value):
        if "A" in found or "C" in found or ("I" in found and flow.is_choice_by_table(call)):
            return "C"
        return "I" if "I" in found else "W"
    if "A" in found:
        return "A"
    if "C" in found:
        return "W"
    return "A" if "I" in found else "W"


def _insert_sum(flow: Flow, call: int, fact: Facts) -> None:
    """Make the sum that a fused norm forms a value: its last output where the op returns it, else one of its own."""
    p = flow.program
    addends = tuple(v for name in fact.adds for v in flow.operands(call, name))
    rule = p.instances[p.op[call]].rule
    first, outs = p.first[call], p.outs[call]
    if rule is not None and len(rule.outputs) > 1:
        total = first + outs - 1
    else:
        total = len(flow.maker)
        flow.maker.append(call)
        flow.parents.append(())
        flow.kinds.append("A")
    flow.parents[total] = addends
    for v in range(first, first + outs):
        if v != total:
            flow.parents[v] = (total,)


def sum_of(flow: Flow, call: int) -> tuple[int, int, int] | None:
    """The two addends and the sum of a call that adds two values; None for other calls."""
    p = flow.program
    fact = flow.fact(call)
    if fact is None:
        return None
    if fact.adds:
        addends = [v for name in fact.adds for v in flow.operands(call, name)]
        total = flow.parents[p.first[call]][0] if p.outs[call] else -1
        if len(addends) == 2:
            rule = p.instances[p.op[call]].rule
            if rule is not None and len(rule.outputs) > 1:
                total = p.first[call] + p.outs[call] - 1
            return addends[0], addends[1], total
        return None
    rule = p.instances[p.op[call]].rule
    if not additive_pair(rule) or p.outs[call] != 1:
        return None
    assert rule is not None
    addends = [v for v, name in zip(p.inputs[call], fact.params) if name in rule.additive]
    if len(addends) != 2 or any(flow.kinds[v] != "A" or flow.layout(v) is None for v in addends):
        return None
    return addends[0], addends[1], p.first[call]
