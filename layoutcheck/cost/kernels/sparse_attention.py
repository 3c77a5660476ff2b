"""Attention over the top-k keys of every query, in the absorbed latent form (``mla_sparse_attention``).

Each query gathers ``topk`` latent rows and all its heads attend to them. A core takes one query with up to
64 heads at a time, so the time comes in waves; the gathering has a rate of its own, since neighbouring
queries' rows are found in cache:

    launch + (1 - skipped (1 - keys / topk)) knee4(waves x unit, gathered bytes / rate)

The op computes in bf16 whatever the linears around it are quantised to, and its work does not depend on the
context length once that exceeds ``topk``. Constants: ``compute``, ``memory`` (gathered bytes over the memory
bandwidth; above 1 where the cache serves them), ``launch``, ``skipped`` (share that is saved where a query
has fewer keys than ``topk``).
"""

from __future__ import annotations

from layoutcheck.cost.algebra import Num, ceil_div, maximum, minimum, smooth_max
from layoutcheck.cost.hardware import Fit, Hardware
from layoutcheck.cost.kernels.lengths import limited_keys, limited_pairs
from layoutcheck.cost.work import Work

HEADS = 64
"""Heads that a core takes together; fewer cost the same."""


def work(
    sequences: Num,
    new: Num,
    cached: Num,
    heads: Num,
    topk: Num = 2048,
    latent: Num = 512,
    rope: Num = 64,
    cache_bytes: int = 2,
) -> Work:
    """Return flops over the valid pairs, and the bytes gathered, read and written."""
    pairs = sequences * limited_pairs(new, cached, topk)  # twice the number
    queries = sequences * new
    return Work(
        flops=pairs * heads * (2 * latent + rope),
        read=pairs * (latent + rope) * cache_bytes / 2 + 2 * queries * heads * (latent + rope),
        write=2 * queries * heads * latent,
    )


def time_us(
    hardware: Hardware,
    sequences: Num,
    new: Num,
    cached: Num,
    heads: Num,
    topk: Num = 2048,
    latent: Num = 512,
    rope: Num = 64,
    *,
    fit: Fit | None = None,
) -> Num:
    """Return the microseconds for ``sequences`` sequences of ``new`` queries after ``cached`` tokens each."""
    fit = fit or hardware.fit("sparse_attention")
    queries = sequences * new
    rate = hardware.peak("bfloat16") * fit.get("compute", 0.7) / hardware.cores
    block = minimum(heads, HEADS) if fit.shape("packs_heads", False) else HEADS
    unit = 2 * block * topk * (2 * latent + rope) / rate
    compute = ceil_div(queries * ceil_div(heads, HEADS), hardware.cores) * unit
    gather = queries * topk * (latent + rope) * 2 / (hardware.bandwidth * fit.get("memory", 0.6))
    valid = limited_keys(new, cached, topk)
    share = 1 - fit.get("skipped", 0.0) * (1 - valid / topk)
    return fit.get("launch", 5.0) + share * smooth_max(compute, maximum(gather, 0), 4)
