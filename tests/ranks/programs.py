"""Random programs with conversions, built for all ranks at once beside what they compute on one device.

A program is drawn from a tape of numbers, so that hypothesis can shrink it. Its author knows which state
each value has; with `faults` some steps ignore that. The checker is not told: what it calls clean must run
equal to the single device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from layoutcheck.graph import Graph, Node, Ref, TensorMeta
from layoutcheck.ranks.reference.norms import rms_norm

H, INNER, HEADS = 12, 24, 3
Tensor = torch.Tensor


@dataclass
class Value:
    """A value of the program: its node, its state as the author means it (`F`, `L`, `P`), its rows, and the
    whole on one device.
    """

    name: str
    state: str
    padded: bool
    whole: Tensor


class Tape:
    """Numbers to decide by; zeros after the end."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.numbers, self.at = list(numbers), 0

    def take(self, n: int) -> int:
        """A number below n."""
        value = self.numbers[self.at] if self.at < len(self.numbers) else 0
        self.at += 1
        return value % n

    @property
    def ended(self) -> bool:
        """Whether nothing is left."""
        return self.at >= len(self.numbers)


class Program:
    """Graphs of p ranks under construction."""

    def __init__(self, tape: Tape, faults: bool) -> None:
        self.tape, self.faults = tape, faults
        self.p = 2 + tape.take(3)
        self.T = 1 + tape.take(2 * self.p + 2)
        self.rows = -(-self.T // self.p)
        self.pad = self.rows * self.p - self.T
        self.rank_lists = bool(tape.take(2))
        self.generator = torch.Generator().manual_seed(tape.take(1 << 16))
        self.nodes: list[list[Node]] = [[] for _ in range(self.p)]
        self.inputs: list[dict[str, Any]] = [{} for _ in range(self.p)]
        self.count = 0
        self.wrong: list[str] = []
        self.pool: list[Value] = []
        first = self.random(self.T, H)
        name = self.input([first] * self.p, f"[T, {H}]")
        self.pool.append(Value(name, "F", False, first))

    # ---- nodes

    def random(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def input(self, values: Sequence[Tensor], layout: str | None) -> str:
        """A placeholder with a declared layout and each rank's value."""
        self.count += 1
        name = f"in{self.count}"
        for r, value in enumerate(values):
            meta = TensorMeta(tuple(value.shape), "float32", layout)
            self.nodes[r].append(Node(name, "placeholder", name, meta=meta))
            self.inputs[r][name] = value
        return name

    def call(self, target: str, *args: Any, **kwargs: Any) -> str:
        """A call on every rank; an argument that is a function gives each rank its own."""
        self.count += 1
        name = f"n{self.count}"
        for r in range(self.p):
            mine = tuple(a(r) if callable(a) else a for a in args)
            self.nodes[r].append(Node(name, "call_function", target, mine, dict(kwargs)))
        return name

    def collective(self, op: str, x: str, *dim: int) -> str:
        """A collective under rank lists or group names."""
        group = tuple(range(self.p))
        if self.rank_lists:
            return self.call(f"tensor_cast.{op}.default", Ref(x), *dim, lambda r: r, group)
        if op == "all_reduce":
            made = self.call("_c10d_functional.all_reduce.default", Ref(x), "sum", "tp")
        elif op == "all_gather":
            made = self.call("_c10d_functional.all_gather_into_tensor.default", Ref(x), self.p, "tp")
        else:
            made = self.call("_c10d_functional.reduce_scatter_tensor.default", Ref(x), "sum", self.p, "tp")
        return self.call("_c10d_functional.wait_tensor.default", Ref(made))

    def weight(self, out: int, inner: int, shard: int | None = None) -> tuple[str, Tensor]:
        """A weight [out, inner]; `shard` is the dimension that the group cuts."""
        w = self.random(out, inner) / inner**0.5
        if shard is None:
            return self.input([w] * self.p, f"[{out}, {inner}]"), w
        parts = list(w.chunk(self.p, shard))
        sizes = [f"{n}/{self.p}@tp" if i == shard else str(n) for i, n in enumerate((out, inner))]
        return self.input(parts, f"[{', '.join(sizes)}]"), w

    # ---- steps

    def pick(self, states: str, padded: bool | None = None) -> Value | None:
        """A value in one of these states; the latest are likelier."""
        found = [v for v in self.pool if v.state in states and (padded is None or v.padded == padded)]
        if not found:
            return None
        back = self.tape.take(4)
        return found[-1 - min(back, len(found) - 1)]

    def sins(self) -> bool:
        """Whether this step ignores states."""
        return self.faults and self.tape.take(8) == 7

    def add(self, name: str, state: str, padded: bool, whole: Tensor) -> None:
        self.pool.append(Value(name, state, padded, whole))

    def step(self) -> None:
        """One random step."""
        layers = (self.unary, self.norm, self.linear, self.biased, self.mlp, self.mlp, self.sum, self.product)
        others = (self.softmax, self.scan, self.heads, self.attention, self.scale)
        conversions = (
            self.cut,
            self.gather,
            self.gather,
            self.reduce,
            self.reduce,
            self.scatter,
            self.scatter,
        )
        steps = (*layers, *others, *conversions)
        steps[self.tape.take(len(steps))]()

    def _nonlinear(self, sin: str) -> Value | None:
        if self.sins():
            x = self.pick("P")
            if x is not None:
                self.wrong.append(sin)
                return x
        return self.pick("FL")

    def unary(self) -> None:
        x = self._nonlinear("activation of a partial")
        if x is not None:
            self.add(
                self.call("aten.sigmoid.default", Ref(x.name)), x.state, x.padded, torch.sigmoid(x.whole)
            )

    def norm(self) -> None:
        x = self._nonlinear("norm of a partial")
        if x is not None:
            w = self.random(H)
            name = self.input([w] * self.p, f"[{H}]")
            out = self.call("tensor_cast.rms_norm.default", Ref(x.name), Ref(name), 1e-6)
            self.add(out, x.state, x.padded, rms_norm(x.whole, w, 1e-6))

    def softmax(self) -> None:
        x = self._nonlinear("softmax of a partial")
        if x is not None:
            out = self.call("aten.softmax.int", Ref(x.name), -1)
            self.add(out, x.state, x.padded, x.whole.softmax(-1))

    def linear(self) -> None:
        x = self.pick("FLP")
        if x is not None:
            name, w = self.weight(H, H)
            self.add(
                self.call("aten.linear.default", Ref(x.name), Ref(name)), x.state, x.padded, x.whole @ w.T
            )

    def biased(self) -> None:
        x = self._nonlinear("a bias on a partial")
        if x is not None:
            name, w = self.weight(H, H)
            b = self.random(H)
            bias = self.input([b] * self.p, f"[{H}]")
            out = self.call("aten.linear.default", Ref(x.name), Ref(name), Ref(bias))
            self.add(out, x.state, x.padded, x.whole @ w.T + b)

    def mlp(self) -> None:
        x = self.pick("F")
        if self.sins() and self.pick("L") is not None:
            x = self.pick("L")
            self.wrong.append("sharded weights on local tokens")
        if x is None:
            return
        up, wu = self.weight(INNER, H, 0)
        down, wd = self.weight(H, INNER, 1)
        inner = self.call("aten.linear.default", Ref(x.name), Ref(up))
        inner = self.call("aten.silu.default", Ref(inner))
        out = self.call("aten.linear.default", Ref(inner), Ref(down))
        self.add(out, "P", x.padded, torch.nn.functional.silu(x.whole @ wu.T) @ wd.T)

    def _pair(self, states: str) -> tuple[Value, Value] | None:
        a = self.pick(states)
        if a is None:
            return None
        if self.sins():
            others = [v for v in self.pool if (v.state, v.padded) != (a.state, a.padded)]
            if others:
                b = others[self.tape.take(len(others))]
                if self.local_rows(a) == self.local_rows(b) and a.whole.shape == b.whole.shape:
                    self.wrong.append(f"{a.state} meets {b.state}")
                    return a, b
        same = [v for v in self.pool if v.state == a.state and v.padded == a.padded]
        return a, same[self.tape.take(len(same))]

    def local_rows(self, v: Value) -> int:
        """Rows that a rank holds."""
        whole = self.T + (self.pad if v.padded else 0)
        return self.rows if v.state == "L" else whole

    def sum(self) -> None:
        pair = self._pair("FLP")
        if pair is not None:
            a, b = pair
            op = "aten.add.Tensor" if self.tape.take(2) else "aten.sub.Tensor"
            whole = a.whole + b.whole if op == "aten.add.Tensor" else a.whole - b.whole
            self.add(self.call(op, Ref(a.name), Ref(b.name)), a.state, a.padded, whole)

    def product(self) -> None:
        pair = self._pair("FL")
        if pair is not None:
            a, b = pair
            self.add(
                self.call("aten.mul.Tensor", Ref(a.name), Ref(b.name)), a.state, a.padded, a.whole * b.whole
            )

    def scale(self) -> None:
        x = self.pick("FLP")
        if x is not None:
            self.add(self.call("aten.mul.Scalar", Ref(x.name), 0.75), x.state, x.padded, x.whole * 0.75)

    def padded(self, x: Value) -> str:
        """Rows up to a multiple of p, on Full or Partial values."""
        if not self.pad or x.padded:
            return x.name
        return self.call("aten.constant_pad_nd.default", Ref(x.name), (0, 0, 0, self.pad), 0.0)

    def cut(self) -> None:
        x = self.pick("F")
        if x is None:
            return
        shift = 0
        if self.sins():
            shift = 1 + self.tape.take(self.p - 1)
            self.wrong.append("another rank's share")
        name = self.padded(x)
        constant = bool(shift) and bool(self.tape.take(2))

        def at(r: int) -> int:
            return (shift - 1 if constant else (r + shift) % self.p) * self.rows

        out = self.call("aten.slice.Tensor", Ref(name), 0, at, lambda r: at(r) + self.rows)
        self.add(out, "L", self.pad > 0, x.whole)

    def gather(self) -> None:
        x = self.pick("L")
        if self.sins():
            x = self.pick("FP") or x
            if x is not None and x.state != "L":
                self.wrong.append("a gather of what is no share")
        if x is None:
            return
        out = self.collective("all_gather", x.name, 0)
        if self.pad and not (self.faults and self.tape.take(12) == 11):
            out = self.call("aten.slice.Tensor", Ref(out), 0, 0, self.T)
            self.add(out, "F", False, x.whole)
        else:
            if self.pad:
                self.wrong.append("padding left")
            self.add(out, "F", self.pad > 0, x.whole)

    def reduce(self) -> None:
        x = self.pick("P")
        if self.sins():
            x = self.pick("FL") or x
            if x is not None and x.state != "P":
                self.wrong.append("a sum of what is complete")
        if x is not None:
            state = "L" if x.state == "L" else "F"
            self.add(self.collective("all_reduce", x.name), state, x.padded, x.whole)

    def scatter(self) -> None:
        x = self.pick("P")
        if self.sins():
            x = self.pick("F") or x
            if x is not None and x.state != "P":
                self.wrong.append("a sum of what is complete")
        if x is not None:
            out = self.collective("reduce_scatter", self.padded(x), 0)
            self.add(out, "L", self.pad > 0, x.whole)

    def scan(self) -> None:
        x = self.pick("FP", padded=False)
        if self.sins():
            x = self.pick("L") or x
            if x is not None and x.state == "L":
                self.wrong.append("a scan over a share")
        if x is not None:
            self.add(self.call("aten.cumsum.default", Ref(x.name), 0), x.state, x.padded, x.whole.cumsum(0))

    def heads(self) -> None:
        x = self.pick("FLP")
        if x is None:
            return
        rows = self.local_rows(x)
        if self.sins():
            rows = self.rows if x.state != "L" else self.T + self.pad
            self.wrong.append("a size of another layout")
        apart = self.call("aten.view.default", Ref(x.name), (rows, HEADS, H // HEADS))
        turned = self.call("aten.permute.default", Ref(apart), (1, 0, 2))
        back = self.call("aten.permute.default", Ref(turned), (1, 0, 2))
        out = self.call("aten.reshape.default", Ref(back), (rows, H))
        self.add(out, x.state, x.padded, x.whole)

    def attention(self) -> None:
        keys = self.pick("F", padded=False)
        queries = self.pick("FL", padded=False if not self.pad else None)
        if keys is None or queries is None:
            return
        if self.sins():
            keys = self.pick("L") or keys
            if keys.state == "L":
                self.wrong.append("keys of a share")
        n = self.local_rows(keys)

        def apart(v: Value, rows: int) -> str:
            four = self.call("aten.view.default", Ref(v.name), (1, rows, HEADS, H // HEADS))
            return self.call("aten.permute.default", Ref(four), (0, 2, 1, 3))

        q, k = apart(queries, self.local_rows(queries)), apart(keys, n)
        mixed = self.call("aten.scaled_dot_product_attention.default", Ref(q), Ref(k), Ref(k))
        back = self.call("aten.permute.default", Ref(mixed), (0, 2, 1, 3))
        out = self.call("aten.reshape.default", Ref(back), (self.local_rows(queries), H))

        def whole(x: Tensor) -> Tensor:
            return x.view(1, -1, HEADS, H // HEADS).transpose(1, 2)

        y = torch.nn.functional.scaled_dot_product_attention(
            whole(queries.whole), whole(keys.whole), whole(keys.whole)
        )
        self.add(out, queries.state, queries.padded, y.transpose(1, 2).reshape(-1, H))

    # ---- the end

    def finish(self) -> tuple[list[Graph], Value]:
        """The graphs with the last value, made Full unless a fault leaves it, as output."""
        last = self.pool[-1]
        if not self.sins():
            if last.state == "P":
                self.add(self.collective("all_reduce", last.name), "F", last.padded, last.whole)
            elif last.state == "L":
                out = self.collective("all_gather", last.name, 0)
                if self.pad:
                    out = self.call("aten.slice.Tensor", Ref(out), 0, 0, self.T)
                self.add(out, "F", False, last.whole)
            last = self.pool[-1]
        elif last.state != "F":
            self.wrong.append("not Full at the end")
        text = f"[T, {H}]"
        graphs = []
        for r in range(self.p):
            meta = (TensorMeta((self.T, H), "float32", text),)
            self.nodes[r].append(Node("output", "output", "output", ((Ref(last.name),),), meta=meta))
            config = {"groups": {"tp": list(range(self.p))}, "tp_size": self.p, "world_size": self.p}
            graphs.append(Graph(self.nodes[r], rank=r, config=config))
        return graphs, last
