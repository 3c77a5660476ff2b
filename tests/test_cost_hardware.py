"""Hardware files and collectives."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sympy

from layoutcheck.cost import collectives
from layoutcheck.cost.hardware import Fit, hardware_names, load_hardware, read_hardware
from layoutcheck.errors import InputError
from layoutcheck.resources import rules_dir

NAMES = ("a100", "ascend-a2", "ascend-a3", "b200", "gb200", "h100", "h20", "h200", "mi300x")


def raw(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((rules_dir() / "hardware" / f"{name}.json").read_text())
    return data


def test_all_of_them_are_there() -> None:
    assert set(NAMES) <= set(hardware_names())


@pytest.mark.parametrize("name", NAMES)
def test_every_number_has_a_source(name: str) -> None:
    machine = load_hardware(name)
    parts = {f"peak {k}" for k in machine.peaks} | {"cores", "vector", "memory", "launch"}
    parts |= {f"tier {t.name}" for t in machine.tiers}
    assert set(machine.sources) == parts
    assert all(machine.sources.values())
    for variants in machine.kernels.values():
        assert all(fit.source for fit in variants.values())


@pytest.mark.parametrize("name", NAMES)
def test_constants_are_few_and_their_errors_stated(name: str) -> None:
    machine = load_hardware(name)
    fits = {(kernel, v): fit for kernel, variants in machine.kernels.items() for v, fit in variants.items()}
    fits |= {("collective", op): fit for op, fit in machine.collectives.items()}
    assert fits
    for (kernel, variant), fit in fits.items():
        assert len(fit.constants) <= (8 if kernel == "grouped_gemm" else 4), (kernel, variant)
        assert (fit.held_out is not None) == fit.measured, (kernel, variant)


def test_operations_of_one_library_share_their_structure() -> None:
    """Or numbers in it would be constants of a class that nobody counts."""
    for name in NAMES:
        fits = load_hardware(name).collectives.values()
        rings = [f.structure for f in fits if f.structure.get("form") == "protocols"]
        assert all(structure == rings[0] for structure in rings)
        assert not any(isinstance(v, (list, dict)) for f in fits for v in f.structure.values())


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"h100", "h200", "b200", "ascend-a3"}))
def test_what_was_not_measured_says_so(name: str) -> None:
    machine = load_hardware(name)
    assert not machine.measured
    fits = [f for v in machine.kernels.values() for f in v.values()] + list(machine.collectives.values())
    assert fits
    assert not any(f.measured for f in fits)
    assert all(f.source.startswith("borrowed from") for f in fits)


@pytest.mark.parametrize("name", hardware_names())
def test_products_in_single_precision_are_slower_than_in_half(name: str) -> None:
    machine = load_hardware(name)
    assert machine.vector <= machine.peak("float32") < machine.peak("bfloat16") / 2
    assert "peak float32" in machine.sources


def test_a_variant_without_constants_takes_the_nearest_and_is_not_measured() -> None:
    machine = load_hardware("h100")
    assert machine.fit("gemm", "float8_e4m3fn@vllm").measured
    assert machine.fit("gemm", "float8_e4m3fn@other") is machine.fit("gemm", "float8_e4m3fn")
    other = machine.fit("gemm", "int8")
    assert not other.measured
    assert "taken for int8" in other.source
    assumed = machine.fit("convolution")
    assert not assumed.measured
    assert assumed.source.startswith("assumed")


def test_aliases_and_peaks() -> None:
    assert load_hardware("H100_SXM") is not None
    assert load_hardware("h100_sxm").name == "h100"
    a3 = load_hardware("ascend-a3")
    # its own rows reach 327 TFLOP/s in bf16 and 593 TOP/s in int8
    assert a3.peak("bfloat16") == pytest.approx(353.9e6)
    assert a3.peak("int8") == pytest.approx(752e6)
    assert load_hardware("a100").peak("float8_e4m3fn") == load_hardware("a100").peak("bfloat16")
    with pytest.raises(InputError, match="no peak is known for int3"):
        a3.peak("int3")


def test_a_users_own_file_works_the_same_way(tmp_path: Path) -> None:
    data = raw("h100") | {"name": "mine", "borrow": ["b200"], "aliases": []}
    del data["kernels"]["gemm"]
    (tmp_path / "mine.json").write_text(json.dumps(data))
    machine = load_hardware(str(tmp_path / "mine.json"))
    assert machine.name == "mine"
    assert machine.fit("gemm").constants == load_hardware("b200").fit("gemm").constants
    assert not machine.fit("gemm").measured
    assert machine.fit("sparse_attention").measured


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("memory"), "lacks 'memory'"),
        (lambda d: d.update(format="x"), "not a hardware file"),
        (lambda d: d["cores"].update(value="many"), "cores is 'many', not an integer of at least 1"),
        (lambda d: d.update(borrow=["h100"]), "borrows from itself"),
        (lambda d: d.update(borrow=["abacus"]), "unknown hardware 'abacus'; known are a100"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, change: Any, message: str) -> None:
    data = raw("h100")
    change(data)
    (tmp_path / "bad.json").write_text(json.dumps(data))
    with pytest.raises(InputError, match=message):
        read_hardware(tmp_path / "bad.json")


def test_importing_needs_neither_numpy_nor_sympy() -> None:
    code = (
        "import sys, layoutcheck.cost.hardware, layoutcheck.cost.collectives, layoutcheck.cost.tables, "
        "layoutcheck.cost.fit, layoutcheck.cost.compiled, layoutcheck.cost.kernels.grouped_gemm, "
        "layoutcheck.cost.kernels.indexer, layoutcheck.cost.kernels.attention;"
        "print(sorted({'numpy', 'scipy', 'sympy', 'torch'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


# Collectives --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "sent"),
    [
        ("all_gather", 750),
        ("reduce_scatter", 750),
        ("all_reduce", 1500),
        ("all_to_all", 750),
        ("broadcast", 1000),
    ],
)
def test_wire_bytes(op: str, sent: int) -> None:
    assert collectives.wire_bytes(op, 1000, 4) == sent
    assert collectives.work(op, 1000, 4).wire == sent
    with pytest.raises(InputError, match="no collective is called 'all_talk'"):
        collectives.time_us(load_hardware("h100"), "all_talk", 1000, 4)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("op", collectives.COLLECTIVES)
def test_large_messages_cost_their_bytes_and_one_rank_costs_nothing(name: str, op: str) -> None:
    machine = load_hardware(name)
    assert collectives.time_us(machine, op, 2**20, 1) == 0
    for ranks in (2, 4, 8):
        large = collectives.time_us(machine, op, 2**30, ranks)
        least = collectives.wire_bytes(op, 2**30, ranks) / (1.6 * machine.tiers[0].bandwidth)
        assert least < large < 20 * least
        assert collectives.time_us(machine, op, 2**31, ranks) > 1.7 * large


def test_beyond_a_node_the_network_between_nodes_is_added() -> None:
    machine = load_hardware("h100")
    inside = collectives.time_us(machine, "all_gather", 2**26, 8)
    two = collectives.time_us(machine, "all_gather", 2**26, 16)
    # every rank receives 7/8 of an eighth over its own port of 50 GB/s
    assert two - inside == pytest.approx(10 + 2**26 / 8 / 2 / (0.7 * 50_000))
    reduced = collectives.time_us(machine, "all_reduce", 2**26, 16)
    assert reduced - collectives.time_us(machine, "all_reduce", 2**26, 8) == pytest.approx(2 * (two - inside))
    with pytest.raises(InputError, match="12 ranks do not fill nodes of 8"):
        collectives.time_us(machine, "all_gather", 1, 12)


def test_borrowed_constants_reach_no_further_than_a_node() -> None:
    """What was measured over the links of one supernode says nothing of another part's network between nodes."""
    machine = load_hardware("ascend-a2")
    for op in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all"):
        inside, two = (collectives.time_us(machine, op, 2**26, ranks) for ranks in (8, 16))
        apart = 2**26 / (1 if op == "all_to_all" else 8) / 2 * (2 if op == "all_reduce" else 1)
        assert two - inside > apart / machine.tiers[-1].bandwidth
    assert collectives.time_us(load_hardware("ascend-a3"), "all_gather", 2**26, 32) < 2 * inside


@pytest.mark.parametrize("op", ["all_gather", "reduce_scatter", "all_reduce"])
@pytest.mark.parametrize("ranks", [2, 4, 8, 16, 32])
def test_a_protocol_switch_is_a_cliff(op: str, ranks: int) -> None:
    machine = load_hardware("ascend-a3")
    share = int(collectives.fit_of(machine, op).constants["switch"])
    if ranks > 16:  # outside a node the ranks of a node count together
        share //= 16
    sizes = np.array([share * ranks, (share + 1) * ranks])
    below, above = (collectives.time_us(machine, op, int(size), ranks) for size in sizes)
    assert above - below > 25
    assert collectives.time_us(machine, op, sizes, ranks) == pytest.approx([below, above])
    size = sympy.Symbol("size", integer=True, positive=True)
    formula = collectives.time_us(machine, op, size, ranks)
    assert [float(formula.subs(size, int(x))) for x in sizes] == pytest.approx([below, above])


@pytest.mark.parametrize("op", ["all_gather", "reduce_scatter", "all_reduce", "all_to_all"])
def test_small_messages_cost_more_with_more_peers_up_to_a_node(op: str) -> None:
    machine = load_hardware("ascend-a3")
    found = [collectives.time_us(machine, op, 64, ranks) for ranks in range(2, 17)]
    assert all(b > 0.99 * a for a, b in pairwise(found))
    assert found[0] < found[2] < found[6] < found[-1]
    assert found[7] == pytest.approx(found[-1], rel=0.01)  # from 9 ranks on a node's latency


def test_an_all_reduce_is_at_most_its_two_steps() -> None:
    for name in NAMES:
        machine = load_hardware(name)
        for size in (2**12, 2**20, 2**28):
            found = collectives.cheaper_all_reduce_us(machine, size, 8)
            both = sum(collectives.time_us(machine, op, size, 8) for op in ("reduce_scatter", "all_gather"))
            assert found == min(both, collectives.time_us(machine, "all_reduce", size, 8))


def test_overlap_hides_what_fits() -> None:
    assert collectives.exposed_us(30.0, 20.0, overlapped=True) == 10.0
    assert collectives.exposed_us(30.0, 40.0, overlapped=True) == 0
    assert collectives.exposed_us(30.0, 40.0, overlapped=False) == 30.0


def test_without_constants_it_is_latency_and_bytes() -> None:
    machine = load_hardware("h100")
    found = collectives.time_us(machine, "all_gather", 8_000_000, 8, fit=Fit({}, {}))
    assert found == pytest.approx(7 * 2 + 7_000_000 / (0.7 * 450_000))


RING = ("collectives", "all_reduce")
EXPERTS = ("kernels", "grouped_gemm", "bfloat16")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("cores", "value"), 0, "cores is 0, not an integer of at least 1"),
        (("peaks", "bfloat16", "tflops"), -1, "the peak of bfloat16 is -1, not a number above 0"),
        (("memory", "tbps"), 0, "tbps of memory is 0, not a number above 0"),
        (("launch", "us"), True, "launch is True, not a number of at least 0"),
        (("tiers",), [], "tiers is no list of links"),
        (("tiers", 1, "gbps"), float("inf"), "gbps of node is inf, not a number above 0"),
        ((*RING, "constants", "near"), None, "all_reduce: the form protocols needs the constant near"),
        (
            (*RING, "constants", "switch"),
            "1 MiB",
            "all_reduce: the constant switch is '1 MiB', not a number of at least 0",
        ),
        (
            (*RING, "structure", "node"),
            1,
            "all_reduce: the structure node is 1, not an integer of at least 2",
        ),
        (
            (*EXPERTS, "constants", "compute"),
            0,
            "grouped_gemm/bfloat16: the constant compute is 0, not a number above 0",
        ),
        ((*EXPERTS, "structure", "knee"), 3, "grouped_gemm/bfloat16: the structure knee is 3, not 1, 2 or 4"),
        (
            (*EXPERTS, "structure", "rows"),
            [],
            "grouped_gemm/bfloat16: the structure rows is [], not a list of integers of at least 1",
        ),
    ],
)
def test_a_figure_that_no_formula_can_use_is_named(
    path: tuple[Any, ...], value: Any, message: str, tmp_path: Path
) -> None:
    data = json.loads((rules_dir() / "hardware" / "ascend-a3.json").read_text())
    *way, last = path
    into = data
    for key in way:
        into = into[key]
    if value is None:
        del into[last]
    else:
        into[last] = value
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(data))
    with pytest.raises(InputError) as caught:
        read_hardware(file)
    assert caught.value.message == message


def test_a_structure_that_nothing_reads_is_refused(tmp_path: Path) -> None:
    data = json.loads((rules_dir() / "hardware" / "ascend-a3.json").read_text())
    data["kernels"]["gemm"]["int8"]["structure"]["colums"] = 64
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(data))
    with pytest.raises(
        InputError, match="gemm/int8: no structure is called colums; there are cache, columns, "
    ):
        read_hardware(file)
