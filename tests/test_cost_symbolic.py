"""Formulas over a model's figures: exact at its figures and at others, and named after the right ones."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import sympy

from layoutcheck.cli import main
from layoutcheck.cost.evaluate import KEYS
from layoutcheck.cost.formula_text import formulas, work_formulas
from layoutcheck.cost.lift import lift
from layoutcheck.cost.model_cost import model_cost
from layoutcheck.cost.symbolic import with_figures, with_figures_of
from layoutcheck.cost.terms import GraphCost
from layoutcheck.errors import InputError
from layoutcheck.infer.solver.analysis import Analysis, analyse
from layoutcheck.models import ModelConfig, load_model
from layoutcheck.models.read import shipped_models
from layoutcheck.models.step import step_for
from layoutcheck.readers import load

STEPS: dict[str, dict[str, Any]] = {
    "prefill": {"tp": 8, "dp": 2},
    "decode": {"tp": 4, "decode": True, "quant": "fp8"},
    "experts cut": {"tp": 8, "ep": 1, "contract": "sequence-parallel"},
    "mtp": {"tp": 2, "quant": "int8", "mtp": True},
}
DSA = [
    ("glm-5.1", {"tp": 16, "contract": "dsa-cp-prefill", "quant": "int8"}),
    ("glm-5.2", {"tp": 8, "contract": "dsa-cp-query-local"}),
    ("deepseek-v3.2", {"tp": 4, "dp": 4, "contract": "mc2-decode", "decode": True}),
]


def analysed(graph: Any) -> Analysis:
    return analyse(graph)


def named(config: ModelConfig, step: dict[str, Any]) -> tuple[GraphCost, GraphCost]:
    of = step_for(config, **step)
    own = model_cost(config, of)
    return own, with_figures(own, config, of)


def work(cost: GraphCost, values: dict[str, int]) -> dict[str, list[int]]:
    """Flops, bytes and wire bytes by role at these values, in integers."""
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for term in cost.terms:
        one = term.work(term.numbers(values))
        for i, part in enumerate((one.flops, one.traffic, one.wire)):
            found[term.role][i] += term.count * part
    return dict(found)


@pytest.mark.parametrize("name", shipped_models())
@pytest.mark.parametrize("kind", STEPS)
def test_every_model_has_its_figures_in_its_formulas(name: str, kind: str) -> None:
    config = load_model(name)
    step = dict(STEPS[kind])
    if not config.mtp_layers:
        step.pop("mtp", None)
    own, found = named(config, step)
    assert found.figures.items() <= config.symbols().items()
    assert {"hidden_size", "vocab_size", "num_attention_heads"} <= found.figures.keys()
    for tokens, context in ((4096, 0), (1237, 501)):
        at = {"T": tokens, "context": context}
        assert work(found, found.at(at)) == work(own, own.at(at))
    # what is left are bytes of elements and counts of a few operations
    for term in found.terms:
        for size in term.sizes.values():
            assert max([int(n) for n in re.findall(r"(?<!\w)\d+", str(size))], default=0) <= 24, term


@pytest.mark.parametrize(("name", "step"), DSA)
def test_formulas_hold_for_other_figures(name: str, step: dict[str, Any]) -> None:
    """Figures that share a number in the model (2048 is a latent, a width and a top-k) are told apart."""
    config = load_model(name)
    _, found = named(config, step)
    latent, indexer, experts = config.latent, config.indexer, config.experts
    assert latent is not None and indexer is not None and experts is not None
    others = {
        "q_lora_rank": replace(config, latent=replace(latent, q_lora_rank=1024)),
        "kv_lora_rank": replace(config, latent=replace(latent, kv_lora_rank=384)),
        "v_head_dim": replace(config, latent=replace(latent, v_head_dim=64)),
        "index_topk": replace(config, indexer=replace(indexer, topk=1000)),
        "index_n_heads": replace(config, indexer=replace(indexer, heads=16)),
        "moe_intermediate_size": replace(config, experts=replace(experts, intermediate_size=1536)),
        "num_experts_per_tok": replace(config, experts=replace(experts, per_token=6)),
        "n_routed_experts": replace(config, experts=replace(experts, count=experts.count * 2)),
        "num_attention_heads": replace(config, num_attention_heads=2 * config.num_attention_heads),
        "hidden_size": replace(config, hidden_size=config.hidden_size + 512),
        "intermediate_size": replace(config, intermediate_size=config.intermediate_size * 2),
    }
    for figure, other in others.items():
        own = model_cost(other, step_for(other, **step))
        at = {"T": 4096, "context": 300}
        values = {**found.at(at), figure: other.symbols()[figure]}
        assert work(found, values) == work(own, own.at(at)), figure


@lru_cache(maxsize=1)
def glm() -> GraphCost:
    return named(load_model("glm-5.1"), {"tp": 16, "contract": "dsa-cp-prefill"})[1]


def test_what_is_printed_is_the_formula() -> None:
    """The text, read again, is what the terms add up to."""
    cost = glm()
    parts = work_formulas(cost, KEYS["role"])
    names = {n: sympy.Symbol(n, integer=True, positive=True) for n in (*cost.figures, "T", "tp", "ep")}
    names["context"] = sympy.Symbol("context", integer=True, nonnegative=True)
    values = {names[n]: v for n, v in cost.at({"T": 4097, "context": 5}).items()}
    for line in formulas(cost, KEYS["role"]):
        if line.name == "total":
            continue
        part = parts[line.name]
        assert line.flops.keys() == part.flops.keys()
        pairs = [(line.read, part.read), (line.written, part.written), (line.wire, part.wire)]
        for shown, wanted in pairs + [(line.flops[d], part.flops[d]) for d in part.flops]:
            read = sympy.sympify(shown, locals={**names, "ceil": sympy.ceiling})
            at = {s: values[names[s.name]] for s in wanted.free_symbols}
            assert read.subs(values) == wanted.subs(at)


def test_formulas_are_gathered_by_tokens() -> None:
    lines = {line.name: line for line in formulas(glm(), KEYS["role"])}
    assert lines["o_proj"].flops == {"bfloat16": "156*hidden_size*num_attention_heads*v_head_dim*ceil(T/tp)"}
    assert lines["moe.gate"].flops == {"float32": "150*hidden_size*n_routed_experts*ceil(T/tp)"}
    assert lines["mlp.dense"].flops == {
        "bfloat16": "18*T*hidden_size*intermediate_size/tp",
        "float32": "6*T*intermediate_size/tp",
    }
    latex = {line.name: line for line in formulas(glm(), KEYS["role"], "latex")}
    assert latex["norm.input"].flops == {
        "float32": r"T + 390 \mathrm{hidden\_size} \left\lceil{\frac{T}{tp}}\right\rceil"
    }  # the first T are of what the table's result goes through in front of the first norm


@pytest.mark.shared
@pytest.mark.parametrize(
    "export", ["glm5_prefill_repeated.after", "glm5_prefill_repeated.before", "glm5_decode_dp8tp4_spon.after"]
)
def test_an_exports_formulas_take_the_names_of_its_models_figures(export: str, shared_graphs: Path) -> None:
    own = lift(analysed(load(shared_graphs / f"{export}.json.gz")))
    found = with_figures_of(own, load_model("glm-5.1"))
    assert len(found.figures) >= 14
    for at in ({"T": 4096}, {"T": 1000, "context": 70, "tp": 2, "ep": 4}):
        assert work(found, found.at(at)) == work(own, own.at(at))
    for term in found.terms:
        if term.kernel in ("gemm", "grouped_gemm", "sparse_attention", "indexer_scores"):
            numbers = [int(n) for s in term.sizes.values() for n in re.findall(r"(?<!\w)\d+", str(s))]
            assert max(numbers, default=0) <= 2, term


@pytest.mark.shared
def test_another_models_figures_are_no_names_for_a_graph(shared_graphs: Path) -> None:
    own = lift(analysed(load(shared_graphs / "qwen3_8b_bf16_prefill_expanded4.after.json.gz")))
    with pytest.raises(InputError, match=r"--figures: the graph's layers are not those of glm-5\.1"):
        with_figures_of(own, load_model("glm-5.1"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("glm-5.1", "--figures", "glm-5.1", "--formula", "text"),
            "is for graphs; a model has figures of its own",
        ),
        (("glm-5.1", "--figures", "glm-5.1"), "is for graphs; a model has figures of its own"),
    ],
)
def test_figures_are_for_graphs(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cost", *words, "--tokens", "64", "--hardware", "h100"]) == 2
    assert capsys.readouterr() == ("", f"error: --figures: {message}\n")


def test_key_heads_that_ranks_share_stay_numbers() -> None:
    """With fewer key heads than ranks another number of them would be another graph."""
    config = load_model("qwen3-8b")
    assert "num_key_value_heads" in named(config, {"tp": 8})[1].figures
    own, found = named(config, {"tp": 16})
    assert "num_key_value_heads" not in found.figures
    assert work(found, found.at({"T": 77})) == work(own, own.at({"T": 77}))
