"""Places in a JSON file: where a mistake is, as `mine.json:7: boundaries[2].require`."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping

import attrs

from layoutcheck.errors import InputError

Steps = tuple[str | int, ...]

_DECODER = json.JSONDecoder()
_SPACE = " \t\r\n"


@attrs.frozen
class Place:
    """A value in a document, by the keys and indices that lead to it. `lines` are those of values and keys, where a text is known."""

    file: str
    steps: Steps = ()
    lines: Mapping[Steps, int] = attrs.field(factory=dict, repr=False)

    def __truediv__(self, step: str | int) -> Place:
        return attrs.evolve(self, steps=(*self.steps, step))

    def __str__(self) -> str:
        return self._text(self.lines.get(self.steps))

    def of_key(self, key: str) -> str:
        """The place, at the line of one of its keys where it has that key."""
        return self._text(self.lines.get((*self.steps, key), self.lines.get(self.steps)))

    def _text(self, line: int | None) -> str:
        path = ""
        for step in self.steps:
            path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
        return self.file + (f":{line}" if line is not None else "") + (f": {path}" if path else "")


def lines_of(text: str, file: str) -> dict[Steps, int]:
    """The line of each value of a JSON text (of a member: that of its key).

    Raises:
        InputError: an object has a key twice; only the last one would count.
    """
    starts = [0, *[i + 1 for i, c in enumerate(text) if c == "\n"]]
    found: dict[Steps, int] = {}

    def line(at: int) -> int:
        return bisect_right(starts, at)

    def skip(at: int) -> int:
        while text[at] in _SPACE:
            at += 1
        return at

    def walk(at: int, steps: Steps) -> int:
        at = skip(at)
        found.setdefault(steps, line(at))
        if text[at] not in "{[":
            return int(_DECODER.raw_decode(text, at)[1])
        closing, number = "}" if text[at] == "{" else "]", 0
        at = skip(at + 1)
        while text[at] != closing:
            step: str | int = number
            if closing == "}":
                step, end = _DECODER.raw_decode(text, at)
                inner = (*steps, step)
                if inner in found:
                    raise InputError(
                        f"the key {step!r} stands twice", str(Place(file, steps, {steps: line(at)}))
                    )
                found[inner] = line(at)
                at = skip(end) + 1
            at = skip(walk(at, (*steps, step)))
            number += 1
            at = skip(at + 1) if text[at] == "," else at
        return at + 1

    walk(0, ())
    return found
