"""A group size that is a symbol: one check says what every numeric size says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engine import check, code

from layoutcheck.symbols import Assumptions, Size, evaluate

Json = dict[str, Any]
FACTS = ["T % p == 0", "F % p == 0", "p >= 2"]
FAULTS = ("", "no_gather", "no_scatter", "two_gathers", "all_reduce_of_full")


class Decoder:
    """A sequence-parallel pair of layers in sizes that are numbers, or texts of symbols."""

    def __init__(self, numbers: dict[str, int] | None, fault: str) -> None:
        self.numbers, self.fault = numbers, fault
        self.nodes: list[Json] = []

    def size(self, text: str) -> Any:
        """`T`, `p`, `T/p`, `F/p`: as text, or its value."""
        top, _, below = text.partition("/")
        if self.numbers is None:
            return f"{top}//{below}" if below else top
        return self.numbers[top] // self.numbers[below] if below else self.numbers[top]

    def shape(self, *dims: str | int) -> list[Any]:
        return [d if isinstance(d, int) else self.size(d) for d in dims]

    def argument(self, text: str) -> Any:
        value = self.size(text)
        return value if isinstance(value, int) else {"size": value}

    def add(
        self, name: str, op: str, target: str, args: list[Any], dims: tuple[Any, ...], layout: str = ""
    ) -> Json:
        meta: Json = {"shape": self.shape(*dims), "dtype": "float32"}
        if layout:
            meta["layout"] = layout
        self.nodes.append({"name": name, "op": op, "target": target, "args": args, "meta": meta})
        return {"node": name}

    def call(self, name: str, target: str, *args: Any, dims: tuple[Any, ...]) -> Json:
        return self.add(name, "call_function", target, list(args), dims)

    def build(self) -> Json:
        number = (lambda text: text) if self.numbers is None else (lambda text: str(self.numbers[text]))
        p = number("p")
        x = self.add("x", "placeholder", "x", [], ("T/p", 64), f"[T/{p}@tp, 64]")
        for i in range(2):
            x = self.layer(i, x)
        self.nodes.append({"name": "output", "op": "output", "target": "output", "args": [[x]], "meta": None})
        return {"format": "layoutcheck-graph/1", "nodes": self.nodes}

    def layer(self, i: int, x: Json) -> Json:
        w = self.add(f"up{i}", "placeholder", f"up{i}", [], ("F/p", 64))
        v = self.add(f"down{i}", "placeholder", f"down{i}", [], (64, "F/p"))
        ways, fault = self.argument("p"), self.fault if i == 1 else ""
        norm = self.call(f"norm{i}", "aten.rms_norm.default", x, [64], None, 1e-6, dims=("T/p", 64))
        rows, full = "T", norm
        if fault == "no_gather":
            rows = "T/p"
        else:
            full = self.call(
                f"gather{i}",
                "_c10d_functional.all_gather_into_tensor.default",
                norm,
                ways,
                "tp",
                dims=("T", 64),
            )
        if fault == "two_gathers":
            full = self.call(
                f"again{i}",
                "_c10d_functional.all_gather_into_tensor.default",
                full,
                ways,
                "tp",
                dims=("T", 64),
            )
        if fault == "all_reduce_of_full":
            full = self.call(
                f"reduced{i}", "_c10d_functional.all_reduce.default", full, "sum", "tp", dims=("T", 64)
            )
        up = self.call(f"act{i}", "aten.linear.default", full, w, dims=(rows, "F/p"))
        act = self.call(f"silu{i}", "aten.silu.default", up, dims=(rows, "F/p"))
        out = self.call(f"out{i}", "aten.linear.default", act, v, dims=(rows, 64))
        if fault != "no_scatter":
            out = self.call(
                f"part{i}",
                "_c10d_functional.reduce_scatter_tensor.default",
                out,
                "sum",
                ways,
                "tp",
                dims=("T/p", 64),
            )
        return self.call(f"sum{i}", "aten.add.Tensor", out, x, dims=("T/p", 64))


def symbolic(fault: str) -> Any:
    return check(
        Decoder(None, fault).build(),
        groups={"tp": "p"},
        assumptions=FACTS,
    )


def numeric(fault: str, p: int, rows: int, width: int) -> Any:
    return check(Decoder({"T": p * rows, "p": p, "F": p * width}, fault).build(), groups={"tp": p})


def roots(report: Any) -> list[tuple[str, str]]:
    return [(code(f), f.node) for f in report.findings if code(f) != "LC902"]


@pytest.mark.parametrize("fault", FAULTS)
def test_the_fault_is_found_with_a_symbol_for_the_size(fault: str) -> None:
    found = roots(symbolic(fault))
    assert bool(found) == bool(fault), found


@settings(max_examples=60, deadline=None)
@given(
    fault=st.sampled_from(FAULTS),
    p=st.sampled_from((2, 3, 4, 8, 16)),
    rows=st.integers(1, 40),
    width=st.integers(1, 40),
)
def test_a_symbol_says_what_every_number_says(fault: str, p: int, rows: int, width: int) -> None:
    """Same findings, and same local shapes once the symbols are numbers."""
    one, many = numeric(fault, p, rows, width), symbolic(fault)
    assert roots(one) == roots(many)
    values = Assumptions(FACTS).extend({"T": p * rows, "p": p, "F": p * width})
    for node in ("x", "norm0", "gather0", "act0", "out0", "part0", "sum0"):
        shape: tuple[Size, ...] = many.layout_of(node).shape
        found = [n if isinstance(n, int) else evaluate(n, values) for n in shape]
        assert found == list(one.layout_of(node).shape), node
