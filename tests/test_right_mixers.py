"""Convolutions, token shifts, group norms, biases in parts, batches flattened with heads: right programs and wrong twins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support.exporting import all_reduce, found, linear  # noqa: E402
from torch.nn import functional as F  # noqa: E402

HIDDEN, D, TOKENS, P = 32, 8, 12, 2
BATCH = 2


class Block(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Two residual branches, channels sharded; `reduced` is how often the first one is summed over the group."""

    def __init__(self, reduced: int = 1, heads: int = 2) -> None:
        super().__init__()
        self.reduced, self.heads = reduced, heads
        self.embed = torch.nn.Embedding(64, HIDDEN)
        self.inner = heads * D
        self.into, self.out = linear(HIDDEN, self.inner), linear(self.inner, HIDDEN)
        self.up, self.down = linear(HIDDEN, self.inner), linear(self.inner, HIDDEN)

    def mix(self, u: Any) -> Any:
        raise NotImplementedError

    def forward(self, ids: Any) -> Any:
        x = self.embed(ids)
        y = self.out(self.mix(self.into(x)))
        for _ in range(self.reduced):
            y = all_reduce(y)
        x = x + y
        return x + all_reduce(self.down(self.up(x).relu()))


class Convolved(Block):
    """A depthwise convolution over whole tokens that looks back, its rows cut back to the tokens."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.conv = torch.nn.Conv1d(self.inner, self.inner, 4, groups=self.inner, padding=3)

    def mix(self, u: Any) -> Any:
        return F.silu(self.conv(u.transpose(1, 2))[..., :TOKENS].transpose(1, 2))


class PaddedInFront(Convolved):
    """The same with the padding put in front by hand."""

    def mix(self, u: Any) -> Any:
        padded = F.pad(u.transpose(1, 2), (3, 0))
        return F.conv1d(padded, self.conv.weight, self.conv.bias, groups=self.inner).transpose(1, 2)


class Shifted(Block):
    """Each token beside the one before it."""

    def mix(self, u: Any) -> Any:
        before = torch.cat((torch.zeros_like(u[:, :1]), u[:, :-1]), 1)
        return u + 0.5 * (before - u)


class Normed(Block):
    """A norm of each head by itself."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.norm = torch.nn.GroupNorm(self.heads, self.inner)

    def mix(self, u: Any) -> Any:
        return self.norm(u.flatten(0, 1)).view(u.shape)


class Slopes(Block):
    """Batch and heads as one axis of a bmm, with slopes a head; `other` takes those of another rank's heads."""

    other = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.w, self.b = (
            torch.nn.Parameter(torch.randn(self.inner, 3 * self.inner)),
            torch.nn.Parameter(torch.randn(3 * self.inner)),
        )

    def mix(self, u: Any) -> Any:
        batch, heads, at = u.shape[0], self.heads, self.heads if self.other else 0
        fused = torch.addmm(self.b, u.flatten(0, 1), self.w).view(batch, TOKENS, heads, 3, D)
        q, k, v = (z.reshape(batch * heads, TOKENS, D) for z in fused.permute(3, 0, 2, 1, 4).unbind(0))
        slopes = torch.pow(2.0, -torch.arange(1, P * heads + 1).float())[at : at + heads]
        far = torch.arange(TOKENS)
        bias = (slopes[:, None, None] * (far[None] - far[:, None])).repeat(batch, 1, 1)
        o = torch.bmm(torch.baddbmm(bias, q, k.transpose(1, 2)).softmax(-1), v)
        return o.view(batch, heads, TOKENS, D).transpose(1, 2).reshape(batch, TOKENS, -1)


def ids() -> Any:
    return torch.zeros(BATCH, TOKENS, dtype=torch.int64)


@pytest.mark.parametrize("form", [Convolved, PaddedInFront, Shifted, Normed])
def test_mixers(form: Any) -> None:
    assert found(form(), ids(), p=P) == []
    assert found(form(2), ids(), p=P) == [("LC202", "all_reduce_1")]


@pytest.mark.parametrize("heads", [1, 2])
def test_batches_flattened_with_heads(heads: int) -> None:
    assert found(Slopes(1, heads), ids(), p=P) == []
    assert found(Slopes(2, heads), ids(), p=P) == [("LC202", "all_reduce_1")]


def test_slopes_of_another_ranks_heads() -> None:
    class Others(Slopes):
        other = True

    (code, node), *_ = found(Others(), ids()[:1], p=P, rank=0)
    assert (code, node) == ("LC102", "baddbmm")


class WithBias(Block):
    """A bias of the second projection, in the way that `part` says."""

    def __init__(self, part: Callable[[Any], Any]) -> None:
        super().__init__()
        self.part, self.bias = part, torch.nn.Parameter(torch.randn(HIDDEN))

    def forward(self, ids: Any) -> Any:
        x = self.embed(ids)
        return x + all_reduce(self.out(self.into(x).relu()) + self.part(self.bias))


@pytest.mark.parametrize(
    ("part", "clean"),
    [
        (lambda b: b / P, True),
        (lambda b: b * (1 / P), True),
        (lambda b: b, False),
        (lambda b: b / (2 * P), False),
    ],
    ids=["a share", "times a share", "whole", "a share of another group"],
)
def test_biases_in_parts(part: Any, clean: bool) -> None:
    assert found(WithBias(part), ids(), p=P) == ([] if clean else [("LC204", "add")])


@pytest.mark.parametrize(("rank", "factor", "clean"), [(1, 0.0, True), (1, 1.0, False), (0, 1.0, True)])
def test_biases_of_one_rank(rank: int, factor: float, clean: bool) -> None:
    """A bias times 1 on rank 0 and times 0 elsewhere is added once."""
    assert (found(WithBias(lambda b: b * factor), ids(), p=P, rank=rank) == []) is clean
