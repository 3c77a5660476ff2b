"""Experts in the forms that models write them, their features or the experts sharded: right programs are clean, wrong twins are not."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support.exporting import all_reduce, found, linear  # noqa: E402
from torch.nn import functional as F  # noqa: E402

HIDDEN, EXPERTS, CHOSEN, WIDTH, P = 32, 4, 2, 8, 2


class Experts(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A residual around experts; `reduced` is how often what they give is summed over the group."""

    local, width = EXPERTS, WIDTH

    def __init__(self, reduced: int) -> None:
        super().__init__()
        self.reduced = reduced
        self.embed = torch.nn.Embedding(64, HIDDEN)
        self.gate = linear(HIDDEN, EXPERTS)
        self.up = torch.nn.Parameter(torch.randn(self.local, self.width, HIDDEN))
        self.down = torch.nn.Parameter(torch.randn(self.local, HIDDEN, self.width))

    def forward(self, ids: Any) -> Any:
        x = self.embed(ids)
        w, chosen = torch.topk(self.gate(x).softmax(-1), CHOSEN, -1)
        out = self.experts(x, w, chosen)
        for _ in range(self.reduced):
            out = all_reduce(out)
        return x + out

    def experts(self, x: Any, w: Any, chosen: Any) -> Any:
        raise NotImplementedError


class SortedAdded(Experts):
    """Rows sorted by expert, products added to their tokens."""

    def experts(self, x: Any, w: Any, chosen: Any) -> Any:
        order = chosen.flatten().argsort()
        token = torch.div(order, CHOSEN, rounding_mode="floor")
        e = chosen.flatten()[order]
        y = torch.einsum("nf,nhf->nh", torch.einsum("nh,nfh->nf", x[token], self.up[e]).relu(), self.down[e])
        return torch.zeros_like(x).index_add(0, token, y * w.flatten()[order][:, None])


class SortedPut(Experts):
    """Rows sorted by expert, put back into an empty buffer."""

    def experts(self, x: Any, w: Any, chosen: Any) -> Any:
        order = chosen.flatten().argsort()
        e = chosen.flatten()[order]
        h = torch.bmm(self.up[e], x[order // CHOSEN][:, :, None]).relu()
        y = torch.bmm(self.down[e], h).squeeze(-1)
        back = torch.empty_like(y)
        back[order] = y
        return (back.view(-1, CHOSEN, HIDDEN) * w[:, :, None]).sum(1)


class SortedBack(Experts):
    """Rows sorted by expert, put back by the inverse of the order; `inverted` False leaves them sorted."""

    inverted = True

    def experts(self, x: Any, w: Any, chosen: Any) -> Any:
        order = chosen.flatten().argsort()
        e = chosen.flatten()[order]
        rows = x.repeat_interleave(CHOSEN, 0)[order]
        y = torch.einsum("nf,nhf->nh", torch.einsum("nh,nfh->nf", rows, self.up[e]).relu(), self.down[e])
        y = y[order.argsort()] if self.inverted else y
        return (y.view(-1, CHOSEN, HIDDEN) * w[:, :, None]).sum(1)


class StillSorted(SortedBack):
    """Rows taken for tokens in order, though they are sorted."""

    inverted = False


class Looked(Experts):
    """Each token looks up its experts' matrices."""

    def experts(self, x: Any, w: Any, chosen: Any) -> Any:
        h = torch.einsum("th,tkfh->tkf", x, self.up[chosen]).relu()
        return torch.einsum("tkh,tk->th", torch.einsum("tkf,tkhf->tkh", h, self.down[chosen]), w)


class All(Experts):
    """All experts on all tokens as batches, most gates zero."""

    def experts(self, x: Any, w: Any, chosen: Any) -> Any:
        gates = torch.zeros_like(self.gate(x)).scatter_(1, chosen, w)
        h = torch.bmm(x[None].expand(self.local, -1, -1), self.up.transpose(1, 2)).relu()
        y = torch.bmm(h, self.down.transpose(1, 2))
        return (y * self.mine(gates).transpose(0, 1)[:, :, None]).sum(0)

    def mine(self, gates: Any) -> Any:
        return gates


class Capacity(Experts):
    """One-hot dispatch into a fixed number of places an expert, and the way back."""

    def experts(self, x: Any, w: Any, chosen: Any) -> Any:
        hot = F.one_hot(chosen, EXPERTS).float()
        place = (hot.flatten(0, 1).cumsum(0) - hot.flatten(0, 1)).view_as(hot)
        slot = F.one_hot((place * hot).sum(-1).long().clamp(max=7), 8).float()
        sent = torch.einsum("tke,tkc->tec", hot * (place < 8), slot)
        back = torch.einsum("tke,tkc,tk->tec", hot, slot, w)
        h = torch.einsum("ech,efh->ecf", torch.einsum("tec,th->ech", sent, x), self.up).relu()
        return torch.einsum("tec,ech->th", back, torch.einsum("ecf,ehf->ech", h, self.down))


class AllOfShare(All):
    """The experts sharded: a rank's own, with its share of the gates."""

    local, width = EXPERTS // P, 2 * WIDTH

    def mine(self, gates: Any) -> Any:
        return gates[:, : self.local]


def ids() -> Any:
    return torch.zeros(12, dtype=torch.int64)


FORMS = [SortedAdded, SortedPut, SortedBack, Looked, All, Capacity, AllOfShare]


@pytest.mark.parametrize("form", FORMS)
def test_experts(form: Any) -> None:
    assert found(form(1), ids(), p=P) == []
    assert found(form(2), ids(), p=P) == [("LC202", "all_reduce_1")]


def test_rows_that_are_still_sorted() -> None:
    assert found(StillSorted(1), ids(), p=P)[0] == ("LC102", "mul")
