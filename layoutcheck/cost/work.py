"""What an op has to do, before any hardware: arithmetic, traffic, wire bytes."""

from __future__ import annotations

from attrs import frozen

from layoutcheck.cost.algebra import Num

DTYPE_BITS: dict[str, int] = {
    "float64": 64,
    "float32": 32,
    "float16": 16,
    "bfloat16": 16,
    "float8_e4m3fn": 8,
    "float8_e5m2": 8,
    "int8": 8,
    "int4": 4,
    "float4": 4,
}
"""Bits of an element as it is stored, scales left out."""


@frozen
class Work:
    """Arithmetic and traffic of one op on one rank.

    ``flops`` counts a multiply-add as two and is done in ``dtype``; ``read`` and ``write`` are bytes of
    memory, every operand counted once; ``wire`` is bytes that this rank sends.
    """

    flops: Num = 0
    read: Num = 0
    write: Num = 0
    wire: Num = 0
    dtype: str = "bfloat16"

    @property
    def traffic(self) -> Num:
        """Bytes read and written."""
        return self.read + self.write


def bytes_of(elements: Num, dtype: str) -> Num:
    """Return the bytes of so many elements; whole bytes for the 4-bit types are a rational number."""
    from layoutcheck.errors import InputError

    bits = DTYPE_BITS.get(dtype)
    if bits is None:
        raise InputError(f"no size is known for the data type {dtype!r}; known are {', '.join(DTYPE_BITS)}")
    if bits % 8 == 0:
        return elements * (bits // 8)
    from layoutcheck.cost.algebra import ceil_div

    return ceil_div(elements * bits, 8)
