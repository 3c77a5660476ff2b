"""Which kernels one call runs, and their sizes: the lines of the kernel files, filled in for a call."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from layoutcheck.cost.call_view import CallView, Missing
from layoutcheck.cost.collectives import COLLECTIVES
from layoutcheck.cost.contraction import product_sizes
from layoutcheck.cost.kernel_map import KernelMap, Line
from layoutcheck.cost.kernel_table import KERNELS
from layoutcheck.errors import InputError
from layoutcheck.roles.facts import Facts
from layoutcheck.rules.types import Rule
from layoutcheck.symbols import Expr, Size

_TEXT_OPTIONS = ("dtype", "op")

Filled = tuple[Line, dict[str, Size], dict[str, Any]]
"""A kernel's line with its sizes and its options."""


def filled_lines(
    kernels: KernelMap, view: CallView, rule: Rule, fact: Facts, rows: Size | None = None
) -> list[Filled] | str:
    """The kernels that a call runs, with their sizes, in order; a text that says what is missing where that is not known.

    Args:
        kernels: the kernel files.
        view: the call; its symbols gain those of a product and ``queries``.
        rule, fact: what is known of its op.
        rows: the tokens that an indexer's query side runs on.

    Raises:
        InputError: a kernel's line is malformed.
    """
    said = [("part", w) for w in (*rule.part[:1], *(["norm"] if fact.norm else []))]
    try:
        product = product_sizes(view, rule) if fact.contracts else None
    except Missing:
        product = None
    if product is not None:
        said.append(("contraction", ""))
        view.symbols = {**view.symbols, **product}
    said += [("code", rule.code or "")] * (rule.kind == "code") + [("kind", rule.kind)]
    lines = kernels.find(view.instance.target, said)
    if lines is None:
        return "no kernel is known for it"
    if rule.part and rule.part[0] == "indexer" and rows is not None:
        view.symbols = {**view.symbols, "queries": rows}
    found = []
    for line in (*lines, *_afterwards(rule)):
        try:
            if line.condition is None or view.value(line.condition):
                sizes, options = _values(view, line)
                found.append((line, sizes, options))
        except Missing as missing:
            return f"its {line.kernel} needs {missing}, which this call lacks"
        except InputError as error:
            raise InputError(error.message, where=line.where) from error
    return found


def _afterwards(rule: Rule) -> list[Line]:
    """The collectives that a fused op runs behind its kernels, as its rule says."""
    lines = []
    for name, options in rule.then:
        if name in COLLECTIVES:
            where = f"{rule.target}: {name}"
            group = options.get("ranks") or options.get("group") or ""
            # what is sent is the output as it was before: a reduce_scatter's is as many times larger as there are ranks
            whole = "bytes(out)*ranks(%s)" if name == "reduce_scatter" else "bytes(out)"
            texts = {"op": repr(name), "ranks": f"ranks({group})", "size": whole.replace("%s", group)}
            values = {n: ast.parse(t, mode="eval").body for n, t in texts.items()}
            lines.append(Line("collective", "", values, None, where))
    return lines


def _values(view: CallView, line: Line) -> tuple[dict[str, Size], dict[str, Any]]:
    kernel = KERNELS.get(line.kernel)
    if kernel is None:
        raise InputError(
            f"no kernel is called {line.kernel}; there are {', '.join(KERNELS)}", where=line.where
        )
    sizes: dict[str, Size] = {}
    options: dict[str, Any] = {}
    given: Mapping[str, ast.expr] = line.values
    for name, expression in given.items():
        value = view.value(expression)
        if name in kernel.sizes:
            if isinstance(value, bool) or not isinstance(value, (int, Expr)):
                raise Missing(name)
            sizes[name] = value
        else:
            options[name] = value if name in _TEXT_OPTIONS else int(value)
    for name, default in kernel.sizes.items():
        if name not in sizes:
            if default is None:
                raise InputError(f"{line.kernel} needs {name}")
            sizes[name] = default
    return sizes, options
