"""A decoder whose residual is several streams a token (hyper-connections), in three ways of writing them."""

from __future__ import annotations

from .builder import GraphBuilder, Json, Val

FORMS = ("spelled", "einsum", "fused")
T, WIDTH, STREAMS = 12, 16, 4


class Streams:
    """Layers of attention and an MLP. `marks` collects, by role, the nodes that were built to have it.

    Args:
        form: how streams are weighted and mixed: products and sums, `einsum`, or a serving system's fused ops.
        p: ranks of the group tp; more than one shards heads and MLP, whose results are all_reduced.
    """

    def __init__(self, form: str, p: int = 1) -> None:
        dialect = "tensor_cast" if form == "fused" else "c10d"
        self.b = GraphBuilder({"tp": p} if p > 1 else {}, T=T, dialect=dialect, dtype="float32")
        self.form, self.p = form, p
        self.marks: dict[str, set[str]] = {}

    def mark(self, role: str, value: Val) -> Val:
        self.marks.setdefault(role, set()).add(value.made_by)
        return value

    def weigh(self, x: Val) -> tuple[Val, Val, Val]:
        """A weighted sum of the streams, the weights of what a block gives, the matrix that mixes them."""
        b, c = self.b, STREAMS
        flat = b.view(x, (T, c * WIDTH))
        scores = b.linear(flat, b.weight((2 * c + c * c, c * WIDTH)))
        if self.form == "fused":
            metas = [((T, WIDTH), "float32"), ((T, c), "float32"), ((T, c, c), "float32")]
            args = (scores, x, b.weight((3,)), b.weight((2 * c + c * c,)), c)
            y, post, mix = b.call_many("tensor_cast.hc_pre_sinkhorn.default", *args, metas=metas)
            return y, post, mix
        pieces = [((T, c), "float32"), ((T, c), "float32"), ((T, c * c), "float32")]
        pre, post, mix = b.call_many("aten.split_with_sizes.default", scores, [c, c, c * c], -1, metas=pieces)
        pre = b.call("aten.sigmoid.default", pre, shape=pre.shape)
        mix = b.call("aten.softmax.int", b.view(mix, (T, c, c)), -1, shape=(T, c, c))
        if self.form == "einsum":
            return b.call("aten.einsum.default", "tc,tcd->td", [pre, x], shape=(T, WIDTH)), post, mix
        weighted = b.multiply(x, b.call("aten.unsqueeze.default", pre, -1, shape=(T, c, 1)))
        return b.call("aten.sum.dim_IntList", weighted, [1], shape=(T, WIDTH)), post, mix

    def joined(self, x: Val, out: Val, post: Val, mix: Val) -> Val:
        """What a block gives, weighted for each stream, added to the mixed streams."""
        b, c = self.b, STREAMS
        shape = (T, c, WIDTH)
        if self.form == "fused":
            return b.call("tensor_cast.hc_post.default", out, x, post, mix, c, shape=shape)
        if self.form == "einsum":
            spread = b.call("aten.einsum.default", "tc,td->tcd", [post, out], shape=shape)
            return b.add(b.call("aten.einsum.default", "tec,ted->tcd", [mix, x], shape=shape), spread)
        row = b.call("aten.unsqueeze.default", out, 1, shape=(T, 1, WIDTH))
        spread = b.call(
            "aten.mul.Tensor", b.call("aten.unsqueeze.default", post, -1, shape=(T, c, 1)), row, shape=shape
        )
        turned = b.call("aten.transpose.int", mix, 1, 2, shape=mix.shape)
        return b.add(spread, b.call("aten.matmul.default", turned, x, shape=shape))

    def block(self, x: Val, norm: str, attention: bool) -> Val:
        b, p = self.b, self.p
        y, post, mix = self.weigh(x)
        h = self.mark(norm, b.norm(y))
        if attention:
            out = b.attention(h, 4 // p, 4)
            self.mark("o_proj", out)
        else:
            out = self.mark("mlp.dense", b.mlp(h, 20 // p))
        out = b.all_reduce(out) if p > 1 else out
        return self.mark("residual", self.joined(x, out, post, mix))

    def build(self, layers: int = 2) -> Json:
        b = self.b
        row = self.mark("embedding", b.embedding(b.tokens(), 32, WIDTH))
        one = b.call("aten.unsqueeze.default", row, 1, shape=(T, 1, WIDTH))
        x = b.call("aten.expand.default", one, [T, STREAMS, WIDTH], shape=(T, STREAMS, WIDTH))
        for _ in range(layers):
            x = self.block(x, "norm.input", True)
            x = self.block(x, "norm.post_attention", False)
        y, _, _ = self.weigh(x)
        b.output([self.mark("lm_head", b.linear(self.mark("norm.final", b.norm(y)), b.weight((32, WIDTH))))])
        return b.graph()
