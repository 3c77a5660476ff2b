"""A builder of small `layoutcheck-graph/1` graphs, one rank's view, for tests.

The builder tracks shapes, so what it records is what the program computes on that rank. It speaks two
dialects of collectives: `tensor_cast` (rank lists, fused norms) and `c10d` (group names, each collective
followed by `wait_tensor`). Everything else is aten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Dim = int | str
Json = dict[str, Any]

DIALECTS = ("tensor_cast", "c10d")


def mul(dim: Dim, k: int) -> Dim:
    """`dim * k`; a share times the number of shares is the whole again."""
    if isinstance(dim, int):
        return dim * k
    if dim.endswith(f"//{k}"):
        return dim[: -len(f"//{k}")]
    return f"{k}*({dim})"


def share(dim: Dim, p: int) -> Dim:
    """`dim // p`; for text the caller assumes that p divides it."""
    return dim // p if isinstance(dim, int) else f"{dim}//{p}"


@dataclass(frozen=True)
class Val:
    """One tensor of the graph: the node that readers name, and `made_by`, the node that computes it."""

    name: str
    shape: tuple[Dim, ...]
    dtype: str
    made_by: str

    @property
    def ref(self) -> Json:
        return {"node": self.name}


def sizes(shape: Sequence[Dim]) -> list[Any]:
    """A shape as an argument; symbolic sizes are written as such."""
    return [n if isinstance(n, int) else {"size": n} for n in shape]


def encode(arg: Any) -> Any:
    """An argument in the JSON form."""
    if isinstance(arg, Val):
        return arg.ref
    if isinstance(arg, (list, tuple)):
        return [encode(item) for item in arg]
    return arg


class GraphBuilder:
    """Appends nodes in execution order.

    Args:
        groups: group name -> size; its ranks are consecutive (`ranks` overrides that, for strided groups).
        rank: the rank whose graph this is.
        T: the token extent, an integer, or a symbol's name.
        dialect: one of `DIALECTS`.
    """

    def __init__(
        self,
        groups: dict[str, int] | None = None,
        rank: int = 0,
        T: Dim = 16,
        dialect: str = "tensor_cast",
        ranks: dict[str, list[int]] | None = None,
        dtype: str = "bfloat16",
    ) -> None:
        self.sizes = groups if groups is not None else {"tp": 4}
        self.rank, self.T, self.dialect, self.dtype = rank, T, dialect, dtype
        self.ranks = ranks or {
            g: [rank // size * size + i for i in range(size)] for g, size in self.sizes.items()
        }
        self.nodes: list[Json] = []
        self.used: dict[str, int] = {}

    # ---- nodes

    def fresh(self, base: str) -> str:
        count = self.used.get(base, 0)
        self.used[base] = count + 1
        return base if count == 0 else f"{base}_{count}"

    def call(
        self, target: str, *args: Any, shape: tuple[Dim, ...], dtype: str | None = None, **kwargs: Any
    ) -> Val:
        """Append `target(*args)` with one tensor output of that shape."""
        name = self.fresh(target.split(".")[1] if "." in target else target)
        node: Json = {"name": name, "op": "call_function", "target": target, "args": encode(args)}
        if kwargs:
            node["kwargs"] = {k: encode(v) for k, v in kwargs.items()}
        node["meta"] = {"shape": list(shape), "dtype": dtype or self.dtype}
        self.nodes.append(node)
        return Val(name, tuple(shape), dtype or self.dtype, name)

    def call_many(self, target: str, *args: Any, metas: Sequence[tuple[tuple[Dim, ...], str]]) -> list[Val]:
        """Append a call with several outputs and one getitem for each."""
        name = self.fresh(target.split(".")[1])
        meta = [{"shape": list(shape), "dtype": dtype} for shape, dtype in metas]
        self.nodes.append(
            {"name": name, "op": "call_function", "target": target, "args": encode(args), "meta": meta}
        )
        parent = Val(name, (), "", name)
        items = []
        for i, (shape, dtype) in enumerate(metas):
            item = self.call("operator.getitem", parent, i, shape=shape, dtype=dtype)
            items.append(Val(item.name, item.shape, item.dtype, name))
        return items

    def _placeholder(self, name: str, shape: tuple[Dim, ...], dtype: str, layout: str | None) -> Val:
        name = self.fresh(name)
        meta: Json = {"shape": list(shape), "dtype": dtype}
        if layout is not None:
            meta["layout"] = layout
        node = {"name": name, "op": "placeholder", "target": name, "args": [], "meta": meta}
        first = next((i for i, n in enumerate(self.nodes) if n["op"] != "placeholder"), len(self.nodes))
        self.nodes.insert(first, node)
        return Val(name, tuple(shape), dtype, name)

    def weight(self, shape: tuple[Dim, ...], name: str | None = None, layout: str | None = None) -> Val:
        """A weight of that local shape; anonymous (`arg3_1`) and undeclared unless told otherwise."""
        if name is None:
            count = sum(n["op"] == "placeholder" for n in self.nodes)
            name = f"arg{count}_1"
        return self._placeholder(name, shape, self.dtype, layout)

    def input(
        self, name: str, shape: tuple[Dim, ...], dtype: str | None = None, layout: str | None = None
    ) -> Val:
        """An activation input, with its declared layout as text where given."""
        return self._placeholder(name, shape, dtype or self.dtype, layout)

    def tokens(self, name: str = "input_ids", batch: int | None = None) -> Val:
        """Full token ids `[T]`, or `[batch, T]`."""
        shape = (self.T,) if batch is None else (batch, self.T)
        return self._placeholder(name, shape, "int64", None)

    def output(self, values: list[Val], layouts: list[str | None] | None = None) -> Val:
        """The output node, with the declared boundary layouts where given."""
        meta = None
        if layouts is not None:
            meta = [
                None if text is None else {"shape": list(v.shape), "dtype": v.dtype, "layout": text}
                for v, text in zip(values, layouts)
            ]
        self.nodes.append(
            {"name": "output", "op": "output", "target": "output", "args": [encode(values)], "meta": meta}
        )
        return Val("output", (), "", "output")

    def graph(self, source: str = "built") -> Json:
        """The finished graph in the JSON form."""
        world = max(max(r) for r in self.ranks.values()) + 1 if self.ranks else 1
        config: Json = {"world_size": world, "groups": self.ranks}
        config.update({f"{g}_size": n for g, n in self.sizes.items()})
        return {
            "format": "layoutcheck-graph/1",
            "source": source,
            "rank": self.rank,
            "config": config,
            "nodes": self.nodes,
        }

    # ---- collectives

    def position(self, group: str) -> int:
        """This rank's index in its group."""
        return self.ranks[group].index(self.rank)

    def _c10d(self, op: str, x: Val, *args: Any, shape: tuple[Dim, ...]) -> Val:
        made = self.call(f"_c10d_functional.{op}.default", x, *args, shape=shape, dtype=x.dtype)
        waited = self.call("_c10d_functional.wait_tensor.default", made, shape=shape, dtype=x.dtype)
        return Val(waited.name, shape, x.dtype, made.name)

    def all_reduce(self, x: Val, group: str = "tp") -> Val:
        if self.dialect == "c10d":
            return self._c10d("all_reduce", x, "sum", group, shape=x.shape)
        return self.call(
            "tensor_cast.all_reduce.default", x, self.rank, self.ranks[group], shape=x.shape, dtype=x.dtype
        )

    def all_gather(self, x: Val, dim: int = 0, group: str = "tp") -> Val:
        """Gather along `dim`; c10d gathers along 0 and moves the shares with chunk and cat."""
        p, dim = self.sizes[group], dim % len(x.shape)
        shape = (*x.shape[:dim], mul(x.shape[dim], p), *x.shape[dim + 1 :])
        if self.dialect != "c10d":
            return self.call(
                "tensor_cast.all_gather.default",
                x,
                dim,
                self.rank,
                self.ranks[group],
                shape=shape,
                dtype=x.dtype,
            )
        stacked = (mul(x.shape[0], p), *x.shape[1:])
        whole = self._c10d("all_gather_into_tensor", x, p, group, shape=stacked)
        if dim == 0:
            return whole
        parts = self.call_many("aten.chunk.default", whole, p, metas=[(x.shape, x.dtype)] * p)
        moved = self.call("aten.cat.default", parts, dim, shape=shape, dtype=x.dtype)
        return Val(moved.name, shape, x.dtype, whole.made_by)

    def reduce_scatter(self, x: Val, dim: int = 0, group: str = "tp") -> Val:
        """Reduce and keep this rank's share of a dimension; p need not divide an integer."""
        p = self.sizes[group]
        shape = (*x.shape[:dim], share(x.shape[dim], p), *x.shape[dim + 1 :])
        if self.dialect != "c10d":
            where = (dim, self.rank, self.ranks[group])
            return self.call("tensor_cast.reduce_scatter.default", x, *where, shape=shape, dtype=x.dtype)
        if dim:
            parts = self.call_many("aten.chunk.default", x, p, dim, metas=[(shape, x.dtype)] * p)
            stacked = (mul(shape[0], p), *shape[1:])
            x = self.call("aten.cat.default", parts, 0, shape=stacked, dtype=x.dtype)
        return self._c10d("reduce_scatter_tensor", x, "sum", p, group, shape=shape)

    def all_to_all(self, x: Val, group: str = "tp") -> Val:
        """Exchange equal shares of dimension 0."""
        p = self.sizes[group]
        splits = [share(x.shape[0], p)] * p
        if self.dialect == "c10d":
            return self._c10d("all_to_all_single", x, splits, splits, group, shape=x.shape)
        args = (splits, splits, self.rank, self.ranks[group])
        return self.call("tensor_cast.all_to_all.default", x, *args, shape=x.shape, dtype=x.dtype)

    # ---- shape ops

    def view(self, x: Val, shape: tuple[Dim, ...]) -> Val:
        return self.call("aten.view.default", x, sizes(shape), shape=shape, dtype=x.dtype)

    def slice(self, x: Val, start: int, stop: int, dim: int = 0) -> Val:
        shape = (*x.shape[:dim], stop - start, *x.shape[dim + 1 :])
        return self.call("aten.slice.Tensor", x, dim, start, stop, shape=shape, dtype=x.dtype)

    def rank_slice(self, x: Val, group: str = "tp", at: int | None = None) -> Val:
        """This rank's share of dimension 0, or that of the rank at position `at`."""
        extent = x.shape[0]
        assert isinstance(extent, int)
        size = extent // self.sizes[group]
        index = self.position(group) if at is None else at
        return self.slice(x, index * size, (index + 1) * size)

    def pad_rows(self, x: Val, rows: int) -> Val:
        """Append zero rows; no node where there is nothing to append."""
        if rows == 0:
            return x
        assert isinstance(x.shape[0], int)
        pad = [0, 0] * (len(x.shape) - 1) + [0, rows]
        shape = (x.shape[0] + rows, *x.shape[1:])
        return self.call("aten.constant_pad_nd.default", x, pad, 0.0, shape=shape, dtype=x.dtype)

    # ---- layers

    def linear(self, x: Val, w: Val) -> Val:
        """`x @ w.T` for a weight `[out, in]` and rows of x, which may stand in a batch."""
        shape = (*x.shape[:-1], w.shape[0])
        if self.dialect == "c10d":
            return self.call("aten.linear.default", x, w, shape=shape)
        wt = self.call("aten.permute.default", w, [1, 0], shape=(w.shape[1], w.shape[0]))
        if len(x.shape) == 2:
            return self.call("aten.mm.default", x, wt, shape=shape)
        assert isinstance(x.shape[1], int) and isinstance(x.shape[0], int)
        rows = x.shape[0] * x.shape[1]
        flat = self.view(x, (rows, x.shape[2]))
        return self.view(self.call("aten.mm.default", flat, wt, shape=(rows, w.shape[0])), shape)

    def norm(self, x: Val) -> Val:
        width = x.shape[-1]
        w = self.weight((width,))
        if self.dialect == "c10d":
            return self.call("aten.rms_norm.default", x, [width], w, 1e-6, shape=x.shape)
        return self.call("tensor_cast.rms_norm.default", x, w, 1e-6, shape=x.shape)

    def add(self, x: Val, y: Val) -> Val:
        wide = x if (len(x.shape), x.shape) >= (len(y.shape), y.shape) else y
        return self.call("aten.add.Tensor", x, y, shape=wide.shape)

    def multiply(self, x: Val, y: Val) -> Val:
        wide = x if len(x.shape) >= len(y.shape) else y
        return self.call("aten.mul.Tensor", x, y, shape=wide.shape)

    def silu(self, x: Val) -> Val:
        op = "aten.silu.default" if self.dialect == "c10d" else "tensor_cast.silu.default"
        return self.call(op, x, shape=x.shape)

    def mlp(self, x: Val, inner: int, declared: tuple[str, str] | None = None) -> Val:
        """Column- then row-parallel linear of `inner` local features; the result is what one rank has."""
        width = x.shape[-1]
        up_layout, down_layout = declared or (None, None)
        up = self.weight((inner, width), layout=up_layout)
        gate = self.weight((inner, width), layout=up_layout)
        down = self.weight((width, inner), layout=down_layout)
        hidden = self.multiply(self.silu(self.linear(x, gate)), self.linear(x, up))
        return self.linear(hidden, down)

    def attention(
        self,
        x: Val,
        heads: int,
        head_dim: int,
        row_parallel: bool = True,
        declared: tuple[str, str] | None = None,
    ) -> Val:
        """Causal self-attention over `heads` local heads; ends in o_proj unless told not to."""
        in_layout, out_layout = declared or (None, None)
        batch, rows, width = x.shape if len(x.shape) == 3 else (1, *x.shape)
        wide = heads * head_dim
        inside: tuple[Dim, ...] = (batch, heads, rows, head_dim)

        def split(v: Val) -> Val:
            four = self.view(v, (batch, rows, heads, head_dim))
            return self.call("aten.permute.default", four, [0, 2, 1, 3], shape=inside)

        q, k, v = (split(self.linear(x, self.weight((wide, width), layout=in_layout))) for _ in range(3))
        op = "aten.scaled_dot_product_attention.default"
        mixed = self.call(op, q, k, v, None, 0.0, True, shape=inside)
        back = self.call("aten.permute.default", mixed, [0, 2, 1, 3], shape=(batch, rows, heads, head_dim))
        flat = (*x.shape[:-1], wide)
        joined = self.call("aten.reshape.default", back, sizes(flat), shape=flat)
        return self.linear(joined, self.weight((width, wide), layout=out_layout)) if row_parallel else joined

    def vocab_embedding(
        self, ids: Val, vocab: int, width: int, group: str = "tp", declare: bool = False
    ) -> Val:
        """The masked lookup in this rank's rows of the table: Partial over the group."""
        rows = vocab // self.sizes[group]
        start = self.position(group) * rows
        shape = ids.shape
        cut = f"[{vocab}/{self.sizes[group]}@{group}, {width}]"
        table = self.weight((rows, width), layout=cut if declare else None)
        lower = self.call("aten.ge.Scalar", ids, start, shape=shape, dtype="bool")
        upper = self.call("aten.lt.Scalar", ids, start + rows, shape=shape, dtype="bool")
        mine = self.call("aten.bitwise_and.Tensor", lower, upper, shape=shape, dtype="bool")
        local = self.call("aten.sub.Tensor", ids, start, shape=shape, dtype="int64")
        zero = self.call("aten.zeros_like.default", local, shape=shape, dtype="int64")
        safe = self.call("aten.where.self", mine, local, zero, shape=shape, dtype="int64")
        rows_of = self.call("aten.embedding.default", table, safe, shape=(*shape, width))
        column = self.call("aten.unsqueeze.default", mine, -1, shape=(*shape, 1), dtype="bool")
        other = self.call("aten.bitwise_not.default", column, shape=(*shape, 1), dtype="bool")
        nothing = self.call("aten.scalar_tensor.default", 0.0, shape=())
        self.nodes[-1]["kwargs"] = {"dtype": {"dtype": self.dtype}}
        return self.call("aten.where.self", other, nothing, rows_of, shape=(*shape, width))

    def embedding(self, ids: Val, vocab: int, width: int) -> Val:
        """The lookup in a whole table."""
        table = self.weight((vocab, width))
        return self.call("aten.embedding.default", table, ids, shape=(*ids.shape, width))
