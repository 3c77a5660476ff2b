"""Random decoders of one device, annotated and run on ranks, give what the device gives; their weights are cut where they divide."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hypothesis import example, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from ranks.random_decoders import Spelling, spellings, write  # noqa: E402

from layoutcheck.ranks.annotated import run_annotated, run_whole  # noqa: E402

torch.set_num_threads(1)
CONTRACTS = st.sampled_from(("tensor-parallel", "sequence-parallel"))
EXACT = 1e-10
"""Both are computed in float64, and add in another order."""


def equal_on_ranks(spelling: Spelling, contract: str, ranks: int, seed: int) -> None:
    graph, inputs, logits = write(spelling, seed)
    torch.testing.assert_close(run_whole(graph, inputs).outputs[0], logits, atol=EXACT, rtol=0)
    found = run_annotated(graph, contract, ranks, inputs)
    for run in found.runs:
        torch.testing.assert_close(run.outputs[0], logits, atol=EXACT, rtol=0)
    assert [str(f) for f in found.annotated[0].check().findings] == []
    notes = found.annotated[0].notes
    assert not any("dense" in note for note in notes), "the inner sizes divide"
    if spelling.kv_heads % ranks == 0:
        assert notes == (), "so do the heads"


ONE_KEY_HEAD = Spelling(
    layers=1,
    batch=1,
    tokens=2,
    heads=4,
    kv_heads=2,
    head_dim=4,
    width=16,
    inner=12,
    qkv="apart",
    repeat="expand",
    mlp="apart",
    bias=False,
    mask=False,
    tables=False,
    dropout=False,
    scaled=False,
)
"""A rank's one key head is repeated behind a batch of one: the view of both has two axes of one, and one place for them."""


@given(spellings(), CONTRACTS, st.sampled_from((2, 4)), st.integers(0, 9))
@example(ONE_KEY_HEAD, "tensor-parallel", 2, 0)
@settings(max_examples=10)
def test_random_decoders(spelling: Spelling, contract: str, ranks: int, seed: int) -> None:
    equal_on_ranks(spelling, contract, ranks, seed)


@pytest.mark.nightly
@given(spellings(), CONTRACTS, st.sampled_from((2, 4)), st.integers(0, 9))
@settings(max_examples=300)
def test_many_random_decoders(spelling: Spelling, contract: str, ranks: int, seed: int) -> None:
    equal_on_ranks(spelling, contract, ranks, seed)
