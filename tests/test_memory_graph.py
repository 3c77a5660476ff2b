"""The ledger of a typed graph: weights and caches by layout, the peak as a function of T, regions, the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from layoutcheck.cli.memory_cmd import memory_command
from layoutcheck.errors import InputError
from layoutcheck.infer.solver.analysis import Analysis, analyse
from layoutcheck.json_form import graph_from_json
from layoutcheck.memory.extents import Extents
from layoutcheck.memory.formula import evaluate
from layoutcheck.memory.graph_ledger import GraphMemory, graph_memory
from layoutcheck.memory.graph_verdict import graph_verdict, total_at
from layoutcheck.memory.liveness import liveness_peak, resolve
from layoutcheck.memory.sizes_text import formula_of
from layoutcheck.symbols import cdiv, smin, sym
from layoutcheck.symbols import evaluate as evaluate_size

GRAPHS = Path(__file__).resolve().parents[2] / "shared" / "graphs"
TP = list(range(4))
T, H, F = 64, 32, 64


class Doc:
    """Nodes of a layoutcheck-graph/1 document."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []

    def input(self, name: str, *shape: int, dtype: str = "float16") -> str:
        meta = {"shape": list(shape), "dtype": dtype}
        self.nodes.append({"name": name, "op": "placeholder", "target": name, "args": [], "meta": meta})
        return name

    def call(self, name: str, target: str, *args: Any) -> str:
        encoded = [{"node": a} if isinstance(a, str) and a in self.names() else a for a in args]
        self.nodes.append(
            {"name": name, "op": "call_function", "target": target, "args": encoded, "meta": None}
        )
        return name

    def names(self) -> set[str]:
        return {node["name"] for node in self.nodes}

    def give(self, *names: str) -> dict[str, Any]:
        args = [[{"node": name} for name in names]]
        self.nodes.append({"name": "output", "op": "output", "target": "output", "args": args, "meta": None})
        return {
            "format": "layoutcheck-graph/1",
            "source": "test",
            "rank": 0,
            "config": {"tp": 4},
            "nodes": self.nodes,
        }


def typed(document: dict[str, Any]) -> Analysis:
    return analyse(
        graph_from_json(document),
    )


def shared(name: str) -> GraphMemory:
    path = GRAPHS / f"{name}.json.gz"
    if not path.is_file():
        pytest.skip(f"the reference graph {name} is not here")
    return graph_memory(
        analyse(
            str(path),
        )
    )


def decoder(layers: int, repeated: bool) -> dict[str, Any]:
    """A decoder of feed-forward layers on tokens of an embedding, each layer also scaled by a table of the tokens."""
    doc = Doc()
    ids = doc.input("ids", T, dtype="int64")
    table = doc.input("table", 1000, H)
    doc.input("scales", T, H)
    here = range(1) if repeated else range(layers)
    for n in here:
        doc.input(f"up{n}", H, F // 4)
        doc.input(f"down{n}", F // 4, H)
    x = doc.call("x", "aten.embedding.default", table, ids)
    factor = doc.call("factor", "aten.mul.Tensor", "scales", 2.0)
    if repeated:
        x = doc.call("begin", "tensor_cast._internal_mark_region_begin.default", x, 0)
    for n in here:
        up = doc.call(f"h{n}", "aten.mm.default", x, f"up{n}")
        act = doc.call(f"a{n}", "aten.silu.default", up)
        down = doc.call(f"d{n}", "aten.mm.default", act, f"down{n}")
        whole = doc.call(f"r{n}", "tensor_cast.all_reduce.default", down, 0, TP)
        scaled = doc.call(f"s{n}", "aten.mul.Tensor", whole, factor)
        x = doc.call(f"y{n}", "aten.add.Tensor", x, scaled)
    if repeated:
        x = doc.call("end", "tensor_cast._internal_mark_region_end.default", x, 0)
        for n in range(layers - 1):
            x = doc.call(f"copy{n}", "tensor_cast._internal_copy_region.default", x, 0)
    last = doc.call("last", "aten.mul.Tensor", x, 3.0)
    return doc.give(last)


def live_by_step(memory: GraphMemory) -> list[int]:
    """Live bytes at every step; at a repeat, the peak inside it."""
    acts = memory.activations
    steps = len(memory.analysis.program.kind)
    delta = [0] * (steps + 1)
    for interval, first, last in resolve(acts.intervals, "test"):
        assert not isinstance(interval.bytes, str)
        size = evaluate_size(interval.bytes, memory.symbols)
        delta[first] += size
        delta[last + 1] -= size
    found, live = [], 0
    for step in range(steps):
        live += delta[step]
        found.append(live)
    for region in acts.regions:
        body = liveness_peak([*region.intervals, *region.carried], region.regions, memory.symbols)
        found[region.at] += body.bytes
    return found


def test_weights_by_layout_with_divisor_and_formula() -> None:
    ledger = graph_memory(typed(decoder(2, False))).ledger
    ups, downs = ledger.find("mm(mat2)")
    assert (ups.category, ups.split, ups.count, ups.bytes) == (
        "tensor-parallel",
        "1/4 (tp)",
        2,
        2 * H * F // 4 * 2,
    )
    assert ups.formula == "2*32*(64/tp)*2" and downs.formula == "2*(64/tp*32*2)"
    (table,) = ledger.find("embedding(weight)")
    assert (table.category, table.split, table.formula, table.bytes) == (
        "replicated",
        "replicated",
        "1000*32*2",
        64000,
    )
    for line in ledger.lines:
        assert evaluate(line.formula, ledger.symbols) == line.bytes
    assert ledger.by_category()["inputs"] == T * 8 + T * H * 2


def test_the_peak_is_a_formula_in_tokens_of_a_static_graph() -> None:
    memory = graph_memory(typed(decoder(2, False)))
    # the residual, the reduced value, the scaled one and the table, each [T, 32] in 16 bit
    assert formula_of(memory.formula) == "256*T" and memory.peak.bytes == 256 * T
    assert memory.place == "r0" and dict(memory.peak.live)["r0"] == T * H * 2
    assert memory.activations.is_collective("r0") and not memory.activations.is_collective("x")
    other = graph_memory(typed(decoder(2, False)), {"T": 1000})
    assert other.peak.bytes == 256_000 and other.ledger.find("peak")[0].bytes == 256_000


@pytest.mark.parametrize("layers", [2, 5])
def test_repeated_and_expanded_give_the_same_bytes(layers: int) -> None:
    repeated = graph_memory(typed(decoder(layers, True)))
    expanded = graph_memory(typed(decoder(layers, False)))
    assert repeated.ledger.by_category() == expanded.ledger.by_category()
    assert {s for s, _ in repeated.envelope.candidates} == {s for s, _ in expanded.envelope.candidates}
    steps, starts = live_by_step(repeated), range(5, 5 + 6 * layers, 6)
    body = repeated.activations.bodies[0]
    by_layer = [max(steps[body.begin : body.end]), *[steps[k] for k in body.copies]]
    flat = live_by_step(expanded)
    offset = len(flat) - 2 - 6 * layers
    assert by_layer == [max(flat[s - 5 + offset : s + 1 + offset]) for s in starts]


def test_a_region_without_copies_and_one_that_hands_on_an_inner_value() -> None:
    once = graph_memory(typed(decoder(1, True)))
    assert once.ledger.by_category() == graph_memory(typed(decoder(1, False))).ledger.by_category()
    document = decoder(3, True)
    nodes = document["nodes"]
    last = next(n for n in nodes if n["name"] == "last")
    last["args"] = [{"node": "copy1"}, {"node": "r0"}]
    memory = graph_memory(typed(document))
    # what is read after the region is that of the last repeat: alive to its end, and beyond
    held = [
        r
        for r in memory.activations.regions
        if any(i.name == "r0" and i.last == r.steps - 1 for i in r.intervals)
    ]
    assert [r.at for r in held] == [memory.activations.bodies[0].copies[-1]]
    assert any(i.name == "r0 (last repeat)" for i in memory.activations.intervals)


def test_sizes_as_formulas() -> None:
    t = sym("T")
    for size in (0, 7, t, 3 * t * t - 2 * t + 1, cdiv(t, 16) * 12, smin(t, 2048) * t, (t // 3) * 5):
        for value in (1, 15, 16, 4097):
            assert evaluate(formula_of(size), {"T": value}) == evaluate_size(size, {"T": value})


def test_lifted_sizes_give_the_recorded_numbers_back() -> None:
    for name in ("glm5_prefill_4100tok_expanded6.before", "glm5_decode_dp8tp4_spon.before"):
        memory = shared(name)
        extents = Extents(memory.analysis.mesh)
        lifted = 0
        for of in memory.analysis.solution.typing.types:
            size = extents.bytes_of(of)
            if getattr(of, "shape", None) is not None and not isinstance(size, int):
                count = 1
                for n in of.shape:
                    count *= n
                from layoutcheck.units import DTYPE_BYTES

                assert evaluate_size(size, extents.values) == count * DTYPE_BYTES[of.dtype]
                lifted += 1
        assert lifted > 100


def test_verdict_of_a_graph_at_its_edge() -> None:
    memory = graph_memory(typed(decoder(2, False)))
    total = memory.ledger.total()
    assert graph_verdict(memory, total).fits and not graph_verdict(memory, total - 1).fits
    verdict = graph_verdict(memory, total + 10_000)
    assert verdict.symbol == "T" and verdict.most_tokens > T
    assert total_at(memory, "T", verdict.most_tokens) <= verdict.capacity
    assert total_at(memory, "T", verdict.most_tokens + 1) > verdict.capacity
    assert graph_verdict(memory, 1000).most_tokens == 0
    half = next(o for o in verdict.options if o.change.startswith("steps of"))
    assert half.saving == total - graph_memory(typed(decoder(2, False)), {"T": T // 2}).ledger.total()
    local = [o for o in verdict.options if "local over tp" in o.change]
    assert local and all(o.saving > 0 and o.wire_bytes > 0 for o in local)


def run(*words: str) -> tuple[int, str]:
    runner = CliRunner()
    with runner.isolation() as streams:
        code = memory_command.main(list(words), standalone_mode=False)
        return int(code or 0), streams[0].getvalue().decode()


def test_the_command_on_a_graph(tmp_path: Path) -> None:
    file = tmp_path / "graph.json"
    file.write_text(json.dumps(decoder(3, True)))
    code, text = run(str(file))
    assert code == 0 and "= 256*T  with T = 64" in text and "written by a collective" in text
    code, text = run(str(file), "--format", "json", "--at", "T=128", "--memory", "1MiB")
    record = json.loads(text)
    assert code == 0 and record["peak"]["bytes"] == 256 * 128 and record["peak"]["node"] == "r0"
    assert record["peak"]["formula"] == "256*T" and record["verdict"]["fits"]
    assert record["total_bytes"] == sum(record["by_category"].values())
    assert run(str(file), "--memory", "10KB")[0] == 1
    assert "activations" in run(str(file), "--format", "bars")[1]
    with pytest.raises(InputError, match="no size depends on S"):
        run(str(file), "--at", "S=3")
    with pytest.raises(InputError, match="not a number"):
        run(str(file), "--at", "T=x")


def test_a_graphs_activations_join_a_models_ledger(tmp_path: Path) -> None:
    file = tmp_path / "graph.json"
    file.write_text(json.dumps(decoder(3, True)))
    words = ["qwen3-8b", "--tp", "4", "--graph", str(file), "--format", "json", "--memory", "64GiB"]
    code, text = run(*words)
    record = json.loads(text)
    assert code == 0 and record["by_category"]["activations"] == 256 * T
    assert record["verdict"]["slack_bytes"] == 64 * 2**30 - record["total_bytes"]
    assert record["total_bytes"] == record["static_bytes"] + 256 * T
    # the peak is 256 bytes a token of the step
    most = (64 * 2**30 - record["static_bytes"]) // 256
    assert (record["verdict"]["step_symbol"], record["verdict"]["most_step_tokens"]) == (
        "T",
        min(most, 1 << 24),
    )
    tight = record["static_bytes"] + 256 * 1000 + 255
    _, text = run(*words[:5], "--memory", f"{tight}B")
    assert "largest T of a step that fits: 1000" in text


def test_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file, out = tmp_path / "graph.json", tmp_path / "bar.svg"
    file.write_text(json.dumps(decoder(2, True)))
    assert run(str(file), "--picture", str(out), "--memory", "1MiB")[0] == 0
    drawn = out.read_text()
    assert drawn.lstrip().startswith("<?xml") and "</svg>" in drawn
    with pytest.raises(InputError, match="a picture is a"):
        run(str(file), "--picture", str(tmp_path / "bar.txt"))


def test_78_layers_repeated_and_expanded() -> None:
    repeated, expanded = (
        shared("glm5_prefill_repeated_e32.before"),
        shared("glm5_prefill_expanded78_e32.before"),
    )
    apart = {
        name: expanded.ledger.by_category()[name] - size
        for name, size in repeated.ledger.by_category().items()
    }
    # one bias of the gate, 32 x 4 bytes, is read by no op: of such an input nothing says that its layer is repeated
    assert apart.pop("replicated") == 74 * 32 * 4
    assert set(apart.values()) == {0}
    assert {s for s, _ in repeated.envelope.candidates} == {s for s, _ in expanded.envelope.candidates}
    steps, flat = live_by_step(repeated), live_by_step(expanded)
    layers = [
        peak
        for body in repeated.activations.bodies
        for peak in (max(steps[body.begin : body.end]), *[steps[k] for k in body.copies])
    ]
    program = expanded.analysis.program
    starts = [k for k, op in enumerate(program.op) if op >= 0 and "mlapo" in program.instances[op].target]
    ends = [*starts[1:], len(program.kind)]
    assert layers == [max(flat[a:b]) for a, b in zip(starts, ends)] and len(layers) == 78


def test_the_peak_of_17723_nodes() -> None:
    analysis = shared("glm5_prefill_expanded78_e32.before").analysis
    assert len(analysis.graph.nodes) == 17_723
    memory = graph_memory(analysis)
    assert memory.peak.bytes == memory.envelope.at(memory.symbols)[0] == 94464 * 4096
