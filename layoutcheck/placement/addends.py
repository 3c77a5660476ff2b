"""Biases of products taken off them: behind a product that sums over cut features the bias is added once, after the reduction.

Which operand an op adds is said by its rule (`addend`); how an op that can't do without it is written without, by
`rules/placement/addends.json`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

import attrs

from layoutcheck.graph import Graph, Node, Ref
from layoutcheck.placement.base import Base
from layoutcheck.program import OpInstance
from layoutcheck.regions.arguments import rebuilt
from layoutcheck.regions.names import Names
from layoutcheck.resources import rules_dir
from layoutcheck.rules.types import Rule


@attrs.frozen
class Alone:
    """A product without its addend: its target, the arguments that it keeps, and the factors that have to be 1."""

    target: str
    keep: tuple[str, ...]
    ones: tuple[str, ...]


@lru_cache(maxsize=1)
def _book() -> tuple[dict[str, Alone], str]:
    text = (rules_dir() / "placement" / "addends.json").read_text(encoding="utf-8")
    said = json.loads(text)
    products = {
        target: Alone(of["product"], tuple(of["keep"]), tuple(of["ones"]))
        for target, of in said["products"].items()
    }
    return products, said["sum"]


def addend_of(instance: OpInstance) -> str | None:
    """The parameter of an op that is added to its product and can be taken off it; None where it adds nothing or is not alone."""
    rule = instance.rule
    if (
        rule is None
        or rule.kind != "factors"
        or rule.then
        or len(rule.outputs) != 1
        or len(rule.addends) != 1
    ):
        return None
    name = next(iter(rule.addends))
    if instance.params.get(name) is None:
        return None
    target = rule.target if rule.target.count(".") > 1 else f"{rule.target}.default"
    alone = _book()[0].get(target)
    if alone is None:
        found = next((p for p in rule.params if p.name == name), None)
        return name if found is not None and _may_be_left_out(rule, name) else None
    return name if all(instance.params.get(one, 1) == 1 for one in alone.ones) else None


def _may_be_left_out(rule: Rule, name: str) -> bool:
    return any(operand.param == name and operand.optional for operand in rule.operands)


def addends_apart(base: Base, calls: Collection[int]) -> tuple[Graph, dict[int, str]]:
    """The graph with the addends of these calls added by an op of their own behind them, and what the products alone are named.

    The sum has the name that the product had.
    """
    p = base.analysis.program
    graph = base.analysis.graph
    mine = {p.nodes[k].name: k for k in calls}
    names = Names(n.name for n in graph.nodes)
    out: list[Node] = []
    products: dict[int, str] = {}
    for node in graph.nodes:
        k = mine.get(node.name)
        rule = base.instance(k).rule if k is not None else None
        if k is None or rule is None:
            out.append(node)
            continue
        parts = _apart(node, rule, names)
        products[k] = parts[0].name
        out.extend(parts)
    return rebuilt(out, graph), products


def _apart(node: Node, rule: Rule, names: Names) -> tuple[Node, Node]:
    products, add = _book()
    name = next(iter(rule.addends))
    bound = rule.bind(node.args, node.kwargs)
    bias = bound[name]
    assert isinstance(bias, Ref)
    own = names.fresh(f"{node.name}_product")
    alone = products.get(node.target)
    if alone is not None:
        args = tuple(bound[a] for a in alone.keep)
        product = attrs.evolve(node, name=own, target=alone.target, args=args, kwargs={})
    else:
        product = attrs.evolve(node, name=own, **_without(node, rule, name))
    added = Node(
        node.name,
        "call_function",
        add,
        (Ref(own), bias),
        {},
        node.meta,
        node.location,
        node.module,
        node.module_type,
    )
    return product, added


def _without(node: Node, rule: Rule, name: str) -> Mapping[str, Any]:
    """The arguments of a call without one that may be left out."""
    at = rule.param_names.index(name)
    args = node.args
    if at < len(args):
        args = args[:at] if at == len(args) - 1 else (*args[:at], None, *args[at + 1 :])
    return {"args": args, "kwargs": {k: v for k, v in node.kwargs.items() if k != name}}
