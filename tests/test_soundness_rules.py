"""What a rule claims, against running the op on ranks: nothing is claimed that is not so, and each refusal of
what is so has a reason.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

from ranks import (  # noqa: E402  # noqa: E402
    reasons,
    samples_assumed,
    samples_auto,
    samples_fused,
    samples_more,
    samples_rest,
    samples_torch,
    sizes,
)
from ranks.calls import Sample  # noqa: E402
from ranks.enumerate_rules import SIZES, Verdict, verify_sample  # noqa: E402

from layoutcheck.ranks.reference import find  # noqa: E402
from layoutcheck.rules.rulebook import RuleBook  # noqa: E402
from layoutcheck.rules.types import Rule  # noqa: E402
from layoutcheck.symbols import cdiv, floordiv  # noqa: E402

BOOK = RuleBook.load()
FAST = (2, 3)  # one rank: test_op_runs; four: nightly


def samples() -> Iterator[Sample]:
    yield from samples_auto.pointwise(BOOK)
    yield from samples_torch.all_samples()
    yield from samples_fused.all_samples()
    yield from samples_more.all_samples()
    yield from samples_rest.all_samples()
    yield from samples_assumed.all_samples()


def by_op() -> dict[str, list[Sample]]:
    groups: dict[str, list[Sample]] = {}
    for sample in samples():
        groups.setdefault(sample.target, []).append(sample)
    return groups


GROUPS = by_op()


def judged(op: str, sizes: tuple[int, ...]) -> list[Verdict]:
    return [v for sample in GROUPS[op] for v in verify_sample(BOOK, sample, sizes)]


def complaints(verdicts: list[Verdict]) -> list[str]:
    """Claims that are not so, and unexplained refusals of what is so."""
    wrong = [f"incorrect: {v.text()}: {v.incorrect[0]}" for v in verdicts if v.incorrect]
    silent = [
        f"missing: {v.text()}: {sorted(v.missing)} refused by {sorted(v.refusals)}"
        for v in verdicts
        if v.missing and reasons.reason(v.text()) is None
    ]
    return wrong + silent


@pytest.mark.parametrize("op", GROUPS)
def test_rule_claims_what_is_so(op: str) -> None:
    torch.set_num_threads(1)
    verdicts = judged(op, FAST)
    assert not complaints(verdicts), "\n".join(complaints(verdicts))


@pytest.mark.parametrize("op", GROUPS)
def test_op_runs(op: str) -> None:
    """A sample that never runs on one device tests nothing."""
    for sample in GROUPS[op]:
        assert find(sample.target) is not None
        if not reasons.never_runs(sample):
            counts = (1,) if sample.only is None else SIZES
            assert sum(v.trials for v in verify_sample(BOOK, sample, counts))


@pytest.mark.nightly
@pytest.mark.parametrize("op", GROUPS)
def test_rule_claims_what_is_so_on_four_ranks(op: str) -> None:
    torch.set_num_threads(1)
    verdicts = judged(op, SIZES)
    assert not complaints(verdicts), "\n".join(complaints(verdicts))


@pytest.mark.parametrize("rule", list(sizes.arithmetic(BOOK)), ids=lambda r: r.target)
def test_arithmetic_on_sizes(rule: Rule) -> None:
    """What is said of symbols holds for the numbers that are put in their place."""
    found = sizes.judge_sizes(BOOK, rule)
    assert not found.wrong, found.wrong[:3]
    assert found.claims or rule.target in ("torch.sym_sqrt", "torch.sym_ite")


@pytest.mark.parametrize("rule", list(sizes.assertions(BOOK)), ids=lambda r: r.target)
def test_an_assertion_gives_nothing(rule: Rule) -> None:
    assert not sizes.judge_nothing(BOOK, rule).wrong


def test_a_quotient_is_rounded_as_it_says() -> None:
    """T / 4 rounded down is not T / 4 rounded up."""
    quotient = sizes.answer(BOOK, "operator.truediv", sizes.T, 4)
    assert sizes.answer(BOOK, "math.floor", quotient) is floordiv(sizes.T, 4)
    assert sizes.answer(BOOK, "math.ceil", quotient) is cdiv(sizes.T, 4)
    assert sizes.answer(BOOK, "torch.sym_int", quotient) is floordiv(sizes.T, 4)


def test_every_rule_has_a_sample_or_a_reason() -> None:
    covered = {rule.target for s in samples() if (rule := BOOK.lookup(s.target)) is not None}
    covered |= {rule.target for rule in (*sizes.arithmetic(BOOK), *sizes.assertions(BOOK))}
    left = [t for t in BOOK.rules if t not in covered and reasons.uncovered(t) is None]
    assert not left
    said = [t for t in covered if reasons.uncovered(t) is not None]
    assert not said, "there is a reason for what has a sample"
