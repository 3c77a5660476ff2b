"""Placement by structure alone: other names, no recorded shapes, other token counts give the same conversions."""

from __future__ import annotations

from fractions import Fraction

import pytest
from support import engine, shared
from support.builder import Json
from support.scale import scale_tokens
from support.transform import anonymise, rename, strip_shapes

from layoutcheck.placement.annotated import AnnotatedGraph, annotate

CASES = [
    ("glm5_prefill_repeated_e32.before.json.gz", "dsa-cp-prefill", None),
    ("glm5_prefill_4100tok_expanded6.before.json.gz", "dsa-cp-prefill", None),
    ("glm5_decode_dp8tp4_spon.before.json.gz", "mc2-decode", None),
    ("dsv3_bf16_prefill_repeated.before.json.gz", "sequence-parallel", None),
    ("qwen3_8b_prefill_expanded4.before.json.gz", "sequence-parallel", None),
    ("llama_tiny.pt2", "sequence-parallel", 4),
    ("qwen3_moe_tiny.pt2", "tensor-parallel", 2),
    ("glm_moe_dsa_tiny.pt2", "dsa-cp-query-local", 4),
    ("deepseek_v3_true4_meta.pt2", "sequence-parallel", 16),
]
pytestmark = pytest.mark.shared


def placed(graph: Json, contract: str, tp: int | None) -> AnnotatedGraph:
    return annotate(engine.load(graph), contract, groups=None if tp is None else {"tp": tp})


def conversions(found: AnnotatedGraph, names: dict[str, str]) -> list[tuple[str, str, frozenset[str], int]]:
    """What was inserted, under the original names."""
    back = {new: old for old, new in names.items()}

    def known(name: str) -> str:
        # a part of a fused op that was taken apart is named after it
        stem = next((n for n in back if name == n or name.startswith(f"{n}_")), None)
        return name if stem is None else back[stem] + name[len(stem) :]

    return [
        (i.kind, known(i.source), frozenset(known(r) for r in i.readers), i.times) for i in found.insertions
    ]


@pytest.mark.parametrize(("name", "contract", "tp"), CASES)
def test_other_names(name: str, contract: str, tp: int | None) -> None:
    graph = shared.load(name)
    other, names = rename(anonymise(graph), seed=5)
    wanted, found = placed(graph, contract, tp), placed(other, contract, tp)
    assert conversions(found, names) == conversions(wanted, {})
    assert len(found.shards) == len(wanted.shards)
    assert found.check().findings == ()


@pytest.mark.parametrize(("name", "contract", "tp"), CASES)
def test_no_recorded_shapes(name: str, contract: str, tp: int | None) -> None:
    graph = shared.load(name)
    found = placed(strip_shapes(graph), contract, tp)
    assert conversions(found, {}) == conversions(placed(graph, contract, tp), {})
    assert found.check().findings == ()


@pytest.mark.parametrize(("name", "contract", "tp"), CASES[:1] + CASES[3:5])
@pytest.mark.parametrize("ratio", [Fraction(2), Fraction(3, 2)], ids=["twice", "half-more"])
def test_other_token_counts(name: str, contract: str, tp: int | None, ratio: Fraction) -> None:
    graph = shared.load(name)
    found = placed(scale_tokens(graph, ratio), contract, tp)
    assert found.counts() == placed(graph, contract, tp).counts()
    assert found.check().findings == ()
