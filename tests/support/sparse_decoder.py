"""A decoder with sparse attention and experts in torch's own ops, on one device or over ranks, right or wrong in one place.

Over ranks it is laid out in one of four `STYLES`, each as the contract of that name asks.
"""

from __future__ import annotations

from .builder import GraphBuilder, Json, Val

# What `wrong` may be: one departure from the contract each.
WRONG = (
    "full_o_proj",
    "gathered_residual",
    "full_gate",
    "full_shared",
    "two_gathers",
    "local_attention",
    "all_reduced_mlp",
    "local_head",
)
# Shared experts with weights cut over the ranks: run on all tokens, or on the rank's own.
CUT = ("gathered", "mixed")
STYLES = ("dsa-cp-prefill", "dsa-cp-query-local", "dsa-cp-entry-slice", "mc2-decode")
T, WIDTH, KEYS, EXPERTS = 16, 16, 8, 6


class SparseDecoder:
    """`marks` collects, by role, the nodes that were built to have it.

    Args:
        picking: `used`; `first` (by the first layer, for all); `unused` (picked and not read); `bound` (a mask from
            scores, without top-k); `fixed` (scores of a table of weights, not of keys); `none`.
        gated: experts, else a dense MLP (sharded over the ranks).
        shared_expert: beside the routed ones.
        p: ranks; 1 has no collectives.
        wrong: one of `WRONG` (in the style `dsa-cp-prefill`).
        style: one of `STYLES`.
        fixed: sizes of views and of the mask as numbers; else as what is left over, and by an operand.
        cut: one of `CUT` (in the style `dsa-cp-prefill`), or none.
        tabled: experts are chosen by a table of the ids, and only weighed by the gate (on one device).
    """

    def __init__(
        self,
        picking: str = "used",
        gated: bool = True,
        shared_expert: bool = True,
        p: int = 1,
        wrong: str = "",
        dialect: str = "c10d",
        style: str = STYLES[0],
        fixed: bool = True,
        tabled: bool = False,
        cut: str = "",
    ) -> None:
        assert not wrong or (wrong in WRONG and p > 1 and style == STYLES[0])
        groups = {"tp": p} if p > 1 else {}
        self.b = GraphBuilder(groups=groups, T=T, dialect=dialect, dtype="float32")
        self.picking, self.gated, self.shared_expert = picking, gated, shared_expert
        self.p, self.wrong, self.style, self.fixed = p, wrong, style, fixed
        self.full = style in ("dsa-cp-entry-slice", "mc2-decode")
        self.tabled, self.cut_shared = tabled, cut
        self.ids = self.b.tokens()
        self.marks: dict[str, set[str]] = {}
        self.later: list[Val] = []
        self.picked: Val | None = None

    def mark(self, role: str, value: Val) -> Val:
        self.marks.setdefault(role, set()).add(value.made_by)
        return value

    def gather(self, x: Val) -> Val:
        return self.b.all_gather(x) if self.p > 1 else x

    def cut(self, x: Val) -> Val:
        return self.b.rank_slice(x) if self.p > 1 else x

    def norm(self, x: Val, role: str) -> Val:
        """Spelled out: the mean of squares, its root, a weight."""
        b, width = self.b, x.shape[-1]
        square = self.mark(role, b.call("aten.pow.Tensor_Scalar", x, 2, shape=x.shape))
        column = (*x.shape[:-1], 1)
        mean = self.mark(role, b.call("aten.mean.dim", square, [-1], True, shape=column))
        shifted = self.mark(role, b.call("aten.add.Tensor", mean, 1e-6, shape=column))
        root = self.mark(role, b.call("aten.rsqrt.default", shifted, shape=column))
        scaled = self.mark(role, b.multiply(x, root))
        return self.mark(role, b.multiply(b.weight((width,)), scaled))

    def attention(self, x: Val) -> Val:
        """Attention with o_proj. What is shared of keys and what of queries is the style's."""
        b = self.b
        asking = keys = values = x
        if self.style == "dsa-cp-prefill" and self.wrong != "local_attention":
            asking = keys = values = self.gather(x)
            if self.wrong == "two_gathers":
                values = self.gather(x)
        elif self.style == "dsa-cp-entry-slice":
            asking = self.cut(x)
        reads = (asking, keys, values)
        q, k, v = (self.mark("attention.input", b.linear(h, b.weight((KEYS, WIDTH)))) for h in reads)
        if self.style == "dsa-cp-query-local":
            k, v = self.gather(k), self.gather(v)
        mask = self.mask(asking, keys)
        lift = [b.call("aten.unsqueeze.default", part, 0, shape=(1, *part.shape)) for part in (q, k, v)]
        heads = [b.call("aten.unsqueeze.default", part, 0, shape=(1, *part.shape)) for part in lift]
        op = "aten.scaled_dot_product_attention.default"
        core = self.mark("attention.core", b.call(op, *heads, mask, shape=heads[0].shape))
        sizes = list(q.shape) if self.fixed else [-1, q.shape[1]]
        rows = b.call("aten.view.default", core, sizes, shape=q.shape)
        if self.wrong == "full_o_proj":
            return self.cut(self.mark("o_proj", b.linear(rows, b.weight((WIDTH, KEYS)))))
        if self.style == "dsa-cp-prefill" and self.wrong != "local_attention":
            rows = self.cut(rows)
        out = self.mark("o_proj", b.linear(rows, b.weight((WIDTH, KEYS))))
        return self.gather(out) if self.style == "dsa-cp-entry-slice" else out

    def mask(self, x: Val, y: Val) -> Val | None:
        """A mask of the keys that an indexer picks, or of those above a bound where there is no top-k."""
        b = self.b
        if self.picking == "none" or self.picked is not None:
            return self.picked
        queries = b.linear(x, b.weight((4, WIDTH)))
        keys = b.weight((y.shape[0], 4)) if self.picking == "fixed" else b.linear(y, b.weight((4, WIDTH)))
        if self.style == "dsa-cp-query-local":
            keys = self.gather(keys)
        t, n = x.shape[0], keys.shape[0]
        turned = b.call("aten.permute.default", keys, [1, 0], shape=(4, n))
        scores = b.call("aten.mm.default", queries, turned, shape=(t, n))
        if self.picking == "bound":
            kept = b.call("aten.gt.Scalar", scores, 0.0, shape=(t, n), dtype="bool")
        else:
            metas = [((t, 3), "float32"), ((t, 3), "int64")]
            _, ids = b.call_many("aten.topk.default", scores, 3, metas=metas)
            if self.picking == "unused":
                self.later.append(ids)
                return None
            if self.fixed:
                empty = b.call("aten.new_zeros.default", scores, [t, n], shape=(t, n))
            else:
                empty = b.call("aten.zeros_like.default", scores, shape=(t, n))
            kept = b.call("aten.scatter.value", empty, 1, ids, 1.0, shape=(t, n))
            for part in (queries, keys, scores, ids):
                self.mark("attention.indexer", part)
        lifted = b.call("aten.unsqueeze.default", kept, 0, shape=(1, t, n), dtype=kept.dtype)
        mask = b.call("aten.unsqueeze.default", lifted, 0, shape=(1, 1, t, n), dtype=kept.dtype)
        if self.picking == "first":
            self.picked = mask
        return mask

    def experts(self, x: Val) -> Val:
        b = self.b
        seen = self.gather(x) if self.wrong == "full_gate" else x
        logits = self.mark("moe.gate", b.linear(seen, b.weight((EXPERTS, WIDTH))))
        if self.full:
            x = self.cut(x)
        if self.full or self.wrong == "full_gate":
            logits = self.cut(logits)
        t = x.shape[0]
        scores = self.mark("moe.gate", b.call("aten.softmax.int", logits, -1, shape=(t, EXPERTS)))
        if self.tabled:
            table = b.input("table", (32, 2), "int64")
            ids = b.call("aten.index.Tensor", table, [self.ids], shape=(t, 2), dtype="int64")
            weights = self.mark("moe.routed", b.call("aten.gather.default", scores, 1, ids, shape=(t, 2)))
        else:
            metas = [((t, 2), "float32"), ((t, 2), "int64")]
            weights, ids = b.call_many("aten.topk.default", scores, 2, metas=metas)
        self.mark("moe.topk", ids)
        up, down = b.weight((EXPERTS, 5, WIDTH)), b.weight((EXPERTS, WIDTH, 5))
        mine = b.call("aten.index.Tensor", up, [ids], shape=(t, 2, 5, WIDTH))
        inner = b.call("aten.einsum.default", "tkfh,th->tkf", [mine, x], shape=(t, 2, 5))
        back = b.call("aten.index.Tensor", down, [ids], shape=(t, 2, WIDTH, 5))
        outer = b.call("aten.einsum.default", "tkhf,tkf->tkh", [back, b.silu(inner)], shape=(t, 2, WIDTH))
        column = b.call("aten.unsqueeze.default", weights, 2, shape=(t, 2, 1))
        scaled = b.call("aten.mul.Tensor", outer, column, shape=(t, 2, WIDTH))
        routed = b.call("aten.sum.dim_IntList", scaled, [1], shape=(t, WIDTH))
        for part in (mine, inner, back, outer, scaled, routed):
            self.mark("moe.routed", part)
        if not self.shared_expert:
            return self.gather(routed) if self.full else routed
        whole = self.gather(x) if self.wrong == "full_shared" or self.cut_shared == "gathered" else x
        inner = 8 // self.p if self.cut_shared else 5
        lifted = self.mark(
            "moe.shared", b.silu(self.mark("moe.shared", b.linear(whole, b.weight((inner, WIDTH)))))
        )
        shared = self.mark("moe.shared", b.linear(lifted, b.weight((WIDTH, inner))))
        if self.cut_shared:
            shared = b.reduce_scatter(shared) if self.cut_shared == "gathered" else b.all_reduce(shared)
        both = b.add(routed, self.cut(shared) if self.wrong == "full_shared" else shared)
        return self.gather(both) if self.full else both

    def dense(self, x: Val) -> Val:
        b = self.b
        whole = x if self.full else self.gather(x)
        gate = self.mark("mlp.dense", b.linear(whole, b.weight((20 // self.p, WIDTH))))
        acted = self.mark("mlp.dense", b.silu(gate))
        out = self.mark("mlp.dense", b.linear(acted, b.weight((WIDTH, 20 // self.p))))
        if self.p == 1:
            return out
        if self.full:
            return b.all_reduce(out)
        return self.cut(b.all_reduce(out)) if self.wrong == "all_reduced_mlp" else b.reduce_scatter(out)

    def build(self, layers: int = 2) -> Json:
        b = self.b
        table = b.weight((32, WIDTH))
        x = self.mark("embedding", b.call("aten.embedding.default", table, self.ids, shape=(T, WIDTH)))
        x = x if self.full else self.cut(x)
        for layer in range(layers):
            x = self.mark("residual", b.add(x, self.attention(self.norm(x, "norm.input"))))
            h = self.norm(x, "norm.post_attention")
            x = self.mark("residual", b.add(x, self.experts(h) if self.gated else self.dense(h)))
            if self.wrong == "gathered_residual" and layer == 0:
                x = self.gather(x)
        last = self.norm(x, "norm.final")
        last = last if self.full or self.wrong == "local_head" else self.gather(last)
        logits = self.mark("lm_head", b.linear(last, b.weight((32, WIDTH))))
        b.output([logits, *self.later])
        graph = b.graph()
        if self.tabled:
            tables = [n["name"] for n in graph["nodes"] if n["name"].startswith("table")]
            graph["inputs"] = {name: {"kind": "buffer"} for name in tables}
        return graph
