"""Two layers of a sparse decoder in a serving system's ops, at its true sizes: prefill on 16 ranks, decode on 8 times 4.

`named` holds the nodes of the boundaries by layer and place, so that shapes can be asked for one by one.
"""

from __future__ import annotations

from typing import Any

from .builder import GraphBuilder, Json, Val

WIDTH, HEADS, HEAD, Q_RANK, KV_RANK, ROPE = 6144, 64, 256, 2048, 512, 64
EXPERTS, CHOSEN, INNER, DENSE, VOCAB = 256, 8, 2048, 12288, 154880
INDEXER_HEADS, INDEXER_DIM, POSITIONS = 32, 128, 2048
WRONG = ("gate", "shared", "attention", "residual")


class Worked:
    """What both phases share: attention with its indexer, routed and shared experts, all weights whole."""

    def __init__(self, tokens: int, p: int, world: int) -> None:
        self.b = GraphBuilder({"tp": p, "ep": world}, T=tokens, dtype="bfloat16")
        self.tokens, self.p = tokens, p
        self.ids = self.b.tokens()
        self.cos, self.sin = (self.b.input(n, (tokens, ROPE), layout=f"[T, {ROPE}]") for n in ("cos", "sin"))
        self.named: dict[str, Val] = {}

    def name(self, place: str, value: Val) -> Val:
        self.named[place] = value
        return value

    def attention(self, x: Val, layer: int) -> Val:
        """All heads on the rows of x; positions that the indexer picks."""
        b, (t, _) = self.b, x.shape
        weights = [
            *(b.weight((Q_RANK, WIDTH)), b.weight((Q_RANK,)), b.weight((HEADS * HEAD, Q_RANK))),
            *(b.weight((KV_RANK + ROPE, WIDTH)), b.weight((KV_RANK,))),
        ]
        sizes = (HEADS, HEAD, HEAD - ROPE, ROPE, KV_RANK, Q_RANK)
        metas = [((t, HEADS, HEAD), ""), ((t, KV_RANK), ""), ((t, ROPE), ""), ((t, Q_RANK), "")]
        q, latent, rotated, q_latent = b.call_many(
            "tensor_cast.mlapo.default",
            *(x, self.cos, self.sin, *weights, *sizes),
            metas=[(shape, b.dtype) for shape, _ in metas],
        )
        slots = b.input(f"slots{layer}", (self.tokens,), "int64")
        rest = [b.input(f"{name}{layer}", (1,), "int64") for name in ("table", "starts", "lengths", "counts")]
        keys = b.input(f"keys{layer}", (176, 128, INDEXER_DIM))
        cache = b.input(f"cache{layer}", (176, 128, KV_RANK + ROPE))
        indexer = [
            *(b.weight((INDEXER_HEADS * INDEXER_DIM, Q_RANK)), b.weight((INDEXER_DIM, WIDTH))),
            *(b.weight((INDEXER_HEADS, WIDTH)), b.weight((INDEXER_DIM,))),
        ]
        picked = b.call(
            "tensor_cast.dsa_indexer.default",
            *(x, q_latent, self.cos, self.sin, keys, slots, rest[0], rest[2], *indexer),
            *(INDEXER_HEADS, INDEXER_DIM, ROPE, POSITIONS),
            shape=(t, POSITIONS),
            dtype="int64",
        )
        b.call("tensor_cast.concat_and_cache_mla.default", latent, rotated, cache, slots, shape=cache.shape)
        heads = [b.weight(s) for s in ((HEADS, HEAD - ROPE, KV_RANK), (HEADS, KV_RANK, HEAD))]
        return b.call(
            "tensor_cast.mla_sparse_attention.default",
            *(q, cache, *rest, *heads, b.weight((KV_RANK, HEADS * (2 * HEAD - ROPE)))),
            *(HEAD, POSITIONS, picked),
            shape=(t, HEADS, HEAD),
        )

    def o_proj(self, x: Val) -> Val:
        rows = self.b.view(x, (x.shape[0], HEADS * HEAD))
        return self.b.linear(rows, self.b.weight((WIDTH, HEADS * HEAD)))

    def normed(self, x: Val, residual: Val) -> tuple[Val, Val]:
        args = (x, residual, self.b.weight((WIDTH,)), 1e-5)
        metas = [(x.shape, x.dtype)] * 2
        normed, total = self.b.call_many("tensor_cast.add_rms_norm2.default", *args, metas=metas)
        return normed, total

    def gate(self, x: Val) -> Val:
        return self.b.linear(x, self.b.weight((EXPERTS, WIDTH)))

    def topk(self, logits: Val) -> Val:
        t = logits.shape[0]
        metas: Any = [((t, CHOSEN), self.b.dtype), ((t, CHOSEN), "int64")]
        _, ids = self.b.call_many("tensor_cast.moe_gating_top_k_softmax.default", logits, CHOSEN, metas=metas)
        return ids

    def routed(self, x: Val, ids: Val) -> Val:
        b, world = self.b, len(self.b.ranks["ep"])
        here = EXPERTS // world
        up, down = (b.input("w", s) for s in ((here, WIDTH, 2 * INNER), (here, INNER, WIDTH)))
        args = (x, ids, up, None, down, None, 0, self.b.ranks["ep"])
        return b.call("tensor_cast.dispatch_ffn_combine.default", *args, shape=x.shape)

    def shared(self, x: Val, p: int = 1) -> Val:
        """The shared expert, whole or its features cut over tp."""
        cut = f"{INNER}/{p}@tp"
        return self.b.mlp(x, INNER // p, None if p == 1 else (f"[{cut}, {WIDTH}]", f"[{WIDTH}, {cut}]"))

    def head(self, x: Val) -> None:
        b = self.b
        last = b.input("last", (1,), "int64")
        row = b.call("aten.index.Tensor", x, [last], shape=(1, WIDTH))
        logits = b.linear(row, b.weight((VOCAB // self.p, WIDTH)))
        b.output([b.all_gather(logits, -1)])


class Prefill(Worked):
    """4096 tokens on 16 ranks: a dense layer, a layer with experts. `wrong` is one of `WRONG`.

    `split_shared` cuts the shared expert's features over tp and adds its parts up.
    """

    def __init__(self, wrong: str = "", split_shared: bool = False) -> None:
        super().__init__(4096, 16, 16)
        self.wrong, self.split_shared = wrong, split_shared

    def build(self) -> Json:
        b = self.b
        x = self.name("embedding", b.reduce_scatter(b.vocab_embedding(self.ids, VOCAB, WIDTH, declare=True)))
        for layer in (0, 1):
            x = self.layer(x, layer)
        last = self.name("norm.final", b.norm(x))
        self.head(self.name("head", b.all_gather(last)))
        return b.graph()

    def layer(self, x: Val, layer: int) -> Val:
        b = self.b
        normed = self.name(f"{layer} norm.input", b.norm(x))
        local = self.wrong == "attention" and layer == 1
        whole = normed if local else b.all_gather(normed)
        core = self.attention(self.name(f"{layer} attention.input", whole), layer)
        self.name(f"{layer} attention.core", core)
        share = self.name(f"{layer} share", core if local else b.rank_slice(core))
        out = self.name(f"{layer} o_proj", self.o_proj(share))
        normed, x = self.normed(x, out)
        self.name(f"{layer} norm.post_attention", normed)
        self.name(f"{layer} residual", x)
        if layer == 0:
            rows = self.name("0 mlp.dense", b.all_gather(normed))
            x = b.add(x, self.name("0 branch", b.reduce_scatter(b.mlp(rows, DENSE // self.p))))
            return b.all_gather(x) if self.wrong == "residual" else x
        return b.add(x, self.name("1 branch", self.experts(normed)))

    def experts(self, x: Val) -> Val:
        b = self.b
        seen = b.all_gather(x) if self.wrong == "gate" else x
        logits = self.name("1 moe.gate", self.gate(seen))
        logits = b.rank_slice(logits) if self.wrong == "gate" else logits
        ids = self.name("1 moe.topk", self.topk(logits))
        routed = self.name("1 moe.routed", self.routed(x, ids))
        if self.wrong == "shared":
            return b.add(routed, b.rank_slice(self.name("1 moe.shared", self.shared(b.all_gather(x)))))
        shared = self.name("1 moe.shared", self.shared(x, self.p if self.split_shared else 1))
        return b.add(routed, self.name("1 sum", b.all_reduce(shared)) if self.split_shared else shared)


class Decode(Worked):
    """9 tokens on 4 of 32 ranks: one layer with experts; every rank scores all packed tokens.

    `wrong`: `gate` (scores of a rank's share only) or `topk` (experts are chosen for all tokens, then cut).
    """

    def __init__(self, wrong: str = "") -> None:
        super().__init__(9, 4, 32)
        self.wrong = wrong

    def build(self) -> Json:
        b = self.b
        x = self.name("embedding", b.embedding(self.ids, VOCAB, WIDTH))
        core = self.name("attention.core", self.attention(self.name("norm.input", b.norm(x)), 0))
        normed, x = self.normed(x, self.name("o_proj", self.o_proj(core)))
        own = self.share("hidden", self.name("norm.post_attention", normed))
        logits = self.name("moe.gate", self.gate(own if self.wrong == "gate" else normed))
        if self.wrong == "topk":
            ids = self.share("ids", self.name("moe.topk", self.topk(logits)))
        else:
            ids = self.topk(logits if self.wrong == "gate" else self.share("logits", logits))
            self.name("moe.topk", ids)
        routed = self.name("moe.routed", self.routed(own, ids))
        both = b.add(routed, self.name("moe.shared", self.shared(own)))
        whole = self.name("gathered", b.all_gather(both))
        x = b.add(x, self.name("branch", b.slice(whole, 0, self.tokens)))
        self.head(self.name("norm.final", b.norm(x)))
        return b.graph()

    def share(self, name: str, x: Val) -> Val:
        """A rank's rows of the padded ones."""
        padded = self.name(f"{name} padded", self.b.pad_rows(x, 3))
        return self.name(f"{name} share", self.b.rank_slice(padded))
