"""A graph builder with what decoders of real sizes need: quantised linears, weights cut over groups, a group of experts."""

from __future__ import annotations

from layoutcheck.graph import DtypeArg, Graph, TensorMeta
from layoutcheck.models.builder import Builder, Value
from layoutcheck.models.config import ModelConfig
from layoutcheck.models.step import Step

BLOCK = 128


def cached_tokens(tokens: int) -> int:
    """Tokens that a written cache has room for: those of the step, in whole blocks, and a block more."""
    return (-(-tokens // BLOCK) + 1) * BLOCK


class Writer(Builder):
    """Appends the nodes of one rank's step. ``rows`` are a rank's own tokens."""

    def __init__(self, config: ModelConfig, step: Step) -> None:
        super().__init__(step.tp, step.tokens, dtype=config.dtype)
        self.config, self.step = config, step
        self.experts_group = tuple(range(step.ep))
        self.scale: Value | None = None

    @property
    def rows(self) -> int:
        """Tokens of a rank's share."""
        return self.tokens // self.ranks

    def finished(self, *results: Value) -> Graph:
        """The graph, with its groups."""
        graph = self.graph(*results)
        config: dict[str, object] = {"world_size": self.step.tp * self.step.dp, "tp_size": self.step.tp}
        if self.step.ep > 1:
            config["ep_size"] = self.step.ep
        graph.config = config
        graph.source = self.config.name
        return graph

    # ---- weights and linears

    def cut(self, *shape: int, axis: int | None = None, dtype: str | None = None) -> Value:
        """A weight of this local shape; ``axis`` is a rank's share of a feature over tp."""
        if axis is None or self.ranks == 1:
            return self.input("w", shape, dtype)
        text = [str(n) if i != axis else f"{n * self.ranks}/{self.ranks}@tp" for i, n in enumerate(shape)]
        return self.input("w", shape, dtype, f"[{', '.join(text)}]")

    def codes(self, x: Value) -> tuple[Value, Value | None]:
        """A value quantised with its scale, or as it is."""
        quant = self.step.quant
        if quant is None:
            return x, None
        metas = [(x.shape, quant), ((*x.shape[:-1], 1), "float32")]
        codes, scale = self.call_many(
            "tensor_cast.dynamic_quantize_symmetric.default", x, (-1,), out_dtype=DtypeArg(quant), metas=metas
        )
        return codes, scale

    def moved(self, module: str, rows: int, columns: int, dtype: str | None) -> Value:
        """A whole weight of a module: this rank's own, or from the ranks that the step says."""
        if self.ranks > 1 and module in self.step.gather:
            part = self.cut(rows // self.ranks, columns, axis=0, dtype=dtype)
            return self.all_gather(part)
        weight = self.input("w", (rows, columns), dtype)
        if self.ranks > 1 and module in self.step.distribute:
            return self.call(
                "c10d_functional.broadcast.default",
                *(weight, 0, "", self.group, self.ranks),
                shape=weight.shape,
                dtype=weight.dtype,
            )
        return weight

    def project(self, x: tuple[Value, Value | None], width: int, *, cut: str = "", module: str = "") -> Value:
        """A linear of ``width`` local columns. ``cut``: ``columns`` or ``rows`` of the weight lie on this rank only; ``module`` is
        its name where its weight may come from other ranks."""
        codes, scale = x
        inner = codes.shape[-1]
        axis = {"columns": 0, "rows": 1}.get(cut)
        quant = self.step.quant if scale is not None else None
        if module:
            weight = self.moved(module, width, inner, quant)
        else:
            weight = self.cut(width, inner, axis=axis, dtype=quant)
        turned = self.call("aten.permute.default", weight, (1, 0), shape=(inner, width), dtype=weight.dtype)
        shape = (*codes.shape[:-1], width)
        if scale is None:
            return self.call("aten.mm.default", codes, turned, shape=shape)
        out = DtypeArg(self.dtype)
        if quant == "int8":
            return self.call(
                "tensor_cast.static_quant_linear.default",
                *(codes, turned, self.scalar(), None, scale, None, None, out),
                shape=shape,
            )
        return self.call(
            "tensor_cast.fp8_linear.default", codes, turned, scale, self.scalar(), None, out, shape=shape
        )

    def constant(self, value: float) -> Value:
        """A number in the model's own data type."""
        given = {"dtype": DtypeArg(self.dtype)}
        return Value(
            self._append("aten.scalar_tensor.default", (value,), given, TensorMeta((), self.dtype)),
            (),
            self.dtype,
        )

    def scalar(self) -> Value:
        """A scale of weights."""
        if self.scale is None:
            self.scale = self.input("scale", (), "float32")
        return self.scale

    # ---- groups

    def spread(self, x: Value, style_local: bool) -> Value:
        """What layers hand on, of a sum over ranks: reduced to shares, or everywhere."""
        if self.ranks == 1:
            return x
        return self.reduce_scatter(x) if style_local else self.all_reduce(x)

    def whole(self, x: Value) -> Value:
        """All rows, of a rank's own."""
        return self.all_gather(x) if self.ranks > 1 else x

    def own(self, x: Value) -> Value:
        """A rank's own rows, of all."""
        return self.share(x) if self.ranks > 1 else x

    def cached(self, op: str, cache: Value, param: str, **values: Value) -> Value:
        """Rows written into a cache."""
        (written,) = self.wrapped(op, cache, param, [None], **values)
        self.show(written)
        return written

    def cache(self, *row: int, halves: bool = False) -> Value:
        """A paged cache that holds the step's tokens; with ``halves`` one for keys and one for values."""
        blocks = cached_tokens(self.tokens) // BLOCK
        return self.input("cache", (*((2,) if halves else ()), blocks, BLOCK, *row))
