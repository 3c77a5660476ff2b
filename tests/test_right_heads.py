"""Right programs in which a rank holds one head, one KV head or one token: nothing is reported. Their wrong twins are."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support.exporting import all_reduce, found, linear, rotated  # noqa: E402
from torch.nn import functional as F  # noqa: E402

HIDDEN, D = 32, 8
SDPA, GROUPED, EAGER = "sdpa", "grouped", "eager"


class Attention(torch.nn.Module):  # type: ignore[misc, name-defined]
    """`heads` query heads and `kv` KV heads on this rank; `reduced` is how often the output is summed over the group."""

    def __init__(self, heads: int, kv: int, style: str, reduced: int = 1) -> None:
        super().__init__()
        self.heads, self.kv, self.style, self.reduced = heads, kv, style, reduced
        self.q, self.k, self.v = (linear(HIDDEN, n * D) for n in (heads, kv, kv))
        self.o = linear(heads * D, HIDDEN)

    def forward(self, x: Any, cos: Any, sin: Any) -> Any:
        B, T, _ = x.shape
        q, k, v = (f(x).view(B, T, -1, D).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = q * cos + rotated(q) * sin, k * cos + rotated(k) * sin
        n = self.heads // self.kv
        if self.style != GROUPED and n > 1:
            k, v = (z[:, :, None].expand(B, self.kv, n, T, D).reshape(B, self.heads, T, D) for z in (k, v))
        if self.style == EAGER:
            scores = torch.matmul(q, k.transpose(2, 3)) + torch.full((T, T), float("-inf")).triu(1)
            o = torch.matmul(scores.softmax(-1), v)
        else:
            o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.style == GROUPED)
        out = self.o(o.transpose(1, 2).reshape(B, T, -1))
        for _ in range(self.reduced):
            out = all_reduce(out)
        return out


class Decoder(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Two attention layers with a residual."""

    def __init__(self, heads: int, kv: int, style: str, reduced: tuple[int, int] = (1, 1)) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(64, HIDDEN)
        self.layers = torch.nn.ModuleList(Attention(heads, kv, style, n) for n in reduced)

    def forward(self, ids: Any) -> Any:
        T = ids.shape[1]
        angle = torch.arange(T)[:, None] * torch.arange(D)[None] / D
        x = self.embed(ids)
        for layer in self.layers:
            x = x + layer(x, angle.cos(), angle.sin())
        return x


def ids(batch: int, tokens: int) -> Any:
    return torch.zeros(batch, tokens, dtype=torch.int64)


@pytest.mark.parametrize("style", [SDPA, GROUPED, EAGER])
@pytest.mark.parametrize(("heads", "kv"), [(1, 1), (2, 1), (4, 1), (4, 2)])
@pytest.mark.parametrize(("batch", "tokens"), [(1, 12), (2, 12), (1, 1)])
def test_few_heads(style: str, heads: int, kv: int, batch: int, tokens: int) -> None:
    assert found(Decoder(heads, kv, style), ids(batch, tokens)) == []
    assert found(Decoder(heads, kv, style, (1, 2)), ids(batch, tokens)) == [("LC202", "all_reduce_2")]


@pytest.mark.parametrize("style", [SDPA, EAGER])
@pytest.mark.parametrize("tokens", [12, 1])
def test_few_heads_that_are_not_summed(style: str, tokens: int) -> None:
    (code, node), *rest = found(Decoder(2, 1, style, (1, 0)), ids(1, tokens))
    assert (code, node.rpartition("_")[0], rest) == ("LC201", "add", [])


class Latent(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Latent attention: one rotary key for all heads beside each head's own; `absorbed` puts the key matrix on the queries."""

    def __init__(self, heads: int, absorbed: bool, reduced: int = 1) -> None:
        super().__init__()
        self.heads, self.absorbed, self.reduced = heads, absorbed, reduced
        self.embed = torch.nn.Embedding(64, HIDDEN)
        self.q = linear(HIDDEN, heads * 12)
        self.down, self.up = linear(HIDDEN, 20), linear(16, heads * 14)
        self.o = linear(heads * 6, HIDDEN)

    def forward(self, ids: Any) -> Any:
        x = self.embed(ids)
        B, T, _ = x.shape
        own, turned = self.q(x).view(B, T, -1, 12).transpose(1, 2).split([8, 4], -1)
        latent, key = self.down(x).split([16, 4], -1)
        if self.absorbed:
            w = self.up.weight.view(self.heads, 14, 16)
            scores = torch.einsum("bhtc,bsc->bhts", torch.einsum("bhtd,hdc->bhtc", own, w[:, :8]), latent)
            scores = scores + torch.einsum("bhtr,bsr->bhts", turned, key)
            o = torch.einsum("bhts,bsc->bhtc", scores.softmax(-1), latent)
            o = torch.einsum("bhtc,hvc->bthv", o, w[:, 8:]).reshape(B, T, -1)
        else:
            keys, values = self.up(latent).view(B, T, -1, 14).transpose(1, 2).split([8, 6], -1)
            key = key.view(B, 1, T, 4).expand(B, self.heads, T, 4)
            q, k = torch.cat((own, turned), -1), torch.cat((keys, key), -1)
            o = F.scaled_dot_product_attention(q, k, values, is_causal=True).transpose(1, 2).reshape(B, T, -1)
        out = self.o(o)
        for _ in range(self.reduced):
            out = all_reduce(out)
        return x + out


@pytest.mark.parametrize("absorbed", [False, True])
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize(("batch", "tokens"), [(1, 12), (2, 12), (1, 1)])
def test_latent_attention(absorbed: bool, heads: int, batch: int, tokens: int) -> None:
    assert found(Latent(heads, absorbed), ids(batch, tokens)) == []
    assert found(Latent(heads, absorbed, 2), ids(batch, tokens)) == [("LC202", "all_reduce_1")]


class Joined(torch.nn.Module):  # type: ignore[misc, name-defined]
    """One token, padded to one a rank: its own row beside what a rank has of it, or the token on every rank."""

    def __init__(self, own: bool, added: bool) -> None:
        super().__init__()
        self.own, self.added = own, added
        self.embed = torch.nn.Embedding(64, HIDDEN)

    def forward(self, ids: Any) -> Any:
        x = self.embed(ids)
        mine = F.pad(x, [0, 0, 0, 1])[0:1]
        other = mine * 2 if self.own else x
        out = mine + other if self.added else torch.cat((mine, other), -1)
        return torch.ops._c10d_functional.all_gather_into_tensor(out, 2, "tp")


@pytest.mark.parametrize(("added", "node"), [(True, "add"), (False, "cat")])
def test_one_token_and_its_padding(added: bool, node: str) -> None:
    one = torch.zeros(1, dtype=torch.int64)
    assert found(Joined(True, added), one) == []
    assert found(Joined(False, added), one) == [("LC101", node)]
