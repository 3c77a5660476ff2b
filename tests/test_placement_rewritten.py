"""Reference graphs that a pass has rewritten, rightly or not: annotated they are what the graphs before that pass are."""

from __future__ import annotations

from pathlib import Path

import pytest

from layoutcheck.errors import InputError
from layoutcheck.placement.annotated import annotate

pytestmark = pytest.mark.shared

DSA, SP = "dsa-cp-prefill", "sequence-parallel"
SAME = [
    ("dsv32_prefill_repeated", DSA),
    ("dsv3_bf16_prefill_repeated", SP),
    ("glm5_decode_dp8tp4_spon", "mc2-decode"),
    ("glm5_prefill_4100tok_expanded6", DSA),
    ("glm5_prefill_expanded6", DSA),
    ("glm5_prefill_rank3_expanded5", DSA),
    ("glm5_prefill_repeated", DSA),
    ("qwen3_8b_bf16_prefill_expanded4", SP),
    ("qwen3_8b_prefill_expanded4", SP),
]
# Where the rewriting mixes Full and Local, the layouts behind that do not say any more what was meant.
WRONG = [
    ("dsv3_bf16_prefill_expanded5", SP, "LC101 at add_rms_norm2_default_1"),
    ("glm5_prefill_noembtp_expanded6", DSA, "LC101 at add_rms_norm2_default_9"),
    ("glm5_prefill_mtp1_repeated", DSA, "LC101 at cat_4"),
]


@pytest.mark.parametrize(("name", "contract"), SAME)
def test_conversions_that_were_there_are_placed_anew(shared_graphs: Path, name: str, contract: str) -> None:
    """The same conversions at the same price, and what was recorded of shapes is right afterwards."""
    before, after = (
        annotate(shared_graphs / f"{name}.{form}.json.gz", contract) for form in ("before", "after")
    )
    assert after.counts() == before.counts()
    assert after.price == before.price
    assert [str(f) for f in after.check().findings] == []


@pytest.mark.parametrize(("name", "contract", "fault"), WRONG)
def test_a_rewriting_that_went_wrong_is_named(
    shared_graphs: Path, name: str, contract: str, fault: str
) -> None:
    with pytest.raises(InputError) as caught:
        annotate(shared_graphs / f"{name}.after.json.gz", contract)
    assert "the graph's own conversions are wrong (LC1" in caught.value.message
    assert fault in caught.value.message
