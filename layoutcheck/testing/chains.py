"""Chains of ops on rows: bodies that are closed under shape, so that they can be repeated any number of times."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from layoutcheck.graph import Graph
from layoutcheck.models.builder import Builder, Value

FULL, LOCAL, PARTIAL = "full", "local", "partial"

Step = Callable[[Builder, Value], Value]


def _columns(b: Builder, x: Value) -> Value:
    """A column-parallel and a row-parallel linear: Partial."""
    return b.linear(b.silu(b.linear(x, 8)), x.shape[1])


def _heads(b: Builder, x: Value) -> Value:
    """The channels cut in two and joined again, in another order."""
    rows, width = x.shape
    cut = b.view(x, rows, 2, width // 2)
    turned = b.call("aten.permute.default", cut, (0, 2, 1), shape=(rows, width // 2, 2))
    return b.call("aten.reshape.default", turned, (rows, width), shape=(rows, width))


def _turned(b: Builder, x: Value) -> Value:
    """Transposed, made smaller, transposed back."""
    rows, width = x.shape
    there = b.call("aten.permute.default", x, (1, 0), shape=(width, rows))
    halved = b.call("aten.mul.Tensor", there, 0.5, shape=(width, rows))
    return b.call("aten.permute.default", halved, (1, 0), shape=(rows, width))


STEPS: dict[str, tuple[str, str, Step]] = {
    "norm": ("fl", "=", lambda b, x: b.norm(x)),
    "silu": ("fl", "=", lambda b, x: b.silu(x)),
    "square": ("fl", "=", lambda b, x: b.multiply(x, x)),
    "linear": ("fl", "=", lambda b, x: b.linear(x, x.shape[1])),
    "heads": ("flp", "=", _heads),
    "turned": ("flp", "=", _turned),
    "columns": ("f", "p", _columns),
    "all_reduce": ("p", "f", lambda b, x: b.all_reduce(x)),
    "reduce_scatter": ("p", "l", lambda b, x: b.reduce_scatter(x)),
    "all_gather": ("l", "f", lambda b, x: b.all_gather(x)),
    "share": ("f", "l", lambda b, x: b.share(x)),
}
"""Per step: the states that it takes (full, local, partial), the state that it gives, and what it does."""

WAY_BACK = {
    ("f", "f"): (),
    ("l", "l"): (),
    ("l", "f"): ("all_gather",),
    ("f", "l"): ("share",),
    ("p", "f"): ("all_reduce",),
    ("p", "l"): ("reduce_scatter",),
}
"""How to come from one state to another at the end of a body."""


@attrs.frozen
class Chain:
    """A body of steps that starts and ends in one state, with residual additions.

    Attributes:
        steps: names of `STEPS`, each legal in the state that the one before gives.
        local: whether the body starts from Local rows.
        residual: whether the body's input is added to its result.
        repeats: how often it runs.
        streams: how many carried values there are; each of them goes through the steps, turned round by one each repeat.
        drop: the step to leave out, to make a program that is wrong; None for none.
    """

    steps: tuple[str, ...]
    local: bool = False
    residual: bool = True
    repeats: int = 2
    streams: int = 1
    drop: int | None = None
    width: int = 32
    tokens: int = 16
    ranks: int = 4

    def build(self, form: str = "expanded") -> Graph:
        """The graph; `form` is `expanded` or `repeated`."""
        b = Builder(self.ranks, self.tokens, expanded=form == "expanded")
        x = b.input("hidden_states", (self.tokens, self.width), layout=f"[T, {self.width}]")
        x = b.share(x) if self.local else x
        values = [x]
        while len(values) < self.streams:
            values.append(b.silu(values[-1]))
        return b.graph(*b.repeat(self._body, tuple(values), self.repeats))

    def _body(self, b: Builder, values: tuple[Value, ...]) -> tuple[Value, ...]:
        y = values[0]
        b.module = f"blocks.{b.layer}"
        b.layer += 1
        for number, step in enumerate(self.steps):
            if number != self.drop:
                y = STEPS[step][2](b, y)
        if self.residual:
            y = b.add(values[0], y)
        return (*values[1:-1], b.add(values[-1], y), y) if len(values) > 1 else (y,)
