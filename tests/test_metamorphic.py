"""What does not change a program does not change its findings."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

import pytest
from support import engine, shared
from support.builder import DIALECTS, Json
from support.faults import FAULTS, SIZES, Fault, Size
from support.programs import PROGRAMS, build
from support.scale import Ambiguous, scale_tokens
from support.transform import anonymise, rename, strip_shapes

FAST = (
    "qwen3_8b_bf16_prefill_expanded4.after.json.gz",
    "dsv3_bf16_prefill_repeated.after.json.gz",
    "dsv32_prefill_repeated.after.json.gz",
    "glm5_prefill_rank3_expanded5.after.json.gz",
    "tp_llama_sp_dynamic.json.gz",
    "mega_dsa_cp_ws4_r0.pt2",
    "llama_tiny.pt2",
)
# graphs that hold no other number of tokens: axes that do not meet, or one token a sequence
UNSCALED = {
    "dsv32_prefill_repeated.after.json.gz": "axes of 256 and 4096 meet",
    "dsv3_bf16_prefill_expanded5.after.json.gz": "axes of 4096 and 256 meet",
    "glm5_prefill_mtp1_repeated.after.json.gz": "axes of 4096 and 256 meet",
    "glm5_prefill_noembtp_expanded6.after.json.gz": "axes of 256 and 4096 meet",
    "glm5_prefill_rank3_expanded5.after.json.gz": "axes of 256 and 0 meet",
    "glm5_decode_dp8tp4_spon.after.json.gz": "as many sequences as tokens",
    "glm5_decode_dp8tp4_spon.before.json.gz": "as many sequences as tokens",
}
STATIC = [name for name in shared.ALL_ROOTS if name.endswith((".before.json.gz", ".after.json.gz"))]
FAST_SCALED = (
    "qwen3_8b_bf16_prefill_expanded4.after.json.gz",
    "dsv3_bf16_prefill_repeated.after.json.gz",
    "glm5_prefill_expanded6.after.json.gz",
)

Findings = list[tuple[str, str, str]]


def errors(graph: Json, names: dict[str, str] | None = None) -> Findings:
    """(code, node, severity) of the error findings, with nodes under new names where given."""
    found = engine.errors(engine.check(graph))
    return sorted((engine.code(f), (names or {}).get(f.node, f.node), engine.severity(f)) for f in found)


def check_all(graph: Json) -> None:
    """Names, recorded shapes and origins, one after the other and all at once."""
    expected = errors(graph)
    assert errors(strip_shapes(graph)) == expected
    assert errors(anonymise(graph)) == expected
    renamed, names = rename(graph, seed=7)
    assert errors(renamed) == errors(graph, names)
    bare, names = rename(anonymise(strip_shapes(graph)), seed=8)
    assert errors(bare) == errors(graph, names)


def split(names: Iterable[str], fast: tuple[str, ...]) -> list[object]:
    """The fast ones as they are, the others under the nightly marker."""
    return [pytest.param(n, marks=[] if n in fast else [pytest.mark.nightly]) for n in names]


@pytest.mark.shared
@pytest.mark.parametrize("name", split(shared.ALL_ROOTS, FAST))
def test_reference_graph_under_other_names(name: str) -> None:
    check_all(shared.load(name))


@pytest.mark.shared
@pytest.mark.parametrize("name", split((n for n in STATIC if n not in UNSCALED), FAST_SCALED))
@pytest.mark.parametrize("ratio", [Fraction(2), Fraction(3, 2)], ids=["twice", "half-more"])
def test_reference_graph_with_other_tokens(name: str, ratio: Fraction) -> None:
    """At 3/2 the 4096 tokens of a graph become as many as a hidden size of 6144."""
    if "4100" in name and ratio.denominator != 1:
        pytest.skip("4100 tokens in shares of 257: 3/2 of a share is no integer")
    graph = shared.load(name)
    assert errors(scale_tokens(graph, ratio)) == errors(graph)


@pytest.mark.shared
@pytest.mark.parametrize(("name", "reason"), UNSCALED.items())
def test_why_a_graph_is_not_scaled(name: str, reason: str) -> None:
    with pytest.raises(Ambiguous, match=reason):
        scale_tokens(shared.load(name), Fraction(2))


BROKEN = [
    pytest.param(fault, dialect, id=f"{fault.key}-{dialect}") for fault in FAULTS for dialect in DIALECTS
]


@pytest.mark.parametrize(("fault", "dialect"), BROKEN)
def test_fault_under_other_names(fault: Fault, dialect: str) -> None:
    check_all(fault.faulty(dialect, fault.sizes[0])[0])


@pytest.mark.parametrize(("fault", "dialect"), BROKEN)
def test_fault_at_other_sizes(fault: Fault, dialect: str) -> None:
    """T, tp, hidden size and head counts change together; the program, node for node, does not."""
    seen = {}
    for size in fault.sizes:
        graph = fault.faulty(dialect, size)[0]
        shape = tuple((n["name"], n["target"]) for n in graph["nodes"])
        found = errors(graph)
        assert seen.setdefault(shape, found) == found, size.label


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_clean_program_stays_clean(name: str, dialect: str) -> None:
    size = SIZES[0]
    check_all(build(name, dialect, size))


@pytest.mark.parametrize("T", [1, 2, 3, 5, 8, 64, 128])
@pytest.mark.parametrize("p", [1, 2, 4, 8])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_clean_at_any_size(T: int, p: int, dialect: str) -> None:
    """T = 1, T below p, T no multiple of p, T equal to the hidden size (64), p = 1."""
    size = Size(f"T{T}p{p}", T=T, p=p, F=64)
    for name in ("tensor_parallel", "sequence_parallel", "entry_slice"):
        assert errors(build(name, dialect, size)) == []


SYMBOLIC = Size("symbolic", symbol="T")


@pytest.mark.parametrize("name", ["tensor_parallel", "sequence_parallel"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_clean_with_a_symbol_for_tokens(name: str, dialect: str) -> None:
    report = engine.check(build(name, dialect, SYMBOLIC), assumptions=["T % 4 == 0"])
    assert not engine.errors(report), engine.describe(report)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_uneven_symbol_is_reported(dialect: str) -> None:
    """A reduce_scatter of T rows over four ranks needs T to be a multiple of four."""
    found = errors(build("sequence_parallel", dialect, SYMBOLIC))
    assert found and {code for code, _, _ in found} == {"LC401"}


@pytest.mark.parametrize("key", ["1", "5", "7", "39", "45", "47"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_fault_with_a_symbol_for_tokens(key: str, dialect: str) -> None:
    fault = next(f for f in FAULTS if f.key == key)
    graph, codes, node = fault.faulty(dialect, SYMBOLIC)
    roots = engine.error_roots(engine.check(graph, assumptions=["T % 4 == 0"]))
    assert [f.node for f in roots] == [node]
    assert engine.code(roots[0]) in codes
