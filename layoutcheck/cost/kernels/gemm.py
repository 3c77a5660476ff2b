"""Dense matrix products ``[m, k] x [k, n]``, plain or quantised.

The time is

    launch + quantise + knee(compute, memory)

* *compute*: the library cuts the output into tiles, the tiles run in waves over the cores, and of the tile
  sizes that it has it takes the fastest. A tile costs its arithmetic, and its store through the core's share
  of the bandwidth. Where there are fewer tiles than cores the contraction is split.
* *memory*: operands and result, each moved once.
* *knee*: how far the two overlap. On Nvidia parts nearly fully (4); on Ascend the weights' streaming adds to
  the arithmetic (1), and reading rows with a long stride is slower.
* *quantise*: measured times of quantised products include turning the activations into codes. A graph that
  holds that as an op of its own asks for ``quantise=False``.

Constants (at most four a class): ``compute`` and ``memory`` (shares of the peaks), ``launch`` (us), and one
of ``prologue`` (us a wave of tiles), ``quantise`` (us a million activations, or activations and results with
``structure.requantise``), ``stride`` (slowdown of the weights' streaming at a row of 32 KiB).
"""

from __future__ import annotations

from layoutcheck.cost.algebra import Num, ceil_div, floor_div, maximum, minimum, smooth_max
from layoutcheck.cost.hardware import Fit, Hardware
from layoutcheck.cost.work import Work, bytes_of

TILES = ((64, 64), (128, 64), (128, 128), (128, 256))
_PARTIAL_SUM_RATE = 15e6  # bytes a us at which split results are added up in cache
_STRIDE = 32768


def work(m: Num, n: Num, k: Num, dtype: str = "bfloat16", out_dtype: str = "bfloat16") -> Work:
    """Return flops ``2 m n k`` and the bytes of both operands (in ``dtype``) and of the result."""
    return Work(
        flops=2 * m * n * k,
        read=bytes_of(m * k, dtype) + bytes_of(n * k, dtype),
        write=bytes_of(m * n, out_dtype),
        dtype=dtype,
    )


def time_us(
    hardware: Hardware,
    m: Num,
    n: Num,
    k: Num,
    dtype: str = "bfloat16",
    *,
    variant: str | None = None,
    fit: Fit | None = None,
    weight_bits: float | None = None,
    out_bytes: int = 2,
    quantise: bool = True,
) -> Num:
    """Return the microseconds of one product.

    Args:
        m, n, k: tokens, outputs, inputs; integers, arrays or symbols.
        dtype: what the arithmetic is done in.
        variant: the kernel class, where it is not the dtype's own: ``float8_block``, ``float8_e4m3fn@vllm``.
        fit: constants; by default the hardware's for the variant.
        weight_bits: bits of a weight where it is stored in fewer than ``dtype`` has, scales included.
        quantise: include the quantising of the activations where the class measured it.
    """
    fit = fit or hardware.fit("gemm", variant or dtype)
    bits = bytes_of(8, dtype)
    weight = n * k * (bits if weight_bits is None else weight_bits) / 8
    out = m * n * out_bytes
    bandwidth = hardware.bandwidth * fit.get("memory", 0.6)
    rate = hardware.peak(dtype) * fit.get("compute", 0.7) / hardware.cores
    knee = int(fit.shape("knee", 4))
    if fit.shape("streams", "all") == "weights":
        streamed = weight * (1 + fit.get("stride", 0.0) * k * bits / 8 / _STRIDE) / bandwidth
        # what exceeds the cache is read no faster than the memory gives it
        memory = maximum(streamed, (weight - float(fit.shape("cache", 0))) / hardware.bandwidth)
    else:
        memory = (m * k * bits / 8 + weight + out) / bandwidth
    time = smooth_max(_compute(hardware, fit, m, n, k, rate, out_bytes), memory, knee) + fit.get(
        "launch", 5.0
    )
    if quantise and "quantise" in fit.constants:
        time = time + fit.get("quantise", 0.0) * 1e-6 * _quantised(fit, m, n, k)
        time = time + float(fit.shape("ramp", 0.0)) * minimum(m, 256)
    return time


def _compute(hardware: Hardware, fit: Fit, m: Num, n: Num, k: Num, rate: float, out_bytes: int) -> Num:
    cores, prologue = hardware.cores, fit.get("prologue", float(fit.shape("prologue", 0.5)))
    store = float(fit.shape("store", 0.0)) * out_bytes * cores / hardware.bandwidth
    splits, penalty = int(fit.shape("splits", 1)), float(fit.shape("split_cost", 3.0)) * prologue
    drift = float(fit.shape("drift", 0.0))
    candidates = []
    for rows, columns in fit.shape("tiles", TILES):
        tiles = ceil_div(m, rows) * ceil_div(n, columns)
        area = float(rows * columns)
        candidates.append(_waves(tiles, cores, drift) * (area * (2 * k / rate + store)))
        if splits > 1:
            split = maximum(1, minimum(splits, floor_div(cores, tiles)))
            one = area * (2 * ceil_div(k, split) / rate + store)
            partial = m * n * (4 * split + 4) / _PARTIAL_SUM_RATE
            candidates.append(ceil_div(tiles * split, cores) * one + penalty + partial)
    return minimum(*candidates) + prologue


def _waves(tiles: Num, cores: int, drift: float) -> Num:
    """Waves of tiles. Cores drift apart, and clock higher while others idle: part of the last wave is won back."""
    full = ceil_div(tiles, cores)
    return maximum(1, drift / cores * tiles + (1 - drift) * full) if drift else full


def _quantised(fit: Fit, m: Num, n: Num, k: Num) -> Num:
    """Elements that the vector units handle around a quantised product."""
    extra = int(fit.shape("row_overhead", 0))  # a row costs as much as so many elements more
    if fit.shape("requantise", False):
        return m * (k + n + extra)
    return m * (k + extra)
