"""Tables and heads over the vocabulary, cut along it: each rank looks up its own rows and scores its own words.

Of ids that are another rank's a lookup gives zeros, so that all ranks' results add up to the row; a head's scores are gathered
along the vocabulary. A vocabulary that does not divide is padded: the last rank's weight has rows that nobody asks for.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import attrs

from layoutcheck.errors import InputError
from layoutcheck.graph import Graph, Node, Ref, TensorMeta
from layoutcheck.infer.calls.call import slots_in
from layoutcheck.layouts import Layout
from layoutcheck.placement.base import Base
from layoutcheck.placement.convert import Converter
from layoutcheck.placement.masks import as_column, of_others
from layoutcheck.program import CALL
from layoutcheck.regions.arguments import rebuilt
from layoutcheck.roles import Roles


@attrs.frozen
class VocabularyCut:
    """A weight that was cut along its rows before anything else: entries that it was padded with."""

    padding: int


def vocabulary_cut(
    base: Base, roles: Roles, weights: Collection[int], converter: Converter, apart: Collection[int] = ()
) -> tuple[Graph, dict[str, VocabularyCut]]:
    """The graph with these weights cut along the vocabulary, and what was cut, by the name of its node.

    Args:
        weights: inputs that are tables of entries looked up by ids, or weights of heads; one input may be both.
        apart: those of them whose scores stay with the ranks, each its words'.

    Raises:
        InputError: the group's size is no number, a weight is read by something that is neither a lookup nor a head, or scores
            that stay with the ranks are of a vocabulary that does not divide.
    """
    p = base.analysis.program
    group = base.tokens.group
    size = group.size
    if not isinstance(size, int):
        raise InputError("to cut a vocabulary the group's size has to be a number", group.name)
    cuts: dict[str, VocabularyCut] = {}
    calls: dict[str, tuple[str, int, int, bool]] = {}
    biases: dict[int, int] = {}
    shares: dict[int, int] = {}
    for value in weights:
        of = base.full[value]
        rows = of.shape[0] if isinstance(of, Layout) and of.rank == 2 else None
        name = p.name_of(value)
        if not isinstance(rows, int):
            raise InputError("this weight has no vocabulary as its first axis", name)
        shares[value] = share = -(-rows // size)
        cuts[name] = VocabularyCut(share * size - rows)
        if value in apart and share * size != rows:
            raise InputError(
                f"its {rows} words do not divide among {group.name}, so that scores have to be gathered", name
            )
        for k, _ in base.analysis.uses.get(value, ()):
            rule = base.instance(k).rule if p.kind[k] == CALL else None
            if rule is not None and rule.code == "embedding" and p.inputs[k][0] == value:
                calls[p.nodes[k].name] = ("lookup", rows, share, False)
            elif rule is not None and k in roles.heads:
                calls[p.nodes[k].name] = ("head", rows, share, value in apart)
                for bias in _biases(base, k):
                    biases[bias] = rows
            else:
                reader = p.nodes[k].name
                raise InputError(f"{reader} reads this weight, and is neither a lookup nor a head", name)
    for value, rows in biases.items():
        shares[value] = share = -(-rows // size)
        cuts[p.name_of(value)] = VocabularyCut(share * size - rows)
    out: list[Node] = []
    moved: dict[str, str] = {}
    names = {p.nodes[p.value_call[value]].name: value for value in shares}
    for node in base.analysis.graph.nodes:
        if node.name in names:
            share = shares[names[node.name]]
            out.append(
                shortened(node, base.full[names[node.name]], share, f"{share * size}/{size}@{group.name}")
            )
            continue
        found = calls.get(node.name)
        node = _reading(node, moved)
        if found is None:
            out.append(node)
        elif found[0] == "lookup":
            out.extend(_lookup(node, base, converter, found[2]))
        else:
            new = _head(node, base, converter, found[1], size, found[3])
            out.extend(new)
            moved[node.name] = new[-1].name
    return rebuilt(out, base.analysis.graph), cuts


def _biases(base: Base, k: int) -> list[int]:
    p = base.analysis.program
    instance = base.instance(k)
    names = instance.rule.addends if instance.rule is not None else frozenset()
    return [base.root(p.inputs[k][slot]) for name in names for slot in slots_in(instance.params.get(name))]


def shortened(node: Node, of: Any, share: int, text: str) -> Node:
    """An input of which a rank holds `share` rows; `text` is how a layout writes that axis."""
    rest = of.shape[1:]
    layout = "[" + ", ".join((text, *(str(n) for n in rest))) + "]"
    return attrs.evolve(node, meta=TensorMeta((share, *rest), of.dtype, layout))


def _reading(node: Node, moved: dict[str, str]) -> Node:
    if not moved or not any(r in moved for r in node.refs()):
        return node

    def mapped(arg: Any) -> Any:
        if type(arg) is Ref:
            return Ref(moved.get(arg.name, arg.name))
        return tuple(mapped(a) for a in arg) if type(arg) is tuple else arg

    return attrs.evolve(
        node, args=tuple(mapped(a) for a in node.args), kwargs={k: mapped(a) for k, a in node.kwargs.items()}
    )


def _argument(node: Node, base: Base, k: int, at: int) -> Any:
    """An argument of a call by its place in the rule, however the node gives it: by place or by name."""
    rule = base.instance(k).rule
    name = rule.param_names[at] if rule is not None and at < len(rule.param_names) else ""
    return node.kwargs[name] if name in node.kwargs else node.args[at]


def _lookup(node: Node, base: Base, converter: Converter, share: int) -> list[Node]:
    """A lookup of the ids that are this rank's; zeros for others. The last node has the lookup's name."""
    p = base.analysis.program
    k = p.node_call[node.name]
    ids, given = base.full[base.root(p.inputs[k][1])], base.full[p.first[k]]
    low = converter.rank * share
    out: list[Node] = []

    def add(word: str, target: str, args: tuple[Any, ...], meta: TensorMeta | None, name: str = "") -> Ref:
        own = name or converter.names.fresh(f"{node.name}_{word}")
        out.append(attrs.evolve(node, name=own, target=target, args=args, kwargs={}, meta=meta))
        return Ref(own)

    shape = ids.shape if isinstance(ids, Layout) else ()
    index = TensorMeta(shape, ids.dtype) if isinstance(ids, Layout) else None
    table, source = (_argument(node, base, k, i) for i in range(2))
    others = of_others(add, source, low, share, shape)
    moved = add("moved", "aten.sub.Tensor", (source, low), index)
    mine = add("mine", "aten.masked_fill.Scalar", (moved, others, 0), index)
    rows_meta = TensorMeta(given.shape, given.dtype) if isinstance(given, Layout) else None
    # What is left of the lookup's arguments (a padding entry) has to do with gradients only.
    rows = add("rows", node.target, (table, mine), rows_meta)
    mask = as_column(add, others, shape)
    add("", "aten.masked_fill.Scalar", (rows, mask, 0.0), rows_meta, node.name)
    return out


def _head(node: Node, base: Base, converter: Converter, rows: int, size: int, apart: bool) -> list[Node]:
    """A head over a rank's words, and the scores of all ranks gathered, without those of padding; or not, if they stay apart."""
    p = base.analysis.program
    of = base.full[p.first[p.node_call[node.name]]]
    assert isinstance(of, Layout)
    share = -(-rows // size)
    local = attrs.evolve(node, meta=TensorMeta((*of.shape[:-1], share), of.dtype))
    if apart:
        return [local]
    out = [local, *converter.collective("all_gather", local, of.rank - 1, of)]
    if share * size != rows:
        out.append(
            attrs.evolve(
                node,
                name=converter.names.fresh(f"{node.name}_words"),
                target="aten.slice.Tensor",
                args=(Ref(out[-1].name), of.rank - 1, 0, rows),
                kwargs={},
            )
        )
    out[-1] = attrs.evolve(out[-1], meta=TensorMeta(of.shape, of.dtype))
    return out
