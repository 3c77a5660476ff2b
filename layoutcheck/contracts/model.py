"""What a contract is: which layout each boundary of a decoder holds, as data."""

from __future__ import annotations

import attrs

CHAIN = {"Full": 0, "Local": 1, "Partial": 2}
STATES = (*CHAIN, "Sharded")
CONVERSIONS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "slice")
KINDS = ("attention", "sparse", "dense", "moe")
CONDITIONS = ("sparse", "experts")
TRUSTS = ("shape-only",)
WEIGHTS = ("whole", "cut")

# Which operands of a role are boundaries. `layer` is no role: it stands for what a layer counts.
OPERANDS: dict[str, tuple[str, ...]] = {
    "embedding": ("output",),
    "norm.input": ("input", "output"),
    "norm.post_attention": ("input", "output"),
    "norm.final": ("input", "output"),
    "residual": ("stream", "branch", "output"),
    "attention.input": ("input", "output"),
    "attention.indexer": ("input", "output"),
    "attention.core": ("output",),
    "o_proj": ("input", "output"),
    "mlp.dense": ("input", "output"),
    "moe.gate": ("input", "output"),
    "moe.topk": ("input", "output"),
    "moe.routed": ("input", "output"),
    "moe.shared": ("input", "output"),
    "lm_head": ("input", "output"),
    "layer": ("all",),
}

# Of which kinds a role's block may be: what `where` can narrow it to.
PLACES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("embedding", "norm.final", "lm_head"), ()),
    **dict.fromkeys(
        ("norm.input", "attention.input", "attention.indexer", "attention.core", "o_proj"),
        ("attention", "sparse"),
    ),
    "norm.post_attention": ("dense", "moe"),
    "mlp.dense": ("dense",),
    **dict.fromkeys(("moe.gate", "moe.topk", "moe.routed", "moe.shared"), ("moe",)),
    **dict.fromkeys(("residual", "layer"), KINDS),
}


@attrs.frozen
class Boundary:
    """One boundary: an operand of a role, in blocks of a kind (`where`; None: in all).

    weights: of roles whether their weights are whole over the contract's group or cut, in the blocks that are meant.
    require: states of which the boundary holds one. at_most, at_least: how full it may and must be, on the chain
    Full, Local, Partial (at_most Local: not Full; at_least Local: not Partial).
    via: conversions that may lead here from where the value was computed; None allows all, an empty tuple none.
    carry: the state in which layers hand the value on. count: per conversion, how many a layer has here, as (least, most).
    trust: `shape-only` accepts the shape-only reading of mixed tokens here, as a warning.
    """

    role: str
    operand: str
    where: str | None = None
    require: tuple[str, ...] = ()
    at_most: str | None = None
    at_least: str | None = None
    via: tuple[str, ...] | None = None
    carry: str | None = None
    count: tuple[tuple[str, int, int], ...] = ()
    trust: str | None = None
    doc: str = ""
    weights: tuple[tuple[str, str], ...] = ()

    @property
    def title(self) -> str:
        """The boundary in words, such as `moe.gate input`."""
        if self.role == "layer":
            return f"a layer with {self.where} block" if self.where else "a layer"
        return f"{self.role} {self.operand}" + (f" ({self.where})" if self.where else "")

    @property
    def key(self) -> tuple[str, str, str | None, tuple[tuple[str, str], ...]]:
        """What makes two boundaries the same one, for a contract that changes another."""
        return (self.role, self.operand, self.where, self.weights)

    def replaces(self, other: Boundary) -> bool:
        """Whether this boundary, of a contract that extends another, takes the place of one of that: without a word on weights, of
        those for whole and for cut ones.
        """
        return self.key[:3] == other.key[:3] and self.weights in ((), other.weights)


@attrs.frozen
class Contract:
    """A named set of boundaries over one group.

    `applies` are conditions on the structure: `sparse` (attention reads positions that an indexer picked), `experts`.
    """

    name: str
    boundaries: tuple[Boundary, ...]
    group: str = "tp"
    applies: tuple[tuple[str, bool], ...] = ()
    doc: str = ""
    source: str = attrs.field(default="", eq=False)

    def __repr__(self) -> str:
        return f"<Contract {self.name}: {len(self.boundaries)} boundaries>"

    def trusts(self) -> dict[str, str]:
        """The trust that the contract itself declares, by role, as `check(trust=...)` takes it."""
        return {b.role: b.trust for b in self.boundaries if b.trust is not None}
