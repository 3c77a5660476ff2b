"""The kernels that a kernel line may name: which sizes each takes, its work, its time, and the class that its constants belong to.

Sizes come as integers, arrays or symbols (:mod:`layoutcheck.cost.algebra`). All times are microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen

from layoutcheck.cost import collectives
from layoutcheck.cost.algebra import Num, maximum, minimum
from layoutcheck.cost.hardware import Hardware
from layoutcheck.cost.kernels import attention, elementwise, gemm, grouped_gemm, indexer, sparse_attention
from layoutcheck.cost.work import DTYPE_BITS, Work

Sizes = Mapping[str, Num]
Options = Mapping[str, Any]


@frozen
class Kernel:
    """One kind of kernel.

    Attributes:
        sizes: what it is given, with defaults; None: it must be given.
        work: flops and bytes of these sizes.
        time: microseconds on a hardware.
        fit: the (class, variant) whose constants the time uses; a collective's class is ``collective``.
    """

    sizes: Mapping[str, int | None]
    work: Callable[[Sizes, Options], Work]
    time: Callable[[Hardware, Sizes, Options], Num]
    fit: Callable[[Options], tuple[str, str]]


def compute_dtype(dtype: str) -> str:
    """The dtype that products of these codes are computed and were measured in; half precision counts as bfloat16."""
    return dtype if dtype in DTYPE_BITS and dtype not in ("float16", "float64") else "bfloat16"


def _dtype(options: Options) -> str:
    return compute_dtype(str(options.get("dtype", "bfloat16")))


def _gemm_work(s: Sizes, o: Options) -> Work:
    one = gemm.work(s["m"], s["n"], s["k"], _dtype(o))
    b = s["batch"]
    return Work(b * one.flops, b * one.read, b * one.write, 0, one.dtype)


def _gemm_time(hardware: Hardware, s: Sizes, o: Options) -> Num:
    """A batch of products runs as one, its weights side by side; the rows of the other products are read besides."""
    one = gemm.time_us(
        hardware, s["m"], s["batch"] * s["n"], s["k"], _dtype(o), quantise=bool(o.get("quantise", 0))
    )
    if isinstance(s["batch"], int) and s["batch"] == 1:
        return one
    moved = _gemm_work(s, o).traffic
    return maximum(one, moved / (hardware.bandwidth * hardware.fit("gemm", _dtype(o)).get("memory", 0.6)))


def _experts(s: Sizes) -> tuple[Num, Num, Num, Num, Num, Num, Num]:
    return s["tokens"], s["hidden"], s["inter"], s["topk"], s["experts"], s["ep"], s["tp"]


def _grouped_work(s: Sizes, o: Options) -> Work:
    return grouped_gemm.work(
        *_experts(s),
        _dtype(o),
        routing=str(o.get("routing", "balanced")),
        gated=bool(o.get("gated", 1)),
    )


def _grouped_time(hardware: Hardware, s: Sizes, o: Options) -> Num:
    return grouped_gemm.time_us(
        hardware,
        *_experts(s),
        _dtype(o),
        routing=str(o.get("routing", "balanced")),
        gated=bool(o.get("gated", 1)),
    )


def _product_work(s: Sizes, o: Options) -> Work:
    one = gemm.work(s["rows"], s["n"], s["k"], _dtype(o))
    hit = minimum(s["experts"], s["rows"])
    more = (hit - 1) * s["n"] * s["k"] * DTYPE_BITS[_dtype(o)] // 8
    return Work(one.flops, one.read + more, one.write, 0, one.dtype)


def _product_time(hardware: Hardware, s: Sizes, o: Options) -> Num:
    """One product of a group of experts: the rows in a dense product, and the weights of all experts that are hit."""
    fit = hardware.fit("grouped_gemm", _dtype(o))
    dense = gemm.time_us(hardware, s["rows"], s["n"], s["k"], _dtype(o), quantise=False)
    hit = minimum(s["experts"], s["rows"])
    weights = hit * s["n"] * s["k"] * DTYPE_BITS[_dtype(o)] / 8
    return maximum(dense, weights / (hardware.bandwidth * fit.get("memory", 0.6)))


def _prefill(s: Sizes) -> tuple[Num, ...]:
    return tuple(s[n] for n in ("sequences", "new", "cached", "heads", "kv_heads", "dim", "v_dim"))


def _prefill_kind(o: Options) -> tuple[str, str]:
    return ("prefill_latent_attention" if o.get("latent") else "prefill_attention"), "bfloat16"


def _decode_kind(o: Options) -> tuple[str, str]:
    return ("decode_latent_attention" if o.get("latent") else "decode_attention"), "bfloat16"


def _decode(s: Sizes) -> tuple[Num, Num, Num, Num, Num, Num]:
    return s["sequences"], s["keys"], s["heads"], s["kv_heads"], s["dim"], s["v_dim"]


def _decode_work(s: Sizes, o: Options) -> Work:
    return attention.decode_work(*_decode(s), latent=bool(o.get("latent")))


def _decode_time(hardware: Hardware, s: Sizes, o: Options) -> Num:
    return attention.decode_us(hardware, *_decode(s), latent=bool(o.get("latent")))


def _all_pairs_work(s: Sizes, o: Options) -> Work:
    """Attention of every query to every key, both products counted whole, as torch's FlopCounterMode does."""
    pairs = s["batch"] * s["heads"] * s["queries"] * s["keys"]
    width = s["dim"] + s["v_dim"]
    return Work(
        flops=2 * pairs * width,
        read=2 * s["batch"] * (s["heads"] * s["queries"] * s["dim"] + s["kv_heads"] * s["keys"] * width),
        write=2 * s["batch"] * s["heads"] * s["queries"] * s["v_dim"],
    )


def _all_pairs_time(hardware: Hardware, s: Sizes, o: Options) -> Num:
    """The prefill kernel's time; causal where the op says so, else every query sees every key."""
    if o.get("causal"):
        cached: Num = maximum(0, s["keys"] - s["queries"])
        return attention.prefill_us(
            hardware, s["batch"], s["queries"], cached, s["heads"], s["kv_heads"], s["dim"], s["v_dim"]
        )
    # a window of all keys behind as many cached ones: no query is limited to those before it
    return attention.prefill_us(
        hardware,
        s["batch"],
        s["queries"],
        s["keys"],
        s["heads"],
        s["kv_heads"],
        s["dim"],
        s["v_dim"],
        s["keys"],
    )


def _sparse(s: Sizes) -> tuple[Num, ...]:
    return tuple(s[n] for n in ("sequences", "new", "cached", "heads", "topk", "latent", "rope"))


def _scores(s: Sizes) -> tuple[Num, Num, Num, Num, Num]:
    return s["sequences"], s["new"], s["cached"], s["heads"], s["dim"]


def _scores_dtype(o: Options) -> str:
    return compute_dtype(str(o.get("dtype", "float8_e4m3fn")))


def _moved_work(s: Sizes, o: Options) -> Work:
    return Work(s["flops"], s["read"], s["write"], 0, "float32")


def _quantise_work(s: Sizes, o: Options) -> Work:
    return Work(2 * s["elements"], 2 * s["elements"], s["elements"], 0, "float32")


def _collective_work(s: Sizes, o: Options) -> Work:
    return collectives.work(str(o["op"]), s["size"], s["ranks"])


def _collective_time(hardware: Hardware, s: Sizes, o: Options) -> Num:
    op = str(o["op"])
    if op == "all_reduce":
        return collectives.cheaper_all_reduce_us(hardware, s["size"], s["ranks"])
    return collectives.time_us(hardware, op, s["size"], s["ranks"])


def _topk_work(s: Sizes, o: Options) -> Work:
    keys = s["sequences"] * s["new"] * (2 * s["cached"] + s["new"] + 1)  # twice the number
    return Work(keys, 2 * keys, 8 * s["sequences"] * s["new"] * s["topk"], 0, "float32")


def _class(kernel: str) -> Callable[[Options], tuple[str, str]]:
    return lambda o: (kernel, _dtype(o))


KERNELS: dict[str, Kernel] = {
    "gemm": Kernel({"m": None, "n": None, "k": None, "batch": 1}, _gemm_work, _gemm_time, _class("gemm")),
    "grouped_gemm": Kernel(
        {**dict.fromkeys(("tokens", "hidden", "inter", "topk", "experts")), "ep": 1, "tp": 1},
        _grouped_work,
        _grouped_time,
        _class("grouped_gemm"),
    ),
    "grouped_product": Kernel(
        dict.fromkeys(("rows", "n", "k", "experts")), _product_work, _product_time, _class("grouped_gemm")
    ),
    "prefill_attention": Kernel(
        dict.fromkeys(("sequences", "new", "cached", "heads", "kv_heads", "dim", "v_dim")),
        lambda s, o: attention.prefill_work(*_prefill(s)),
        lambda h, s, o: attention.prefill_us(h, *_prefill(s), latent=bool(o.get("latent"))),
        _prefill_kind,
    ),
    "decode_attention": Kernel(
        dict.fromkeys(("sequences", "keys", "heads", "kv_heads", "dim", "v_dim")),
        _decode_work,
        _decode_time,
        _decode_kind,
    ),
    "full_attention": Kernel(
        {**dict.fromkeys(("queries", "keys", "heads", "kv_heads", "dim", "v_dim")), "batch": 1},
        _all_pairs_work,
        _all_pairs_time,
        _prefill_kind,
    ),
    "sparse_attention": Kernel(
        dict.fromkeys(("sequences", "new", "cached", "heads", "topk", "latent", "rope")),
        lambda s, o: sparse_attention.work(*_sparse(s)),
        lambda h, s, o: sparse_attention.time_us(h, *_sparse(s)),
        lambda o: ("sparse_attention", "bfloat16"),
    ),
    "indexer_scores": Kernel(
        dict.fromkeys(("sequences", "new", "cached", "heads", "dim")),
        lambda s, o: indexer.scores_work(*_scores(s), _scores_dtype(o)),
        lambda h, s, o: indexer.scores_us(h, *_scores(s), _scores_dtype(o)),
        lambda o: ("indexer_scores", _scores_dtype(o)),
    ),
    "indexer_topk": Kernel(
        dict.fromkeys(("sequences", "new", "cached", "topk")),
        _topk_work,
        lambda h, s, o: indexer.topk_us(h, *(s[n] for n in ("sequences", "new", "cached", "topk"))),
        lambda o: ("indexer_topk", "float32"),
    ),
    "moved": Kernel(
        {"read": None, "write": None, "flops": 0},
        _moved_work,
        lambda h, s, o: elementwise.moved_us(h, s["read"] + s["write"], s["flops"]),
        lambda o: ("elementwise", "bytes"),
    ),
    "quantise": Kernel(
        {"elements": None},
        _quantise_work,
        lambda h, s, o: elementwise.quantise_us(h, s["elements"]),
        lambda o: ("elementwise", "quantise"),
    ),
    "collective": Kernel(
        {"size": None, "ranks": None},
        _collective_work,
        _collective_time,
        lambda o: ("collective", str(o["op"])),
    ),
}
"""All kernels by name."""
