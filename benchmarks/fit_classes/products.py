"""The dense products."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fit_classes.base import HARDWARE, LAUNCH, Class, Rows, column, group, share, times, tools
from layoutcheck.cost.fit import Parameter
from layoutcheck.cost.hardware import Fit, load_hardware
from layoutcheck.cost.kernels import gemm as product

_TENSOR_CORES = {"knee": 4, "drift": 0.5, "store": 0.5, "splits": 8, "split_cost": 8.0}
_CUBE = {
    "knee": 1,
    "streams": "weights",
    "splits": 1,
    "cache": 8 * 2**20,
    "tiles": [[16, 128], [32, 128], [64, 128], [128, 128]],
}
_QUANTISE = Parameter("quantise", 1.0, 0.01, 20.0)
_PROLOGUE = Parameter("prologue", 1.0, 0.05, 10.0)
_STRIDE = Parameter("stride", 1.0, 0.01, 5.0)

# dtype in the collection: (arithmetic, variant, structure, fourth constant, bits of a weight)
_PRODUCTS: dict[str, tuple[str, str, dict[str, Any], Parameter, float | None]] = {
    "bfloat16": ("bfloat16", "bfloat16", _TENSOR_CORES, _PROLOGUE, None),
    "fp8": ("float8_e4m3fn", "float8_e4m3fn", _TENSOR_CORES | {"prologue": 1.0}, _QUANTISE, None),
    # the scales of blocks are applied between the steps of the contraction: nothing overlaps
    "fp8_block": (
        "float8_e4m3fn",
        "float8_block",
        _TENSOR_CORES | {"prologue": 1.0, "knee": 1},
        _QUANTISE,
        None,
    ),
    "nvfp4": ("float4", "float4", _TENSOR_CORES | {"prologue": 1.0, "knee": 2}, _QUANTISE, 4.5),
}
_CUBE_PRODUCTS: dict[str, tuple[str, str, dict[str, Any], Parameter, float | None]] = {
    "bfloat16": ("bfloat16", "bfloat16", _CUBE, _STRIDE, None),
    "int8_w8a8_dynamic": (
        "int8",
        "int8",
        _CUBE | {"requantise": True, "row_overhead": 2048, "ramp": 0.05},
        _QUANTISE,
        None,
    ),
}


def gemm(rows: Rows) -> Iterator[Class]:
    """Yield the dense products. Both libraries run the same bf16 kernels; quantised ones are their own."""
    for r in rows:
        r["tool"] = "vllm" if r["framework"] == "VLLM" and r["dtype"] != "bfloat16" else ""
    for (machine, dtype, tool), part in group(rows, "hardware", "dtype", "tool").items():
        hardware = load_hardware(HARDWARE[machine])
        table = _CUBE_PRODUCTS if hardware.vendor == "Huawei" else _PRODUCTS
        arithmetic, variant, structure, fourth, bits = table[dtype]
        if tool:
            variant, structure = (
                f"{variant}@{tool}",
                structure | {"row_overhead": 4096 if dtype == "fp8" else 2048},
            )
        m, n, k = (column(part, x) for x in "mnk")

        def predict(
            constants: Mapping[str, float],
            s: Any,
            *,
            a: Any = (hardware, m, n, k, arithmetic, structure, bits),
        ) -> Any:
            machine, m, n, k, dtype, structure, bits = a
            fit = Fit(constants, structure)
            return product.time_us(machine, m[s], n[s], k[s], dtype, fit=fit, weight_bits=bits)

        goal = "gemm bf16, m >= 256" if dtype == "bfloat16" else "gemm quantised"
        todo = product.work(m, n, k, "bfloat16")
        size = 2.0 if dtype == "bfloat16" else (bits or 8) / 8
        yield Class(
            hardware=hardware.name,
            key=f"gemm/{variant}",
            measured=times(part),
            sites=list(zip(n, k)),
            site_name="(n, k)",
            predict=predict,
            parameters=[share("compute", 0.8), share("memory", 0.8, 4.0), LAUNCH, fourth],
            structure=structure,
            flops=todo.flops,
            bytes=size * (m * k + n * k) + 2 * m * n,
            peak=hardware.peak(arithmetic),
            rate=hardware.bandwidth,
            source=f"fitted to {tools(part)}",
            parts={"m >= 256": m >= 256, "m < 256": m < 256},
            # block-quantised rows of vLLM carry a floor of the measuring program: no goal is held against them
            goals={} if tool and dtype == "fp8_block" else {"m >= 256": goal},
        )
