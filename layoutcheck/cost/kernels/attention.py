"""Dense attention: causal prefill (also of chunks with cached tokens), decode, and both for latent attention
(MLA).

*Prefill*: a core takes 128 queries of a head and walks over the keys before them,

    launch + knee2(compute in waves, bytes of q, k, v and the result)

*Decode*: one query a sequence; the cache is read once, and every group of query heads that share a key head
is computed together:

    launch + knee2(cache bytes, compute) + waves x ``prologue``

Latent attention prefills with expanded keys (192 + 128 a head) and decodes absorbed, with one latent key
head of 576. Constants: ``compute``, ``memory``, ``launch``, ``prologue``. Where the measuring program ran
without a graph, its own constant was fitted instead of the launch (``harness``), and is left out here.
"""

from __future__ import annotations

from layoutcheck.cost.algebra import Num, ceil_div, maximum, minimum, smooth_max
from layoutcheck.cost.hardware import Fit, Hardware
from layoutcheck.cost.kernels.lengths import limited_pairs
from layoutcheck.cost.work import Work

_QUERIES = 128
_GROUP = 16  # query heads of a key head are padded to so many rows


def prefill_work(
    sequences: Num,
    new: Num,
    cached: Num,
    heads: Num,
    kv_heads: Num,
    dim: Num,
    v_dim: Num | None = None,
    window: Num | None = None,
) -> Work:
    """Return flops over the causal pairs, and the bytes of queries, keys, values and the result in bf16."""
    v_dim = dim if v_dim is None else v_dim
    pairs = sequences * limited_pairs(new, cached, cached + new if window is None else window)
    return Work(
        flops=pairs * heads * (dim + v_dim),
        read=2 * sequences * (new * heads * dim + (new + cached) * kv_heads * (dim + v_dim)),
        write=2 * sequences * new * heads * v_dim,
    )


def prefill_us(
    hardware: Hardware,
    sequences: Num,
    new: Num,
    cached: Num,
    heads: Num,
    kv_heads: Num,
    dim: Num,
    v_dim: Num | None = None,
    window: Num | None = None,
    *,
    latent: bool = False,
    fit: Fit | None = None,
    harness: bool = False,
) -> Num:
    """Return the microseconds of causal attention of ``new`` tokens a sequence after ``cached`` ones.

    With ``latent`` the constants are those of latent attention with expanded keys.
    """
    fit = fit or hardware.fit("prefill_latent_attention" if latent else "prefill_attention")
    v_dim = dim if v_dim is None else v_dim
    todo = prefill_work(sequences, new, cached, heads, kv_heads, dim, v_dim, window)
    rate = hardware.peak("bfloat16") * fit.get("compute", 0.7)
    blocks = sequences * heads * ceil_div(new, _QUERIES)
    # a block of queries is computed whole, and half of its last block of keys is masked
    keys = limited_pairs(new, cached, cached + new if window is None else window) / (2 * new) + _QUERIES / 2
    unit = 2 * _QUERIES * keys * (dim + v_dim) / (rate / hardware.cores)
    waves = maximum(1, blocks / hardware.cores + 0.5)
    compute = waves * (unit + fit.get("prologue", 1.0))
    memory = todo.traffic / (hardware.bandwidth * fit.get("memory", 0.6))
    return _constant(hardware, fit, harness) + smooth_max(compute, memory, 2)


def decode_work(
    sequences: Num,
    keys: Num,
    heads: Num,
    kv_heads: Num,
    dim: Num,
    v_dim: Num | None = None,
    cache_bytes: int = 2,
    latent: bool = False,
) -> Work:
    """Return flops and bytes of one query a sequence over ``keys`` cached tokens.

    With ``latent`` the value is part of the key row, which is read once.
    """
    v_dim = dim if v_dim is None else v_dim
    row = dim if latent else dim + v_dim
    return Work(
        flops=2 * sequences * keys * heads * (dim + v_dim),
        read=sequences * keys * kv_heads * row * cache_bytes + 2 * sequences * heads * dim,
        write=2 * sequences * heads * v_dim,
    )


def decode_us(
    hardware: Hardware,
    sequences: Num,
    keys: Num,
    heads: Num,
    kv_heads: Num,
    dim: Num,
    v_dim: Num | None = None,
    window: Num | None = None,
    cache_bytes: int = 2,
    *,
    latent: bool = False,
    fit: Fit | None = None,
    harness: bool = False,
) -> Num:
    """Return the microseconds of one query a sequence over ``keys`` cached tokens."""
    fit = fit or hardware.fit("decode_latent_attention" if latent else "decode_attention")
    v_dim = dim if v_dim is None else v_dim
    seen = keys if window is None else minimum(keys, window)
    todo = decode_work(sequences, seen, heads, kv_heads, dim, v_dim, cache_bytes, latent)
    memory = todo.traffic / (hardware.bandwidth * fit.get("memory", 0.6))
    rows = kv_heads * _GROUP * ceil_div(heads, kv_heads * _GROUP)
    rate = hardware.peak("bfloat16") * fit.get("compute", 0.7)
    compute = 2 * sequences * seen * rows * (dim + v_dim) / rate
    waves = ceil_div(sequences * kv_heads, hardware.cores)
    return (
        _constant(hardware, fit, harness) + smooth_max(compute, memory, 2) + waves * fit.get("prologue", 1.0)
    )


def _constant(hardware: Hardware, fit: Fit, harness: bool) -> Num:
    if "harness" in fit.constants:
        return fit.constants["harness"] if harness else hardware.launch_us
    return fit.get("launch", 5.0)
