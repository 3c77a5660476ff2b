"""A plan that spreads experts over the group: own experts' rows, zeros for those of others, and one sum."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from ranks.real_models import compared, export  # noqa: E402

from layoutcheck.errors import InputError  # noqa: E402
from layoutcheck.graph import Graph, Node, Ref  # noqa: E402
from layoutcheck.placement.annotated import Shard, annotate  # noqa: E402
from layoutcheck.regions.arguments import rebuilt  # noqa: E402

torch.set_num_threads(1)


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    return written(tmp_path, {"*.experts.*": "expert"})


def written(folder: Path, weights: dict[str, str]) -> Path:
    path = folder / "plan.json"
    path.write_text(json.dumps({"group": "tp", "weights": weights}))
    return path


def of_experts(annotated: Any) -> dict[str, Shard]:
    return {n: s for n, s in annotated.shards.items() if "experts" in n and "layers_1" in n}


@pytest.mark.parametrize(
    ("family", "exported", "contract", "ranks", "sums"),
    [
        ("Qwen3Moe", None, "tensor-parallel", 2, {"all_reduce": 4}),
        ("Qwen3Moe", 7, "sequence-parallel", 4, {"slice": 1, "reduce_scatter": 4, "all_gather": 5}),
        ("GptOss", None, "sequence-parallel", 2, {"slice": 1, "reduce_scatter": 4, "all_gather": 5}),
        pytest.param("Mixtral", None, "tensor-parallel", 4, {"all_reduce": 4}, marks=pytest.mark.nightly),
        pytest.param("Qwen2Moe", 8, "tensor-parallel", 4, {"all_reduce": 4}, marks=pytest.mark.nightly),
        pytest.param("GlmMoeDsa", None, "tensor-parallel", 4, {"all_reduce": 4}, marks=pytest.mark.nightly),
    ],
)
def test_logits_are_those_of_the_model(
    family: str, exported: int | None, contract: str, ranks: int, sums: dict[str, int], plan: Path
) -> None:
    """A rank holds its share of the experts' matrices; nothing is communicated that an inner cut would not communicate."""
    found = compared(family, exported, 7 if exported is None else exported, contract, ranks, plan=plan)
    assert found.difference < 2e-5
    assert found.findings == ()
    annotated = found.run.annotated[0]
    assert annotated.counts() == sums
    assert annotated.notes == ()
    matrices = {n: s for n, s in of_experts(annotated).items() if n.endswith(("gate_up_proj", "down_proj"))}
    assert matrices == {
        f"p_model_layers_1_mlp_experts_{name}": Shard(0, ranks) for name in ("gate_up_proj", "down_proj")
    }


def test_shared_experts_are_cut_by_their_features(plan: Path) -> None:
    """What is beside spread experts is cut as without the plan, and both branches are added before one reduction."""
    found = compared("DeepseekV3", None, 7, "tensor-parallel", 4, plan=plan)
    assert found.difference < 2e-5
    assert found.findings == ()
    annotated = found.run.annotated[0]
    assert annotated.counts() == {"all_reduce": 4}
    shards = of_experts(annotated)
    assert shards["p_model_layers_1_mlp_experts_down_proj"] == Shard(0, 4)
    assert shards["p_model_layers_1_mlp_shared_experts_up_proj_weight"] == Shard(0, 4)
    assert shards["p_model_layers_1_mlp_shared_experts_down_proj_weight"] == Shard(1, 4)


def test_ranks_hold_and_mask_their_own_experts(plan: Path) -> None:
    """Each rank's rows end where its own experts' do, and the layouts say that a product is a rank's part."""
    graph = export("Qwen3Moe", None).graph
    for rank in range(4):
        annotated = annotate(graph, "tensor-parallel", groups={"tp": 4}, rank=rank, plan=plan)
        nodes = {n.name: n for n in annotated.graph.nodes}
        low, high = 2 * rank, 2 * rank + 2
        assert nodes["grouped_mm_fallback_ends"].args[1:] == (0, low, high)
        assert nodes["grouped_mm_fallback_before"].args[1] == low
        assert nodes["grouped_mm_fallback_behind"].args[1] == high
        assert annotated.layouts["grouped_mm_fallback"] == "f32[permuted(B*T*2), 32] {8/2@tp_b} {8/2@tp_a}"
        assert annotated.layouts["grouped_mm_fallback_1_own"] == "f32[permuted(B*T*2), 32] +tp_b +tp_a"


def test_experts_that_do_not_divide_stay_whole(plan: Path) -> None:
    found = compared("Qwen3Moe", None, 7, "tensor-parallel", 3, plan=plan)
    assert found.difference < 2e-5
    assert found.findings == ()
    annotated = found.run.annotated[0]
    assert of_experts(annotated) == {}
    assert "moe block 1 keeps its weights whole: its 8 experts do not divide among tp" in annotated.notes


def test_counts_of_numbers_that_are_sorted_beside(plan: Path) -> None:
    """Where rows are counted before the sort, its sorted numbers say whose a row is."""
    graph = export("Qwen3Moe", None).graph
    nodes = [replaced(n, "getitem_2", "reshape_6") if n.name == "to_15" else n for n in graph.nodes]
    annotated = annotate(rebuilt(nodes, graph), "tensor-parallel", groups={"tp": 2}, plan=plan)
    before = next(n for n in annotated.graph.nodes if n.name == "grouped_mm_fallback_before")
    assert before.args == (Ref("getitem_2"), 0)


def replaced(node: Node, old: str, new: str) -> Node:
    args = tuple(Ref(new) if isinstance(a, Ref) and a.name == old else a for a in node.args)
    return attrs.evolve(node, args=args)


def changed(graph: Graph, name: str, **changes: Any) -> Graph:
    return rebuilt([attrs.evolve(n, **changes) if n.name == name else n for n in graph.nodes], graph)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (
            "sort",
            {"args": (Ref("reshape_6"), -1, True)},
            "the experts' numbers are not sorted, so that no row says whose it is",
        ),
        (
            "histc",
            {"args": (Ref("to_15"), 8, 0, 15)},
            "how many rows each expert has is not counted from the experts' numbers",
        ),
        (
            "cumsum_1",
            {"target": "aten.cumprod.default"},
            "where each expert's rows end is no running sum of their numbers",
        ),
    ],
)
def test_rows_that_do_not_say_whose_they_are(
    name: str, changes: dict[str, Any], message: str, plan: Path
) -> None:
    graph = changed(export("Qwen3Moe", None).graph, name, **changes)
    with pytest.raises(InputError) as error:
        annotate(graph, "tensor-parallel", groups={"tp": 2}, plan=plan)
    assert error.value.message == message
    assert error.value.where == "grouped_mm_fallback"


def test_half_of_the_products(tmp_path: Path) -> None:
    path = written(tmp_path, {"*.experts.down_proj": "expert"})
    with pytest.raises(
        InputError, match=r"grouped_mm_fallback takes the same rows, and the plan does not spread its experts"
    ):
        annotate(export("Qwen3Moe", None).graph, "tensor-parallel", groups={"tp": 2}, plan=path)


def test_what_is_no_stack_of_matrices(tmp_path: Path) -> None:
    path = written(tmp_path, {"*.mlp.gate.weight": "expert"})
    with pytest.raises(InputError, match=r"the plan's experts are no stack of matrices \[experts, .., ..\]"):
        annotate(export("Qwen3Moe", None).graph, "tensor-parallel", groups={"tp": 2}, plan=path)


def test_a_contract_that_gives_experts_a_share_of_the_tokens(plan: Path) -> None:
    with pytest.raises(InputError, match=r"the graph has no dispatch") as error:
        annotate(export("Qwen3Moe", 8).graph, "mc2-decode", groups={"tp": 2}, plan=plan)
    assert error.value.where == "grouped_mm_fallback"


def test_a_group_without_a_number(plan: Path) -> None:
    with pytest.raises(InputError, match=r"to spread experts the group's size has to be a number"):
        annotate(export("Qwen3Moe", None).graph, "tensor-parallel", groups={"tp": "p"}, plan=plan)
