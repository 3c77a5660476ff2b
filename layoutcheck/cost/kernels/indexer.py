"""The indexer of sparse attention: which keys a query attends to.

It falls in two sides, which may run on different tokens:

* the **query side**, on the rank's own queries: their projection, the scores against all keys, the top-k;
* the **cache side**, on the tokens whose keys are written to the cache: their key projection, norm and
  quantising.

*Scores* (:func:`scores_us`): a core takes ``128 / heads`` queries and walks over the keys 256 at a time.
Queries of different sequences in one block walk over the keys of each. Constants: ``compute``, ``launch``,
``block`` (us a block).

*Top-k* (:func:`topk_us`): a core takes a query's scores and reads them. Constants: ``memory``, ``launch``, ``row``
(us a wave). Equal scores cost up to three times as much (the variant ``float32_ties``).
"""

from __future__ import annotations

from layoutcheck.cost.algebra import Num, ceil_div, maximum, minimum, where
from layoutcheck.cost.hardware import Fit, Hardware
from layoutcheck.cost.kernels import elementwise, gemm
from layoutcheck.cost.work import Work

_ROWS = 128
_KEYS = 256


def scores_work(
    sequences: Num, new: Num, cached: Num, heads: Num = 32, dim: Num = 128, dtype: str = "float8_e4m3fn"
) -> Work:
    """Return flops and bytes of the scores: every query with every key before it, summed over heads."""
    pairs = sequences * new * (2 * cached + new + 1)  # twice the number
    size = 1 if dtype.startswith("float8") or dtype == "int8" else 2
    queries, keys = sequences * new, sequences * (cached + new)
    return Work(
        flops=pairs * heads * dim,
        read=(queries * heads + keys) * (dim * size + 4),
        write=2 * pairs,
        dtype=dtype,
    )


def scores_us(
    hardware: Hardware,
    sequences: Num,
    new: Num,
    cached: Num,
    heads: int = 32,
    dim: Num = 128,
    dtype: str = "float8_e4m3fn",
    *,
    fit: Fit | None = None,
) -> Num:
    """Return the microseconds of the scores of ``sequences x new`` queries after ``cached`` tokens each."""
    fit = fit or hardware.fit("indexer_scores", dtype)
    queries = max(1, _ROWS // heads)
    keys = _KEYS * ceil_div(
        (2 * cached + new + 1) * maximum(new, minimum(new * sequences, queries)), 2 * _KEYS * new
    )
    waves = ceil_div(ceil_div(sequences * new, queries), hardware.cores)
    rate = hardware.peak(dtype) * fit.get("compute", 0.5) / hardware.cores
    walk = keys * (2 * queries * heads * dim / rate)
    return fit.get("launch", 5.0) + waves * (walk + fit.get("block", 0.0))


def topk_us(
    hardware: Hardware, sequences: Num, new: Num, cached: Num, topk: Num = 2048, *, fit: Fit | None = None
) -> Num:
    """Return the microseconds of choosing every query's best ``topk`` of its float32 scores.

    A query with no more keys than ``topk`` keeps all of them, and costs nothing.
    """
    fit = fit or hardware.fit("indexer_topk", "float32")
    share = hardware.bandwidth * fit.get("memory", 0.6) / hardware.cores
    choosing = new - minimum(new, maximum(0, topk - cached))
    keys = (maximum(cached, topk) + cached + new + 1) / 2  # mean over the queries that choose
    waves = ceil_div(sequences * choosing, hardware.cores)
    launch = where(cached + new, topk, 0, fit.get("launch", 5.0))
    return launch + waves * (keys * 4 / share + fit.get("row", 1.0))


def query_side_us(
    hardware: Hardware,
    sequences: Num,
    new: Num,
    cached: Num,
    *,
    hidden: Num,
    q_rank: Num,
    heads: int = 32,
    dim: Num = 128,
    topk: Num = 2048,
    linear_dtype: str = "bfloat16",
    score_dtype: str = "float8_e4m3fn",
) -> dict[str, Num]:
    """Return the microseconds of the query side by part: projection, weights, quantise, scores, topk."""
    tokens = sequences * new
    return {
        "projection": gemm.time_us(hardware, tokens, heads * dim, q_rank, linear_dtype),
        "weights": gemm.time_us(hardware, tokens, heads, hidden, "bfloat16"),
        "quantise": elementwise.quantise_us(hardware, tokens * heads * dim),
        "scores": scores_us(hardware, sequences, new, cached, heads, dim, score_dtype),
        "topk": topk_us(hardware, sequences, new, cached, topk),
    }


def cache_side_us(
    hardware: Hardware, tokens: Num, *, hidden: Num, dim: Num = 128, linear_dtype: str = "bfloat16"
) -> dict[str, Num]:
    """Return the microseconds of the cache side by part, on the tokens whose keys are written."""
    return {
        "key_projection": gemm.time_us(hardware, tokens, dim, hidden, linear_dtype),
        "key_norm": elementwise.norm_us(hardware, tokens, dim),
        "cache_write": elementwise.quantise_us(hardware, tokens * dim),
    }
