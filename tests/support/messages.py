"""Small graphs with one fault each, and what the text report says of it, word for word.

A case is a function that builds a graph, under the block that the report prints. The graphs declare their layouts, so
that nothing is left to be inferred, and record the shapes that their ops give, so that nothing else is found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from textwrap import dedent

from support.builder import GraphBuilder, Val

Build = Callable[[], GraphBuilder]


@dataclass(frozen=True)
class Case:
    """A graph and the block that its report prints; code and node are read off the block's first line."""

    name: str
    build: Build
    text: str

    @property
    def code(self) -> str:
        return self.text.split()[0]

    @property
    def node(self) -> str:
        return self.text.splitlines()[0].split("  ")[1].split(",")[0]


CASES: list[Case] = []


def case(text: str) -> Callable[[Build], Build]:
    """Decorator: enter a builder with the text that is expected of its graph."""

    def enter(build: Build) -> Build:
        CASES.append(Case(build.__name__, build, dedent(text).strip()))
        return build

    return enter


def full(b: GraphBuilder, name: str = "x") -> Val:
    """All tokens on every rank."""
    return b.input(name, (16, 8), layout="[T, 8]")


def local(b: GraphBuilder, name: str = "x") -> Val:
    """This rank's share of the tokens."""
    return b.input(name, (4, 8), layout="[T/4@tp, 8]")


def pending(b: GraphBuilder, name: str = "x") -> Val:
    """A pending sum over tp."""
    return b.input(name, (16, 8), layout="[T, 8] +tp")


def sharded(b: GraphBuilder, name: str = "x") -> Val:
    """All tokens, a shard of the features."""
    return b.input(name, (16, 2), layout="[T, 8/4@tp]")
