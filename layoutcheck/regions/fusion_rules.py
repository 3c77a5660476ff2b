"""Fusion classes: what fused ops stand for, read from `rules/fusion/*.fusion`.

    ns.fused(x, r, w, eps) -> normed, sum
        sum = ns.add(x, r)
        normed = ns.norm(sum, w, eps)

    commutative ns.add(self, other)

A stanza names the fused op's parameters and outputs; each indented line is one part, whose arguments are parameters or results of
earlier parts. Of a commutative op the two named operands may stand in either order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import attrs

from layoutcheck.errors import InputError

_HEADER = re.compile(r"(?P<op>\w+(?:\.\w+)+)\((?P<params>[\w, ]*)\)\s*->\s*(?P<outs>\w+(?:\s*,\s*\w+)*)\Z")
_PART = re.compile(
    r"(?P<outs>\w+(?:\s*,\s*\w+)*)\s*=\s*(?P<op>\w+(?:\.\w+)+)\((?P<args>\w+(?:\s*,\s*\w+)*)\)\Z"
)
_SWAP = re.compile(r"commutative\s+(?P<op>\w+(?:\.\w+)+)\((?P<a>\w+)\s*,\s*(?P<b>\w+)\)\Z")


@attrs.frozen
class Part:
    """One op that a fused op stands for: its results' names, its target, its arguments' names."""

    results: tuple[str, ...]
    target: str
    args: tuple[str, ...]


@attrs.frozen
class FusionClass:
    """A fused op: parameters, outputs, and the parts in order. `source` is the file and line."""

    target: str
    params: tuple[str, ...]
    outputs: tuple[str, ...]
    parts: tuple[Part, ...]
    source: str = attrs.field(default="", eq=False)


@attrs.frozen
class FusionBook:
    """All fusion classes by full target, and per commutative op its two operands' names."""

    classes: dict[str, FusionClass]
    commutative: dict[str, tuple[str, str]]

    @classmethod
    def load(cls, dirs: Sequence[str | Path] = ()) -> FusionBook:
        """The shipped classes and those of `*.fusion` files in further folders, which win.

        Raises InputError for every mistake in a file.
        """
        found = _shipped()
        if not dirs:
            return found
        classes, commutative = dict(found.classes), dict(found.commutative)
        for folder in dirs:
            more = _load(Path(folder))
            classes.update(more.classes)
            commutative.update(more.commutative)
        return cls(classes, commutative)


@lru_cache(maxsize=1)
def _shipped() -> FusionBook:
    from layoutcheck.resources import rules_dir

    return _load(rules_dir() / "fusion")


def _load(folder: Path) -> FusionBook:
    classes: dict[str, FusionClass] = {}
    commutative: dict[str, tuple[str, str]] = {}
    for path in sorted(folder.glob("*.fusion")):
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"the fusion file cannot be read: {error}", str(path)) from None
        found = parse_fusion(text, str(path))
        for target in found.classes:
            if target in classes:
                raise InputError(f"{target} stands for something already", found.classes[target].source)
        classes.update(found.classes)
        commutative.update(found.commutative)
    return FusionBook(classes, commutative)


def full_target(op: str) -> str:
    """`namespace.op` with its overload, which is `default` where none is named."""
    return op if op.count(".") > 1 else f"{op}.default"


def parse_fusion(text: str, name: str = "<text>") -> FusionBook:
    """The classes of a text. Raises InputError with file and line where it is malformed."""
    classes: dict[str, FusionClass] = {}
    commutative: dict[str, tuple[str, str]] = {}
    current: FusionClass | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.split("#", 1)[0].rstrip()
        where = f"{name}:{number}"
        if not line.strip():
            continue
        if line[0].isspace():
            if current is None:
                raise InputError("a part without a fused op above it", where)
            current = _with_part(current, line.strip(), where)
            classes[current.target] = current
            continue
        if current is not None:
            _check(current)
            current = None
        swap = _SWAP.match(line)
        if swap is not None:
            commutative[full_target(swap["op"])] = (swap["a"], swap["b"])
            continue
        header = _HEADER.match(line)
        if header is None:
            raise InputError("expected `op(params) -> outputs` or `commutative op(a, b)`", where)
        target = full_target(header["op"])
        if target in classes:
            raise InputError(f"{target} stands for something already", where)
        current = FusionClass(target, _words(header["params"]), _words(header["outs"]), (), where)
    if current is not None:
        _check(current)
    return FusionBook(classes, commutative)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _with_part(fused: FusionClass, line: str, where: str) -> FusionClass:
    found = _PART.match(line)
    if found is None:
        raise InputError("expected `result = op(argument, ...)`", where)
    known = {*fused.params, *(r for part in fused.parts for r in part.results)}
    part = Part(_words(found["outs"]), full_target(found["op"]), _words(found["args"]))
    for arg in part.args:
        if arg not in known:
            raise InputError(f"{arg} is neither a parameter nor an earlier result", where)
    for result in part.results:
        if result in known:
            raise InputError(f"{result} stands for something already", where)
    return attrs.evolve(fused, parts=(*fused.parts, part))


def _check(fused: FusionClass) -> None:
    results = {r for part in fused.parts for r in part.results}
    for output in fused.outputs:
        if output not in results:
            raise InputError(f"no part gives the output {output}", fused.source)
