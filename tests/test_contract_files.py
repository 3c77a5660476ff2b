"""A user's own contract, through the command line: what each key demands, and what is said of each mistake, with its line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.builder import Json
from support.sparse_decoder import SparseDecoder
from support.worked import Prefill

from layoutcheck.cli import main


def run(capsys: pytest.CaptureFixture[str], folder: Path, graph: Json, contract: Any) -> tuple[int, Any, str]:
    """Exit code, findings and what stands on stderr; `contract` is a document, or a file's text."""
    (folder / "graph.json").write_text(json.dumps(graph), encoding="utf-8")
    text = contract if isinstance(contract, str) else json.dumps(contract)
    (folder / "mine.json").write_text(text, encoding="utf-8")
    options = ["--format", "json", "--contract", str(folder / "mine.json")]
    code = main(["check", *options, str(folder / "graph.json")])
    printed = capsys.readouterr()
    return code, json.loads(printed.out)["graphs"][0] if printed.out else None, printed.err


def document(*boundaries: Json, **more: Any) -> Json:
    return {"format": "layoutcheck-contract/1", "name": "mine", "boundaries": list(boundaries), **more}


RIGHT = SparseDecoder(p=4).build()
O_PROJ = {"role": "o_proj", "operand": "input"}
CARRIED = {"role": "residual", "operand": "output"}
BRANCH = {"role": "residual", "operand": "branch"}

# key: a contract that the program meets, one that it does not, the code
KEYS: dict[str, tuple[Json, Json, str]] = {
    "require": (document({**O_PROJ, "require": "Local"}), document({**O_PROJ, "require": "Full"}), "LC502"),
    "require one of": (
        document({**O_PROJ, "require": ["Full", "Local"]}),
        document({**O_PROJ, "require": ["Partial", "Sharded"]}),
        "LC501",
    ),
    "at_most": (
        document({**O_PROJ, "at_most": "Local"}),
        document({**O_PROJ, "at_most": "Partial"}),
        "LC501",
    ),
    "at_least": (
        document({**O_PROJ, "at_least": "Local"}),
        document({**O_PROJ, "at_least": "Full"}),
        "LC502",
    ),
    "via": (document({**O_PROJ, "via": "slice"}), document({**O_PROJ, "via": ["all_gather"]}), "LC503"),
    "via none": (document({**BRANCH, "via": "none"}), document({**O_PROJ, "via": "none"}), "LC503"),
    "carry": (document({**CARRIED, "carry": "Local"}), document({**CARRIED, "carry": "Full"}), "LC505"),
    "count": (
        document({"role": "layer", "count": {"all_gather": 1}}),
        document({"role": "layer", "count": {"all_gather": 0}}),
        "LC504",
    ),
    "count of a range": (
        document({"role": "attention.input", "operand": "input", "count": {"all_gather": [1, 2]}}),
        document({"role": "attention.input", "operand": "input", "count": {"all_gather": [2, 3]}}),
        "LC504",
    ),
    "where": (
        document({**BRANCH, "where": "moe", "require": "Local"}),
        document({**BRANCH, "where": "sparse", "require": "Full"}),
        "LC502",
    ),
    "where nothing is": (
        document({**BRANCH, "require": "Local"}),
        document({**BRANCH, "where": "dense", "require": "Local"}),
        "LC506",
    ),
    "applies": (
        document({**O_PROJ, "require": "Local"}, applies={"sparse": True, "experts": True}),
        document({**O_PROJ, "require": "Local"}, applies={"experts": False}),
        "LC506",
    ),
    "group": (
        document({**O_PROJ, "require": "Local"}, group="tp"),
        document({**O_PROJ, "require": "Local"}, group="cp"),
        "LC506",
    ),
}


@pytest.mark.parametrize("key", KEYS)
def test_each_key_is_met_or_not(capsys: pytest.CaptureFixture[str], tmp_path: Path, key: str) -> None:
    met, missed, code = KEYS[key]
    assert run(capsys, tmp_path, RIGHT, met)[0] == 0
    status, report, err = run(capsys, tmp_path, RIGHT, missed)
    assert not err and {f["code"] for f in report["findings"]} == {code}
    assert status == (1 if any(f["severity"] == "error" for f in report["findings"]) else 0)
    assert all("mine" in f["message"] for f in report["findings"])


def test_trust(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The contract's own trust keeps a mixed sum as a warning; without it the sum is an error."""
    graph = Prefill(split_shared=True).build()
    for boundary, code in (({"trust": "shape-only"}, 0), ({"require": "Local"}, 1)):
        mine = document({"role": "moe.shared", "operand": "output", **boundary}, extends="dsa-cp-prefill")
        status, report, _ = run(capsys, tmp_path, graph, mine)
        assert status == code
        (mixed,) = (f for f in report["findings"] if f["code"] == "LC203")
        assert mixed["severity"] == ("error" if code else "warning")


def test_extends_and_without(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    graph = SparseDecoder(p=4, wrong="full_o_proj").build()
    own: Json = {"format": "layoutcheck-contract/1", "name": "mine", "extends": "dsa-cp-prefill"}
    assert run(capsys, tmp_path, graph, own)[0] == 1
    gone = ["o_proj", "residual branch attention"]
    assert run(capsys, tmp_path, graph, {**own, "without": gone})[0] == 0
    (tmp_path / "base.json").write_text(json.dumps({**own, "without": gone}), encoding="utf-8")
    assert run(capsys, tmp_path, graph, {**own, "extends": "base.json"})[0] == 0


HEAD = '{"format": "layoutcheck-contract/1",\n "name": "mine",\n'
# The line with the mistake ends in `<-`; the message stands behind the file and the line.
MISTAKES: dict[str, tuple[str, str]] = {
    "no JSON": (HEAD + ' "boundaries": [\n', ""),
    "another format": (
        '{"name": "mine",\n "format": "layoutcheck-contract/2"}',
        "this is a layoutcheck-contract/2 file, not a contract",
    ),
    "no name": ('{"format": "layoutcheck-contract/1",\n "name": "" <-}', "a contract needs a `name`"),
    "a name that is no text": (
        '{"format": "layoutcheck-contract/1",\n "name": ["mine"] <-}',
        "`name` is text, not a list",
    ),
    "an unknown key": (HEAD + ' "boundary": [] <-}', "unknown key 'boundary'; did you mean boundaries?"),
    "a key twice": (
        HEAD + ' "boundaries": [{"role": "o_proj",\n  "require": "Full",\n  "require": "Local" <-}]}',
        "boundaries[0]: the key 'require' stands twice",
    ),
    "no boundaries": (HEAD + ' "boundaries": [] <-}', "a contract needs at least one boundary"),
    "boundaries that are no list": (
        HEAD + ' "boundaries": {} <-}',
        "boundaries: here belongs a list, not an object",
    ),
    "a boundary that is none": (
        HEAD + ' "boundaries": [\n  "o_proj" <-]}',
        "boundaries[0]: here belongs an object, not text",
    ),
    "no role": (
        HEAD + ' "boundaries": [\n  {"require": "Full"} <-]}',
        "boundaries[0]: a boundary needs a `role`",
    ),
    "an unknown role": (
        HEAD + ' "boundaries": [\n  {"require": "Full",\n   "role": "moe.gates" <-}]}',
        "boundaries[0].role: unknown 'moe.gates'; did you mean moe.gate?",
    ),
    "an unknown operand": (
        HEAD + ' "boundaries": [\n  {"role": "o_proj",\n   "operand": "weight" <-, "require": "Full"}]}',
        "boundaries[0].operand: unknown 'weight'; one of input, output is meant",
    ),
    "an unknown key of a boundary": (
        HEAD + ' "boundaries": [\n  {"role": "o_proj",\n   "requires": "Full" <-}]}',
        "boundaries[0]: unknown key 'requires'; did you mean require?",
    ),
    "an unknown state": (
        HEAD + ' "boundaries": [\n  {"role": "o_proj",\n   "require": "full" <-}]}',
        "boundaries[0].require: unknown 'full'; did you mean Full?",
    ),
    "no state": (
        HEAD + ' "boundaries": [\n  {"role": "o_proj",\n   "require": [] <-}]}',
        "boundaries[0].require: here belongs at least one",
    ),
    "a state off the chain": (
        HEAD + ' "boundaries": [\n  {"role": "o_proj",\n   "at_most": "Sharded" <-}]}',
        "boundaries[0].at_most: unknown 'Sharded'; one of Full, Local, Partial is meant",
    ),
    "a least that is no text": (
        HEAD + ' "boundaries": [\n  {"role": "o_proj",\n   "at_least": 1 <-}]}',
        "boundaries[0].at_least: here belongs text, not a number; one of Full, Local, Partial is meant",
    ),
    "an unknown conversion": (
        HEAD + ' "boundaries": [\n  {"role": "o_proj",\n   "via": ["slice", "gather"] <-}]}',
        "boundaries[0].via: unknown 'gather'; did you mean all_gather?",
    ),
    "a carried value elsewhere": (
        HEAD + ' "boundaries": [\n  {"role": "o_proj", "carry": "Full"} <-]}',
        "boundaries[0]: `carry` speaks of what layers hand on: residual output",
    ),
    "carried in a state that is not allowed": (
        HEAD + ' "boundaries": [\n  {"role": "residual", "carry": "Full", "require": "Local"} <-]}',
        "boundaries[0]: nothing is carried Full and something else at the same place",
    ),
    "a count of nothing": (
        HEAD + ' "boundaries": [\n  {"role": "layer",\n   "count": {} <-}]}',
        "boundaries[0].count: here belongs at least one",
    ),
    "a count of what": (
        HEAD + ' "boundaries": [\n  {"role": "layer", "count": {\n   "gather": 1 <-}}]}',
        "boundaries[0].count: unknown key 'gather'; did you mean all_gather?",
    ),
    "a count that is none": (
        HEAD + ' "boundaries": [\n  {"role": "layer", "count": {\n   "all_gather": [2, 1] <-}}]}',
        "boundaries[0].count: all_gather is a number or [least, most], not [2, 1]",
    ),
    "a count of three": (
        HEAD + ' "boundaries": [\n  {"role": "layer", "count": {\n   "all_gather": [1, 2, 3] <-}}]}',
        "boundaries[0].count: all_gather is a number or [least, most], not [1, 2, 3]",
    ),
    "an unknown trust": (
        HEAD + ' "boundaries": [\n  {"role": "moe.shared",\n   "trust": "all" <-}]}',
        "boundaries[0].trust: unknown 'all'; one of shape-only is meant",
    ),
    "an unknown kind of block": (
        HEAD + ' "boundaries": [\n  {"role": "residual", "require": "Full",\n   "where": "experts" <-}]}',
        "boundaries[0].where: unknown 'experts'; one of attention, sparse, dense, moe is meant",
    ),
    "a kind where the role is not": (
        HEAD + ' "boundaries": [\n  {"role": "o_proj", "require": "Full",\n   "where": "moe" <-}]}',
        "boundaries[0].where: o_proj is never moe: it is in blocks that are attention or sparse",
    ),
    "a kind of what is in no block": (
        HEAD + ' "boundaries": [\n  {"role": "lm_head", "require": "Full",\n   "where": "moe" <-}]}',
        "boundaries[0].where: lm_head is never moe: it is in no block",
    ),
    "nothing demanded": (
        HEAD + ' "boundaries": [\n  {"role": "layer", "count": {"slice": 1}},\n  {"role": "o_proj"} <-]}',
        "boundaries[1]: a boundary demands something: require, at_most, at_least, via, carry, count, trust",
    ),
    "the same twice": (
        HEAD
        + ' "boundaries": [\n  {"role": "o_proj", "via": "none"},\n  {"role": "o_proj", "require": "Full"} <-]}',
        "boundaries[1]: the boundary o_proj output stands twice",
    ),
    "a condition that is none": (
        HEAD + ' "applies": {\n  "sparse": 1 <-}}',
        "applies: `sparse` is true or false, not 1",
    ),
    "an unknown condition": (
        HEAD + ' "applies": {\n  "dense": true <-}}',
        "applies: unknown key 'dense'; there are sparse, experts",
    ),
    "a contract that there is not": (
        HEAD + ' "extends": "dsa-cp-prefil" <-}',
        "extends: there is no contract 'dsa-cp-prefil'; did you mean dsa-cp-prefill?",
    ),
    "nothing to leave out": (
        HEAD + ' "extends": "mc2-decode",\n "without": [\n  "moe.gate output" <-]}',
        "without[0]: there is no boundary 'moe.gate output' to leave out",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_with_file_and_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, mistake: str
) -> None:
    text, message = MISTAKES[mistake]
    line = next((i for i, row in enumerate(text.split("\n"), 1) if "<-" in row), None)
    status, _, err = run(capsys, tmp_path, RIGHT, text.replace(" <-", "").replace("<-", ""))
    assert status == 2 and err.count("\n") == 1, err
    if line is None:
        assert err.startswith(f"error: {tmp_path / 'mine.json'}: this is ") and message in err
    else:
        assert err == f"error: {tmp_path / 'mine.json'}:{line}: {message}\n"
