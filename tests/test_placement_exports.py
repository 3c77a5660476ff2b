"""Placement on the shipped exports: from one device to many, and repairs of wrong conversions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import layoutcheck
from layoutcheck.placement.annotated import annotate

EXPORTS = Path(__file__).parent.parent / "examples" / "exports"
GLM = EXPORTS / "glm5_two_layers.pt2"

COUNTS = {
    "tensor-parallel": {"all_reduce": 4, "slice": 1, "all_gather": 2},
    "sequence-parallel": {"all_gather": 4, "reduce_scatter": 3, "slice": 1},
    "dsa-cp-prefill": {"all_gather": 4, "reduce_scatter": 1, "slice": 3},
    "dsa-cp-query-local": {"all_gather": 8, "reduce_scatter": 1, "slice": 3},
}


@pytest.mark.parametrize("contract", COUNTS)
@pytest.mark.parametrize("tp", [2, 4, 16])
def test_from_one_device(contract: str, tp: int) -> None:
    found = annotate(GLM, contract, groups={"tp": tp})
    assert found.counts() == COUNTS[contract]
    assert found.check().findings == ()


@pytest.mark.parametrize("contract", ["dsa-cp-entry-slice", "mc2-decode"])
def test_other_contracts(contract: str) -> None:
    assert annotate(GLM, contract, groups={"tp": 4}).check().findings == ()


def test_keys_alone_are_gathered_for_local_queries() -> None:
    """What the cut chooses: the latent keys, their rotary part, the indexer's key."""
    found = annotate(GLM, "dsa-cp-query-local", groups={"tp": 4})
    widths = sorted(
        found.layouts[i.source].rpartition(", ")[2].rstrip("]")
        for i in found.insertions
        if i.kind == "all_gather" and i.reason.find("mlp.dense") < 0 and "lm_head" not in i.reason
    )
    assert len(widths) == 6 and widths.count("512") == 2 and widths.count("64") == 2


def test_weights_follow_each_other() -> None:
    found = annotate(GLM, "tensor-parallel", groups={"tp": 4})
    axes = {name.rpartition("layers_0_")[2]: s.axis for name, s in found.shards.items() if "layers_0" in name}
    assert axes == {
        "self_attn_q_b_proj_weight": 0,
        "self_attn_kv_b_proj_weight": 0,
        "self_attn_o_proj_weight": 1,
        "mlp_gate_proj_weight": 0,
        "mlp_up_proj_weight": 0,
        "mlp_down_proj_weight": 1,
    }
    prefill = annotate(GLM, "dsa-cp-prefill", groups={"tp": 4})
    assert not any("self_attn" in name for name in prefill.shards)


def test_ranks_differ_in_the_beginning_of_their_shares() -> None:
    graphs = [annotate(GLM, "sequence-parallel", groups={"tp": 4}, rank=r).graph for r in range(4)]
    starts = []
    for graph in graphs:
        share = next(n for n in graph.nodes if n.name.endswith("_share"))
        starts.append(str(share.args[2]))
    assert starts == ["0", "ceil(s70/4)", "2*ceil(s70/4)", "3*ceil(s70/4)"] or len(set(starts)) == 4


def test_a_wrong_conversion_is_repaired() -> None:
    """A shared expert whose all_reduce adds up different tokens: gathered, run, scattered."""
    graph = layoutcheck.load(EXPORTS / "shared_expert_fault.pt2")
    assert {f.code for f in layoutcheck.check(graph).errors} == {"LC203"}
    found = annotate(graph, "sequence-parallel", groups={"tp": 4})
    assert not layoutcheck.check(found.graph, groups={"tp": 4}).errors
    assert found.check().findings == ()
    assert not found.shards


def test_a_plan_keeps_weights_whole(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text('{"group": "tp", "weights": {"*.mlp.*": "replicated"}}')
    found = annotate(GLM, "tensor-parallel", groups={"tp": 4}, plan=plan)
    assert found.counts()["all_reduce"] == 2
    assert not any("_mlp_" in name for name in found.shards)
    assert found.check().findings == ()


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ('{"weights": {"*.nosuch": "column"}}', "the pattern `*.nosuch` names no weight of the graph"),
        (
            '{"weights": {"*layers.0.*q_a_proj*": "column"}}',
            "the plan cuts p_model_layers_0_self_attn_q_a_proj_weight along axis 0,"
            " and the rest of its block can't follow, or the contract does not let it",
        ),
    ],
)
def test_plans_that_lead_nowhere(plan: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(plan)
    with pytest.raises(layoutcheck.InputError) as error:
        annotate(GLM, "tensor-parallel", groups={"tp": 4}, plan=path)
    assert error.value.message == message


def test_a_graph_that_has_its_collectives_keeps_its_weights() -> None:
    found = annotate(EXPORTS / "shared_expert_right.pt2", "sequence-parallel", groups={"tp": 4})
    assert found.check().findings == ()
    assert not found.shards


def test_the_repr_and_the_notes() -> None:
    found = annotate(GLM, "tensor-parallel", groups={"tp": 3})
    assert repr(found).startswith("<AnnotatedGraph tensor-parallel, ")
    assert (
        found.notes[0]
        == "attention block 0 keeps its weights whole: its heads or weights do not divide among tp,"
        " or an op in it takes no share of them"
    )


def test_a_trusted_sum_stays_and_its_warning_too() -> None:
    """The shape-only reading: the shared expert's result is Local, no reduce_scatter is added, and the warning stays."""
    graph = layoutcheck.load(EXPORTS / "shared_expert_fault.pt2")
    found = annotate(graph, "sequence-parallel", groups={"tp": 4}, trust={"moe.shared": "shape-only"})
    assert "reduce_scatter" not in found.counts()
    report = found.check()
    assert [(f.code, f.node, f.severity.value) for f in report.findings] == [
        ("LC203", "all_reduce", "warning"),
        ("LC203", "all_reduce_1", "warning"),
    ]
    assert found.layouts["wait_tensor"] == "f32[pad(T, 4*ceil(T/4))/4@tp, 64]"
    again = annotate(found.graph, "sequence-parallel", groups={"tp": 4}, trust={"moe.shared": "shape-only"})
    assert again.graph == found.graph


def test_formulas_of_the_annotated_graph() -> None:
    cost = annotate(GLM, "sequence-parallel", groups={"tp": 4}).cost()
    assert {"T", "tp"} <= set(cost.symbols())
    assert any(t.kernel == "collective" and t.options["op"] == "reduce_scatter" for t in cost.terms)


def test_the_certificate_is_data() -> None:
    found = annotate(GLM, "dsa-cp-query-local", groups={"tp": 4})
    proof = found.certificate()
    assert proof["method"] == "min-cut" and proof["bound"] == found.price
    assert json.loads(json.dumps(proof)) == proof
    for part in proof["parts"]:
        assert sum(edge["capacity"] for edge in part["cut"]) == part["flow"]
        assert all(edge["flow"] == edge["capacity"] for edge in part["cut"])
    assert any(edge["from"].endswith("needed Full") for part in proof["parts"] for edge in part["cut"])
