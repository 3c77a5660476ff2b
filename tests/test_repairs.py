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


# ---- what is printed of them


def fixes(b: GraphBuilder, node: str) -> list[tuple[str, str, int]]:
    """Words, price and times of the repairs of the finding at a node."""
    (finding,) = [f for f in engine.check(b.graph()).findings if f.node == node]
    return [(fix.text, fix.bytes, fix.times) for fix in finding.fixes]


def test_equal_calls_name_their_own_operands() -> None:
    b = GraphBuilder()
    x = b.input("x", (16, 8), layout="[T, 8] +tp")
    for i in range(3):
        x = (
            b.all_reduce(b.add(b.silu(x), b.input(f"p{i}", (16, 8), layout="[T, 8] +tp")))
            if i == 2
            else b.silu(x)
        )
        x = b.multiply(x, b.input(f"q{i}", (16, 8), layout="[T, 8] +tp")) if i < 2 else x
    b.output([x])
    for node, operand in (("silu", "x"), ("silu_1", "mul"), ("silu_2", "mul_1")):
        assert [text for text, _, _ in fixes(b, node)][:1] == [f"all_reduce over tp of {operand} first"]


def test_equal_moves_name_their_own_collectives() -> None:
    b = GraphBuilder()
    inputs = [b.input(name, (16, 8), layout="[T, 8] +tp") for name in "xy"]
    b.output([b.all_reduce(b.silu(x)) for x in inputs])
    assert fixes(b, "silu")[0] == ("move all_reduce in front of silu", "0", 1)
    assert fixes(b, "silu_1")[0] == ("move all_reduce_1 in front of silu_1", "0", 1)


@pytest.mark.parametrize("copies", [0, 1, 5])
def test_a_repeated_body_pays_for_every_run(copies: int) -> None:
    def mark(what: str, x: Val) -> Val:
        return b.call(f"tensor_cast._internal_{what}.default", x, 0, shape=x.shape)

    b = GraphBuilder()
    h = mark("mark_region_begin", b.input("x", (16, 8), layout="[T, 8]"))
    h = mark("mark_region_end", b.add(h, b.all_reduce(b.all_reduce(b.mlp(b.norm(h), 4, COLUMNS)))))
    for _ in range(copies):
        h = mark("copy_region", h)
    b.output([h])
    assert fixes(b, "all_reduce_1") == [("leave this collective out", "-384", 1 + copies)]


def test_sizes_stay_symbols() -> None:
    b = GraphBuilder(T="T")
    b.output([b.all_gather(b.input("x", ("T", 8), layout="[T, 8]"))])
    assert fixes(b, "all_gather") == [("leave this collective out", "-48*T", 1)]


def test_repairs_that_leave_something_give_way_to_those_that_do_not() -> None:
    b = GraphBuilder()
    x = b.input("x", (16, 8), layout="[T, 8] +tp")
    b.output([b.all_reduce(b.silu(x))])
    (finding,) = engine.check(b.graph()).findings
    assert all(fix.verified and not fix.leaves for fix in finding.fixes)
    b = GraphBuilder()
    x, y = (b.input(name, (16, 8), layout="[T, 8] +tp") for name in "xy")
    b.output([b.add(b.silu(x), y)])
    left = {
        (f.node, fix.leaves) for f in engine.check(b.graph()).errors for fix in f.fixes if f.node == "silu"
    }
    assert left == {("silu", (("LC201", "add"),))}


def test_warnings_of_what_a_rule_made_up_are_counted_under_its_error() -> None:
    b = GraphBuilder()
    x = b.input("x", (4, 8), layout="[T/4@tp, 8]")
    b.output(b.call_many("aten.split_with_sizes.default", x, [8, 8], metas=[((8, 8), "bfloat16")] * 2))
    (finding,) = engine.check(b.graph()).findings
    assert (finding.code, finding.consequences) == ("LC101", (("LC107", "output"),))


def test_warnings_that_stand_by_themselves_are_not() -> None:
    b = GraphBuilder()
    x = b.input("x", (4, 8), layout="[T/4@tp, 8]")
    shard = b.input("h", (16, 2), layout="[T, 8/4@tp]")
    b.output([b.call("aten.cumsum.default", x, 0, shape=(4, 8)), b.silu(shard)])
    assert [(f.code, f.node) for f in engine.check(b.graph()).findings] == [
        ("LC106", "cumsum"),
        ("LC107", "output"),
    ]


def test_one_constant_slice_is_one_finding() -> None:
    """What reads it in many places is repaired with it."""
    b = GraphBuilder(rank=1)
    x = b.input("x", (16, 8), layout="[T, 8]")
    mine, fixed = b.rank_slice(x), b.silu(b.slice(x, 0, 4))
    for _ in range(4):
        mine = b.add(mine, fixed)
    b.output([mine])
    (finding,) = engine.check(b.graph()).findings
    assert [fix.text for fix in finding.fixes] == ["slice at rank(tp)*4 instead of slice_1"]
    assert finding.details == ("counter-example  p=4, T=16, rank 1: got tokens 0..3, want 4..7",)


def test_a_collective_upstream_is_run_over_the_whole_group() -> None:
    b = GraphBuilder({"tp": 4, "half": 2}, ranks={"tp": [0, 1, 2, 3], "half": [0, 1]}, dialect="c10d")
    x = b.all_reduce(b.input("x", (16, 8), layout="[T, 8] +tp"), "half")
    b.output([b.add(x, b.input("y", (16, 8), layout="[T, 8]"))])
    texts = [f.fixes[0].text for f in engine.check(b.graph()).errors]
    assert texts == ["run all_reduce over tp instead"] or texts == ["run it over tp instead"]


def test_pieces_that_were_joined_along_another_axis() -> None:
    b = GraphBuilder()
    x, w = b.input("x", (16, 8), layout="[T, 8]"), b.weight((8,), "w", "[8]")
    parts = b.call_many("aten.chunk.default", x, 4, 1, metas=[((16, 2), "bfloat16")] * 4)
    wrong = b.call("aten.cat.default", parts, 0, shape=(64, 2))
    b.output([b.call("tensor_cast.rms_norm.default", wrong, w, 1e-6, shape=(64, 2))])
    (finding,) = engine.check(b.graph()).errors
    assert [(fix.text, fix.bytes) for fix in finding.fixes] == [("leave chunk and cat out", "0")]
