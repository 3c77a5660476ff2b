"""A plan of weight layouts: patterns on module names, in a JSON file.

    {"group": "tp", "weights": {"*.down_proj.weight": "row", "*.gate_proj.weight": "column", "lm_head.weight": "[128/4@tp, 64]"}}

`column` cuts the first axis (torch keeps linears as [out, in]), `row` the second, `replicated` none, `vocabulary` and
`vocabulary-sharded` the first one of a table or a head, `expert` the first one of a stack of matrices, one an expert; anything
else is a layout's text.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from layoutcheck.documents import read_document
from layoutcheck.errors import InputError
from layoutcheck.graph import TensorMeta
from layoutcheck.layout_text import parse_layout
from layoutcheck.layouts import Layout
from layoutcheck.mesh import Mesh
from layoutcheck.symbols import Size

_WORDS = {"column": 0, "row": 1, "vocabulary": 0, "vocabulary-sharded": 0, "expert": 0}
MAX_BYTES = 16 << 20


def read_plan(path: str | Path) -> dict[str, Any]:
    """The plan of a file.

    Raises:
        InputError: unreadable, not JSON, or not of this form.
    """
    where = str(path)
    plan = read_document(path, "a plan", largest=MAX_BYTES)
    if not isinstance(plan.get("weights"), dict):
        raise InputError(
            'a plan is {"group": NAME, "weights": {PATTERN: "column" | "row" | "replicated" | "vocabulary" | "vocabulary-sharded"'
            ' | "expert" | LAYOUT}}',
            where,
        )
    for pattern, word in plan["weights"].items():
        if not isinstance(word, str):
            raise InputError(f"the layout of `{pattern}` is no text", where)
    group = plan.get("group", "tp")
    if not isinstance(group, str):
        raise InputError("the plan's group is no name", where)
    return {"group": group, "weights": plan["weights"], "where": where}


def unused_patterns(plan: dict[str, Any], names: Sequence[str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The patterns that fit none of the weights' names, each with the ends of names that look like it."""
    found = []
    for pattern in plan["weights"]:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            tail = pattern.lstrip("*.")
            ends = dict.fromkeys(".".join(name.split(".")[-(tail.count(".") + 1) :]) for name in names)
            found.append((pattern, tuple(difflib.get_close_matches(tail, ends, 1, 0.7))))
    return tuple(found)


def planned_layout(
    plan: dict[str, Any], name: str, meta: TensorMeta, mesh: Mesh, known: dict[str, Size]
) -> Layout | None:
    """The layout that a plan gives a weight, None where no pattern fits. The last pattern that fits wins."""
    chosen: str | None = None
    for pattern, word in plan["weights"].items():
        if fnmatch.fnmatchcase(name, pattern):
            chosen = word
    if chosen is None:
        return None
    where = f"{plan['where']}: {name}"
    text = chosen
    if chosen == "expert" and len(meta.shape) != 3:
        chosen = "replicated"
    if chosen == "replicated":
        text = "[" + ", ".join("*" for _ in meta.shape) + "]"
    elif chosen in _WORDS:
        axis = _WORDS[chosen] if len(meta.shape) > 1 else 0
        if len(meta.shape) == 1 and chosen == "row":
            text = "[*]"
        else:
            group = mesh.groups.get(plan["group"])
            if group is None:
                raise InputError(f"there is no group `{plan['group']}`", where)
            parts = ["*"] * len(meta.shape)
            whole = meta.shape[axis] * group.size
            if not isinstance(whole, int):
                raise InputError("a plan needs the sizes of groups as numbers", where)
            parts[axis] = f"{whole}/{group.size}@{plan['group']}"
            text = "[" + ", ".join(parts) + "]"
    return parse_layout(text, mesh, meta.dtype, meta.shape, where, known)
