"""The routed experts of mixture-of-experts layers, as fused ops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fit_classes.base import HARDWARE, Class, Rows, column, group, share, times, tools
from layoutcheck.cost.fit import Parameter
from layoutcheck.cost.hardware import Fit, load_hardware
from layoutcheck.cost.kernels import grouped_gemm as grouped

# part of a kernel's name in the collection: suffix of the class; "" is the default of its data type
_SUFFIXES = (
    ("min_latency", "@min-latency"),
    ("torch_flow", ""),
    ("deepgemm", ""),
    ("GroupedMatmul", ""),
    ("oaitriton", "@vllm-oai-triton"),
    ("triton", "@vllm-triton"),
    ("flashinfer_cutlass", "@vllm-cutlass"),
    ("flashinfer_trtllm", "@vllm-trtllm"),
    ("marlin", "@vllm-marlin"),
)
# dtype in the collection: (arithmetic, variant, bits of a weight with its scales)
_DTYPES: dict[str, tuple[str, str, float | None]] = {
    "bfloat16": ("bfloat16", "bfloat16", None),
    "fp8": ("float8_e4m3fn", "float8_e4m3fn", None),
    "fp8_block": ("float8_e4m3fn", "float8_block", None),
    "nvfp4": ("float4", "float4", 4.5),
    "int4_wo": ("bfloat16", "bfloat16_int4", 4.25),
    "w4a16_mxfp4": ("bfloat16", "bfloat16_float4", 4.25),
    "w4a8_mxfp4_mxfp8": ("float8_e4m3fn", "float8_float4", 4.25),
    "int8_w8a8_dynamic": ("int8", "int8", None),
}
_PARAMETERS = (
    share("compute", 0.6),
    share("memory", 0.9, 1.0),
    Parameter("launch", 25.0, 1.0, 200.0),
    share("vector", 0.5, 3.0),
    Parameter("prologue", 0.6, 0.01, 30.0),
    Parameter("sort", 0.2, 0.001, 50.0),
    Parameter("excess", 1.3, 0.05, 4.0),
)
_ELSEWHERE = Parameter("elsewhere", 2.0, 0.05, 200.0)
# tiles by suffix of the class, and whether its kernels go through the copies of other ranks
_TILES: dict[str, tuple[dict[str, Any], bool]] = {
    "": ({}, False),
    "@min-latency": ({"columns": 128, "full": 100}, True),
    "@vllm-oai-triton": ({"columns": 256, "full": 100}, False),
    "@vllm-triton": ({"columns": 64, "full": 100}, True),
    "@vllm-trtllm": ({"rows": [16, 32, 64], "columns": 64, "full": 100}, True),
    "@vllm-marlin": ({"rows": [16, 32, 48, 64], "full": 90}, False),
    "@vllm-cutlass": ({"rows": [64, 128], "full": 100}, False),
}
# where a data type has kernels of another family than its suffix says
_OWN_TILES: dict[str, tuple[dict[str, Any], bool]] = {
    "bfloat16_float4": ({"columns": 128, "full": 100}, False),
    "float8_float4": ({"columns": 128, "full": 100}, False),
    "float8_e4m3fn@vllm-cutlass": ({"rows": [128], "knee": 4}, False),
}
# hidden and expert width of models whose experts have no gate: the collection does not say it of every row
_UNGATED = {(2688, 1856), (4096, 2688), (8192, 5120)}
_FEWEST = 60


def grouped_gemm(rows: Rows) -> Iterator[Class]:
    """Yield the fused experts by data type and kernel; kernels with few rows are left out."""
    for r in rows:
        r["suffix"] = next(s for part, s in _SUFFIXES if part in r["kernel_source"])
    for (machine, dtype, suffix), part in group(rows, "hardware", "dtype", "suffix").items():
        hardware = load_hardware(HARDWARE[machine])
        ascend = hardware.vendor == "Huawei"
        if len(part) < _FEWEST and not ascend:
            continue
        arithmetic, variant, bits = _DTYPES[dtype]
        names = (
            "num_tokens",
            "hidden_size",
            "inter_size",
            "topk",
            "num_experts",
            "moe_ep_size",
            "moe_tp_size",
        )
        sizes = tuple(column(part, n) for n in names)
        gated = np.array([(int(h), int(i)) not in _UNGATED for h, i in zip(sizes[1], sizes[2])])
        # Ascend's rows do not say how tokens were routed; their times at few tokens fit random choices
        skewed = np.array([r["distribution"].startswith("power_law") for r in part])
        plain = "uniform" if ascend else "balanced"
        tiles, elsewhere = _OWN_TILES.get(variant + suffix, _TILES[suffix])
        structure = {"knee": 2, **tiles}
        parameters = [*_PARAMETERS[: 3 if ascend else None], *([_ELSEWHERE] if elsewhere else [])]

        def predict(
            constants: Mapping[str, float],
            s: Any,
            *,
            a: Any = (hardware, sizes, gated, skewed, plain, arithmetic, bits, structure),
        ) -> Any:
            machine, sizes, gated, skewed, plain, dtype, bits, structure = a
            out = np.empty(len(skewed))
            for mask, routing in ((~skewed, plain), (skewed, "skewed")):
                if mask.any():
                    out[mask] = grouped.time_us(
                        machine,
                        *(x[mask] for x in sizes),
                        dtype,
                        fit=Fit(constants, structure),
                        routing=routing,
                        gated=gated[mask],
                        weight_bits=bits,
                    )
            return out[s]

        tokens, hidden, inter, topk, experts, ep, tp = sizes
        copies = tokens * topk / ep
        weights = (2 + gated) * hidden * inter / tp
        hit = np.minimum(experts / ep, np.maximum(copies, 1))
        sites: list[Any] = list(zip(hidden, inter, topk, experts))
        few = len(set(sites)) < 4
        yield Class(
            hardware=hardware.name,
            key=f"grouped_gemm/{variant}{suffix}",
            measured=times(part),
            sites=list(zip(tokens, ep, tp)) if few else sites,
            site_name="(tokens, ep, tp)" if few else "model configuration",
            predict=predict,
            parameters=parameters,
            structure=structure,
            flops=2 * copies * weights,
            bytes=hit * weights * (bits or (16 if arithmetic == "bfloat16" else 8)) / 8 + 4 * copies * hidden,
            peak=hardware.peak(arithmetic),
            rate=hardware.bandwidth,
            source=f"fitted to {tools(part)}",
            parts={plain: ~skewed, "skewed": skewed},
            goals={"balanced": "grouped gemm, balanced", "skewed": "grouped gemm, skewed"},
            prior=0.1,
            weights=np.where(skewed, 1.0, 3.0),  # most rows are skewed, and tell less of the other constants
        )
