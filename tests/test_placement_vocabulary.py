"""A plan that cuts tables and heads along the vocabulary: masked lookups that are summed up, scores that are gathered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from ranks.real_models import compared, export, ids_of  # noqa: E402

import layoutcheck  # noqa: E402
from layoutcheck.errors import InputError  # noqa: E402
from layoutcheck.placement.annotated import Shard, annotate  # noqa: E402
from layoutcheck.ranks.annotated import run_annotated, share_of  # noqa: E402

torch.set_num_threads(1)


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    return written(tmp_path, {"*embed_tokens.weight": "vocabulary", "lm_head.weight": "vocabulary"})


def written(folder: Path, weights: dict[str, str]) -> Path:
    path = folder / "plan.json"
    path.write_text(json.dumps({"group": "tp", "weights": weights}))
    return path


@pytest.mark.parametrize(
    ("contract", "ranks", "sums"),
    [
        ("tensor-parallel", 2, {"all_reduce": 5}),
        ("sequence-parallel", 4, {"reduce_scatter": 5, "all_gather": 5}),
        pytest.param(
            "sequence-parallel", 2, {"reduce_scatter": 5, "all_gather": 5}, marks=pytest.mark.nightly
        ),
    ],
)
def test_table_and_head(contract: str, ranks: int, sums: dict[str, int], plan: Path) -> None:
    """The lookup's sum is one more reduction; where tokens are shared it scatters, and nothing is sliced."""
    found = compared("Llama", None, 7, contract, ranks, plan=plan)
    assert found.difference < 2e-5
    assert found.findings == ()
    annotated = found.run.annotated[0]
    assert annotated.counts() == sums
    shards = {n: s for n, s in annotated.shards.items() if "embed" in n or "head" in n}
    assert shards == {"p_model_embed_tokens_weight": Shard(0, ranks), "p_lm_head_weight": Shard(0, ranks)}


def test_a_vocabulary_that_does_not_divide_is_padded(plan: Path) -> None:
    found = compared("Llama", None, 7, "sequence-parallel", 3, plan=plan)
    assert found.difference < 2e-5
    assert found.findings == ()
    shards = found.run.annotated[0].shards
    assert shards["p_lm_head_weight"] == shards["p_model_embed_tokens_weight"] == Shard(0, 3, padding=2)
    assert found.run.inputs[2]["p_lm_head_weight"].shape == (22, 32)


def test_one_weight_for_both(tmp_path: Path) -> None:
    path = written(tmp_path, {"*embed_tokens.weight": "vocabulary"})
    config = {"tie_word_embeddings": True}
    found = compared("Llama", None, 7, "tensor-parallel", 2, config=config, plan=path)
    assert found.difference < 2e-5
    assert found.findings == ()
    assert [n for n, s in found.run.annotated[0].shards.items() if "embed" in n or "head" in n] == [
        "p_model_embed_tokens_weight"
    ]


def test_what_is_no_table_and_no_head(tmp_path: Path) -> None:
    path = written(tmp_path, {"*0.mlp.up_proj.weight": "vocabulary"})
    with pytest.raises(InputError, match=r"linear_5 reads this weight, and is neither a lookup nor a head"):
        annotate(export("Llama", None).graph, "tensor-parallel", groups={"tp": 2}, plan=path)


def test_a_group_without_a_number(plan: Path) -> None:
    with pytest.raises(InputError, match=r"to cut a vocabulary the group's size has to be a number"):
        annotate(export("Llama", None).graph, "tensor-parallel", groups={"tp": "p"}, plan=plan)


def test_rows_of_padding_are_zeros() -> None:
    shares = [share_of(torch.arange(1, 6), Shard(0, 2, padding=1), r).tolist() for r in range(2)]
    assert shares == [[1, 2, 3], [4, 5, 0]]


@pytest.mark.parametrize(("contract", "ranks"), [("tensor-parallel", 2), ("sequence-parallel", 4)])
def test_scores_that_stay_with_the_ranks(contract: str, ranks: int, tmp_path: Path) -> None:
    """Each rank returns the scores of its words, of all tokens: side by side they are the model's."""
    path = written(tmp_path, {"lm_head.weight": "vocabulary-sharded"})
    model, ids = export("Llama", None), ids_of(7)
    found = run_annotated(model.graph, contract, ranks, model.inputs(ids), plan=path)
    logits = torch.cat([run.outputs[0] for run in found.runs], -1)
    assert (logits - model.logits(ids)).abs().max() < 2e-5
    annotated = found.annotated[0]
    assert annotated.check().findings == ()
    assert annotated.shards["p_lm_head_weight"] == Shard(0, ranks)
    before = annotate(model.graph, contract, groups={"tp": ranks}).counts()
    assert annotated.counts() == before
    note = "scores stay with the ranks: the output is linear_14=[B, T, 64/2@tp], which --layout says"
    assert (note in annotated.notes) == (ranks == 2)


def test_scores_that_stay_with_the_ranks_need_words_that_divide(tmp_path: Path) -> None:
    path = written(tmp_path, {"lm_head.weight": "vocabulary-sharded"})
    with pytest.raises(
        InputError, match=r"its 64 words do not divide among tp, so that scores have to be gathered"
    ):
        annotate(export("Llama", None).graph, "tensor-parallel", groups={"tp": 3}, plan=path)


def test_a_lookup_whose_arguments_have_names_is_masked(repo_root: Path, tmp_path: Path) -> None:
    """As archives have them: `embedding(weight=.., indices=..)`."""
    plan = tmp_path / "plan.json"
    plan.write_text('{"group": "tp", "weights": {"*embed_tokens.weight": "vocabulary"}}')
    graph = layoutcheck.load(repo_root / "examples" / "exports" / "glm5_two_layers.pt2")
    assert any(n.kwargs for n in graph.nodes if "embedding" in n.target)
    result = layoutcheck.annotate(graph, "sequence-parallel", groups={"tp": 4}, plan=plan)
    (table,) = (s for name, s in result.shards.items() if "embed_tokens" in name)
    assert (table.axis, table.ways) == (0, 4)
    assert result.check().errors == ()
