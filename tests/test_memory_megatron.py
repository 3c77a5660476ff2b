"""The activations that a transformer layer keeps for its backward pass, against the formulas of Korthikanti et al.,
"Reducing Activation Recomputation in Large Transformer Models" (arXiv 2205.05198), table 2.

The layer is written in torch as the paper describes it, in 16 bit. AOTAutograd, not this package, decides what is kept: its
forward graph returns it. The ledger of that graph has to add up to the formula. The paper leaves out the statistics of the
layer norms, which is why it is not to the byte.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

import torch.nn.functional as F  # noqa: E402
from torch import Tensor  # noqa: E402

from layoutcheck.infer.solver.analysis import analyse  # noqa: E402
from layoutcheck.memory.activations import activations_of  # noqa: E402
from layoutcheck.memory.extents import Extents  # noqa: E402
from layoutcheck.readers import from_fx  # noqa: E402

T = 8
_ops = torch.ops._c10d_functional


def all_reduce(x: Tensor) -> Tensor:
    return _ops.wait_tensor(_ops.all_reduce(x, "sum", "tp"))


def gather(x: Tensor) -> Tensor:
    return _ops.wait_tensor(_ops.all_gather_into_tensor(x, T, "tp"))


def scatter(x: Tensor) -> Tensor:
    return _ops.wait_tensor(_ops.reduce_scatter_tensor(x, "sum", T, "tp"))


class Reduce(torch.autograd.Function):
    """Adds in the forward pass only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return all_reduce(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g


class Copy(torch.autograd.Function):
    """Adds in the backward pass only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return all_reduce(g)


class Scatter(torch.autograd.Function):
    """From sums to shares of the sequence."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return scatter(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return gather(g)


class GatheredLinear(torch.autograd.Function):
    """A linear on the gathered sequence that keeps the rank's share and gathers again going back (section 4.2.2)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return F.linear(gather(x), w)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        whole = gather(x)
        return scatter(g @ w), g.flatten(0, 1).t() @ whole.flatten(0, 1)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The attention core on [s, b, heads, d]."""
    s, b, heads, d = q.shape
    q, k, v = (x.reshape(s, b * heads, d).transpose(0, 1) for x in (q, k, v))
    weights = torch.softmax(torch.bmm(q, k.transpose(1, 2)) * (1 / math.sqrt(d)), -1)
    out = torch.bmm(F.dropout(weights, 0.1), v)
    return out.transpose(0, 1).reshape(s, b, heads * d)


class Recomputed(torch.autograd.Function):
    """The attention core, run again in the backward pass from q, k and v."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ctx.save_for_backward(q, k, v)
        with torch.no_grad():
            return attention(q, k, v)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, ...]:
        inputs = [x.detach().requires_grad_() for x in ctx.saved_tensors]
        with torch.enable_grad():
            out = attention(*inputs)
        return torch.autograd.grad(out, inputs, g)


def layer(mode: str, heads: int) -> Callable[..., Tensor]:
    """A layer with pre-norms; ``mode`` names what is parallel and what is recomputed."""
    parallel, sequence, selective = "tp" in mode, "sp" in mode, "selective" in mode

    def enter(x: Tensor, w: Tensor) -> Tensor:
        if sequence:
            return GatheredLinear.apply(x, w)
        return F.linear(Copy.apply(x) if parallel else x, w)

    def leave(x: Tensor) -> Tensor:
        return Scatter.apply(x) if sequence else Reduce.apply(x) if parallel else x

    def run(x: Tensor, n1: Tensor, n2: Tensor, wq: Tensor, wo: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
        x = x * 1.0  # what the layer is given is made by the one before it
        y = enter(F.layer_norm(x, n1.shape, n1), wq)
        q, k, v = y.view(*y.shape[:2], heads, 3, -1).unbind(3)
        o = (Recomputed.apply if selective else attention)(q.contiguous(), k.contiguous(), v.contiguous())
        x = x + F.dropout(leave(F.linear(o, wo)), 0.1)
        y = F.gelu(enter(F.layer_norm(x, n2.shape, n2), w1))
        return x + F.dropout(leave(F.linear(y, w2)), 0.1)

    return run


FORMULAS: dict[str, Callable[[int, int, int, int], float]] = {
    "none": lambda s, b, h, a: s * b * h * (34 + 5 * a * s / h),
    "tp": lambda s, b, h, a: s * b * h * (10 + 24 / T + 5 * a * s / (h * T)),
    "tp sp": lambda s, b, h, a: s * b * h * (34 / T + 5 * a * s / (h * T)),
    "tp selective": lambda s, b, h, a: s * b * h * (10 + 24 / T),
    "tp sp selective": lambda s, b, h, a: s * b * h * (34 / T),
}

#: The models of the paper's table 3: sequence, micro batch, hidden size, heads.
MODELS = {
    "22B": (2048, 4, 6144, 64),
    "175B": (2048, 1, 12288, 96),
    "530B": (2048, 1, 20480, 128),
    "1T": (2048, 1, 25600, 160),
}


@pytest.fixture(scope="module")
def group() -> Iterator[None]:
    """A group `tp` of eight ranks whose collectives move nothing."""
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    if dist.is_initialized():
        pytest.skip("a process group is in use")
    dist.init_process_group("fake", rank=0, world_size=T, store=fake.FakeStore())
    torch._C._distributed_c10d._register_process_group("tp", dist.group.WORLD)
    yield
    torch._C._distributed_c10d._unregister_process_group("tp")
    dist.destroy_process_group()


def forward_graph(mode: str, s: int, b: int, h: int, a: int) -> Any:
    """The forward graph of a layer, giving its result and all that the backward pass reads. Nothing is allocated.

    The partitioner hands over results of collectives for a dropout that it draws again and does not use: what no
    gradient depends on is left out.
    """
    compile_ = pytest.importorskip("functorch.compile")
    from torch._subclasses.fake_tensor import FakeTensorMode

    p = T if "tp" in mode else 1
    graphs: list[Any] = []

    def keep(graph: Any, _inputs: Any) -> Any:
        graphs.append(graph)
        return compile_.make_boxed_func(graph.forward)

    with FakeTensorMode():

        def of(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=torch.bfloat16, requires_grad=True)

        inputs = [
            of(s // p if "sp" in mode else s, b, h),
            of(h),
            of(h),
            of(3 * h // p, h),
            of(h, h // p),
            of(4 * h // p, h),
            of(h, 4 * h // p),
        ]
        traced = compile_.aot_function(
            layer(mode, a // p),
            fw_compiler=keep,
            bw_compiler=keep,
            partition_fn=compile_.default_partition,
        )
        torch.autograd.grad(traced(*inputs).sum(), inputs)
    forward, backward = graphs
    output = next(node for node in forward.graph.nodes if node.op == "output")
    result, *saved = output.args[0]
    given = [node for node in backward.graph.nodes if node.op == "placeholder"]
    read: set[str] = set()
    todo = [node for node in backward.graph.nodes if node.op == "output"]
    while todo:
        node = todo.pop()
        if node.name not in read:
            read.add(node.name)
            todo += node.all_input_nodes
    assert len(given) == len(saved) + 1, "all that is saved and one gradient"
    assert given[-1].name in read
    output.args = ((result, *[node for node, place in zip(saved, given) if place.name in read]),)
    return forward


def kept_bytes(graph: Any) -> int:
    """What the ledger says is alive when the forward graph ends, but for the layer's own result."""
    analysis = analyse(
        from_fx(graph, rank=0),
        groups={"tp": T},
    )
    extents = Extents(analysis.mesh)
    kept = activations_of(analysis, extents).kept(extents.values)
    result = next(node for node in graph.graph.nodes if node.op == "output").args[0][0]
    return sum(kept.values()) - kept[result.name]


@pytest.mark.parametrize("mode", list(FORMULAS))
@pytest.mark.parametrize("model", list(MODELS))
def test_kept_activations_of_a_layer(group: None, mode: str, model: str) -> None:
    sizes = MODELS[model]
    assert kept_bytes(forward_graph(mode, *sizes)) == pytest.approx(FORMULAS[mode](*sizes), rel=0.001)
