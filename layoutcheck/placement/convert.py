"""The nodes that bring a value from one state to another."""

from __future__ import annotations

from typing import Any

import attrs

from layoutcheck.graph import Node, Ref, TensorMeta
from layoutcheck.layouts import Layout
from layoutcheck.placement.dialect import Dialect, filled
from layoutcheck.placement.tokens import Tokens
from layoutcheck.regions.names import Names
from layoutcheck.symbols import Size


@attrs.define
class Converter:
    """Writes conversions over one group; `made` counts them by kind."""

    tokens: Tokens
    dialect: Dialect
    names: Names
    rank: int
    ranks: tuple[int, ...]
    group: str

    def write(self, kind: str, source: Node, full: Layout, local: Layout | None) -> list[Node]:
        """The nodes of one conversion of the value that `source` gives; the last one gives the result.

        Args:
            kind: `slice`, `all_gather`, `reduce_scatter` or `all_reduce`.
            source: the node of the value, as it is named.
            full: its layout with all tokens.
            local: its layout as a share; None for an all_reduce.
        """
        dim = self.tokens.dim(full)
        dim = 0 if dim is None else dim
        if kind == "all_reduce":
            return self.collective(kind, source, 0, full)
        apart = self.tokens.apart(full)
        if apart is not None:
            return self._apart(kind, source, full, apart)
        if kind == "slice":
            out = self._padded(source, dim, full)
            out.append(self._share(out[-1] if out else source, dim))
            return [*out, *self._in_rows(out[-1], dim, full)]
        if kind == "reduce_scatter":
            out = self._padded(source, dim, full)
            return [*out, *self.collective(kind, out[-1] if out else source, dim, full)]
        out = self.collective(kind, source, dim, full)
        if self.tokens.is_padded:
            out.append(
                self._node("unpad", "aten.slice.Tensor", (Ref(out[-1].name), dim, 0, full.shape[dim]), source)
            )
            out.extend(self._in_rows(out[-1], dim, full))
        return out

    def _apart(self, kind: str, source: Node, full: Layout, apart: Layout) -> list[Node]:
        """A conversion of rows that are tokens of several sequences: between views in which sequences have an axis of their own."""
        short = self.tokens.local(apart)
        assert short is not None
        before, after = (short, apart) if kind == "all_gather" else (apart, short)
        place = self.tokens.place(apart)
        assert place is not None
        at = place[0]
        split = self._node("split", "aten.view.default", (Ref(source.name), before.shape), source)
        out = [split, *self.write(kind, split, apart, short)]
        rows = (*after.shape[: at - 1], after.shape[at - 1] * after.shape[at], *after.shape[at + 1 :])
        return [*out, self._node("joined", "aten.reshape.default", (Ref(out[-1].name), rows), source)]

    def _padded(self, source: Node, dim: int, full: Layout) -> list[Node]:
        if not self.tokens.is_padded:
            return []
        more: Size = self.tokens.total - self.tokens.domain.extent
        amounts = (*[0, 0] * (full.rank - 1 - dim), 0, more)
        return [self._node("pad", "aten.constant_pad_nd.default", (Ref(source.name), amounts, 0.0), source)]

    def _in_rows(self, source: Node, dim: int, full: Layout) -> list[Node]:
        """A copy in the order of its rows, where a view would not have it: later views may ask for that."""
        if all(n == 1 for n in full.shape[:dim]):
            return []
        return [self._node("rows", "aten.contiguous.default", (Ref(source.name),), source)]

    def _share(self, source: Node, dim: int) -> Node:
        share = self.tokens.share
        start: Size = share * self.rank
        args = (Ref(source.name), dim, start, start + share)
        return self._node("share", "aten.slice.Tensor", args, source)

    def collective(self, kind: str, source: Node, dim: int, full: Layout) -> list[Node]:
        """The nodes of one collective along an axis; `full` is the layout of a whole value."""
        out: list[Node] = []
        at = source
        turned = dim != 0 and not self.dialect.any_dim
        if turned:
            out.append(self._node("turned", "aten.transpose.int", (Ref(at.name), 0, dim), at))
            at = self._node("rows", "aten.contiguous.default", (Ref(out[-1].name),), at)
            out.append(at)
        given: dict[str, Any] = {
            "dim": dim,
            "rank": self.ranks[self.rank] if self.rank < len(self.ranks) else self.rank,
            "ranks": self.ranks,
            "size": self.tokens.group.size,
            "group": self.group,
        }
        for number, (target, args) in enumerate(self.dialect.steps[kind]):
            at = self._node(
                kind if number == 0 else "wait", target, filled(args, {**given, "x": Ref(at.name)}), source
            )
            out.append(at)
        if turned:
            out.append(self._node("back", "aten.transpose.int", (Ref(at.name), 0, dim), source))
            out.extend(self._in_rows(out[-1], dim, full))
        return out

    def _node(self, word: str, target: str, args: tuple[Any, ...], like: Node) -> Node:
        name = self.names.fresh(f"{_stem(like.name)}_{word}")
        return Node(name, "call_function", target, args, {}, None, None, like.module, like.module_type)


_WORDS = (
    "_split",
    "_joined",
    "_unpad",
    "_back",
    "_turned",
    "_rows",
    "_wait",
    "_pad",
    "_share",
    "_all_gather",
    "_reduce_scatter",
    "_all_reduce",
)


def _stem(name: str) -> str:
    """A name without the words of conversions that were written before it."""
    again = True
    while again:
        again = False
        for word in _WORDS:
            if name.endswith(word) and len(name) > len(word):
                name, again = name[: -len(word)], True
    return name


def meta_of(of: object) -> TensorMeta | None:
    """What is recorded of a value in a layout."""
    return TensorMeta(of.shape, of.dtype) if isinstance(of, Layout) else None
