"""Calls of torch's ops that are not pointwise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from layoutcheck.graph import DtypeArg

from .calls import Sample, Sz, X

F32 = DtypeArg("float32")
TH = X("t h")
BTH = X("b t h")


def _s(target: str, note: str = "", **args: Any) -> Sample:
    return Sample(target if target.count(".") > 1 else target + ".default", args, note=note)


def _rows(target: str, note: str, **args: Any) -> Sample:
    """A call that is read in two ways where a share has one row: not tried there."""
    return Sample(target, args, note=note, only=lambda p, T: p == 1 or -(-T // p) > 1)


def contractions() -> Iterator[Sample]:
    """Products."""
    yield _s("aten.mm", self=X("t k"), mat2=X("k n"))
    yield _s("aten.addmm", self=X("n"), mat1=X("t k"), mat2=X("k n"))
    yield _s("aten.addmm", "matrix added", self=X("t n"), mat1=X("t k"), mat2=X("k n"))
    yield _s("aten.bmm", self=X("b t k"), mat2=X("b k n"))
    yield _s("aten.baddbmm", self=X("b t n"), batch1=X("b t k"), batch2=X("b k n"))
    yield _s("aten.linear", input=X("b t k"), weight=X("n k"), bias=None)
    yield _s("aten.linear", "with bias", input=X("t k"), weight=X("n k"), bias=X("n"))
    yield _s("aten.matmul", self=X("b t k"), other=X("k n"))
    yield _s("aten.matmul", "batches", self=X("b t k"), other=X("b k n"))
    yield _s("aten.matmul", "vector", self=X("t k"), other=X("k"))
    yield _s("aten.einsum", equation="tk,kn->tn", tensors=[X("t k"), X("k n")])
    yield _s("aten.einsum", "heads", equation="thd,hdn->thn", tensors=[X("t h d"), X("h d n")])
    yield _s("aten.einsum", "summed tokens", equation="th,tn->hn", tensors=[X("t h"), X("t n")])
    yield _s("aten.mv", self=X("t k"), vec=X("k"))
    yield _s("aten.addmv", self=X("t"), mat=X("t k"), vec=X("k"))
    yield _s("aten.dot", self=X("k"), tensor=X("k"))
    yield _s("aten.outer", self=X("t"), vec2=X("n"))
    yield _s("aten._grouped_mm", "batched", self=X("e t k"), mat2=X("e k n"))
    yield _s("aten.conv1d", input=X("b h t"), weight=X("n h 1"))
    yield _s("aten.conv1d", "padded", input=X("b h t"), weight=X("n h 3", extents={"n": 12}), padding=[1])
    yield _s("aten.conv1d", "with bias", input=X("b h t"), weight=X("n h 1"), bias=X("n"))
    yield _s("aten.conv1d", "depthwise", input=X("b h t"), weight=X("h 1 3"), padding=[1], groups=12)


def attention() -> Iterator[Sample]:
    """Fused attention."""
    qkv: dict[str, Any] = dict(query=X("h t d"), key=X("h s d"), value=X("h s n"))
    sdpa = "aten.scaled_dot_product_attention"
    yield _s(sdpa, **qkv)
    yield _s(sdpa, "batches", query=X("b h t d"), key=X("b h s d"), value=X("b h s n"))
    yield _s(sdpa, "masked", **qkv, attn_mask=X("t s", states="cut"))
    yield _s(sdpa, "a mask a head", **qkv, attn_mask=X("h t s", "b"))
    yield _s(sdpa, "causal", query=X("h t d"), key=X("h t d"), value=X("h t n"), is_causal=True)
    yield _s(sdpa, "self", query=X("h t d"), key=X("h t d"), value=X("h t n"))
    yield _s(sdpa, "grouped", query=X("2 (h r) t d"), key=X("2 h s d"), value=X("2 h s n"), enable_gqa=True)
    for n in (2, 4):
        heads = {"h": n}
        one = dict(
            query=X("1 h t d", extents=heads),
            key=X("1 h s d", extents=heads),
            value=X("1 h s n", extents=heads),
        )
        yield _s(sdpa, f"{n} heads, one or more a rank", **one, attn_mask=X("1 1 t s", states="full"))
    yield _s("aten._scaled_dot_product_attention_math", **qkv)
    flash = "aten._scaled_dot_product_flash_attention_for_cpu.default"
    yield Sample(flash, dict(query=X("2 h t d"), key=X("2 h s d"), value=X("2 h s d")), fragile=True)
    yield Sample(
        flash,
        dict(query=X("2 h t d"), key=X("2 h t d"), value=X("2 h t d"), is_causal=True),
        note="causal",
        fragile=True,
    )


def reductions() -> Iterator[Sample]:
    """Reductions, scans, order."""
    for op in (
        "sum",
        "mean",
        "amax",
        "amin",
        "any",
        "all",
        "nansum",
        "logsumexp",
        "prod",
        "linalg_vector_norm",
    ):
        overload = {
            "sum": ".dim_IntList",
            "mean": ".dim",
            "any": ".dim",
            "all": ".dim",
            "prod": ".dim_int",
        }.get(op, ".default")
        for dim in (0, 1):
            value: Any = dim if op in ("any", "all", "prod") else [dim]
            x = X("t h", "b") if op in ("any", "all") else TH
            yield _s(f"aten.{op}{overload}", f"dim {dim}", self=x, dim=value)
        yield _s(
            f"aten.{op}{overload}",
            "dim -1 kept",
            self=X("b t h", "b") if op in ("any", "all") else BTH,
            dim=value if isinstance(value, int) else [-1],
            keepdim=True,
        )
    for op in ("sum", "mean", "max", "min", "median", "prod", "var", "std", "any", "all"):
        yield _s(f"aten.{op}.default", "everything", self=X("t h", "b") if op in ("any", "all") else TH)
    for op in ("var", "std", "var_mean"):
        for dim in (0, 1):
            yield _s(f"aten.{op}.correction", f"dim {dim}", self=TH, dim=[dim], correction=0)
            yield _s(f"aten.{op}.dim", f"dim {dim}", self=TH, dim=[dim], unbiased=False)
    for op in ("max", "min", "median"):
        for dim in (0, 1):
            yield _s(f"aten.{op}.dim", f"dim {dim}", self=X("t h", "rows"), dim=dim)
    yield _s("aten.count_nonzero.dim_IntList", self=X("t h", "i"), dim=[1])
    yield _s("aten.count_nonzero.dim_IntList", "tokens", self=X("t h", "i"), dim=[0])
    yield _s("aten.count_nonzero.default", self=X("t h", "i"))
    yield _s("aten.mode", self=X("t h", "rows"))
    yield _s("aten.kthvalue", self=X("t h", "rows"), k=2)
    yield _s("aten.aminmax", self=TH, dim=1)
    yield _s("aten.aminmax", "tokens", self=TH, dim=0)
    yield _s("aten.norm.ScalarOpt_dim", self=TH, p=2, dim=[1])
    yield _s("aten.norm.Scalar", self=TH)
    for op in ("argmax", "argmin"):
        for dim in (0, 1, None):
            yield _s(f"aten.{op}", f"dim {dim}", self=X("t h", "rows"), dim=dim)
    for op, overload in (
        ("cumsum", ""),
        ("cumprod", ""),
        ("logcumsumexp", ""),
        ("softmax", ".int"),
        ("log_softmax", ".int"),
        ("_safe_softmax", ""),
    ):
        for dim in (0, 1):
            yield _s(f"aten.{op}{overload or '.default'}", f"dim {dim}", self=TH, dim=dim)
    for op in ("_softmax", "_log_softmax"):
        for dim in (0, -1):
            yield _s(f"aten.{op}", f"dim {dim}", self=TH, dim=dim, half_to_float=False)
    for op in ("cummax", "cummin"):
        for dim in (0, 1):
            yield _s(f"aten.{op}", f"dim {dim}", self=X("t h", "rows"), dim=dim)
    for dim in (0, 1):
        yield _s("aten.sort", f"dim {dim}", self=X("t h", "rows"), dim=dim)
        yield _s("aten.sort.stable", f"dim {dim}", self=X("t h", "rows"), stable=True, dim=dim)
        yield _s("aten.argsort", f"dim {dim}", self=X("t h", "rows"), dim=dim)
        yield _s("aten.argsort.stable", f"dim {dim}", self=X("t h", "rows"), stable=True, dim=dim)
        yield _s("aten.topk", f"dim {dim}", self=X("t h", "rows"), k=1, dim=dim)
        yield _s("aten.diff", f"dim {dim}", self=TH, dim=dim)
    yield _s("aten.topk", "three", self=X("t h", "rows"), k=3)


def norms() -> Iterator[Sample]:
    """Norms and look-ups in order."""
    h = [12]
    yield _s("aten.layer_norm", input=BTH, normalized_shape=h, weight=X("h"), bias=X("h"))
    yield _s("aten.native_layer_norm", input=TH, normalized_shape=h, weight=X("h"), bias=X("h"), eps=1e-5)
    yield _s("aten.rms_norm", input=BTH, normalized_shape=h, weight=X("h"))
    yield _s("aten.rms_norm", "no weight", input=TH, normalized_shape=h)
    # the number of groups is a rank's own, which one number for all shards can't be
    yield _s("aten.group_norm", input=X("t 12", states="full"), num_groups=4)
    yield _s("aten.group_norm", "positions", input=X("b 12 k", states="full"), num_groups=4)
    ids = X("t", "@7")
    for op in ("aten.cross_entropy_loss", "aten.nll_loss", "aten.nll_loss_nd"):
        for note, reduction in (("a row each", 0), ("mean", 1), ("summed", 2)):
            yield Sample(op, {"self": X("t 7"), "target": ids, "reduction": reduction}, note=note)
    yield _s("aten.searchsorted.Tensor", sorted_sequence=X("k"), self=X("t h"))
    yield _s("aten.bucketize.Tensor", self=TH, boundaries=X("k"))
    yield _s("aten.isin.Tensor_Tensor", elements=X("t h", "i"), test_elements=X("k", "i", {"k": 12}))
    yield _s("aten.isin.Tensor_Scalar", elements=X("t h", "i"), test_element=3)
    yield _s("aten.histc", self=TH, bins=4, min=-5, max=5)
    yield _s("aten.bincount", self=X("t", "@7"), minlength=7)
    yield _s("prims.sum", inp=TH, dims=[1])
    yield _s("prims.sum", "tokens", inp=TH, dims=[0])
    for op in ("amax", "amin"):
        for dim in (0, 1):
            yield _s(f"prims.{op}", f"dim {dim}", inp=TH, dims=[dim])
    yield _s("prims.var", inp=TH, dims=[1], correction=0)


def shapes() -> Iterator[Sample]:
    """Views and permutations."""
    for op, name in (("view", "size"), ("reshape", "shape"), ("_unsafe_view", "size"), ("view_copy", "size")):
        yield _s(f"aten.{op}", "heads apart", self=X("t (h d)"), **{name: Sz(("t", "h", "d"))})
        yield _s(
            f"aten.{op}",
            "heads joined",
            self=X("t h d"),
            **{name: [-1, *([48] if False else []), 48] if False else Sz(("t", -1))},
        )
        yield _s(f"aten.{op}", "all in one", self=X("t h"), **{name: [-1]})
        yield _s(f"aten.{op}", "batch in front", self=X("t h"), **{name: Sz((1, "t", "h"))})
    yield _rows("aten.view.default", "tokens behind heads", self=X("h t d"), size=Sz((-1, "d")))
    yield _rows("aten.view.default", "batch and tokens", self=X("b t h"), size=Sz((-1, "h")))
    yield _s("aten.flatten.using_ints", self=BTH)
    yield _s("aten.flatten.using_ints", "heads", self=X("t h d"), start_dim=1)
    yield _s("aten.unflatten.int", self=X("t (h d)"), dim=1, sizes=[-1, 4])
    for op in ("permute", "permute_copy"):
        yield _s(f"aten.{op}", self=X("b t h"), dims=[2, 0, 1])
    for op in ("transpose", "transpose_copy"):
        yield _s(f"aten.{op}.int", self=BTH, dim0=0, dim1=2)
    yield _s("aten.swapdims", self=BTH, dim0=0, dim1=1)
    yield _s("aten.swapaxes", self=BTH, axis0=0, axis1=1)
    yield _s("aten.movedim.int", self=BTH, source=0, destination=2)
    yield _s("aten.movedim.intlist", self=BTH, source=[0, 1], destination=[1, 2])
    for op in ("t", "t_copy", "numpy_T", "mT", "adjoint"):
        yield _s(f"aten.{op}", self=TH)
    for op in ("mT", "adjoint"):
        yield _s(f"aten.{op}", "batches", self=BTH)
    for op in ("expand", "expand_copy"):
        yield _s(f"aten.{op}", self=X("1 h"), size=[5, -1])
        yield _s(f"aten.{op}", "in front", self=TH, size=[3, -1, -1])
    yield replace(_rows("aten.expand_as.default", "", self=X("1 h"), other=TH), shape_of="other")
    yield _s("aten.repeat", self=TH, repeats=[1, 2])
    yield _s("aten.repeat", "tokens", self=TH, repeats=[2, 1])
    yield _s("aten.repeat", "in front", self=TH, repeats=[2, 1, 1])
    yield _s("aten.tile", self=TH, dims=[1, 2])
    yield _s("aten.repeat_interleave.self_int", "features", self=X("t h"), repeats=2, dim=1)
    yield _s("aten.repeat_interleave.self_int", "tokens", self=X("t h"), repeats=2, dim=0)
    yield _s("aten.repeat_interleave.self_int", "heads", self=X("t h d"), repeats=2, dim=1)
    for op in ("squeeze", "squeeze_copy"):
        yield _s(f"aten.{op}.dim", self=X("1 s h"), dim=0)
        yield _s(f"aten.{op}.dim", "behind", self=X("s h 1"), dim=-1)
        yield _s(f"aten.{op}.dims", self=X("1 s 1 h"), dim=[0, 2])
        yield _s(f"aten.{op}.default", self=X("1 s h"))
    for op in ("unsqueeze", "unsqueeze_copy"):
        for dim in (0, 1, -1):
            yield _s(f"aten.{op}", f"dim {dim}", self=TH, dim=dim)
    for op in ("clone", "contiguous", "alias", "alias_copy", "detach", "detach_copy", "lift_fresh"):
        yield _s(f"aten.{op}", self=TH)
    yield _s("aten.to.dtype", self=X("t h", "i"), dtype=F32)
    yield _s("aten.to.dtype", "to integers", self=TH, dtype=DtypeArg("int64"))
    yield _s("aten._to_copy", self=TH, dtype=F32)
    yield _s("aten._to_copy", "to integers", self=TH, dtype=DtypeArg("int32"))
    yield _s("prims.convert_element_type", a=TH, dtype=F32)
    yield _s("prims.convert_element_type", "to integers", a=TH, dtype=DtypeArg("int64"))
    yield _s("aten.type_as", self=TH, other=TH)
    yield (
        _s("aten.view_as_real", self=X("t h"), note="")
        if False
        else _s("aten.view_as_complex", self=X("t h 2"))
    )
    yield _s("aten.complex", real=TH, imag=TH)
    yield replace(_rows("aten.view_as.default", "", self=X("t (h d)"), other=X("t h d")), shape_of="other")
    yield replace(_rows("aten.reshape_as.default", "", self=X("t (h d)"), other=X("t h d")), shape_of="other")
    for op in ("tril", "triu"):
        yield _s(f"aten.{op}", self=X("t s"))
        yield _s(f"aten.{op}", "batch", self=X("t h n"))
    yield _s("aten.roll", self=TH, shifts=[1], dims=[0])
    yield _s("aten.roll", "features", self=TH, shifts=[1], dims=[1])
    yield _s("aten.roll", "everything", self=TH, shifts=[1])
    yield _s("aten.flip", self=TH, dims=[0])
    yield _s("aten.flip", "features", self=TH, dims=[1])


def pieces() -> Iterator[Sample]:
    """Slices, splits, joins and padding. A piece of a sharded feature is a piece of each shard."""
    for sample in _pieces():
        yield replace(sample, packed=True)


def _pieces() -> Iterator[Sample]:
    for op in ("slice", "slice_copy"):
        yield _s(f"aten.{op}.Tensor", "features", self=X("t (d h)"), dim=1, start=0, end=6)
        yield _rows(f"aten.{op}.Tensor", "first token", self=TH, dim=0, start=0, end=1)
        yield _s(f"aten.{op}.Tensor", "all but the first token", self=TH, dim=0, start=1)
        yield _s(f"aten.{op}.Tensor", "everything", self=TH, dim=0, start=0, end=(1 << 63) - 1)
        yield _s(f"aten.{op}.Tensor", "every second feature", self=TH, dim=1, step=2)
        yield _s(f"aten.{op}.Tensor", "every second token", self=TH, dim=0, step=2)
        yield _s(f"aten.{op}.Tensor", "last features", self=TH, dim=1, start=-4)
    yield _s("aten.narrow", self=TH, dim=1, start=2, length=4)
    for op in ("select", "select_copy"):
        for dim, index in ((0, 0), (0, -1), (1, 3), (1, 0)):
            yield _rows(f"aten.{op}.int", f"dim {dim} at {index}", self=TH, dim=dim, index=index)
        yield _s(f"aten.{op}.int", "a batch of one", self=X("1 s h"), dim=0, index=0)
    for op in ("split", "split_copy", "unsafe_split"):
        yield _s(f"aten.{op}.Tensor", "features", self=TH, split_size=4, dim=1)
        yield _s(f"aten.{op}.Tensor", "tokens", self=TH, split_size=1, dim=0)
    for op in ("split_with_sizes", "split_with_sizes_copy", "unsafe_split_with_sizes"):
        yield _s(f"aten.{op}", self=TH, split_sizes=[4, 8], dim=1)
    yield _s("aten.split.sizes", self=TH, split_size=[4, 8], dim=1)
    for op in ("chunk", "unsafe_chunk"):
        yield _s(f"aten.{op}", self=TH, chunks=2, dim=1)
        yield _s(f"aten.{op}", "tokens", self=TH, chunks=2, dim=0)
    for op in ("unbind", "unbind_copy"):
        yield _s(f"aten.{op}.int", self=X("t 2 h"), dim=1)
        yield _s(f"aten.{op}.int", "features", self=X("t h"), dim=1)
    for op in ("cat", "concat", "concatenate"):
        yield _s(f"aten.{op}", "features", tensors=[TH, TH], dim=1)
        yield _s(f"aten.{op}", "other features", tensors=[TH, X("t n", extents={"n": 24})], dim=1)
        yield _s(f"aten.{op}", "tokens", tensors=[TH, TH], dim=0)
        yield _s(f"aten.{op}", "other tokens", tensors=[TH, X("s h")], dim=0)
    yield _s("aten.stack", tensors=[TH, TH], dim=0)
    yield _s("aten.stack", "behind", tensors=[TH, TH], dim=-1)
    yield _s("aten.constant_pad_nd", "features", self=TH, pad=[0, 3])
    yield _s("aten.constant_pad_nd", "tokens", self=TH, pad=[0, 0, 0, 2])
    yield _s("aten.constant_pad_nd", "tokens in front", self=TH, pad=[0, 0, 1, 0])
    yield _s("aten.constant_pad_nd", "with 1", self=TH, pad=[0, 3], value=1.0)
    yield _s("aten.pad", self=TH, pad=[2, 3])


def indexing() -> Iterator[Sample]:
    """Look-ups, scatters, masks."""
    yield _s("aten.index.Tensor", self=X("k h"), indices=[X("t", "@k")])
    yield _s("aten.index.Tensor", "tokens", self=X("s h"), indices=[X("t", "@s")])
    yield _s("aten.index.Tensor", "features", self=X("t h"), indices=[None, X("n", "@h")])
    yield _s("aten.index.Tensor", "pairs", self=X("t h"), indices=[X("n", "@t"), X("n", "@h")])
    yield _s("aten._unsafe_index.Tensor", self=X("k h"), indices=[X("t", "@k")])
    yield _s("aten.index_select", self=X("k h"), dim=0, index=X("t", "@k"))
    yield _s("aten.index_select", "features", self=X("t h"), dim=1, index=X("n", "@h"))
    yield _s("aten.index_select", "tokens", self=X("s h"), dim=0, index=X("t", "@s"))
    yield _s("aten.gather", self=X("t h"), dim=1, index=X("t n", "@h"))
    yield _s("aten.gather", "tokens", self=X("s h"), dim=0, index=X("t h", "@s"))
    yield _s("aten.take_along_dim", self=X("t h"), dim=1, indices=X("t n", "@h"))
    yield _s("aten.scatter.value", self=X("t h"), dim=1, index=X("t n", "@h", {"n": 3}), value=2.0)
    yield _s("aten.scatter.src", self=X("t h"), dim=1, index=X("t h", "u"), src=X("t h"))
    yield _s("aten.scatter_add", self=X("t h"), dim=1, index=X("t h", "@h"), src=X("t h"))
    yield _s("aten.scatter_add", "tokens", self=X("s h"), dim=0, index=X("t h", "@s"), src=X("t h"))
    yield _s(
        "aten.scatter_reduce.two", self=X("t h"), dim=1, index=X("t h", "@h"), src=X("t h"), reduce="amax"
    )
    yield _s("aten.index_put", self=X("k h"), indices=[X("k", "u")], values=X("k h"))
    yield _s(
        "aten.index_put", "added", self=X("k h"), indices=[X("t", "@k")], values=X("t h"), accumulate=True
    )
    yield _s("aten.index_put", "where a mask holds", self=X("t h"), indices=[X("t", "b")], values=X("1"))
    yield _s("aten.index_add", self=X("k h"), dim=0, index=X("t", "@k"), source=X("t h"))
    yield _s("aten.index_add", "features", self=X("t k"), dim=1, index=X("n", "@k"), source=X("t n"))
    yield _s("aten.index_copy", self=X("k h"), dim=0, index=X("k", "u"), source=X("k h"))
    yield _s("aten.index_fill.int_Scalar", self=X("t h"), dim=1, index=X("n", "@h", {"n": 3}), value=2.0)
    yield _s(
        "aten.index_fill.int_Scalar", "with 0", self=X("t h"), dim=1, index=X("n", "@h", {"n": 3}), value=0.0
    )
    yield _s("aten.masked_fill.Scalar", self=TH, mask=X("t h", "b"), value=2.0)
    yield _s("aten.masked_fill.Scalar", "with 0", self=TH, mask=X("t h", "b"), value=0.0)
    yield _s("aten.masked_fill.Scalar", "a row's mask", self=TH, mask=X("t 1", "b"), value=0.0)
    yield _s("aten.where.self", condition=X("t h", "b"), self=TH, other=TH)
    yield _s("aten.where.self", "a row's mask", condition=X("t 1", "b"), self=TH, other=X("h"))
    yield _s("aten.where.ScalarOther", condition=X("t h", "b"), self=TH, other=0.0)
    yield _s("aten.where.ScalarOther", "one", condition=X("t h", "b"), self=TH, other=1.0)
    yield _s("aten.where.ScalarSelf", condition=X("t h", "b"), self=0.0, other=TH)
    yield _s("aten.embedding", weight=X("k h"), indices=X("t", "@k"))
    yield _s("aten.embedding", "batch", weight=X("k h"), indices=X("b t", "@k"))
    yield _s("aten.one_hot", self=X("t", "@5"), num_classes=5)
    yield _s("aten.slice_scatter", self=TH, src=X("t n", extents={"n": 4}), dim=1, start=2, end=6)
    yield _s("aten.slice_scatter", "tokens", self=TH, src=X("t h"), dim=0)
    yield _s("aten.select_scatter", self=TH, src=X("t"), dim=1, index=3)
    yield _s("aten.select_scatter", "tokens", self=X("s h"), src=X("h"), dim=0, index=3)
    yield _s("aten.copy", self=TH, src=TH)
    yield _s("aten.nonzero", self=X("t h", "b"))
    yield _s("aten.masked_select", self=TH, mask=X("t h", "b"))
    yield _s("aten.take", self=TH, index=X("n", "@h"))
    yield _s("aten.floor_divide", self=X("t h", "i"), other=3)


def creation() -> Iterator[Sample]:
    """Tensors made from others."""
    for op in ("zeros_like", "ones_like"):
        yield _s(f"aten.{op}", self=TH)
    yield _s("aten.full_like", self=TH, fill_value=2.0)
    for op in ("new_zeros", "new_ones"):
        yield _s(f"aten.{op}", self=TH, size=[12])
    yield _s("aten.new_full", self=TH, size=[12], fill_value=2.0)
    yield _s("aten.fill.Scalar", self=TH, value=2.0)
    yield _s("aten.zero", self=TH)
    yield _s("aten.zeros", size=[3, 4])
    yield _s("aten.ones", size=[3, 4])
    yield _s("aten.full", size=[3, 4], fill_value=2.0)
    yield _s("aten.arange", end=5)
    yield _s("aten.arange.start", start=2, end=5)
    yield _s("aten.eye", n=4)
    yield _s("aten.linspace", start=0, end=1, steps=5)
    yield _s("aten.scalar_tensor", s=2.0)


def all_samples() -> Iterator[Sample]:
    """All of the above."""
    for make in (contractions, attention, reductions, norms, shapes, pieces, indexing, creation):
        yield from make()
