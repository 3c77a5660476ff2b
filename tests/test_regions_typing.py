"""Theorem E: a program with regions and the same program written out have the same layouts.

The last part shows that these tests fail where they have to: a marker made opaque, a residual gathered in one form only, a repeat
miscounted.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from support.pieces import pieces, run_piece

import layoutcheck
from layoutcheck.graph import Graph, Node, Ref
from layoutcheck.regions import expand, find_regions
from layoutcheck.regions.repeats import set_repeats
from layoutcheck.testing import (
    Builder,
    Decoder,
    Layers,
    Value,
    assert_equivalent,
    assert_same_typing,
    assert_well_typed,
    decoders,
    op_chains,
)
from layoutcheck.testing.chains import Chain

EXAMPLES = 1_000
NIGHTLY = 20_000


def check_chain(chain: Chain) -> None:
    """A chain typed with regions and written out, and both forms are one program."""
    graph = chain.build("repeated")
    assert_same_typing(graph)


def check_decoder(decoder: Decoder) -> None:
    """The same of a decoder; both forms are well typed."""
    graph = decoder.build("repeated")
    assert_same_typing(graph)
    assert_equivalent(graph, decoder.build("expanded"))


@settings(max_examples=EXAMPLES)
@given(op_chains(streams=2))
def test_random_bodies(chain: Chain) -> None:
    check_chain(chain)


@settings(max_examples=EXAMPLES // 4)
@given(op_chains(wrong=True))
def test_random_bodies_that_may_be_wrong(chain: Chain) -> None:
    check_rightness(chain)


@settings(max_examples=EXAMPLES // 5)
@given(decoders())
def test_random_decoders(decoder: Decoder) -> None:
    check_decoder(decoder)


def check_rightness(chain: Chain) -> None:
    """A chain that may be wrong is right or wrong in both forms."""
    assert_same_typing(chain.build("repeated"), layouts=False)


@pytest.mark.nightly
@pieces
def test_random_bodies_at_length(piece: int) -> None:
    run_piece(piece, NIGHTLY, check_chain, op_chains(streams=3, max_steps=12))


@pytest.mark.nightly
@pieces
def test_random_bodies_that_may_be_wrong_at_length(piece: int) -> None:
    run_piece(piece, NIGHTLY, check_rightness, op_chains(wrong=True, max_steps=12))


@pytest.mark.nightly
@pieces
def test_random_decoders_at_length(piece: int) -> None:
    run_piece(piece, NIGHTLY, check_decoder, decoders(max_stacks=3))


def _mixed(b: Builder, values: tuple[Value, ...]) -> tuple[Value, ...]:
    """Local rows and Full rows are carried beside each other."""
    local, full = values
    return b.add(local, b.silu(local)), b.add(full, b.all_gather(local))


def mixed(form: str, times: int = 3) -> Graph:
    """A graph whose region carries two values of different layouts."""
    b = Builder(expanded=form == "expanded")
    x = b.input("hidden_states", (b.tokens, 32))
    return b.graph(*b.repeat(_mixed, (b.share(x), x), times))


def test_two_carried_values_of_different_layouts_written_out() -> None:
    assert_well_typed(mixed("expanded"))
    assert_equivalent(mixed("repeated"), mixed("expanded"))


def test_two_carried_values_of_different_layouts() -> None:
    assert_same_typing(mixed("repeated"))


def test_a_carried_type_that_changes_from_repeat_to_repeat() -> None:
    """Rows and columns change places each time; three repeats end turned, four as they began."""

    def turn(b: Builder, values: tuple[Value, ...]) -> tuple[Value, ...]:
        (x,) = values
        return (b.call("aten.permute.default", x, (1, 0), shape=(x.shape[1], x.shape[0])),)

    for times in (3, 4):
        b = Builder(tokens=32)
        x = b.input("hidden_states", (32, 32))
        graph = b.graph(*b.repeat(turn, (b.norm(x),), times))
        assert_same_typing(graph)


@pytest.mark.parametrize("carried", [1, 2])
def test_a_nested_region_in_a_body_that_is_typed_again(carried: int) -> None:
    """The outer body is typed for rows and for columns, and the inner one in each."""

    def inner(b: Builder, values: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple(b.add(values[-1], b.silu(v)) for v in values)

    def outer(b: Builder, values: tuple[Value, ...]) -> tuple[Value, ...]:
        turned = [b.call("aten.permute.default", v, (1, 0), shape=v.shape) for v in values]
        return b.repeat(inner, tuple(turned), 3)

    for times in (2, 3, 4):
        b = Builder(tokens=32)
        x = b.input("hidden_states", (32, 32), layout="[T, 32]")
        graph = b.graph(*b.repeat(outer, tuple([b.silu(x)] * carried), times))
        assert len(find_regions(graph)) == 2
        assert_same_typing(graph)
        typed = layoutcheck.check(graph)
        wanted = ["[32, T]", "[T, 32]"][times % 2 == 0]
        assert typed.layout_text(graph.nodes[-2].name) == f"bf16{wanted}"


@pytest.mark.parametrize("times", [10, 10_000])
def test_a_body_is_typed_once(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of calls that are typed does not depend on the number of repeats."""
    from layoutcheck.infer.solver import run

    graph = set_repeats(Decoder((Layers("dense", 2),)).build("repeated"), (times,))
    typed: list[Any] = []
    plain = run.apply

    def counted(*args: Any) -> Any:
        typed.append(args[1])
        return plain(*args)

    monkeypatch.setattr(run, "apply", counted)
    layoutcheck.check(graph)
    body = find_regions(graph)[0]
    assert 0 < len(typed) < 4 * (body.ends[0] - body.begins[0])


@pytest.mark.shared
@pytest.mark.parametrize(
    "name",
    [
        "glm5_prefill_repeated_e32.before",
        "glm5_prefill_repeated.before",
        "glm5_prefill_repeated.after",
        "dsv3_bf16_prefill_repeated.before",
        "dsv3_bf16_prefill_repeated.after",
        "glm5_prefill_mtp1_repeated.before",
    ],
)
def test_reference_graphs(shared_graphs: Path, name: str) -> None:
    assert_same_typing(layoutcheck.load(shared_graphs / f"{name}.json.gz"))


# ---- these tests can fail


OPAQUE = """
tensor_cast._internal_mark_region_{kind}(x, id)
    code opaque
"""
COPY = """
tensor_cast._internal_copy_region(x, id)
    code opaque
"""


@pytest.mark.parametrize("text", [OPAQUE.format(kind="begin"), OPAQUE.format(kind="end"), COPY])
def test_an_opaque_marker_is_seen(tmp_path: Path, text: str) -> None:
    (tmp_path / "opaque.rules").write_text(text)
    graph = Decoder((Layers("dense", 3), Layers("moe", 2)), style="sp").build("repeated")
    assert_same_typing(graph)
    with pytest.raises(AssertionError, match="with regions"):
        assert_same_typing(graph, rules=[tmp_path])


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chain=op_chains())
def test_an_opaque_marker_is_seen_in_random_bodies(tmp_path: Path, chain: Chain) -> None:
    """An opaque op needs all rows, so that Local ones may not be carried through it."""
    assume(chain.local)
    (tmp_path / "opaque.rules").write_text(COPY)
    with pytest.raises(AssertionError):
        assert_same_typing(chain.build("repeated"), rules=[tmp_path])


def gather_residual(graph: Graph, at: int) -> tuple[Graph, str]:
    """The graph with the `at`-th residual addition's first operand gathered in front of it."""
    nodes = [Node(n.name, n.op, n.target, n.args, dict(n.kwargs), n.meta) for n in graph.nodes]
    adds = [i for i, n in enumerate(nodes) if n.target == "aten.add.Tensor"]
    index = adds[at % len(adds)]
    add = nodes[index]
    value = add.args[0]
    gather = Node("gathered", "call_function", "tensor_cast.all_gather.default", (value, 0, 0, (0, 1, 2, 3)))
    add.args = (Ref("gathered"), *add.args[1:])
    return Graph([*nodes[:index], gather, *nodes[index:]], "", 0, graph.config), add.name


@pytest.mark.parametrize("at", range(6))
def test_a_residual_gathered_in_one_form_only_is_named(at: int) -> None:
    decoder = Decoder((Layers("dense", 3),), style="sp")
    broken, add = gather_residual(decoder.build("expanded"), at)
    found = layoutcheck.diff(decoder.build("repeated"), broken)
    assert not found
    assert found.divergence is not None and found.divergence.kind == "op"
    assert found.divergence.b.node == "gathered"
    assert "all_gather" in found.divergence.b.call
    assert f"repeat {at // 2 + 1} of 3" in found.divergence.a.place
    assert found.divergence.a.node is not None and add.startswith("add")
    assert found.traffic[("all_gather", "tp")][0] != found.traffic[("all_gather", "tp")][1]


MISCOUNTS: list[Callable[[int], int]] = [lambda n: n - 1, lambda n: n + 1]


@pytest.mark.parametrize("wrong", MISCOUNTS, ids=["one less", "one more"])
@settings(max_examples=60)
@given(decoder=decoders(max_stacks=1))
def test_a_miscounted_repeat_is_seen(wrong: Callable[[int], int], decoder: Decoder) -> None:
    graph = decoder.build("repeated")
    number = wrong(find_regions(graph)[0].repeats)
    assert not layoutcheck.equivalent(set_repeats(graph, (number,)), decoder.build("expanded"))
    assert not layoutcheck.equivalent(expand(graph, repeats=(number,)), graph)
