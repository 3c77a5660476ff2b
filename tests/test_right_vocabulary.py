"""A vocabulary sharded over the group: greatest values, losses, lookups and exchanges as programs write them, and wrong twins."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support.exporting import all_gather, all_reduce, all_to_all, found, linear  # noqa: E402
from torch.nn import functional as F  # noqa: E402

HIDDEN, WORDS, TOKENS, P = 32, 64, 12, 2
SHARE = WORDS // P


class Logits(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A rank's share of the logits, and what `form` makes of it; `low` is the first of the rank's words."""

    def __init__(self, form: Any, rank: int) -> None:
        super().__init__()
        self.form, self.low = form, rank * SHARE
        self.embed, self.head = torch.nn.Embedding(WORDS, HIDDEN), linear(HIDDEN, SHARE)

    def forward(self, ids: Any, labels: Any) -> Any:
        return self.form(self.head(self.embed(ids)), labels, self.low)


def greatest(logits: Any, labels: Any, low: int) -> Any:
    value, word = logits.max(-1)
    values, words = all_gather(value[None], P), all_gather((word + low)[None], P)
    return words.gather(0, values.argmax(0, keepdim=True))


def greatest_by_two(logits: Any, labels: Any, low: int) -> Any:
    value, word = logits.max(-1)
    mine = torch.where(value == all_reduce(value, "max"), word + low, WORDS)
    return all_reduce(mine, "min"), all_gather(logits, P, 1)


def best_four(logits: Any, labels: Any, low: int) -> Any:
    value, word = logits.topk(4, -1)
    _, place = all_gather(value, P, 1).topk(4, -1)
    return all_gather(word + low, P, 1).gather(-1, place)


def log_sum(logits: Any, labels: Any, low: int) -> Any:
    top = all_reduce(logits.amax(-1), "max")
    return top + all_reduce((logits - top[:, None]).exp().sum(-1)).log()


def loss(logits: Any, labels: Any, low: int) -> Any:
    logits = logits - all_reduce(logits.max(-1)[0], "max")[:, None]
    out = (labels < low) | (labels >= low + SHARE)
    own = logits.gather(-1, (labels - low).masked_fill(out, 0)[:, None]).squeeze(-1).masked_fill(out, 0.0)
    return (all_reduce(logits.exp().sum(-1)).log() - all_reduce(own)).mean()


def loss_by_positions(logits: Any, labels: Any, low: int) -> Any:
    logits = logits - all_reduce(logits.amax(-1), "max")[:, None]
    hot = (labels[:, None] == torch.arange(low, low + SHARE)[None]).float()
    return all_reduce(logits.exp().sum(-1)).log() - all_reduce((logits * hot).sum(-1))


def exchanged(logits: Any, labels: Any, low: int) -> Any:
    rows = torch.cat(all_to_all(logits, P).chunk(P, 0), -1)
    return all_gather(rows.softmax(-1).amax(-1), P)


@pytest.mark.parametrize(
    "form",
    [greatest, greatest_by_two, best_four, log_sum, loss, loss_by_positions, exchanged],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("rank", [0, 1])
def test_logits(form: Any, rank: int) -> None:
    assert found(Logits(form, rank), *ids(), p=P, rank=rank) == []


def own_maximum(logits: Any, labels: Any, low: int) -> Any:
    return all_reduce((logits - logits.amax(-1)[:, None]).exp().sum(-1)).log()


def sum_of_maxima(logits: Any, labels: Any, low: int) -> Any:
    top = all_reduce(logits.amax(-1))
    return top + all_reduce((logits - top[:, None]).exp().sum(-1)).log()


def least_for_greatest(logits: Any, labels: Any, low: int) -> Any:
    top = all_reduce(logits.amax(-1), "min")
    return top + all_reduce((logits - top[:, None]).exp().sum(-1)).log()


def own_words(logits: Any, labels: Any, low: int) -> Any:
    return logits.max(-1)[1] + low, all_gather(logits, P, 1)


@pytest.mark.parametrize(
    ("form", "node"),
    [(own_maximum, "amax"), (sum_of_maxima, "amax"), (least_for_greatest, "amax"), (own_words, "max_1")],
    ids=lambda f: getattr(f, "__name__", f),
)
def test_logits_that_are_not_compared(form: Any, node: str) -> None:
    assert ("LC106", node) in found(Logits(form, 0), *ids(), p=P)


class Lookup(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Rows of a rank's share of a table by ids; `reduced` is how often they are summed over the group."""

    def __init__(self, form: Any, rank: int, reduced: int = 1) -> None:
        super().__init__()
        self.form, self.low, self.reduced = form, rank * SHARE, reduced
        self.table = torch.nn.Parameter(torch.randn(SHARE, HIDDEN))

    def forward(self, ids: Any, labels: Any) -> Any:
        rows = self.form(ids, self.table, self.low)
        for _ in range(self.reduced):
            rows = all_reduce(rows)
        return rows


def indexed(ids: Any, table: Any, low: int) -> Any:
    mine = (ids >= low) & (ids < low + SHARE)
    return table[(ids - low).clamp(0, SHARE - 1)] * mine[:, None]


def selected(ids: Any, table: Any, low: int) -> Any:
    mine = (ids >= low) & (ids < low + SHARE)
    rows = table.index_select(0, torch.where(mine, ids - low, 0))
    return torch.where(mine[:, None], rows, 0.0)


def hot_share(ids: Any, table: Any, low: int) -> Any:
    return F.one_hot(ids, WORDS).float()[:, low : low + SHARE] @ table


def compared(ids: Any, table: Any, low: int) -> Any:
    return (ids[:, None] == torch.arange(SHARE) + low).float() @ table


@pytest.mark.parametrize("form", [indexed, selected, hot_share, compared], ids=lambda f: f.__name__)
@pytest.mark.parametrize("rank", [0, 1])
def test_lookups(form: Any, rank: int) -> None:
    assert found(Lookup(form, rank), *ids(), p=P, rank=rank, tokens=[("ids", 0)]) == []
    assert found(Lookup(form, rank, 2), *ids(), p=P, rank=rank, tokens=[("ids", 0)]) == [
        ("LC202", "all_reduce_1")
    ]


def ids() -> tuple[Any, Any]:
    return torch.zeros(TOKENS, dtype=torch.int64), torch.zeros(TOKENS, dtype=torch.int64)
