"""Annotated programs compute what the single device computes: transformers' own models, on simulated ranks."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from ranks.real_models import (  # noqa: E402
    FAMILIES,
    Compared,
    compared,
    export,
    fitting,
    ids_of,
)

from layoutcheck.errors import InputError  # noqa: E402
from layoutcheck.placement.annotated import Shard  # noqa: E402
from layoutcheck.ranks.annotated import run_whole, share_of, symbols_of  # noqa: E402

torch.set_num_threads(1)
TOLERANCE = 2e-5
"""Of logits whose largest are about 3: transformers computes in float32, ranks in float64."""
# Exported for this many tokens (None: any), run with so many: a multiple of the ranks and not.
LENGTHS = [(8, 8), (7, 7), (None, 12), (None, 7)]
CASES = [
    (family, contract, ranks, lengths)
    for family in FAMILIES
    for contract in fitting(family)
    for ranks in (2, 4)
    for lengths in LENGTHS
]
# All families and contracts once, all lengths and both group sizes in turn.
QUICK = [
    (family, contract, (2, 4)[i % 2], LENGTHS[(2, 3)[(i // 2 + (family == "Llama")) % 2]])
    for family in FAMILIES
    for i, contract in enumerate(fitting(family))
]
QUICK += [("Llama", "sequence-parallel", 4, (7, 7)), ("Llama", "tensor-parallel", 2, (8, 8))]


@pytest.fixture(autouse=True)
def known(request: pytest.FixtureRequest) -> None:
    """Families that this transformers has."""
    family = getattr(request.node, "callspec", None) and request.node.callspec.params.get("family")
    if family and not hasattr(transformers, f"{family}Config"):
        pytest.skip(f"this transformers has no {family}")


def check(found: Compared) -> None:
    assert found.scale > 0.5
    assert found.difference < TOLERANCE
    assert found.findings == ()


@pytest.mark.parametrize(("family", "contract", "ranks", "lengths"), QUICK)
def test_logits_of_annotated_models(
    family: str, contract: str, ranks: int, lengths: tuple[int | None, int]
) -> None:
    check(compared(family, *lengths, contract, ranks))


@pytest.mark.nightly
@pytest.mark.parametrize(("family", "contract", "ranks", "lengths"), CASES)
def test_all_logits_of_annotated_models(
    family: str, contract: str, ranks: int, lengths: tuple[int | None, int]
) -> None:
    check(compared(family, *lengths, contract, ranks))


@pytest.mark.parametrize("family", ["Llama", "Qwen3Moe"])
def test_attention_with_one_key_head_a_rank_is_cut(family: str) -> None:
    found = compared(family, None, 7, "sequence-parallel", 2)
    check(found)
    assert [n for n in found.run.annotated[0].notes if "attention" in n] == []


def cut(found: Compared) -> dict[str, Shard]:
    """Shards of the first layer by the names of its weights."""
    shards = found.run.annotated[0].shards
    return {name.partition("layers_0_")[2]: shard for name, shard in shards.items() if "layers_0_" in name}


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.nightly)])
def test_experts_are_cut_where_they_see_all_tokens(ranks: int) -> None:
    """Gate and up of an expert lie in one weight: each of them is cut."""
    found = compared("Qwen3Moe", None, 7, "tensor-parallel", ranks)
    check(found)
    assert cut(found)["mlp_experts_gate_up_proj"] == Shard(1, ranks, (16, 16))
    assert cut(found)["mlp_experts_down_proj"] == Shard(2, ranks)
    local = compared("Qwen3Moe", None, 7, "sequence-parallel", ranks)
    assert not any("experts" in name for name in cut(local))


@pytest.mark.parametrize(
    ("family", "shards"),
    [
        (
            "Phi3",
            {
                "self_attn_qkv_proj_weight": Shard(0, 2, (32, 16, 16)),
                "self_attn_o_proj_weight": Shard(1, 2),
                "mlp_gate_up_proj_weight": Shard(0, 2, (48, 48)),
                "mlp_down_proj_weight": Shard(1, 2),
            },
        ),
        pytest.param(
            "Qwen2",
            {f"self_attn_{x}_proj_{kind}": Shard(0, 2) for x in "qkv" for kind in ("weight", "bias")}
            | {"self_attn_o_proj_weight": Shard(1, 2), "mlp_down_proj_weight": Shard(1, 2)}
            | {f"mlp_{x}_proj_weight": Shard(0, 2) for x in ("gate", "up")},
            marks=pytest.mark.nightly,
        ),
        pytest.param("Glm", None, marks=pytest.mark.nightly),
        pytest.param("Qwen2Moe", None, marks=pytest.mark.nightly),
    ],
)
def test_weights_that_hold_several(family: str, shards: dict[str, Shard] | None) -> None:
    found = compared(family, None, 7, "tensor-parallel", 2)
    check(found)
    assert found.run.annotated[0].notes == ()
    if shards is not None:
        assert cut(found) == shards


@pytest.mark.parametrize(
    ("family", "contract"),
    [
        ("OPT", "tensor-parallel"),
        ("GPTNeoX", "sequence-parallel"),
        pytest.param("Starcoder2", "sequence-parallel", marks=pytest.mark.nightly),
        pytest.param("Ernie4_5", "tensor-parallel", marks=pytest.mark.nightly),
    ],
)
def test_biases_of_row_parallel_products(family: str, contract: str) -> None:
    found = compared(family, None, 7, contract, 2)
    check(found)
    annotated = found.run.annotated[0]
    assert annotated.notes == ()
    rows = {name for name, shard in annotated.shards.items() if shard.axis == 1}
    assert rows
    assert not rows & {name.replace("bias", "weight") for name in annotated.shards if name.endswith("bias")}


@pytest.mark.parametrize(
    ("family", "ranks"), [("OPT", 4), pytest.param("GPT2", 2, marks=pytest.mark.nightly)]
)
def test_rows_of_several_sequences(family: str, ranks: int) -> None:
    """Where a batch is flattened into rows, a rank's tokens are no rows side by side: conversions take the sequences apart."""
    found = compared(family, None, 7, "sequence-parallel", ranks)
    check(found)
    assert found.run.annotated[0].notes == ()
    assert found.run.annotated[0].counts()["reduce_scatter"] == 4


@pytest.mark.parametrize(
    ("family", "contract"),
    [("Phi", "tensor-parallel"), pytest.param("GPTNeoX", "sequence-parallel", marks=pytest.mark.nightly)],
)
def test_an_mlp_beside_attention_is_cut(family: str, contract: str) -> None:
    """Each of both is reduced before its bias is added."""
    found = compared(family, None, 7, contract, 2)
    check(found)
    annotated = found.run.annotated[0]
    assert annotated.notes == ()
    inner = [n for n, s in annotated.shards.items() if "mlp" in n and s.axis == 1]
    assert len(inner) == 2
    assert annotated.counts()["all_reduce" if contract == "tensor-parallel" else "reduce_scatter"] == 4


def test_a_wrong_share_shows() -> None:
    """The comparison can fail: ranks with each other's parts of a weight give other logits."""
    found = compared("Llama", 8, 8, "tensor-parallel", 2)
    name = next(n for n in found.run.annotated[0].shards if "gate_proj" in n)
    a, b = ({**x} for x in found.run.inputs)
    a[name], b[name] = b[name], a[name]
    from layoutcheck.ranks.interpreter import run

    graphs = [x.graph for x in found.run.annotated]
    runs = run(graphs, [a, b], lambda _, __: range(2), symbols=found.run.symbols)
    want = export("Llama", 8).logits(ids_of(8))
    assert (runs[0].outputs[0] - want).abs().max() > 100 * TOLERANCE


# ---- shares and inputs


def test_a_packed_weight_is_cut_in_each_of_its_pieces() -> None:
    weight = torch.arange(8)[:, None]
    parts = [share_of(weight, Shard(0, 2, (4, 4)), r).flatten().tolist() for r in range(2)]
    assert parts == [[0, 1, 4, 5], [2, 3, 6, 7]]


def test_a_share_that_does_not_divide() -> None:
    with pytest.raises(InputError, match=r"6 elements do not divide into 4 shares of pieces of 6"):
        share_of(torch.zeros(6), Shard(0, 4), 0)


def test_inputs_that_do_not_fit() -> None:
    model = export("Llama", None)
    inputs: dict[str, Any] = model.inputs(ids_of(5))
    assert set(symbols_of(model.graph, inputs).values()) == {5}
    del inputs["input_ids"]
    with pytest.raises(InputError, match="input_ids: the input has no value"):
        run_whole(model.graph, inputs)
