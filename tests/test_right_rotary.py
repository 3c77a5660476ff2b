"""Rotary embeddings as models spell them, and buffers written in parts: right programs are clean, their wrong twins are not."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support.exporting import all_gather, all_reduce, found, linear  # noqa: E402
from torch.nn import functional as F  # noqa: E402

HIDDEN, D = 32, 8


def interleaved(x: Any, cos: Any, sin: Any) -> Any:
    """Pairs of neighbours turned, the tables' first halves repeated."""
    cos, sin = (t[..., : D // 2].repeat_interleave(2, -1) for t in (cos, sin))
    turned = torch.stack((-x[..., 1::2], x[..., 0::2]), -1).flatten(-2)
    return x * cos + turned * sin


def complex_numbers(x: Any, cos: Any, sin: Any) -> Any:
    """Pairs of neighbours as complex numbers."""
    angle = torch.polar(torch.ones_like(cos[..., : D // 2]), torch.atan2(sin, cos)[..., : D // 2])
    return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * angle).flatten(3)


def rolled(x: Any, cos: Any, sin: Any) -> Any:
    """Halves swapped by a roll."""
    sign = torch.cat((-torch.ones(D // 2), torch.ones(D // 2)))
    return x * cos + x.roll(D // 2, -1) * sign * sin


def in_parts(x: Any, cos: Any, sin: Any) -> Any:
    """Only half of what a head holds is turned; the parts are written into a buffer."""
    out = x.new_empty(x.shape)
    out[..., : D // 2] = x[..., : D // 2] * cos[..., : D // 2] - x[..., D // 2 :] * sin[..., : D // 2]
    out[..., D // 2 :] = x[..., D // 2 :]
    return out


class Attention(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Heads of one rank, turned by `rotary`."""

    def __init__(self, rotary: Any, heads: int, reduced: int) -> None:
        super().__init__()
        self.rotary, self.heads, self.reduced = rotary, heads, reduced
        self.embed = torch.nn.Embedding(64, HIDDEN)
        self.q, self.k, self.v = (linear(HIDDEN, heads * D) for _ in range(3))
        self.o = linear(heads * D, HIDDEN)

    def forward(self, ids: Any) -> Any:
        x = self.embed(ids)
        B, T, _ = x.shape
        q, k, v = (f(x).view(B, T, -1, D).transpose(1, 2) for f in (self.q, self.k, self.v))
        inverse = 1.0 / 10000 ** (torch.arange(0, D, 2) / D)
        angle = torch.arange(T)[:, None] * torch.cat((inverse, inverse))[None]
        q, k = self.rotary(q, angle.cos(), angle.sin()), self.rotary(k, angle.cos(), angle.sin())
        out = self.o(
            F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, -1)
        )
        for _ in range(self.reduced):
            out = all_reduce(out)
        return x + out


@pytest.mark.parametrize("rotary", [interleaved, complex_numbers, rolled, in_parts], ids=lambda f: f.__name__)
@pytest.mark.parametrize("p", [2, 4])
@pytest.mark.parametrize("heads", [1, 2])
def test_rotary_spellings(rotary: Any, p: int, heads: int) -> None:
    ids = torch.zeros(1, 12, dtype=torch.int64)
    assert found(Attention(rotary, heads, 1), ids, p=p) == []
    assert found(Attention(rotary, heads, 2), ids, p=p) == [("LC202", "all_reduce_1")]


class HalfNormed(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A rank's share of the features, divided by the mean of that share or by a number, and gathered."""

    def __init__(self, own: bool) -> None:
        super().__init__()
        self.own = own
        self.embed = torch.nn.Embedding(64, HIDDEN)

    def forward(self, ids: Any) -> Any:
        x = self.embed(ids)
        share = x[..., : HIDDEN // 2]
        return all_gather(share / (share.mean(-1, keepdim=True) if self.own else 2), 2, 2)


def test_a_share_that_is_gathered_is_no_constant_piece() -> None:
    ids = torch.zeros(1, 12, dtype=torch.int64)
    assert found(HalfNormed(False), ids) == []
    assert found(HalfNormed(True), ids) == [("LC106", "mean")]
