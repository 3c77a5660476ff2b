"""Broken rules and transforms are caught by the soundness tests."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")

from ranks import samples_auto, samples_fused, samples_torch  # noqa: E402
from ranks.calls import Sample  # noqa: E402
from ranks.enumerate_rules import verify_sample  # noqa: E402
from ranks.mutants import MUTANTS, Mutant  # noqa: E402
from ranks.outcomes import outcome  # noqa: E402

from layoutcheck.rules.rulebook import RuleBook  # noqa: E402

torch.set_num_threads(1)
SIZES = (2, 3)


def samples(ops: tuple[str, ...]) -> list[Sample]:
    book = RuleBook.load()
    made = [*samples_auto.pointwise(book), *samples_torch.all_samples(), *samples_fused.all_samples()]
    return [s for s in made if s.target in ops]


def incorrect(book: RuleBook, ops: tuple[str, ...]) -> set[str]:
    """Combinations whose claims do not hold."""
    return {v.text() for s in samples(ops) for v in verify_sample(book, s, SIZES) if v.incorrect}


def unsound_programs(n: int = 250) -> int:
    """Random programs that check clean and differ from the single device."""
    rng = random.Random(11)
    found = [outcome([rng.randrange(1 << 16) for _ in range(30)], faults=True) for _ in range(n)]
    return sum(f.clean and not f.equal for f in found)


def test_there_are_enough() -> None:
    assert len(MUTANTS) >= 20


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_mutant_is_caught(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    book = RuleBook.load()
    before = incorrect(book, mutant.ops)
    mutant.patch(monkeypatch, book)
    if mutant.ops:
        assert incorrect(book, mutant.ops) - before, "no rule's samples show it"
    else:
        assert unsound_programs(), "no program shows it"


def test_nothing_is_caught_without_mutants() -> None:
    assert not unsound_programs()
