"""Work lifted from typed graphs: exact where torch counts, the same for repeated and expanded graphs, and at other counts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

from layoutcheck.cost.evaluate import time_graph
from layoutcheck.cost.hardware import load_hardware
from layoutcheck.cost.lift import lift
from layoutcheck.cost.terms import GraphCost
from layoutcheck.cost.trace import trace
from layoutcheck.errors import InputError
from layoutcheck.graph import Graph, Node, Ref, TensorMeta
from layoutcheck.infer.solver.analysis import Analysis, analyse
from layoutcheck.readers import load
from layoutcheck.readers.fx import from_fx
from layoutcheck.testing import decoders
from layoutcheck.testing.decoder import CARRIED, KINDS, Decoder, Layers


def analysed(graph: Graph | Path, **more: Any) -> Analysis:
    return analyse(graph, **more)


def lifted(graph: Graph | Path) -> GraphCost:
    return lift(analysed(graph))


def built(decoder: Decoder, form: str = "expanded") -> GraphCost:
    return lift(analysed(decoder.build(form), tokens=[("hidden_states", 0)]))


def totals(cost: GraphCost, by: str = "role", **given: int) -> dict[str, tuple[int, int, int, int]]:
    """Exact flops, bytes read, bytes written and wire bytes of a rank, by role or op."""
    values = cost.at(given)
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for term in cost.terms:
        work = term.work(term.numbers(values))
        line = found[getattr(term, by)]
        for i, x in enumerate((work.flops, work.read, work.write, work.wire)):
            line[i] += term.count * x
    return {name: (line[0], line[1], line[2], line[3]) for name, line in found.items()}


# ---- torch's own counter


class Tiny(torch.nn.Module):
    """A decoder layer with linears, attention spelled out in batched products, and a convolution."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width, bias=False)
        self.conv = torch.nn.Conv1d(width, width, 3, padding=1, groups=2)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, w = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        scores = torch.softmax(q @ k.transpose(-1, -2), -1)
        y = x + self.out((scores @ v).transpose(1, 2).reshape(b, t, w))
        y = y + self.conv(y.transpose(1, 2)).transpose(1, 2)
        return y + self.down(torch.nn.functional.silu(self.up(y)))


def _baddbmm(x: torch.Tensor) -> torch.Tensor:
    return torch.baddbmm(x @ x.transpose(1, 2), x, x.transpose(1, 2))


def _efficient(x: torch.Tensor) -> torch.Tensor:
    q = x.unsqueeze(1)
    return torch.ops.aten._scaled_dot_product_efficient_attention(q, q, q, None, False, 0.0, True)[0]


def _flash(x: torch.Tensor) -> torch.Tensor:
    q = x.unsqueeze(1)
    return torch.ops.aten._scaled_dot_product_flash_attention(q, q, q, 0.0, True)[0]


def _cudnn(x: torch.Tensor) -> torch.Tensor:
    q = x.unsqueeze(1)
    return torch.ops.aten._scaled_dot_product_cudnn_attention(q, q, q, None, False)[0]


def _scaled(x: torch.Tensor) -> torch.Tensor:
    one = torch.empty((), device="meta", dtype=torch.float32)
    left = x[0].to(torch.float8_e4m3fn)
    right = torch.empty((16, x.shape[-1]), device="meta").to(torch.float8_e4m3fn)
    return torch.ops.aten._scaled_mm(left, right.t(), one, one, out_dtype=torch.bfloat16)


def _images(x: torch.Tensor) -> torch.Tensor:
    layer = torch.nn.Conv2d(x.shape[0], 6, (3, 2), stride=2, padding=1).to("meta")
    return layer(x.unsqueeze(0))


COUNTED: dict[str, Callable[..., Any]] = {
    "layer": lambda x: Tiny(x.shape[-1], 2).to("meta")(x),
    "baddbmm": _baddbmm,
    "efficient attention": _efficient,
    "flash attention": _flash,
    "cudnn attention": _cudnn,
    "scaled": _scaled,
    "images": _images,
}


@pytest.mark.parametrize("name", COUNTED)
@pytest.mark.parametrize("shape", [(2, 8, 16), (3, 24, 32)])
def test_flops_are_those_of_torchs_counter(name: str, shape: tuple[int, ...]) -> None:
    x = torch.empty(shape, device="meta", dtype=torch.bfloat16 if "attention" in name else torch.float32)
    with FlopCounterMode(display=False) as counter:
        COUNTED[name](x)
    wanted = {str(op).removeprefix("aten."): n for op, n in counter.get_flop_counts()["Global"].items()}
    assert wanted
    cost = lifted(from_fx(make_fx(COUNTED[name])(x)))
    found: dict[str, int] = defaultdict(int)
    for op, (flops, *_) in totals(cost, "op").items():
        found[op.split(".")[1]] += flops
    assert {op: found[op] for op in wanted} == wanted
    assert not cost.uncovered


@pytest.mark.parametrize("family", ["Llama", "Qwen3"])
def test_flops_of_a_whole_model_are_those_of_torchs_counter(family: str) -> None:
    transformers = pytest.importorskip("transformers")
    figures = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 128,
    }
    config = getattr(transformers, f"{family}Config")(**figures, attn_implementation="eager")
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    ids = torch.zeros(2, 24, dtype=torch.long)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(ids, use_cache=False)
    with torch.no_grad():
        program = torch.export.export(model, (ids,), {"use_cache": False}, strict=False)
    found = totals(lifted(from_fx(program)), "op")
    products = sum(found[op][0] for op in ("aten.linear.default", "aten.matmul.default"))
    assert products == counter.get_total_flops()


_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
_LATENT = {
    **_EXPERTS,
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
DECOMPOSED = {
    "Qwen3Moe": {**_EXPERTS, "num_experts": 4, "num_key_value_heads": 2, "head_dim": 16},
    "DeepseekV3": _LATENT,
    "GlmMoeDsa": {**_LATENT, "index_n_heads": 2, "index_head_dim": 16, "index_topk": 8},
}


@pytest.mark.parametrize("family", DECOMPOSED)
def test_flops_of_decomposed_models_with_experts_are_those_of_torchs_counter(family: str) -> None:
    """Op by op, all that torch counts; the experts' grouped products it does not."""
    transformers = pytest.importorskip("transformers")
    figures = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 128,
        **DECOMPOSED[family],
    }
    config = getattr(transformers, f"{family}Config")(**figures, attn_implementation="eager")
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    ids = torch.zeros(2, 24, dtype=torch.long)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(ids, use_cache=False)
    with torch.no_grad():
        program = torch.export.export(model, (ids,), {"use_cache": False}, strict=False)
    cost = lifted(from_fx(program.run_decompositions()))
    assert not cost.uncovered
    found = totals(cost, "op")
    wanted = counter.get_flop_counts()["Global"]
    assert len(wanted) >= 2
    assert {str(op): n for op, n in wanted.items()} == {str(op): found[f"{op}.default"][0] for op in wanted}


# ---- laws

STACKS = st.lists(
    st.builds(
        Layers,
        kind=st.sampled_from(KINDS),
        repeats=st.integers(1, 3),
        heads=st.just(2),
        period=st.integers(2, 3),
        nested=st.booleans(),
    ),
    min_size=1,
    max_size=2,
)


@settings(max_examples=15)
@given(
    stack=STACKS, style=st.sampled_from(("tp", "sp")), carried=st.sampled_from(CARRIED), fused=st.booleans()
)
def test_a_repeated_graph_costs_what_the_expanded_one_does(
    stack: list[Layers], style: str, carried: str, fused: bool
) -> None:
    decoder = Decoder(tuple(stack), style=style, carried=carried, fused=fused)
    repeated, expanded = built(decoder, "repeated"), built(decoder)
    for tokens in (decoder.tokens, 400):
        left, right = (totals(cost, "op", T=tokens) for cost in (repeated, expanded))
        assert left == right
    a3 = load_hardware("ascend-a3")
    assert time_graph(repeated, a3).total_us == pytest.approx(time_graph(expanded, a3).total_us, rel=1e-9)


def by_role(cost: GraphCost) -> dict[tuple[str, str], int]:
    """How often each kernel runs, by the role of its call."""
    found: dict[tuple[str, str], int] = defaultdict(int)
    for term in cost.terms:
        found[term.role, f"{term.op} {term.title}"] += term.count
    return dict(found)


@settings(max_examples=60, deadline=None)
@given(decoders(max_repeats=11))
def test_rows_of_roles_are_those_of_the_expanded_graph(decoder: Decoder) -> None:
    """What is in front of a repeated body, and what one repeat hands to the next, has the role of what reads it there."""
    repeated, expanded = (lifted(decoder.build(form)) for form in ("repeated", "expanded"))
    assert by_role(repeated) == by_role(expanded)
    a3 = load_hardware("ascend-a3")
    left, right = (time_graph(cost, a3).rows("role") for cost in (repeated, expanded))
    assert {(r.name, r.calls) for r in left} == {(r.name, r.calls) for r in right}
    assert {r.name: r.us for r in left} == pytest.approx({r.name: r.us for r in right})


@pytest.mark.parametrize("repeats", [2, 3, 12])
def test_a_pending_update_is_residual_in_later_repeats_only(repeats: int) -> None:
    """The first repeat is given an update that is no branch of the stream; a trace shows each addition once."""
    decoder = Decoder((Layers("dense", repeats),), carried="pair")
    repeated = lifted(decoder.build("repeated"))
    adds = [(t.role, t.count, t.again) for t in repeated.terms if t.op == "aten.add.Tensor"]
    assert adds[:2] == [("norm.input", 1, False), ("residual", repeats - 1, True)]
    a3 = load_hardware("ascend-a3")
    shown, wanted = (
        [e["dur"] for e in trace(time_graph(cost, a3))["traceEvents"] if e["ph"] == "X"]
        for cost in (repeated, lifted(decoder.build("expanded")))
    )
    assert shown == wanted


@settings(max_examples=15)
@given(
    stack=STACKS,
    style=st.sampled_from(("tp", "sp")),
    tokens=st.integers(2, 40),
    ranks=st.sampled_from((2, 4)),
)
def test_a_formula_holds_at_the_counts_that_another_export_has(
    stack: list[Layers], style: str, tokens: int, ranks: int
) -> None:
    here = Decoder(tuple(stack), style=style, tokens=4 * ranks, ranks=ranks)
    there = Decoder(tuple(stack), style=style, tokens=tokens * ranks, ranks=ranks)
    assert totals(built(here), T=tokens * ranks) == totals(built(there))


@settings(max_examples=20)
@given(times=st.integers(2, 50), style=st.sampled_from(("tp", "sp")), kind=st.sampled_from(("dense", "moe")))
def test_products_and_wire_bytes_are_linear_in_tokens(times: int, style: str, kind: str) -> None:
    cost = built(Decoder((Layers(kind),), style=style))
    one, more = (totals(cost, "kernel", T=tokens) for tokens in (16, 16 * times))
    assert one["gemm"][0] * times == more["gemm"][0]
    assert one["collective"][3] * times == more["collective"][3]


# ---- what is not known


def _unknown(op: str) -> Graph:
    x = Node("x", "placeholder", "x", (), {}, TensorMeta((4, 8), "bfloat16"))
    call = Node("y", "call_function", op, (Ref("x"),), {}, TensorMeta((4, 8), "bfloat16"))
    return Graph([x, call, Node("output", "output", "output", (Ref("y"),))])


def test_an_op_without_a_rule_is_named_and_its_least_time_is_told() -> None:
    cost = lifted(_unknown("mine.op.default"))
    assert [(u.op, u.node, u.count, u.reason) for u in cost.uncovered] == [
        ("mine.op.default", "y", 1, "no rule")
    ]
    report = time_graph(cost, load_hardware("h100"))
    assert report.total_us == 0
    assert report.uncovered_share == 1


def test_a_users_kernels_win(tmp_path: Path) -> None:
    (tmp_path / "own.kernels").write_text("aten.relu\n    moved read=0 write=7 flops=3*size(out)\n")
    cost = lift(analysed(_unknown("aten.relu.default")), kernels=[tmp_path])
    assert totals(cost, "op") == {"aten.relu.default": (96, 0, 7, 0)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            f"aten.relu\n    moved read={'+'.join('1' * 900)} write=0\n",
            "own.kernels:2: an expression of more than 500 characters",
        ),
        ("    moved read=0 write=0\n", "own.kernels:1: a kernel without a header"),
        ("aten.relu\n", "own.kernels: end: aten.relu has no body"),
        ("aten.relu\n    moved read=(\n", "own.kernels:2: not an expression: ("),
        ("not a header\n    free\n", "own.kernels:1: not a header: not a header"),
        ("aten.relu\n    a-b read=0\n", "own.kernels:2: not a kernel: a-b"),
        ("aten.relu\n    moved read=0\n", "own.kernels:2: moved needs write"),
        (
            "aten.relu\n    moved read=open(1) write=0\n",
            "own.kernels:2: the notation of kernels has no function open",
        ),
        ("aten.relu\n    moved read=[1] write=0\n", "own.kernels:2: the notation of kernels has no List"),
    ],
)
def test_malformed_kernels_say_where(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "own.kernels").write_text(text)
    with pytest.raises(InputError) as caught:
        lift(analysed(_unknown("aten.relu.default")), kernels=[tmp_path])
    assert str(caught.value) == message


def test_an_unknown_kernel_lists_the_known_ones(tmp_path: Path) -> None:
    (tmp_path / "own.kernels").write_text("aten.relu\n    magic read=0\n")
    with pytest.raises(InputError, match=r"own.kernels:2: no kernel is called magic; there are gemm, "):
        lift(analysed(_unknown("aten.relu.default")), kernels=[tmp_path])


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"S": 3}, "no size depends on S; there is T, tp"),
        ({"T": 0}, "T is 0"),
        ({"tp": 3}, "32 does not divide by tp = 3"),
    ],
)
def test_impossible_counts_are_refused(given_: dict[str, int], message: str) -> None:
    cost = built(Decoder((Layers("dense", heads=1),)))
    with pytest.raises(InputError) as caught:
        cost.at(given_)
    assert message in str(caught.value)


# ---- the reference graphs


@pytest.mark.shared
def test_experts_written_one_by_one_are_one_grouped_product(shared_graphs: Path) -> None:
    cost = lifted(load(shared_graphs / "glm5_prefill_repeated.after.json.gz"))
    grouped = [t for t in cost.terms if t.kernel == "grouped_gemm"]
    assert [(t.count, {n: str(s) for n, s in t.sizes.items()}) for t in grouped] == [
        (
            75,
            {
                "tokens": "ep*ceil(T/tp)",
                "hidden": "6144",
                "inter": "2048",
                "topk": "8",
                "experts": "256",
                "ep": "ep",
                "tp": "1",
            },
        )
    ]
    assert not cost.uncovered


@pytest.mark.shared
def test_every_reference_graph_is_covered(shared_graphs: Path) -> None:
    """All but the op of a namespace that nobody has a rule for."""
    for path in sorted(shared_graphs.glob("*.*")):
        if path.name.endswith(".json.gz") or path.suffix == ".pt2":
            bare = {u.op for u in lifted(load(path)).uncovered}
            assert bare <= {"demo.rms_norm.default"}, path.name
