"""Calls of ops as tests write them: tensors as axes of labels, the states that their operands can be in, and random values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from layoutcheck.domains import Factor, factor, feature, padded, token
from layoutcheck.layouts import Layout, layout

TOKENS = ("t", "s", "q")


@dataclass(frozen=True)
class X:
    """A tensor operand: its axes as labels, and what its values are.

    kind: `f` eighths (exact under sums and products), `p` positive ones, `i` small integers, `b` truth
    values, `c` int8 codes, `z` complex numbers, `01` numbers between 0 and 1, `@n` positions below the
    extent of label n (or a number), `rows` distinct random floats, `u` permutations (distinct positions
    below the axis' size).
    """

    axes: str
    kind: str = "f"
    extents: dict[str, int] = field(default_factory=dict, hash=False)
    states: str = "all"

    def labels(self) -> list[list[str]]:
        """Labels per axis."""
        out: list[list[str]] = []
        inside = False
        for word in self.axes.replace("(", "( ").replace(")", " )").split():
            if word == "(":
                out.append([])
                inside = True
            elif word == ")":
                inside = False
            elif inside:
                out[-1].append(word)
            else:
                out.append([] if word == "1" else [word])
        return out


@dataclass(frozen=True)
class Sz:
    """A list of sizes: labels as operand `of` has them on a rank, numbers as they are."""

    parts: tuple[str | int, ...]
    of: str = "self"


@dataclass(frozen=True)
class At:
    """A literal that depends on the rank: `of(env)` with env.rank, .p, .T, .c (the share's rows)."""

    of: Callable[[Env], Any]


@dataclass(frozen=True)
class Env:
    """What a literal may depend on. On one device rank is None."""

    rank: int | None
    p: int
    T: int
    cut: frozenset[str] = frozenset()
    """Labels of token domains that some operand holds in shares."""

    @property
    def c(self) -> int:
        """Rows of an even share of the padded tokens."""
        return -(-self.T // self.p)


@dataclass(frozen=True)
class Sample:
    """A call. `expected` computes what should come out on one device, where that is not the op on the whole
    operands.
    """

    target: str
    args: dict[str, Any]
    expected: Callable[[dict[str, Any], Env], Any] | None = None
    only: Callable[[int, int], bool] | None = None
    note: str = ""
    codes: int = 0
    """Outputs 0 .. codes - 1 are codes, scale (and offset): compared as the number that they stand for, up to
    the step of the coarser scale, since a share's scale is finer than the whole's.
    """
    conversion: bool = False
    """The value stays, its layout changes: elements are compared by their indices in the operand's domains."""
    shape_of: str = ""
    """An operand that only gives its shape: it must be cut as the first operand is."""
    packed: bool = False
    """Feature shards keep their order only up to how each rank packs its own part (q, k and v in one weight):
    no claim on those.
    """
    shape_only: bool = False
    """Values are random or undefined: only what a rank's shape is gets judged."""
    written: str = ""
    """An operand that the call writes into, which is judged in the place of what the call gives."""
    fragile: bool = False
    """The kernel crashes on shapes that do not fit: run only what is not refused."""

    def operands(self) -> list[tuple[str, int | None, X]]:
        """Tensor operands: parameter, place in a list, and the tensor."""
        out: list[tuple[str, int | None, X]] = []
        for name, value in self.args.items():
            if isinstance(value, X):
                out.append((name, None, value))
            else:
                out.extend((name, i, x) for i, x in enumerate(inside(value)))
        return out


def inside(value: Any) -> list[X]:
    """The tensors in a list, and in the lists in it, in order."""
    if isinstance(value, X):
        return [value]
    return [x for v in value for x in inside(v)] if isinstance(value, list) else []


EXTENTS = {"h": 12, "d": 4, "k": 24, "n": 12, "e": 12, "b": 12, "r": 2, "s": 12, "q": 12}


def extent(label: str, x: X, T: int) -> int:
    """The global extent of a label."""
    if label == "t":
        return T
    if label.isdigit():
        return int(label)
    return x.extents.get(label, EXTENTS.get(label, 12))


State = tuple[str, int]


FULL: State = ("full", -1)


def states(x: X, p: int) -> list[State]:
    """Full, Partial (for numbers), and a cut of each axis at its leading label; `states` of the operand narrow that to
    Full (`full`), to all but Partial (`cut`), or to a cut of the first axis (`rows`).
    """
    out: list[State] = [FULL]
    if p == 1 or x.states == "full":
        return out
    if x.kind in ("f", "p", "i", "rows", "c", "z") and x.states != "cut":
        out.append(("partial", -1))
    for i, labels in enumerate(x.labels()[:1] if x.states == "rows" else x.labels()):
        if labels and (labels[0] in TOKENS or extent(labels[0], x, 0) % p == 0):
            out.append(("cut", i))
    return out


def layout_for(x: X, state: State, p: int, T: int, dtype: str) -> Layout:
    """The layout of an operand in a state over mesh axis 0."""
    axes: list[tuple[Factor, ...]] = []
    bound: dict[int, tuple[Factor, ...]] = {}
    for i, labels in enumerate(x.labels()):
        axis: list[Factor] = []
        for j, label in enumerate(labels):
            n = extent(label, x, T)
            domain = token(label.upper(), n) if label in TOKENS else feature(n)
            if state == ("cut", i) and j == 0:
                c = -(-n // p)
                domain = padded(domain, c * p) if label in TOKENS else domain
                bound[0] = (factor(domain, c, p),)
                axis.append(factor(domain, 1, c))
            elif n != 1 or label in TOKENS:
                axis.append(domain.whole)
        axes.append(tuple(axis))
    return layout(dtype, tuple(axes), bound, (0,) if state[0] == "partial" else ())


DTYPES = {"b": "bool", "i": "int64", "u": "int64", "c": "int8", "z": "complex64"}


def dtype_of(x: X) -> str:
    """The dtype that the layout gets."""
    return "int64" if x.kind.startswith("@") else DTYPES.get(x.kind, "float32")


def draw(x: X, shape: Sequence[int], T: int, generator: torch.Generator) -> Tensor:
    """Random values: no constant and no symmetric ones."""
    if x.kind == "b":
        return torch.randint(0, 2, shape, generator=generator).bool()
    if x.kind == "i":
        return torch.randint(-9, 10, shape, generator=generator)
    if x.kind == "c":
        return torch.randint(-7, 8, shape, generator=generator).to(torch.int8)
    if x.kind == "u":
        return torch.stack(
            [torch.randperm(shape[-1], generator=generator) for _ in range(max(1, _rows(shape)))]
        ).reshape(tuple(shape))
    if x.kind.startswith("@"):
        high = extent(x.kind[1:], x, T)
        return torch.randint(0, max(high, 1), shape, generator=generator)
    if x.kind == "01":
        return (2 * torch.randint(0, 8, shape, generator=generator) + 1).to(torch.float64) / 16
    if x.kind == "z":
        parts = torch.randint(1, 40, (2, *shape), generator=generator).to(torch.float64) / 8
        return torch.complex(parts[0], parts[1])
    if x.kind == "rows":
        return torch.randn(shape, generator=generator, dtype=torch.float64)
    low = 0 if x.kind == "p" else -20
    # odd eighths: never 0, so that quotients are finite
    return (2 * torch.randint(low, 20, shape, generator=generator) + 1).to(torch.float64) / 8


def _rows(shape: Sequence[int]) -> int:
    total = 1
    for n in shape[:-1]:
        total *= n
    return total


def word(x: X, state: State) -> str:
    if state[0] != "cut":
        return state[0].capitalize()
    label = x.labels()[state[1]][0]
    return f"{'Local' if label in TOKENS else 'Sharded'}({label})"
