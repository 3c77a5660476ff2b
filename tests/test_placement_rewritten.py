"""Reference graphs that a pass has rewritten, rightly or not: annotated they are what the graphs before that pass are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from layoutcheck.placement.annotated import AnnotatedGraph, annotate

pytestmark = pytest.mark.shared

DSA, SP = "dsa-cp-prefill", "sequence-parallel"
# In the three that say so the rewriting mixes Full and Local, so that layouts behind that do not say any more what was meant.
GRAPHS = [
    ("dsv32_prefill_repeated", DSA),
    ("dsv3_bf16_prefill_expanded5", SP),  # mixed
    ("dsv3_bf16_prefill_repeated", SP),
    ("glm5_decode_dp8tp4_spon", "mc2-decode"),
    ("glm5_prefill_4100tok_expanded6", DSA),
    ("glm5_prefill_expanded6", DSA),
    ("glm5_prefill_mtp1_repeated", DSA),  # mixed
    ("glm5_prefill_noembtp_expanded6", DSA),  # mixed
    ("glm5_prefill_rank3_expanded5", DSA),
    ("glm5_prefill_repeated", DSA),
    ("qwen3_8b_bf16_prefill_expanded4", SP),
    ("qwen3_8b_prefill_expanded4", SP),
]
# A pass writes views where a collective asks for another rank; they move nothing.
VIEWS = ("aten.view.default", "operator.getitem")


def calls(found: AnnotatedGraph) -> list[tuple[str, str]]:
    """What is called in order, with the layout of its result; views, and axes of one element, left out."""
    return [
        (node.target, re.sub(r"\b1, ", "", found.layouts.get(node.name, "")))
        for node in found.graph.nodes
        if node.op == "call_function" and node.target not in VIEWS
    ]


@pytest.mark.parametrize(("name", "contract"), GRAPHS)
def test_conversions_that_were_there_are_placed_anew(shared_graphs: Path, name: str, contract: str) -> None:
    """The same calls on the same layouts at the same price, and what was recorded of shapes is right afterwards."""
    before, after = (
        annotate(shared_graphs / f"{name}.{form}.json.gz", contract) for form in ("before", "after")
    )
    assert after.counts() == before.counts()
    assert after.price == before.price
    assert [str(f) for f in after.check().findings] == []
    assert sorted(calls(after)) == sorted(calls(before))
