"""Theorem R on decoders: annotating the repeated graph is annotating the expanded one, in price, counts, layouts and check."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.pieces import pieces, run_piece

import layoutcheck
from layoutcheck.contracts import load_contract
from layoutcheck.contracts.model import Boundary, Contract
from layoutcheck.errors import InputError
from layoutcheck.findings import Severity
from layoutcheck.graph import Graph, Node, Ref
from layoutcheck.placement.annotated import AnnotatedGraph, annotate
from layoutcheck.regions import find_regions
from layoutcheck.testing import Decoder, Layers, decoders

NIGHTLY = 20_000
SLOW = list(HealthCheck)
PLAIN = ("sequence-parallel", "tensor-parallel")


def contracts() -> Any:
    """Shipped contracts, whole and with boundaries left out, so that the cheapest placement differs at the ends."""

    def part(name: str) -> Any:
        whole = load_contract(name)
        some = st.lists(st.sampled_from(whole.boundaries), unique=True, max_size=8)
        return st.one_of(st.just(whole), some.map(lambda b: attrs.evolve(whole, boundaries=tuple(b))))

    return st.sampled_from(PLAIN).flatmap(part)


def stepwise(counts: dict[str, int]) -> dict[str, int]:
    """Counts with an all_reduce as the reduce_scatter and the all_gather that cost the same."""
    out = dict(counts)
    whole = out.pop("all_reduce", 0)
    for kind in ("reduce_scatter", "all_gather"):
        out[kind] = out.get(kind, 0) + whole
    return out


def result(graph: Graph, contract: Contract | str) -> AnnotatedGraph | None:
    try:
        return annotate(graph, contract)
    except InputError:
        return None


def same(decoder: Decoder, contract: Contract | str, repeated: Graph | None = None) -> AnnotatedGraph | None:
    """The annotated repeated graph, which is the annotated expanded graph; None where neither can be."""
    a = result(decoder.build("repeated") if repeated is None else repeated, contract)
    b = result(decoder.build("expanded"), contract)
    assert (a is None) == (b is None)
    if a is None or b is None:
        return None
    assert a.price == b.price
    assert stepwise(a.counts()) == stepwise(b.counts())
    if a.counts() == b.counts():
        assert layoutcheck.equivalent(a.graph, b.graph)
    assert codes(a, b.counts()) == codes(b, a.counts())
    return a


def codes(found: AnnotatedGraph, others: dict[str, int]) -> set[str]:
    """Codes of what checking says; notes only where the placements are one, since which collectives there are settles doubts."""
    alike = found.counts() == others
    return {f.code for f in found.check().findings if alike or f.severity is not Severity.NOTE}


@settings(max_examples=100, deadline=None, suppress_health_check=SLOW)
@given(decoders(max_repeats=5), contracts())
def test_repeated_and_expanded_decoders(decoder: Decoder, contract: Contract) -> None:
    same(decoder, contract)


@pytest.mark.nightly
@pieces
def test_repeated_and_expanded_decoders_at_length(piece: int) -> None:
    run_piece(piece, NIGHTLY, same, decoders(max_repeats=5, max_stacks=3), contracts())


@pytest.mark.parametrize("contract", ["dsa-cp-prefill", "dsa-cp-entry-slice", *PLAIN])
@pytest.mark.parametrize("carried", ["hidden", "pair", "state"])
@pytest.mark.parametrize(
    "stack",
    [
        (Layers("dsa", 3),),
        (Layers("reuse", 3, period=4),),
        (Layers("reuse", 2, period=4, nested=True),),
        (Layers("dsa", 2), Layers("reuse", 3, period=3)),
    ],
    ids=["dsa", "period of four", "nested", "two bodies"],
)
def test_sparse_attention_with_caches(stack: tuple[Layers, ...], carried: str, contract: str) -> None:
    """Bodies of several layers of which one picks the positions, caches that the output reads, an MTP block behind."""
    for mtp in (False, True) if contract in PLAIN else (False,):
        found = same(Decoder(stack, style="tp", carried=carried, mtp=mtp), contract)
        assert found is not None
        written = layoutcheck.expand(found.graph)
        layers = sum(s.repeats * (s.period if s.kind == "reuse" else 1) for s in stack)
        caches = [n for n in written.nodes if n.op == "placeholder" and n.name.startswith("kv_cache")]
        assert len(caches) == layers


def only(*boundaries: Boundary) -> Contract:
    return attrs.evolve(load_contract("sequence-parallel"), boundaries=boundaries)


def ends_written() -> tuple[Decoder, Contract]:
    """Every norm but the first is on shares, since the values before it are."""
    return Decoder((Layers("dense", 6),), style="tp"), only(Boundary("residual", "output", carry="Local"))


def test_the_first_repeat_is_written_out_where_it_is_cheaper() -> None:
    """What comes in is Full: the first norm runs on it as it is, so that of twelve blocks eleven gather, and the output does."""
    decoder, contract = ends_written()
    found = same(decoder, contract)
    assert found is not None
    (region,) = find_regions(found.graph)
    assert region.repeats == 5
    assert found.counts() == {"slice": 1, "reduce_scatter": 12, "all_gather": 11 + 1}
    assert found.counts(executed=False) == {"slice": 1, "reduce_scatter": 4, "all_gather": 3 + 1}


def test_annotating_what_was_written_out_changes_nothing() -> None:
    decoder, contract = ends_written()
    found = annotate(decoder.build("repeated"), contract)
    again = annotate(found.graph, contract)
    assert again.price == found.price
    assert len(again.graph.nodes) == len(found.graph.nodes)
    assert layoutcheck.equivalent(again.graph, found.graph)


# ---- these tests can fail


OPAQUE = """
tensor_cast._internal_copy_region(x, id)
    code opaque
"""


def test_an_opaque_marker_is_seen(tmp_path: Path) -> None:
    (tmp_path / "opaque.rules").write_text(OPAQUE)
    decoder = Decoder((Layers("dense", 3),), style="tp")
    right = annotate(decoder.build("expanded"), "sequence-parallel")
    try:
        found = annotate(decoder.build("repeated"), "sequence-parallel", rules=[tmp_path])
    except InputError:
        return
    assert found.counts() != right.counts()


def gathered(graph: Graph, at: int) -> Graph:
    """The graph with the `at`-th addition's first operand gathered."""
    adds = [n for n in graph.nodes if n.target == "aten.add.Tensor"]
    add = adds[at]
    nodes = []
    for node in graph.nodes:
        if node is add:
            ranks = tuple(range(4))
            nodes.append(
                Node(
                    "residual", "call_function", "tensor_cast.all_gather.default", (node.args[0], 0, 0, ranks)
                )
            )
            node = attrs.evolve(node, args=(Ref("residual"), *node.args[1:]))
        nodes.append(node)
    return attrs.evolve(graph, nodes=nodes)


@pytest.mark.parametrize("at", [0, 1, 5])
def test_a_residual_gathered_in_one_form_only_is_seen(at: int) -> None:
    decoder = Decoder((Layers("dense", 3),), style="tp")
    a = annotate(decoder.build("repeated"), "sequence-parallel")
    b = annotate(decoder.build("expanded"), "sequence-parallel")
    assert layoutcheck.equivalent(a.graph, b.graph)
    assert not layoutcheck.equivalent(a.graph, gathered(b.graph, at))


def test_a_miscounted_repeat_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    from layoutcheck.placement import program_problem

    plain = program_problem.body_runs

    def less(*args: Any) -> Any:
        return [(low, high, times - 1) for low, high, times in plain(*args)]

    decoder = Decoder((Layers("dense", 3),), style="tp")
    same(decoder, "sequence-parallel")
    monkeypatch.setattr(program_problem, "body_runs", less)
    with pytest.raises(AssertionError):
        same(decoder, "sequence-parallel")
