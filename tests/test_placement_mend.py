"""Wrong conversions of a graph are repaired, not stacked upon: with a fault or without, annotating gives the same."""

from __future__ import annotations

import copy
import random

from hypothesis import assume, event, given, settings
from hypothesis import strategies as st
from support import engine
from support.editing import Editor
from support.mutate import Apply, double, move_down, wrong_dimension
from support.slices import SLICE_KINDS, slice_sites

from layoutcheck.check import check
from layoutcheck.json_form import graph_to_json
from layoutcheck.placement.annotated import AnnotatedGraph, annotate
from layoutcheck.testing import Decoder, decoders

FAULTS: dict[str, Apply] = {
    "doubled": double,
    "later": move_down,
    "other dimension": wrong_dimension,
    "slice-constant": SLICE_KINDS["slice-constant"],
    "slice-other-rank": SLICE_KINDS["slice-other-rank"],
}


def bare(found: AnnotatedGraph) -> dict[str, object]:
    """The annotated graph as a file of another tool would be: no record of what it was made from, no layouts."""
    document = graph_to_json(found.graph)
    del document["config"]["annotated_from"]
    for node in document["nodes"]:
        if isinstance(node.get("meta"), dict) and node["op"] == "call_function":
            node["meta"].pop("layout", None)
    return document


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(("sequence-parallel", "dsa-cp-prefill")),
    st.data(),
    st.sampled_from(sorted(FAULTS)),
    st.integers(0, 1000),
)
def test_a_fault_in_a_conversion_changes_nothing(
    contract: str, data: st.DataObject, kind: str, seed: int
) -> None:
    decoder: Decoder = data.draw(decoders(contract=contract, max_repeats=2))
    right = annotate(decoder.build(), contract)
    graph = bare(right)
    rng = random.Random(seed)
    editor = Editor(copy.deepcopy(graph))
    mine = {name for i in right.insertions for name in i.nodes}
    sites = [name for name in editor.collectives() if name in mine]
    if kind in SLICE_KINDS:
        sites = [name for found, name in slice_sites(editor) if found == kind and name in mine]
    assume(sites)
    assume(FAULTS[kind](editor, rng.choice(sites), rng))
    editor.strip_below()
    event(kind)
    wrong = engine.load(editor.graph)
    # Mixed tokens are a matter of how weights are laid out.
    assume(all(f.code != "LC203" for f in check(wrong).findings))
    found = annotate(wrong, contract)
    assert found.counts() == right.counts()
    assert found.price == right.price
    assert [f.code for f in found.check().findings] == [f.code for f in right.check().findings]
