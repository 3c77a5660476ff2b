"""A model with figures that no two sizes share, so that a size in its graph says which figures it is made of.

In a real model a latent, an expert's width and a top-k may all be 2048. Here each figure is multiplied by a prime of its own, and
what depends on figures only through their values stays as it is: which ones divide the groups, and which are multiples of others.
"""

from __future__ import annotations

from attrs import frozen

from layoutcheck.models.config import ModelConfig
from layoutcheck.symbols import Size, sym

_PRIMES = (
    *(
        101,
        103,
        107,
        109,
        113,
        127,
        131,
        137,
        139,
        149,
        151,
        157,
        163,
        167,
        173,
        179,
        181,
        191,
        193,
        197,
        199,
    ),
)
_TIMES = (1, 2, 3, 4, 8)


@frozen
class Figures:
    """Figures by name, and what sizes are made of them.

    Attributes:
        config: a model of the same structure with figures that no two sizes share.
        values: its figures by the name that formulas use.
        real: those of the model itself.
        sizes: by number, the size over the figures' names.
    """

    config: ModelConfig
    values: dict[str, int]
    real: dict[str, int]
    sizes: dict[int, Size]


def figures_of(config: ModelConfig, tp: int) -> Figures:
    """The figures of a model that is written for ``tp`` ranks."""
    from dataclasses import replace

    primes = iter(_PRIMES)

    def apart(size: int) -> int:
        return size * next(primes)

    heads, keys, dim, turned = next(primes), next(primes), next(primes), next(primes)
    # fewer key heads than ranks are repeated: another number of them would be another structure
    keys = keys if config.num_key_value_heads >= tp else 1
    same = config.rotary_dim in (0, config.head_dim)
    latent, indexer, experts = config.latent, config.indexer, config.experts
    if latent is not None:
        latent = replace(
            latent,
            q_lora_rank=apart(latent.q_lora_rank) if latent.q_lora_rank else None,
            kv_lora_rank=apart(latent.kv_lora_rank),
            qk_nope_head_dim=apart(latent.qk_nope_head_dim),
            qk_rope_head_dim=apart(latent.qk_rope_head_dim),
            v_head_dim=apart(latent.v_head_dim),
        )
    if indexer is not None:
        indexer = replace(
            indexer,
            heads=apart(indexer.heads),
            head_dim=apart(indexer.head_dim),
            topk=apart(indexer.topk),
        )
    if experts is not None:
        experts = replace(
            experts,
            count=apart(experts.count),
            per_token=apart(experts.per_token),
            intermediate_size=apart(experts.intermediate_size),
            shared_intermediate_size=apart(experts.shared_intermediate_size),
        )
    found = replace(
        config,
        hidden_size=apart(config.hidden_size),
        vocab_size=apart(config.vocab_size),
        num_attention_heads=config.num_attention_heads * heads * keys,
        num_key_value_heads=config.num_key_value_heads * keys,
        head_dim=config.head_dim * dim,
        intermediate_size=apart(config.intermediate_size),
        max_positions=apart(config.max_positions),
        rotary_dim=config.rotary_dim * (dim if same else turned),
        latent=latent,
        indexer=indexer,
        experts=experts,
    )
    values, real = found.symbols(), config.symbols()
    moved = {n: v for n, v in values.items() if v != real[n]}
    return Figures(found, moved, {n: real[n] for n in moved}, _sizes(found, moved))


def _sizes(config: ModelConfig, values: dict[str, int]) -> dict[int, Size]:
    """Multiples of figures, of products of two, and of the sums that latent attention lays side by side."""
    atoms: list[tuple[int, Size]] = []
    for name, value in values.items():
        if name != "rotary_dim" or value != config.head_dim:
            atoms.append((value, sym(name)))
    if config.latent is not None:
        for one, two in (("kv_lora_rank", "qk_rope_head_dim"), ("qk_nope_head_dim", "v_head_dim")):
            atoms.append((values[one] + values[two], sym(one) + sym(two)))
    found: dict[int, Size] = {}
    for times in _TIMES:
        for value, size in atoms:
            found.setdefault(times * value, times * size)
    for value, size in atoms:
        for other, more in atoms:
            for times in _TIMES[:2]:
                found.setdefault(times * value * other, times * size * more)
    return found
