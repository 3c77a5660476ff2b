"""What may repair a contract finding: conversions left out, exchanged for another kind, or put where the value is read."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from layoutcheck.contracts.causes import Fault
from layoutcheck.contracts.causes import Group as Faults
from layoutcheck.contracts.edits import Convert, Drop, Edit, Exchange, Reroute
from layoutcheck.contracts.model import Boundary
from layoutcheck.contracts.ways import Way
from layoutcheck.findings import Fix
from layoutcheck.infer.repairs.conversions import Conversion, conversions
from layoutcheck.infer.repairs.prices import Cost
from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.layouts import Layout, state_of
from layoutcheck.mesh import Group
from layoutcheck.program import CALL
from layoutcheck.roles import Roles
from layoutcheck.rules.kinds import CONVERTING


@attrs.frozen
class Step:
    """One edit with its words (none for what goes without saying), and the layer that it belongs to (-1: none)."""

    edit: Edit
    text: str
    layer: int


@attrs.frozen
class Plan:
    """The steps of one repair, in all layers of the finding."""

    steps: tuple[Step, ...]

    @property
    def edits(self) -> list[Edit]:
        """The edits of all steps."""
        return [step.edit for step in self.steps]

    @property
    def gone(self) -> frozenset[int]:
        """Calls that are left out, or are another conversion now."""
        return frozenset(e.call for e in self.edits if isinstance(e, Drop | Exchange))

    def fix(self, roles: Roles, faults: Faults, cost: Cost) -> Fix:
        """The repair in words: of the first layer where all layers are alike, else of all. `cost` is that of all."""
        layers: dict[int, list[Step]] = {}
        for step in self.steps:
            layers.setdefault(step.layer, []).append(step)
        first = min(layers)
        sites = {fault.site.layer for fault in faults.faults}
        alike = set(layers) <= sites and len({len(steps) for steps in layers.values()}) == 1
        shown = layers[first] if alike else list(self.steps)
        times = sum(roles.layers[i].times for i in sites if i >= 0) if alike else 1
        texts = list(dict.fromkeys(step.text for step in shown if step.text))
        each = Cost(cost.above, cost.below * len(layers)) if alike else cost
        return Fix(_joined(texts), str(each), times or 1, True)


def _joined(texts: list[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])}, and {texts[-1]}"


def candidates(maker: Maker, faults: Faults) -> Iterator[Plan]:
    """Plans that may repair a finding, what only takes away first."""
    code = faults.first.code
    plans: list[list[Step] | None] = []
    if code == "LC504":
        plans += [maker.shared(faults), maker.without(faults)]
    elif code == "LC503":
        plans += [maker.exchanged(faults), maker.without(faults), maker.bypassed(faults)]
    else:
        plans += [
            maker.without(faults),
            maker.exchanged(faults),
            maker.joined(faults),
            maker.bypassed(faults),
        ]
        plans += maker.converted(faults)
    seen: set[tuple[Edit, ...]] = set()
    for steps in plans:
        if steps:
            plan = Plan(tuple(dict.fromkeys(steps)))
            if (mark := tuple(plan.edits)) not in seen:
                seen.add(mark)
                yield plan


def wanted(b: Boundary, code: str) -> tuple[str, ...]:
    """The states that would be right at a boundary."""
    if code == "LC505":
        return (b.carry,) if b.carry else ()
    if b.require:
        return b.require
    bound = b.at_most if code == "LC501" else b.at_least
    return (bound,) if bound else ()


@attrs.define
class Maker:
    """Makes steps for faults of one program."""

    analysis: Analysis
    group: Group
    roles: Roles

    def layer(self, call: int) -> int:
        """The layer that a call lies in, -1 outside of layers."""
        found = self.roles.layer_of(call)
        return found.index if found is not None else -1

    # ---- single steps

    def drop(self, call: int, layer: int, instead: int | None = None) -> list[Step] | None:
        """Leave a conversion out (and what waits for it); None where the call does something else as well.

        `instead`: what its readers get; its operand where that is not said.
        """
        p = self.analysis.program
        kind = self._kind(call)
        if kind is None:
            return None
        source = p.inputs[call][0]
        name = p.nodes[call].name
        text = f"leave out {kind} {name}"
        if instead is not None:
            text += f" and read {p.name_of(instead)} instead"
        steps = [Step(Drop(call, source if instead is None else instead), text, layer)]
        for reader in self.roles.flow.readers.get(p.first[call], ()):
            fact = self.roles.flow.fact(reader)
            if fact is not None and fact.code == "wait":
                steps.append(Step(Drop(reader, p.first[call]), "", layer))
        return steps

    def exchange(self, call: int, kind: str, layer: int) -> list[Step] | None:
        """Another conversion in a conversion's place."""
        old = self._kind(call)
        p = self.analysis.program
        if old not in CONVERTING:
            return None
        source = p.inputs[call][0]
        for option in self.options(source):
            if option.kind == kind:
                dim = self.dim(source, option)
                along = f" along axis {dim}" if dim else ""
                text = f"{kind}{along} instead of {old} {p.nodes[call].name}"
                return [Step(Exchange(call, source, kind, dim), text, layer)]
        return None

    def convert(
        self, value: int, option: Conversion, readers: frozenset[int], layer: int, dim: int | None = None
    ) -> Step:
        """A conversion of a value for some of its readers, along an axis (where not given: the one that it changes)."""
        p = self.analysis.program
        dim = self.dim(value, option) if dim is None else dim
        edit = Convert(value, option.kind, dim, option.text.endswith("cut the padding off"), readers)
        text = f"{option.text} of {p.name_of(value)}"
        if not readers >= set(self.roles.flow.readers.get(value, ())):
            text += f" before {', '.join(p.nodes[k].name for k in sorted(readers))}"
        return Step(edit, text, layer)

    def options(
        self, value: int, targets: tuple[str, ...] = (), via: tuple[str, ...] | None = None
    ) -> list[Conversion]:
        """Conversions of a value over the contract's group, to one of these states and of one of these kinds."""
        of = self.analysis.solution.typing.types[value]
        if not isinstance(of, Layout):
            return []
        found = []
        for option in conversions(self.analysis, of):
            after = {state_of(option.layout, m) for m in self.group.axes}
            mine = option.group == self.group.name or option.kind == "unpad"
            fits = not targets or any(after == {target} for target in targets)
            if mine and option.kind != "unpad" and fits and (not via or option.kind in via):
                found.append(option)
        return found

    def dim(self, value: int, option: Conversion) -> int:
        """The axis that a conversion changes."""
        of = self.analysis.solution.typing.types[value]
        assert isinstance(of, Layout)
        changed = [i for i, axis in enumerate(of.axes) if option.layout.axes[i] != axis]
        return changed[0] if changed else 0

    def _kind(self, call: int) -> str | None:
        """The conversion that a call is and nothing else."""
        p = self.analysis.program
        rule = p.instances[p.op[call]].rule if p.kind[call] == CALL else None
        if rule is None or rule.kind != "code" or rule.then or rule.mutates or p.outs[call] != 1:
            return None
        return rule.code if rule.code in CONVERTING else "slice"

    # ---- plans

    def without(self, faults: Faults) -> list[Step] | None:
        """Leave out what should not lead here: gathers of what is too full, conversions that are not allowed."""
        steps: list[Step] = []
        for fault in faults.faults:
            mine: list[Step] = []
            for way in self._wrong(fault):
                found = self.drop(way.call, fault.site.layer)
                if found is None:
                    return None
                mine += found
            if not mine:
                return None
            steps += mine
        return steps

    def bypassed(self, faults: Faults) -> list[Step] | None:
        """The readers at fault read what stands before the conversion that should not lead to them; others read it still."""
        p = self.analysis.program
        steps: list[Step] = []
        at_fault = {fault.site.call for fault in (*faults.faults, *faults.followers)}
        for fault in faults.faults:
            wrong = self._wrong(fault)
            v, reader = fault.site.value, fault.site.call
            if at_fault >= set(self.roles.flow.readers.get(v, ())):
                return None
            if len(wrong) != 1 or p.value_call[self._waited(v)] != wrong[0].call or fault.site.slot < 0:
                return None
            source = p.inputs[wrong[0].call][0]
            text = f"let {p.nodes[reader].name} read {p.name_of(source)} instead of {p.name_of(v)}"
            steps.append(Step(Reroute(reader, v, source), text, fault.site.layer))
        return steps

    def _wrong(self, fault: Fault) -> list[Way]:
        b = fault.boundary
        if fault.code == "LC503":
            return [way for way in fault.ways if way.kind not in (b.via or ())]
        if fault.code == "LC504":
            return list(fault.ways[fault.wanted[1] :])
        undone = {"Full": ("all_gather",), "Local": ("slice", "reduce_scatter")}.get(fault.state, ())
        return [way for way in fault.ways if way.kind in undone][:1]

    def shared(self, faults: Faults) -> list[Step] | None:
        """Of several conversions of one value, the readers of the later ones read the first."""
        p, flow = self.analysis.program, self.roles.flow
        types = self.analysis.solution.typing.types
        steps: list[Step] = []
        for fault in faults.faults:
            firsts: dict[tuple[int, int], int] = {}
            mine: list[Step] = []
            for way in sorted(fault.ways, key=lambda w: w.call):
                out = p.first[way.call]
                mark = (flow.root(p.inputs[way.call][0]), id(types[out]))
                if firsts.setdefault(mark, way.call) != way.call:
                    found = self.drop(way.call, fault.site.layer, p.first[firsts[mark]])
                    mine += found or []
            if not mine:
                return None
            steps += mine
        return steps

    def exchanged(self, faults: Faults) -> list[Step] | None:
        """The nearest sum in the other form: scattered where a share is wanted, on all ranks where all is wanted."""
        steps: list[Step] = []
        for fault in faults.faults:
            allowed = fault.boundary.via
            for way in fault.ways:
                kind = {"all_reduce": "reduce_scatter", "reduce_scatter": "all_reduce"}.get(way.kind)
                if kind is None or (allowed is not None and kind not in allowed):
                    continue
                found = self.exchange(way.call, kind, fault.site.layer)
                if found is None:
                    return None
                steps += found
                break
            else:
                return None
        return steps

    def joined(self, faults: Faults) -> list[Step] | None:
        """Both operands of the sums that are handed on, each brought to the state in which they are carried."""
        if faults.first.code != "LC505":
            return None
        steps: list[Step] = []
        for fault in faults.faults:
            found = self._operands(fault)
            if found is None:
                return None
            steps += found
        return steps

    def _operands(self, fault: Fault) -> list[Step] | None:
        p = self.analysis.program
        targets = wanted(fault.boundary, fault.code)
        steps: list[Step] = []
        for v in self.roles.flow.data_inputs(fault.site.call):
            of = self.analysis.solution.typing.types[v]
            if not isinstance(of, Layout) or {state_of(of, m) for m in self.group.axes} == set(targets):
                continue
            maker = p.value_call[self._waited(v)]
            turned = {"Local": "reduce_scatter", "Full": "all_reduce"}.get(targets[0], "")
            found = self.exchange(maker, turned, fault.site.layer) if p.kind[maker] == CALL else None
            if found is None:
                option = next(iter(self.options(v, targets)), None)
                if option is None:
                    return None
                found = [self.convert(v, option, frozenset((fault.site.call,)), fault.site.layer)]
            steps += found
        return steps

    def _waited(self, value: int) -> int:
        """What a wait waits for."""
        call = self.roles.flow.maker[value]
        fact = self.roles.flow.fact(call)
        return self.analysis.program.inputs[call][0] if fact is not None and fact.code == "wait" else value

    def converted(self, faults: Faults) -> list[list[Step] | None]:
        """A conversion of what is read: at the reader, where the content was computed, and in front of what gives it."""
        everyone = [*faults.faults, *faults.followers]
        at_value: dict[int, set[int]] = {}
        for fault in everyone:
            at_value.setdefault(fault.site.value, set()).add(fault.site.call)
        return [self._here(faults, at_value), self._at_root(faults, at_value), self._in_front(faults)]

    def _here(self, faults: Faults, at_value: dict[int, set[int]]) -> list[Step] | None:
        steps: list[Step] = []
        for fault in faults.faults:
            v, b = fault.site.value, fault.boundary
            option = next(iter(self.options(v, wanted(b, fault.code), b.via)), None)
            if option is None:
                return None
            readers = set(self.roles.flow.readers.get(v, ()))
            steps.append(
                self.convert(
                    v,
                    option,
                    frozenset(readers if fault.site.slot < 0 else readers & at_value[v]),
                    fault.site.layer,
                )
            )
        return steps

    def _at_root(self, faults: Faults, at_value: dict[int, set[int]]) -> list[Step] | None:
        """One conversion where several views of one value are read."""
        flow = self.roles.flow
        steps: dict[int, Step] = {}
        readers: dict[int, set[int]] = {}
        for v, calls in at_value.items():
            path = [v]
            while (before := flow.carried(path[-1])) is not None:
                path.append(before)
            if path[-1] < self.analysis.program.n_values:
                readers.setdefault(path[-1], set()).update({flow.maker[path[-2]]} if len(path) > 1 else calls)
        for fault in faults.faults:
            root = flow.root(fault.site.value)
            b = fault.boundary
            if root not in readers or fault.site.slot < 0:
                return None
            option = next(iter(self.options(root, wanted(b, fault.code), b.via)), None)
            if option is None:
                return None
            steps[root] = self.convert(root, option, frozenset(readers[root]), fault.site.layer)
        return list(steps.values())

    def _in_front(self, faults: Faults) -> list[Step] | None:
        """Where what a call gives is at fault: its operands of the same state, converted."""
        p, flow = self.analysis.program, self.roles.flow
        types = self.analysis.solution.typing.types
        steps: list[Step] = []
        for fault in faults.faults:
            if fault.site.slot >= 0:
                return None
            call = fault.site.call
            operands = [v for v in dict.fromkeys(flow.data_inputs(call)) if flow.kinds[v] == "A"]
            mine = [v for v in operands if v < p.n_values and self.state(types[v]) == fault.state]
            for v in mine:
                option = next(iter(self.options(v, wanted(fault.boundary, fault.code))), None)
                if option is None:
                    return None
                steps.append(self.convert(v, option, frozenset((call,)), fault.site.layer))
            if not mine:
                return None
        return steps

    def state(self, of: object) -> str:
        """The one state of a value over the contract's group; empty where there is none."""
        states = {state_of(of, m) for m in self.group.axes} if isinstance(of, Layout) else set()
        return states.pop() if len(states) == 1 else ""
