"""Headers of rule stanzas: `aten.slice.Tensor(self, dim=0, start=None, end=None, step=1)`."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import attrs

from layoutcheck.rules.places import Mistake, Place, Segment
from layoutcheck.rules.types import Param

__all__ = ["Header", "parse_header"]

_TARGET = re.compile(r"[A-Za-z_]\w*(?:\.\w+)+")
_NAME = re.compile(r"[A-Za-z_]\w*\Z")
_NOT_SIMPLE = re.compile(r"[\[\](){}\"']")
_INT = re.compile(r"-?\d{1,18}\Z")
_PLAIN = {"None": None, "True": True, "False": False}
_OPEN = {"(": ")", "[": "]", "{": "}"}


@attrs.frozen
class Header:
    """A header's target and parameters, and where it stands."""

    target: str
    params: tuple[Param, ...]
    place: Place


def parse_header(segments: Sequence[Segment]) -> Header:
    """A header from its line (or lines, where it goes on after a comma)."""
    line, column, text = segments[0]
    match = _TARGET.match(text)
    if match is None:
        raise Mistake(
            "a header reads namespace.op(parameters) or namespace.op.overload(parameters)", (line, column)
        )
    target = match.group()
    at = match.end()
    if text[at : at + 1] != "(":
        raise Mistake(f"{target} needs its parameters in parentheses after it", (line, column + at))
    opening = (line, column + at)
    inner = [(line, column + at + 1, text[at + 1 :]), *segments[1:]]
    params: list[Param] = []
    names: set[str] = set()
    for piece, place in _simple_pieces(inner) or _pieces(inner, opening):
        if params and params[-1].rest:
            raise Mistake(f"*{params[-1].name} takes all further arguments, so nothing can follow it", place)
        if piece == "*":
            continue
        try:
            param = _param(piece)
        except ValueError as fault:
            raise Mistake(str(fault), place) from None
        if param.name in names:
            raise Mistake(f"the parameter {param.name} stands twice", place)
        names.add(param.name)
        params.append(param)
    return Header(target, tuple(params), (line, column))


# Parameters recur in hundreds of headers (`self`, `dtype=None`), so each text is read once.
@lru_cache(maxsize=4096)
def _param(piece: str) -> Param:
    name, equals, default = piece.partition("=")
    name = name.strip()
    if name.startswith("*") and _NAME.match(name[1:]) and not equals:
        return Param(name[1:], (), required=False, rest=True)
    if not _NAME.match(name):
        raise ValueError(f"{piece!r} is no parameter: write name or name=default")
    if equals:
        return Param(name, _literal(default.strip()), required=False)
    return Param(name)


def _simple_pieces(segments: Sequence[Segment]) -> list[tuple[str, Place]]:
    """The comma-separated texts of a header without quotes, brackets or faults; else nothing."""
    if len(segments) > 1:
        return []
    line, column, text = segments[0]
    if not text.endswith(")") or _NOT_SIMPLE.search(text, 0, len(text) - 1):
        return []
    pieces: list[tuple[str, Place]] = []
    for raw in text[:-1].split(","):
        piece = raw.strip()
        if not piece:
            return []
        pieces.append((piece, (line, column + len(raw) - len(raw.lstrip()))))
        column += len(raw) + 1
    return pieces


def _pieces(segments: Sequence[Segment], opening: Place) -> list[tuple[str, Place]]:
    """The comma-separated texts up to the closing parenthesis."""
    pieces: list[tuple[str, Place]] = []
    depth: list[str] = []
    current: list[str] = []
    start: Place | None = None
    quote = ""
    for number, (line, column, text) in enumerate(segments):
        for offset, char in enumerate(text):
            place = (line, column + offset)
            if quote:
                quote = "" if char == quote else quote
            elif char in "\"'":
                quote = char
            elif char in _OPEN:
                depth.append(_OPEN[char])
            elif depth and char == depth[-1]:
                depth.pop()
            elif char == ")" and not depth:
                last = number == len(segments) - 1
                rest = text[offset + 1 :].strip()
                if rest or not last:
                    raise Mistake(
                        f"after the closing parenthesis of a header stands {rest or 'a further line'!r}",
                        place,
                    )
                if "".join(current).strip():
                    pieces.append(("".join(current).strip(), start or place))
                return pieces
            elif char == "," and not depth:
                piece = "".join(current).strip()
                if not piece:
                    raise Mistake("here is a comma without a parameter before it", place)
                pieces.append((piece, start or place))
                current, start = [], None
                continue
            if start is None and not char.isspace():
                start = place
            current.append(char)
    raise Mistake("the parenthesis opened here is never closed", opening)


def _literal(text: str) -> Any:
    if text in _PLAIN:
        return _PLAIN[text]
    if _INT.match(text):
        return int(text)
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        raise ValueError(f"the default {text!r} is no Python literal") from None
