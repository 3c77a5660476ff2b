"""Options and refusals of `annotate` and `compare`, on a shipped export of one device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from layoutcheck.cli import main
from layoutcheck.errors import InputError
from layoutcheck.placement.annotated import annotate
from layoutcheck.testing import Decoder
from layoutcheck.testing.decoder import Layers

EXPORT = str(Path(__file__).parent.parent / "examples" / "exports" / "glm5_two_layers.pt2")
CONTRADICTING = {
    "format": "layoutcheck-contract/1",
    "name": "odd",
    "boundaries": [
        {"role": "norm.input", "operand": "output", "require": "Local"},
        {"role": "attention.input", "operand": "input", "require": "Full", "via": "none"},
    ],
}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--rank", "9"],
            "error: --rank: there is no rank 9 among 4 ranks; where there are more, say so with --world",
        ),
        (["--rank", "3", "--world", "2"], "error: --rank: there is no rank 3 among 2 ranks"),
        (["--at", "X=2"], "error: --at: the graph has no symbolic size X: there is T"),
    ],
)
def test_options_that_fit_nothing(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["annotate", EXPORT, "--tp", "4", "--contract", "sequence-parallel", *arguments]) == 2
    assert capsys.readouterr().err.splitlines() == [message]


def test_boundaries_that_contradict_each_other_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "odd.json"
    path.write_text(json.dumps(CONTRADICTING))
    assert main(["annotate", EXPORT, "--tp", "4", "--contract", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: no placement holds odd: ")
    assert "(attention.input); before it attention.input input wants Full" in line


def test_a_contract_that_does_not_apply_leaves_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "odd.json"
    path.write_text(json.dumps(CONTRADICTING))
    options = ["compare", EXPORT, "--tp", "4", "--contracts"]
    assert main([*options, f"{path},sequence-parallel"]) == 0
    out = capsys.readouterr().out
    assert "odd: no figures: no placement holds odd: " in out
    assert "sequence-parallel, at most" in out
    assert main([*options, f"sequence-parallel,{path}", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [c["contract"] for c in document["contracts"]] == ["sequence-parallel"]
    assert [c["contract"] for c in document["refused"]] == ["odd"]
    assert main([*options, str(path)]) == 2
    assert main([*options, "sequence-parallel,no-such-contract"]) == 2


def test_one_token_is_not_shared() -> None:
    """No size tells a share of one token from all of it; where nothing is shared, one token is as good as many."""
    layers = (Layers(kind="dense", repeats=1, heads=4, inner=8, period=1, nested=False),)
    graph = Decoder(
        stack=layers,
        width=16,
        tokens=1,
        ranks=4,
        rank=0,
        style="tp",
        carried="hidden",
        fused=False,
        mtp=False,
    ).build()
    given = {"tokens": [("hidden_states", 0)]}
    with pytest.raises(InputError, match="a single token can't be shared among the 4 ranks of tp"):
        annotate(graph, "sequence-parallel", **given)
    assert annotate(graph, "tensor-parallel", **given).check().errors == ()
