"""The routed experts of a mixture-of-experts layer as one fused op: gate-up, activation, down, and combine.

    launch + sort + knee(compute, memory) + vector + elsewhere

* *memory*: the weights of the experts that are hit, once (:mod:`layoutcheck.cost.kernels.routing`).
* *compute*: both products in tiles; a wave of tiles costs ``prologue`` more.
* *vector*: activations in and out of both products, and the weighted sum of the copies.
* *sort*: the copies of all tokens, local or not, are sorted by expert.
* *elsewhere*: some kernels go through the copies that other ranks compute, and write nothing or zeros for them.

Which tile a kernel takes is its structure, by family of kernels: ``rows`` and ``columns`` of the tiles that it has,
and ``full``. Without ``full`` the tile is the one that takes least. With it the kernel goes by the copies of *all*
tokens over the experts of the rank, not knowing that most go to other ranks, and takes the smallest tile of which
they fill at most ``full`` percent of the rows: with many ranks the tiles are then far too tall, and mostly padding.

Constants (at most eight): ``compute``, ``memory``, ``launch`` (us), ``vector`` (share of the bandwidth),
``prologue`` (us), ``sort`` (us a thousand copies), ``excess`` (of the fullest rank under skewed routing),
``elsewhere`` (bytes a copy and unit of an expert's width).
"""

from __future__ import annotations

from typing import Any

from layoutcheck.cost.algebra import Num, ceil_div, maximum, minimum, smooth_max, where
from layoutcheck.cost.hardware import Fit, Hardware
from layoutcheck.cost.kernels.routing import Load, load
from layoutcheck.cost.work import Work, bytes_of

_COLUMNS = 32
_ROWS = (16, 64, 128)
_FULL_RATE_ROWS = 16  # a tile of fewer rows takes as long as one of this many


def work(
    tokens: Num,
    hidden: Num,
    inter: Num,
    topk: Num,
    experts: Num,
    ep: Num = 1,
    tp: Num = 1,
    dtype: str = "bfloat16",
    *,
    routing: str = "balanced",
    gated: bool = True,
    weight_bits: float | None = None,
) -> Work:
    """Return flops and bytes of a rank's routed experts; ``tokens`` are those of all ``ep`` ranks."""
    spread = load(tokens, topk, experts, ep, routing)
    matrices = 3 if gated else 2
    width = inter / tp if not isinstance(inter, int) or not isinstance(tp, int) else inter // tp
    bits = bytes_of(8, dtype) if weight_bits is None else weight_bits
    weights = spread.experts * matrices * hidden * width * bits / 8
    return Work(
        flops=2 * matrices * spread.rows * hidden * width,
        read=weights + bytes_of(spread.rows * hidden, dtype),
        write=2 * spread.rows * hidden,
        dtype=dtype,
    )


def time_us(
    hardware: Hardware,
    tokens: Num,
    hidden: Num,
    inter: Num,
    topk: Num,
    experts: Num,
    ep: Num = 1,
    tp: Num = 1,
    dtype: str = "bfloat16",
    *,
    variant: str | None = None,
    fit: Fit | None = None,
    routing: str = "balanced",
    gated: Any = True,
    weight_bits: float | None = None,
) -> Num:
    """Return the microseconds of the fused op on the fullest rank.

    Args:
        tokens: tokens of all ``ep`` ranks together.
        hidden, inter, topk, experts: the layer's figures; ``inter`` is one expert's width before ``tp``.
        ep, tp: ranks the experts are spread over, and ranks that share one expert's width.
        dtype: what the arithmetic is done in.
        variant: the kernel class, where it is not the dtype's own.
        fit: constants; by default the hardware's for the variant.
        gated: three matrices an expert, or two.
        weight_bits: bits of a stored weight where that is fewer than ``dtype`` has, scales included.
    """
    fit = fit or hardware.fit("grouped_gemm", variant or dtype)
    spread = load(tokens, topk, experts, ep, routing, fit.get("excess", 1.0))
    bits = bytes_of(8, dtype)
    width = inter / tp
    ups = 1 + (gated * 1)
    weights = spread.experts * (ups + 1) * hidden * width * (bits if weight_bits is None else weight_bits) / 8
    memory = weights / (hardware.bandwidth * fit.get("memory", 0.6))
    share = (tokens * topk, maximum(experts // ep if _whole(experts, ep) else experts / ep, 1))
    compute = _compute(hardware, fit, spread, hidden, width, ups, dtype, share)
    moved = spread.rows * (hidden * bits / 8 * 5 + width * 6) + tokens * hidden * 4
    vector = moved / (hardware.bandwidth * fit.get("vector", 0.4))
    sort = fit.get("sort", 0.0) * 1e-3 * tokens * topk
    elsewhere = 0
    if "elsewhere" in fit.constants:
        others = maximum(0, tokens * topk - spread.rows)
        elsewhere = fit.constants["elsewhere"] * others * width / hardware.bandwidth
    knee = int(fit.shape("knee", 2))
    return fit.get("launch", 20.0) + sort + smooth_max(compute, memory, knee) + vector + elsewhere


def _whole(experts: Num, ep: Num) -> bool:
    return isinstance(experts, int) and isinstance(ep, int)


def _compute(
    hardware: Hardware,
    fit: Fit,
    spread: Load,
    hidden: Num,
    width: Num,
    ups: Num,
    dtype: str,
    share: tuple[Num, Num],
) -> Num:
    rate = hardware.peak(dtype) * fit.get("compute", 0.7) / hardware.cores
    prologue, cores = fit.get("prologue", 1.0), hardware.cores
    columns = int(fit.shape("columns", _COLUMNS))
    up_columns = ceil_div(ups * width, columns)
    down_columns = ceil_div(hidden, columns)

    def by(rows: int) -> Num:
        if spread.exact:
            tiles = spread.experts * ceil_div(ceil_div(spread.rows, spread.experts), rows)
        else:  # unequal loads: about a tile an expert is left over
            tiles = maximum(spread.experts, spread.rows / rows + spread.experts)
        step = 2 * columns * max(rows, _FULL_RATE_ROWS) / rate
        # half a wave is left over on average: the tiles of different experts do not start together
        up = maximum(1, tiles * up_columns / cores + 0.5) * (step * hidden + prologue)
        down = maximum(1, tiles * down_columns / cores + 0.5) * (step * width + prologue)
        return up + down

    sizes = sorted(int(r) for r in fit.shape("rows", _ROWS))
    if not fit.shape("full", 0):
        return minimum(*(by(rows) for rows in sizes))
    copies, local = share
    found = by(sizes[-1])
    for rows in reversed(sizes[:-1]):
        found = where(100 * copies, int(fit.shape("full", 0)) * rows * local, by(rows), found)
    return found
