"""Decoders written from figures: typed without findings, and costing what an export of the same model does."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutcheck.cli import main
from layoutcheck.contracts import check_contract
from layoutcheck.cost.evaluate import time_graph
from layoutcheck.cost.hardware import load_hardware
from layoutcheck.cost.lift import lift
from layoutcheck.cost.model_cost import model_cost
from layoutcheck.cost.terms import GraphCost
from layoutcheck.cost.time_formulas import compile_times
from layoutcheck.errors import InputError
from layoutcheck.infer.solver.analysis import Analysis, analyse
from layoutcheck.models import load_model, model_from_dict, shipped_models
from layoutcheck.models.decoder import build_decoder, stacks
from layoutcheck.models.step import step_for, styles
from layoutcheck.readers import load


def analysed(graph: Any, **more: Any) -> Analysis:
    return analyse(graph, **more)


def cost_of(name: str, **step: Any) -> GraphCost:
    config = load_model(name)
    return model_cost(config, step_for(config, **step))


def totals(cost: GraphCost, what: str, **given_: int) -> dict[str, int]:
    """Exact flops or wire bytes of a rank by role."""
    values = cost.at(given_)
    found: dict[str, int] = defaultdict(int)
    for term in cost.terms:
        amount = term.count * getattr(term.work(term.numbers(values)), what)
        if amount:
            found[term.role] += amount
    return dict(found)


def contracts_of(name: str) -> list[str]:
    config = load_model(name)
    return [c for c, s in styles().items() if not s.needs or getattr(config, s.needs) is not None]


@pytest.mark.parametrize("name", shipped_models())
def test_every_shipped_model_is_written_for_every_contract_that_applies(name: str) -> None:
    config = load_model(name)
    for contract in contracts_of(name):
        for decode in (False, True):
            step = step_for(
                config, tp=8, contract=contract, decode=decode, quant="int8", mtp=config.mtp_layers > 0
            )
            analysis = analysed(build_decoder(config, step).validate(), tokens=[("input_ids", 0)])
            assert [i.code for _, _, i in analysis.solution.issues] == []
            cost = lift(analysis)
            assert not cost.uncovered
            assert sum(n * len(kinds) for kinds, n in stacks(config)) == config.num_layers
            layers = {t.layer for t in cost.terms if t.role == "attention.core"}
            assert len(layers) == sum(len(kinds) for kinds, _ in stacks(config)) + (
                config.mtp_layers if step.mtp else 0
            )


@pytest.mark.parametrize("name", ["glm-5.1", "glm-5.2", "deepseek-v3", "qwen3-8b", "qwen3-30b-a3b"])
@pytest.mark.parametrize("decode", [False, True])
def test_what_is_written_for_a_contract_meets_it(name: str, decode: bool) -> None:
    config = load_model(name)
    for contract in contracts_of(name):
        step = step_for(config, tp=8, contract=contract, decode=decode, quant="int8")
        analysis = analysed(build_decoder(config, step), tokens=[("input_ids", 0)])
        findings = check_contract(analysis, contract)
        assert [(f.code, f.node, f.message) for f in findings] == []


@pytest.mark.parametrize("name", ["glm-5.1", "deepseek-v3", "qwen3-8b"])
def test_flops_of_all_products_are_those_of_the_parameters(name: str) -> None:
    """On one rank without attention: two flops a token and active parameter, but for the embedding table."""
    config = load_model(name)
    cost = model_cost(config, step_for(config, ep=1 if config.experts else None))
    tokens = 64
    values = cost.at({"T": tokens})
    flops = 0
    for term in cost.terms:
        # the output projection sees one row, attention's own products are no parameters of the count below
        if term.kernel in ("gemm", "grouped_gemm") and term.role != "lm_head" and "absorb" not in term.label:
            flops += term.count * term.work(term.numbers(values)).flops
    assert flops == 2 * tokens * _active(config)


def _active(config: Any) -> int:
    """Parameters of a token's products, from the figures."""
    h = config.hidden_size
    total = 0
    for layer in range(config.num_layers):
        if config.latent is None:
            d = config.head_dim
            total += h * d * (2 * config.num_attention_heads + 2 * config.num_key_value_heads)
        else:
            m, n = config.latent, config.num_attention_heads
            total += h * m.q_lora_rank + m.q_lora_rank * n * (m.qk_nope_head_dim + m.qk_rope_head_dim)
            total += h * (m.kv_lora_rank + m.qk_rope_head_dim) + n * m.v_head_dim * h
            if config.indexer is None:  # sparse attention stays in the latent
                total += m.kv_lora_rank * n * (m.qk_nope_head_dim + m.v_head_dim)
        if config.layer_owns_indexer(layer):
            x = config.indexer
            total += config.latent.q_lora_rank * x.heads * x.head_dim + h * (x.heads + x.head_dim)
        if config.layer_is_sparse(layer):
            e = config.experts
            total += h * e.count + 3 * h * (e.per_token * e.intermediate_size + e.shared_intermediate_size)
        else:
            total += 3 * h * config.intermediate_size
    return total


@pytest.mark.parametrize("name", ["qwen3-30b-a3b", "deepseek-v3", "glm-5.1"])
@pytest.mark.parametrize("contract", ["tensor-parallel", "sequence-parallel"])
@pytest.mark.parametrize("quant", ["none", "int8", "fp8"])
def test_experts_cut_over_tp_give_a_sum_that_is_taken(name: str, contract: str, quant: str) -> None:
    config = load_model(name)
    step = step_for(config, tp=8, ep=1, contract=contract, quant=quant)
    analysis = analysed(build_decoder(config, step), tokens=[("input_ids", 0)])
    assert [i.text for _, _, i in analysis.solution.issues] == []
    here, there = (model_cost(config, step_for(config, tp=n, ep=1, contract=contract)) for n in (8, 4))
    assert totals(here, "flops", T=999, tp=4) == totals(there, "flops", T=999)


@settings(max_examples=12)
@given(
    contract=st.sampled_from(
        ("tensor-parallel", "sequence-parallel", "dsa-cp-prefill", "dsa-cp-query-local")
    ),
    tokens=st.integers(1, 5000),
    tp=st.sampled_from((2, 4, 8)),
)
def test_formulas_at_one_group_size_hold_at_others(contract: str, tokens: int, tp: int) -> None:
    here = cost_of("glm-5.1", tp=16, contract=contract)
    there = cost_of("glm-5.1", tp=tp, contract=contract)
    for what in ("flops", "wire"):
        assert totals(here, what, T=tokens, tp=tp, ep=tp) == totals(there, what, T=tokens)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("export", "model", "experts", "step", "missed"),
    [
        (
            "glm5_prefill_repeated.after",
            "glm-5.1",
            256,
            {"contract": "dsa-cp-prefill", "quant": "int8"},
            "12288*T",
        ),
        ("glm5_prefill_repeated.before", "glm-5.1", 256, {"contract": "mc2-decode", "quant": "int8"}, ""),
        ("dsv3_bf16_prefill_repeated.after", "deepseek-v3", 32, {"contract": "sequence-parallel"}, "14336*T"),
    ],
)
def test_an_export_has_the_very_formulas_of_the_written_model(
    export: str, model: str, experts: int, step: dict[str, Any], missed: str, shared_graphs: Path
) -> None:
    """Every kernel and collective with its sizes as formulas in T, tp, ep and context, the same number of times.

    Where an export indexes global positions in a rank's share of the last norm's rows (LC108), the written model gathers them.
    """
    config = load_model(model)
    assert config.experts is not None
    config = replace(config, experts=replace(config.experts, count=experts))
    written = kernels_of(model_cost(config, step_for(config, tp=16, **step)))
    exported = kernels_of(lift(analysed(load(shared_graphs / f"{export}.json.gz"))))
    assert exported - written == Counter()
    assert written - exported == Counter(
        {("all_gather", (("size", missed), ("ranks", "tp"))): 1} if missed else {}
    )
    assert written.total() > 1800


def kernels_of(cost: GraphCost) -> Counter[Any]:
    """How often each kernel runs with which sizes."""
    found: Counter[Any] = Counter()
    for term in cost.terms:
        name = term.options["op"] if term.kernel == "collective" else term.kernel
        found[(name, tuple((n, str(s)) for n, s in term.sizes.items()))] += term.count
    return found


@pytest.mark.shared
@pytest.mark.parametrize(("tokens", "tp"), [(4096, 16), (8192, 16), (4096, 8), (640, 4), (1024, 32)])
def test_an_export_lifted_costs_what_the_model_written_out_does(
    tokens: int, tp: int, shared_graphs: Path
) -> None:
    exported = lift(analysed(load(shared_graphs / "glm5_prefill_repeated.after.json.gz")))
    written = cost_of("glm-5.1", tp=tp, ep=tp, contract="dsa-cp-prefill", quant="int8")
    left = totals(exported, "flops", T=tokens, tp=tp, ep=tp)
    right = totals(written, "flops", T=tokens)
    # three small pointwise ops on the router's weights count as moe.routed only where their result is read
    left["moe.routed"] -= 75 * 8 * -(-tokens // tp)
    assert right.pop("other") == 75 * 8 * -(-tokens // tp)
    assert left == right
    # the written graph gathers the last norm's rows, from which global positions are picked (LC108 in the export)
    extra = 6144 * 2 * tokens * (tp - 1) / tp
    wire = [
        totals(c, "wire", **g)["communication"]
        for c, g in ((exported, {"T": tokens, "tp": tp, "ep": tp}), (written, {"T": tokens}))
    ]
    assert wire[1] - wire[0] == extra


@pytest.mark.shared
@pytest.mark.parametrize(("tokens", "tp"), [(4096, 16), (8192, 16), (4096, 8)])
def test_dense_latent_attention_exported_costs_what_the_model_written_out_does(
    tokens: int, tp: int, shared_graphs: Path
) -> None:
    exported = lift(analysed(load(shared_graphs / "dsv3_bf16_prefill_repeated.after.json.gz")))
    config = load_model("deepseek-v3")
    assert config.experts is not None
    config = replace(config, experts=replace(config.experts, count=32))  # as it was exported
    written = model_cost(config, step_for(config, tp=tp, contract="sequence-parallel"))
    left, right = (
        sum(totals(c, "flops", **at).values())
        for c, at in ((exported, {"T": tokens, "tp": tp, "ep": tp}), (written, {"T": tokens}))
    )
    assert left == right


@pytest.mark.shared
def test_an_export_before_its_rewriting_costs_what_full_tokens_do(shared_graphs: Path) -> None:
    """All heads on every rank, tokens cut for the experts only: flops and wire bytes, to the last one."""
    exported = lift(analysed(load(shared_graphs / "glm5_prefill_repeated.before.json.gz")))
    written = cost_of("glm-5.1", tp=16, contract="mc2-decode", quant="int8")
    for what in ("flops", "wire"):
        left, right = (sum(totals(c, what, T=4096).values()) for c in (exported, written))
        assert left == right


@pytest.mark.shared
@pytest.mark.parametrize(("tokens", "tp", "dp", "ep"), [(9, 4, 8, 32), (64, 4, 8, 32), (13, 8, 2, 16)])
def test_a_decode_step_exported_costs_what_the_model_written_out_does(
    tokens: int, tp: int, dp: int, ep: int, shared_graphs: Path
) -> None:
    exported = lift(analysed(load(shared_graphs / "glm5_decode_dp8tp4_spon.after.json.gz")))
    written = cost_of("glm-5.1", tp=tp, dp=dp, ep=ep, contract="mc2-decode", decode=True, quant="int8")
    left = totals(exported, "flops", T=tokens, tp=tp, ep=ep, context=2500)
    right = totals(written, "flops", T=tokens, context=2500)
    rows = -(-tokens // tp)
    left["moe.routed"] -= 75 * 8 * rows
    # the export's embedding is whole on every rank, the written one's is masked by vocabulary
    assert right.pop("embedding") == 4 * tokens
    right["norm.input"] -= tokens
    assert right.pop("other") == 75 * 8 * rows
    assert left == right
    # the export pads to shares of one size and gathers the padding too
    gathered = 75 * 12288 * (rows * tp - tokens) * (tp - 1) // tp
    embedded = 2 * 12288 * tokens * (tp - 1) // tp
    wire = [
        totals(exported, "wire", T=tokens, tp=tp, ep=ep)["communication"],
        totals(written, "wire", T=tokens)["communication"],
    ]
    assert wire[0] - wire[1] == gathered - embedded


def test_local_queries_cost_a_share_of_full_ones() -> None:
    """Sparse attention of a rank's own queries only: the term that tells the two contracts apart."""
    a3 = load_hardware("ascend-a3")
    times = {}
    for contract in ("dsa-cp-prefill", "dsa-cp-query-local"):
        report = time_graph(cost_of("glm-5.1", tp=16, contract=contract, quant="int8"), a3, {"T": 4096})
        times[contract] = {r.name: r.us for r in report.rows("kernel")}
    full, local = (t["attention.core sparse_attention"] for t in times.values())
    assert 10 < full / local < 16.5
    experts = [t["moe.routed grouped_gemm"] for t in times.values()]
    assert experts[0] == experts[1]


def test_decode_reads_the_context_and_prefill_does_not_forget_it() -> None:
    h200 = load_hardware("h200")
    decode = cost_of("deepseek-v3", tp=8, decode=True)
    short, long = (time_graph(decode, h200, {"T": 64, "context": n}).total_us for n in (1000, 30000))
    assert long > short
    chunk = cost_of("deepseek-v3", tp=8)
    first, later = (time_graph(chunk, h200, {"T": 2048, "context": n}).total_us for n in (0, 30000))
    assert later > first


@pytest.mark.parametrize("tokens", [64, 512, 16384])
@pytest.mark.parametrize("overlap", [("broadcast", "all_gather"), ("broadcast",), ("all_gather",)])
def test_weights_that_move_hide_behind_the_kernels_of_their_layers(
    tokens: int, overlap: tuple[str, ...]
) -> None:
    a3 = load_hardware("ascend-a3")
    cost = cost_of(
        "glm-5.1",
        tp=16,
        contract="dsa-cp-query-local",
        quant="int8",
        distribute=("q_b_proj",),
        gather=("o_proj",),
    )
    plain, beside = (time_graph(cost, a3, {"T": tokens}, overlap=o) for o in ((), overlap))
    hidden = 0.0
    for regions in {t.term.regions for t in plain.timed}:
        here = [t for t in plain.timed if t.term.regions == regions]
        moved = sum(t.us for t in here if t.term.prefetched and t.term.options["op"] in overlap)
        kernels = sum(t.us for t in here if t.term.kernel != "collective")
        hidden += min(moved, kernels)
    assert hidden > 0
    assert beside.total_us == pytest.approx(plain.total_us - hidden)
    assert beside.estimate.total == pytest.approx(beside.total_us)
    fixed = {n: v for n, v in cost.values.items() if n != "context"}
    compiled = compile_times(cost, a3, fixed, overlap=overlap).at(T=tokens, context=0)
    assert float(compiled["total"]) == pytest.approx(beside.total_us, rel=1e-11)
    bare = cost_of("glm-5.1", tp=16, contract="dsa-cp-query-local", quant="int8")
    without = totals(bare, "wire", T=tokens)["communication"]
    # a ring's share of a gathered o_proj, all of a broadcast q_b_proj, one byte an element
    moving = 78 * (16384 * 6144 * 15 // 16 + 16384 * 2048)
    assert totals(cost, "wire", T=tokens)["communication"] == without + moving
    assert totals(cost, "flops", T=tokens).keys() == totals(bare, "flops", T=tokens).keys()


def test_shared_indexers_are_one_body() -> None:
    config = load_model("glm-5.2")
    assert config.indexer is not None
    owners = sum(config.indexer.owners)
    assert owners < config.num_layers
    step = step_for(config, tp=8)
    scores = [t for t in model_cost(config, step).terms if t.kernel == "indexer_scores"]
    assert sum(t.count for t in scores) == owners


@pytest.mark.parametrize(
    ("name", "step", "message"),
    [
        (
            "qwen3-8b",
            {"contract": "dsa-cp-prefill"},
            "--contract: dsa-cp-prefill does not apply: qwen3-8b has no indexer of sparse attention",
        ),
        (
            "qwen3-8b",
            {"contract": "mc2-decode"},
            "--contract: mc2-decode does not apply: qwen3-8b has no experts",
        ),
        ("qwen3-8b", {"ep": 4}, "--ep: qwen3-8b has no experts"),
        ("qwen3-8b", {"tp": 5}, "--tp: intermediate_size 12288 does not divide by tp 5"),
        ("qwen3-8b", {"mtp": True}, "--mtp: qwen3-8b has no layers for multi-token prediction"),
        (
            "glm-5.1",
            {"tp": 8, "ep": 4},
            "--ep: ep is 1, or a multiple of tp up to tp * dp: not 4 with tp 8 and dp 1",
        ),
        (
            "glm-5.1",
            {"tp": 8, "contract": "tensor-parallel", "gather": ("o_proj",)},
            "--gather: tensor-parallel has no whole o_proj on every rank",
        ),
        (
            "glm-5.1",
            {"tp": 8, "contract": "dsa-cp-prefill", "distribute": ("gate",)},
            "--distribute: 'gate' is none of o_proj, q_b_proj",
        ),
        (
            "glm-5.1",
            {"tp": 8, "contract": "dsa-cp-prefill", "distribute": ("o_proj",), "gather": ("o_proj",)},
            "--gather: o_proj is either distributed or gathered",
        ),
        ("glm-5.1", {"tp": 3}, "--ep: 256 experts do not divide by 3"),
    ],
)
def test_steps_that_do_not_fit_are_refused(name: str, step: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        step_for(load_model(name), **step)
    assert str(caught.value) == message


def test_the_command_takes_a_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.json"
    config.write_text(
        '{"model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, '
        '"num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 128, "vocab_size": 512, '
        '"max_position_embeddings": 4096}'
    )
    words = ["cost", str(config), "--hardware", "h100", "--tp", "2", "--contract", "sequence-parallel"]
    assert main([*words, "--tokens", "256"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert (
        "note: written from the model's figures for sequence-parallel, prefill of 1 sequence, tp 2, dp 1, ep 1"
        in out
    )
    for more, message in (
        ([], "give --tokens: how many a step has, of one data-parallel group"),
        (["--tokens", "9", "--sequences", "2"], "--sequences: 9 tokens are not the same for 2 sequences"),
        (["--tokens", "9", "--group", "tp=2"], "--group: is for graphs; for a model give --tp, --dp, --ep"),
        (["--tokens", "9", "--at", "tp=4"], "--at: tp is given twice: 2 and 4"),
        (["--tokens", "9", "--at", "T=8"], "--at: T is given twice: 9 and 8"),
        (
            ["--tokens", "8", "--decode", "--sequences", "2"],
            "--sequences: in decode --tokens says how many sequences there are",
        ),
    ):
        assert main([*words, *more]) == 2
        assert capsys.readouterr() == ("", f"error: {message}\n")


@pytest.mark.parametrize(
    ("routing", "note"),
    [
        ("balanced", "note: routing is balanced; --routing says otherwise"),
        ("skewed", "note: routing is skewed"),
    ],
)
def test_the_routing_that_was_taken_is_noted(
    routing: str, note: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["cost", "qwen3-30b-a3b", "--hardware", "h100", "--tp", "4", "--tokens", "64"]
    assert main([*words, "--routing", routing]) == 0
    assert [x for x in capsys.readouterr().out.splitlines() if x.startswith("note: routing")] == [note]


def test_an_unknown_model_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", "no-such", "--hardware", "h100", "--tokens", "1"]) == 2
    assert capsys.readouterr().err.startswith("error: no model called no-such; known are deepseek-v3, ")


def test_a_model_without_head_dim_divides_its_width() -> None:
    figures = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 96,
        "vocab_size": 100,
    }
    config = model_from_dict(figures)
    attention = [t for t in model_cost(config, step_for(config)).terms if t.kernel == "prefill_attention"]
    assert [(t.count, t.sizes["dim"]) for t in attention] == [(2, 16)]


def test_windows_of_attention_are_left_out_with_a_note() -> None:
    figures = {
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "vocab_size": 128,
        "intermediate_size": 128,
        "sliding_window": 32,
    }
    note = "sliding_window: windows of attention are left out: every query sees all keys, and every layer caches them"
    assert model_from_dict(figures).notes == (note,)
    assert model_from_dict({**figures, "use_sliding_window": False}).notes == ()
    assert model_from_dict({**figures, "sliding_window": None}).notes == ()
    with pytest.raises(InputError, match="num_kv_shared_layers is not understood"):
        model_from_dict({**figures, "num_kv_shared_layers": 1})
