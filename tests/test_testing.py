"""layoutcheck.testing as its users meet it: strategies give what they promise, assertions fail with a reason."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

import layoutcheck
from layoutcheck import testing
from layoutcheck.graph import Graph, Node
from layoutcheck.layouts import Layout, render, state_of
from layoutcheck.regions import find_regions
from layoutcheck.testing import (
    Builder,
    Decoder,
    Layers,
    assert_equivalent,
    assert_well_typed,
    bodies,
    decoders,
    graphs,
    layouts,
    op_chains,
)
from layoutcheck.testing.chains import STEPS, Chain
from layoutcheck.testing.decoder import CARRIED, KINDS
from layoutcheck.testing.strategies import small_mesh


def test_the_public_names() -> None:
    for name in testing.__all__:
        assert getattr(testing, name) is not None
    assert set(testing.__all__) <= set(dir(testing))
    with pytest.raises(AttributeError):
        testing.nothing  # noqa: B018


def test_importing_it_needs_no_hypothesis() -> None:
    code = "import sys; sys.modules['hypothesis'] = None; from layoutcheck.testing import Decoder, assert_well_typed; "
    code += "assert_well_typed(Decoder().build())"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(layoutcheck.__file__).parents[1])


def test_importing_layoutcheck_does_not_import_it() -> None:
    code = "import sys, layoutcheck; assert not any(m.startswith('layoutcheck.testing') for m in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(layoutcheck.__file__).parents[1])


# ---- layouts


@settings(max_examples=200)
@given(layouts())
def test_layouts_are_layouts_of_rows_and_features(of: Layout) -> None:
    names = small_mesh().names()
    text = render(of, names)
    ways = 4 if "T/4" in text else 2 if "T/2" in text else 1
    assert of.shape[0] * ways == 16
    assert 2 <= of.rank <= 3
    assert not any(of.is_mixed(m) for m in names)


@pytest.mark.parametrize("state", ["Full", "Local", "Sharded", "Partial"])
@pytest.mark.parametrize("axis", [0, 1])
def test_every_state_occurs_over_every_group(state: str, axis: int) -> None:
    find(layouts(), lambda of: state_of(of, axis) == state, settings=settings(max_examples=2_000))


@given(layouts(partial=False))
def test_layouts_without_pending_sums(of: Layout) -> None:
    assert not of.partial


# ---- graphs


@settings(max_examples=150)
@given(op_chains(streams=2))
def test_chains_are_well_typed(chain: Chain) -> None:
    for form in ("expanded", "repeated"):
        assert_well_typed(chain.build(form).validate())


@pytest.mark.parametrize("step", sorted(STEPS))
def test_every_step_occurs(step: str) -> None:
    find(op_chains(), lambda chain: step in chain.steps, settings=settings(max_examples=5_000))


def test_wrong_chains_are_wrong_at_times_and_not_always() -> None:
    def errors(chain: Chain) -> bool:
        return layoutcheck.check(chain.build()).exit_code(False) == 1

    find(op_chains(wrong=True), errors, settings=settings(max_examples=500))
    find(op_chains(wrong=True), lambda chain: not errors(chain), settings=settings(max_examples=500))


@settings(max_examples=100)
@given(decoders(), st.sampled_from(("expanded", "repeated")))
def test_decoders_are_well_typed(decoder: Decoder, form: str) -> None:
    assert_well_typed(decoder.build(form).validate())


@settings(max_examples=60)
@given(decoders())
def test_recorded_shapes_are_the_computed_ones(decoder: Decoder) -> None:
    assert not [f for f in layoutcheck.check(decoder.build()).findings if f.code == "LC902"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("carried", CARRIED)
def test_every_kind_with_everything_it_can_carry(kind: str, carried: str) -> None:
    decoder = Decoder((Layers(kind, 2),), carried=carried, mtp=True)
    assert_well_typed(decoder.build("repeated"))
    assert find_regions(decoder.build("repeated"))[0].carried == (1 if carried == "hidden" else 2)


@given(bodies(kinds=("moe",)))
def test_kinds_can_be_chosen(layers: Layers) -> None:
    assert layers.kind == "moe" and layers.repeats >= 2


@settings(max_examples=40)
@given(graphs(form="repeated"))
def test_repeated_graphs_have_regions(graph: Graph) -> None:
    assert find_regions(graph)


@settings(max_examples=40)
@given(graphs(form="expanded"))
def test_expanded_graphs_have_none(graph: Graph) -> None:
    assert not find_regions(graph)


@settings(max_examples=40)
@given(graph=graphs())
def test_graphs_survive_saving(tmp_path_factory: pytest.TempPathFactory, graph: Graph) -> None:
    path = tmp_path_factory.mktemp("graphs") / "graph.json.gz"
    layoutcheck.save(graph, path)
    assert_equivalent(layoutcheck.load(path), graph)


def test_a_folded_graph_remembers_what_is_shared_when_saved(tmp_path: Path) -> None:
    folded = layoutcheck.fold(Decoder((Layers("dsa", 3),)).build())
    layoutcheck.save(folded, tmp_path / "folded.json")
    again = layoutcheck.load(tmp_path / "folded.json")
    assert again.config["regions"] == folded.config["regions"] != {}
    assert_equivalent(layoutcheck.expand(again), Decoder((Layers("dsa", 3),)).build())


# ---- assertions


def test_assert_well_typed_names_the_findings() -> None:
    b = Builder()
    x = b.input("x", (16, 32), layout="[T, 32]")
    graph = b.graph(b.all_gather(x))
    with pytest.raises(AssertionError, match="LC103 all_gather"):
        assert_well_typed(graph)


def test_assert_well_typed_with_warnings() -> None:
    graph = Decoder().build()
    add = next(n for n in graph.nodes if n.target == "aten.add.Tensor")
    stale = Node(add.name, add.op, add.target, add.args, {}, type(add.meta)((3, 5), "bfloat16"))  # type: ignore[call-arg,misc]
    graph.nodes[graph.nodes.index(add)] = stale
    assert_well_typed(graph)
    with pytest.raises(AssertionError, match="LC902"):
        assert_well_typed(graph, strict=True)


def test_assert_equivalent_prints_the_divergence() -> None:
    one, other = (Decoder((Layers("dense", n),)).build() for n in (2, 3))
    with pytest.raises(AssertionError, match="first divergence"):
        assert_equivalent(one, other)


def test_the_example_of_the_documentation(tmp_path: Path) -> None:
    """The example in docs/regions.md runs as it stands, and fails for a pass that gathers a residual in one form."""
    text = (Path(__file__).parent.parent / "docs" / "regions.md").read_text(encoding="utf-8")
    example = text.split("```python\n")[1].split("```")[0]
    assert "assert_equivalent" in example
    right = textwrap.dedent(example)
    namespace: dict[str, object] = {"my_pass": lambda graph: graph}
    exec(compile(right, "example", "exec"), namespace)
    namespace["test_my_pass"]()  # type: ignore[operator]

    def bad(graph: Graph) -> Graph:
        if find_regions(graph):
            return graph
        add = [i for i, n in enumerate(graph.nodes) if n.target == "aten.add.Tensor"][-1]
        graph.nodes[add] = Node(
            graph.nodes[add].name, "call_function", "aten.sub.Tensor", graph.nodes[add].args
        )
        return graph

    namespace["my_pass"] = bad
    # Not through hypothesis, which would look for a small decoder for long.
    inner = namespace["test_my_pass"].hypothesis.inner_test  # type: ignore[attr-defined]
    with pytest.raises(AssertionError, match="first divergence"):
        inner(Decoder())
