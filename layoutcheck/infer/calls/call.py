"""One call as a rule sees it, and what a rule answers.

Answers hold no node names, only operand slots, so that an answer serves every call of the same op on the same layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs

from layoutcheck.arguments import Hole
from layoutcheck.layouts import Layout, render
from layoutcheck.mesh import Group, Mesh
from layoutcheck.rules.types import Rule
from layoutcheck.symbols import Bounds, Size

# Marks a call whose bounds are the same on every rank, so that it is no rank's share.
CONSTANT = "<the same on every rank>"
# Names the group to try first where a slice is a share over several groups of one size.
PREFERRED = "<the group whose share it is>"
# Marks a slice that is one of several pieces of its operand: of a feature axis it is no rank's share.
PIECE = "<one of several pieces>"
# Marks a gather in front whose pieces are put side by side along another axis: that axis is what it gathers.
STACKED = "<put side by side along another axis>"
INTEGERS = frozenset(("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"))
# Of what is as wide as these, and complex64 of everything else.
_COMPLEX = {"float16": "complex32", "float64": "complex128"}
# Marks a greatest or least value of which the ranks' own are reduced or gathered next, so that a share of the axis will do.
MERGED = "<the ranks' results are merged>"
# The value of rows looked up in one rank's part of a table, before those of other ranks' ids are set to zero
UNMASKED = ("unmasked",)
# Names the one output of a split that is read.
ONLY = "<the piece that is read>"


@attrs.frozen(eq=False)
class Issue:
    """Something wrong at a call.

    `text` is a sentence; `{0}`, `{1}` in it are replaced by the layouts of `operands` (slots). `repairs` are
    layouts that an operand could have instead, with what brings them about.
    """

    code: str
    text: str
    operands: tuple[int, ...] = ()
    hints: tuple[str, ...] = ()


@attrs.frozen(eq=False)
class Want:
    """Evidence that an assumption about an input is wrong: what would have to hold for the call to be right.

    kind: `cut` (the axis of an operand is a shard: a digit over `mesh_axes` sits `inner` elements from its right end),
    `partial` (an operand is a pending sum over `mesh_axes`), `same` (two domains are one), `rank` (the
    exporting rank has this number in a group), `expert` (an operand is one rank's expert weight).
    """

    kind: str
    slot: int
    issue: Issue | None
    axis: int = 0
    inner: Size = 1
    mesh_axes: tuple[int, ...] = ()
    data: Any = None


@attrs.define
class Result:
    """A rule's answer: the outputs' layouts, operands changed in place, issues and wants."""

    outs: tuple[Any, ...]
    issues: tuple[Issue, ...] = ()
    wants: tuple[Want, ...] = ()
    mutated: dict[int, Layout] = attrs.field(factory=dict)
    quiet: bool = True

    def __attrs_post_init__(self) -> None:
        self.quiet = not (self.issues or self.wants or self.mutated)


@attrs.define
class Context:
    """What all rules may know: the mesh, known bounds of symbols, the default group."""

    mesh: Mesh
    bounds: Bounds | None
    group_of: Callable[..., Group | None] | None = None

    def group(self, axes: tuple[int, ...]) -> str:
        """The printed name of the group over these mesh axes."""
        return self.mesh.group_name(axes)

    def show(self, of: Layout) -> str:
        """A layout as text."""
        return render(of, self.mesh.names())

    def ways(self, axes: tuple[int, ...]) -> Size:
        """Number of ranks over these mesh axes."""
        total: Size = 1
        for a in axes:
            total = total * self.mesh.size(a)
        return total


class Call:
    """An op instance applied to layouts. `slots` are the inputs' layouts (or sizes), in argument order."""

    __slots__ = ("ctx", "issues", "params", "rule", "slots", "wants")

    def __init__(self, ctx: Context, rule: Rule, params: dict[str, Any], slots: tuple[Any, ...]) -> None:
        self.ctx = ctx
        self.rule = rule
        self.params = params
        self.slots = slots
        self.issues: list[Issue] = []
        self.wants: list[Want] = []

    def name(self, meaning: str) -> str:
        """The op's own parameter name for a transform's parameter (options may rename it)."""
        return self.rule.options.get(meaning, meaning)

    def has(self, meaning: str) -> bool:
        """Whether the op has this parameter."""
        return self.name(meaning) in self.params or meaning in self.rule.options

    def raw(self, meaning: str) -> Any:
        """The bound argument with holes in it; None if the op has no such parameter."""
        return self.params.get(self.name(meaning))

    def get(self, meaning: str, default: Any = None) -> Any:
        """The argument with layouts and sizes in the place of holes."""
        value = self.raw(meaning)
        if value is None:
            option = self.rule.options.get(meaning)
            if option is not None and option not in self.params:
                return _literal(option)
            return default
        return self.fill(value)

    def fill(self, value: Any) -> Any:
        """Replace holes in an argument."""
        if isinstance(value, Hole):
            return self.slots[value.slot]
        if isinstance(value, (list, tuple)):
            return [self.fill(v) for v in value]
        return value

    def slot(self, meaning: str) -> int:
        """The slot of a tensor argument; -1 where it is no input."""
        value = self.raw(meaning)
        return value.slot if isinstance(value, Hole) else -1

    def tensor(self, meaning: str) -> Layout | None:
        """The layout of a tensor argument, None where it is absent or a number."""
        value = self.get(meaning)
        return value if isinstance(value, Layout) else None

    def tensors(self) -> Iterator[tuple[str, int, Layout]]:
        """All tensor arguments: parameter, slot, layout; lists are walked."""
        for param, value in self.params.items():
            for slot in slots_in(value):
                found = self.slots[slot]
                if isinstance(found, Layout):
                    yield param, slot, found

    def issue(self, code: str, text: str, *operands: int, hints: tuple[str, ...] = ()) -> Issue:
        """Record an issue."""
        found = Issue(code, text, tuple(o for o in operands if o >= 0), hints)
        self.issues.append(found)
        return found

    def want(self, kind: str, slot: int, issue: Issue | None = None, **more: Any) -> None:
        """Record a want; its issue is raised only if it can't be had."""
        self.wants.append(Want(kind, slot, issue, **more))

    def result(self, *outs: Any, mutated: dict[int, Layout] | None = None) -> Result:
        """The answer with these outputs and all that was recorded."""
        return Result(outs, tuple(self.issues), tuple(self.wants), mutated or {})

    def dtype(self, fallback: str, output: int = 0) -> str:
        """The dtype of an output: what the rule's `outdtype` word says, else the fallback, widened as the rule says."""
        words = self.rule.outdtypes
        word = words[output] if output < len(words) else None
        if word is not None and word not in self.params:
            return _COMPLEX.get(fallback, word) if word == "complex64" else word
        if word is not None:
            value = self.fill(self.params[word])
            if isinstance(value, Layout):
                return value.dtype
            name = getattr(value, "name", None)
            if name is not None:
                return str(name)
        widens = self.rule.widens
        if widens is not None and (fallback == "bool" or (widens[0] == "integers" and fallback in INTEGERS)):
            return widens[1]
        return fallback


def slots_in(value: Any) -> Iterator[int]:
    """Slots of all holes in an argument."""
    if isinstance(value, Hole):
        yield value.slot
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from slots_in(item)


def _literal(text: str) -> Any:
    if text.lstrip("-").isdigit():
        return int(text)
    return {"true": True, "false": False, "none": None}.get(text.lower(), text)


def dim_of(call: Call, meaning: str, rank: int, default: int | None = None) -> int:
    """A dimension argument, counted from the front. Out of range gives -1."""
    value = call.get(meaning)
    if value is None:
        value = default
    if not isinstance(value, int) or isinstance(value, bool):
        return -1
    at = value + rank if value < 0 else value
    if 0 <= at < rank:
        return at
    if rank and not any(i.code == "LC903" for i in call.issues):
        slot = next((slot for _, slot, _ in call.tensors()), -1)
        call.issue("LC903", f"there is no axis {value} of {{0}}: {meaning} is out of range", slot)
    return -1
