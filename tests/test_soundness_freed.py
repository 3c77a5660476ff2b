"""Operands that samples hold whole (caches, small weights, buffers), each cut for once: what a rule does not name it may not
let through.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ranks import samples_assumed, samples_fused, samples_more, samples_rest, samples_torch  # noqa: E402
from ranks.calls import Sample, X  # noqa: E402
from ranks.enumerate_rules import verify_sample  # noqa: E402

from layoutcheck.infer.calls import factor_rule  # noqa: E402
from layoutcheck.rules.rulebook import RuleBook  # noqa: E402

BOOK = RuleBook.load()
SOURCES = (samples_torch, samples_fused, samples_more, samples_rest, samples_assumed)


def is_held(value: Any) -> bool:
    return isinstance(value, X) and value.states == "full" and value.axes.strip() not in ("", "1")


def freed() -> Iterator[tuple[str, Sample]]:
    for source in SOURCES:
        for sample in source.all_samples():
            for name, value in sample.args.items():
                if is_held(value):
                    cut = replace(value, states="cut")
                    yield f"{sample.target} {name}", replace(sample, args={**sample.args, name: cut})


def wrong(sample: Sample) -> list[str]:
    torch.set_num_threads(1)
    return [f"{v.text()}: {v.incorrect[0]}" for v in verify_sample(BOOK, sample, (2,)) if v.incorrect]


SAMPLES = list(freed())
FEW = [(n, s) for n, s in SAMPLES if "hc_" in n or "base_" in n or "tensor_cast.attention.default" in n]


@pytest.mark.parametrize("name, sample", FEW, ids=[name for name, _ in FEW])
def test_no_part_of_a_held_operand_passes(name: str, sample: Sample) -> None:
    assert not wrong(sample)


@pytest.mark.nightly
@pytest.mark.parametrize("name, sample", SAMPLES, ids=[name for name, _ in SAMPLES])
def test_no_part_of_any_held_operand_passes(name: str, sample: Sample) -> None:
    assert not wrong(sample)


def test_a_rule_that_lets_unnamed_operands_through_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factor_rule, "check_unmatched", lambda *args: None)
    assert any(wrong(sample) for _, sample in FEW)
