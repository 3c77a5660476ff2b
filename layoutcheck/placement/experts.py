"""Experts spread over the group: a rank holds the matrices of its own experts and computes their rows.

In a program of one device rows are sorted by expert, and grouped products take the matrix of each stretch of rows. Here every rank has
all rows in the same order. Its products are told where its own experts' rows end; what they give for rows of others, some number
or other, is replaced by zeros behind the last product, so that all ranks' results add up to the whole's.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from typing import Any

import attrs

from layoutcheck.errors import InputError
from layoutcheck.graph import Graph, Node, Ref, TensorMeta
from layoutcheck.infer.calls.call import slots_in
from layoutcheck.infer.solver.one_call import apply
from layoutcheck.layouts import Layout
from layoutcheck.placement.base import Base
from layoutcheck.placement.convert import Converter
from layoutcheck.placement.masks import as_column, of_others
from layoutcheck.placement.resize import size_param, written
from layoutcheck.placement.shard import Sharder
from layoutcheck.placement.vocabulary import shortened
from layoutcheck.program import CALL
from layoutcheck.regions.arguments import rebuilt, renamed
from layoutcheck.resources import rules_dir

MAX_BACK = 12


@attrs.frozen
class ExpertsCut:
    """Weights that were cut by experts before anything else, and those whose experts do not divide, with the reason; by node name."""

    cut: frozenset[str] = frozenset()
    uneven: Mapping[str, str] = attrs.field(factory=dict)


@attrs.define
class _Group:
    """Grouped products over the same stretches of rows: where these end, and the weights of which experts, by product."""

    ends: int
    weights: dict[int, int] = attrs.field(factory=dict)


@lru_cache(maxsize=1)
def _sums() -> dict[str, str]:
    found: dict[str, str] = json.loads(
        (rules_dir() / "placement" / "experts.json").read_text(encoding="utf-8")
    )["sums"]
    return found


def experts_cut(base: Base, weights: Collection[int], converter: Converter) -> tuple[Graph, ExpertsCut]:
    """The graph with these weights cut by experts, and what was cut.

    Args:
        weights: inputs, of which those with three axes are stacks of experts' matrices; others (biases that rows look up) stay whole.

    Raises:
        InputError: the group's size is no number; none of the weights is a stack; or something reads one in a way in which
            a rank's own experts can't be told, or reads the rows of others.
    """
    return _Cutting(base, converter).run(weights)


@attrs.frozen
class _Cutting:
    base: Base
    converter: Converter

    def run(self, weights: Collection[int]) -> tuple[Graph, ExpertsCut]:
        p, group = self.base.analysis.program, self.base.tokens.group
        stacks = [v for v in sorted(weights) if _rank(self.base.full[v]) == 3]
        if not isinstance(group.size, int):
            raise InputError("to spread experts the group's size has to be a number", group.name)
        if not stacks:
            raise InputError(
                "the plan's experts are no stack of matrices [experts, .., ..]", p.name_of(min(weights))
            )
        uneven = {
            p.name_of(v): f"its {experts} experts do not divide among {group.name}"
            for v in stacks
            if not isinstance(experts := self.base.full[v].shape[0], int) or experts % group.size
        }
        stacks = [v for v in stacks if p.name_of(v) not in uneven]
        if not stacks:
            return self.base.analysis.graph, ExpertsCut(frozenset(), uneven)
        groups: dict[int, _Group] = {}
        shorter: dict[str, int] = {}
        for value in stacks:
            shorter[p.name_of(value)] = self.base.full[value].shape[0]
            for product in self._products(value, shorter):
                ends = self._argument(product, "offs")
                if ends is None:
                    raise InputError(
                        f"{p.nodes[product].name} multiplies experts' matrices without saying where their rows end",
                        p.name_of(value),
                    )
                groups.setdefault(ends, _Group(ends)).weights[product] = value
        graph = self._written(list(groups.values()), shorter)
        return graph, ExpertsCut(frozenset(p.name_of(v) for v in stacks), uneven)

    def _products(self, weight: int, shorter: dict[str, int]) -> Iterator[int]:
        """The grouped products that read a weight; calls between, views and casts of it, are added to `shorter`."""
        p = self.base.analysis.program
        sharder = Sharder(self.base, 0, 0)
        todo = [weight]
        while todo:
            value = todo.pop()
            own = sharder.cut(self.base.full[value], 0)
            for k, slot in self.base.analysis.uses.get(value, ()):
                if p.kind[k] == CALL and not p.outs[k]:
                    continue
                if p.kind[k] == CALL and self._code(k) == "grouped_mm" and self._argument(k, "mat2") == value:
                    yield k
                    continue
                after: Any = self.base.full[p.first[k]] if p.kind[k] == CALL else None
                if p.kind[k] != CALL or slot or len(p.inputs[k]) > 1 or _rank(after) != 3 or own is None:
                    where = p.nodes[k].name
                    raise InputError(
                        f"{where} reads these experts, and is no product of rows by expert", p.name_of(weight)
                    )
                wanted = sharder.cut(after, 0)
                got = apply(self.base.analysis.solver.ctx, self._resized(k), (own,))
                if wanted is None or got.issues or not got.outs or got.outs[0] != wanted:
                    where = p.nodes[k].name
                    raise InputError(f"{where} does not keep these experts apart", p.name_of(weight))
                shorter[p.nodes[k].name] = after.shape[0]
                todo.append(p.first[k])

    def _resized(self, k: int) -> Any:
        """A call with the number of experts in its sizes that of a share."""
        instance = self.base.instance(k)
        name = size_param(instance)
        if name is None or not isinstance(instance.params[name], (list, tuple)):
            return instance
        given = instance.params[name]
        experts = self.base.full[self.base.analysis.program.first[k]].shape[0]
        sizes = (self._share(experts) if given[0] == experts else given[0], *given[1:])
        return attrs.evolve(instance, params={**instance.params, name: sizes})

    def _share(self, experts: int) -> int:
        size = self.base.tokens.group.size
        assert isinstance(size, int)
        return experts // size

    def _code(self, k: int) -> str | None:
        p = self.base.analysis.program
        rule = self.base.instance(k).rule if p.kind[k] == CALL else None
        return rule.code if rule is not None and rule.kind == "code" else None

    def _argument(self, k: int, meaning: str) -> int | None:
        """The value that a call reads as an argument; None where it is not one tensor."""
        instance = self.base.instance(k)
        name = instance.rule.options.get(meaning, meaning) if instance.rule is not None else meaning
        slots = list(slots_in(instance.params.get(str(name))))
        return self.base.root(self.base.analysis.program.inputs[k][slots[0]]) if len(slots) == 1 else None

    # ---- which expert a row is of

    def _row_experts(self, ends: int, experts: int, where: str) -> int:
        """The experts' numbers in the order of the rows, from which it was counted where their rows end.

        Ends are running sums of counts of sorted numbers, so that row i is of the i-th number's expert. Raises InputError.
        """
        p = self.base.analysis.program
        k = self._made_by(ends)
        target = self.base.instance(k).target if k is not None else ""
        dim = next((d for t, d in _sums().items() if target == t or target.startswith(f"{t}.")), None)
        if k is None or dim is None or self.base.instance(k).params.get(dim) not in (0, -1):
            raise InputError("where each expert's rows end is no running sum of their numbers", where)
        counts = self._argument(k, "self")
        k = self._made_by(counts) if counts is not None else None
        if k is None or self._code(k) != "histogram" or not self._counts_all(k, experts):
            raise InputError("how many rows each expert has is not counted from the experts' numbers", where)
        numbers = self._argument(k, "self")
        value = self._before_casts(numbers) if numbers is not None else None
        if value is None:
            raise InputError("how many rows each expert has is not counted from the experts' numbers", where)
        if self._is_sorted(value):
            return value
        for call, _ in self.base.analysis.uses.get(value, ()):
            if self._code(call) == "sort" and p.outs[call] == 2 and self._is_sorted(p.first[call]):
                return p.first[call]
        raise InputError("the experts' numbers are not sorted, so that no row says whose it is", where)

    def _counts_all(self, k: int, experts: int) -> bool:
        """Whether a histogram has a bin for each expert."""
        instance = self.base.instance(k)
        options = instance.rule.options if instance.rule is not None else {}
        params = instance.params
        if params.get(str(options.get("bins", "bins"))) != experts or params.get("weights") is not None:
            return False
        return "min" not in params or (params["min"] == 0 and params.get("max") in (experts - 1, experts))

    def _made_by(self, value: int | None) -> int | None:
        """The call that gives a value, before casts."""
        found = self._before_casts(value) if value is not None else None
        return self.base.analysis.program.value_call[found] if found is not None else None

    def _before_casts(self, value: int) -> int | None:
        p = self.base.analysis.program
        for _ in range(MAX_BACK):
            k = p.value_call[value]
            if p.kind[k] != CALL:
                return None
            before = self.base.root(p.inputs[k][0]) if len(p.inputs[k]) == 1 else None
            if before is None or (self._code(k) != "same" and not self._is_cast(k)):
                return value
            value = before
        return None

    def _is_cast(self, k: int) -> bool:
        rule = self.base.instance(k).rule
        return rule is not None and rule.kind == "elementwise" and bool(rule.outdtype) and bool(rule.linear)

    def _is_sorted(self, value: int) -> bool:
        """Whether a value is a sort's first result: all of one axis, the least first."""
        p = self.base.analysis.program
        k = p.value_call[value]
        if self._code(k) != "sort" or p.outs[k] != 2 or value != p.first[k]:
            return False
        return (
            _rank(self.base.full[value]) == 1
            and self.base.instance(k).params.get("descending", False) is False
        )

    # ---- writing

    def _written(self, groups: list[_Group], shorter: dict[str, int]) -> Graph:
        p = self.base.analysis.program
        graph = self.base.analysis.graph
        group = self.base.tokens.group
        places = {node.name: i for i, node in enumerate(graph.nodes)}
        ahead: dict[str, list[Node]] = {}
        behind: dict[str, list[Node]] = {}
        ends: dict[str, dict[str, str]] = {}
        moved: dict[str, tuple[int, str]] = {}
        for of in groups:
            experts = self.base.full[next(iter(of.weights.values()))].shape[0]
            first, lasts = min(of.weights), self._lasts(of)
            where = p.nodes[first].name
            rows = self._row_experts(of.ends, experts, where)
            new, own, others = self._told_apart(of.ends, rows, experts, graph.nodes[places[where]])
            ahead.setdefault(where, []).extend(new)
            for k in of.weights:
                ends[p.nodes[k].name] = {p.name_of(of.ends): own}
            for k in lasts:
                last = self._sum_behind(p.nodes[k].name, graph)
                node = graph.nodes[places[last]]
                mask = self._zeros(node, others)
                behind.setdefault(last, []).append(mask)
                moved[last] = (places[last], mask.name)
        out: list[Node] = []
        for i, node in enumerate(graph.nodes):
            out.extend(ahead.get(node.name, ()))
            names = {name: new for name, (at, new) in moved.items() if at < i}
            names.update(ends.get(node.name, {}))
            node = _reading(node, names)
            experts = shorter.get(node.name)
            if experts is not None:
                share = self._share(experts)
                if node.op == "placeholder":
                    of_weight = self.base.full[p.by_name[node.name]]
                    node = shortened(
                        node, of_weight, share, f"{share * group.size}/{group.size}@{group.name}"
                    )
                else:
                    node = self._shorter(node, share, experts)
            out.append(node)
            out.extend(behind.get(node.name, ()))
        return rebuilt(out, graph)

    def _shorter(self, node: Node, share: int, experts: int) -> Node:
        """A view or a cast of the share."""
        k = self.base.analysis.program.node_call[node.name]
        instance = self.base.instance(k)
        name = size_param(instance)
        if name is not None and instance.rule is not None and instance.params[name][0] == experts:
            node = written(node, instance.rule, name, {0: share})
        if isinstance(node.meta, TensorMeta):
            node = attrs.evolve(node, meta=TensorMeta((share, *node.meta.shape[1:]), node.meta.dtype))
        return node

    def _lasts(self, of: _Group) -> list[int]:
        """The products that no other one of the group reads. Raises InputError where a product between keeps all experts."""
        p = self.base.analysis.program
        start = p.value_call[of.ends]
        inner: set[int] = set()
        for k in of.weights:
            todo, seen = [self._argument(k, "self")], set()
            while todo:
                value = todo.pop()
                call = p.value_call[value] if value is not None else -1
                if call <= start or call in seen or p.kind[call] != CALL:
                    continue
                seen.add(call)
                if call in of.weights:
                    inner.add(call)
                    continue
                todo.extend(self.base.root(v) for v in p.inputs[call])
        for k, _ in self.base.analysis.uses.get(of.ends, ()):
            if self._code(k) == "grouped_mm" and k not in of.weights:
                name = p.nodes[k].name
                raise InputError(
                    f"{name} takes the same rows, and the plan does not spread its experts",
                    p.nodes[min(of.weights)].name,
                )
        return [k for k in of.weights if k not in inner]

    def _sum_behind(self, name: str, graph: Graph) -> str:
        """The node behind which rows are replaced: what is added to a product (its experts' biases) is, too."""
        p = self.base.analysis.program
        while True:
            readers = [
                n
                for n in graph.nodes
                if name in n.refs() and (n.name not in p.node_call or p.outs[p.node_call[n.name]])
            ]
            k = p.node_call.get(readers[0].name) if len(readers) == 1 else None
            rule = self.base.instance(k).rule if k is not None and p.kind[k] == CALL else None
            if k is None or rule is None or rule.kind != "elementwise" or not rule.additive:
                return name
            was, now = self.base.full[p.by_name[name]], self.base.full[p.first[k]]
            if not isinstance(now, Layout) or now.axes != was.axes or len(p.inputs[k]) != 2:
                return name
            name = readers[0].name

    def _told_apart(self, ends: int, rows: int, experts: int, like: Node) -> tuple[list[Node], str, str]:
        """Where a rank's own experts' rows end, and which rows are of others, as a column: the nodes, and the names of both."""
        p = self.base.analysis.program
        share = self._share(experts)
        low = self.converter.rank * share
        out: list[Node] = []

        def add(word: str, target: str, args: tuple[Any, ...], meta: TensorMeta | None) -> Ref:
            name = self.converter.names.fresh(f"{like.name}_{word}")
            out.append(attrs.evolve(like, name=name, target=target, args=args, kwargs={}, meta=meta))
            return Ref(name)

        stops, numbers = self.base.full[ends], self.base.full[rows]
        where = (Ref(p.name_of(ends)), 0, low, low + share)
        own = add("ends", "aten.slice.Tensor", where, TensorMeta((share,), stops.dtype))
        others = of_others(add, Ref(p.name_of(rows)), low, share, numbers.shape)
        return out, own.name, as_column(add, others, numbers.shape).name

    def _zeros(self, node: Node, others: str) -> Node:
        return attrs.evolve(
            node,
            name=self.converter.names.fresh(f"{node.name}_own"),
            target="aten.masked_fill.Scalar",
            args=(Ref(node.name), Ref(others), 0.0),
            kwargs={},
        )


def _rank(of: Any) -> int:
    return of.rank if isinstance(of, Layout) else -1


def _reading(node: Node, names: Mapping[str, str]) -> Node:
    """The node with what it reads renamed."""
    if not names or not any(r in names for r in node.refs()):
        return node

    def rename(name: str) -> str:
        return names.get(name, name)

    args = tuple(renamed(a, rename) for a in node.args)
    return attrs.evolve(node, args=args, kwargs={k: renamed(a, rename) for k, a in node.kwargs.items()})
