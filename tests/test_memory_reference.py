"""Figures that were measured or computed elsewhere."""

from __future__ import annotations

import time

import pytest

from layoutcheck.memory.build import weight_ledger
from layoutcheck.memory.explain import explain_total, parallels
from layoutcheck.memory.ledger import Ledger
from layoutcheck.memory.parallel import Parallel
from layoutcheck.memory.plan import Plan
from layoutcheck.memory.quantisation import ByName, Unquantised
from layoutcheck.models import load_model
from layoutcheck.units import GIB, parse_size

# parameters and buffers alone: (tp, dp, ep, dsa-cp, embedding divided) -> GiB a rank
READINGS = {
    (16, 2, 32, False, False): 28.4516,
    (16, 2, 32, False, True): 26.7899,
    (16, 2, 32, True, False): 39.7298,
    (16, 2, 32, True, True): 38.0681,
    (4, 8, 32, False, False): 30.9306,
    (4, 8, 32, True, False): 40.1807,
    (32, 1, 32, False, False): 28.0384,
    (16, 1, 16, False, False): 49.5453,
    (16, 1, 16, True, False): 60.8235,
    (16, 1, 16, True, True): 59.1618,
}

# static W8A8 in attention, dynamic in the mixture of experts, as published checkpoints have it
MIXED = {"*.experts.*": "W8A8_DYNAMIC", "*.shared_experts.*": "W8A8_DYNAMIC"}


def _engine(model: str = "glm-5", quantisation: str = "W8A8", **options: object) -> Ledger:
    plan = Plan(engine="vllm-ascend").but(**options)
    return weight_ledger(load_model(model), plan, ByName(quantisation, MIXED))


@pytest.mark.parametrize("sizes", READINGS, ids=str)
def test_parameters_and_buffers_alone(sizes: tuple[int, int, int, bool, bool]) -> None:
    tp, dp, ep, dsa_cp, divided = sizes
    plan = Plan(
        Parallel(tp, dp, ep),
        "parameters-only",
        ("dsa-cp",) if dsa_cp else (),
        embedding="vocab" if divided else "replicated",
    )
    ledger = weight_ledger(load_model("glm-5.1"), plan, ByName("W8A8"))
    assert ledger.static / GIB == pytest.approx(READINGS[sizes], abs=1e-4)


def test_the_full_ledger_shows_what_that_reading_leaves_out() -> None:
    plan = Plan(Parallel(16, 2, 32), "parameters-only", ("dsa-cp",))
    alone = weight_ledger(load_model("glm-5.1"), plan, ByName("W8A8"))
    assert not alone.by_category().get("derived")
    full = _engine("glm-5.1", parallel=Parallel(16, 2, 32), modes=("dsa-cp",), mtp=False)
    # 78 layers, all 64 heads, kv_lora_rank 512, 192 + 256, 2 bytes
    assert full.by_category()["derived"] == 78 * 64 * 512 * (192 + 256) * 2
    assert full.by_category()["derived"] / GIB == pytest.approx(2.133, abs=5e-4)
    assert {line.name.rsplit(".", 1)[-1] for line in full.lines if line.category == "derived"} == {
        "W_UK_T",
        "W_UV",
    }
    original = full.find("kv_b_proj.weight")
    assert [line.state for line in original] == ["load"]
    names = {line.name.rsplit(".", 1)[-1] for line in full.lines if line.category == "companions"}
    assert names >= {
        "input_scale",
        "input_offset",
        "quant_bias",
        "deq_scale",
        "weight_scale",
        "weight_offset",
        "aclnn_input_scale",
        "aclnn_input_scale_reciprocal",
        "aclnn_input_offset",
        "weight_scale_fp32",
    }


def test_o_proj_of_61_layers_is_exact() -> None:
    plan = Plan(engine="parameters-only", mtp=False)
    ledger = weight_ledger(load_model("deepseek-v3"), plan, ByName("W8A8"))
    (line,) = ledger.find("o_proj.weight")[:1]
    assert line.bytes == 61 * 16384 * 7168
    assert f"{line.bytes / GIB:.2f}" == "6.67"


def test_logged_weights_of_a_rank_and_of_the_last_ranks() -> None:
    # logged: 35.9682 GiB, ranks 14 and 15 of 16 35.9370: the model without its MTP layer
    options = {"parallel": Parallel(16, 2, 32), "modes": ("dsa-cp",), "distribute": ("q_b_proj",)}
    ledgers = [_engine(mtp=False, rank=rank, **options) for rank in range(16)]
    totals = [ledger.static for ledger in ledgers]
    assert totals[0] / GIB == pytest.approx(35.968, rel=0.002)
    assert totals[:14] == [totals[0]] * 14
    # one q_b_proj of 16384 x 2048 int8: 78 layers over 16 ranks leave the last two with 4 instead of 5
    assert [totals[0] - total for total in totals[14:]] == [16384 * 2048] * 2
    assert f"{(totals[0] - totals[15]) / GIB:.4f}" == "0.0312"
    changed = {
        a.name
        for a, b in zip(ledgers[0].lines, ledgers[15].lines, strict=True)
        if (a.name, a.bytes) != (b.name, b.bytes)
    }
    assert changed == {"model.layers.{layer}.self_attn.q_b_proj.weight"}
    with_mtp = _engine(mtp=True, **options)
    assert with_mtp.static / GIB == pytest.approx(35.968, rel=0.02)
    # what of the MTP layer would have to be missing for 1 %: none of its parts alone is as large, but its experts
    missing = with_mtp.static - 1.01 * 35.9682 * GIB
    assert missing / GIB == pytest.approx(0.273, abs=0.001)
    here = {line.name: line.bytes for line in with_mtp.lines}
    before = {line.name: line.bytes for line in ledgers[0].lines}
    parts: dict[str, int] = {}
    for name, size in here.items():
        part = "experts" if ".experts." in name else name
        parts[part] = parts.get(part, 0) + size - before.get(name, 0)
    assert [part for part, size in parts.items() if size >= missing] == ["experts"]


def test_logged_weights_with_o_proj_whole_and_without() -> None:
    parallel = Parallel(16, 1, 16)
    whole = _engine(parallel=parallel, modes=("dsa-cp",), mtp=False)
    assert whole.static / GIB == pytest.approx(59, rel=0.01)
    without = _engine(parallel=parallel, modes=("flashcomm", "mlapo"), mtp=False)
    assert without.static / GIB == pytest.approx(49, rel=0.01)
    assert "o_proj" in {line.name.split(".")[-2] for line in without.lines if line.split == "1/16 (tp)"}


def test_logged_weights_of_a_tensor_parallel_deployment_with_its_mtp_layer() -> None:
    # logged: 26.4758 GiB, tp16 dp2 ep32, three speculative tokens
    ledger = _engine(parallel=Parallel(16, 2, 32), modes=("mlapo",), mtp=True)
    assert ledger.static / GIB == pytest.approx(26.4758, rel=0.01)


# what the models' publishers count, multi-token prediction left out
PUBLISHED = {
    "deepseek-v3": 671_026_419_200,
    "kimi-k2": 1_026_408_232_448,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "qwen3-8b": 8_190_735_360,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_numbers_of_parameters(name: str) -> None:
    config = load_model(name)
    plan = Plan(engine="parameters-only", mtp=False, companions="none")
    ledger = weight_ledger(config, plan, Unquantised())
    # the gate's bias is the one parameter of 4 bytes
    bias = sum(line.bytes for line in ledger.find("e_score_correction_bias"))
    weights = ledger.total(["replicated", "tensor-parallel", "expert-parallel"])
    assert (weights - bias) // 2 + bias // 4 == PUBLISHED[name]


def test_a_total_is_explained_by_every_deployment_that_gives_it() -> None:
    config = load_model("glm-5.1")
    target, tolerance = parse_size("28.452GiB")
    schemes = [(name, ByName(name)) for name in ("W8A8", "W8A8_DYNAMIC")]
    found, others = explain_total(config, schemes, target, tolerance, parallels(None, ep=32))
    assert len(found) >= 2
    plans = {(e.quantisation, e.plan.parallel, e.plan.engine, e.plan.modes) for e in found}
    assert ("W8A8", Parallel(16, 2, 32), "parameters-only", ()) in plans
    for one in found:
        ledger = weight_ledger(config, one.plan, ByName(one.quantisation))
        assert ledger.static == one.bytes
        assert abs(one.bytes - target) <= tolerance
    assert others and all(abs(one.off) > tolerance for one in others)


def test_a_ledger_takes_less_than_a_second() -> None:
    config = load_model("glm-5.1")
    weight_ledger(config, Plan(), ByName("W8A8"))
    begin = time.process_time()
    weight_ledger(config, Plan(Parallel(16, 2, 32), modes=("dsa-cp",)), ByName("W8A8"))
    assert time.process_time() - begin < 1
