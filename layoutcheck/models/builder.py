"""Building small graphs, one rank's view, with the shapes that the program computes on that rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import attrs

from layoutcheck.graph import Graph, Node, Other, Ref, TensorMeta
from layoutcheck.regions.markers import MarkerOps, marker_ops
from layoutcheck.regions.names import Names


@attrs.frozen
class Value:
    """A tensor of the graph: the node that stands for it, its local shape and dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: str


Body = Callable[["Builder", tuple[Value, ...]], tuple[Value, ...]]


@lru_cache(maxsize=1)
def _markers() -> MarkerOps:
    from layoutcheck.rules.rulebook import RuleBook

    return marker_ops(RuleBook.load())


class Builder:
    """Appends nodes in execution order; inputs come first.

    Args:
        ranks: size of the group `tp`; its ranks are 0 .. ranks - 1.
        tokens: the token extent T, a multiple of `ranks`.
        rank: the rank whose graph this is.
        expanded: `repeat` writes every repeat out instead of markers.
    """

    def __init__(
        self,
        ranks: int = 4,
        tokens: int = 16,
        *,
        rank: int = 0,
        expanded: bool = False,
        dtype: str = "bfloat16",
    ) -> None:
        self.ranks, self.tokens, self.rank, self.dtype = ranks, tokens, rank, dtype
        self.expanded = expanded
        self.group = tuple(range(ranks))
        self.module: str | None = None
        """The module path of the calls to come."""
        self.layer = 0
        """The number of the layer to come."""
        self.shown: list[Value] = []
        self._names = Names(())
        self._inputs: list[Node] = []
        self._nodes: list[Node] = []
        self._regions = 0

    # ---- nodes

    def call(
        self, target: str, *args: Any, shape: Sequence[int], dtype: str | None = None, **kwargs: Any
    ) -> Value:
        """Append `target(*args)` with one output of that shape."""
        meta = TensorMeta(tuple(shape), dtype or self.dtype)
        name = self._append(target, args, kwargs, meta)
        return Value(name, meta.shape, meta.dtype)  # type: ignore[arg-type]

    def call_many(
        self, target: str, *args: Any, metas: Sequence[tuple[Sequence[int], str] | None], **kwargs: Any
    ) -> list[Value]:
        """Append a call with several outputs, and a getitem for each that is a tensor."""
        found = tuple([None if m is None else TensorMeta(tuple(m[0]), m[1]) for m in metas])
        source = self._append(target, args, kwargs, found)
        whole = Value(source, (), "")
        out = []
        for i, meta in enumerate(metas):
            if meta is not None:
                out.append(self.call("operator.getitem", whole, i, shape=meta[0], dtype=meta[1]))
        return out

    def _append(self, target: str, args: Any, kwargs: dict[str, Any], meta: Any) -> str:
        name = self._names.fresh(target.split(".")[1] if "." in target else target)
        given = {k: _argument(v) for k, v in kwargs.items()}
        self._nodes.append(
            Node(name, "call_function", target, _argument(args), given, meta, module=self.module)
        )
        return name

    def input(
        self, name: str, shape: Sequence[int], dtype: str | None = None, layout: str | None = None
    ) -> Value:
        """An input, with its declared layout as text where given."""
        name = self._names.fresh(name)
        meta = TensorMeta(tuple(shape), dtype or self.dtype, layout)
        self._inputs.append(Node(name, "placeholder", name, (), {}, meta))
        return Value(name, tuple(shape), meta.dtype)

    def weight(self, *shape: int) -> Value:
        """An anonymous weight of this local shape."""
        return self.input("w", shape)

    def wrapped(
        self,
        op: str,
        base: Value,
        param: str,
        metas: Sequence[tuple[Sequence[int], str] | None],
        **kwargs: Any,
    ) -> list[Value]:
        """A functionalised call of an op that writes into `base`, its parameter `param`; the written base comes last."""
        namespace, name = op.split(".")[:2]
        operator = Other(f"<OpOverload(op='{namespace}.{name}', overload='default')>")
        more = {**kwargs, f"_{param}_base_index": 0, "_all_bases": (base,)}
        outs = [*metas, (base.shape, base.dtype)]
        return self.call_many("auto_functionalized_v2", operator, metas=outs, **more)

    def show(self, value: Value) -> None:
        """Let the graph's output read a value (a written cache)."""
        self.shown.append(value)

    # ---- regions

    def repeat(self, body: Body, values: tuple[Value, ...], times: int) -> tuple[Value, ...]:
        """Run a body `times` times on values that go from one repeat to the next; behind it the module is what it was."""
        module = self.module
        values = self._repeated(body, values, times)
        self.module = module
        return values

    def _repeated(self, body: Body, values: tuple[Value, ...], times: int) -> tuple[Value, ...]:
        if self.expanded or times == 1:
            for _ in range(times):
                values = body(self, values)
            return values
        ops = _markers()
        region = self._regions
        self._regions += 1
        values = self._mark(ops.begin, values, region)
        before = self.layer
        values = self._mark(ops.end, body(self, values), region)
        self.layer += (times - 1) * (self.layer - before)
        for _ in range(times - 1):
            values = self._mark(ops.copy, values, region)
        return values

    def _mark(self, target: str, values: tuple[Value, ...], region: int) -> tuple[Value, ...]:
        return tuple([self.call(target, v, region, shape=v.shape, dtype=v.dtype) for v in values])

    def graph(self, *results: Value) -> Graph:
        """The finished graph; its output reads what was shown, then the results."""
        out = Node("output", "output", "output", (tuple([Ref(v.name) for v in (*self.shown, *results)]),))
        config = {"world_size": self.ranks, "tp_size": self.ranks, "groups": {"tp": list(self.group)}}
        return Graph([*self._inputs, *self._nodes, out], "layoutcheck.testing", self.rank, config)

    # ---- collectives along dimension 0

    def all_reduce(self, x: Value) -> Value:
        """The sum of all ranks' values, on every rank."""
        return self.call(
            "tensor_cast.all_reduce.default", x, self.rank, self.group, shape=x.shape, dtype=x.dtype
        )

    def all_gather(self, x: Value) -> Value:
        """All ranks' rows."""
        shape = (x.shape[0] * self.ranks, *x.shape[1:])
        return self.call(
            "tensor_cast.all_gather.default", x, 0, self.rank, self.group, shape=shape, dtype=x.dtype
        )

    def reduce_scatter(self, x: Value) -> Value:
        """This rank's rows of the sum."""
        shape = (x.shape[0] // self.ranks, *x.shape[1:])
        return self.call(
            "tensor_cast.reduce_scatter.default", x, 0, self.rank, self.group, shape=shape, dtype=x.dtype
        )

    def all_to_all(self, x: Value) -> Value:
        """Equal shares of dimension 0, exchanged."""
        splits = (x.shape[0] // self.ranks,) * self.ranks
        return self.call(
            "tensor_cast.all_to_all.default",
            x,
            splits,
            splits,
            self.rank,
            self.group,
            shape=x.shape,
            dtype=x.dtype,
        )

    def share(self, x: Value) -> Value:
        """This rank's rows."""
        rows = x.shape[0] // self.ranks
        low = self.rank * rows
        return self.call(
            "aten.slice.Tensor", x, 0, low, low + rows, shape=(rows, *x.shape[1:]), dtype=x.dtype
        )

    # ---- small ops

    def linear(self, x: Value, width: int) -> Value:
        """`x @ w.T` for a new weight of `width` local rows."""
        w = self.weight(width, x.shape[-1])
        turned = self.call("aten.permute.default", w, (1, 0), shape=(x.shape[-1], width))
        return self.call("aten.mm.default", x, turned, shape=(x.shape[0], width))

    def view(self, x: Value, *shape: int) -> Value:
        """x with another shape."""
        return self.call("aten.view.default", x, shape, shape=shape, dtype=x.dtype)

    def norm(self, x: Value) -> Value:
        """A norm with a new weight."""
        return self.call("tensor_cast.rms_norm.default", x, self.weight(x.shape[-1]), 1e-6, shape=x.shape)

    def add(self, x: Value, y: Value) -> Value:
        """x + y."""
        return self.call("aten.add.Tensor", x, y, shape=x.shape)

    def add_norm(self, x: Value, y: Value) -> tuple[Value, Value]:
        """The norm of x + y, and x + y, as one fused op."""
        w = self.weight(x.shape[-1])
        both = [(x.shape, self.dtype)] * 2
        normed, total = self.call_many("tensor_cast.add_rms_norm2.default", x, y, w, 1e-6, metas=both)
        return normed, total

    def silu(self, x: Value) -> Value:
        """silu(x)."""
        return self.call("tensor_cast.silu.default", x, shape=x.shape)

    def multiply(self, x: Value, y: Value) -> Value:
        """x * y."""
        return self.call("aten.mul.Tensor", x, y, shape=x.shape)


def _argument(arg: Any) -> Any:
    if isinstance(arg, Value):
        return Ref(arg.name)
    if isinstance(arg, (list, tuple)):
        return tuple([_argument(a) for a in arg])
    return arg
