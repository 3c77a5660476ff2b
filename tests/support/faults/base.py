"""What a fault is: one program written twice, broken and repaired, with the node that must be reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ..builder import Dim, GraphBuilder, Json, Val


@dataclass(frozen=True)
class Size:
    """The extents of one instance. `T` need not be a multiple of `p`; then tokens are padded."""

    label: str = "base"
    T: int = 16
    H: int = 64
    F: int = 128
    p: int = 4
    rank: int = 0
    vocab: int = 256
    head_dim: int = 8
    symbol: str = ""

    @property
    def tokens(self) -> Dim:
        """The token extent: T, or the symbol that stands for a multiple of p."""
        return self.symbol or self.T

    @property
    def pad(self) -> int:
        """Rows that make T a multiple of p."""
        return 0 if self.symbol else -self.T % self.p

    @property
    def share(self) -> int:
        """Rows of one rank."""
        return (self.T + self.pad) // self.p

    @property
    def heads(self) -> int:
        """Heads of one rank under head sharding."""
        return 2

    @property
    def local(self) -> str:
        """Declared layout text of Local hidden states."""
        assert not self.pad, "a declared share is an even share"
        return f"[T/{self.p}@tp, {self.H}]"

    @property
    def full(self) -> str:
        """Declared layout text of Full hidden states."""
        return f"[T, {self.H}]"

    def up(self) -> str:
        """Declared layout text of a column-parallel weight."""
        return f"[{self.F}/{self.p}@tp, {self.H}]"

    def down(self) -> str:
        """Declared layout text of a row-parallel weight."""
        return f"[{self.H}, {self.F}/{self.p}@tp]"

    def columns(self, declare: bool) -> tuple[str, str] | None:
        """Declared layout texts of a sharded MLP's weights, where they are to be declared."""
        return (self.up(), self.down()) if declare else None

    def head_shards(self, declare: bool) -> tuple[str, str] | None:
        """Declared layout texts of head-sharded attention's weights."""
        wide = f"{self.heads * self.p * self.head_dim}/{self.p}@tp"
        return (f"[{wide}, {self.H}]", f"[{self.H}, {wide}]") if declare else None

    @property
    def inner(self) -> int:
        """Local inner features of a sharded MLP."""
        return self.F // self.p


SIZES = (
    Size(),
    Size("square", T=64, H=64, F=64, p=4),
    Size("uneven", T=13, H=64, p=4),
    Size("rank1", T=32, H=64, p=8, rank=1),
    Size("pair", T=8, H=32, p=2, rank=1),
)

EVEN = tuple(size for size in SIZES if not size.pad)

Program = Callable[[GraphBuilder, Size, bool], Val]


@dataclass(frozen=True)
class Fault:
    """One row of the fault list, or a further form of it.

    `codes`: any of these is the right report; `note`: how a row that is no plain graph was mapped to one;
    `severity`: of the report; `sizes`: the instances on which the row makes sense.
    """

    key: str
    codes: frozenset[str]
    program: Program
    note: str = ""
    severity: str = "error"
    sizes: tuple[Size, ...] = SIZES
    groups: dict[str, list[int]] = field(default_factory=dict)

    def _build(self, dialect: str, size: Size, broken: bool) -> tuple[Json, str]:
        ranks = self.groups or None
        groups = {g: len(r) for g, r in self.groups.items()} or {"tp": size.p}
        b = GraphBuilder(groups, rank=size.rank, T=size.tokens, dialect=dialect, ranks=ranks)
        marked = self.program(b, size, broken)
        return b.graph(f"fault-{self.key}-{'broken' if broken else 'repaired'}-{size.label}"), marked.made_by

    def faulty(self, dialect: str, size: Size = SIZES[0]) -> tuple[Json, frozenset[str], str]:
        """The broken graph, the codes that may be reported, and the node they must stand at."""
        graph, node = self._build(dialect, size, True)
        return graph, self.codes, node

    def repaired(self, dialect: str, size: Size = SIZES[0]) -> Json:
        """The repaired twin."""
        return self._build(dialect, size, False)[0]


FAULTS: list[Fault] = []


def fault(
    key: str,
    *codes: str,
    note: str = "",
    severity: str = "error",
    sizes: tuple[Size, ...] = SIZES,
    groups: dict[str, list[int]] | None = None,
) -> Callable[[Program], Program]:
    """Register a program `(builder, size, broken) -> marked value` as a fault."""

    def register(program: Program) -> Program:
        FAULTS.append(Fault(key, frozenset(codes), program, note, severity, sizes, groups or {}))
        return program

    return register


# ---- fragments that programs share


def enter_full(b: GraphBuilder, s: Size, declare: bool = False) -> Val:
    """Full hidden states of the tokens: a vocabulary-parallel lookup and its all_reduce."""
    return b.all_reduce(b.vocab_embedding(b.tokens(), s.vocab, s.H, declare=declare))


def scatter(b: GraphBuilder, s: Size, x: Val) -> Val:
    """Partial over T rows -> Local (over the padded tokens where p does not divide T)."""
    return b.reduce_scatter(b.pad_rows(x, s.pad))


def enter(b: GraphBuilder, s: Size, declare: bool = False) -> Val:
    """Local hidden states: a vocabulary-parallel lookup and its reduce_scatter."""
    return scatter(b, s, b.vocab_embedding(b.tokens(), s.vocab, s.H, declare=declare))


def cut(b: GraphBuilder, s: Size, x: Val) -> Val:
    """Full -> Local: this rank's rows."""
    return b.rank_slice(b.pad_rows(x, s.pad))


def whole(b: GraphBuilder, s: Size, x: Val) -> Val:
    """Local -> Full over exactly T rows."""
    rows = b.all_gather(x)
    return b.slice(rows, 0, s.T) if s.pad else rows


def attention_layer(b: GraphBuilder, s: Size, x: Val, declare: bool = False) -> Val:
    """A sequence-parallel attention block with its residual: Local -> Local."""
    mixed = b.attention(whole(b, s, b.norm(x)), s.heads, s.head_dim, declared=s.head_shards(declare))
    return b.add(x, scatter(b, s, mixed))


def finish(b: GraphBuilder, s: Size, x: Val, local: bool, declare: bool = False) -> Val:
    """The last norm on Full rows, and the output."""
    last = b.norm(whole(b, s, x) if local else x)
    return b.output([last], layouts=[s.full] if declare else None)
