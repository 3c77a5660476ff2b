"""Contracts: shipped ones and a user's own, read and checked on programs that meet them or depart in one place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import engine, shared, transform
from support.builder import DIALECTS, GraphBuilder, Json
from support.faults import FAULTS, Fault
from support.programs import PROGRAMS, build
from support.sparse_decoder import STYLES, SparseDecoder

from layoutcheck.check import check
from layoutcheck.contracts import Contract, check_contract, contract_names, load_contract, parse_contract
from layoutcheck.errors import InputError
from layoutcheck.findings import Finding
from layoutcheck.infer.diagnosis.diagnose import diagnose
from layoutcheck.infer.solver.analysis import Analysis, analyse
from layoutcheck.roles import find_roles

SHIPPED = (
    "dsa-cp-entry-slice",
    "dsa-cp-prefill",
    "dsa-cp-query-local",
    "mc2-decode",
    "sequence-parallel",
    "tensor-parallel",
)


def analysed(graph: Any) -> Analysis:
    return analyse(
        engine.load(graph),
    )


def findings_of(graph: Any, contract: Contract | str) -> list[Finding]:
    analysis = analysed(graph)
    return check_contract(analysis, contract, findings=diagnose(analysis, 0.0).findings)


def codes(findings: list[Finding]) -> list[str]:
    return [f.code for f in findings]


def own(findings: list[Finding]) -> list[Finding]:
    """Findings that follow from no typing error."""
    return [f for f in findings if f.caused_by is None]


def contract(*boundaries: Json, **more: Any) -> Contract:
    document = {"format": "layoutcheck-contract/1", "name": "mine", "boundaries": list(boundaries), **more}
    return parse_contract(document, "mine.json")


# ---- reading


def test_six_contracts_are_shipped_and_say_what_they_are() -> None:
    assert tuple(contract_names()) == SHIPPED
    for name in SHIPPED:
        found = load_contract(name)
        assert found.name == name and found.doc and found.group == "tp"
        assert len({b.key for b in found.boundaries}) == len(found.boundaries) >= 8


def test_shipped_contracts_fit_the_schema() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    from layoutcheck.resources import rules_dir

    folder = rules_dir() / "contracts"
    schema = json.loads((folder / "contract-1.schema").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    for name in SHIPPED:
        jsonschema.validate(json.loads((folder / f"{name}.json").read_text(encoding="utf-8")), schema)


MISTAKES: dict[str, tuple[Json, str]] = {
    "format": ({"format": "contract"}, "mine.json: `format` is 'layoutcheck-contract/1', not 'contract'"),
    "name": ({"name": ""}, "mine.json: a contract needs a `name`"),
    "key": ({"boundary": []}, "mine.json: unknown key 'boundary'; did you mean boundaries?"),
    "no boundaries": ({"boundaries": []}, "mine.json: a contract needs at least one boundary"),
    "not a list": ({"boundaries": {}}, "mine.json: boundaries: here belongs a list, not an object"),
    "not an object": ({"boundaries": [1]}, "mine.json: boundaries[0]: here belongs an object, not a number"),
    "role": (
        {"boundaries": [{"role": "moe.gates", "operand": "input", "require": "Full"}]},
        "mine.json: boundaries[0].role: unknown 'moe.gates'; did you mean moe.gate?",
    ),
    "operand": (
        {"boundaries": [{"role": "o_proj", "operand": "weight", "require": "Full"}]},
        "mine.json: boundaries[0].operand: unknown 'weight'; one of input, output is meant",
    ),
    "state": (
        {"boundaries": [{"role": "o_proj", "operand": "input", "require": "local"}]},
        "mine.json: boundaries[0].require: unknown 'local'; did you mean Local?",
    ),
    "off the chain": (
        {"boundaries": [{"role": "o_proj", "operand": "input", "at_most": "Sharded"}]},
        "mine.json: boundaries[0].at_most: unknown 'Sharded'; one of Full, Local, Partial is meant",
    ),
    "via": (
        {"boundaries": [{"role": "o_proj", "operand": "input", "via": "gather"}]},
        "mine.json: boundaries[0].via: unknown 'gather'; did you mean all_gather?",
    ),
    "count": (
        {"boundaries": [{"role": "layer", "count": {"all_gather": [2, 1]}}]},
        "mine.json: boundaries[0].count: all_gather is a number or [least, most], not [2, 1]",
    ),
    "count of one": (
        {"boundaries": [{"role": "layer", "count": {"all_gather": [2]}}]},
        "mine.json: boundaries[0].count: all_gather is a number or [least, most], not [2]",
    ),
    "count of what": (
        {"boundaries": [{"role": "layer", "count": {"gather": 2}}]},
        "mine.json: boundaries[0].count: unknown key 'gather'; did you mean all_gather?",
    ),
    "nothing": (
        {"boundaries": [{"role": "o_proj", "operand": "input"}]},
        "mine.json: boundaries[0]: a boundary demands something: require, at_most, at_least, via, carry, "
        "count, trust",
    ),
    "twice": (
        {"boundaries": [{"role": "o_proj", "operand": "input", "require": "Full"}] * 2},
        "mine.json: boundaries[1]: the boundary o_proj input stands twice",
    ),
    "carry": (
        {"boundaries": [{"role": "o_proj", "operand": "input", "carry": "Full"}]},
        "mine.json: boundaries[0]: `carry` speaks of what layers hand on: residual output",
    ),
    "layer": (
        {"boundaries": [{"role": "layer", "require": "Full"}]},
        "mine.json: boundaries[0]: of a layer as a whole only `count` can be said",
    ),
    "both": (
        {"boundaries": [{"role": "o_proj", "operand": "input", "require": "Full", "at_most": "Full"}]},
        "mine.json: boundaries[0]: `require` says all that at_most and at_least could",
    ),
    "empty range": (
        {"boundaries": [{"role": "o_proj", "operand": "input", "at_most": "Partial", "at_least": "Full"}]},
        "mine.json: boundaries[0]: nothing is at most Partial and at least Full",
    ),
    "applies": ({"applies": {"sparse": 1}}, "mine.json: applies: `sparse` is true or false, not 1"),
    "extends": (
        {"extends": "dsa-cp-prefil"},
        "mine.json: extends: there is no contract 'dsa-cp-prefil'; did you mean dsa-cp-prefill?",
    ),
    "without": (
        {"extends": "dsa-cp-prefill", "without": ["moe.gate output"]},
        "mine.json: without[0]: there is no boundary 'moe.gate output' to leave out",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_with_its_place(mistake: str) -> None:
    change, message = MISTAKES[mistake]
    good = {"role": "o_proj", "operand": "input", "require": "Full"}
    document = {"format": "layoutcheck-contract/1", "name": "mine", "boundaries": [good], **change}
    with pytest.raises(InputError) as raised:
        parse_contract(document, "mine.json")
    assert str(raised.value) == message


@pytest.mark.parametrize("text", ["", "{", "[1]", '"x"', "null", "{}", "[" * 100_000, "\x00"])
def test_hostile_files_are_input_errors(tmp_path: Path, text: str) -> None:
    path = tmp_path / "own.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"own\.json"):
        load_contract(path)


def test_unknown_names_and_missing_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean sequence-parallel"):
        load_contract("sequence-paralel")
    with pytest.raises(InputError, match=r"gone\.json: there is no such file"):
        load_contract(tmp_path / "gone.json")


def test_contracts_that_extend_each_other_in_a_circle(tmp_path: Path) -> None:
    for name, other in (("a", "b"), ("b", "a")):
        document = {"format": "layoutcheck-contract/1", "name": name, "extends": f"{other}.json"}
        (tmp_path / f"{name}.json").write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(InputError, match="circle"):
        load_contract(tmp_path / "a.json")


def test_a_contract_extends_another_one(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    document = {
        "format": "layoutcheck-contract/1",
        "name": "mine",
        "extends": "dsa-cp-prefill",
        "without": ["layer", "o_proj output"],
        "boundaries": [{"role": "moe.shared", "operand": "output", "trust": "shape-only"}],
    }
    path.write_text(json.dumps(document), encoding="utf-8")
    found, base = load_contract(path), load_contract("dsa-cp-prefill")
    assert found.applies == base.applies and found.group == base.group
    assert found.trusts() == {"moe.shared": "shape-only"} and base.trusts() == {}
    gone = {b.key for b in base.boundaries} - {b.key for b in found.boundaries}
    # Without a word on weights a boundary takes the place of both, of whole and of cut ones.
    shared = {("moe.shared", "output", None, (("moe.shared", how),)) for how in ("whole", "cut")}
    layers = {("layer", "all", "moe", (("moe.shared", how),)) for how in ("whole", "cut")}
    assert gone == {("layer", "all", "dense", ()), ("o_proj", "output", None, ()), *shared, *layers}
    assert len(found.boundaries) == len(base.boundaries) - 5


@pytest.mark.parametrize("dialect", DIALECTS)
def test_both_repairs_of_a_mixed_shared_expert_meet_the_contract(dialect: str) -> None:
    """Cut weights on a rank's tokens are one error with two priced repairs; the graph as either makes it is clean."""
    report = check(
        engine.load(SparseDecoder(p=4, cut="mixed", dialect=dialect).build()), contract="dsa-cp-prefill"
    )
    assert {f.code for f in report.errors if not f.caused_by} == {"LC203"}
    for finding in report.errors:
        if finding.code == "LC203":
            assert [fix.text.split(" ")[0] for fix in finding.fixes] == ["replicate", "all_gather"]
    for repaired in (
        SparseDecoder(p=4, dialect=dialect),
        SparseDecoder(p=4, cut="gathered", dialect=dialect),
    ):
        assert codes(findings_of(repaired.build(), "dsa-cp-prefill")) == []


# ---- programs that meet a contract, and that have nothing of it


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("program", "name"), [("sequence_parallel", "sequence-parallel"), ("tensor_parallel", "tensor-parallel")]
)
def test_programs_meet_their_contract(program: str, name: str, dialect: str) -> None:
    for size in PROGRAMS[program][1]:
        found = findings_of(build(program, dialect, size), name)
        assert not found, [(f.code, f.node, f.message) for f in found]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_contract_that_nothing_was_done_for_is_one_finding(dialect: str) -> None:
    graph = build("tensor_parallel", dialect, PROGRAMS["tensor_parallel"][1][0])
    found = findings_of(graph, "sequence-parallel")
    assert codes(found) == ["LC506"]
    assert {"LC501", "LC505"} <= {code for code, _ in found[0].consequences}
    assert "was not rewritten" in found[0].message
    assert not found[0].fixes
    assert found[0].details[1:] == (
        "rewrite the graph as sequence-parallel says: layoutcheck show --roles gives the places",
    )


def test_why_a_contract_has_nothing_to_say() -> None:
    parallel = build("sequence_parallel", "c10d", PROGRAMS["sequence_parallel"][1][0])
    for name, reason in (("dsa-cp-prefill", "here is none"), ("mc2-decode", "a mixture of experts")):
        found = findings_of(parallel, name)
        assert codes(found) == ["LC506"] and reason in found[0].message
    alone = findings_of(SparseDecoder().build(), "dsa-cp-prefill")
    assert codes(alone) == ["LC506"] and "no group tp" in alone[0].message
    b = GraphBuilder(groups={"tp": 4}, T=16)
    b.output([b.all_reduce(b.linear(b.input("x", (16, 8)), b.weight((8, 8))))])
    none = findings_of(b.graph(), "tensor-parallel")
    assert codes(none) == ["LC506"] and "no decoder layer" in none[0].message
    without = findings_of(parallel, contract({"role": "moe.gate", "operand": "input", "require": "Full"}))
    assert codes(without) == ["LC506"] and "none of the boundaries" in without[0].message


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("style", STYLES)
def test_a_sparse_decoder_meets_the_contract_that_it_was_laid_out_by(
    style: str, gated: bool, dialect: str
) -> None:
    analysis = analysed(SparseDecoder(p=4, gated=gated, dialect=dialect, style=style).build(3))
    assert not diagnose(analysis, 0.0).errors
    for name in STYLES:
        found = check_contract(analysis, name)
        if name == style and (gated or style != "mc2-decode"):
            assert not found, [(f.code, f.node, f.message) for f in found]
        else:
            assert found, name


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_layer_counts_the_gather_behind_experts_that_have_no_shared_branch(dialect: str) -> None:
    """What hands the routed result on is the layer's own, as it is where a shared branch is added first."""
    build = SparseDecoder(p=4, shared_expert=False, dialect=dialect, style="mc2-decode").build
    analysis = analysed(build(3))
    assert check_contract(analysis, "mc2-decode") == []
    roles = find_roles(analysis)
    for layer in roles.layers:
        block = layer.blocks[-1]
        at: int | None = block.join.branch
        while at is not None and (before := roles.flow.carried(at)) is not None:
            assert roles.of(roles.flow.maker[at]) is None
            at = before
        assert at is not None and roles.of(roles.flow.maker[at]) == "moe.routed"
    none = contract({"role": "layer", "where": "moe", "count": {"all_gather": 0}})
    (found,) = check_contract(analysis, none)
    assert found.code == "LC504" and "the layer has 1 all_gather over tp by" in found.message


# ---- one departure each: (experts, code, boundary, layers, first fix)
DEPARTURES: dict[str, tuple[bool, str, str, str]] = {
    "full_o_proj": (True, "LC501", "o_proj input is Full", "slice at rank(tp)"),
    "gathered_residual": (True, "LC503", "residual stream is reached by all_gather", "leave out all_gather"),
    "full_gate": (True, "LC503", "moe.gate input is reached by all_gather", "leave out all_gather"),
    "full_shared": (True, "LC503", "moe.shared input is reached by all_gather", "leave out all_gather"),
    "two_gathers": (True, "LC504", "2 all_gather", "leave out"),
    "local_attention": (True, "LC502", "attention.input input is Local", "all_gather over tp"),
    "all_reduced_mlp": (False, "LC503", "residual branch (dense) is reached by", "reduce_scatter"),
    "local_head": (True, "LC502", "lm_head input is Local", "all_gather over tp"),
}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("wrong", DEPARTURES)
def test_each_departure_is_found_at_its_place(wrong: str, dialect: str) -> None:
    gated, code, words, fix = DEPARTURES[wrong]
    found = findings_of(
        SparseDecoder(p=4, gated=gated, wrong=wrong, dialect=dialect).build(), "dsa-cp-prefill"
    )
    matching = [f for f in found if f.code == code and words in f.message]
    assert len(matching) == 1, [(f.code, f.message) for f in found]
    assert any(fix in f.text for f in matching[0].fixes), matching[0].fixes
    assert matching[0].operands and matching[0].path
    others = [f for f in own(found) if f is not matching[0]]
    assert not others, [(f.code, f.message) for f in others]


@pytest.mark.parametrize("fault", FAULTS, ids=[f"{fault.key}" for fault in FAULTS])
def test_broken_programs_can_be_asked_for_any_contract(fault: Fault) -> None:
    """Whatever is wrong with the typing, an answer is a list of LC5xx findings at nodes of the graph."""
    graph, _, _ = fault.faulty("c10d", fault.sizes[0])
    nodes = {node["name"] for node in graph["nodes"]}
    for name in SHIPPED:
        for found in findings_of(graph, name):
            assert found.code.startswith("LC5") and found.node in nodes
            assert found.caused_by is None or found.caused_by in nodes
            assert {node for _, node in found.consequences} <= nodes


def test_a_fault_in_all_layers_is_one_finding_that_counts_them() -> None:
    found = own(findings_of(SparseDecoder(p=4, wrong="full_gate").build(3), "dsa-cp-prefill"))
    assert len(found) == 1
    assert found[0].message.startswith("layers 0 .. 2 (3 of 3): ")
    assert len([c for c, _ in found[0].consequences if c == "LC503"]) == 2
    assert found[0].fixes[0].times == 3


def test_layers_count_their_collectives() -> None:
    graph = SparseDecoder(p=4, gated=False).build()
    assert not findings_of(
        graph, contract({"role": "layer", "count": {"all_gather": 2, "reduce_scatter": 1}})
    )
    found = findings_of(graph, contract({"role": "layer", "count": {"all_gather": [0, 1]}}))
    assert codes(found) == ["LC504"]
    assert "2 all_gather" in found[0].message and "counts 0 to 1" in found[0].message


def test_at_most_and_at_least_bound_from_both_sides() -> None:
    graph = SparseDecoder(p=4, gated=False).build()
    dense = {"role": "mlp.dense"}
    for operand, state in (("input", "Full"), ("output", "Partial")):
        for bound, wanted, code in (
            ("at_most", "Full", None),
            ("at_most", "Local", "LC501" if state == "Full" else None),
            ("at_most", "Partial", "LC501" if state == "Full" else None),
            ("at_least", "Full", None if state == "Full" else "LC502"),
            ("at_least", "Local", None if state == "Full" else "LC502"),
            ("at_least", "Partial", None),
        ):
            found = findings_of(graph, contract({**dense, "operand": operand, bound: wanted}))
            assert codes(found) == ([code] if code else []), (operand, bound, wanted)


# ---- the reference graphs

MET = (
    *(
        (f"glm5_prefill_{name}.after.json.gz", "dsa-cp-prefill")
        for name in ("repeated", "expanded6", "rank3_expanded5")
    ),
    ("dsv3_bf16_prefill_repeated.after.json.gz", "sequence-parallel"),
    ("qwen3_8b_bf16_prefill_expanded4.after.json.gz", "sequence-parallel"),
    ("tp_llama_sp_ws4_dyn.pt2", "sequence-parallel"),
    ("mega_sp_ws4_r0.pt2", "sequence-parallel"),
    ("glm5_decode_dp8tp4_spon.after.json.gz", "mc2-decode"),
    ("tp_hf_llama_ws4.json.gz", "tensor-parallel"),
    ("tp_hf_glm_moe_dsa_ws4.json.gz", "tensor-parallel"),
    *(
        (name, "tensor-parallel")
        for name in shared.ALL_ROOTS
        if name.endswith(".before.json.gz") and name not in shared.LARGE
    ),
)


@pytest.mark.shared
@pytest.mark.parametrize(("name", "which"), MET)
def test_reference_graphs_meet_their_contract(name: str, which: str) -> None:
    """But for the head that picks global positions from a share, which is an error by itself (LC108)."""
    found = findings_of(shared.load(name), which)
    wanted = [("LC502", "index_2")] if ("LC108", "index_2") in shared.ALL_ROOTS[name] else []
    assert [(f.code, f.node) for f in found] == wanted, [(f.code, f.node, f.message) for f in found]
    assert [f.caused_by for f in found] == [node for _, node in wanted]


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "which"),
    [
        ("qwen3_8b_prefill_expanded4.after.json.gz", "sequence-parallel"),
        ("glm5_prefill_4100tok_expanded6.after.json.gz", "dsa-cp-prefill"),
        ("tp_hf_llama_ws4.json.gz", "sequence-parallel"),
        ("llama_tiny.pt2", "tensor-parallel"),
        ("dsv3_bf16_prefill_repeated.after.json.gz", "dsa-cp-prefill"),
        ("deepseek_v3_true4_meta.pt2", "dsa-cp-prefill"),
    ],
)
def test_reference_graphs_that_were_not_rewritten(name: str, which: str) -> None:
    assert codes(findings_of(shared.load(name), which)) == ["LC506"]


@pytest.mark.shared
def test_an_odd_token_count_is_named_as_the_reason() -> None:
    found = findings_of(shared.load("glm5_prefill_4100tok_expanded6.after.json.gz"), "dsa-cp-prefill")
    assert found[0].details[1] == "pad the 4100 tokens to 4112, a multiple of tp's 16 ranks"
    assert "LC501" in {code for code, _ in found[0].consequences}


@pytest.mark.shared
def test_the_gathered_residual() -> None:
    found = findings_of(shared.load("dsv3_bf16_prefill_expanded5.after.json.gz"), "sequence-parallel")
    assert [(f.code, f.node) for f in found] == [("LC503", "add_rms_norm2_default_1")]
    assert "all_gather_default_8" in found[0].message
    assert ("LC505", "add_rms_norm2_default_1") in found[0].consequences
    assert ("LC503", "add_rms_norm_default") in found[0].consequences


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "which"),
    [
        ("glm5_prefill_mtp1_repeated.after.json.gz", "dsa-cp-prefill"),
        ("dsv32_prefill_repeated.after.json.gz", "dsa-cp-prefill"),
        ("dsv3_bf16_prefill_expanded5.after.json.gz", "sequence-parallel"),
        ("glm5_prefill_noembtp_expanded6.after.json.gz", "dsa-cp-prefill"),
    ],
)
def test_findings_name_other_nodes_under_other_names_and_nothing_else(name: str, which: str) -> None:
    graph = shared.load(name)
    before = findings_of(graph, which)
    other, names = transform.rename(transform.anonymise(graph), seed=3)
    after = findings_of(other, which)
    assert before
    assert [(f.code, f.node, f.caused_by) for f in after] == [
        (f.code, names[f.node], names.get(f.caused_by or "")) for f in before
    ]


@pytest.mark.shared
def test_only_the_mtp_layer_departs() -> None:
    found = findings_of(shared.load("glm5_prefill_mtp1_repeated.after.json.gz"), "dsa-cp-prefill")
    layers = [f for f in found if f.message.startswith("layer")]
    assert layers and all(f.message.startswith("layer 2: ") for f in layers)
    assert [f.code for f in found if f not in layers] == ["LC502"]
