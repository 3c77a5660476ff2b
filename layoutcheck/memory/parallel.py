"""How ranks share the parameters: the group sizes, and the share of one rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from layoutcheck.documents import read_document
from layoutcheck.errors import InputError
from layoutcheck.resources import rules_dir


@dataclass(frozen=True)
class Parallel:
    """Group sizes: tensor parallel, data parallel, expert parallel, tensor parallel within an expert.

    The world has ``tp * dp`` ranks. ``etp`` is by default 1 where experts are distributed, and the whole
    world where they are not (then each expert is cut among all ranks).
    """

    tp: int = 1
    dp: int = 1
    ep: int = 1
    etp: int = 0

    def __post_init__(self) -> None:
        for name in ("tp", "dp", "ep"):
            size = getattr(self, name)
            if not isinstance(size, int) or not 1 <= size <= 1 << 24:
                raise InputError(f"{name} is {size!r}; a group has at least one rank")
        if self.etp < 0:
            raise InputError(f"etp is {self.etp}")
        if not self.etp:
            object.__setattr__(self, "etp", 1 if self.ep > 1 else self.world)
        if self.world % (self.ep * self.etp):
            raise InputError(
                f"ep {self.ep} * etp {self.etp} does not divide the {self.world} ranks "
                f"of tp {self.tp} * dp {self.dp}"
            )

    @property
    def world(self) -> int:
        """The number of ranks."""
        return self.tp * self.dp

    def __str__(self) -> str:
        parts = [f"tp{self.tp}"]
        if self.dp > 1:
            parts.append(f"dp{self.dp}")
        if self.ep > 1:
            parts.append(f"ep{self.ep}")
        if self.etp > 1:
            parts.append(f"etp{self.etp}")
        return " ".join(parts)

    def symbols(self, rank: int, experts: int = 0) -> dict[str, int]:
        """Return the symbols of one rank; ``experts_here`` is its number of routed experts.

        Where experts do not divide evenly, the first ranks hold one more.
        """
        if not 0 <= rank < self.world:
            raise InputError(f"rank {rank} of {self.world}")
        position = rank // self.etp % self.ep
        here = experts // self.ep + (position < experts % self.ep)
        return {"tp": self.tp, "dp": self.dp, "ep": self.ep, "etp": self.etp, "experts_here": here}


@dataclass(frozen=True)
class Share:
    """A rank's share of a weight: local rows and columns as formulas, and which group divides it."""

    out: str
    inp: str | None
    group: str
    divisor: str


@lru_cache(maxsize=1)
def _placement() -> Mapping[str, Any]:
    return read_document(rules_dir() / "models" / "_placement.json", "the placement of modules")


def split_of(module: str) -> str:
    """Return how a module's weight is shared: column, row, kv, vocab or whole."""
    for split in ("column", "row", "kv", "vocab"):
        if module in _placement()[split]:
            return split
    return "whole"


def is_listed(module: str) -> bool:
    """Whether the rule file says anything about a module, be it that it is whole."""
    return any(module in _placement()[split] for split in ("column", "row", "kv", "vocab", "whole"))


def is_uncut(param: str) -> bool:
    """Whether a parameter describes the whole weight and is never cut."""
    return param in _placement()["uncut"]


def stored_transposed(param: str) -> bool:
    """Whether a parameter is stored with inputs as rows and outputs as columns."""
    return param in _placement()["transposed"]


def is_input_vector(param: str) -> bool:
    """Whether a vector runs over the inputs of its linear."""
    return param in _placement()["input_vectors"]


def share(out: str, inp: str | None, split: str, group: str, kv_repeats: bool = False) -> Share:
    """Return a rank's share of rows and columns.

    Args:
        out, inp: rows and columns as formulas; a vector has ``inp`` None.
        split: column, row, kv, vocab or whole.
        group: the symbol of the group that divides (``tp`` or ``etp``).
        kv_repeats: there are fewer key-value heads than ranks, so a rank holds one whole head.
    """
    if split == "whole" or (split == "row" and inp is None):
        return Share(out, inp, "replicated", "1")
    if split == "kv" and kv_repeats:
        return Share("head_dim", inp, group, "num_key_value_heads")
    if split == "vocab":
        return Share(f"pad({out}, vocab_multiple)/{group}", inp, group, group)
    if split == "row":
        assert inp is not None
        return Share(out, f"{inp}/{group}", group, group)
    return Share(f"{out}/{group}", inp, group, group)
