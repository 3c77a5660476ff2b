"""Ops that are bound by memory: elementwise, norms, rotary embedding, quantising, embedding rows.

    launch + max(bytes / (bandwidth x memory), flops / vector peak)

No collection here measured them alone. What is known of quantising comes from the quantised products (it is
the ``quantise`` constant there); the rest uses the assumed share of the bandwidth, and says that it is not
measured.
"""

from __future__ import annotations

from layoutcheck.cost.algebra import Num, maximum
from layoutcheck.cost.hardware import Fit, Hardware
from layoutcheck.cost.work import Work


def work(elements: Num, reads: int = 1, writes: int = 1, size: int = 2, flops: int = 1) -> Work:
    """Return the work of an elementwise op with so many operands and results of ``size`` bytes an element."""
    return Work(flops=flops * elements, read=elements * reads * size, write=elements * writes * size)


def moved_us(hardware: Hardware, moved: Num, flops: Num = 0, *, fit: Fit | None = None) -> Num:
    """Return the microseconds of an op that moves so many bytes and does so many vector flops."""
    fit = fit or hardware.fit("elementwise")
    time = moved / (hardware.bandwidth * fit.get("memory", 0.6))
    return fit.get("launch", hardware.launch_us) + maximum(time, flops / hardware.vector)


def elementwise_us(hardware: Hardware, elements: Num, reads: int = 1, writes: int = 1, size: int = 2) -> Num:
    """Return the microseconds of an elementwise op."""
    return moved_us(hardware, elements * (reads + writes) * size, elements)


def norm_us(hardware: Hardware, rows: Num, width: Num, residual: bool = False, size: int = 2) -> Num:
    """Return the microseconds of an RMS norm; with ``residual`` the sum is read, added and written too."""
    moved = rows * width * size * (4 if residual else 2) + width * size
    return moved_us(hardware, moved, 4 * rows * width)


def quantise_us(hardware: Hardware, elements: Num, from_size: int = 2, to_size: int = 1) -> Num:
    """Return the microseconds of turning values into codes, scales included.

    Where the hardware's quantised products were measured, their ``quantise`` constant is used.
    """
    for variant in ("int8", "float8_e4m3fn"):
        fit = hardware.kernels.get("gemm", {}).get(variant)
        if fit is not None and "quantise" in fit.constants:
            return hardware.launch_us + elements * fit.constants["quantise"] * 1e-6
    return moved_us(hardware, elements * (from_size + to_size), 2 * elements)
