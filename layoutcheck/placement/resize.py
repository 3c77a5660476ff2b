"""Sizes in an op's arguments, written anew for the share that it runs on.

A view, an expand or a tensor made anew names local sizes. Which of them count tokens is read from the layout that the op's
result has in the graph as it is: where that layout and the wanted one differ in an axis' extent, the size is written anew.
"""

from __future__ import annotations

from typing import Any

import attrs

from layoutcheck.arguments import Hole
from layoutcheck.graph import Node
from layoutcheck.layouts import Layout
from layoutcheck.program import OpInstance
from layoutcheck.rules.types import Rule
from layoutcheck.symbols import Expr, Size

# Transforms that name the sizes of their result, and by which parameter.
SIZED = {"view": "size", "expand": "size", "create": "size", "arange": "end"}


def size_param(instance: OpInstance) -> str | None:
    """The parameter that holds the sizes of the result, where it holds a list of them."""
    rule = instance.rule
    if rule is None or rule.kind != "code" or rule.code not in SIZED:
        return None
    meaning = SIZED[rule.code]
    name = rule.options.get(meaning, meaning)
    value = instance.params.get(name)
    if rule.code == "arange":
        return name if instance.params.get("start", 0) == 0 and instance.params.get("step", 1) == 1 else None
    return name if isinstance(value, (list, tuple)) else None


def resized(instance: OpInstance, was: Any, wanted: Layout) -> tuple[OpInstance, dict[int, Size]] | None:
    """The op with the sizes that give `wanted` where it gave `was`, and the sizes written anew by their place.

    None: it names no sizes, or none that has to change.
    """
    name = size_param(instance)
    if name is None or not isinstance(was, Layout) or was.rank != wanted.rank:
        return None
    given = instance.params[name]
    sizes = list(given) if isinstance(given, (list, tuple)) else [given]
    if len(sizes) != wanted.rank:
        return None
    changed: dict[int, Size] = {}
    for i, size in enumerate(sizes):
        fixed = isinstance(size, (int, Expr, Hole)) and not isinstance(size, bool) and size != -1
        if fixed and was.shape[i] != wanted.shape[i]:
            changed[i] = wanted.shape[i]
    if not changed:
        return None
    now: Any = tuple(changed.get(i, size) for i, size in enumerate(sizes))
    if not isinstance(given, (list, tuple)):
        now = now[0]
    return attrs.evolve(instance, params={**instance.params, name: now}), changed


def written(node: Node, rule: Rule, name: str, changed: dict[int, Size]) -> Node:
    """The node with these sizes in its argument `name`."""
    names = list(rule.param_names)
    at = names.index(name) if name in names else -1
    if name in node.kwargs:
        return attrs.evolve(node, kwargs={**node.kwargs, name: _with(node.kwargs[name], changed)})
    if 0 <= at < len(node.args):
        args = (*node.args[:at], _with(node.args[at], changed), *node.args[at + 1 :])
        return attrs.evolve(node, args=args)
    return node


def replaced(node: Node, rule: Rule, params: dict[str, Any]) -> Node:
    """The node with these arguments by name, where it gives them."""
    args, kwargs = list(node.args), dict(node.kwargs)
    names = list(rule.param_names)
    for name, value in params.items():
        value = tuple(value) if isinstance(value, list) else value
        at = names.index(name) if name in names else -1
        if name in kwargs or not 0 <= at < len(args):
            kwargs[name] = value
        else:
            args[at] = value
    return attrs.evolve(node, args=tuple(args), kwargs=kwargs)


def _with(sizes: Any, changed: dict[int, Size]) -> Any:
    if not isinstance(sizes, (list, tuple)):
        return changed.get(0, sizes)
    return tuple(changed.get(i, s) for i, s in enumerate(sizes))
