"""The steps of careless programs: any op of a wide table, on whatever values there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from layoutcheck.graph import Ref

from .careless import Careless, kind_of

Tensor = torch.Tensor
H = 12
Step = Callable[[Careless], None]


def unary(target: str, *more: Any, kinds: str = "f", dims: int = 0, **kwargs: Any) -> Step:
    """An op on one value; `DIM` among its arguments is one of the value's dimensions."""

    def step(c: Careless) -> None:
        x = c.pick(kinds, dims)
        if x is None:
            return
        n = x.whole.dim()
        dim = c.tape.take(max(n, 1))
        dim = dim - n if n and c.tape.take(2) else dim
        fill = {DIM: dim, PERM: tuple((i + 1 + c.tape.take(2)) % n for i in range(n)) if n else ()}
        args = [[dim] if a is DIMS else fill.get(a, a) if isinstance(a, str) else a for a in more]
        c.call(target, (Ref(x.name), *args), **kwargs)

    return step


def binary(target: str, kinds: str = "ff", **kwargs: Any) -> Step:
    """An op on two values, of the same shape on rank 0 more often than not."""

    def step(c: Careless) -> None:
        x = c.pick(kinds[0])
        if x is None:
            return
        alike = [v for v in c.pool if v.ranks[0].shape == x.ranks[0].shape and kind_of(v.whole) == kinds[1]]
        y = alike[-1 - c.tape.take(4) % len(alike)] if alike and c.tape.take(4) else c.pick(kinds[1])
        if y is not None:
            c.call(target, (Ref(x.name), Ref(y.name)), **kwargs)

    return step


DIM, DIMS, PERM = "<dim>", "<dims>", "<perm>"


def several(target: str) -> Step:
    """cat or stack."""

    def step(c: Careless) -> None:
        x, y = c.pick("f", 1), c.pick("f", 1)
        if x is not None and y is not None:
            c.call(target, ((Ref(x.name), Ref(y.name)), c.tape.take(x.whole.dim())))

    return step


def shaped(target: str) -> Step:
    """A view: dimensions merged or taken apart, with sizes as each side has them."""

    def step(c: Careless) -> None:
        x = c.pick("f", 1)
        if x is None:
            return
        way, n = c.tape.take(5), x.whole.dim()
        at = c.tape.take(n)

        def sizes(t: Tensor) -> tuple[int, ...] | None:
            s = list(t.shape)
            if way == 0:
                return (t.numel(),)
            if s[at] < 6:  # on a rank, half of so little might be meant as a dimension of 1
                return None
            if way == 1 and s[at] % 2 == 0:
                return (*s[:at], 2, s[at] // 2, *s[at + 1 :])
            if way == 2 and s[at] % 3 == 0:
                return (*s[:at], s[at] // 3, 3, *s[at + 1 :])
            if way == 3 and n > 1:
                k = min(at, n - 2)
                return (*s[:k], s[k] * s[k + 1], *s[k + 2 :])
            if way == 4 and n > 1 and s[0] > 2 and s[0] % 2 == 0:
                return (s[0] // 2, *s[1:-1], s[-1] * 2)
            return None

        mine = [sizes(t) for t in x.ranks]
        one = sizes(x.whole)
        if one is not None and all(m is not None for m in mine):
            c.call(target, (Ref(x.name), lambda r: mine[r]), (Ref(x.name), one))

    return step


def pieces(target: str) -> Step:
    """A dimension in halves, by sizes or by number."""

    def step(c: Careless) -> None:
        x = c.pick("f", 1)
        if x is None:
            return
        dim = c.tape.take(x.whole.dim())
        half = c.tape.take(2)
        n = x.ranks[0].shape[dim]
        if target == "aten.chunk.default":
            c.call(target, (Ref(x.name), 2, dim))
        elif n % 2 == 0 and x.whole.shape[dim] % 2 == 0:
            size = x.whole.shape[dim] // 2 if half else n // 2
            c.call(target, (Ref(x.name), size, dim), (Ref(x.name), x.whole.shape[dim] // 2, dim))

    return step


def part(c: Careless) -> None:
    """A slice, narrow or select with literals as they are, or as a rank's sizes have them."""
    x = c.pick("f", 1)
    if x is None:
        return
    dim = c.tape.take(x.whole.dim())
    n, m = x.whole.shape[dim], x.ranks[0].shape[dim]
    way = c.tape.take(5)
    if way == 0:
        c.call("aten.select.int", (Ref(x.name), dim, c.tape.take(2) - 1))
    elif way == 1:
        c.call("aten.slice.Tensor", (Ref(x.name), dim, 0, m // 2), (Ref(x.name), dim, 0, n // 2))
    elif way == 2:
        c.call("aten.slice.Tensor", (Ref(x.name), dim, m // 2, m), (Ref(x.name), dim, n // 2, n))
    elif way == 3:
        c.call(
            "aten.slice.Tensor", (Ref(x.name), dim, c.tape.take(2), 9223372036854775807, 1 + c.tape.take(2))
        )
    else:
        k = c.tape.take(3)
        c.call("aten.slice.Tensor", (Ref(x.name), dim, 0, k))


def ids(c: Careless) -> None:
    """Positions: of tokens below T, or below the rank's rows, or features; as arange or as an input."""
    way = c.tape.take(5)
    if way == 0:
        c.call("aten.arange.default", (c.T,), dtype=None)
    elif way == 1:
        c.call("aten.arange.default", (c.rows,), dtype=None)
    elif way == 2:
        perm = torch.randperm(c.T, generator=c.generator)
        c.enter("[T]", [perm] * c.p, perm)
    elif way == 3:
        perm = torch.randint(0, H, (c.T,), generator=c.generator)
        c.enter("[T]", [perm] * c.p, perm)
    else:
        perm = torch.randint(0, H, (5,), generator=c.generator)
        c.enter("[5]", [perm] * c.p, perm)


def lookup(target: str) -> Step:
    """Rows or elements by an integer value."""

    def step(c: Careless) -> None:
        x, i = c.pick("f", 1), c.pick("i")
        if x is None or i is None:
            return
        dim = c.tape.take(x.whole.dim())
        if target == "aten.index.Tensor":
            c.call(target, (Ref(x.name), (None,) * (dim if c.tape.take(2) else 0) + (Ref(i.name),)))
        elif target == "aten.embedding.default":
            c.call(target, (Ref(x.name), Ref(i.name)))
        else:
            c.call(target, (Ref(x.name), dim, Ref(i.name)))

    return step


def put(target: str) -> Step:
    """Values written at positions."""

    def step(c: Careless) -> None:
        x, i, y = c.pick("f", 1), c.pick("i", 1), c.pick("f", 1)
        if x is None or i is None or y is None:
            return
        dim = c.tape.take(2)
        if "index_put" in target:
            c.call(target, (Ref(x.name), (Ref(i.name),), Ref(y.name), bool(c.tape.take(2))))
        else:
            c.call(target, (Ref(x.name), dim, Ref(i.name), Ref(y.name)))

    return step


def created(c: Careless) -> None:
    """A new tensor of a value's or a literal's size."""
    x = c.pick("f", 1)
    if x is None:
        return
    way = c.tape.take(4)
    if way == 0:
        c.call("aten.ones_like.default", (Ref(x.name),))
    elif way == 1:
        c.call("aten.full.default", (lambda r: tuple(x.ranks[r].shape), 0.5), (tuple(x.whole.shape), 0.5))
    elif way == 2:
        c.call(
            "aten.new_zeros.default",
            (Ref(x.name), lambda r: tuple(x.ranks[r].shape)),
            (Ref(x.name), tuple(x.whole.shape)),
        )
    else:
        c.call("aten.zeros.default", ((c.T, H),))


def masked(c: Careless) -> None:
    """where and masked_fill with a mask that was compared, or is given."""
    m, x, y = c.pick("b"), c.pick("f"), c.pick("f")
    if m is None or x is None or y is None:
        return
    way = c.tape.take(4)
    if way == 0:
        c.call("aten.masked_fill.Scalar", (Ref(x.name), Ref(m.name), 0.0))
    elif way == 1:
        c.call("aten.masked_fill.Scalar", (Ref(x.name), Ref(m.name), -2.0))
    else:
        c.call("aten.where.self", (Ref(m.name), Ref(x.name), Ref(y.name)))


def expanded(c: Careless) -> None:
    """A value spread along a new or a single dimension."""
    x = c.pick("f", 1)
    if x is None:
        return
    dim = c.tape.take(x.whole.dim() + 1)
    a = c.call("aten.unsqueeze.default", (Ref(x.name), dim), keep=False)
    if a is None:
        return
    spread = [-1] * (x.whole.dim() + 1)
    spread[dim] = (2, c.T, c.rows, H)[c.tape.take(4)]
    c.call("aten.expand.default", (Ref(a), tuple(spread)))


def written(target: str) -> Step:
    """An in-place op on a value or on a slice of it."""

    def step(c: Careless) -> None:
        x, y = c.pick("f", 1), c.pick("f", 1)
        if x is None or y is None or x.name.startswith("in"):
            return
        to = x.name
        if c.tape.take(2):
            dim = c.tape.take(x.whole.dim())
            n, m = x.whole.shape[dim], x.ranks[0].shape[dim]
            if n % 2 or m % 2:
                return
            view = c.call(
                "aten.slice.Tensor", (Ref(to), dim, 0, m // 2), (Ref(to), dim, 0, n // 2), keep=False
            )
            if view is None:
                return
            to = view
        if target.endswith("Scalar") or "fill_" in target:
            c.call(target, (Ref(to), 0.5))
        elif target in ("aten.zero_.default", "aten.relu_.default"):
            c.call(target, (Ref(to),))
        else:
            c.call(target, (Ref(to), Ref(y.name)))

    return step


def product(target: str) -> Step:
    """A product of two matrices as they are, or with the second turned."""

    def step(c: Careless) -> None:
        x, y = c.pick("f", 2), c.pick("f", 2)
        if x is None or y is None:
            return
        name = y.name
        if c.tape.take(2):
            turned = c.call("aten.transpose.int", (Ref(name), -1, -2), keep=False)
            if turned is None:
                return
            name = turned
        c.call(target, (Ref(x.name), Ref(name)))

    return step


def attention(c: Careless) -> None:
    """Attention of any values with a causal mask or without."""
    found = [c.pick("f", 2) for _ in range(3)]
    if any(x is None or x.whole.dim() != 2 for x in found):
        return
    four = [
        c.call(
            "aten.view.default",
            (Ref(x.name), lambda r, x=x: (1, 1, *x.ranks[r].shape)),
            (Ref(x.name), (1, 1, *x.whole.shape)),
            keep=False,
        )
        for x in found
        if x
    ]
    if all(four):
        out = c.call(
            "aten.scaled_dot_product_attention.default",
            (*[Ref(n) for n in four if n], None, 0.0, bool(c.tape.take(2))),
            keep=False,
        )
        if out:
            c.call("aten.squeeze.dim", (Ref(out), 0), keep=False)
            c.call(
                "aten.view.default",
                (Ref(out), lambda r: tuple(c.values[r][out].shape[2:])),
                (Ref(out), tuple(c.wholes[out].shape[2:])),
            )


def swapped(c: Careless) -> None:
    """Tokens in shares become features in shares, by an all_to_all, and the other way round."""
    x = c.pick("f", 2)
    if x is None or x.whole.dim() != 2 or len({t.shape for t in x.ranks}) > 1:
        return
    rows, width = x.ranks[0].shape
    state, dim = x.seen()
    group = tuple(c.group)
    if state != "L" or (rows if dim else width) % c.p:
        return
    if dim == 0:
        steps: list[tuple[str, tuple[Any, ...]]] = [
            ("aten.view.default", ((rows, c.p, width // c.p),)),
            ("aten.permute.default", ((1, 0, 2),)),
            ("aten.reshape.default", ((c.p * rows, width // c.p),)),
            ("tensor_cast.all_to_all.default", (None, None, lambda r: r, group)),
        ]
    else:
        steps = [
            ("tensor_cast.all_to_all.default", (None, None, lambda r: r, group)),
            ("aten.view.default", ((c.p, rows // c.p, width),)),
            ("aten.permute.default", ((1, 0, 2),)),
            ("aten.reshape.default", ((rows // c.p, c.p * width),)),
        ]
    name: str | None = x.name
    for i, (target, args) in enumerate(steps):
        name = name and c.call(target, (Ref(name), *args), lambda: x.whole.clone(), keep=i == 3)


REDUCTIONS = ("sum.dim_IntList", "mean.dim", "amax.default", "amin.default", "logsumexp.default")
STEPS: tuple[Step, ...] = (
    *[unary(f"aten.{op}", DIMS, keep) for op in REDUCTIONS for keep in (False, True)],
    *[
        unary(f"aten.{op}", DIM, dims=1)
        for op in (
            "cumsum.default",
            "cumprod.default",
            "prod.dim_int",
            "logcumsumexp.default",
            "softmax.int",
            "argsort.default",
            "sort.default",
            "argmax.default",
            "max.dim",
            "median.dim",
            "cummax.default",
        )
    ],
    unary("aten.var.correction", DIMS, dims=1),
    unary("aten.std.correction", DIMS, dims=1, correction=0),
    unary("aten.var_mean.correction", DIMS, dims=1),
    unary("aten.linalg_vector_norm.default", 2, DIMS, dims=1),
    unary("aten.norm.Scalar"),
    unary("aten.sum.default"),
    unary("aten.mean.default"),
    unary("aten.max.default"),
    unary("aten.topk.default", 1, DIM, dims=1),
    unary("aten.topk.default", 3, DIM, dims=1),
    unary("aten.topk.default", 3, -1, dims=1),
    unary("aten.kthvalue.default", 1, DIM, dims=1),
    *[
        unary(f"aten.{op}.default")
        for op in (
            "sigmoid",
            "abs",
            "neg",
            "square",
            "exp",
            "relu",
            "silu",
            "gelu",
            "floor",
            "round",
            "sign",
            "clone",
            "isnan",
            "tanh",
            "rsqrt",
            "reciprocal",
            "frac",
            "detach",
            "t",
            "logical_not",
            "nonzero",
            "numpy_T",
        )
    ],
    unary("aten.flip.default", DIMS, dims=1),
    unary("aten.roll.default", (1,), DIMS, dims=1),
    unary("aten.rot90.default", 1, (0, 1), dims=2),
    unary("aten.diff.default", 1, DIM, dims=1),
    unary("aten.transpose.int", 0, DIM, dims=2),
    unary("aten.permute.default", PERM, dims=2),
    unary("aten.triu.default", dims=2),
    unary("aten.tril.default", -1, dims=2),
    unary("aten.diagonal.default", dims=2),
    unary("aten.repeat_interleave.self_int", 2, DIM, dims=1),
    unary("aten.repeat.default", (2, 1), dims=1),
    unary("aten.constant_pad_nd.default", (0, 0, 0, 1), 0.0, dims=2),
    unary("aten.constant_pad_nd.default", (0, 1), 1.0, dims=1),
    unary("aten.constant_pad_nd.default", (0, 0, 1, 0), 0.0, dims=2),
    unary("aten.constant_pad_nd.default", (0, 0, 0, -1), 0.0, dims=2),
    unary("aten.unsqueeze.default", DIM),
    unary("aten.squeeze.default"),
    unary("aten.squeeze.dim", DIM, dims=1),
    unary("aten.flatten.using_ints", dims=1),
    unary("aten.unfold.default", DIM, 2, 1, dims=1),
    unary("aten.unfold.default", DIM, 2, 2, dims=1),
    unary("aten.as_strided.default", (2, 2), (1, 1), dims=2),
    unary("aten.mul.Scalar", 0.5),
    unary("aten.add.Scalar", 1.5),
    unary("aten.div.Scalar", 2.0),
    unary("aten.pow.Tensor_Scalar", 2),
    unary("aten.div.Tensor_mode", 0.3, rounding_mode="floor"),
    unary("aten.remainder.Scalar", 0.3),
    unary("aten.floor_divide.Scalar", 2, kinds="i"),
    unary("aten.clamp.default", -0.5, 0.5),
    unary("aten.to.dtype", "int64"),
    unary("aten.gt.Scalar", 0.0),
    unary("aten.eq.Scalar", 0.0),
    unary("aten.lt.Scalar", 2, kinds="i"),
    unary("aten.add.Scalar", 1, kinds="i"),
    unary("aten.one_hot.default", 12, kinds="i"),
    unary("aten.sum.dim_IntList", DIMS, kinds="ib", dims=1),
    unary("aten.cumsum.default", DIM, kinds="ib", dims=1),
    unary("aten.sort.default", kinds="i", dims=1),
    unary("aten.argsort.default", kinds="i", dims=1),
    unary("aten.bincount.default", kinds="i", dims=1),
    unary("aten.any.dim", DIM, kinds="b", dims=1),
    unary("aten.all.default", kinds="b"),
    unary("aten.logical_not.default", kinds="b"),
    unary("aten._to_copy.default", kinds="b", dtype=torch.float64),
    unary("aten.view_as_complex.default", dims=2),
    unary("aten.view_as_real.default", kinds="z"),
    unary("aten.abs.default", kinds="z"),
    unary("aten.real.default", kinds="z"),
    binary("aten.mul.Tensor", "zz"),
    unary("aten._fft_r2c.default", (0,), 0, True, dims=1),
    *[
        binary(f"aten.{op}")
        for op in (
            "add.Tensor",
            "sub.Tensor",
            "mul.Tensor",
            "div.Tensor",
            "maximum.default",
            "minimum.default",
            "add.Tensor",
            "mul.Tensor",
            "atan2.default",
            "fmod.Tensor",
            "dot.default",
            "outer.default",
            "cosine_similarity.default",
            "expand_as.default",
            "view_as.default",
            "polar.default",
        )
    ],
    *[
        binary(f"aten.{op}", kinds="ii")
        for op in ("add.Tensor", "eq.Tensor", "lt.Tensor", "floor_divide.default")
    ],
    *[binary(f"aten.{op}") for op in ("gt.Tensor", "eq.Tensor", "ge.Tensor")],
    binary("aten.logical_and.default", "bb"),
    binary("aten.mul.Tensor", "fb"),
    binary("aten.masked_select.default", "fb"),
    binary("aten.searchsorted.Tensor"),
    binary("tensor_cast.rms_norm.default"),
    several("aten.cat.default"),
    several("aten.stack.default"),
    several("aten.cat.default"),
    shaped("aten.view.default"),
    shaped("aten.reshape.default"),
    shaped("aten.view.default"),
    pieces("aten.split.Tensor"),
    pieces("aten.chunk.default"),
    part,
    part,
    ids,
    ids,
    created,
    masked,
    masked,
    expanded,
    expanded,
    attention,
    swapped,
    *[
        lookup(f"aten.{op}")
        for op in (
            "index.Tensor",
            "index_select.default",
            "gather.default",
            "embedding.default",
            "gather.default",
        )
    ],
    *[
        put(f"aten.{op}")
        for op in (
            "index_put.default",
            "index_add.default",
            "scatter.src",
            "scatter_add.default",
            "index_copy.default",
            "index_put_.default",
            "scatter_add_.default",
        )
    ],
    *[
        written(f"aten.{op}")
        for op in (
            "add_.Tensor",
            "mul_.Tensor",
            "copy_.default",
            "fill_.Scalar",
            "add_.Scalar",
            "relu_.default",
            "zero_.default",
            "mul_.Scalar",
        )
    ],
    *[product(f"aten.{op}") for op in ("matmul.default", "mm.default", "bmm.default", "linear.default")],
)
