"""Dense attention and latent attention, prefill and decode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fit_classes.base import HARDWARE, LAUNCH, Class, Rows, column, group, share, times, tools
from layoutcheck.cost.fit import Parameter
from layoutcheck.cost.hardware import Fit, load_hardware
from layoutcheck.cost.kernels import attention as dense

_KERNELS = {
    "context_attention": "prefill_attention",
    "generation_attention": "decode_attention",
    "context_mla": "prefill_latent_attention",
    "generation_mla": "decode_latent_attention",
}
_PROLOGUE = Parameter("prologue", 1.0, 0.01, 30.0)
# vLLM's latent attention was timed without a graph: its constant is the program's, not the kernel's
_HARNESS = Parameter("harness", 50.0, 1.0, 500.0)
_LATENT = {"context_mla": (192.0, 128.0), "generation_mla": (576.0, 512.0)}


def attention(rows: Rows) -> Iterator[Class]:
    """Yield attention by op and cache type; whole modules (``dsa_*``) are left out."""
    kept = [r for r in rows if r["op"] in _KERNELS]
    for r in kept:
        r["cache"] = r["kv_cache_dtype"] or "bfloat16"
    for (op, machine, cache), part in group(kept, "op", "hardware", "cache").items():
        hardware = load_hardware(HARDWARE[machine])
        sequences, isl, step, heads = (column(part, n) for n in ("batch_size", "isl", "step", "num_heads"))
        window = column(part, "window_size")
        latent, decode = op in _LATENT, op.startswith("generation")
        kv = column(part, "num_key_value_heads")
        dim, v_dim = _LATENT[op] if latent else (column(part, "head_dim"),) * 2
        kv = (np.ones_like(heads) if decode else heads) if latent else np.where(kv == 0, heads, kv)
        # Ascend's decode rows give the cached length as isl
        keys = np.where(isl > 1, isl, step + 1) if decode else isl + step
        seen = np.where(window == 0, keys, window)
        sizes = (sequences, keys, heads, kv, dim, v_dim, seen) if decode else (
            (sequences, isl, step, heads, kv, dim, v_dim, seen)
        )  # fmt: skip
        sizes = tuple(np.broadcast_to(x, heads.shape) for x in sizes)
        width = 1 if cache == "fp8" else 2
        structure: dict[str, Any] = {}

        def predict(
            constants: Mapping[str, float], s: Any, *, a: Any = (hardware, sizes, latent, decode, width)
        ) -> Any:
            machine, sizes, latent, decode, width = a
            picked, fit = tuple(x[s] for x in sizes), Fit(constants)
            if decode:
                return dense.decode_us(machine, *picked, width, latent=latent, fit=fit, harness=True)
            return dense.prefill_us(machine, *picked, fit=fit, harness=True)

        if decode:
            work = dense.decode_work(sequences, np.minimum(keys, seen), heads, kv, dim, v_dim, width, latent)
        else:
            work = dense.prefill_work(sequences, isl, step, heads, kv, dim, v_dim, seen)
        eager = latent and "VLLM" in {r["framework"] for r in part}
        yield Class(
            hardware=hardware.name,
            key=f"{_KERNELS[op]}/{'bfloat16' if cache == 'bfloat16' else 'float8_cache'}",
            measured=times(part),
            sites=list(zip(heads, kv, column(part, "head_dim"), window, sequences)),
            site_name="(sequences, heads, key heads, dim, window)",
            predict=predict,
            parameters=[
                share("compute", 0.6),
                share("memory", 0.7),
                _HARNESS if eager else LAUNCH,
                _PROLOGUE,
            ],
            structure=structure,
            flops=work.flops,
            bytes=work.traffic,
            peak=hardware.peak("bfloat16"),
            rate=hardware.bandwidth,
            source=f"fitted to {tools(part)}",
            parts={"": np.ones(len(part), bool)},
            goals={},
        )
