"""Caches, exchanges of heads, low-rank pairs, gated halves and shares put among zeros: right programs and wrong twins."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support.exporting import all_gather, all_reduce, all_to_all, found, linear  # noqa: E402
from torch.nn import functional as F  # noqa: E402

HIDDEN, D, TOKENS, PLACES, P = 32, 8, 12, 16, 2


class Module(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Tables and projections that the programs below take what they need of."""

    def __init__(self, form: Any, heads: int = 2, reduced: int = 1) -> None:
        super().__init__()
        self.form, self.heads, self.reduced = form, heads, reduced
        self.embed = torch.nn.Embedding(64, HIDDEN)
        self.q, self.k, self.v = (linear(HIDDEN, heads * D) for _ in range(3))
        self.o = linear(heads * D, HIDDEN)
        self.mix = linear(HIDDEN, HIDDEN)
        self.down, self.up, self.last = (
            linear(heads * D, 4),
            linear(4, HIDDEN),
            linear(heads * D // 2, HIDDEN),
        )

    def forward(self, ids: Any, *more: Any) -> Any:
        return self.form(self, self.embed(ids), *more)

    def summed(self, x: Any) -> Any:
        for _ in range(self.reduced):
            x = all_reduce(x)
        return x


def ids(*shape: int) -> Any:
    return torch.zeros(*shape, dtype=torch.int64)


def copied(cache: Any, pos: Any, rows: Any) -> Any:
    return cache.index_copy(2, pos, rows)


def put(cache: Any, pos: Any, rows: Any) -> Any:
    return torch.ops.aten.index_put(cache, (None, None, pos), rows)


def assigned(cache: Any, pos: Any, rows: Any) -> Any:
    cache[:, :, pos] = rows
    return cache


def appended(cache: Any, pos: Any, rows: Any) -> Any:
    return torch.cat((cache, rows), 2)


@pytest.mark.parametrize("store", [copied, put, assigned, appended], ids=lambda f: f.__name__)
@pytest.mark.parametrize("heads", [1, 2])
def test_caches_of_a_ranks_heads(store: Any, heads: int) -> None:
    def form(m: Any, x: Any, pos: Any, keys: Any, values: Any) -> Any:
        q, k, v = (f(x).view(1, -1, heads, D).transpose(1, 2) for f in (m.q, m.k, m.v))
        keys, values = store(keys, pos, k), store(values, pos, v)
        mask = None if store is appended else torch.arange(PLACES)[None] <= pos[:, None]
        o = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        return x + m.summed(m.o(o.transpose(1, 2).reshape(1, -1, heads * D)))

    given = ids(1, 4), torch.arange(4), torch.zeros(1, heads, PLACES, D), torch.zeros(1, heads, PLACES, D)
    assert found(Module(form, heads), *given, p=P) == []
    assert found(Module(form, heads, 2), *given, p=P) == [("LC202", "all_reduce_1")]


def test_heads_exchanged_for_tokens() -> None:
    def form(m: Any, x: Any) -> Any:
        x = x[: TOKENS // P]
        parts = [f(x).view(-1, 4, D) for f in (m.q, m.k, m.v)]
        q, k, v = (all_to_all(torch.cat(z.chunk(P, 1), 0), P).transpose(0, 1)[None] for z in parts)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)[0].transpose(0, 1)
        o = torch.cat(all_to_all(o, P).chunk(P, 0), 1) if m.reduced else o[: TOKENS // P].repeat(1, P, 1)
        return all_gather(x + m.o(o.reshape(-1, 4 * D)), P)

    assert found(Module(form, 4), ids(TOKENS), p=P) == []
    assert found(Module(form, 4, 0), ids(TOKENS), p=P) != []


def test_low_rank_pairs() -> None:
    def form(m: Any, x: Any) -> Any:
        h = m.q(x).relu()
        return x + m.summed(m.o(h) + 2.0 * m.up(m.down(h)))

    assert found(Module(form), ids(TOKENS), p=P) == []
    assert found(Module(form, reduced=2), ids(TOKENS), p=P) == [("LC202", "all_reduce_1")]


def test_gated_halves() -> None:
    def form(m: Any, x: Any) -> Any:
        return x + m.summed(m.last(F.glu(m.q(x), -1)))

    assert found(Module(form), ids(TOKENS), p=P) == []
    assert found(Module(form, reduced=2), ids(TOKENS), p=P) == [("LC202", "all_reduce_1")]


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("own", [True, False])
def test_shares_among_zeros(in_place: bool, own: bool) -> None:
    """A sum of shares, each in its own place, is all of them; of shares in one place it is not."""

    def form(m: Any, x: Any) -> Any:
        half = TOKENS // P
        share, low = m.mix(x[half:]), half if own else 0
        if in_place:
            out = torch.zeros_like(x)
            out[low : low + half] = share
        else:
            out = torch.slice_scatter(torch.zeros_like(x), share, 0, low, low + half)
        return x + all_reduce(out)

    assert (found(Module(form), ids(TOKENS), p=P, rank=1) == []) is own
