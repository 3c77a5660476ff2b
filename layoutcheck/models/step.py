"""One step of a model: tokens, groups, contract and data types, checked against the model."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from attrs import frozen

from layoutcheck.documents import read_document
from layoutcheck.errors import InputError
from layoutcheck.models.config import ModelConfig
from layoutcheck.resources import rules_dir

QUANT = {"none": None, "int8": "int8", "w8a8": "int8", "fp8": "float8_e4m3fn"}
"""Data types of quantised linears by the word that asks for them."""


MOVED = ("o_proj", "q_b_proj")
"""Modules whose whole weight may come from other ranks, where a contract keeps all heads on every rank."""


@frozen
class Style:
    """What a contract asks of the graph (see ``rules/models/_steps.json``)."""

    residual: str
    queries: str
    heads: str
    needs: str = ""
    sparse_heads: str = ""


@frozen
class Step:
    """A step that a decoder is written for, on rank 0.

    Attributes:
        tp, dp, ep: ranks of a tensor-parallel group, such groups, and ranks that the experts are spread over.
        contract: a name of ``rules/models/_steps.json``.
        heads: ``all`` attention heads on every rank, or ``cut`` over tp.
        decode: one token of each sequence instead of prefill.
        sequences: sequences of a prefill step.
        quant: data type of the quantised linears, None for none.
        mtp: whether layers for multi-token prediction run.
        distribute, gather: modules of ``MOVED`` whose weight lies whole on one rank a layer and is broadcast, or is cut over the
            ranks and gathered, before it is used.
    """

    tp: int = 1
    dp: int = 1
    ep: int = 1
    contract: str = "tensor-parallel"
    heads: str = "cut"
    decode: bool = False
    sequences: int = 1
    quant: str | None = None
    mtp: bool = False
    distribute: tuple[str, ...] = ()
    gather: tuple[str, ...] = ()

    @property
    def style(self) -> Style:
        """What the contract asks for."""
        return styles()[self.contract]

    @property
    def tokens(self) -> int:
        """The tokens that the graph is written with; its formulas hold at any."""
        return 64 * self.tp * (1 if self.decode else self.sequences)


@lru_cache(maxsize=1)
def styles() -> dict[str, Style]:
    """The contracts that a decoder can be written for."""
    data: dict[str, Any] = read_document(rules_dir() / "models" / "_steps.json", "the steps of models")
    return {name: Style(**value) for name, value in data.items() if isinstance(value, dict)}


def step_for(
    config: ModelConfig,
    *,
    tp: int = 1,
    dp: int = 1,
    ep: int | None = None,
    contract: str | None = None,
    decode: bool = False,
    sequences: int = 1,
    quant: str = "none",
    mtp: bool = False,
    distribute: tuple[str, ...] = (),
    gather: tuple[str, ...] = (),
) -> Step:
    """A step that fits the model.

    Args:
        config: the model.
        tp, dp: ranks.
        ep: ranks of the experts; by default all.
        contract: by default ``tensor-parallel``.
        decode, sequences, mtp: see :class:`Step`.
        quant: a word of ``QUANT``.
        distribute, gather: see :class:`Step`.

    Raises:
        InputError: the model does not have what the contract needs, or does not divide by the groups.
    """
    name = contract or "tensor-parallel"
    style = styles().get(name)
    if style is None:
        raise InputError(
            f"no decoder can be written for {name!r}; there are {', '.join(styles())}", "--contract"
        )
    if style.needs and getattr(config, style.needs) is None:
        what = {"indexer": "no indexer of sparse attention", "experts": "no experts"}[style.needs]
        raise InputError(f"{name} does not apply: {config.name} has {what}", "--contract")
    if quant not in QUANT:
        raise InputError(f"{quant!r} is none of {', '.join(QUANT)}", "--quant")
    if config.experts is None:
        if ep not in (None, 1):
            raise InputError(f"{config.name} has no experts", "--ep")
        ranks = 1
    else:
        ranks = tp * dp if ep is None else ep
        if ranks > 1 and (ranks % tp or ranks > tp * dp):
            raise InputError(
                f"ep is 1, or a multiple of tp up to tp * dp: not {ranks} with tp {tp} and dp {dp}", "--ep"
            )
        if config.experts.count % ranks:
            raise InputError(f"{config.experts.count} experts do not divide by {ranks}", "--ep")
    heads = (style.sparse_heads if config.indexer is not None else "") or style.heads
    _divides(config, heads, tp)
    if mtp and not config.mtp_layers:
        raise InputError(f"{config.name} has no layers for multi-token prediction", "--mtp")
    for option, modules in (("--distribute", distribute), ("--gather", gather)):
        for module in modules:
            if module not in MOVED:
                raise InputError(f"{module!r} is none of {', '.join(MOVED)}", option)
            if heads == "cut" or config.latent is None:
                raise InputError(f"{name} has no whole {module} on every rank", option)
    if both := set(distribute) & set(gather):
        raise InputError(f"{both.pop()} is either distributed or gathered", "--gather")
    return Step(tp, dp, ranks, name, heads, decode, sequences, QUANT[quant], mtp, distribute, gather)


def _divides(config: ModelConfig, heads: str, tp: int) -> None:
    figures = {"intermediate_size": config.intermediate_size} if not all(config.sparse) else {}
    if heads == "cut":
        figures["num_attention_heads"] = config.num_attention_heads
    for name, figure in figures.items():
        if figure % tp:
            raise InputError(f"{name} {figure} does not divide by tp {tp}", "--tp")
    keys = config.num_key_value_heads
    if config.latent is None and heads == "cut" and keys % tp and tp % keys:
        raise InputError(f"num_key_value_heads {keys} and tp {tp} do not divide each other", "--tp")
