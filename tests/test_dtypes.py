"""The dtype that a rule gives is that of torch, for reductions, scans and pointwise ops on every dtype."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support import engine  # noqa: E402
from support.builder import GraphBuilder  # noqa: E402

from layoutcheck.infer.calls.call import Context, Hole  # noqa: E402
from layoutcheck.infer.solver.one_call import apply  # noqa: E402
from layoutcheck.layouts import Layout, whole  # noqa: E402
from layoutcheck.mesh import build_mesh  # noqa: E402
from layoutcheck.program import OpInstance  # noqa: E402
from layoutcheck.rules.rulebook import RuleBook  # noqa: E402

DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")
# kinds of rules whose ops work on tensors of any dtype and keep or compute one
KINDS = frozenset(("reduce", "scan", "argmax", "sort", "topk", "histogram", "diff"))
SHAPE = (4, 4)
# arguments that a schema has no default for
GIVEN: dict[str, Any] = {
    "dim": 0, "k": 2, "n": 2, "p": 2.0, "ord": 2.0, "exponent": 2, "other": 2, "value": 1, "min": 0, "max": 1,
    "half_to_float": False, "dims": [0], "keepdim": False, "q": 0.5, "correction": 1, "lambd": 0.5, "dtype": None,
    "negative_slope": 0.1, "threshold": 0.5, "alpha": 1, "beta": 1, "unbiased": True, "bins": 4, "decimals": 1,
    "repeats": 1, "weight": 0.5, "log_target": False, "rounding_mode": "trunc", "stable": True, "train": False, "self": 2,
}  # fmt: skip
NUMBERS = ("self", "other", "exponent", "min", "max")


def rules() -> Iterator[str]:
    for target, rule in RuleBook.load([]).rules.items():
        if target.startswith("aten.") and (rule.kind == "elementwise" or rule.code in KINDS):
            yield target


def overload(target: str) -> Any:
    _, name, *rest = target.split(".")
    packet = getattr(torch.ops.aten, name, None)
    return getattr(packet, rest[0] if rest else "default", None) if packet is not None else None


def arguments(op: Any) -> list[tuple[str, str]] | None:
    """Name and kind of each argument that has to be given: a tensor or a value that is known by name."""
    out = []
    for arg in op._schema.arguments:
        kind = str(arg.type)
        if kind == "Tensor":
            out.append((arg.name, "tensor"))
        elif not arg.has_default_value():
            if arg.name not in GIVEN:
                return None
            out.append((arg.name, "value"))
    return out if any(kind == "tensor" for _, kind in out) else None


def in_torch(op: Any, args: list[tuple[str, str]], dtypes: list[str], number: float) -> list[str] | None:
    """The outputs' dtypes on meta tensors; None where the op does not take these dtypes."""
    given, left = {}, list(dtypes)
    for name, kind in args:
        if kind == "tensor":
            given[name] = torch.empty(SHAPE, dtype=getattr(torch, left.pop(0)), device="meta")
        else:
            given[name] = number if name in NUMBERS else GIVEN[name]
    try:
        out = op(**given)
    except (RuntimeError, NotImplementedError, TypeError, IndexError, ValueError, AssertionError):
        return None
    outs = out if isinstance(out, (list, tuple)) else [out]
    return [str(o.dtype).removeprefix("torch.") for o in outs if isinstance(o, torch.Tensor)]


def in_rule(
    target: str, args: list[tuple[str, str]], dtypes: list[str], number: float, outputs: int
) -> list[str]:
    """The dtypes that the rule gives the outputs."""
    rule = RuleBook.load([]).lookup(target)
    assert rule is not None
    given, slots = {}, []
    for name, kind in args:
        if kind == "tensor":
            given[name] = Hole(len(slots))
            slots.append(whole(dtypes[len(slots)], SHAPE))
        else:
            given[name] = number if name in NUMBERS else GIVEN[name]
    instance = OpInstance(target, rule, rule.bind((), given), len(slots), outputs)
    result = apply(Context(build_mesh([], {}), None), instance, tuple(slots))
    return [of.dtype for of in result.outs[:outputs] if isinstance(of, Layout)]


@pytest.mark.parametrize("number", [2, 1.5], ids=["integer", "float"])
@pytest.mark.parametrize("target", sorted(rules()))
def test_a_rule_gives_the_dtype_that_torch_gives(target: str, number: float) -> None:
    op = overload(target)
    args = arguments(op) if op is not None else None
    if op is None or args is None:
        pytest.skip("torch has no such overload, or it takes arguments of other kinds")
    if isinstance(number, float) and not any(name in NUMBERS and kind == "value" for name, kind in args):
        pytest.skip("no operand is a number")
    tensors = sum(kind == "tensor" for _, kind in args)
    wrong = []
    for dtype in DTYPES:
        expected = in_torch(op, args, [dtype] * tensors, number)
        if expected is None:
            continue
        found = in_rule(target, args, [dtype] * tensors, number, len(expected))
        if found != expected:
            wrong.append(f"{dtype}: {found} for {expected}")
    assert not wrong, wrong


def test_two_dtypes_give_what_torch_promotes_them_to() -> None:
    op = overload("aten.add.Tensor")
    args = arguments(op)
    assert args is not None
    for first in DTYPES:
        for second in DTYPES:
            both = [first, second]
            assert in_rule("aten.add.Tensor", args, both, 2, 1) == in_torch(op, args, both, 2), both


@pytest.mark.parametrize(("given", "found"), [(None, "int64"), ("int32", "int32"), ("bool", "bool")])
def test_a_dtype_that_is_asked_for_is_not_widened(given: str | None, found: str) -> None:
    b = GraphBuilder()
    x = b.input("x", (16,), "bool", layout="[T]")
    out = b.call("aten.cumsum.default", x, 0, *([{"dtype": given}] if given else []), shape=(16,))
    b.output([out])
    graph = b.graph()
    next(n for n in graph["nodes"] if n["name"] == out.name)["meta"] = None
    if given:
        node = next(n for n in graph["nodes"] if n["name"] == out.name)
        node["kwargs"] = {"dtype": node["args"].pop()}
    assert engine.check(graph).layout_of(out.name).dtype == found
