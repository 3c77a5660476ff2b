"""Places in a rule file, and the mistake that the parser's parts raise at one."""

from __future__ import annotations

from typing import TypeAlias

__all__ = ["Mistake", "Place", "Segment", "Token"]

Place: TypeAlias = tuple[int, int]
"""Line and column, both from 1."""

Token: TypeAlias = tuple[str, int, int]
"""Text, line, column."""

Segment: TypeAlias = tuple[int, int, str]
"""Line, column and text of one physical line; several make a line that goes on."""


class Mistake(Exception):
    """A mistake at a place; `parse` adds the file and raises InputError."""

    def __init__(self, message: str, place: Place) -> None:
        super().__init__(message)
        self.message = message
        self.place = place
