"""Fewer key heads than ranks: ranks whose query heads read one key head hold it, and each its own query heads."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from ranks.real_models import Compared, compared  # noqa: E402

from layoutcheck.domains import anything, factor, feature  # noqa: E402
from layoutcheck.infer.calls.repeated import spread_like  # noqa: E402
from layoutcheck.layouts import layout  # noqa: E402
from layoutcheck.placement.annotated import Shard  # noqa: E402
from layoutcheck.ranks.annotated import share_of  # noqa: E402

torch.set_num_threads(1)


def attention(found: Compared) -> dict[str, Shard]:
    shards = found.run.annotated[0].shards
    return {
        name.partition("layers_0_self_attn_")[2]: of
        for name, of in shards.items()
        if "layers_0_self_attn" in name
    }


@pytest.mark.parametrize(
    ("family", "contract", "ranks", "heads", "key_heads"),
    [
        ("Llama", "tensor-parallel", 4, 4, 2),  # one query head a rank, nothing is repeated
        ("Llama", "sequence-parallel", 4, 8, 2),  # two query heads a rank read one key head
        ("Qwen2", "tensor-parallel", 4, 8, 2),  # biases are shared as the weights are
        pytest.param("Llama", "tensor-parallel", 8, 8, 2, marks=pytest.mark.nightly),
        pytest.param("Qwen3Moe", "sequence-parallel", 4, 4, 2, marks=pytest.mark.nightly),
        pytest.param("Glm", "tensor-parallel", 4, 8, 2, marks=pytest.mark.nightly),
    ],
)
def test_key_heads_are_shared(family: str, contract: str, ranks: int, heads: int, key_heads: int) -> None:
    config = {"num_attention_heads": heads, "num_key_value_heads": key_heads}
    found = compared(family, None, 7, contract, ranks, config=config)
    assert found.difference < 2e-5
    assert found.findings == ()
    assert found.run.annotated[0].notes == ()
    shards = attention(found)
    assert shards["q_proj_weight"] == Shard(0, ranks)
    assert shards["o_proj_weight"] == Shard(1, ranks)
    for name in (n for n in shards if n.startswith(("k_proj", "v_proj"))):
        assert shards[name] == Shard(0, key_heads, (), ranks // key_heads)
    assert {n.rpartition("_")[0] for n in shards} >= {"k_proj", "v_proj"}


def test_one_key_head_is_held_by_all_ranks() -> None:
    config = {"num_attention_heads": 8, "num_key_value_heads": 1}
    found = compared("Llama", None, 7, "tensor-parallel", 4, config=config)
    assert found.difference < 2e-5
    assert found.findings == ()
    assert found.run.annotated[0].notes == ()
    assert attention(found) == {"q_proj_weight": Shard(0, 4), "o_proj_weight": Shard(1, 4)}


def test_query_heads_that_do_not_divide() -> None:
    config = {"num_attention_heads": 2, "num_key_value_heads": 2}
    found = compared("Llama", None, 7, "tensor-parallel", 4, config=config)
    assert found.difference < 2e-5
    assert found.findings == ()
    assert [n.partition(" keeps")[0] for n in found.run.annotated[0].notes] == [
        "attention block 0",
        "attention block 2",
    ]
    # nothing is left of the attempt
    assert "groups" not in found.run.annotated[0].graph.config or set(
        found.run.annotated[0].graph.config["groups"]
    ) == {"tp"}


def test_shares_of_ranks_in_a_row() -> None:
    weight = torch.arange(8)
    assert [share_of(weight, Shard(0, 2, (), 2), r).tolist() for r in range(4)] == [
        [0, 1, 2, 3],
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [4, 5, 6, 7],
    ]


# ---- the one head, read as one of many


def cut(total: int, local: int, bound: dict[int, tuple[int, int]], repeated: int = 1) -> Any:
    """A vector with `local` of `total` features, of which mesh axes select digits (stride, extent), spread `repeated` times."""
    wide = feature(total)
    axis = (factor(wide, 1, local), *([anything(repeated).whole] if repeated > 1 else []))
    return layout("float32", (axis,), {m: (factor(wide, *digit),) for m, digit in bound.items()})


QUERIES = cut(8, 2, {1: (4, 2), 0: (2, 2)})


@pytest.mark.parametrize("repeated", [1, 2])
def test_one_head_is_each_ranks_own(repeated: int) -> None:
    found = spread_like(cut(2, 1, {1: (1, 2)}, repeated), 0, QUERIES, 0)
    assert found == cut(4 * repeated, repeated, {1: (2 * repeated, 2), 0: (repeated, 2)})


@pytest.mark.parametrize(
    "keys",
    [
        cut(4, 2, {1: (2, 2)}),  # two heads: a rank's queries would read both, or the second one only
        cut(4, 2, {1: (2, 2)}, 2),
        cut(2, 1, {0: (1, 2)}),  # neighbours hold different heads, their queries read one
        cut(2, 2, {}),
        cut(4, 1, {1: (2, 2), 0: (1, 2)}),  # a head for each rank
    ],
    ids=["several", "several, repeated", "the minor axis", "whole", "one each"],
)
def test_other_heads_are_none_of_theirs(keys: Any) -> None:
    assert spread_like(keys, 0, QUERIES, 0) is None


def test_more_ranks_than_heads_keep_attention_whole() -> None:
    """Heads do not become as many as there are ranks, each a part as wide: norms of heads would take other means."""
    config = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 4}
    found = compared("Qwen3Moe", None, 7, "tensor-parallel", 4, config=config)
    assert found.difference < 2e-5
    assert found.findings == ()
    assert attention(found) == {}
    assert any("heads or weights do not divide among tp" in note for note in found.run.annotated[0].notes)
