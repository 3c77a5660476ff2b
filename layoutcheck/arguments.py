"""Arguments of interned calls: what stands where a call reads an input, or where no rule looks."""

from __future__ import annotations

import attrs


@attrs.frozen
class Hole:
    """The place of a call's input in its arguments; `slot` counts the call's inputs."""

    slot: int


@attrs.frozen
class Opaque:
    """An argument that no rule looks into (a device, a memory format), by its text."""

    text: str
