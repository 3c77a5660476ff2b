"""`compare`: the figures of contracts as formulas, and at sizes; `annotate` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from layoutcheck.cli import main
from layoutcheck.placement.compare import Comparison, compare

SHARED = Path(__file__).parent.parent.parent / "shared" / "graphs"
pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="the reference graphs are not beside the project")
MIB = 1 << 20


def test_gathering_latents_instead_of_hidden_states() -> None:
    """Hidden states are 6144 values of two bytes a token, latent keys and the indexer's key 512 + 64 + 128."""
    graph = SHARED / "glm_moe_dsa_true4_meta.pt2"
    hidden, latent = compare(
        graph, ["dsa-cp-prefill", "dsa-cp-query-local"], at={"T": 4096}, groups={"tp": 16}
    )
    assert isinstance(hidden, Comparison) and isinstance(latent, Comparison)
    moe = [next(p for p in c.parts if p.name == "3") for c in (hidden, latent)]
    t, p = 4096, 16
    received = [m.at(hidden.values)["received"] for m in moe]
    assert received == [6144 * 2 * t // p * (p - 1), 704 * 2 * t // p * (p - 1)]
    assert [round(r / MIB, 2) for r in received] == [45.0, 5.16]
    flops = [m.at(hidden.values)["attention"] for m in moe]
    assert flops[0] == p * flops[1]
    # from formulas: at other sizes as well
    other = {**hidden.values, "T": 1000}
    assert moe[1].at(other)["received"] == 704 * 2 * 63 * 15
    assert hidden.total.collectives == {"all_gather": 8, "reduce_scatter": 3}
    assert latent.total.collectives == {"all_gather": 16, "reduce_scatter": 3}
    assert latent.live < hidden.live


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    graph = str(SHARED / "qwen3_8b_bf16_prefill_expanded4.before.json.gz")
    assert main(["compare", graph, "--contracts", "tensor-parallel,sequence-parallel"]) == 0
    out = capsys.readouterr().out
    assert "tensor-parallel, at most" in out
    assert "  a layer of 0-2 " in out
    assert "2 all_gather, 2 reduce_scatter" in out
    assert "2 all_reduce" in out
    assert main(["compare", graph, "--contracts", "tensor-parallel", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["format"] == "layoutcheck-comparison/1"
    assert document["contracts"][0]["parts"][-1]["name"] == "total"


def test_annotate_writes_what_checks_clean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = str(SHARED / "qwen3_8b_bf16_prefill_expanded4.before.json.gz")
    out = tmp_path / "out.json.gz"
    assert main(["annotate", graph, "--contract", "sequence-parallel", "-o", str(out)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("sequence-parallel over tp: 9 all_gather, 9 reduce_scatter\n")
    assert "(min-cut, nothing is cheaper)" in text or "(forced, nothing is cheaper)" in text
    assert main(["check", "--contract", "sequence-parallel", str(out)]) == 0
    assert "No findings." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--contract", "dsa-cp-prefill"],
            "dsa-cp-prefill is for decoders with attention over keys that an indexer's top-k picked",
        ),
        (["--contract", "nosuch"], "nosuch"),
        (["--contract", "sequence-parallel", "-o", "x.txt"], "the name has to end in .json or .json.gz"),
        (["--contract", "sequence-parallel", "--at", "T=x"], "the size of T is a number from 1"),
        (["--contract", "sequence-parallel", "--explain-placement", "nosuch"], "there is no node 'nosuch'"),
        (["--contract", "sequence-parallel", "--hardware", "nosuch"], "nosuch"),
    ],
)
def test_bad_input_is_one_error(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = str(SHARED / "qwen3_8b_bf16_prefill_expanded4.before.json.gz")
    assert main(["annotate", graph, *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1


def test_no_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["annotate", str(SHARED / "llama_tiny.pt2"), "--contract", "sequence-parallel"]) == 2
    assert "name it with --group tp=SIZE" in capsys.readouterr().err
