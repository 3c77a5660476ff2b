"""The law of repairs, over random programs with one fault: doing what a repair says makes its finding go away and brings no
other. What a repair says is read from its words alone (see `support.repairing`)."""

from __future__ import annotations

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from support import engine
from support.builder import DIALECTS, GraphBuilder, Json, Val
from support.mutate import mutate
from support.repairing import Repair, Unclear

P, H, F, HEADS, HEAD = 4, 8, 16, 2, 4
COLUMNS = (f"[{F}/{P}@tp, {H}]", f"[{H}, {F}/{P}@tp]")
SHARDS = (f"[{HEADS * HEAD * P}/{P}@tp, {H}]", f"[{H}, {HEADS * HEAD * P}/{P}@tp]")


def block(b: GraphBuilder, x: Val, kind: str, local: bool) -> Val:
    """One residual block; a sharded one gathers the tokens where they are a share."""
    h = b.norm(x)
    if kind == "silu":
        return b.add(x, b.silu(h))
    if local:
        h = b.all_gather(h)
    y = b.mlp(h, F // P, COLUMNS) if kind == "mlp" else b.attention(h, HEADS, HEAD, declared=SHARDS)
    return b.add(x, b.reduce_scatter(y) if local else b.all_reduce(y))


@st.composite
def programs(draw: st.DrawFn) -> tuple[Json, str]:
    """A right program over four ranks, its shards declared, and its dialect."""
    dialect = draw(st.sampled_from(DIALECTS))
    tokens = draw(st.sampled_from([16, 8, 12]))
    b = GraphBuilder({"tp": P}, rank=draw(st.integers(0, P - 1)), T=tokens, dialect=dialect)
    local = draw(st.booleans())
    if draw(st.booleans()):
        x = b.input("x", (tokens, H), layout=f"[T, {H}]")
        x = b.rank_slice(x) if local else x
    elif local:
        x = b.input("x", (tokens // P, H), layout=f"[T/{P}@tp, {H}]")
    else:
        x = b.all_reduce(b.input("x", (tokens, H), layout=f"[T, {H}] +tp"))
    for kind in draw(st.lists(st.sampled_from(["mlp", "silu", "attention"]), min_size=1, max_size=3)):
        x = block(b, x, kind, local)
    whole = b.all_gather(x) if local and draw(st.booleans()) else x
    b.output([whole], [f"[T/{P}@tp, {H}]" if local and whole is x else f"[T, {H}]"])
    return b.graph(), dialect


@given(programs())
@settings(max_examples=50, deadline=None)
def test_programs_are_right(program: tuple[Json, str]) -> None:
    report = engine.check(program[0])
    assert not engine.errors(report), engine.describe(report)


def law(program: tuple[Json, str], seed: int, data: st.DataObject) -> None:
    """Make a fault, carry out one of the repairs of one of its findings, check again from scratch."""
    graph, dialect = program
    fault = mutate(graph, seed, strip=False)
    if fault is None:
        return
    report = engine.check(fault.graph)
    choices = [(f, fix) for f in engine.errors(report) for fix in f.fixes if fix.verified]
    if not choices:
        event("no repair that leaves nothing")
        return
    finding, fix = data.draw(st.sampled_from(choices))
    try:
        repaired = Repair(fault.graph, report, finding, dialect).done(fix.text)
    except Unclear as unclear:
        event(f"unclear: {unclear}")
        return
    event(f"{finding.code} {fix.text}")
    known = {(f.code, f.node) for f in engine.errors(report)}
    known |= {pair for f in report.findings for pair in f.consequences}
    after = engine.check(repaired)
    left = {(f.code, f.node) for f in engine.errors(after)}
    said = f"{fault.kind} at {fault.node}: {finding.code} {finding.node}: {fix.text}"
    assert (finding.code, finding.node) not in left, f"{said}\n{engine.describe(after)}"
    assert left <= known, f"{said}\n{engine.describe(after)}"


@settings(max_examples=150, deadline=None)
@given(programs(), st.integers(0, 1 << 30), st.data())
def test_a_repair_repairs(program: tuple[Json, str], seed: int, data: st.DataObject) -> None:
    law(program, seed, data)


@pytest.mark.nightly
@settings(max_examples=3_000, deadline=None)
@given(programs(), st.integers(0, 1 << 30), st.data())
def test_three_thousand_repairs_repair(program: tuple[Json, str], seed: int, data: st.DataObject) -> None:
    law(program, seed, data)
