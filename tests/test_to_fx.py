"""Annotated graphs as torch.fx modules: what torch computes, on processes that torch.distributed connects."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("this torch has no gloo", allow_module_level=True)

from ranks.fx_worker import run_rank  # noqa: E402
from ranks.real_models import FAMILIES, export, ids_of  # noqa: E402

from layoutcheck import save  # noqa: E402
from layoutcheck.errors import InputError  # noqa: E402
from layoutcheck.graph import Graph, Node, Ref  # noqa: E402
from layoutcheck.placement.annotated import annotate  # noqa: E402
from layoutcheck.placement.to_fx import to_fx  # noqa: E402
from layoutcheck.ranks.annotated import share_of  # noqa: E402

torch.set_num_threads(1)
TOLERANCE = 2e-5


def on_processes(folder: Path, family: str, contract: str, tokens: int, world: int = 4) -> None:
    """Annotate a model of any number of tokens, run it on gloo processes in float32, compare all ranks' logits."""
    model = export(family, None)
    ids = ids_of(tokens)
    inputs = model.inputs(ids)
    for rank in range(world):
        annotated = annotate(model.graph, contract, groups={"tp": world}, rank=rank)
        save(annotated.graph, folder / f"{rank}.json")
        mine = {
            k: share_of(v, annotated.shards[k], rank) if k in annotated.shards else v
            for k, v in inputs.items()
        }
        torch.save(mine, folder / f"{rank}.in")
    registers = "transformers.integrations.moe" if family != "Llama" else ""
    torch.multiprocessing.spawn(run_rank, (str(folder), world, registers), nprocs=world)
    want = model.logits(ids)
    for rank in range(world):
        out = torch.load(folder / f"{rank}.out")
        logits = out[0] if isinstance(out, (tuple, list)) else out
        torch.testing.assert_close(logits, want, atol=TOLERANCE, rtol=0)


def test_llama_on_four_processes(tmp_path: Path) -> None:
    on_processes(tmp_path, "Llama", "sequence-parallel", 7)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("family", "contract"),
    [
        ("GlmMoeDsa", "dsa-cp-prefill"),
        ("GlmMoeDsa", "dsa-cp-query-local"),
        ("DeepseekV3", "tensor-parallel"),
        ("Qwen3Moe", "sequence-parallel"),
    ],
)
def test_models_on_four_processes(tmp_path: Path, family: str, contract: str) -> None:
    on_processes(tmp_path, family, contract, 7)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_graph_computes_what_the_model_does(family: str) -> None:
    """Nothing is lost on the way to a graph and back, sizes of inputs and subgraphs included."""
    model = export(family, None)
    ids = ids_of(5)
    out = to_fx(model.graph)(*model.inputs(ids).values())
    assert torch.equal(out[0] if isinstance(out, (tuple, list)) else out, model.logits(ids))


def test_an_op_that_torch_does_not_have() -> None:
    nodes = [
        Node("x", "placeholder", "x", (), {}),
        Node("y", "call_function", "nowhere.op.default", (Ref("x"),), {}),
        Node("output", "output", "output", ((Ref("y"),),), {}),
    ]
    with pytest.raises(
        InputError, match=r"y: torch has no op nowhere\.op\.default; import the library that registers it"
    ):
        to_fx(Graph(nodes))
    nodes[1] = Node("y", "call_function", "nowhere", (Ref("x"),), {})
    with pytest.raises(InputError, match="y: torch has no op nowhere; import"):
        to_fx(Graph(nodes))
