"""Decoders drawn for a contract keep it, and any contract says the same of a program in both of its forms."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st

import layoutcheck
from layoutcheck.contracts import Contract, check_contract
from layoutcheck.graph import Graph
from layoutcheck.infer.solver.analysis import analyse
from layoutcheck.testing import Decoder, Layers, contracts, decoders
from layoutcheck.testing.decoder import WRITTEN_FOR

NAMES = sorted(WRITTEN_FOR)


def found(graph: Graph, contract: Contract | str) -> set[str]:
    """Codes of what departs from a contract, of what is counted under something else too."""
    findings = check_contract(analyse(graph), contract)
    return {f.code for f in findings} | {code for f in findings for code, _ in f.consequences}


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), form=st.sampled_from(("expanded", "repeated")))
def test_decoders_keep_the_contract_that_they_are_drawn_for(
    name: str, data: st.DataObject, form: str
) -> None:
    decoder = data.draw(decoders(contract=name))
    assert decoder.contract == name
    assert found(decoder.build(form), name) == set()


@settings(max_examples=60)
@given(decoders(), st.sampled_from(NAMES))
def test_decoders_depart_from_contracts_of_other_styles(decoder: Decoder, name: str) -> None:
    """Also where nothing in them is what the contract speaks of (LC506)."""
    if WRITTEN_FOR[name][0] != decoder.style and (name, decoder.style) != ("sequence-parallel", "cp"):
        assert found(decoder.build(), name)


@settings(max_examples=200)
@given(decoders(), contracts())
def test_any_contract_says_the_same_of_both_forms(decoder: Decoder, contract: Contract) -> None:
    assert found(decoder.build("repeated"), contract) == found(decoder.build("expanded"), contract)


def test_contracts_are_kept_and_broken_at_times() -> None:
    graph = Decoder((Layers("moe", 2),)).build()
    analysis = analyse(graph)
    seen: Counter[str] = Counter()
    for code in ("LC501", "LC502", "LC503", "LC504", "LC506"):

        def broken(contract: Contract, code: str = code) -> bool:
            return any(f.code == code for f in check_contract(analysis, contract))

        find(contracts(), broken, settings=settings(max_examples=2_000))
        seen[code] += 1
    find(
        contracts(),
        lambda contract: not check_contract(analysis, contract),
        settings=settings(max_examples=2_000),
    )
    assert len(seen) == 5


def test_what_a_decoder_is_written_for() -> None:
    assert Decoder(style="tp").contract == "tensor-parallel"
    assert Decoder(style="sp").contract == "sequence-parallel"
    assert Decoder((Layers("dsa"),), style="sp").contract is None
    assert Decoder((Layers("dsa"), Layers("reuse")), style="cp", carried="pair").contract == "dsa-cp-prefill"
    report = layoutcheck.check(Decoder((Layers("dsa"),), style="cp").build(), contract="dsa-cp-prefill")
    # that the last norm's share leaves undeclared is a warning
    assert [f.code for f in report.findings if f.code.startswith("LC5")] == []
    assert not report.errors
