"""A transformers Llama as one rank of a tensor-parallel group holds it, exported: its own heads and its own part of the
MLP, with an all_reduce behind the projections that add the parts up.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed._functional_collectives  # registers the ops
from torch import Tensor, nn

from layoutcheck.graph import Graph
from layoutcheck.readers import load

COLUMN = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
ROW = ("o_proj", "down_proj")
SIZES: dict[str, Any] = dict(
    vocab_size=96,
    hidden_size=32,
    num_hidden_layers=2,
    head_dim=8,
    max_position_embeddings=64,
    use_cache=False,
    attn_implementation="eager",
)
HEADS, KV_HEADS, INNER = 16, 8, 64


class Summed(nn.Module):
    """A row-parallel linear: every rank's product is a summand."""

    def __init__(self, linear: nn.Module) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, x: Tensor) -> Tensor:
        """The sum over the group."""
        ops = torch.ops._c10d_functional
        y: Tensor = ops.wait_tensor(ops.all_reduce(self.linear(x), "sum", "tp"))
        return y


def llama(p: int) -> nn.Module:
    """A rank's model in a group of p; p = 1 is the whole one. Random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        **SIZES,
        num_attention_heads=HEADS // p,
        num_key_value_heads=KV_HEADS // p,
        intermediate_size=INNER // p,
    )
    torch.manual_seed(5)
    model: nn.Module = LlamaForCausalLM(config).eval()
    for weight in model.parameters():
        if weight.dim() == 1:  # a norm's, which would all be 1
            nn.init.uniform_(weight, 0.5, 1.5)
    if p > 1:
        for layer in model.model.layers:
            layer.self_attn.o_proj = Summed(layer.self_attn.o_proj)
            layer.mlp.down_proj = Summed(layer.mlp.down_proj)
    return model


def exported(model: nn.Module, tokens: int, p: int) -> Graph:
    """The rank's graph, with its group."""
    ids = torch.zeros(1, tokens, dtype=torch.int64)
    program = torch.export.export(model, (ids,), {"use_cache": False}, strict=False)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank.pt2"
        torch.export.save(program, path)
        graph = load(path)
    graph.config["groups"] = {"tp": list(range(p))}
    return graph


def shard(name: str, whole: Tensor, rank: int, p: int) -> Tensor:
    """A rank's part of a weight."""
    module = name.split(".")[-2]
    if module in COLUMN:
        return whole.chunk(p, 0)[rank]
    return whole.chunk(p, 1)[rank] if module in ROW else whole


def inputs_of(graph: Graph, model: nn.Module, ids: Tensor, rank: int, p: int) -> dict[str, Any]:
    """Values of a rank's placeholders: its parts of the whole model's weights, its buffers, the ids."""
    weights = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    out: dict[str, Any] = {}
    for node in graph.nodes:
        if node.op not in ("placeholder", "get_attr"):
            continue
        spec = graph.inputs[node.name]
        if spec.fqn is None:
            out[node.name] = ids if spec.kind == "user_input" else None
            continue
        name = spec.fqn.replace(".linear.", ".")
        value = shard(name, weights[name].detach(), rank, p)
        out[node.name] = value.double() if value.is_floating_point() else value
    return out
