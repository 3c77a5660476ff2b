"""What a comparison of two graphs says."""

from __future__ import annotations

import attrs

from layoutcheck.symbols import Size


@attrs.frozen
class Shown:
    """One side of a divergence: the node (None: nothing there), where it is, its call and its layout as text."""

    node: str | None
    place: str = ""
    call: str = ""
    layout: str = ""

    def __str__(self) -> str:
        if self.node is None:
            return "nothing"
        text = f"{self.node} = {self.call}" if self.call else self.node
        if self.layout:
            text += f"  {self.layout}"
        return f"{text}  ({self.place})" if self.place else text


@attrs.frozen
class Divergence:
    """The first place where two programs differ.

    `kind` is `op` (a call that the other side has not), `layout`, `shape`, `input` (an input that is shared on one side only),
    `output`, `groups` or `traffic`. `a` and `b` are both sides, `reads` what both sides read there, `text` one sentence.
    """

    kind: str
    text: str
    a: Shown
    b: Shown
    reads: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [self.text, f"  A  {self.a}", f"  B  {self.b}"]
        lines += [f"  reads  {text}" for text in self.reads]
        return "\n".join(lines)


@attrs.frozen
class Traffic:
    """Collectives of one kind over one group: how many, and the bytes that a rank sends in all of them."""

    count: int
    bytes: Size


@attrs.frozen
class Comparison:
    """The outcome: true where both are the same program.

    Attributes:
        divergence: the first divergence, None where there is none.
        matched: how many calls are the same on both sides, after expansion and up to fusion classes.
        calls: the number of calls on each side.
        traffic: per (collective, group) what each side has, None for a side that has none.
    """

    divergence: Divergence | None
    matched: int
    calls: tuple[int, int]
    traffic: dict[tuple[str, str], tuple[Traffic | None, Traffic | None]]

    def __bool__(self) -> bool:
        return self.divergence is None

    @property
    def equal(self) -> bool:
        """Whether both are the same program."""
        return self.divergence is None

    def __repr__(self) -> str:
        at = "equivalent" if self.divergence is None else f"first divergence {self.divergence.kind}"
        return f"<Comparison: {at}, {self.matched} of {self.calls[0]} and {self.calls[1]} calls the same>"

    def __str__(self) -> str:
        lines = []
        if self.divergence is None:
            lines.append(f"equivalent: {self.matched} calls with the same operands, layouts and shapes")
        else:
            lines.append(f"first divergence ({self.divergence.kind}): {self.divergence}")
            lines.append(
                f"{self.matched} of {self.calls[0]} calls of A and {self.calls[1]} of B are the same"
            )
        for (op, group), (a, b) in sorted(self.traffic.items()):
            sign = " " if a == b else "!"
            lines.append(f"{sign} {op} over {group}: A {_traffic(a)}, B {_traffic(b)}")
        return "\n".join(lines)


def _traffic(found: Traffic | None) -> str:
    return "none" if found is None else f"{found.count} ({found.bytes} bytes a rank)"
