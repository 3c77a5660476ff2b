"""What the structure of a decoder is: roles of calls and values, blocks, layers."""

from __future__ import annotations

import attrs

from layoutcheck.roles.flow import Flow

ROLES = (
    "embedding",
    "norm.input",
    "attention.input",
    "attention.indexer",
    "attention.core",
    "o_proj",
    "norm.post_attention",
    "mlp.dense",
    "moe.gate",
    "moe.topk",
    "moe.routed",
    "moe.shared",
    "residual",
    "norm.final",
    "lm_head",
)


@attrs.frozen
class Norm:
    """A norm, fused or spelled out: its calls, what it normalises, what it gives, and the sum that it formed first.

    `addends` are the values that it adds before normalising (none: it takes its input as it is); `source` is then
    their sum, which may be a value that no output shows. `source` is where the content was computed; `read` is the value
    that the norm reads, which may be a slice or a cast of it.
    """

    calls: tuple[int, ...]
    source: int
    read: int
    outputs: tuple[int, ...]
    addends: tuple[int, ...] = ()

    @property
    def output(self) -> int:
        """The normalised value (codes, where the norm quantises)."""
        return self.outputs[0]


@attrs.frozen
class Join:
    """Where a branch is added to the residual stream: the call, both operands, the sum."""

    call: int
    stream: int
    branch: int
    total: int


@attrs.define
class Block:
    """One branch of the residual stream: from `root` through `norm` and `calls` to `join`.

    `kind` is `attention`, `moe` or `dense`. `entry` are the values that the branch reads: what the norm gives, or the
    stream itself. `core` are the calls of the attention from its scores on, `output` its last; `picks` are calls that
    choose positions (in attention) or experts. `sparse`: the positions that were picked are those which attention reads.
    `end` is what the block itself gives: the join's branch, or what that spreads over several streams. `around` are the calls
    that weight and mix the streams of hyper-connections for this block.
    """

    kind: str
    root: int
    norm: Norm | None
    entry: tuple[int, ...]
    calls: frozenset[int]
    join: Join
    end: int
    around: frozenset[int] = frozenset()
    core: tuple[int, ...] = ()
    picks: tuple[int, ...] = ()
    sparse: bool = False
    merge: int | None = None


@attrs.define
class Layer:
    """An attention block and what follows it up to the next one. `begin` and `end` are calls, both inside.

    `times` is how often a repeated body runs it, 1 outside of repeated regions.
    """

    index: int
    begin: int
    end: int
    blocks: tuple[Block, ...]
    times: int = 1


@attrs.define
class Roles:
    """The structure of one program. `calls` and `values` give a role by number.

    `final` is the norm behind the last layer, `heads` the products that give logits, `starts` the values that a
    stream begins with, `flow` the dataflow that all of it was found in. Roles of a repeated body are those of its first repeat;
    `later` has the additions without a role there that are `residual` in the repeats behind it.
    """

    calls: dict[int, str]
    values: dict[int, str]
    layers: tuple[Layer, ...]
    norms: tuple[Norm, ...]
    final: Norm | None
    heads: tuple[int, ...]
    embeddings: tuple[int, ...]
    starts: tuple[int, ...]
    later: frozenset[int]
    flow: Flow = attrs.field(repr=False, eq=False)

    def __repr__(self) -> str:
        return f"<Roles of {len(self.calls)} calls, {len(self.layers)} layers>"

    @property
    def blocks(self) -> tuple[Block, ...]:
        """All blocks, in order of the layers."""
        return tuple(block for layer in self.layers for block in layer.blocks)

    def of(self, call: int) -> str | None:
        """The role of a call, or None."""
        return self.calls.get(call)

    def layer_of(self, call: int) -> Layer | None:
        """The layer that a call lies in; a norm that ends one layer and begins the next lies in the next."""
        found = None
        for layer in self.layers:
            if layer.begin <= call <= layer.end:
                found = layer
        return found

    def is_sparse(self, layer: int | None = None) -> bool:
        """Whether attention reads the key positions that an indexer's top-k picked; anywhere, or in one layer."""
        layers = self.layers if layer is None else (self.layers[layer],)
        return any(block.sparse for entry in layers for block in entry.blocks)

    def moe_branches(self, layer: int) -> dict[str, tuple[int, ...]]:
        """The calls of a layer's `moe.routed` and `moe.shared` branches, in order; empty for a dense layer."""
        found: dict[str, tuple[int, ...]] = {}
        for block in self.layers[layer].blocks:
            if block.kind == "moe":
                for role in ("moe.routed", "moe.shared"):
                    found[role] = tuple(k for k in sorted(block.calls) if self.calls.get(k) == role)
        return found
