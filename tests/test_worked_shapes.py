"""The worked shapes of a sparse decoder, boundary by boundary, and its classic errors with the words that tell them.

Prefill: 4096 tokens on 16 ranks. Decode: 9 tokens a rank, 8 times 4 ranks. All sizes are the model's own.
"""

from __future__ import annotations

from typing import Any

import pytest
from support import engine
from support.contract_repairs import ContractRepair
from support.repairing import Repair
from support.worked import WRONG, Decode, Prefill

# place: (this rank's shape, state over tp)
PREFILL: dict[str, tuple[tuple[int, ...], str]] = {
    "embedding": ((256, 6144), "Local"),
    "0 norm.input": ((256, 6144), "Local"),
    "0 attention.input": ((4096, 6144), "Full"),
    "0 attention.core": ((4096, 64, 256), "Full"),
    "0 share": ((256, 64, 256), "Local"),
    "0 o_proj": ((256, 6144), "Local"),
    "0 norm.post_attention": ((256, 6144), "Local"),
    "0 residual": ((256, 6144), "Local"),
    "0 mlp.dense": ((4096, 6144), "Full"),
    "0 branch": ((256, 6144), "Local"),
    "1 attention.input": ((4096, 6144), "Full"),
    "1 attention.core": ((4096, 64, 256), "Full"),
    "1 share": ((256, 64, 256), "Local"),
    "1 o_proj": ((256, 6144), "Local"),
    "1 moe.gate": ((256, 256), "Local"),
    "1 moe.topk": ((256, 8), "Local"),
    "1 moe.routed": ((256, 6144), "Local"),
    "1 moe.shared": ((256, 6144), "Local"),
    "1 branch": ((256, 6144), "Local"),
    "norm.final": ((256, 6144), "Local"),
    "head": ((4096, 6144), "Full"),
}
DECODE: dict[str, tuple[tuple[int, ...], str]] = {
    "norm.input": ((9, 6144), "Full"),
    "attention.core": ((9, 64, 256), "Full"),
    "o_proj": ((9, 6144), "Full"),
    "norm.post_attention": ((9, 6144), "Full"),
    "moe.gate": ((9, 256), "Full"),
    "logits padded": ((12, 256), "Full"),
    "hidden padded": ((12, 6144), "Full"),
    "logits share": ((3, 256), "Local"),
    "hidden share": ((3, 6144), "Local"),
    "moe.topk": ((3, 8), "Local"),
    "moe.routed": ((3, 6144), "Local"),
    "moe.shared": ((3, 6144), "Local"),
    "gathered": ((12, 6144), "Full"),
    "branch": ((9, 6144), "Full"),
    "norm.final": ((9, 6144), "Full"),
}


def departures(report: Any) -> list[tuple[str, str, str]]:
    return [(f.code, f.node, f.message) for f in report.findings if f.code.startswith("LC5")]


@pytest.mark.parametrize(
    ("program", "contract", "shapes"),
    [(Prefill(), "dsa-cp-prefill", PREFILL), (Decode(), "mc2-decode", DECODE)],
    ids=["prefill", "decode"],
)
def test_each_boundary_has_its_shape_and_its_state(program: Any, contract: str, shapes: Any) -> None:
    report = engine.check(program.build(), contract=contract)
    assert not report.findings, engine.describe(report)
    found = {place: program.named[place].name for place in shapes}
    assert {
        place: (report.layout_of(name).shape, state(report, name)) for place, name in found.items()
    } == shapes


def state(report: Any, name: str) -> str:
    """The state over tp, as the layout's text says it; `@ep/tp` is the group's rest."""
    return "Local" if "@tp" in report.layout_text(name) else "Full"


def test_o_proj_multiplies_a_share_with_the_whole_weight() -> None:
    program = Prefill()
    graph = program.build()
    report = engine.check(graph)
    node = next(n for n in graph["nodes"] if n["name"] == program.named["1 o_proj"].name)
    shapes = [tuple(report.layout_of(name).shape) for name in engine.refs(node)]
    assert shapes == [(256, 16384), (16384, 6144)]


# ---- the classic errors: what is found, and the first repair

CLASSIC: dict[str, tuple[list[tuple[str, str, str]], tuple[str, str]]] = {
    "gate": (
        [
            (
                "LC503",
                "mm_5",
                "layer 1: moe.gate input is reached by all_gather all_gather_3, and dsa-cp-prefill allows slice",
            )
        ],
        ("leave out all_gather all_gather_3, and leave out slice slice_2", "-47185920"),
    ),
    "shared": (
        [
            (
                "LC503",
                "mm_6",
                "layer 1: moe.shared input is reached by all_gather all_gather_3, and dsa-cp-prefill allows slice",
            ),
        ],
        ("leave out all_gather all_gather_3, and leave out slice slice_2", "-47185920"),
    ),
    "attention": (
        [
            (
                "LC502",
                "mlapo_1",
                "layer 1: attention.input input is Local over tp, and dsa-cp-prefill wants it Full",
            )
        ],
        ("all_gather over tp of rms_norm_1, and slice at rank(tp) of view_1", "47185920"),
    ),
    "residual": (
        [
            (
                "LC503",
                "add_rms_norm2_1",
                "layer 1: residual stream is reached by all_gather all_gather_2, "
                "and dsa-cp-prefill allows reduce_scatter or slice",
            )
        ],
        (
            "leave out all_gather all_gather_2, leave out slice slice_1, and slice at rank(tp) of view_1",
            "-1462763520",
        ),
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_classic_errors(wrong: str) -> None:
    wanted, (text, price) = CLASSIC[wrong]
    graph = Prefill(wrong).build()
    report = engine.check(graph, contract="dsa-cp-prefill")
    assert departures(report) == wanted
    finding = next(f for f in report.findings if f.code.startswith("LC5"))
    assert [(fix.text, fix.bytes) for fix in finding.fixes] == [(text, price)]
    if wrong != "residual":  # its views hold the sizes of the gathered rows
        repaired = ContractRepair(graph, report, finding, "tensor_cast")
        if wrong == "attention":
            for node in repaired.e.nodes:
                if node["name"] == "view_1":
                    node["args"][1] = [-1, 16384]
        again = engine.check(repaired.carried_out(text), contract="dsa-cp-prefill")
        assert not again.findings, engine.describe(again)


def test_a_gathered_residual_makes_65536_of_4096() -> None:
    report = engine.check(Prefill("residual").build(), contract="dsa-cp-prefill")
    assert [(f.code, f.node, f.message) for f in report.errors if f.code == "LC103"] == [
        (
            "LC103",
            "all_gather_3",
            "every rank of tp holds all of axis 0 of bf16[T, 6144]; gathering repeats it 16 times, 4096 become 65536",
        )
    ]


@pytest.mark.parametrize(
    ("wrong", "finding", "fix"),
    [
        (
            "gate",
            (
                "LC503",
                "mm_1",
                "layer 0: moe.gate input is reached by slice slice, and mc2-decode allows no conversion",
            ),
            ["let mm_1 read constant_pad_nd instead of slice, and slice at rank(tp) of mm_1"],
        ),
        (
            "topk",
            (
                "LC501",
                "moe_gating_top_k_softmax",
                "layer 0: moe.topk input is Full over tp, and mc2-decode wants it Local",
            ),
            [],
        ),
    ],
)
def test_departures_in_decode(wrong: str, finding: tuple[str, str, str], fix: list[str]) -> None:
    report = engine.check(Decode(wrong).build(), contract="mc2-decode")
    assert departures(report) == [finding]
    assert [f.text for f in report.findings[0].fixes] == fix


# ---- a shared expert whose features are cut over the group that cuts its tokens


def test_a_split_shared_expert_is_an_error_with_two_repairs_that_hold() -> None:
    """Whole weights on the rank's tokens meet the contract, and so do cut ones on gathered tokens, their sum scattered."""
    program = Prefill(split_shared=True)
    graph = program.build()
    report = engine.check(graph, contract="dsa-cp-prefill")
    (finding,) = (f for f in report.findings if f.code == "LC203")
    assert finding.node == "all_reduce" and len(report.errors) == 2
    assert [(f.text, f.bytes) for f in finding.fixes] == [
        ("replicate the weights over tp and leave this collective out", "-5898240"),
        ("all_gather the tokens over tp before the first of these weights, reduce_scatter here", "88473600"),
    ]
    (other,) = (f for f in report.findings if f.code == "LC503")
    assert other.caused_by == "all_reduce"
    for fix in finding.fixes:
        repaired = Repair(graph, report, finding, "tensor_cast").done(fix.text)
        assert not engine.check(repaired).errors, fix.text
        again = engine.check(repaired, contract="dsa-cp-prefill")
        assert not again.errors, engine.describe(again)


def test_a_trusted_shared_expert_is_local_and_its_warning_stays() -> None:
    program = Prefill(split_shared=True)
    graph = program.build()
    options: list[dict[str, Any]] = [{}, {"contract": "dsa-cp-prefill"}]
    for more in options:
        report = engine.check(graph, trust={"moe.shared": "shape-only"}, **more)
        assert [(f.code, f.node, engine.severity(f)) for f in report.findings] == [
            ("LC203", "all_reduce", "warning")
        ]
        assert report.layout_text(program.named["1 sum"].name) == "bf16[T/16@tp, 6144]"
    assert not any("reduce_scatter" in fix.text for f in report.findings for fix in f.fixes)
