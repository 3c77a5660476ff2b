"""Two decoder layers with sparse attention, written for one rank of a tensor-parallel group of four.

The tokens of the residual stream are split over the group. Attention sees all tokens, so the normalised
value is gathered in front of it; its output is cut to the rank's own tokens before the output projection.
The shared expert comes in two forms: with whole weights, which is right, and with weights whose features
are split over the group that splits the tokens, which is the fault that these examples are about.
"""

from __future__ import annotations

import torch
import torch.distributed._functional_collectives  # registers the ops
from torch import Tensor, nn

GROUP = "tp"
WORLD = 4
HIDDEN, HEADS, HEAD_DIM, INDEX_DIM, INTERMEDIATE = 64, 4, 16, 8, 32
EXPERTS, EXPERTS_PER_TOKEN, TOP_K = 8, 2, 4

_ops = torch.ops._c10d_functional


def all_gather(x: Tensor) -> Tensor:
    """Put the ranks' shares of dimension 0 together."""
    return _ops.wait_tensor(_ops.all_gather_into_tensor(x, WORLD, GROUP))


def all_reduce(x: Tensor) -> Tensor:
    """Add the ranks' values."""
    return _ops.wait_tensor(_ops.all_reduce(x, "sum", GROUP))


def own_tokens(x: Tensor, rank: int) -> Tensor:
    """Cut ceil(T / 4) tokens out for the rank, the last ones padded."""
    share = (x.shape[0] + WORLD - 1) // WORLD
    padded = nn.functional.pad(x, [0, 0, 0, share * WORLD - x.shape[0]])
    return padded.narrow(0, rank * share, share)


class Norm(nn.Module):
    """Root mean square norm over the features."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class SparseAttention(nn.Module):
    """Each query attends to the earlier keys that an indexer picks. All tokens in, the rank's own out."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank
        self.q_proj = nn.Linear(HIDDEN, HEADS * HEAD_DIM, bias=False)
        self.k_proj = nn.Linear(HIDDEN, HEADS * HEAD_DIM, bias=False)
        self.v_proj = nn.Linear(HIDDEN, HEADS * HEAD_DIM, bias=False)
        self.index_q_proj = nn.Linear(HIDDEN, INDEX_DIM, bias=False)
        self.index_k_proj = nn.Linear(HIDDEN, INDEX_DIM, bias=False)
        self.o_proj = nn.Linear(HEADS * HEAD_DIM, HIDDEN, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.shape[0]
        position = torch.arange(tokens, device=x.device)
        future = position.unsqueeze(0) > position.unsqueeze(1)
        scores = self.index_q_proj(x) @ self.index_k_proj(x).transpose(0, 1)
        picked = scores.masked_fill(future, float("-inf")).topk(TOP_K, dim=-1).indices
        mask = (
            torch.full_like(scores, float("-inf")).scatter(1, picked, 0.0).masked_fill(future, float("-inf"))
        )
        q, k, v = (
            proj(x).view(tokens, HEADS, HEAD_DIM).transpose(0, 1)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        weights = (q @ k.transpose(1, 2) * HEAD_DIM**-0.5 + mask).softmax(-1)
        heads = (weights @ v).transpose(0, 1).reshape(tokens, HEADS * HEAD_DIM)
        return self.o_proj(own_tokens(heads, self.rank))


class SharedExpert(nn.Module):
    """The expert that every token goes through. ``split`` keeps a quarter of its features on each rank."""

    def __init__(self, split: bool) -> None:
        super().__init__()
        self.split = split
        features = INTERMEDIATE // WORLD if split else INTERMEDIATE
        self.up_proj = nn.Linear(HIDDEN, features, bias=False)
        self.down_proj = nn.Linear(features, HIDDEN, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.down_proj(nn.functional.silu(self.up_proj(x)))
        # With split features each rank's y is about its own tokens: this sum adds different tokens.
        return all_reduce(y) if self.split else y


class Experts(nn.Module):
    """A gate, the experts it picks for each token, and the shared expert."""

    def __init__(self, split_shared: bool) -> None:
        super().__init__()
        self.gate = nn.Linear(HIDDEN, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(EXPERTS, INTERMEDIATE, HIDDEN))
        self.down = nn.Parameter(torch.randn(EXPERTS, HIDDEN, INTERMEDIATE))
        self.shared = SharedExpert(split_shared)

    def forward(self, x: Tensor) -> Tensor:
        scores, picked = self.gate(x).softmax(-1).topk(EXPERTS_PER_TOKEN, dim=-1)
        inner = nn.functional.silu(torch.einsum("tkfd,td->tkf", self.up[picked], x))
        outer = torch.einsum("tkdf,tkf->tkd", self.down[picked], inner)
        return (outer * scores.unsqueeze(-1)).sum(1) + self.shared(x)


class Layer(nn.Module):
    """Attention on all tokens, experts on the rank's own; hands on the gathered norm and the residual."""

    def __init__(self, rank: int, split_shared: bool) -> None:
        super().__init__()
        self.attention = SparseAttention(rank)
        self.post_attention_norm = Norm()
        self.mlp = Experts(split_shared)
        self.next_norm = Norm()

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        tokens = x.shape[0]
        residual = residual + self.attention(x)
        residual = residual + self.mlp(self.post_attention_norm(residual))
        return all_gather(self.next_norm(residual))[:tokens], residual


class LayerPair(nn.Module):
    """Two layers. Takes all tokens' hidden states on every rank and gives them back normalised."""

    def __init__(self, rank: int = 0, split_shared: bool = False) -> None:
        super().__init__()
        self.rank = rank
        self.input_norm = Norm()
        self.layers = nn.ModuleList(Layer(rank, split_shared) for _ in range(2))

    def forward(self, hidden_states: Tensor) -> Tensor:
        x, residual = self.input_norm(hidden_states), own_tokens(hidden_states, self.rank)
        for layer in self.layers:
            x, residual = layer(x, residual)
        return x
