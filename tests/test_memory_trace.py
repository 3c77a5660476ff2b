"""The activation ledger against torch's own account: the live tensors of a run on each rank, counted op by op.

A run is that of the exported program, which lets go of a value after its last use. The ledger is of the same program, and
reads no tensor.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

from torch import Tensor, nn  # noqa: E402
from torch.multiprocessing.reductions import StorageWeakRef  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from layoutcheck.infer.solver.analysis import analyse  # noqa: E402
from layoutcheck.memory.graph_ledger import GraphMemory, graph_memory  # noqa: E402
from layoutcheck.readers import from_fx  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

WORLD = 4


class LiveBytes(TorchDispatchMode):
    """Counts the storages that are alive after each op, but for those that were given; keeps the largest sum."""

    def __init__(self, given: list[Tensor]) -> None:
        super().__init__()
        self.given = {t.untyped_storage()._cdata for t in given}
        self.live: dict[int, tuple[Any, int]] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self.given:
                    self.live[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.live = {k: entry for k, entry in self.live.items() if not entry[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self.live.values()))
        return out


def traced(module: nn.Module, inputs: tuple[Tensor, ...], constants: Any = ()) -> int:
    """Return the peak of live bytes of a run."""
    given = [*module.parameters(), *module.buffers(), *inputs, *constants]
    with torch.no_grad(), LiveBytes(given) as live:
        module(*inputs)
    return live.peak


def ledger_of(program: Any, rank: int, **symbols: int) -> GraphMemory:
    """Return the memory of an exported program."""
    analysis = analyse(
        from_fx(program, rank=rank),
    )
    return graph_memory(analysis, symbols)


@pytest.fixture
def on_rank() -> Iterator[Callable[[int], None]]:
    """Make this process one rank of a group `tp` whose collectives move nothing: sizes are all that counts."""
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    if dist.is_initialized():
        pytest.skip("a process group is in use")

    def leave() -> None:
        if dist.is_initialized():
            torch._C._distributed_c10d._unregister_process_group("tp")
            dist.destroy_process_group()

    def enter(rank: int) -> None:
        leave()
        dist.init_process_group("fake", rank=rank, world_size=WORLD, store=fake.FakeStore())
        torch._C._distributed_c10d._register_process_group("tp", dist.group.WORLD)

    yield enter
    leave()


def exported(module: nn.Module, inputs: tuple[Tensor, ...]) -> Any:
    """Export with the token axis of the first input dynamic."""
    shapes = tuple({0: torch.export.Dim.DYNAMIC} if i == 0 else None for i in range(len(inputs)))
    with torch.no_grad():
        return torch.export.export(
            module, inputs, dynamic_shapes=shapes, prefer_deferred_runtime_asserts_over_guards=True
        )


@pytest.mark.parametrize("rank", [0, WORLD - 1])
@pytest.mark.parametrize(
    "tokens", [66, 1026]
)  # the experts' weights are the peak, then the scores; both cut unevenly
def test_sequence_parallel_layers_on_ranks(on_rank: Callable[[int], None], rank: int, tokens: int) -> None:
    import parallel_layers

    on_rank(rank)
    module = parallel_layers.LayerPair(rank).eval()
    x = torch.randn(tokens, parallel_layers.HIDDEN)
    program = exported(module, (x,))
    for form in (program, program.run_decompositions({})):
        memory = ledger_of(form, rank, T=tokens)
        assert memory.peak.bytes == pytest.approx(traced(form.module(), (x,)), rel=0.02)
        assert memory.envelope.at({"T": tokens})[0] == memory.peak.bytes
    # Python's own variables hold some values longer than the program needs them, never shorter
    assert memory.peak.bytes <= traced(module, (x,))


class InPlace(nn.Module):
    """Writes shares into a buffer through views, adds in place, and hands views on."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(32, 256, bias=False)
        self.down = nn.Linear(256, 32, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.shape[0]
        buffer = x.new_empty(tokens, 2, 256)
        buffer[:, 0].copy_(self.up(x))
        buffer[:, 1].copy_(self.up(x).mul_(2.0).relu_())
        heads = buffer.view(tokens, 2, 4, 64).transpose(0, 1)
        merged = heads.reshape(2, tokens, 256).sum(0)  # only splits and joins what lies together: a view
        mixed = heads.transpose(1, 2).reshape(2, 4 * tokens, 64)  # has to copy
        return self.down(merged + mixed[0].reshape(tokens, 256)).add_(x)


def test_views_and_writes_in_place() -> None:
    module = InPlace().eval()
    x = torch.randn(96, 32)
    program = exported(module, (x,))
    for form in (program, program.run_decompositions({})):
        ran = traced(form.module(), (x,))
        memory = ledger_of(form, 0, T=96)
        assert memory.peak.bytes == pytest.approx(ran, rel=0.02)


def test_a_view_keeps_all_of_what_it_views() -> None:
    class KeepsOneRow(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            row = (x * 2)[:1]
            return (x + 1).sum(0, keepdim=True) + row

    x = torch.randn(512, 64)
    program = exported(KeepsOneRow(), (x,))
    memory = ledger_of(program, 0, T=512)
    assert memory.peak.bytes == traced(program.module(), (x,))
    assert memory.peak.bytes >= 2 * 512 * 64 * 4


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "glm_moe_dsa"])
def test_tiny_models_of_transformers(family: str) -> None:
    transformers = pytest.importorskip("transformers")
    common: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 256,
        "max_position_embeddings": 512,
    }
    if family == "qwen3_moe":
        common |= {"head_dim": 16, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    if family == "glm_moe_dsa":
        common |= {
            "num_key_value_heads": 4,
            "moe_intermediate_size": 32,
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "first_k_dense_replace": 1,
            "q_lora_rank": 32,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 16,
            "index_n_heads": 4,
            "index_head_dim": 16,
            "index_topk": 16,
        }
    try:
        config = transformers.AutoConfig.for_model(family, **common)
    except ValueError:
        pytest.skip(f"this transformers has no {family}")
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config).eval()

    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Tensor) -> Tensor:
            states: Tensor = self.model(input_ids=ids, use_cache=False).last_hidden_state
            return states

    ids = torch.randint(0, 256, (1, 96))
    with torch.no_grad():
        # decomposed, so that what a composite op makes inside is in the graph too
        program = torch.export.export(Hidden(), (ids,), strict=False).run_decompositions()
    constants = [t for t in program.constants.values() if isinstance(t, Tensor)]
    memory = ledger_of(program, 0)
    assert memory.peak.bytes == pytest.approx(traced(program.module(), (ids,), constants), rel=0.02)
