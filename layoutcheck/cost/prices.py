"""Prices of single ops and conversions, in seconds: the one interface through which layouts are chosen by price.

::

    class Prices(Protocol):
        name: str
        def collective(self, kind: str, bytes_local: int, group_size: int) -> float: ...
        def op(self, call: OpInstance, layouts: Sequence[Any], outputs: Sequence[Any]) -> float: ...

``collective`` takes one of :data:`KINDS`, the bytes that *one rank holds before* the conversion (an all_gather's share, the
addend of a reduce_scatter or an all_reduce), and the number of ranks. ``op`` takes an op instance of a
:class:`~layoutcheck.program.Program`, the layouts (or sizes) of its inputs in slot order, and those of its outputs; what it answers
is one rank's time with these local shapes.

Two implementations::

    ByteRates()                                  # bytes over a default bandwidth: 200 GB/s of links, 2 TB/s of memory
    HardwarePrices(load_hardware("ascend-a3"))   # the formulas and constants of a hardware file

Both take ``mesh=`` (for ops that name groups, such as a dispatch) and ``values=`` (numbers for symbolic sizes). Slices and the
removal of padding are views and cost nothing; padding is written out. A group of one rank costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from attrs import define, field

from layoutcheck.cost import collectives
from layoutcheck.cost.call_lines import filled_lines
from layoutcheck.cost.call_view import CallView
from layoutcheck.cost.hardware import Hardware, load_hardware
from layoutcheck.cost.kernel_map import KernelMap, load_kernel_map
from layoutcheck.cost.kernel_table import KERNELS, Kernel
from layoutcheck.cost.kernels.elementwise import moved_us
from layoutcheck.errors import InputError
from layoutcheck.layouts import Layout
from layoutcheck.mesh import Group, Mesh
from layoutcheck.program import OpInstance
from layoutcheck.roles.facts import facts_of_instance
from layoutcheck.symbols import Expr, Size, evaluate, free_symbols

MOVES = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
VIEWS = ("slice", "unpad")
KINDS = (*MOVES, *VIEWS, "pad")
"""Conversions that have a price."""


class Prices(Protocol):
    """What a conversion and an op cost one rank, in seconds (see the module's text)."""

    @property
    def name(self) -> str:
        """The name under which counts that follow from these prices are stated."""

    def collective(self, kind: str, bytes_local: int, group_size: int) -> float:
        """Seconds of a conversion of ``bytes_local`` bytes a rank over ``group_size`` ranks."""

    def op(self, call: OpInstance, layouts: Sequence[Any], outputs: Sequence[Any]) -> float:
        """Seconds of an op on inputs and outputs of these layouts."""


@define
class _OpSizes:
    """Local sizes as numbers: what a kernel line reads of layouts."""

    mesh: Mesh
    values: Mapping[str, int]

    def number(self, size: Size) -> int:
        if not isinstance(size, Expr):
            return size
        lacking = sorted(free_symbols(size) - self.values.keys())
        if lacking:
            raise InputError(f"a price needs a value for {', '.join(lacking)}")
        return evaluate(size, self.values)

    def named(self, size: Size) -> Size:
        return size

    def axes(self, of: Layout) -> tuple[Size, ...]:
        return tuple(self.number(n) for n in of.shape)

    def whole(self, of: Layout, axis: int) -> Size:
        total = 1
        for domain in dict.fromkeys(f.domain for f in of.axes[axis]):
            total *= self.number(domain.extent)
        return total

    def ranks(self, group: Group, exchange: bool = False) -> Size:
        return self.number(group.size)


@define
class _OpPrices:
    """Ops by the kernels that they run; what a kernel and unknown bytes cost is the subclass's."""

    mesh: Mesh = field(factory=lambda: Mesh([], {}, {}), kw_only=True)
    values: Mapping[str, int] = field(factory=dict, kw_only=True)
    kernels: KernelMap = field(factory=load_kernel_map, kw_only=True)
    _known: dict[Any, tuple[OpInstance, float]] = field(factory=dict, init=False, repr=False)

    def op(self, call: OpInstance, layouts: Sequence[Any], outputs: Sequence[Any]) -> float:
        """Seconds of an op on inputs and outputs of these layouts; an op without a known kernel costs its bytes.

        Raises:
            InputError: a size has a symbol without a value, or a kernel cannot be timed.
        """
        key: Any = (id(call), tuple(layouts), tuple(outputs))
        try:
            found = self._known.get(key)
        except TypeError:  # a list or another argument without a hash
            return self._op(call, layouts, outputs)
        if found is None:
            found = self._known[key] = (call, self._op(call, layouts, outputs))
        return found[1]

    def _op(self, call: OpInstance, layouts: Sequence[Any], outputs: Sequence[Any]) -> float:
        sizes = _OpSizes(self.mesh, self.values)
        view = CallView(call, list(layouts), list(outputs), sizes, {"context": self.values.get("context", 0)})
        lines: Any = "it has no rule"
        if call.rule is not None and call.error is None:
            first = next((of for of in layouts if isinstance(of, Layout)), None)
            rows = sizes.axes(first)[-2] if first is not None and first.rank >= 2 else None
            lines = filled_lines(self.kernels, view, call.rule, facts_of_instance(call), rows)
        if isinstance(lines, str):
            moved = view.bytes(view.operands) + view.bytes(view.outputs)
            return self._bytes(sizes.number(moved))
        return sum(self._kernel(KERNELS[line.kernel], given, options) for line, given, options in lines)

    def _kernel(self, kernel: Kernel, sizes: Mapping[str, Any], options: Mapping[str, Any]) -> float:
        raise NotImplementedError

    def _bytes(self, moved: int) -> float:
        raise NotImplementedError


@define
class ByteRates(_OpPrices):
    """Bytes over bandwidths, flops over one peak, no latencies: the default, the same on every machine.

    Attributes:
        link: bytes a second that a rank sends.
        memory: bytes a second that a rank reads or writes.
        compute: flop a second, of every data type.
    """

    link: float = 200e9
    memory: float = 2e12
    compute: float = 400e12
    name: str = "bytes"

    def collective(self, kind: str, bytes_local: int, group_size: int) -> float:
        """Seconds of a conversion: its wire bytes over the links; padding by what is read and written.

        Raises:
            InputError: not a conversion.
        """
        _check(kind)
        if kind in VIEWS or group_size <= 1:
            return 0.0
        if kind == "pad":
            return 2 * bytes_local / self.memory
        return float(
            collectives.wire_bytes(kind, _whole(kind, bytes_local, group_size), group_size) / self.link
        )

    def _kernel(self, kernel: Kernel, sizes: Mapping[str, Any], options: Mapping[str, Any]) -> float:
        work = kernel.work(sizes, options)
        if work.wire:
            return float(work.wire / self.link)
        return max(float(work.flops / self.compute), float(work.traffic / self.memory))

    def _bytes(self, moved: int) -> float:
        return moved / self.memory


@define
class HardwarePrices(_OpPrices):
    """The time formulas of kernels and collectives on a hardware, with its constants."""

    hardware: Hardware

    @property
    def name(self) -> str:
        """The hardware's name."""
        return self.hardware.name

    def collective(self, kind: str, bytes_local: int, group_size: int) -> float:
        """Seconds of a conversion; an all_reduce at the cheaper of itself and reduce_scatter with all_gather.

        Raises:
            InputError: not a conversion, or the ranks do not fill whole nodes.
        """
        _check(kind)
        if kind in VIEWS or group_size <= 1:
            return 0.0
        if kind == "pad":
            return float(moved_us(self.hardware, 2 * bytes_local)) / 1e6
        sizes = {"size": _whole(kind, bytes_local, group_size), "ranks": group_size}
        return self._kernel(KERNELS["collective"], sizes, {"op": kind})

    def _kernel(self, kernel: Kernel, sizes: Mapping[str, Any], options: Mapping[str, Any]) -> float:
        return float(kernel.time(self.hardware, sizes, options)) / 1e6

    def _bytes(self, moved: int) -> float:
        return float(moved_us(self.hardware, moved)) / 1e6


def _check(kind: str) -> None:
    if kind not in KINDS:
        raise InputError(f"no conversion is called {kind!r}; there are {', '.join(KINDS)}")


def _whole(kind: str, bytes_local: int, group_size: int) -> int:
    """Bytes of the whole buffer, by which collectives are priced."""
    return bytes_local * group_size if kind == "all_gather" else bytes_local


def prices_of(hardware: str | None) -> Prices | None:
    """The prices of a hardware, by its name or file; None for none. Raises InputError for one that there is not."""
    return None if hardware is None else HardwarePrices(hardware=load_hardware(hardware))
