"""Random programs whose author does not know what is right: any op of a wide table on any values.

Every call is run at once on all ranks and on one device; what a value is (whole, a share, a summand, or nothing that
stands for one device's value) is seen from the numbers. Conversions mostly follow that, everything else is drawn.
The checker is told nothing: what it calls clean on every rank must end equal to one device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from layoutcheck.graph import Graph, Node, Ref, TensorMeta
from layoutcheck.ranks.denote import close
from layoutcheck.ranks.interpreter import RankError, perform_all, run_node

from .programs import Tape

Tensor = torch.Tensor
H = 12
WILD = "?"


@dataclass
class Held:
    """A value: its node (or item of one), what each rank holds, and what one device does."""

    name: str
    ranks: list[Tensor]
    whole: Tensor

    def seen(self) -> tuple[str, int]:
        """`F`, `L` along a dimension, `P` or `?`, as the numbers show; the rows of padding may be anything."""
        wanted = self.whole
        if all(fits(x, wanted) for x in self.ranks):
            return "F", 0
        for dim in range(wanted.dim()):
            if all(x.dim() == wanted.dim() for x in self.ranks):
                try:
                    joined = torch.cat(self.ranks, dim)
                except RuntimeError:
                    continue
                if fits(joined, wanted):
                    return "L", dim
        alike = all(x.shape == self.ranks[0].shape for x in self.ranks) and wanted.is_floating_point()
        if alike and fits(torch.stack(self.ranks).sum(0), wanted):
            return "P", 0
        return WILD, 0


def fits(x: Tensor, wanted: Tensor) -> bool:
    """Whether x is the wanted value, but for rows behind the end of one dimension."""
    if x.dim() != wanted.dim() or x.dtype != wanted.dtype:
        return False
    longer = [d for d in range(x.dim()) if x.shape[d] != wanted.shape[d]]
    if len(longer) > 1 or any(x.shape[d] < wanted.shape[d] for d in longer):
        return False
    for d in longer:
        x = x.narrow(d, 0, wanted.shape[d])
    return close(x, wanted)


@dataclass
class Careless:
    """Graphs of p ranks under construction, and the values that they have so far."""

    tape: Tape
    steps: Sequence[Callable[[Careless], None]]
    nodes: list[list[Node]] = field(default_factory=list)
    values: list[dict[str, Any]] = field(default_factory=list)
    wholes: dict[str, Any] = field(default_factory=dict)
    inputs: list[dict[str, Any]] = field(default_factory=list)
    given: dict[str, Any] = field(default_factory=dict)
    pool: list[Held] = field(default_factory=list)
    count: int = 0

    def __post_init__(self) -> None:
        take = self.tape.take
        self.p = 2 + take(3)
        self.T = (2 + take(2)) * self.p if take(3) else 1 + take(2 * self.p + 1)
        self.rows = -(-self.T // self.p)
        self.pad = self.rows * self.p - self.T
        self.generator = torch.Generator().manual_seed(take(1 << 16))
        self.nodes = [[] for _ in range(self.p)]
        self.values = [{} for _ in range(self.p)]
        self.inputs = [{} for _ in range(self.p)]
        self.group = tuple(range(self.p))
        for _ in range(2):
            x = self.random(self.T, H)
            self.enter(f"[T, {H}]", [x] * self.p, x)
        for _ in range(3):
            getattr(self, ("cut", "mlp", "cut")[take(3)])()

    def random(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def enter(self, layout: str, ranks: Sequence[Tensor], whole: Tensor, keep: bool = True) -> str:
        """An input with a declared layout."""
        self.count += 1
        name = f"in{self.count}"
        dtype = "float32" if whole.is_floating_point() else str(whole.dtype)[6:]
        for r, x in enumerate(ranks):
            self.nodes[r].append(
                Node(name, "placeholder", name, meta=TensorMeta(tuple(x.shape), dtype, layout))
            )
            self.inputs[r][name] = x.clone()
            self.values[r][name] = self.inputs[r][name].clone()
        self.wholes[name] = whole.clone()
        if keep:
            self.pool.append(Held(name, [v[name] for v in self.values], self.wholes[name]))
        return name

    def call(
        self, target: str, args: Sequence[Any], whole: Any = None, keep: bool = True, **kwargs: Any
    ) -> str | None:
        """A call on all ranks and, with the arguments `whole` (the same where None), on one device; a function as an
        argument gives each rank its own. None where it does not run. A function as `whole` computes it.
        """
        self.count += 1
        name = f"n{self.count}"
        mine = [tuple(a(r) if callable(a) else a for a in args) for r in range(self.p)]
        calls = [Node(name, "call_function", target, a, dict(kwargs)) for a in mine]
        try:
            results = perform_all(calls, self.values, {}, lambda r, g: list(g))
            if callable(whole):
                one = whole()
            else:
                one = run_node(
                    Node(
                        name, "call_function", target, tuple(args if whole is None else whole), dict(kwargs)
                    ),
                    self.wholes,
                    {},
                )
        except RankError:
            return None
        for r, (node, x) in enumerate(zip(calls, results)):
            self.nodes[r].append(node)
            self.values[r][name] = x
        self.wholes[name] = one
        if isinstance(one, (tuple, list)):
            for i in range(len(one)):
                self.item(name, i)
        elif keep:
            self.keep(name)
        return name

    def item(self, name: str, i: int) -> None:
        self.call("operator.getitem", (Ref(name), i), lambda: self.wholes[name][i])

    def keep(self, name: str) -> None:
        one, ranks = self.wholes[name], [v[name] for v in self.values]
        if isinstance(one, Tensor) and all(isinstance(x, Tensor) for x in ranks) and one.numel() < 5000:
            self.pool.append(Held(name, ranks, one))

    # ---- steps

    def pick(self, kinds: str = "f", dims: int = 0) -> Held | None:
        """One of the latest values of kind f (float), i (int64), b (bool) or z (complex)."""
        found = [
            v for v in self.pool if kind_of(v.whole) in kinds and v.whole.dim() >= dims and v.whole.numel()
        ]
        found = [v for v in found if all(x.dim() == v.whole.dim() and x.numel() for x in v.ranks)]
        back = self.tape.take(6)
        return found[-1 - back % len(found)] if found else None

    def step(self) -> None:
        if self.tape.take(3) == 0:
            self.convert()
        elif self.tape.take(8) == 0:
            self.mlp()
        else:
            self.steps[self.tape.take(len(self.steps))](self)

    def mlp(self) -> None:
        """A product with a weight that the group cuts: over the inner dimension a summand, over the outer a shard."""
        x = self.pick("f", 1)
        if x is None or x.whole.shape[-1] != H:
            return
        w, way = self.random(H, H) / H**0.5, self.tape.take(3)
        if way == 2:
            ref = self.enter(f"[{H}, {H}]", [w] * self.p, w, keep=False)
            self.call("aten.linear.default", (Ref(x.name), Ref(ref)))
            return
        if way == 1 and H % self.p == 0:
            ref = self.enter(f"[{H}/{self.p}@tp, {H}]", w.chunk(self.p, 0), w, keep=False)
            self.call("aten.linear.default", (Ref(x.name), Ref(ref)))
            return
        up, down = self.random(2 * H, H) / H**0.5, self.random(H, 2 * H) / H**0.5
        a = self.enter(f"[{2 * H}/{self.p}@tp, {H}]", up.chunk(self.p, 0), up, keep=False)
        b = self.enter(f"[{H}, {2 * H}/{self.p}@tp]", down.chunk(self.p, 1), down, keep=False)
        y = self.call("aten.linear.default", (Ref(x.name), Ref(a)), keep=False)
        y = y and self.call("aten.silu.default", (Ref(y),), keep=False)
        if y:
            self.call("aten.linear.default", (Ref(y), Ref(b)))

    def cut(self) -> None:
        """A whole value's share, of tokens or of anything else that divides."""
        x = self.pick("fib", 1)
        if x is None:
            return
        dim = 0 if self.tape.take(3) else self.tape.take(x.whole.dim())
        n, name = x.ranks[0].shape[dim], x.name
        if n == self.T and self.pad and dim == 0:
            widths = (0, 0) * (x.whole.dim() - 1) + (0, self.pad)
            padded = self.call(
                "aten.constant_pad_nd.default", (Ref(name), widths, 0), lambda: x.whole.clone(), keep=False
            )
            if padded is None:
                return
            name, n = padded, n + self.pad
        if n % self.p:
            return
        c = n // self.p
        shift = 1 if self.tape.take(12) == 11 else 0
        self.call(
            "aten.slice.Tensor",
            (Ref(name), dim, lambda r: (r + shift) % self.p * c, lambda r: (r + shift) % self.p * c + c),
            lambda: self.wholes[name],
        )

    def convert(self, of: Held | None = None, sins: bool = True) -> bool:
        """What the numbers of a value ask for, now and then something else; whether a call was made."""
        x = of or self.pick("fi")
        if x is None:
            return False
        state, dim = x.seen()
        if sins and self.tape.take(10) == 9:
            state, dim = "LPF"[self.tape.take(3)], self.tape.take(max(x.whole.dim(), 1))
        before = len(self.pool)
        end = tuple(self.group)
        if state == "L" and x.whole.dim():
            name = self.call(
                "tensor_cast.all_gather.default",
                (Ref(x.name), dim, lambda r: r, end),
                lambda: x.whole.clone(),
                keep=False,
            )
            if name is None:
                return False
            longer = self.values[0][name].shape[dim] - x.whole.shape[dim]
            if longer > 0 and not (sins and self.tape.take(8) == 7):
                self.call(
                    "aten.slice.Tensor", (Ref(name), dim, 0, x.whole.shape[dim]), lambda: self.wholes[name]
                )
            else:
                self.keep(name)
        elif state == "P" and x.whole.is_floating_point():
            if self.tape.take(2) and x.whole.dim() and x.ranks[0].shape[0] % self.p == 0:
                self.call(
                    "tensor_cast.reduce_scatter.default",
                    (Ref(x.name), 0, lambda r: r, end),
                    lambda: x.whole.clone(),
                )
            else:
                self.call(
                    "tensor_cast.all_reduce.default", (Ref(x.name), lambda r: r, end), lambda: x.whole.clone()
                )
        elif state == "F" and sins:
            self.cut()
        return len(self.pool) > before

    def finish(self) -> tuple[list[Graph], Held]:
        """The graphs, with the last value made whole as far as the numbers tell how."""
        last = self.pool[-1]
        if last.seen()[0] in "LP" and self.convert(last, sins=False):
            last = self.pool[-1]
            if last.seen()[0] == "L" and self.convert(last, sins=False):
                last = self.pool[-1]
        longer = [d for d, (n, m) in enumerate(zip(last.ranks[0].shape, last.whole.shape)) if n > m]
        if last.seen()[0] == "F" and longer:
            self.call(
                "aten.slice.Tensor",
                (Ref(last.name), longer[0], 0, last.whole.shape[longer[0]]),
                lambda: last.whole,
            )
            last = self.pool[-1]
        graphs = []
        for r in range(self.p):
            meta = (TensorMeta(tuple(last.ranks[r].shape), "float32"),)
            self.nodes[r].append(Node("output", "output", "output", ((Ref(last.name),),), meta=meta))
            config = {"groups": {"tp": list(range(self.p))}, "tp_size": self.p, "world_size": self.p}
            graphs.append(Graph(self.nodes[r], rank=r, config=config))
        return graphs, last


def kind_of(x: Tensor) -> str:
    if x.is_complex():
        return "z"
    if x.is_floating_point():
        return "f"
    return "b" if x.dtype == torch.bool else "i"
