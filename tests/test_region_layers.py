"""Layers are numbered on from repeat to repeat, in module paths and names of weights; folding takes the numbers back."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import layoutcheck
from layoutcheck.graph import Graph, InputSpec, Location
from layoutcheck.regions import expand, find_regions, fold
from layoutcheck.regions.layers import Numbering, moved, numbering, with_room
from layoutcheck.testing import Builder, Decoder, Layers, Value, decoders, op_chains
from layoutcheck.testing.chains import Chain


def modules(graph: Graph) -> list[tuple[str, str | None]]:
    """The calls in order, with their modules."""
    return [(n.target, n.module) for n in graph.nodes if n.op == "call_function"]


def without_record(graph: Graph) -> Graph:
    return attrs.evolve(graph, config={k: v for k, v in graph.config.items() if k != "regions"})


@settings(max_examples=200)
@given(decoders())
def test_written_out_layers_have_the_paths_of_layers_that_were_never_folded(decoder: Decoder) -> None:
    """Several carried values, nested regions, several stacks, a block behind them."""
    expanded = decoder.build("expanded")
    assert modules(expand(decoder.build("repeated"))) == modules(expanded)
    folded = fold(expanded, nested=True)
    written_out = modules(expand(folded))
    assert {m for _, m in written_out} == {m for _, m in modules(expanded)}
    if not decoder.fused:  # else ops that straddle two layers are in parts
        assert Counter(written_out) == Counter(modules(expanded))


@settings(max_examples=200)
@given(op_chains(streams=3))
def test_chains_of_several_streams(chain: Chain) -> None:
    expanded = chain.build("expanded")
    assert modules(expand(chain.build("repeated"))) == modules(expanded)
    folded = fold(expanded)
    if all(record["layers"] for record in folded.config.get("regions", {}).values()):
        assert Counter(modules(expand(folded))) == Counter(modules(expanded))
    else:
        # a part of a layer that comes twice in it is no layer: its repeats are not numbered
        assert any(chain.steps.count(step) > 1 for step in chain.steps), chain.steps


@given(decoders(), st.lists(st.integers(1, 5), min_size=2, max_size=2))
def test_other_numbers_of_repeats_move_what_stands_behind(decoder: Decoder, numbers: list[int]) -> None:
    numbers = numbers[: len(decoder.stack)]
    stack = tuple(attrs.evolve(layers, repeats=n) for layers, n in zip(decoder.stack, numbers))
    wanted = attrs.evolve(decoder, stack=stack).build("expanded")
    assert modules(expand(decoder.build("repeated"), repeats=numbers)) == modules(wanted)


def test_names_of_weights_and_places_in_the_source_go_with_the_layers() -> None:
    graph = Decoder((Layers("dense", 3),)).build("repeated")
    weights = [n.name for n in graph.nodes if n.name.startswith("w")]
    named = {w: InputSpec("parameter", f"model.layers.0.{w}.weight") for w in weights}
    at = Location("layers.py", 7, "forward")
    nodes = [attrs.evolve(n, location=at) if n.op == "call_function" else n for n in graph.nodes]
    found = expand(attrs.evolve(graph, inputs=named, nodes=nodes))
    names = {spec.fqn for spec in found.inputs.values()}
    behind = weights[-1]  # the last norm's, behind the layers
    body = [w for w in weights if w != behind]
    assert names == {f"model.layers.{i}.{w}.weight" for i in range(3) for w in body} | {
        f"model.layers.0.{behind}.weight"
    }
    assert {n.location for n in found.nodes if n.op == "call_function"} == {at}
    assert {spec.fqn for spec in fold(found).inputs.values()} == {
        f"model.layers.0.{w}.weight" for w in weights
    }


def _straddling(b: Builder, values: tuple[Value, ...]) -> tuple[Value, ...]:
    """From the middle of a layer to the middle of the next one."""
    (x,) = values
    b.module = f"model.layers.{b.layer}.mlp"
    x = b.add(x, b.linear(x, 32))
    b.layer += 1
    b.module = f"model.layers.{b.layer}.self_attn"
    return (b.add(x, b.linear(b.norm(x), 32)),)


def test_a_body_that_begins_in_the_middle_of_a_layer_is_one_layer_long() -> None:
    graphs = []
    for form in (True, False):
        b = Builder(expanded=form)
        graphs.append(b.graph(*b.repeat(_straddling, (b.input("x", (16, 32)),), 4)))
    assert modules(expand(graphs[1])) == modules(graphs[0])
    assert Counter(modules(expand(fold(graphs[0])))) == Counter(modules(graphs[0]))


def test_experts_one_by_one_keep_their_layer() -> None:
    """A region over experts counts experts: folding has seen which number grows."""

    def expert(b: Builder, values: tuple[Value, ...]) -> tuple[Value, ...]:
        b.module = f"model.layers.3.mlp.experts.{b.layer}"
        b.layer += 1
        return (b.add(values[0], b.silu(b.linear(values[0], 32))),)

    b = Builder(expanded=True)
    graph = b.graph(*b.repeat(expert, (b.input("x", (16, 32)),), 5))
    folded = fold(graph)
    assert [r.repeats for r in find_regions(folded)] == [5]
    assert folded.config["regions"]["0"]["layers"] == {"model.layers.3.mlp.experts": 1}
    assert modules(expand(folded)) == modules(graph)


@pytest.mark.shared
@pytest.mark.parametrize(
    "name",
    [
        *("llama_tiny.pt2", "qwen3_moe_tiny.pt2", "glm_moe_dsa_tiny.pt2", "deepseek_v3_true4_meta.pt2"),
        *("mega_sp_ws4_r0.pt2", "tp_hf_llama_ws4.json.gz"),
    ],
)
def test_exports_have_their_paths_back(shared_graphs: Path, name: str) -> None:
    graph = layoutcheck.load(shared_graphs / name)
    folded = fold(graph)
    for record in (folded, without_steps_of(folded)):
        found = expand(record)
        assert Counter(modules(found)) == Counter(modules(graph))
        assert Counter(s.fqn for s in found.inputs.values()) == Counter(s.fqn for s in graph.inputs.values())


def without_steps_of(graph: Graph) -> Graph:
    """As an exporter writes regions, which says nothing of numbers."""
    record = {k: {"own": v["own"]} for k, v in graph.config["regions"].items()}
    return attrs.evolve(graph, config={**graph.config, "regions": record})


PATHS = st.lists(st.sampled_from(("model", "layers", "mlp", "0", "7")), min_size=1, max_size=5).map(".".join)


@given(PATHS, st.integers(0, 5), st.integers(0, 5), st.integers(1, 4))
def test_moving_twice_is_moving_once(path: str, one: int, two: int, step: int) -> None:
    steps = {"model.layers": step}
    assert moved(moved(path, [(steps, one)]), [(steps, two)]) == moved(path, [(steps, one + two)])
    assert moved(path, [(steps, one), (steps, two)]) == moved(path, [(steps, one + two)])
    assert moved(path, [(steps, 0)]) == path


@given(st.lists(PATHS | st.none(), min_size=1, max_size=5), st.integers(0, 4), st.integers(2, 5))
def test_steps_are_found_again(paths: list[str | None], step: int, repeats: int) -> None:
    steps = {"model.layers": step}
    rows = [[moved(p, [(steps, n)]) if p else p for p in paths] for n in range(repeats)]
    found = numbering(rows)
    assert found.odd == {}
    assert [[moved(p, [(found.steps, n)]) if p else p for p in paths] for n in range(repeats)] == rows


def test_paths_that_follow_no_step_have_none() -> None:
    for rows in (
        [["a.0"], ["a.1"], ["a.3"]],
        [["a.0", "a.0"], ["a.1", "a.2"]],
        [["a.0", "a.0"], ["a.1", "a.0"]],
        [["a.0", None], ["a.1", "b"]],
    ):
        assert numbering(rows) == Numbering({}, {})


def test_a_few_paths_need_not_follow() -> None:
    rows: list[list[str | None]] = [["a.0", "a.0", "a.0", "a.1.norm"], ["a.1", "a.1", "a.1", "norm"]]
    assert numbering(rows) == Numbering({"a": 1}, {(1, 3): "norm"})


def test_paths_that_do_not_follow_are_kept_through_a_file(tmp_path: Path) -> None:
    """The last layer's addition is that of the norm behind the layers, and so of no layer."""
    graph = Decoder((Layers("dense", 3),), carried="pair").build("expanded")
    folded = fold(graph)
    assert [r.repeats for r in find_regions(folded)] == [3]
    (odd,) = folded.config["regions"]["0"]["odd"].values()
    assert odd == {"2": None}
    layoutcheck.save(folded, tmp_path / "g.json")
    assert modules(expand(layoutcheck.load(tmp_path / "g.json"))) == modules(graph)
    assert with_room("a.3.b", [{"a": (3, 2)}]) == "a.5.b"
    assert with_room("a.2.b", [{"a": (3, 2)}]) == "a.2.b"
    assert with_room(None, [{"a": (3, 2)}]) is None
