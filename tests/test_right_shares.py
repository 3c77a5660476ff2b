"""Shares of tokens as programs take them and put them together: right programs are clean, their wrong twins are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support.exporting import all_gather, all_reduce, found, linear, reduce_scatter  # noqa: E402
from torch.nn import functional as F  # noqa: E402

HIDDEN, D, TOKENS, P = 32, 8, 16, 2
LC102, LC105, LC108 = "LC102", "LC105", "LC108"


class Module(torch.nn.Module):  # type: ignore[misc, name-defined]
    """An embedding and projections; `form` is what the program makes of them on `rank`."""

    def __init__(self, form: Callable[..., Any], rank: int) -> None:
        super().__init__()
        self.form, self.rank = form, rank
        self.embed = torch.nn.Embedding(64, HIDDEN)
        self.q, self.k, self.v, self.o = (linear(HIDDEN, HIDDEN) for _ in range(4))
        self.up, self.down = linear(HIDDEN, 24), linear(24, HIDDEN)

    def forward(self, ids: Any) -> Any:
        return self.form(self, ids, self.rank)

    def attention(self, x: Any, mask: Any, joined: Callable[[Any], Any]) -> Any:
        q, k, v = (f(x).view(-1, HIDDEN // D, D) for f in (self.q, self.k, self.v))
        k, v = joined(k), joined(v)
        parts = (z.transpose(0, 1)[None] for z in (q, k, v))
        return self.o(F.scaled_dot_product_attention(*parts, attn_mask=mask)[0].transpose(0, 1).flatten(1))


def ids(*shape: int) -> Any:
    return torch.zeros(*shape, dtype=torch.int64)


def put_together(form: Callable[..., Any], rank: int, *shape: int) -> list[tuple[str, str]]:
    return found(Module(form, rank), ids(*shape), p=P, rank=rank)


def one_beside_another(m: Any, x: Any) -> Any:
    return all_gather(x, P, 1)


def in_the_order_of_ranks(m: Any, x: Any) -> Any:
    rows = all_gather(x, P)
    return rows.reshape(x.shape[0], -1, HIDDEN)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("batch", [1, 2])
def test_shares_of_a_batchs_tokens(batch: int, rank: int) -> None:
    def layer(m: Any, tokens: Any, rank: int) -> Any:
        x = m.embed(tokens)[:, rank * TOKENS // P : (rank + 1) * TOKENS // P]
        h = torch.cat(m.down(m.up(one_beside_another(m, x)).relu()).chunk(P, 1), 0)
        return one_beside_another(m, x + reduce_scatter(h, P))

    assert put_together(layer, rank, batch, TOKENS) == []

    def disordered(m: Any, tokens: Any, rank: int) -> Any:
        x = m.embed(tokens)[:, rank * TOKENS // P : (rank + 1) * TOKENS // P]
        return m.up(in_the_order_of_ranks(m, x))

    wanted = [] if batch == 1 else [(LC105, "output")]
    assert put_together(disordered, rank, batch, TOKENS) == wanted


def test_one_token_a_rank_of_a_batch() -> None:
    def layer(m: Any, tokens: Any, rank: int) -> Any:
        x = m.embed(tokens)[:, rank : rank + 1]
        h = torch.cat(m.down(m.up(one_beside_another(m, x)).relu()).chunk(P, 1), 0)
        return one_beside_another(m, x + reduce_scatter(h, P))

    assert put_together(layer, 1, 3, P) == []


def test_shares_of_a_batch_flattened_with_its_tokens() -> None:
    def layer(m: Any, tokens: Any, rank: int) -> Any:
        rows = m.embed(tokens).flatten(0, 1)
        x = rows[rank * TOKENS : (rank + 1) * TOKENS]
        return all_gather(x + reduce_scatter(m.down(m.up(all_gather(x, P)).relu()), P), P)

    assert put_together(layer, 1, P, TOKENS) == []


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("own", [True, False])
def test_zigzag_shares(own: bool, rank: int) -> None:
    """Rank r has chunks r and 2p - 1 - r; on another rank's chunks it is no share."""

    def layer(m: Any, tokens: Any, rank: int) -> Any:
        r = rank if own else 1 - rank
        chunks = torch.arange(TOKENS).chunk(2 * P)
        mine = torch.cat((chunks[r], chunks[2 * P - 1 - r]))
        every = all_gather(mine, P)
        x = m.embed(tokens[mine])
        x = x + m.attention(x, every[None] <= mine[:, None], lambda z: all_gather(z, P))
        return all_gather(x, P)[every.argsort()]

    assert (put_together(layer, rank, TOKENS) == []) is own


@pytest.mark.parametrize("own", [True, False])
def test_interleaved_shares(own: bool) -> None:
    """Rank r has tokens r, r + p, ..: gathered shares are interleaved, not put one after another."""

    def layer(m: Any, tokens: Any, rank: int) -> Any:
        x = m.down(m.up(m.embed(tokens[rank::P])).relu())
        rows = all_gather(x, P).view(P, -1, HIDDEN)
        return m.embed(tokens) + (rows.transpose(0, 1) if own else rows).reshape(-1, HIDDEN)

    assert (put_together(layer, 1, TOKENS) == []) is own


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("mask", ["own", "other", "counted"])
def test_masks_of_a_ranks_own_queries(mask: str, rank: int) -> None:
    def layer(m: Any, tokens: Any, rank: int) -> Any:
        share = TOKENS // P
        x = m.embed(tokens)[rank * share : (rank + 1) * share]
        at = (rank if mask == "own" else 1 - rank) * share
        rows = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()[at : at + share]
        if mask == "counted":
            mine = torch.arange(rank * share, (rank + 1) * share)
            rows = all_gather(mine, P)[None] <= mine[:, None]
        return all_gather(x + m.attention(x, rows, lambda z: all_gather(z, P)), P)

    wanted = [(LC102, "scaled_dot_product_attention")] if mask == "other" else []
    assert put_together(layer, rank, TOKENS) == wanted


@pytest.mark.parametrize("rank", [0, 1])
def test_a_split_for_each_piece(rank: int) -> None:
    """As a lowered program takes the pieces that it scatters: each from a split of its own."""

    def layer(m: Any, tokens: Any, rank: int) -> Any:
        x = m.down(m.up(m.embed(tokens)).relu())
        x = torch.cat([x.split(TOKENS // P, 1)[i] for i in range(P)], 0)
        return all_gather(reduce_scatter(x, P), P, 1)

    assert put_together(layer, rank, 1, TOKENS) == []


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("masked", [True, False])
def test_rows_of_other_ranks_words(masked: bool, rank: int) -> None:
    """A sum over the ranks' parts of a table adds up rows; those of words that a rank does not have must be zero."""
    words = 64 // P

    class Lookup(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(words, HIDDEN)

        def forward(self, ids: Any) -> Any:
            mine = (ids >= rank * words) & (ids < rank * words + words)
            if masked:
                rows = self.table(torch.where(mine, ids - rank * words, 0))
                return all_reduce(rows.masked_fill(~mine[:, None], 0.0))
            return all_reduce(self.table((ids - rank * words).clamp(0, words - 1)))

    assert found(Lookup(), ids(TOKENS), p=P, rank=rank) == ([] if masked else [(LC108, "all_reduce")])
