"""Memory and cost of a body that carries several values: as often as it runs, whatever it carries, and as when it is written out."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings

from layoutcheck.cost.lift import lift
from layoutcheck.graph import Graph
from layoutcheck.infer.solver.analysis import analyse
from layoutcheck.memory.activations import bodies_of
from layoutcheck.memory.graph_ledger import GraphMemory, graph_memory
from layoutcheck.regions import expand
from layoutcheck.testing import Builder, Decoder, Layers, decoders, op_chains
from layoutcheck.testing.chains import Chain


def memory_of(graph: Graph) -> GraphMemory:
    return graph_memory(analyse(graph))


def calls_of(graph: Graph) -> Counter[tuple[str, str]]:
    """How often each kernel runs, by op."""
    found: Counter[tuple[str, str]] = Counter()
    for term in lift(analyse(graph)).terms:
        found[term.kernel, term.op] += term.count
    return found


def compare(repeated: Graph, expanded: Graph) -> None:
    one, other = memory_of(repeated), memory_of(expanded)
    assert one.ledger.by_category() == other.ledger.by_category()
    assert one.peak.bytes == other.peak.bytes
    assert calls_of(repeated) == calls_of(expanded)


@settings(max_examples=150)
@given(op_chains(streams=3))
def test_chains_with_several_streams(chain: Chain) -> None:
    compare(chain.build("repeated"), chain.build("expanded"))


@settings(max_examples=100)
@given(decoders())
def test_decoders(decoder: Decoder) -> None:
    graph = decoder.build("repeated")
    compare(graph, expand(graph))


def test_a_body_runs_once_a_repeat_not_once_a_carried_value() -> None:
    for carried in ("hidden", "pair", "state"):
        graph = Decoder((Layers("dense", 5),), carried=carried).build("repeated")
        (body,) = bodies_of(analyse(graph).program)
        assert (body.runs, len(body.rounds), len(body.begins)) == (5, 4, 1 + (carried != "hidden"))
        assert len(body.copies) == 4


def test_a_value_that_is_handed_on_twice_lies_in_memory_once() -> None:
    def body(b: Builder, values: tuple) -> tuple:  # type: ignore[type-arg]
        x = b.add(values[0], b.silu(values[1]))
        return x, x

    graphs = []
    for form in (False, True):
        b = Builder(expanded=form)
        x = b.silu(b.input("x", (16, 32), layout="[T, 32]"))
        graphs.append(b.graph(*b.repeat(body, (x, x), 4)))
    compare(*graphs)
