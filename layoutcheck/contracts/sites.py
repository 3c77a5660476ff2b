"""Where a boundary lies in a program: the calls and values that play a role, by layer."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from layoutcheck.contracts.model import Boundary
from layoutcheck.infer.solver.analysis import Analysis
from layoutcheck.mesh import Group
from layoutcheck.roles.flow import sum_of
from layoutcheck.roles.model import Block, Layer, Norm, Roles


@attrs.frozen
class Site:
    """One place of a boundary: a call with an operand (`slot`; -1 for what it gives) and the value there."""

    call: int
    slot: int
    value: int
    layer: int = -1


def sites_of(analysis: Analysis, roles: Roles, boundary: Boundary, group: Group) -> list[Site]:
    """All places of a boundary, in order of the program; `group` is the contract's."""
    finder = _Finder(analysis, roles)
    found: list[Site] = []
    if boundary.role in ("embedding", "norm.final", "lm_head"):
        if boundary.where is None:
            found.extend(finder.ends(boundary))
        return found
    for layer in roles.layers:
        for block in layer.blocks:
            if is_meant(analysis, roles, boundary, block, group):
                found.extend(finder.inside(boundary, layer, block))
    return found


def matches(block: Block, where: str | None) -> bool:
    """Whether a block is of the kind that a boundary speaks of."""
    return where is None or block.kind == where or (where == "sparse" and block.sparse)


def is_meant(analysis: Analysis, roles: Roles, boundary: Boundary, block: Block, group: Group) -> bool:
    """Whether a block is of the kind that a boundary speaks of, and its weights are laid out so."""
    return matches(block, boundary.where) and all(
        _has_cut_weights(analysis, roles, block, role, group) == (how == "cut")
        for role, how in boundary.weights
    )


def _has_cut_weights(analysis: Analysis, roles: Roles, block: Block, role: str, group: Group) -> bool:
    """Whether some weight of a role in a block is cut over a group."""
    p, types, kinds = analysis.program, analysis.solution.typing.types, roles.flow.kinds
    return any(
        kinds[v] == "W" and any(m in getattr(types[v], "bound_map", {}) for m in group.axes)
        for k in block.calls
        if roles.of(k) == role
        for v in p.inputs[k]
    )


def layers_of(analysis: Analysis, roles: Roles, boundary: Boundary, group: Group) -> list[Layer]:
    """Layers that have a block which a boundary speaks of."""
    return [
        layer
        for layer in roles.layers
        if any(is_meant(analysis, roles, boundary, block, group) for block in layer.blocks)
    ]


@attrs.define
class _Finder:
    analysis: Analysis
    roles: Roles

    def _slot(self, call: int, value: int) -> int:
        ins = self.analysis.program.inputs[call]
        return ins.index(value) if value in ins else -1

    def _at(self, call: int, value: int, layer: int = -1) -> Site:
        return Site(call, self._slot(call, value), value, layer)

    def ends(self, boundary: Boundary) -> Iterator[Site]:
        """What stands before the first layer and behind the last one."""
        p = self.analysis.program
        if boundary.role == "embedding":
            for call in self.roles.embeddings:
                yield Site(call, -1, p.first[call])
        elif boundary.role == "norm.final" and self.roles.final is not None:
            yield from self._norm(self.roles.final, boundary.operand, -1)
        elif boundary.role == "lm_head":
            for call in self.roles.heads:
                if boundary.operand == "output":
                    yield Site(call, -1, p.first[call])
                else:
                    yield from self._head_input(call)

    def _head_input(self, call: int) -> Iterator[Site]:
        """What a head reads; where rows are picked before it, what they are picked from."""
        flow = self.roles.flow
        p = self.analysis.program
        for value in flow.data_inputs(call):
            if flow.kinds[value] != "A":
                continue
            reader, read = call, value
            while True:
                root = flow.root(read)
                if root >= p.n_values:
                    break
                maker = flow.maker[root]
                fact = flow.fact(maker)
                if fact is None or not fact.picks_rows:
                    break
                data = [v for v in flow.data_inputs(maker) if flow.kinds[v] == "A"]
                if len(data) != 1:
                    break
                reader, read = maker, data[0]
            yield self._at(reader, read)

    def _norm(self, norm: Norm, operand: str, layer: int) -> Iterator[Site]:
        if operand == "output":
            yield Site(norm.calls[-1], -1, norm.output, layer)
        elif norm.read < self.analysis.program.n_values:
            # A fused norm reads the sum that it forms; what it adds up is the residual's business.
            yield self._at(norm.calls[0], norm.read, layer)

    def inside(self, boundary: Boundary, layer: Layer, block: Block) -> Iterator[Site]:
        """The places of a boundary in one block."""
        role, operand = boundary.role, boundary.operand
        p = self.analysis.program
        join = block.join
        if role == "residual":
            if operand == "output":
                if join.total < p.n_values:
                    yield Site(join.call, -1, join.total, layer.index)
                if boundary.carry is not None and self.roles.flow.root(join.stream) in self.roles.values:
                    # What is handed on is also what the next block gets to see of it.
                    yield self._at(join.call, join.stream, layer.index)
            else:
                value = join.stream if operand == "stream" else join.branch
                yield self._at(join.call, value, layer.index)
            return
        if role in ("norm.input", "norm.post_attention"):
            if block.norm is not None and self.roles.of(block.norm.calls[-1]) == role:
                yield from self._norm(block.norm, operand, layer.index)
            return
        mine = [k for k in sorted(block.calls) if self.roles.of(k) == role]
        if not mine:
            return
        if operand == "input":
            yield from self._inputs(role, block, mine, layer.index)
        else:
            yield from self._outputs(role, block, mine, layer.index)

    def _inputs(self, role: str, block: Block, mine: list[int], layer: int) -> Iterator[Site]:
        flow = self.roles.flow
        roots = {flow.root(v) for v in block.entry}
        for k in mine:
            if role in ("o_proj", "moe.topk"):
                if role == "o_proj" or k in block.picks:
                    for v in flow.data_inputs(k):
                        if flow.kinds[v] == "A" and self._is_main(k, v):
                            yield self._at(k, v, layer)
                continue
            for v in flow.data_inputs(k):
                if flow.kinds[v] == "A" and flow.root(v) in roots and self._is_main(k, v):
                    yield self._at(k, v, layer)

    def _is_main(self, call: int, value: int) -> bool:
        """Not the scale of quantised codes, which has the layout that its codes allow."""
        flow = self.roles.flow
        rule = self.analysis.program.instances[self.analysis.program.op[call]].rule
        fact = flow.fact(call)
        if rule is None or fact is None:
            return True
        slot = self._slot(call, value)
        # A call that does not fit its op's signature has no parameters for what it reads.
        return not 0 <= slot < len(fact.params) or fact.params[slot] not in rule.scales

    def _outputs(self, role: str, block: Block, mine: list[int], layer: int) -> Iterator[Site]:
        p = self.analysis.program
        flow = self.roles.flow
        if role == "attention.core":
            yield Site(block.core[-1], -1, p.first[block.core[-1]], layer)
        elif role == "attention.indexer":
            for k in block.picks:
                outs = range(p.first[k], p.first[k] + p.outs[k])
                yield from (Site(k, -1, v, layer) for v in outs if flow.is_index(v))
        elif role in ("moe.routed", "moe.shared"):
            value = self._leaving(role, block)
            if value is not None:
                reader = block.merge if block.merge is not None else block.join.call
                yield self._at(reader, value, layer)
        elif role == "mlp.dense":
            yield Site(mine[-1], -1, p.first[mine[-1]], layer)
        else:
            yield from (Site(k, -1, p.first[k], layer) for k in mine if p.outs[k])

    def _leaving(self, role: str, block: Block) -> int | None:
        """What a branch of a mixture of experts gives to the sum of both, or to the stream."""
        if block.merge is None:
            return block.end if role == "moe.routed" else None
        summed = sum_of(self.roles.flow, block.merge)
        if summed is None:
            return None
        for value in summed[:2]:
            found = self.roles.flow.back((value,), above=self.roles.flow.maker[block.root])
            roles = {self.roles.of(self.roles.flow.maker[v]) for v in found}
            if (role == "moe.routed") == ("moe.routed" in roles):
                return value
        return None
