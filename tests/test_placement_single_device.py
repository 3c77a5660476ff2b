"""The reference exports of one device become programs of 2, 4 and 16 ranks that hold each contract meant for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from layoutcheck.placement.annotated import AnnotatedGraph, annotate

GRAPHS = Path(__file__).parent.parent.parent / "shared" / "graphs"
pytestmark = pytest.mark.skipif(not GRAPHS.is_dir(), reason="the reference graphs are not beside the project")

DENSE = ("tensor-parallel", "sequence-parallel")
SPARSE = (*DENSE, "dsa-cp-prefill", "dsa-cp-query-local", "dsa-cp-entry-slice")
EXPORTS = {
    "llama_tiny": DENSE,
    "qwen3_moe_tiny": DENSE,
    "deepseek_v3_true4_meta": DENSE,
    "glm_moe_dsa_tiny": SPARSE,
    "glm_moe_dsa_true4_meta": SPARSE,
}
CASES = [
    pytest.param(
        name, contract, ranks, marks=[pytest.mark.nightly] if ranks == 2 and "tiny" not in name else []
    )
    for name, contracts in EXPORTS.items()
    for contract in contracts
    for ranks in (2, 4, 16)
]


def annotated(name: str, contract: str, ranks: int) -> AnnotatedGraph:
    return annotate(GRAPHS / f"{name}.pt2", contract, groups={"tp": ranks})


@pytest.mark.parametrize(("name", "contract", "ranks"), CASES)
def test_exports_of_one_device(name: str, contract: str, ranks: int) -> None:
    found = annotated(name, contract, ranks)
    assert [str(f) for f in found.check().findings] == []
    kinds = found.counts()
    if contract != "tensor-parallel":
        assert kinds["all_gather"] and kinds["slice"]
    if "true4" in name:
        # Three dense blocks, each cut, end in a sum.
        assert kinds.get("all_reduce", 0) + kinds.get("reduce_scatter", 0) >= 3


@pytest.mark.parametrize("name", ["llama_tiny", "qwen3_moe_tiny"])
def test_one_key_head_a_rank(name: str) -> None:
    """Two key heads, repeated for four query heads, over two ranks: each rank repeats its own."""
    found = annotated(name, "tensor-parallel", 2)
    assert not any("attention" in note for note in found.notes)
    cut = {node.split("self_attn_")[1] for node in found.shards if "self_attn" in node}
    assert cut == {"q_proj_weight", "k_proj_weight", "v_proj_weight", "o_proj_weight"}
    first = next(n for n in found.graph.nodes if n.target == "aten.scaled_dot_product_attention.default")
    assert ", 2/2@tp*2, T, 16]" in found.layouts[list(first.refs())[1]]
