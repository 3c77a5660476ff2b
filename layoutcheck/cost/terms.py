"""Terms: what one call of a graph runs on one rank, with sizes as formulas over token counts and group sizes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from attrs import field, frozen

from layoutcheck.cost.kernel_table import KERNELS, Kernel
from layoutcheck.cost.work import Work
from layoutcheck.errors import InputError
from layoutcheck.symbols import Expr, Size, evaluate, free_symbols, to_sympy

BALANCED = "routing is balanced; --routing says otherwise"
"""The note of a graph with experts."""


@frozen
class Term:
    """A kernel or a collective of one call, run ``count`` times.

    Attributes:
        kernel: a name of ``KERNELS``; ``label`` says which of an op's kernels it is.
        call, node, op: the call's number in the program, its node's name, its op.
        role, layer: what the call is in the decoder, and which layers it stands for (``3-77``); empty where it has none.
        sizes: what the kernel is given.
        options: what is no size: ``dtype``, ``op`` of a collective, switches.
        regions: the repeated regions around it, the outer ones first: where each begins, and how often it runs altogether.
        again: the call has another role in other repeats, whose term stands before this one.
    """

    kernel: str
    label: str
    call: int
    node: str
    op: str
    role: str
    layer: str
    count: int
    sizes: Mapping[str, Size]
    options: Mapping[str, Any] = field(factory=dict)
    regions: tuple[tuple[int, int], ...] = ()
    again: bool = False

    @property
    def table(self) -> Kernel:
        """The kernel's functions."""
        return KERNELS[self.kernel]

    @property
    def prefetched(self) -> bool:
        """Whether it moves weights, which may run while the kernels of its region do."""
        return bool(self.options.get("weights"))

    def hidden(self, overlap: Collection[str]) -> bool:
        """Whether it moves weights by one of these collectives, which run beside kernels."""
        return self.prefetched and self.options["op"] in overlap

    @property
    def title(self) -> str:
        """The kernel with its label, such as ``gemm:query``; a collective by its operation."""
        name = str(self.options["op"]) if self.kernel == "collective" else self.kernel
        if self.options.get("weights"):
            name += " of weights"
        return f"{name}:{self.label}" if self.label else name

    def symbols(self) -> set[str]:
        """Names of the symbols in its sizes."""
        found: set[str] = set()
        for size in self.sizes.values():
            found |= free_symbols(size)
        return found

    def numbers(self, values: Mapping[str, int]) -> dict[str, int]:
        """The sizes at these counts.

        Raises:
            InputError: a symbol has no value.
        """
        return {n: evaluate(s, values) if isinstance(s, Expr) else s for n, s in self.sizes.items()}

    def formulas(self) -> dict[str, Any]:
        """The sizes as sympy expressions."""
        return {n: to_sympy(s) if isinstance(s, Expr) else s for n, s in self.sizes.items()}

    def work(self, sizes: Mapping[str, Any], options: Mapping[str, Any] | None = None) -> Work:
        """The work of one run at sizes of :meth:`numbers` or :meth:`formulas`."""
        return self.table.work(sizes, options or self.options)


@frozen
class Uncovered:
    """An op whose cost is not known: where, why, how often, and the bytes that it reads and writes."""

    op: str
    node: str
    count: int
    moved: Size
    reason: str


@frozen
class GraphCost:
    """All terms of a graph on one rank.

    Attributes:
        terms: in execution order.
        uncovered: calls of ops without a known cost.
        values: recorded values of the symbols.
        shares: divisions by groups that must come out even, as (dividend, divisor).
        notes: what was assumed.
        source: what it was read from.
        figures: by name, those of the model that stand in sizes as symbols.
    """

    terms: tuple[Term, ...]
    uncovered: tuple[Uncovered, ...]
    values: Mapping[str, int]
    shares: tuple[tuple[Size, Size], ...] = ()
    notes: tuple[str, ...] = ()
    source: str = ""
    figures: Mapping[str, int] = field(factory=dict)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name} = {value}" for name, value in self.values.items())
        return f"<GraphCost {self.source}: {len(self.terms)} terms, {len(self.uncovered)} ops uncovered; {sizes}>"

    def symbols(self) -> list[str]:
        """Names of all symbols, tokens first."""
        found: set[str] = set()
        for term in self.terms:
            found |= term.symbols()
        for item in self.uncovered:
            found |= free_symbols(item.moved)
        return sorted(found, key=lambda n: (n != "T", n))

    def at(self, given: Mapping[str, int]) -> dict[str, int]:
        """All symbols' values: the given ones, else the recorded ones.

        Raises:
            InputError: no such symbol, none has a value, a value below 1, or a group that does not divide what it cuts.
        """
        known = self.symbols()
        for name, value in given.items():
            if name not in known and name not in self.values:
                raise InputError(f"no size depends on {name}; there is {', '.join(known) or 'none'}")
            if value < (0 if name == "context" else 1):
                raise InputError(f"{name} is {value}")
        values = {**self.values, **given}
        for name in known:
            if name not in values:
                given_by = "--tokens N" if name == "T" else f"--at {name}=NUMBER"
                raise InputError(f"{name} has no value in the graph: give {given_by}")
        for whole, ways in self.shares:
            if free_symbols(ways) <= values.keys():
                n, size = evaluate(ways, values), evaluate(whole, values)
                if size % n:
                    raise InputError(f"{size} does not divide by {ways} = {n}")
        return values
